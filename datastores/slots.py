"""Slots: preallocated memory for one batch each, shared with the workers and used again and again.

All slots lie in one anonymous file (memfd), which has no name: nothing is left behind after a crash, and the size
of /dev/shm does not matter. A slot is mapped by whoever needs it, by its number. Fresh memory costs a page fault per
4 KiB, so slots are touched once when they are made and then only reused.
"""

import mmap
import os
import tempfile
import weakref
from collections import deque
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np

from ..errors import ConfigError
from .schema import Rows, Schema

__all__ = ["SharedFile", "SlotLayout", "SlotMap", "SlotRing"]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """Where the fields of a batch lie inside a slot.

    Args:
        schema: the fields.
        rows: rows of a full batch on this rank.
    """

    schema: Schema
    rows: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot, a whole number of pages."""
        return sum(_page_aligned(field.row_bytes * self.rows) for field in self.schema.fields) or mmap.PAGESIZE

    def view(self, memory: np.ndarray[Any, np.dtype[np.uint8]], rows: int) -> Rows:
        """Return the fields' first ``rows`` rows inside a slot's memory, uint8 (slot_bytes,)."""
        fields, offset = {}, 0
        for field in self.schema.fields:
            part = memory[offset : offset + field.row_bytes * rows].view(field.dtype)
            fields[field.name] = part.reshape(rows, *field.shape)
            offset += _page_aligned(field.row_bytes * self.rows)
        return fields


class SharedFile:
    """An anonymous file that several processes map; it may be sent to a child at its start.

    The parent grows it; its number of bytes is asked of the kernel, never remembered.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("headrace-slots", os.MFD_CLOEXEC)
        else:  # no memfd outside Linux: a file that has lost its name does the same
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self.descriptor)

    def close(self) -> None:
        """Close this process's descriptor; mappings that exist stay valid."""
        self._close()

    def grow(self, size: int) -> None:
        """Make the file ``size`` bytes long.

        Raises:
            ConfigError: there is not enough memory.
        """
        try:
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise ConfigError(
                f"no room for {size / 2**20:.0f} MiB of batches in shared memory ({error.strerror}): "
                "use a smaller batch_size or prefetch, or keep fewer batches"
            ) from error

    def map(self, offset: int, size: int) -> mmap.mmap:
        """Map ``size`` bytes from ``offset``, which is a multiple of the page size."""
        return mmap.mmap(self.descriptor, size, offset=offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_file, (reduction.DupFd(self.descriptor),)


def _receive_file(sent: Any) -> SharedFile:
    file = SharedFile.__new__(SharedFile)
    file.descriptor = sent.detach()
    file._close = weakref.finalize(file, os.close, file.descriptor)  # noqa: SLF001 - this is its constructor
    return file


class SlotMap:
    """A worker's view of the slots: each is mapped when it is first needed."""

    def __init__(self, file: SharedFile, layout: SlotLayout) -> None:
        self._file = file
        self._layout = layout
        self._slots: dict[int, Rows] = {}

    def rows(self, slot: int) -> Rows:
        """Return all rows of a slot, to be written."""
        if slot not in self._slots:
            size = self._layout.slot_bytes
            memory = np.frombuffer(self._file.map(slot * size, size), np.uint8)
            self._slots[slot] = self._layout.view(memory, self._layout.rows)
        return self._slots[slot]


class SlotRing:
    """The owner's view of the slots: hands them out, and takes them back when nothing views them any more.

    Args:
        layout: of each slot.
        slots: how many to make at once; more are made when all are in use.
    """

    def __init__(self, layout: SlotLayout, slots: int) -> None:
        self.layout = layout
        self.file = SharedFile()
        self._maps: list[mmap.mmap] = []
        self._free: deque[int] = deque()
        for _ in range(slots):
            self._free.append(self._make())

    def __len__(self) -> int:
        """Slots that exist, in use or free."""
        return len(self._maps)

    def acquire(self) -> int:
        """Return the number of a slot that nobody uses, making one if there is none."""
        return self._free.popleft() if self._free else self._make()

    def release(self, slot: int) -> None:
        """Take back a slot that was acquired and never lent."""
        self._free.append(slot)

    def lend(self, slot: int, rows: int) -> Rows:
        """Return a slot's first rows; it comes back by itself when the last view of them is gone."""
        memory = np.frombuffer(self._maps[slot], np.uint8)
        # Every array and tensor that views the slot keeps this very object alive, so its end is the end of them all.
        # deque.append is atomic: tensors may die in any thread, and in the middle of any other call here.
        weakref.finalize(memory, self._free.append, slot).atexit = False
        return self.layout.view(memory, rows)

    def close(self) -> None:
        """Let go of the memory; batches that were lent stay valid."""
        self.file.close()
        self._maps.clear()
        self._free.clear()

    def _make(self) -> int:
        slot, size = len(self._maps), self.layout.slot_bytes
        self.file.grow((slot + 1) * size)
        memory = self.file.map(slot * size, size)
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 0
        self._maps.append(memory)
        return slot


def _page_aligned(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
