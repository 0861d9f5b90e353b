"""A background worker: makes rows, knows nothing about epochs, order or batches.

::

    starting --opened--> waiting --task--> working --rows written--> waiting ...
       |                    |                 |
       | cannot open        | pipe closed     | cannot make a row
       v                    v                 v
    Failed(-1), exit       exit             Failed or a substitute, waiting

A worker holds no state between tasks, so any worker can do any task, again and again, with the same bits. It ignores
SIGINT and SIGTERM, which a terminal or a scheduler sends to the whole process group: the trainer may still need
batches to finish its step. It ends when its pipe closes, and when the trainer process dies, however that happens.
"""

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

import numpy as np
import torch

from ..augment.random import Draw
from .clock import Clock
from .datastore import Datastore, place_of
from .incidents import SKIPPED, Action, Incident, annotate, is_exhaustion, substitutes
from .messages import Done, Failed, Ready, Task
from .payload import Payload
from .schema import Rows
from .slots import SharedFile, SlotLayout, SlotMap

__all__ = ["WorkerSetup", "make_rows", "worker_main"]


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """All that a worker is told once.

    Args:
        source: the datastore, or its pickle where the process is not a fork.
        action: what to do about samples that cannot be made.
        file: the slots' memory.
        layout: of each slot.
        first_slots: slots of the first extent.
        foreign: pipe ends of other workers, which a forked process inherits and must close.
    """

    source: Payload | Datastore
    action: Action
    file: SharedFile
    layout: SlotLayout
    first_slots: int
    foreign: tuple[Connection, ...] = ()


def worker_main(connection: Connection, setup: WorkerSetup) -> None:
    """Run a worker until its pipe closes.

    Args:
        connection: tasks come in, replies go out.
        setup: what to work on.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    for other in setup.foreign:
        other.close()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # one core per worker: more of them is the user's choice of `workers`
    try:
        source = setup.source.open() if isinstance(setup.source, Payload) else setup.source
    except Exception as error:  # noqa: BLE001 - unpickling runs the user's code
        annotate(error, "raised while opening the datastore in a background worker")
        connection.send_bytes(Failed(-1, 0, error).pack())
        return
    try:
        _serve(connection, source, setup.action, SlotMap(setup.file, setup.layout, setup.first_slots))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the trainer has closed the loader


def _serve(connection: Connection, source: Datastore, action: Action, slots: SlotMap) -> None:
    connection.send_bytes(Ready().pack())
    while True:
        task = Task.unpack(connection.recv_bytes())
        try:
            rows = slots.rows(task.slot)
        except (OSError, MemoryError) as error:
            annotate(error, "raised while mapping the memory of a batch in a background worker")
            connection.send_bytes(Failed(-1, 0, error).pack())
            return
        part = {name: column[task.first_row : task.first_row + len(task.ids)] for name, column in rows.items()}
        clock = Clock()
        connection.send_bytes(make_rows(source, task, part, clock, action).pack())


def make_rows(source: Datastore, task: Task, rows: Rows, clock: Clock, action: Action) -> Done | Failed:
    """Do a task: write its samples into ``rows``.

    Where that fails, the rows are made one by one, so the sample that is blamed is the same however the datastore works
    through many, and for any cut of a batch into tasks.
    """
    try:
        source.fill(task.ids, task.draw, rows, clock)
    except Exception as error:  # noqa: BLE001 - a user's datastore may raise anything, and all of it must arrive
        done = _one_by_one(source, task, rows, clock, action)
        if isinstance(done, Failed) or done.incidents or action != "raise":
            return done
        annotate(error, f"raised while making samples {task.ids.tolist()} together, though each alone succeeds")
        return Failed(task.number, task.first_row, error)
    return Done(task.number, tuple(clock.seconds))


def _one_by_one(source: Datastore, task: Task, rows: Rows, clock: Clock, action: Action) -> Done | Failed:
    incidents = []
    for row, index in enumerate(task.ids.tolist()):
        one = {name: column[row : row + 1] for name, column in rows.items()}
        error = _attempt(source, index, task.draw, one, clock)
        if error is None:
            continue
        if is_exhaustion(error):
            annotate(error, f"raised while making {place_of(source, index)}; on_error is for samples, not for this")
            return Failed(task.number, task.first_row + row, error)
        stand_in = SKIPPED
        if action == "substitute":
            found = _stand_in(source, index, task.draw, one, clock)
            if isinstance(found, Exception):
                annotate(found, f"raised while making a substitute of {place_of(source, index)}")
                return Failed(task.number, task.first_row + row, found)
            stand_in = found
        if action == "raise" or (action == "substitute" and stand_in == SKIPPED):
            annotate(error, f"raised while making {place_of(source, index)}")
            if action == "substitute":
                annotate(error, "and so many of its possible substitutes failed too that something is wrong as a whole")
            return Failed(task.number, task.first_row + row, error)
        incidents.append(Incident.of(task.first_row + row, index, stand_in, place_of(source, index), error))
    return Done(task.number, tuple(clock.seconds), tuple(incidents))


def _stand_in(source: Datastore, index: int, draw: Draw, row: Rows, clock: Clock) -> int | Exception:
    """Make a substitute; return its id, ``SKIPPED`` where all fail, or an error that is no sample's fault."""
    for other in substitutes(index, draw, source.shard_sizes):
        error = _attempt(source, other, draw, row, clock)
        if error is None:
            return other
        if is_exhaustion(error):
            return error
    return SKIPPED


def _attempt(source: Datastore, index: int, draw: Draw, row: Rows, clock: Clock) -> Exception | None:
    """Make one row; return what went wrong."""
    try:
        source.fill(np.array([index], np.int64), draw, row, clock)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _exit_with_parent() -> None:
    """End this process when the trainer's does, however that happens.

    The sentinel is a pipe, which stays open as long as a process that was forked from the trainer has it; so the
    process itself is watched as well, where the system can.
    """
    parent = parent_process()
    if parent is None:
        return
    watched: list[int] = [parent.sentinel]
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it, and an old or a restricted one does not
        watched.append(os.pidfd_open(parent.pid or 0))
    wait(watched)
    os._exit(1)  # the main thread may be in the middle of a long call
