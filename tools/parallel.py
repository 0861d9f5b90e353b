"""The same function on many tasks, in processes of their own; results come in the order of the tasks."""

import argparse
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from ..errors import WorkerError

__all__ = ["default_workers", "in_order", "parse_workers"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 4  # tasks per worker that are done before their results are taken


def default_workers() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def parse_workers(text: str) -> int:
    """Read ``--workers``: a number from 0 to 1024; 0 does the work in the command's own process.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers: write a number from 0 to 1024")
    return int(text)


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Yield ``function(task)`` of every task, in their order; a few tasks for each worker are taken ahead.

    Workers leave signals to this process, and end when it does, or when no more results are taken.

    Args:
        function: of a module, since it is sent by name; what it raises is raised here.
        tasks: small and picklable.
        workers: processes; 0 for none.

    Raises:
        WorkerError: a worker died.

    Example:
        >>> list(in_order(abs, [-2, 1], workers=0))
        [2, 1]
    """
    if workers == 0:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, _settle, (reader,))
    pending: deque[tuple[Task, Future[Result]]] = deque()
    try:
        for task in tasks:
            pending.append((task, pool.submit(function, task)))
            if len(pending) > _AHEAD * workers:
                yield _result(*pending.popleft())
        while pending:
            yield _result(*pending.popleft())
    except BrokenProcessPool as error:
        raise _died("the next task") from error
    finally:
        writer.close()  # nobody waits for tasks that nobody wants any more
        pool.shutdown(cancel_futures=True)
        reader.close()


def _result(task: Task, future: "Future[Result]") -> Result:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise _died(repr(task)[:500]) from error


def _died(where: str) -> WorkerError:
    return WorkerError(
        f"a worker process died, at or before {where}: it may have been killed for lack of memory, so try fewer "
        "--workers; with --workers 0 the system says why"
    )


def _settle(stop: Connection) -> None:
    """Leave signals to the parent; end when it says so or has gone: a pool's own queues stay open if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(stop,), daemon=True).start()


def _end_with(stop: Connection) -> None:
    wait([stop])
    os._exit(0)
