"""Ctrl-C, and SIGTERM, that wait for the end of what must be done whole: a training step, the start of a process."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Terminated", "allowed", "held", "kept_from_children", "taken"]


class Terminated(KeyboardInterrupt):
    """SIGTERM came: a scheduler wants the process to end."""


class _State:
    """There is one handler of a signal in a process, and it runs in the main thread: so does all that changes this."""

    def __init__(self) -> None:
        self.is_held = False
        self.pending: type[KeyboardInterrupt] | None = None
        self.is_terminated = False

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        came = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if came is Terminated and self.is_terminated:
            os._exit(128 + signal.SIGTERM)  # asked twice: at once
        self.is_terminated = self.is_terminated or came is Terminated
        if self.is_held and self.pending is None:
            self.pending = came
            return
        self.pending = None
        raise came

    def deliver(self) -> None:
        if self.pending is not None and not self.is_held:
            pending, self.pending = self.pending, None
            raise pending


_STATE = _State()


@contextmanager
def held(*, termination: bool = False) -> Iterator[None]:
    """Put off a first Ctrl-C to the end of this block; a second one is raised at once.

    An inner block leaves the interrupt to the outer one. It has no effect where Python's own handler is not the one
    that is set: in a thread other than the main one, or in a program that treats SIGINT in its own way.

    Args:
        termination: do the same with SIGTERM, which then raises ``Terminated``; a second one ends the process.

    Raises:
        KeyboardInterrupt: at the end of the outermost block, if there was an interrupt; also where the block raised
            something else, which may have come of the same Ctrl-C.

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
    usual = {signal.SIGINT: signal.default_int_handler} | ({signal.SIGTERM: signal.SIG_DFL} if termination else {})
    ours = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    if signal.SIGTERM in ours:
        _STATE.is_terminated = False
    for number in ours:
        signal.signal(number, _STATE.handle)
    before, _STATE.is_held = _STATE.is_held, True
    try:
        yield
    finally:
        _STATE.is_held = before
        for number, handler in ours.items():
            if signal.getsignal(number) == _STATE.handle:  # whoever has set another one meanwhile keeps it
                signal.signal(number, handler)
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


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Start processes that a Ctrl-C does not reach: a terminal sends it to all of a group, also to those that start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # a mask is inherited, and outlives exec
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def taken() -> type[KeyboardInterrupt] | None:
    """Return the interrupt that was put off inside ``held()``, if there is one, and let it count as delivered."""
    if threading.current_thread() is not threading.main_thread():
        return None
    pending, _STATE.pending = _STATE.pending, None
    return pending
