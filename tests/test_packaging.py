"""What is installed: every module under one name, whatever lies beside the user's script."""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ["augment", "datastores", "train", "tools"]


def _modules() -> list[str]:
    """All modules of the repository by their installed names."""
    top = ["headrace", *(f"headrace.{path.stem}" for path in (ROOT / "_package").glob("[!_]*.py"))]
    inside = [
        f"headrace.{folder}" + ("" if path.stem == "__init__" else f".{path.stem}")
        for folder in FOLDERS
        for path in (ROOT / folder).glob("*.py")
    ]
    return sorted(top + inside)


def _python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it, out of a copy without build leftovers."""
    copy, out = tmp_path_factory.mktemp("copy") / "src", tmp_path_factory.mktemp("dist")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in files.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    result = _python("-m", "build", "--outdir", str(out), str(copy), cwd=copy)
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def test_every_folder_is_listed() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(packages) == sorted(["headrace", *(f"headrace.{folder}" for folder in FOLDERS)])


def test_the_wheel_holds_every_module_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    expected = [
        *(f"headrace/{path.name}" for path in (ROOT / "_package").iterdir() if path.is_file()),
        *(f"headrace/{folder}/{path.name}" for folder in FOLDERS for path in (ROOT / folder).glob("*.py")),
    ]
    assert sorted(names) == sorted(expected)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "datastores/plan.py", "_package/py.typed"} <= inside


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["wheel", "strict editable"])
def test_every_module_imports_beside_a_users_own_train_and_tools(built: Path, tmp_path: Path, kind: str) -> None:
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=False)
    python = tmp_path / "venv" / "bin" / "python"
    # The dependencies are those that already run this test; only headrace itself is installed anew.
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    donors = [p for p in sys.path if p.endswith("site-packages")]
    (site / "donors.pth").write_text("\n".join(donors))
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    if kind == "wheel":
        what = [str(wheel)]
    else:
        with tarfile.open(sdist) as archive:
            archive.extractall(tmp_path / "src", filter="data")
        what = ["--editable", str(next((tmp_path / "src").iterdir())), "--config-settings", "editable_mode=strict"]
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed", *what]
    result = subprocess.run(install, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    work = tmp_path / "work"
    work.mkdir()
    for name in (*FOLDERS, "tests"):
        (work / f"{name}.py").write_text("raise SystemExit('a file of the user was imported')")
    (work / "main.py").write_text(
        f"import importlib\nfor name in {_modules()!r}:\n    importlib.import_module(name)\n"
        "import headrace\nprint(headrace.__file__)\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    ran = subprocess.run([str(python), "main.py"], cwd=work, env=clean, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert str(tmp_path) in ran.stdout, "the copy under test must be the one that was just installed"
    script = subprocess.run([str(python.parent / "headrace"), "--version"], capture_output=True, text=True, check=False)
    assert script.stdout.startswith("headrace "), script.stderr


LIGHT = [
    "headrace",
    "headrace.datastores",
    "headrace.augment",
    "headrace.train",
    "headrace.tools.cli",
    "headrace.datastores.index",
    "headrace.datastores.write",
    "headrace.datastores.image",
    "headrace.datastores.sharded",
]


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_never_loads_torch(module: str) -> None:
    code = f"import {module}, sys; print([m for m in ('torch', 'webdataset', 'matplotlib') if m in sys.modules])"
    path = os.environ.get("PYTHONPATH", "")
    result = _python("-c", code, cwd=ROOT / "docs", PYTHONPATH=path)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
