"""Everything that the documentation shows runs."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    f"headrace.{folder}.{path.stem}"
    for folder in ("augment", "datastores", "train", "tools")
    for path in (ROOT / folder).glob("[!_]*.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def _blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def _run(script: str, name: str, folder: Path) -> None:
    (folder / name).write_text(script)
    result = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.timeout(240)
def test_the_readme_runs(tmp_path: Path) -> None:
    """The commands and the code of the README, word by word, on a small folder of pictures, without a main guard."""
    random = np.random.default_rng(0)
    for number in range(80):
        picture = tmp_path / "pictures" / ["cat", "dog"][number % 2] / f"{number}.jpg"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (60, 80, 3), np.uint8)).save(picture)
    commands = [
        line[2:] for block in _blocks("console") for line in block.splitlines() if line.startswith("$ headrace")
    ]
    assert [command.split()[1] for command in commands] == ["build", "inspect", "verify", "bench", "view"]
    for command in commands:
        words = command.replace("~", str(tmp_path)).split()[1:]
        subprocess.run([sys.executable, "-m", "headrace.tools.cli", *words], cwd=tmp_path, check=True)
    scripts = _blocks("python")
    assert len(scripts) == 3
    for number, script in enumerate(scripts):
        _run(script, f"readme{number}.py", tmp_path)


@pytest.mark.timeout(120)
def test_the_page_about_segmentation_runs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, shape, ending in (("photos", (80, 90, 3), "jpg"), ("masks", (80, 90), "png")):
        (tmp_path / "street" / name).mkdir(parents=True)
        for number in range(8):
            picture = Image.fromarray(random.integers(0, 4, shape, np.uint8))
            picture.save(tmp_path / "street" / name / f"{number}.{ending}")
    (script,) = _blocks("python", "docs/segmentation.md")
    _run(script, "street.py", tmp_path)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
