"""Batches made by background processes, in the order of the plan.

A batch is cut into tasks of a few rows. Whichever worker is free takes the next task, so a slow image delays its own
task and not a whole batch; the rows land where they belong, so the batch is the same whoever made them. There is no
thread in the trainer's process: replies are read, and tasks sent, while it waits for a batch, and workers have tasks in
hand for the time in between.
"""

import contextlib
import math
import multiprocessing
import selectors
import signal
import time
from collections import deque
from multiprocessing import context, forkserver, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal, TypeAlias

from ..augment.random import Draw
from ..errors import ConfigError, WorkerError
from .clock import Stage
from .datastore import Datastore
from .dispatch import Ticket
from .messages import Done, Failed, Ready, Reply, Task, unpack_reply
from .payload import Payload, without_main
from .schema import IntArray, Rows
from .slots import SlotLayout, SlotRing
from .worker import WorkerSetup, worker_main

__all__ = ["ProcessPool", "StartMethod", "prepare_start"]

Method: TypeAlias = Literal["fork", "forkserver", "spawn"]
StartMethod: TypeAlias = Literal["auto", "fork", "forkserver", "spawn"]

_MAX_DEATHS = 3  # workers that one task may kill before its sample is blamed
_MAX_DEPTH = 32  # tasks in one worker's hands: their messages must fit into the pipe's buffer
_CLOSE_SECONDS = 1.0  # what a worker gets to finish its task; it has nothing to lose
_LIVENESS_SECONDS = 5.0  # a dead worker's pipe closes at once, unless the user's code left a child that holds it


def prepare_start(start_method: StartMethod) -> Method:
    """Return the start method to use, and begin to warm it up: the server that forks workers imports torch once."""
    methods = multiprocessing.get_all_start_methods()
    method: Method = "forkserver" if "forkserver" in methods else "spawn"
    if start_method != "auto":
        method = start_method
    if method not in methods:
        raise ConfigError(f"start_method {method!r} does not exist here: use auto, {' or '.join(methods)}")
    if method == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload([worker_main.__module__])
        with without_main():
            forkserver.ensure_running()
    return method


def _context(method: Method) -> context.ForkContext | context.ForkServerContext | context.SpawnContext:
    if method == "fork":
        return multiprocessing.get_context("fork")
    if method == "forkserver":
        return multiprocessing.get_context("forkserver")
    return multiprocessing.get_context("spawn")


