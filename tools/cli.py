"""The ``headrace`` command: finds the sub-command, imports only that one, and turns errors into one line.

Each command is a module with ``add_arguments(parser)`` and ``run(options) -> exit code``. Results go to stdout,
progress and errors to stderr.

Exit codes: 0 done; 1 an error, named on stderr (nobody reads the result any more: 1 and no word); 2 wrong usage; 130
ended by Ctrl-C; 143 ended by SIGTERM. A closed stdout is what ``> /dev/null`` is.
"""

import argparse
import importlib
import io
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from .. import __version__
from ..errors import HeadraceError

__all__ = ["main"]

_COMMANDS = {
    "build": "pack a folder of images into shards",
    "index": "make an index for shards that have none",
    "inspect": "say what is in a set of shards",
    "verify": "check that a set of shards is whole, and name everything that is not",
    "export": "write shards back to files, in folders of their classes",
    "view": "draw a contact sheet: originals above what a model would see of them",
    "bench": "measure how fast a dataset loads here, and say what limits it",
    "cache": "show or remove the local copies of remote shards",
    "doctor": "say what is installed and usable here, and what would make training faster",
    "demo": "the whole main job on real images: shards, background workers, a trained model",
}


class _Terminated(BaseException):
    """SIGTERM, as an exception: a command that is told to stop cleans up first."""


class _WholeWords(argparse.HelpFormatter):
    """Breaks lines between words only: an option or a range such as -10:10 stays in one piece, to be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: without the program's name; default: ``sys.argv[1:]``.

    Returns:
        The exit code.

    Raises:
        SystemExit: after ``--help``, ``--version`` (code 0) and wrong usage (code 2), as argparse does it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in words if not word.startswith("-")), None)
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold what the terminal cannot show
    try:
        with _sigterm_raises():
            return _run(words, command)
    except BrokenPipeError:  # whoever read our output has gone
        _drop_output()
        return 1
    except MemoryError as error:
        return _complain(command, f"out of memory ({error})" if str(error) else "out of memory", 1)
    except (HeadraceError, OSError) as error:
        return _complain(command, str(error), 1)
    except KeyboardInterrupt:
        return _complain(command, "interrupted", 130)
    except _Terminated:
        return _complain(command, "terminated", 143)


def _run(words: list[str], command: str | None) -> int:
    try:
        options = _parser(command).parse_args(words)
        code: int = importlib.import_module(f".{options.command}", __package__).run(options)
    except SystemExit:
        sys.stdout.flush()  # what --help says may find nobody to read it
        raise
    sys.stdout.flush()
    return code


def _parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the chosen command's module is imported and asked for its options."""
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Train vision models on image collections that do not fit in memory.",
        epilog="exit codes: 0 done, 1 an error, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM",
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in _COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        sub = commands.add_parser(name, help=summary, description=description, formatter_class=_WholeWords)
        if name == command:
            importlib.import_module(f".{name}", __package__).add_arguments(sub)
    return parser


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _open_closed_streams() -> None:
    """Give streams that the caller has closed (``>&-``) the null device: no data file may get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, so this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _drop_output() -> None:
    """Let what could not be written go to the null device, or Python would try and fail again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(command: str | None, message: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    with suppress(OSError):  # nobody listens
        print(f"headrace {command}: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
