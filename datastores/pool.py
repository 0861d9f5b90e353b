"""Batches made by background processes, in the order of the plan.

A batch is cut into tasks of a few rows. Whichever worker is free takes the next task, so a slow image delays its own
task and not a whole batch; the rows land where they belong, so the batch is the same whoever made them. There is no
thread in the trainer's process: replies are read, and tasks sent, while it waits for a batch, and workers have tasks in
hand for the time in between.
"""

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..augment.random import Draw
from ..errors import WorkerError
from .crew import Crew, Death, Method, Worker
from .datastore import Datastore, place_of
from .dispatch import Ticket
from .incidents import SKIPPED, Incident, OnError, substitutes
from .messages import Done, Failed, Ready, Reply, Task
from .meter import Meter
from .schema import IntArray, Rows
from .slots import SharedFile, SlotLayout, SlotRing

__all__ = ["ProcessPool"]

_MAX_DEATHS = 3  # workers that one task may kill before its sample is blamed
_TASK_SECONDS = 0.02  # that a task should take,
_MIN_TASK_ROWS, _MAX_TASK_ROWS = 16, 256  # within these limits
_MAX_DEPTH = 32  # tasks in one worker's hands: their messages must fit into the pipe's buffer


class ProcessPool:
    """A dispatcher whose batches are made by background processes.

    Args:
        source: the datastore.
        layout: of each slot.
        workers: number of processes, at least 1.
        slots: batches that are in flight at the same time; more are made when the consumer keeps batches.
        method: how processes are started.
        on_error: what becomes of samples that cannot be made, or that kill workers.
        timeout: seconds that a worker may take for one task.
        pin: let a GPU copy from the slots directly.
        meter: is told how long everything takes.

    Raises:
        ConfigError: the datastore cannot be sent to another process.
    """

    def __init__(
        self,
        source: Datastore,
        layout: SlotLayout,
        *,
        workers: int,
        slots: int,
        method: Method,
        on_error: OnError,
        timeout: float,
        pin: bool,
        meter: Meter,
    ) -> None:
        self._source = source
        self._action = on_error.action
        self._meter = meter
        file = SharedFile()
        self._ring = SlotRing(file, layout, slots, pin=pin)
        self._crew = Crew(source, file, self._ring, on_error.action, method, timeout)
        self._pending: deque[Task] = deque()
        self._tickets: dict[int, Ticket] = {}  # by task number
        self._deaths: dict[int, int] = {}  # by task number
        self._killers: set[int] = set()  # samples that kill workers: no substitutes for others
        self._next_number = 0
        self._pace = _Pace()
        self.close = self._crew.close
        self._pid = os.getpid()
        with self._intact():
            self.resize(workers)

    @property
    def closed(self) -> bool:
        """Whether the workers are gone, or are another process's: that of which this one is a fork."""
        return self._pid != os.getpid() or not self.close.still_active()

    @property
    def workers(self) -> int:
        """Workers that are there to stay."""
        return sum(not worker.retiring for worker in self._crew.workers)

    def resize(self, workers: int) -> None:
        """Start workers, or send some home when their tasks are done, until there are ``workers`` (at least 1)."""
        while self.workers < workers:
            self._crew.start()
        while self.workers > workers:
            self._crew.retire()

    def put(self, ids: IntArray, draw: Draw) -> Ticket:
        """Order a batch: its tasks wait in line behind those of earlier batches."""
        with self._intact():
            ticket = Ticket(ids, draw, self._ring.acquire())
            rows = _rows_per_task(self._ring.layout.rows, self.workers, self._meter.row_seconds)
            for first_row in range(0, len(ids), rows):
                self._order(ticket, first_row, ids[first_row : first_row + rows])
            self._hand_out(self._pace.depth)
        return ticket

    def poll(self) -> None:
        """Note what workers have said while the consumer was busy."""
        self._pace.came_back()
        with self._intact():
            while self._listen(0):
                pass

    def get(self, ticket: Ticket) -> Rows:
        """Wait until all rows of a batch are written."""
        with self._intact():
            while ticket.missing:
                self._hand_out(2)  # one to work on and one in hand; the rest goes to whoever is free first
                self._listen()
            self._hand_out(self._pace.depth)
        self._pace.leaves()
        if ticket.error is not None:
            self._ring.release(ticket.slot)
            raise ticket.error
        return self._ring.lend(ticket.slot, len(ticket.ids))

    def drop(self, ticket: Ticket) -> None:
        """Take back an order; its slot is free again when the tasks that workers have in hand are done."""
        ticket.dropped = True
        waiting = [task for task in self._pending if self._tickets[task.number] is ticket]
        for task in waiting:
            self._pending.remove(task)
            self._finish(task.number)
        if not waiting and not ticket.missing:
            self._ring.release(ticket.slot)

    @contextmanager
    def _intact(self) -> Iterator[None]:
        """Close the pool when what happens leaves it unusable, such as an interrupt in the middle of a message."""
        if self.closed:
            raise WorkerError(
                "the background workers of this iteration are gone: they were ended, or this process was forked from "
                "the one that they work for; start a new iteration, which gets workers of its own"
            )
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _listen(self, *seconds: float) -> int:
        number = 0
        for worker, said in self._crew.listen(*seconds):
            self._note(worker, said)
            number += 1
        return number

    def _order(self, ticket: Ticket, first_row: int, ids: IntArray) -> None:
        task = Task(self._next_number, ticket.slot, first_row, ticket.draw, ids)
        self._next_number += 1
        self._tickets[task.number] = ticket
        ticket.missing += 1
        self._pending.append(task)

    def _hand_out(self, depth: int) -> None:
        """Give waiting tasks to the workers with the fewest in hand, up to ``depth`` each."""
        staying = [worker for worker in self._crew.workers if not worker.retiring]
        while self._pending:
            worker = min(staying, key=lambda one: len(one.tasks))
            if len(worker.tasks) >= depth:
                return
            worker.give(self._pending.popleft())

    def _note(self, worker: Worker, said: Reply | Death) -> None:
        if isinstance(said, Death):
            self._pending.extendleft(reversed(list(worker.tasks)[1:]))
            if worker.tasks:
                self._retry(worker.tasks[0], said.cause)
            if not worker.retiring:
                self._crew.start()
        elif isinstance(said, Failed) and said.number < 0:
            raise said.error
        elif not isinstance(said, Ready):
            task = worker.take()
            if said.number != task.number:
                raise WorkerError(f"a background worker answered task {said.number} when asked for {task.number}")
            ticket = self._tickets[task.number]
            if isinstance(said, Done):
                self._pace.task(sum(said.seconds))
                self._meter.add_task(len(task.ids), said.seconds)
                ticket.incidents.extend(said.incidents)
            else:
                ticket.fail(said.row, said.error)
            self._finish(task.number)

    def _finish(self, number: int) -> None:
        self._deaths.pop(number, None)
        ticket = self._tickets.pop(number)
        ticket.missing -= 1
        if ticket.dropped and not ticket.missing:
            self._ring.release(ticket.slot)

    def _retry(self, task: Task, cause: str) -> None:
        """Do a task again whose worker died: row by row, so that a sample that kills workers is found.

        Only what happens to a row that is made alone counts against it: workers also die of other things.
        """
        ticket = self._tickets[task.number]
        deaths = self._deaths.get(task.number, 0) + 1 if len(task.ids) == 1 else 0
        waiting, self._pending = self._pending, deque()
        if deaths < _MAX_DEATHS:
            for row in range(len(task.ids)):
                self._deaths[self._next_number] = deaths
                self._order(ticket, task.first_row + row, task.ids[row : row + 1])
        else:
            self._blame(ticket, task, deaths, cause)
        self._finish(task.number)
        self._pending.extend(waiting)

    def _blame(self, ticket: Ticket, task: Task, deaths: int, cause: str) -> None:
        """Treat the sample of a task that kills workers (by now it has one row) as one that cannot be made."""
        sample, row = int(task.ids[0]), task.first_row
        self._killers.add(sample)
        where = place_of(self._source, sample)
        error = WorkerError(f"{where} killed {deaths} background workers, the last one {cause}")
        if self._action == "raise":
            ticket.fail(row, error)
            return
        substitute = SKIPPED
        if self._action == "substitute":
            others = substitutes(sample, task.draw, self._source.shard_sizes)
            substitute = next((other for other in others if other not in self._killers), SKIPPED)
            if substitute == SKIPPED:
                ticket.fail(row, error)
                return
            self._order(ticket, row, np.full_like(task.ids, substitute))
        ticket.incidents.append(Incident.of(row, sample, substitute, where, error))


