"""The global random generators that a user's own code may draw from: seeded per sample, and given back.

A datastore that only has ``__len__`` and ``__getitem__`` can be random by ``random``, ``numpy.random`` or ``torch``
alone. So that its samples too depend on (seed, epoch, sample id) and on nothing else, these generators are seeded
before each sample, and afterwards they are what they were. Threads that make samples in this way take turns.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..augment.random import Draw
from .locks import ProcessLock
from .permute import derive_key, hash64

__all__ = ["own_generators", "seed_generators"]

#: The generators belong to the whole process.
_LOCK = ProcessLock(
    what="makes a sample with the global random generators: a __getitem__ that reads other datastores in threads of "
    "its own waits for itself; read them in the same thread"
)
_PURPOSE = 0x47454E  # keeps these seeds apart from all other keys
_OTHERS = np.array([0x4E554D, 0x4E5059, 0x544F52], np.uint64)  # and those of numpy (two) and torch from Python's


@contextmanager
def own_generators() -> Iterator[None]:
    """Give the global generators back afterwards as they were before; one thread at a time."""
    with _LOCK:
        yield from _given_back()


def _given_back() -> Iterator[None]:
    torch = sys.modules.get("torch")  # who has not imported it cannot draw from it
    states = (random.getstate(), np.random.get_state(), torch.random.get_rng_state() if torch else None)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch:
            torch.random.set_rng_state(states[2])


def seed_generators(draw: Draw, sample: int, stream: int = 0) -> None:
    """Seed ``random``, ``numpy.random`` and, if it is loaded, torch's CPU generator for one sample.

    All three are Mersenne Twisters, which give the same numbers for the same seed, so each gets a seed of its own: 64
    bits for ``random`` and 128 for numpy. torch uses 32 bits of any seed, so among 77,000 samples it is as likely as
    not that two draw the same numbers from torch. It takes about 40 microseconds.

    Args:
        draw: the random world.
        sample: its id.
        stream: several functions of one sample draw different numbers from different streams.
    """
    parts = (stream,) if stream else ()
    key = derive_key(draw.seed, draw.epoch, _PURPOSE, sample, *parts)
    others = hash64(np.uint64(key) ^ _OTHERS)
    random.seed(key)
    np.random.seed(others[:2].view(np.uint32))  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch:
        torch.default_generator.manual_seed(int(others[2]))
