"""The worker processes of a pool: started, listened to, replaced, ended."""

import contextlib
import errno
import multiprocessing
import selectors
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import context, forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal, TypeAlias

from ..errors import ConfigError, WorkerError
from .datastore import Datastore
from .incidents import Action
from .interrupt import held, kept_from_children
from .messages import Ready, Reply, Task, unpack_reply
from .payload import Payload, without_main
from .slots import SharedFile, SlotRing
from .worker import WorkerSetup, worker_main

__all__ = ["Crew", "Death", "Method", "StartMethod", "Worker", "prepare_start"]

Method: TypeAlias = Literal["fork", "forkserver", "spawn"]
StartMethod: TypeAlias = Literal["auto", "fork", "forkserver", "spawn"]

_MAX_FAILED_STARTS = 3
_CLOSE_SECONDS = 1.0  # what a worker gets to finish its task; it has nothing to lose
_POLL_SECONDS = 1.0  # between looks at those who say nothing; a worker's death is noticed at once, by its pipe


def prepare_start(start_method: StartMethod) -> Method:
    """Return the start method to use, and begin to warm it up: the server that forks workers imports torch once.

    Raises:
        ConfigError: there is no such method here, or this process may have no children.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError("this process is itself a background worker, and may start none of its own: use workers=0")
    methods = multiprocessing.get_all_start_methods()
    method: Method = "forkserver" if "forkserver" in methods else "spawn"
    if start_method != "auto":
        method = start_method
    if method not in methods:
        raise ConfigError(
            f"start_method must be one of {', '.join(map(repr, ['auto', *methods]))} here, got {method!r}"
        )
    if method == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload([worker_main.__module__])
        try:
            resource_tracker.ensure_running()  # unblocks SIGINT, so it must not be started inside
            with without_main(), kept_from_children():
                forkserver.ensure_running()
        except ChildProcessError:  # this process was forked from the one whose server it is, and cannot have its own
            return "spawn"
    return method


class Worker:
    """A process, its pipe, and the tasks in its hands, oldest first."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.tasks: deque[Task] = deque()
        self.since = time.monotonic()  # when it got its oldest task
        self.ready = False
        self.retiring = False

    def give(self, task: Task) -> None:
        """Send a task."""
        if not self.tasks:
            self.since = time.monotonic()
        self.tasks.append(task)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died, and the crew will notice
            self.connection.send_bytes(task.pack())

    def take(self) -> Task:
        """Note that its oldest task is answered."""
        self.since = time.monotonic()
        return self.tasks.popleft()


@dataclass(frozen=True, slots=True)
class Death:
    """A worker has died; its process is buried.

    Args:
        cause: completes "it died ...", for example "by SIGKILL (out of memory?)".
    """

    cause: str