class _Worker:
    """A process, its pipe, and the tasks in its hands, oldest first."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.tasks: deque[Task] = deque()
        self.ready = False


class ProcessPool:
    """A dispatcher whose batches are made by background processes.

    Args:
        source: the datastore.
        layout: of each slot.
        workers: number of processes, at least 1.
        slots: batches that are in flight at the same time; more are made when the consumer keeps batches.
        start_method: as ``prepare_start`` returned it.

    Raises:
        ConfigError: the datastore cannot be sent to another process.
    """

    def __init__(
        self, source: Datastore, layout: SlotLayout, *, workers: int, slots: int, start_method: Method
    ) -> None:
        self.stage_seconds = [0.0] * len(Stage)
        self._source = source if start_method == "fork" else Payload.of(source)
        self._context = _context(start_method)
        self._task_rows = _rows_per_task(layout, workers)
        self._ring = SlotRing(layout, slots)
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._pending: deque[Task] = deque()
        self._tickets: dict[int, Ticket] = {}  # by task number
        self._deaths: dict[int, int] = {}  # by task number
        self._next_number = 0
        self._failed_starts = 0
        self._left_at = time.perf_counter()
        self._pace = _Pace()
        # Runs when the pool is collected, and at exit before multiprocessing waits for its children (atexit: after).
        self.close = util.Finalize(self, _close, (self._workers, self._selector, self._ring), exitpriority=100)
        for _ in range(workers):
            self._start_worker()

    @property
    def closed(self) -> bool:
        """Whether the workers are gone."""
        return not self.close.still_active()

    def put(self, ids: IntArray, draw: Draw) -> Ticket:
        """Order a batch: its tasks wait in line behind those of earlier batches."""
        ticket = Ticket(ids, draw, self._ring.acquire())
        for first_row in range(0, len(ids), self._task_rows):
            self._order(ticket, first_row, ids[first_row : first_row + self._task_rows])
        self._hand_out(self._pace.depth)
        return ticket

    def get(self, ticket: Ticket) -> Rows:
        """Wait until all rows of a batch are written."""
        self._pace.consumer(time.perf_counter() - self._left_at)
        try:
            while ticket.missing:
                self._hand_out(2)  # one to work on and one in hand; the rest goes to whoever is free first
                self._receive()
            self._hand_out(self._pace.depth)
        except BaseException:
            self.close()  # an interrupt in the middle of a message leaves the pipes unusable
            raise
        self._left_at = time.perf_counter()
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

    def _order(self, ticket: Ticket, first_row: int, ids: IntArray) -> None:
        task = Task(self._next_number, ticket.slot, first_row, ticket.draw, ids)
        self._next_number += 1
        self._tickets[task.number] = ticket
        ticket.missing += 1
        self._pending.append(task)

    def _hand_out(self, depth: int) -> None:
        """Give waiting tasks to the workers with the fewest in hand, up to ``depth`` each."""
        while self._pending:
            worker = min(self._workers, key=lambda one: len(one.tasks))
            if len(worker.tasks) >= depth:
                return
            task = self._pending.popleft()
            worker.tasks.append(task)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: _receive will notice
                worker.connection.send_bytes(task.pack())

    def _receive(self) -> None:
        """Wait for workers to say something, and note it."""
        events = self._selector.select(_LIVENESS_SECONDS)
        for key, _ in events:
            worker: _Worker = key.data
            try:
                self._note(worker, unpack_reply(worker.connection.recv_bytes()))
            except (EOFError, ConnectionResetError):
                self._replace(worker)
        if not events:
            for worker in [one for one in self._workers if not one.process.is_alive()]:
                self._replace(worker)

    def _note(self, worker: _Worker, reply: Reply) -> None:
        if isinstance(reply, Ready):
            worker.ready, self._failed_starts = True, 0
            return
        if reply.number < 0 and isinstance(reply, Failed):
            raise reply.error
        task = worker.tasks.popleft()
        if isinstance(reply, Done):
            self._pace.task(sum(reply.seconds))
            self.stage_seconds = [a + b for a, b in zip(self.stage_seconds, reply.seconds, strict=True)]
        else:
            self._tickets[task.number].fail(reply.row, reply.error)
        self._finish(task.number)

    def _finish(self, number: int) -> None:
        self._deaths.pop(number, None)
        ticket = self._tickets.pop(number)
        ticket.missing -= 1
        if ticket.dropped and not ticket.missing:
            self._ring.release(ticket.slot)

    def _replace(self, worker: _Worker) -> None:
        """Bury a dead worker and let others do its tasks; what it was working on is done again row by row."""
        self._selector.unregister(worker.connection)
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join(_CLOSE_SECONDS)
        worker.process.kill()  # only if it closed its pipe and lives on
        worker.process.join()
        cause = _cause(worker.process.exitcode)
        worker.process.close()
        self._count_failed_start(worker, cause)
        self._pending.extendleft(reversed(list(worker.tasks)[1:]))
        if worker.tasks:
            self._retry(worker.tasks[0], cause)
        self._start_worker()

    def _count_failed_start(self, worker: _Worker, cause: str) -> None:
        self._failed_starts += not worker.ready
        if self._failed_starts >= _MAX_DEATHS:
            guard = isinstance(self._source, Payload) and self._source.needs_main
            raise WorkerError(
                f"{_MAX_DEATHS} background workers died while starting, the last one {cause}: "
                + ('they import your script, so put its start under `if __name__ == "__main__":`, ' if guard else "")
                + "or run with workers=0 to see why, or with fewer workers if memory is short"
            )

    def _retry(self, task: Task, cause: str) -> None:
        ticket, deaths = self._tickets[task.number], self._deaths.get(task.number, 0) + 1
        if deaths >= _MAX_DEATHS:
            where = f"sample {task.ids[0]}" if len(task.ids) == 1 else f"one of the samples {task.ids.tolist()}"
            message = f"{where} killed {deaths} background workers, the last one {cause}"
            ticket.fail(task.first_row, WorkerError(message))
            self._finish(task.number)
            return
        waiting, self._pending = self._pending, deque()
        for row in range(len(task.ids)):
            self._deaths[self._next_number] = deaths
            self._order(ticket, task.first_row + row, task.ids[row : row + 1])
        self._finish(task.number)
        self._pending.extend(waiting)

    def _start_worker(self) -> None:
        ours, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        foreign = (ours, *(worker.connection for worker in self._workers)) if forked else ()
        setup = WorkerSetup(self._source, self._ring.file, self._ring.layout, self._ring.first, foreign)
        process = self._context.Process(target=worker_main, args=(theirs, setup), daemon=True, name="headrace-worker")
        hide = isinstance(self._source, Payload) and not self._source.needs_main
        with without_main() if hide else contextlib.nullcontext():
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)


class _Pace:
    """How long the consumer stays away, in tasks: so many must be in a worker's hands meanwhile."""

    def __init__(self) -> None:
        self._consumer_seconds = 0.0
        self._task_seconds = math.inf

    def consumer(self, seconds: float) -> None:
        self._consumer_seconds += (seconds - self._consumer_seconds) / 4

    def task(self, seconds: float) -> None:
        known = math.isfinite(self._task_seconds)
        self._task_seconds = self._task_seconds + (seconds - self._task_seconds) / 16 if known else seconds

    @property
    def depth(self) -> int:
        away = self._consumer_seconds / max(self._task_seconds, 1e-6)
        return min(2 + math.ceil(away), _MAX_DEPTH)


def _rows_per_task(layout: SlotLayout, workers: int) -> int:
    """Choose how many rows make a task.

    Enough that what is done once per task (its message, its random numbers; about 300 microseconds) is small beside its
    rows, few enough that every worker has several tasks of a batch: 16 or 32 photos, up to 256 thumbnails.
    """
    least, most = (16, 32) if layout.schema.row_bytes > 16384 else (64, 256)
    return min(most, max(least, math.ceil(layout.rows / (4 * workers))))


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"by {name}{hint}"
    return f"with exit code {exitcode}"


def _close(workers: list[_Worker], selector: selectors.BaseSelector, ring: SlotRing) -> None:
    selector.close()
    for worker in workers:
        worker.connection.close()  # an idle worker ends at once, a busy one after its task
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        worker.process.close()
    workers.clear()
    ring.close()
