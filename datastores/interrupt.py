"""Ctrl-C that waits for the end of what must be done whole: a training step, the start of a process."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["allowed", "held"]


class _State:
    """There is one SIGINT handler in a process, and it runs in the main thread: so does all that changes this."""

    def __init__(self) -> None:
        self.is_held = False
        self.is_pending = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_held and not self.is_pending:
            self.is_pending = True
            return
        self.is_pending = False
        signal.default_int_handler(number, frame)

    def deliver(self) -> None:
        if self.is_pending and not self.is_held:
            self.is_pending = False
            raise KeyboardInterrupt


_STATE = _State()


@contextmanager
def held() -> Iterator[None]:
    """Put off a first Ctrl-C to the end of this block; a second one is raised at once.

    An inner block leaves the interrupt to the outer one. It has no effect where Python's own handler is not the one
    that is set: in a thread other than the main one, or in a program that treats SIGINT in its own way.

    Raises:
        KeyboardInterrupt: at the end, if there was an interrupt and the block raised nothing.

    Example:
        >>> try:
        ...     with held():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("done")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        done
        interrupted
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_outermost = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_outermost:
        _STATE.is_pending = False  # of a block that raised something else
        signal.signal(signal.SIGINT, _STATE.handle)
    before, _STATE.is_held = _STATE.is_held, True
    try:
        yield
    finally:
        _STATE.is_held = before
        # whoever has set another handler meanwhile keeps it
        if is_outermost and signal.getsignal(signal.SIGINT) == _STATE.handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    _STATE.deliver()


@contextmanager
def allowed() -> Iterator[None]:
    """Inside ``held()``, let interrupts through: what is done here may break off at any point.

    Raises:
        KeyboardInterrupt: at once, if one was put off, or when one comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _STATE.is_held = _STATE.is_held, False
    try:
        _STATE.deliver()
        yield
    finally:
        _STATE.is_held = before
