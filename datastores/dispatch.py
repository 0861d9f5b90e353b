"""Batches made in this process: the same interface as the pool of processes, and the same code for the rows."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import torch

from ..augment.random import Draw
from .clock import Clock
from .datastore import Datastore
from .incidents import Incident, OnError
from .locks import ProcessLock
from .messages import Failed, Task
from .meter import Meter
from .schema import IntArray, Rows
from .slots import PrivateMemory, SlotLayout, SlotRing
from .worker import make_rows

__all__ = ["Dispatcher", "InlineDispatcher", "Ticket"]


class Ticket:
    """A batch that was ordered.

    Args:
        ids: int64 (n,), one sample id a row.
        draw: the random world.
        slot: where it is made.
    """

    __slots__ = ("draw", "dropped", "error", "error_row", "ids", "incidents", "missing", "slot")

    def __init__(self, ids: IntArray, draw: Draw, slot: int) -> None:
        self.ids = ids
        self.draw = draw
        self.slot = slot
        self.missing = 0  # tasks that are not done
        self.dropped = False
        self.incidents: list[Incident] = []
        self.error: Exception | None = None
        self.error_row = 0

    @property
    def done(self) -> bool:
        """Whether its rows are written, or have failed."""
        return self.slot >= 0 and not self.missing

    def fail(self, row: int, error: Exception) -> None:
        """Keep the error of the lowest row, so that it is the same whichever worker was first."""
        if self.error is None or row < self.error_row:
            self.error, self.error_row = error, row


class Dispatcher(Protocol):
    """Makes batches: orders go in, and rows come out in any order that the caller asks for."""

    @property
    def workers(self) -> int:
        """Background processes that make batches."""

    def put(self, ids: IntArray, draw: Draw) -> Ticket:
        """Order a batch of samples; returns at once."""

    def poll(self) -> None:
        """Learn, without waiting, which batches are ready by now."""

    def get(self, ticket: Ticket) -> Rows:
        """Wait for a batch and return its rows; their memory is used again when the last view of it is gone.

        Raises what the batch's first bad sample raised.
        """

    def drop(self, ticket: Ticket) -> None:
        """Take back an order."""

    @property
    def closed(self) -> bool:
        """Whether no more batches can be made."""

    @property
    def close(self) -> Callable[[], object]:
        """Stop; batches that were handed out stay valid."""


class _OneThread:
    """Lets torch work in one thread, as it does in a worker, while batches are made here.

    Splitting the resampling of one image over cores costs more than it saves: measured, 9 times the time where another
    process used the second core. The number belongs to the whole process: of several threads that make batches at the
    same time, the first one notes it and the last one restores it.
    """

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._inside = 0
        self._before = 1

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.get_num_threads()
            self._inside += 1
            torch.set_num_threads(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            torch.set_num_threads(self._before)


_ONE_THREAD = _OneThread()


class InlineDispatcher:
    """Makes each batch when it is asked for, in this process (``workers=0``)."""

    workers = 0

    def __init__(self, source: Datastore, layout: SlotLayout, *, on_error: OnError, pin: bool, meter: Meter) -> None:
        self._source = source
        self._action = on_error.action
        self._meter = meter
        self._ring = SlotRing(PrivateMemory(), layout, slots=2, pin=pin)

    def put(self, ids: IntArray, draw: Draw) -> Ticket:
        """Note an order."""
        return Ticket(ids, draw, slot=-1)

    def poll(self) -> None:
        """Nothing is ready before it is asked for."""

    def get(self, ticket: Ticket) -> Rows:
        """Make the batch now."""
        slot = self._ring.acquire()
        rows = self._ring.lend(slot, len(ticket.ids))
        task, clock = Task(0, slot, 0, ticket.draw, ticket.ids), Clock()
        with _ONE_THREAD:
            done = make_rows(self._source, task, rows, clock, self._action)
        if isinstance(done, Failed):
            raise done.error
        self._meter.add_task(len(ticket.ids), done.seconds)
        ticket.incidents.extend(done.incidents)
        return rows

    def drop(self, ticket: Ticket) -> None:
        """Forget an order."""

    @property
    def closed(self) -> bool:
        """Never: there is nothing to lose."""
        return False

    def close(self) -> None:
        """Let go of the memory."""
        self._ring.close()
