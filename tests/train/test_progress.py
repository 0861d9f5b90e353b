import contextlib
import os
import pty
import termios

import pytest

from headrace.train.history import Row
from headrace.train.progress import Progress

ROW = Row(step=2, epoch=1, loss=0.4123, images_per_second=1980.4, wait_share=0.017, lr=0.08, validation={"loss": 0.5})


def _all_of(ours: int) -> str:
    """What was written to the other end of a terminal, which is closed by now."""
    parts = []
    with contextlib.suppress(OSError):  # that is how a terminal ends
        while part := os.read(ours, 1 << 16):
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


@pytest.mark.parametrize("style", ["lines", "bar"])  # stderr is no terminal here
def test_lines_on_stderr(capsys: pytest.CaptureFixture[str], style: str) -> None:
    with Progress(style, 9) as progress:
        progress.step()
        progress.row(ROW)
        progress.say("the end")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "step 2/9 epoch 1 loss 0.4123 val_loss 0.5 1980 img/s wait 1.7 % lr 0.08\nthe end\n"


def test_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("none", 9) as progress:
        progress.step()
        progress.row(ROW)
        progress.say("the end")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_without_a_size_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (0, 0))
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with Progress("bar", 4) as progress:
            progress.row(ROW)
            progress.end("the end")
    shown = _all_of(ours)
    assert shown.startswith("step 2/4 epoch 1 loss 0.4123")
    assert shown.endswith("the end\r\n")


def test_the_last_line_stands_below_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with Progress("bar", 4) as progress:
            progress.step()
            progress.end("the end")
    shown = _all_of(ours)
    assert shown.endswith("the end\r\n")
    assert "1/4" in shown


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with Progress("bar", 4).beginning_at(3) as progress:
            progress.row(ROW)
            progress.step()
            progress.say("the end")
    shown = _all_of(ours)
    assert "3/4" in shown
    assert "4/4" in shown
    assert "loss 0.4123" in shown
    assert "the end" in shown
