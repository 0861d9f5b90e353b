"""The device that computes: choosing it, feeding it, and leaving a model as it was found."""

import hashlib
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..datastores.batch import Batch
from ..errors import ConfigError

__all__ = [
    "DeviceFeed",
    "alone_in_process",
    "choose_device",
    "mode",
    "restored_generators",
    "seed_step",
]


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """Return the device that ``name`` means on this machine.

    Args:
        name: "auto", "cpu", "cuda" or "cuda:<number>".
        local_rank: this process's number among those of this machine that share a run: "auto" and "cuda" are the GPU
            of that number then, so that each has its own; None: the first one.

    Raises:
        ConfigError: it is not there.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    device = torch.device(f"cuda:{local_rank or 0}" if name in ("auto", "cuda") else name)
    if device.index >= count:
        asked = repr(name) if local_rank is None else f"{name!r} of local rank {local_rank}"
        found = f"{count} NVIDIA GPU{'s' * (count != 1)} that torch {torch.__version__} can use"
        raise ConfigError(f'device {asked} is not there: this machine has {found}; use device="auto" or "cpu"')
    return device


@contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put ``model`` into training or evaluation mode; afterwards each of its modules has the mode it had before."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, training_before in before:
            module.training = training_before


def _generators(device: torch.device) -> list[torch.Generator]:
    return [torch.default_generator, *([torch.cuda.default_generators[device.index]] if device.type == "cuda" else [])]


@contextmanager
def restored_generators(device: torch.device) -> Iterator[None]:
    """Give back torch's random generators (the CPU's and the device's) afterwards as they were before."""
    if device.type == "cuda":
        torch.cuda.init()  # its generators exist only then
    generators = _generators(device)
    before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


_TRAINING = threading.RLock()


@contextmanager
def alone_in_process() -> Iterator[None]:
    """Refuse to train in two threads of a process at a time."""
    if not _TRAINING.acquire(blocking=False):
        raise ConfigError(
            "another thread of this process is training, and torch's random generators, which each step seeds, belong "
            "to the whole process: train in two processes, or one after the other"
        )
    try:
        yield
    finally:
        _TRAINING.release()


def seed_step(device: torch.device, seed: int, epoch: int, step: int, part: int = 0) -> None:
    """Seed torch's generators so that what a step draws (dropout, noise) depends on its place in the run only.

    A run that is cut and continued, or that validates in between, therefore draws the same numbers. A hash takes
    half a microsecond; ``torch.manual_seed`` would take 90, since it looks for every kind of device.

    Args:
        device: whose generator is seeded besides the CPU's.
        seed: the run's.
        epoch: of the step.
        step: in the epoch.
        part: of the step, if it is computed in several parts: the number of its first row in the batch of all ranks.
    """
    key = hashlib.blake2b(struct.pack("<4Q", seed, epoch, step, part), digest_size=8).digest()
    for generator in _generators(device):
        generator.manual_seed(int.from_bytes(key, "little"))


class DeviceFeed:
    """Carries batches to the device on a stream of their own, so that copies pass by the work that is queued there.

    The host never waits: a batch in host memory is kept until its copy is known to have ended, since its slot may be
    written again as soon as nobody holds it.

    Args:
        device: where batches go; on the CPU they stay what they are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._on_gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if self._on_gpu else None
        self._in_flight: deque[tuple[torch.cuda.Event, Batch]] = deque()
        self._last_work: torch.cuda.Event | None = None

    def move(self, host: Batch) -> Batch:
        """Return ``host`` on the device; work queued there from now on waits for the copy."""
        if self._copies is None:
            return host
        while self._in_flight and self._in_flight[0][0].query():
            self._in_flight.popleft()
        with torch.cuda.stream(self._copies):
            batch = host.to(self.device, non_blocking=True)
            self._in_flight.append((self._copies.record_event(), host))
        compute = torch.cuda.current_stream(self.device)
        compute.wait_stream(self._copies)
        for tensor in (*batch.fields.values(), batch.ids, batch.valid):
            tensor.record_stream(compute)  # or its memory would be given away while the step still reads it
        return batch

    def mark(self) -> None:
        """Remember that all the work of a step has been queued."""
        if self._on_gpu:
            self._last_work = torch.cuda.current_stream(self.device).record_event()

    def is_busy(self) -> bool:
        """Whether the device still works on what was queued before ``mark``; False on the CPU."""
        return self._last_work is not None and not self._last_work.query()
