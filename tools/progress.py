"""How far a command is: a bar on a terminal, a line now and then elsewhere, always on stderr."""

import os
import sys
import time
from types import TracebackType
from typing import Any, Self

from ..datastores.counts import show_count

__all__ = ["Progress", "show_bytes", "show_count", "show_duration"]

_FIRST_LINE_SECONDS = 10.0
_BAR_DELAY_SECONDS = 0.3


class Progress:
    """Counts what is done and shows it.

    Args:
        label: the command, for example "headrace build".
        total: how many there will be; None if nobody knows.
        unit: what is counted, in the plural.
        quiet: show nothing.

    Example:
        >>> with Progress("headrace build", total=2, unit="images", quiet=True) as progress:
        ...     progress.advance()
    """

    def __init__(self, label: str, total: int | None, unit: str, *, quiet: bool = False) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.quiet = quiet
        self.done = 0
        self._bar: Any = None
        self._started = time.monotonic()
        self._next_line = self._started + _FIRST_LINE_SECONDS

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from tqdm import tqdm  # here, so that no command waits for it in vain

            has_width = os.get_terminal_size(sys.stderr.fileno()).columns > 0  # some say 0, and would get no bar
            self._bar = tqdm(
                total=self.total,
                desc=self.label,
                unit=f" {self.unit}",
                delay=_BAR_DELAY_SECONDS,
                dynamic_ncols=has_width,
                ncols=None if has_width else 80,
                leave=False,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1) -> None:
        """Count ``count`` more as done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        elif not self.quiet and time.monotonic() >= self._next_line:
            self._print_line()

    def _print_line(self) -> None:
        seconds = time.monotonic() - self._started
        rate = self.done / seconds
        left = ""
        if self.total is not None:
            remaining = show_duration((self.total - self.done) / rate)
            left = f" of {self.total:,} ({100 * self.done / self.total:.0f} %), {remaining} left"
        done = show_count(self.done, self.unit.removesuffix("s"))
        print(f"{self.label}: {done}{left}, {rate:,.0f} a second", file=sys.stderr, flush=True)
        self._next_line = time.monotonic() + max(_FIRST_LINE_SECONDS, seconds / 10)  # some 40 lines in a day


def show_duration(seconds: float) -> str:
    """Return a duration for people.

    Example:
        >>> show_duration(7), show_duration(200), show_duration(9000)
        ('7 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def show_bytes(count: int) -> str:
    """Return a size for people.

    Example:
        >>> show_bytes(512), show_bytes(1_500_000)
        ('512 bytes', '1.5 MB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
