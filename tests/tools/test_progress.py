"""Progress: a bar on a terminal, few lines elsewhere, nothing when it is quick or quiet."""

import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from archives import image_folder

from headrace.tools import progress as module
from headrace.tools.progress import Progress, show_bytes, show_duration


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_long_run_says_now_and_then_how_far_it_is(time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("headrace build", total=100_000, unit="images") as progress:
        for _ in range(40):
            time.now += 1
            progress.advance(1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"headrace build: {10 * n},000 images of 100,000 ({10 * n} %), {100 - 10 * n} s left, 1,000 a second"
        for n in (1, 2, 3, 4)
    ]


def test_an_unknown_total(time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("headrace index", total=None, unit="shards") as progress:
        time.now += 20
        progress.advance()
    assert capsys.readouterr().err == "headrace index: 1 shard, 0 a second\n"


def test_lines_become_rare(time: Time, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("x", total=86_400, unit="images") as progress:
        for _ in range(86_400):
            time.now += 1
            progress.advance()
    assert 20 < len(capsys.readouterr().err.splitlines()) < 100, "a day gives tens of lines"


@pytest.mark.parametrize(("seconds", "quiet"), [(5, False), (500, True)])
def test_silence(time: Time, capsys: pytest.CaptureFixture[str], seconds: int, quiet: bool) -> None:
    with Progress("x", total=10, unit="images", quiet=quiet) as progress:
        time.now += seconds
        progress.advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("columns", [0, 100])
def test_a_terminal_gets_a_bar_and_a_pipe_gets_the_result(tmp_path: Path, columns: int) -> None:
    image_folder(tmp_path / "src", {"": 3})
    terminal, child_end = pty.openpty()
    termios.tcsetwinsize(child_end, (24, columns))
    code = (
        "import sys\nfrom headrace.tools import cli, progress\nprogress._BAR_DELAY_SECONDS = 0\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "build", str(tmp_path / "src"), str(tmp_path / "out")]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=child_end, text=True, check=True)
    assert select.select([terminal], [], [], 10)[0], "nothing was shown"
    shown = os.read(terminal, 100_000).decode()
    os.close(child_end)
    os.close(terminal)
    assert "headrace build" in shown
    assert "0/3" in shown
    assert result.stdout.startswith("3 images in 1 shard")


def test_people_read_these() -> None:
    assert [show_bytes(n) for n in (0, 999, 1000, 256 << 20, 3 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "268.4 MB",
        "3.0 TB",
    ]
    assert [show_duration(s) for s in (0, 99, 100, 5999, 6000)] == ["0 s", "99 s", "2 min", "100 min", "1.7 h"]