class Crew:
    """Worker processes, each with a pipe of its own.

    Args:
        source: the datastore.
        file: that holds the slots.
        ring: the slots they write into.
        action: what they do about samples that cannot be made.
        method: how processes are started.
        timeout: seconds that a worker may take for one task before it is taken for dead.

    Raises:
        ConfigError: the datastore cannot be sent to another process.
    """

    def __init__(
        self, source: Datastore, file: SharedFile, ring: SlotRing, action: Action, method: Method, timeout: float
    ) -> None:
        self._source = source if method == "fork" else Payload.of(source)
        self._file, self._ring = file, ring
        self._action = action
        self._context = _context(method)
        self._timeout = timeout
        self._selector = selectors.DefaultSelector()
        self._failed_starts = 0
        self._looked = time.monotonic()  # for those that hang: asking each worker costs more than what most say
        self.workers: list[Worker] = []
        # Runs when the crew is collected, and at exit before multiprocessing waits for its children (atexit: after).
        self.close = util.Finalize(self, _close, (self.workers, self._selector, ring), exitpriority=100)

    def start(self) -> None:
        """Add a worker; it is ready some time later.

        Raises:
            ConfigError: the machine has no room for another process or descriptor.
        """
        for attempt in range(_MAX_FAILED_STARTS):
            try:
                with held():  # half a start would be a child with half a message
                    return self._start()
            except (EOFError, ConnectionError):  # the fork server was killed; the next attempt starts another one
                time.sleep(0.1 * attempt)
            except OSError as error:
                number = len(self.workers) + 1
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
                    raise ConfigError(f"background worker {number} cannot be started: {error}") from error
                raise ConfigError(
                    f"background worker {number} cannot be started ({error.strerror}): {number} workers need about "
                    f"{3 * number + 20} file descriptors (`ulimit -n`) and {number} processes (`ulimit -u`); raise the "
                    "limit or use fewer workers"
                ) from error
        raise WorkerError("background workers cannot be started: the server that forks them dies again and again")

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        foreign = (ours, *(worker.connection for worker in self.workers)) if forked else ()
        setup = WorkerSetup(self._source, self._action, self._file, self._ring.layout, self._ring.first, foreign)
        process = self._context.Process(target=worker_main, args=(theirs, setup), daemon=True, name="headrace-worker")
        hide = isinstance(self._source, Payload) and not self._source.needs_main
        if not forked:
            resource_tracker.ensure_running()  # unblocks SIGINT, so it must not be started inside
        with kept_from_children(), without_main() if hide else contextlib.nullcontext():
            process.start()
        theirs.close()
        worker = Worker(process, ours)
        self.workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def retire(self) -> None:
        """Send home the worker that was started last, once its tasks are done."""
        staying = [worker for worker in self.workers if not worker.retiring]
        staying[-1].retiring = True
        if not staying[-1].tasks:
            self._dismiss(staying[-1])

    def listen(self, seconds: float = _POLL_SECONDS) -> Iterator[tuple[Worker, Reply | Death]]:
        """Wait for workers to say something, or to die, and return one thing from each that does.

        Args:
            seconds: to wait at most.

        Raises:
            WorkerError: workers die again and again while they start.
        """
        for key, _ in self._selector.select(seconds):
            worker: Worker = key.data
            try:
                reply = unpack_reply(worker.connection.recv_bytes())
            except (EOFError, OSError):  # it died, maybe in the middle of a message
                yield worker, self._bury(worker, "")
                continue
            if isinstance(reply, Ready):
                worker.ready, self._failed_starts = True, 0
            yield worker, reply
            if worker.retiring and not worker.tasks:
                self._dismiss(worker)
        if time.monotonic() - self._looked >= _POLL_SECONDS:
            yield from self._overdue()

    def _overdue(self) -> Iterator[tuple[Worker, Death]]:
        """Bury those that hang, and those whose pipe is held open by a child of theirs."""
        now = self._looked = time.monotonic()
        for worker in list(self.workers):
            if worker.tasks and worker.ready and now - worker.since > self._timeout:
                yield worker, self._bury(worker, f"because a task took more than {self._timeout:g} s")
            elif not worker.process.is_alive():
                yield worker, self._bury(worker, "")

    def _bury(self, worker: Worker, cause: str) -> Death:
        self._selector.unregister(worker.connection)
        self.workers.remove(worker)
        worker.connection.close()
        worker.process.join(0.0 if cause else _CLOSE_SECONDS)
        worker.process.kill()  # only if it hangs, or closed its pipe and lives on
        worker.process.join()
        cause = cause or _cause(worker.process.exitcode)
        worker.process.close()
        self._failed_starts += not worker.ready
        if self._failed_starts >= _MAX_FAILED_STARTS:
            guard = isinstance(self._source, Payload) and self._source.needs_main
            raise WorkerError(
                f"{_MAX_FAILED_STARTS} background workers died while starting, the last one {cause}: "
                + ('they import your script, so put its start under `if __name__ == "__main__":`, ' if guard else "")
                + "or run with workers=0 to see why, or with fewer workers if memory is short"
            )
        return Death(cause)

    def _dismiss(self, worker: Worker) -> None:
        self._selector.unregister(worker.connection)
        self.workers.remove(worker)
        _end([worker])


def _context(method: Method) -> context.ForkContext | context.ForkServerContext | context.SpawnContext:
    if method == "fork":
        return multiprocessing.get_context("fork")
    if method == "forkserver":
        return multiprocessing.get_context("forkserver")
    return multiprocessing.get_context("spawn")


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        known = -exitcode in set(signal.Signals)
        name = signal.Signals(-exitcode).name if known else f"signal {-exitcode}"
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"by {name}{hint}"
    return f"with exit code {exitcode}"


def _end(workers: list[Worker]) -> None:
    with held():
        _wait_for_end(workers)


def _wait_for_end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.connection.close()  # an idle worker ends at once, a busy one after its task
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        worker.process.close()


def _close(workers: list[Worker], selector: selectors.BaseSelector, ring: SlotRing) -> None:
    selector.close()
    _end(workers)
    workers.clear()
    ring.close()