class _Pace:
    """How long the consumer stays away, in tasks: so many must be in a worker's hands meanwhile."""

    def __init__(self) -> None:
        self._left_at = time.perf_counter()
        self._away_seconds = 0.0
        self._task_seconds = math.inf

    def leaves(self) -> None:
        self._left_at = time.perf_counter()

    def came_back(self) -> None:
        away = time.perf_counter() - self._left_at
        self._away_seconds += (away - self._away_seconds) / 4

    def task(self, seconds: float) -> None:
        known = math.isfinite(self._task_seconds)
        self._task_seconds = self._task_seconds + (seconds - self._task_seconds) / 16 if known else seconds

    @property
    def depth(self) -> int:
        return min(2 + math.ceil(self._away_seconds / max(self._task_seconds, 1e-6)), _MAX_DEPTH)


def _rows_per_task(batch_rows: int, workers: int, row_seconds: float) -> int:
    """Choose how many rows make a task.

    Enough that what is done once per task (its message, its random numbers, calls for many small images at once; about
    half a millisecond) is small beside its rows, few enough that a slow task delays little and that all workers have
    some: about 20 photos, up to 256 thumbnails, 16 as long as nothing is known.

    Args:
        batch_rows: rows of a batch; at least two are in flight.
        workers: number of processes.
        row_seconds: what a row has taken so far; 0: nothing is known.
    """
    most = min(_MAX_TASK_ROWS, 2 * batch_rows // workers)
    wanted = _TASK_SECONDS / row_seconds if row_seconds else 0
    return max(_MIN_TASK_ROWS, int(min(most, wanted)))
