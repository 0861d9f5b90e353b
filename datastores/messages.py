"""What the trainer process and a worker say to each other: the whole protocol.

Both directions are byte messages on one pipe per worker. Nothing is pickled per sample: a task is a few integers and
its sample ids, and its rows travel in shared memory. Only an error is pickled, once, by our own worker.
"""

import json
import pickle
import struct
import traceback
from dataclasses import astuple, dataclass
from typing import TypeAlias

import numpy as np

from ..augment.random import Draw
from ..errors import WorkerError
from .clock import Stage
from .incidents import Incident, text_of
from .schema import IntArray

__all__ = ["Done", "Failed", "Ready", "Reply", "Task", "unpack_reply"]

_TASK = struct.Struct("<qqqQQ")
_DONE = struct.Struct(f"<cq{len(Stage)}d")
_FAILED = struct.Struct("<cqq")


@dataclass(frozen=True, slots=True)
class Task:
    """Make some rows of a batch: what a worker is asked to do.

    Args:
        number: names this task in replies.
        slot: the slot to write into.
        first_row: row of the slot where the first sample goes.
        draw: the random world.
        ids: int64 (n,), one sample id a row.
    """

    number: int
    slot: int
    first_row: int
    draw: Draw
    ids: IntArray

    def pack(self) -> bytes:
        """Return the task as a message."""
        head = _TASK.pack(self.number, self.slot, self.first_row, self.draw.seed, self.draw.epoch)
        return head + self.ids.astype("<i8").tobytes()

    @classmethod
    def unpack(cls, message: bytes) -> "Task":
        """Return the task that a message says."""
        number, slot, first_row, seed, epoch = _TASK.unpack_from(message)
        ids = np.frombuffer(message, "<i8", offset=_TASK.size).astype(np.int64)
        return cls(number, slot, first_row, Draw(seed, epoch), ids)


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has opened its data and waits for tasks."""

    def pack(self) -> bytes:
        """Return the reply as a message."""
        return b"R"


@dataclass(frozen=True, slots=True)
class Done:
    """A task's rows are written.

    Args:
        number: of the task.
        seconds: time of each stage, in the order of ``Stage``.
        incidents: samples that could not be made, and what is in their rows now.
    """

    number: int
    seconds: tuple[float, ...]
    incidents: tuple[Incident, ...] = ()

    def pack(self) -> bytes:
        """Return the reply as a message."""
        told = json.dumps([astuple(one) for one in self.incidents]).encode() if self.incidents else b""
        return _DONE.pack(b"D", self.number, *self.seconds) + told


@dataclass(frozen=True, slots=True)
class Failed:
    """A task could not be done.

    Args:
        number: of the task; -1 if the worker could not even open its data.
        row: row of the slot that could not be made.
        error: what was raised, with a note on the sample.
    """

    number: int
    row: int
    error: Exception

    def pack(self) -> bytes:
        """Return the reply as a message, with a note of the traceback.

        An error that does not survive pickling becomes a WorkerError that says the same.
        """
        return _FAILED.pack(b"F", self.number, self.row) + _portable(self.error)


Reply: TypeAlias = Ready | Done | Failed


def unpack_reply(message: bytes) -> Reply:
    """Return the reply that a worker's message says."""
    kind = message[:1]
    if kind == b"R":
        return Ready()
    if kind == b"D":
        _, number, *seconds = _DONE.unpack_from(message)
        told = json.loads(message[_DONE.size :] or b"[]")
        return Done(number, tuple(seconds), tuple(Incident(*one) for one in told))
    _, number, row = _FAILED.unpack_from(message)
    error, notes = pickle.loads(message[_FAILED.size :])  # noqa: S301 - from our own worker, never from data
    error.__notes__ = notes
    return Failed(number, row, error)


def _portable(error: Exception) -> bytes:
    trace = "".join(traceback.format_exception(error))
    earlier = getattr(error, "__notes__", ())
    notes = [*(earlier if isinstance(earlier, list) else ()), f"in a background worker:\n{trace}".rstrip()]
    try:
        packed = pickle.dumps((error, notes))
        copy, _ = pickle.loads(packed)  # noqa: S301 - made in the line above
        if type(copy) is type(error) and str(copy) == str(error):
            return packed
    except Exception:  # noqa: BLE001, S110 - whatever a user's exception class does here, it cannot travel as it is
        pass
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return pickle.dumps((WorkerError(f"{kind}: {text_of(error)}"), notes))
