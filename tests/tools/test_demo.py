"""The demo does the whole main job and keeps its word."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

COMMAND = [sys.executable, "-m", "headrace.tools.cli", "demo"]


@pytest.mark.timeout(240)
def test_the_demo_reaches_its_accuracy_and_repeats_its_weights(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = subprocess.run([*COMMAND, "--out", str(out)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    accuracy = re.search(r"held-out accuracy +(0\.\d+)", result.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.97
    first, second = re.findall(r"sha256 ([0-9a-f]{64})", result.stdout)
    assert first == second
    for share in ("data wait", "compute", "images per second"):
        assert share in result.stdout
    for name, least in (("contact_sheet.png", (1000, 500)), ("curves.png", (1000, 300))):
        picture = Image.open(out / name)
        assert picture.width >= least[0]
        assert picture.height >= least[1]
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 50, "an empty picture"
    assert len(list((out / "images").rglob("*.png"))) == 1797
    again = subprocess.run([*COMMAND, "--out", str(out), "--epochs", "0"], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "max_epochs must be a whole number >= 1" in again.stderr


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    result = subprocess.run([*COMMAND, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "already holds something else" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]
