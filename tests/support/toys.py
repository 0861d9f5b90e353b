"""Small datastores for the dispatch tests; importable, so that every start method can send them."""

import contextlib
import multiprocessing
import os
import random
import resource
import signal
import stat
import struct
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from headrace.augment.random import Draw, Purpose
from headrace.datastores import Batch, Datastore
from headrace.datastores.schema import Sample


class Noise(Datastore):
    """Images whose pixels depend on seed, epoch and id; labels are ids."""

    def __init__(self, samples: int = 100, shape: tuple[int, int, int] = (6, 5, 3), shards: int = 4) -> None:
        self.samples, self.shape, self.shards = samples, shape, shards

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        return self.sample(index, Draw())

    @property
    def shard_sizes(self) -> np.ndarray:
        return np.diff(np.arange(self.shards + 1) * self.samples // self.shards)

    def sample(self, index: int, draw: Draw) -> Sample:
        size = int(np.prod(self.shape))
        numbers = draw.uniforms(np.array([index]), Purpose.NOISE, min(size, 4096))
        pixels = np.resize((numbers * 256).astype(np.uint8), self.shape)
        return {"image": pixels, "label": index, "key": f"k{index}"}


class Naive(Datastore):
    """Draws from the global generators, as people do."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Sample:
        drawn = [random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002
        return {"x": np.array(drawn), "label": index}


class Failing(Noise):
    """Raises for some samples."""

    def __init__(self, bad: Iterable[int], error: Exception | None = None, samples: int = 100) -> None:
        super().__init__(samples)
        self.bad = frozenset(bad)
        self.error = error or ZeroDivisionError("a bad day")

    def sample(self, index: int, draw: Draw) -> Sample:
        if index in self.bad:
            raise self.error
        return super().sample(index, draw)

    def locate(self, index: int) -> str:
        return f"sample {index}: key 'k{index}' in shard s{index % 3}.tar"


class Deadly(Noise):
    """Kills the process that makes a certain sample, the first ``times`` times, counted in a file."""

    def __init__(self, victim: int, times: int, tally: Path) -> None:
        super().__init__()
        self.victim, self.times, self.tally = victim, times, tally

    def sample(self, index: int, draw: Draw) -> Sample:
        if index == self.victim and self._count() < self.times:
            with self.tally.open("ab") as file:
                file.write(b"x")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(index, draw)

    def _count(self) -> int:
        return self.tally.stat().st_size if self.tally.exists() else 0


class Torn(Deadly):
    """Dies in the middle of a message to the trainer."""

    def sample(self, index: int, draw: Draw) -> Sample:
        if index == self.victim and self._count() < self.times:
            for number in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.fstat(number).st_mode):
                        os.write(number, struct.pack("!i", 100) + b"ten of 100")
        return super().sample(index, draw)


class Lost(Failing):
    """Does not even know where its samples come from."""

    def locate(self, index: int) -> str:
        raise LookupError(f"no idea where {index} is")


class Cramped(Noise):
    """Lets no worker map more memory than it has, and a little."""

    def sample(self, index: int, draw: Draw) -> Sample:
        if multiprocessing.parent_process() is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            if resource.getrlimit(resource.RLIMIT_AS)[0] == hard:
                resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20), hard))
        return super().sample(index, draw)


class Hanging(Noise):
    """Never comes back from certain samples."""

    def __init__(self, bad: Iterable[int], samples: int = 100) -> None:
        super().__init__(samples)
        self.bad = frozenset(bad)

    def sample(self, index: int, draw: Draw) -> Sample:
        if index in self.bad:
            time.sleep(1000)
        return super().sample(index, draw)


class Spinning(Noise):
    """Costs a given time of a core per sample."""

    def __init__(self, seconds: float, samples: int = 400) -> None:
        super().__init__(samples)
        self.seconds = seconds

    def sample(self, index: int, draw: Draw) -> Sample:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return super().sample(index, draw)


class Slow(Noise):
    """Takes its time, and writes the process id of each worker to a folder."""

    def __init__(self, folder: Path, seconds: float, samples: int = 1000) -> None:
        super().__init__(samples)
        self.folder, self.seconds = folder, seconds

    def sample(self, index: int, draw: Draw) -> Sample:
        (self.folder / str(os.getpid())).touch()
        time.sleep(self.seconds)
        return super().sample(index, draw)


class UnpicklableError(Exception):
    """Cannot be rebuilt from its pickle."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(f"{first} {second}")


def digest(batches: Iterable[Batch]) -> list[bytes]:
    """All that a consumer sees of batches, as bytes."""
    return [
        b"".join(
            [
                batch.images.permute(0, 2, 3, 1).numpy().tobytes(),
                batch.labels.numpy().tobytes(),
                batch.ids.numpy().tobytes(),
                batch.valid.numpy().tobytes(),
                f"{batch.epoch} {batch.step}".encode(),
            ]
        )
        for batch in batches
    ]


class Parentage(Datastore):
    """Tells which process made each sample, and which one started that."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Sample:
        return {"process": os.getpid(), "parent": os.getppid()}
