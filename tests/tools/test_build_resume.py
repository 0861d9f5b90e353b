"""headrace build --resume: killed at any moment, with any workers, its bytes are those of an unbroken build."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from archives import image_folder, jpeg

from headrace.datastores.journal import JOURNAL_NAME
from headrace.datastores.staging import STAGING_NAME
from headrace.tools.cli import main

SLOW = """
import sys, time
from headrace.tools import cli, samples
read = samples._read
def slow(storage, part):
    time.sleep(0.03)
    return read(storage, part)
samples._read = slow
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    image_folder(tmp_path / "src", {"cat": 60, "dog": 30})
    for name in ("cat/000.jpg", "dog/029.jpg", "cat/030.jpg"):
        (tmp_path / "src" / name).write_bytes(b"no image")
    return tmp_path / "src"


def words(source: Path, out: Path, *more: object) -> list[str]:
    options = ["--split", "train=.8,val=.2", "--shuffle", "5", "--shard-samples", "4", "--skip-bad", "--resize", "20"]
    return ["build", str(source), str(out), *options, "--quiet", *map(str, more)]


@pytest.mark.timeout(120)
def test_killed_again_and_again_it_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    assert main(words(source, tmp_path / "unbroken", "--workers", "0")) == 0
    (tmp_path / "slow.py").write_text(SLOW)
    chance, kills, out = random.Random(0), 0, tmp_path / "out"
    while True:
        command = [sys.executable, str(tmp_path / "slow.py"), *words(source, out, "--resume", "--workers", kills % 3)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, errors = process.communicate(timeout=chance.uniform(0.3, 0.9) + kills / 20)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
            kills += 1
            assert kills < 80
            continue
        assert (process.returncode, errors) == (0, "")
        break
    assert kills >= 2
    assert tree(out) == tree(tmp_path / "unbroken")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_is_continued(source: Path, tmp_path: Path, number: signal.Signals) -> None:
    assert main(words(source, tmp_path / "unbroken")) == 0
    (tmp_path / "slow.py").write_text(SLOW)
    out = tmp_path / "out"
    command = [sys.executable, str(tmp_path / "slow.py"), *words(source, out)]
    command.remove("--quiet")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    journal, deadline = out / "train" / STAGING_NAME / JOURNAL_NAME, time.monotonic() + 30
    while not (journal.exists() and journal.read_bytes().count(b"\n") > 3):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "samples finished; the same command with --resume goes on there\n" in errors
    assert main(words(source, out, "--resume")) == 0
    assert tree(out) == tree(tmp_path / "unbroken")


def test_a_finished_build_is_left_as_it_is(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(words(source, out, "--resume", "--json")) == 0
    first, before = capsys.readouterr().out, tree(out)
    assert main(words(source, out, "--resume", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(first)
    assert tree(out) == before
    for more in (["--quality", "50"], ["--shuffle", "6"], ["--shard-samples", "5"]):
        assert main(words(source, out, "--resume", *more)) == 1
        assert "already holds another dataset" in capsys.readouterr().err
    (source / "cat/new.jpg").write_bytes(jpeg(3))
    assert main(words(source, out, "--resume")) == 1
    assert tree(out) == before


def test_one_part_may_be_published_before_the_other(source: Path, tmp_path: Path) -> None:
    assert main(words(source, tmp_path / "unbroken")) == 0
    assert main(words(source, tmp_path / "out")) == 0
    for path in (tmp_path / "out/val").iterdir():
        path.unlink()
    assert main(words(source, tmp_path / "out", "--resume")) == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "unbroken")


def test_resuming_where_nothing_was_begun_is_a_build(source: Path, tmp_path: Path) -> None:
    assert main(words(source, tmp_path / "one", "--resume")) == 0
    assert main(words(source, tmp_path / "two")) == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
