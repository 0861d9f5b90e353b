"""Slots: preallocated memory for one batch each, shared with the workers and used again and again.

All slots lie in one anonymous file (memfd), which has no name: nothing is left behind after a crash, and the size
of /dev/shm does not matter. A slot is mapped by whoever needs it, by its number. Where no worker writes into them,
slots lie in the process's own memory instead, so that a process forked from it has its own copy.

Fresh memory costs a page fault per 4 KiB, so slots are touched once when they are made and then only reused: writing 64
photos of 224 x 224 takes 5.7 ms into fresh memory and 0.5 ms later. A worker pays 3 ms more for its first batch in each
slot, since its own mapping is new; mapping all pages in advance (MAP_POPULATE) would save 2 of them, once, and is left.
"""

import errno
import mmap
import os
import tempfile
import weakref
from collections import deque
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .schema import Rows, Schema

__all__ = ["PrivateMemory", "SharedFile", "SlotLayout", "SlotMap", "SlotRing"]


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

    def view(self, memory: NDArray[np.uint8], rows: int) -> Rows:
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
        """Make the file ``size`` bytes long; bytes that nobody has touched take no memory."""
        os.ftruncate(self.descriptor, size)

    def map(self, offset: int, size: int) -> mmap.mmap:
        """Map ``size`` bytes from ``offset``, which is a multiple of the page size."""
        return mmap.mmap(self.descriptor, size, offset=offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_file, (reduction.DupFd(self.descriptor),)


class PrivateMemory:
    """What takes the place of a ``SharedFile`` where nobody else writes: each mapping is memory of this process."""

    def close(self) -> None:
        """There is nothing to close; mappings that exist stay valid."""

    def grow(self, size: int) -> None:
        """There is nothing to grow: memory is made when it is mapped."""

    def map(self, offset: int, size: int) -> mmap.mmap:  # noqa: ARG002 - the same interface
        """Return ``size`` new bytes."""
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _receive_file(sent: Any) -> SharedFile:
    file = SharedFile.__new__(SharedFile)
    file.descriptor = sent.detach()
    file._close = weakref.finalize(file, os.close, file.descriptor)  # noqa: SLF001 - this is its constructor
    return file


class SlotMap:
    """Finds the memory of a slot, in whichever process.

    Slots are mapped in extents: the first ``first`` slots, then as many again as there are, and so on, because Python
    keeps a file descriptor open for each mapping, and a consumer may keep thousands of batches.

    Args:
        file: that holds all slots, or memory of this process.
        layout: of each slot.
        first: slots of the first extent, at least 1.
        pin: let a GPU copy from the memory directly.
    """

    def __init__(self, file: SharedFile | PrivateMemory, layout: SlotLayout, first: int, *, pin: bool = False) -> None:
        self._file = file
        self._layout = layout
        self._first = first
        self._pin = pin
        self._extents: dict[int, memoryview] = {}

    def extent(self, slot: int) -> range:
        """Return the slots that are mapped together with ``slot``."""
        if slot < self._first:
            return range(self._first)
        start = self._first << (slot // self._first).bit_length() - 1
        return range(start, 2 * start)

    def memory(self, slot: int) -> NDArray[np.uint8]:
        """Return a new array, uint8 (slot_bytes,), over a slot; the file must be long enough for its extent."""
        extent, size = self.extent(slot), self._layout.slot_bytes
        if extent.start not in self._extents:
            memory = np.frombuffer(self._file.map(extent.start * size, len(extent) * size), np.uint8)
            if self._pin:
                pin(memory)
            self._extents[extent.start] = memory.data
        return np.frombuffer(self._extents[extent.start], np.uint8, size, (slot - extent.start) * size)

    def rows(self, slot: int) -> Rows:
        """Return all rows of a slot."""
        return self._layout.view(self.memory(slot), self._layout.rows)


class SlotRing:
    """The owner's view of the slots: hands them out, and takes them back when nothing views them any more.

    Args:
        file: that holds all slots, new; or memory of this process.
        layout: of each slot.
        slots: how many to make at once, at least 1; more are made when all are in use.
        pin: let a GPU copy from the slots directly, several times faster than from other memory.

    Raises:
        ConfigError: the machine has not so much memory, or cannot pin it.
    """

    def __init__(self, file: SharedFile | PrivateMemory, layout: SlotLayout, slots: int, *, pin: bool = False) -> None:
        self.layout = layout
        self.first = slots
        self._file = file
        self._map = SlotMap(file, layout, slots, pin=pin)
        self._made = 0
        self._free: deque[int] = deque()
        for _ in range(slots):
            self._free.append(self._make())

    def acquire(self) -> int:
        """Return the number of a slot that nobody uses, making one if there is none."""
        return self._free.popleft() if self._free else self._make()

    def release(self, slot: int) -> None:
        """Take back a slot that was acquired and never lent."""
        self._free.append(slot)

    def lend(self, slot: int, rows: int) -> Rows:
        """Return a slot's first rows; it comes back by itself when the last view of them is gone."""
        memory = self._map.memory(slot)
        # Every array and tensor that views the slot keeps this very object alive, so its end is the end of them all.
        # deque.append is atomic: tensors may die in any thread, and in the middle of any other call here.
        weakref.finalize(memory, self._free.append, slot).atexit = False
        return self.layout.view(memory, rows)

    def close(self) -> None:
        """Let go of the memory; batches that were lent stay valid."""
        self._file.close()
        self._map = SlotMap(self._file, self.layout, self.first)
        self._free.clear()

    def _make(self) -> int:
        slot = self._made
        needed, present = (slot + 1) * self.layout.slot_bytes, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > present:
            raise ConfigError(
                f"{slot + 1} batches of {self.layout.rows} rows need {needed / 2**20:.0f} MiB of memory, and this "
                f"machine has {present / 2**20:.0f}: use a smaller batch_size or prefetch, or keep fewer batches"
            )
        try:
            self._file.grow(self._map.extent(slot).stop * self.layout.slot_bytes)
            self._map.memory(slot)[:: mmap.PAGESIZE] = 0
        except OSError as error:
            flag = "-f" if error.errno == errno.EFBIG else "-v"
            raise ConfigError(
                f"{needed / 2**20:.0f} MiB of memory for {slot + 1} batches of {self.layout.rows} rows cannot be had "
                f"({error.strerror}): use a smaller batch_size or prefetch, keep fewer batches, or raise "
                f"`ulimit {flag}`"
            ) from error
        self._made += 1
        return slot


def pin(memory: NDArray[np.uint8]) -> None:
    """Register memory with CUDA, so that copies to a GPU are direct and asynchronous; undone when ``memory`` goes.

    Only the trainer's process does it; workers never touch CUDA. What CUDA says of a failure is cleared, or it would
    surface in the next call.

    Raises:
        ConfigError: there is no GPU, or it refuses.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("pin_memory needs an NVIDIA GPU, and torch finds none: leave it out")
    runtime = torch.cuda.cudart()
    address = memory.ctypes.data
    code = runtime.cudaHostRegister(address, memory.nbytes, 0)
    if int(code) != 0:
        raise ConfigError(
            f"the GPU's driver does not pin {memory.nbytes / 2**20:.0f} MiB of memory (CUDA error {int(code)}): use "
            "pin_memory=False, a smaller batch_size or prefetch, or raise `ulimit -l`"
        )
    # The array that views the mapping goes before the mapping does; at exit the driver does it.
    weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False


def _page_aligned(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
