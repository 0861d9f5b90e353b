"""Keyed randomness: what is drawn for a sample depends on (seed, epoch, sample id, purpose) and on nothing else.

Neither the order of calls, nor the batch, nor the worker plays a part, so a chunk of samples can be drawn at once,
by any process, any number of times, with the same result. The generator is Philox4x32-10, a counter-based one
(Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), written for whole NumPy
arrays because making one generator object per sample costs more than the numbers.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .ranges import as_whole

__all__ = ["Draw", "Purpose", "philox4x32"]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MAX_COUNT = 2 << 16  # 16 bits of the counter number the blocks, of two numbers each
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Purpose(IntEnum):
    """What a number is drawn for: numbers drawn for two purposes are independent of each other.

    ``CALLABLE`` is yours, for datastores and operations that you write; the package draws for the others. The values
    are part of every result; they are never reused or renumbered.
    """

    CROP = 1
    GEOMETRY = 2
    CALLABLE = 3
    COLOR = 4
    NOISE = 5
    MIX = 6
    PATCH = 7
    POLICY = 8
    PARAMETER = 9
    TRANSFORM = 10


def philox4x32(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Return Philox4x32-10 of each counter.

    Args:
        counter: uint32 (n, 4), one counter a row.
        key: two numbers below 2**32.

    Returns:
        uint32 (n, 4), uniform and independent over distinct counters.
    """
    words = [counter[:, i].astype(np.uint64) for i in range(4)]
    key0, key1 = key
    for _ in range(10):
        product0, product1 = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (product1 >> _SHIFT) ^ words[1] ^ np.uint64(key0),
            product1 & _LOW,
            (product0 >> _SHIFT) ^ words[3] ^ np.uint64(key1),
            product0 & _LOW,
        ]
        key0, key1 = (key0 + _WEYL[0]) & 0xFFFFFFFF, (key1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack(words, axis=1).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Draw:
    """The random world of one epoch: whoever holds it draws the same numbers for the same sample.

    Args:
        seed: 0 <= seed < 2**64, the run's seed.
        epoch: 0 <= epoch < 2**32; another epoch is another world.

    Raises:
        ConfigError: seed or epoch is no whole number, or out of range.

    Example:
        >>> import numpy as np
        >>> Draw(seed=1, epoch=0).uniforms(np.array([7, 9]), Purpose.CROP, 3).shape
        (2, 3)
    """

    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", as_whole("seed", self.seed, 0, 2**64 - 1, "0 .. 2**64 - 1"))
        object.__setattr__(self, "epoch", as_whole("epoch", self.epoch, 0, 2**32 - 1, "0 .. 2**32 - 1"))

    def uniforms(self, ids: NDArray[np.int64], purpose: Purpose, count: int) -> NDArray[np.float64]:
        """Return ``count`` numbers in [0, 1) for each sample, with 53 random bits each.

        Args:
            ids: int64 (n,), sample ids; the result for one id does not depend on the others.
            purpose: what they are for.
            count: numbers per sample, 0 .. 131072.

        Returns:
            float64 (n, count); the first k columns do not depend on ``count``.

        Raises:
            ConfigError: more numbers than a purpose has; ``generator`` gives any number of them.
        """
        if not 0 <= count <= _MAX_COUNT:
            raise ConfigError(f"a sample has 0 .. {_MAX_COUNT} numbers for one purpose, got {count}: use generator()")
        blocks = (count + 1) // 2  # a block of Philox is 128 bits: two doubles
        lanes = np.asarray(ids).astype(np.uint64).repeat(blocks)
        counter = np.empty((lanes.size, 4), np.uint32)
        counter[:, 0] = lanes & _LOW
        counter[:, 1] = lanes >> _SHIFT
        counter[:, 2] = self.epoch
        counter[:, 3] = np.tile(np.arange(blocks, dtype=np.uint32) | np.uint32(purpose << 16), len(ids))
        words = philox4x32(counter, (self.seed & 0xFFFFFFFF, self.seed >> 32)).astype(np.uint64)
        wide = (words[:, 0::2] << _SHIFT) | words[:, 1::2]
        numbers = (wide >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return numbers.reshape(len(ids), 2 * blocks)[:, :count]

    def fork(self, number: int) -> "Draw":
        """Return another world of the same epoch, whose numbers are independent of this one's; fork 0 is this one.

        For what happens to a sample a second time: the same operation once more, or a datastore around another one.

        Args:
            number: 0 <= number < 2**32, which of the worlds; forks have forks of their own.

        Raises:
            ConfigError: it is no such number.

        Example:
            >>> draw = Draw(seed=1, epoch=2)
            >>> draw.fork(0) == draw, draw.fork(1).epoch, draw.fork(1) == draw.fork(2)
            (True, 2, False)
        """
        number = as_whole("number", number, 0, 2**32 - 1, "0 .. 2**32 - 1")
        return replace(self, seed=_forked(self.seed, number)) if number else self

    def generator(self, sample_id: int, purpose: Purpose = Purpose.CALLABLE, stream: int = 0) -> np.random.Generator:
        """Return a NumPy generator for one sample, for user code that wants one (about 20 microseconds each).

        Args:
            sample_id: whose numbers they are.
            purpose: what they are for; nothing in the package draws from ``CALLABLE``, so all its streams are yours.
            stream: 0 <= stream < 65536; each stream is independent of the others up to 2**48 blocks of numbers, so
                two callables of one sample never share theirs.
        """
        counter = np.array([stream << 48, sample_id, self.epoch, purpose], np.uint64)
        return np.random.Generator(np.random.Philox(key=self.seed, counter=counter))


@lru_cache(maxsize=64)
def _forked(seed: int, number: int) -> int:
    counter = np.array([[number, 0, 0, 0]], np.uint32)  # of purpose 0, for which nothing else is drawn
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))[0].tolist()
    return int(words[0] << 32 | words[1])
