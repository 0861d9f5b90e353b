"""The ``headrace`` command: finds the sub-command, imports only that one, and turns errors into one line.

Each command is a module with ``add_arguments(parser)`` and ``run(options) -> exit code``. Results go to stdout,
progress and errors to stderr.

Exit codes: 0 done; 1 an error, named on stderr; 2 wrong usage; 130 ended by Ctrl-C; 143 ended by SIGTERM.
"""

import argparse
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from .. import __version__
from ..errors import HeadraceError

__all__ = ["main"]

_COMMANDS = {
    "build": "pack a folder of images into shards",
    "index": "make an index for shards that have none",
    "inspect": "say what is in a set of shards",
    "view": "draw a contact sheet: originals above what a model would see of them",
    "bench": "measure how fast a dataset loads here, and say what limits it",
    "demo": "the whole main job on real images: shards, background workers, a trained model",
}


class _Terminated(BaseException):
    """SIGTERM, as an exception: a command that is told to stop cleans up first."""


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
    options = _parser(command).parse_args(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold what the terminal cannot show
    try:
        with _sigterm_raises():
            code: int = importlib.import_module(f".{options.command}", __package__).run(options)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # whoever read our output has gone; nothing may be flushed into it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (HeadraceError, OSError) as error:
        return _complain(options.command, str(error), 1)
    except KeyboardInterrupt:
        return _complain(options.command, "interrupted", 130)
    except _Terminated:
        return _complain(options.command, "terminated", 143)


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
        sub = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
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


def _complain(command: str, message: str, code: int) -> int:
    print(f"headrace {command}: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
