"""Temporary folders go with their process, whether it ends or is killed."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.datastores.scratch import Scratch

HOLDS = """
import os, signal
from headrace.datastores.scratch import Scratch
scratch = Scratch.make()
scratch.write("a", b"1")
print(scratch.folder, flush=True)
signal.pause()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def other(temporary: Path) -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True, env=environment)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(
    temporary: Path, other: "subprocess.Popen[str]"
) -> None:
    theirs = Path(other.stdout.readline().strip())
    mine = Scratch.make()
    assert (theirs / "a").read_bytes() == b"1"
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert theirs.exists()
    another = Scratch.make()
    assert sorted(map(str, temporary.iterdir())) == sorted([mine.folder, another.folder])


def test_folders_of_that_name_but_not_ours_are_left_alone(temporary: Path) -> None:
    (temporary / "headrace-tables-mine").mkdir()
    (temporary / "headrace-tables-mine" / "precious").touch()
    (temporary / "precious").mkdir()
    (temporary / "precious" / "lock").touch()
    (temporary / "headrace-tables-link").symlink_to(temporary / "precious")
    (temporary / "headrace-tables-file").touch()
    before = sorted(temporary.rglob("*"))
    Scratch.make().remove()
    assert sorted(temporary.rglob("*")) == before


def test_a_folder_that_was_never_locked_is_removed(temporary: Path) -> None:
    (temporary / "headrace-tables-empty").mkdir()
    scratch = Scratch.make()
    assert [str(path) for path in temporary.iterdir()] == [scratch.folder]


def test_a_copy_neither_keeps_nor_removes_it(temporary: Path) -> None:
    scratch = Scratch.make()
    copy = pickle.loads(pickle.dumps(scratch))
    assert copy.folder == scratch.folder
    del copy
    assert Path(scratch.folder).exists()
    del scratch
    assert list(temporary.iterdir()) == []
