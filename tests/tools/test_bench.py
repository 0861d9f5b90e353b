"""headrace bench: a figure, and a reason."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

COMMAND = [sys.executable, "-m", "headrace.tools.cli"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(60):
        path = folder / "images" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (300, 400, 3), np.uint8)).save(path)
    subprocess.run([*COMMAND, "build", str(folder / "images"), str(folder / "shards"), "--quiet"], check=True)
    return folder


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "bench", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("what", ["images", "shards"])
@pytest.mark.parametrize("workers", ["0", "2", "auto"])
def test_it_measures_shards_and_folders(pictures: Path, what: str, workers: str) -> None:
    found = bench(str(pictures / what), "--workers", workers, "--seconds", "0.5", "--batch", "16", "--json")
    assert found.returncode == 0, found.stderr
    answer: dict[str, Any] = json.loads(found.stdout)
    assert answer["samples_per_second"] > 10
    assert answer["stage_seconds"]["decode"] > 1e-4
    assert answer["wait_share"] > 0.5
    assert 0 < answer["first_batch_seconds"] < 60
    assert "data wait" in answer["verdict"]


def test_a_long_step_hides_the_loader(pictures: Path) -> None:
    found = bench(str(pictures / "shards"), "--workers", "1", "--seconds", "2", "--batch", "8", "--step-ms", "200")
    assert found.returncode == 0, found.stderr
    assert "the consumer is the limit" in found.stdout
    assert "us per sample" in found.stdout


def test_wrong_words_and_places(tmp_path: Path) -> None:
    assert bench(str(tmp_path / "nowhere")).returncode == 1
    assert "Traceback" not in bench(str(tmp_path / "nowhere")).stderr
    for words in (["--workers", "-1"], ["--batch", "0"], ["--seconds", "x"], ["--size", "1e3"]):
        found = bench(str(tmp_path), *words)
        assert (found.returncode, "Traceback" in found.stderr) == (2, False)
