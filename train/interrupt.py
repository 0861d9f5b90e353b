"""Ctrl-C that waits for the end of a step, so that weights are never half a step ahead of their optimizer."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

__all__ = ["Interrupts"]


class Interrupts:
    """Puts off KeyboardInterrupt while something is done that must be done whole.

    Inside ``with``, a first SIGINT that comes in a ``held()`` block is raised at its end, a second one at once. Outside
    of blocks nothing changes. It has no effect where Python's own handler is not the one that is set: in a thread other
    than the main one, or in a program that treats SIGINT in its own way.

    Example:
        >>> with Interrupts() as interrupts:
        ...     try:
        ...         with interrupts.held():
        ...             signal.raise_signal(signal.SIGINT)
        ...             print("done")
        ...     except KeyboardInterrupt:
        ...         print("interrupted")
        done
        interrupted
    """

    def __init__(self) -> None:
        self._is_held = False
        self._is_pending = False
        self._is_installed = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        self._is_installed = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_installed:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # whoever has set another handler meanwhile keeps it
        if self._is_installed and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put off a first interrupt to the end of this block; an inner block leaves it to the outer one.

        Raises:
            KeyboardInterrupt: at the end, if there was an interrupt and the block raised nothing.
        """
        before, self._is_held = self._is_held, True
        try:
            yield
        finally:
            self._is_held = before
        self._deliver()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside ``held()``, let interrupts through: what is done here may break off at any point.

        Raises:
            KeyboardInterrupt: at once, if one was put off, or when one comes.
        """
        before, self._is_held = self._is_held, False
        try:
            self._deliver()
            yield
        finally:
            self._is_held = before

    def _deliver(self) -> None:
        if self._is_pending and not self._is_held:
            self._is_pending = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_held and not self._is_pending:
            self._is_pending = True
            return
        self._is_pending = False
        signal.default_int_handler(number, frame)
