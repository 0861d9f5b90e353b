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


@pytest.mark.parametrize(("samples", "words"), [(50, ["--batch", "32"]), (50, ["--batch", "50"]), (1, [])])
@pytest.mark.parametrize("workers", ["0", "auto"])
def test_short_epochs_are_measured_too(samples: int, words: list[str], workers: str, tmp_path: Path) -> None:
    for number in range(samples):
        Image.fromarray(np.full((30, 40, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    found = bench(str(tmp_path), "--workers", workers, "--seconds", "0.3", *words, "--json")
    assert found.returncode == 0, found.stderr
    answer: dict[str, Any] = json.loads(found.stdout)
    assert answer["batches"] > 1
    assert answer["samples_per_second"] > 10
    assert len(answer["notes"]) == (workers == "auto"), "auto says why it is where it is"


def test_no_time_is_enough_for_a_figure(pictures: Path) -> None:
    found = bench(str(pictures / "shards"), "--workers", "0", "--seconds", "0", "--batch", "1")
    assert found.returncode == 0, found.stderr
    assert "data wait" in found.stdout
    assert found.stdout.startswith("60 images, batches of 1; the first one after")


def test_broken_images_stop_it_or_are_counted(tmp_path: Path) -> None:
    for number in range(20):
        Image.fromarray(np.full((30, 40, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "7.png").write_bytes(b"no image")
    found = bench(str(tmp_path), "--workers", "0", "--seconds", "0.2", "--batch", "20")
    assert found.returncode == 1
    assert f"{tmp_path}/7.png cannot be decoded" in found.stderr
    assert "--skip-bad" in found.stderr
    found = bench(str(tmp_path), "--workers", "0", "--seconds", "0.2", "--batch", "20", "--skip-bad")
    assert found.returncode == 0, found.stderr
    assert "could not be made and were replaced by others" in found.stdout


def test_wrong_words_and_places(tmp_path: Path) -> None:
    assert bench(str(tmp_path / "nowhere")).returncode == 1
    assert "Traceback" not in bench(str(tmp_path / "nowhere")).stderr
    for words in (["--workers", "-1"], ["--batch", "0"], ["--seconds", "x"], ["--size", "1e3"]):
        found = bench(str(tmp_path), *words)
        assert (found.returncode, "Traceback" in found.stderr) == (2, False)
