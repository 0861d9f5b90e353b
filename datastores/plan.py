"""Which samples form step n of epoch e: arithmetic, no state.

An epoch's order is cut into ``streams``: parts of the dataset that are fixed for a run and equal to within one sample.
Inside a stream the shards are permuted anew each epoch, and every ``window`` consecutive shards are shuffled together.
Each global batch takes an equal share of rows from every stream, in stream order, and a rank takes a contiguous part
of the rows. So which samples form a step does not depend on the number of ranks, while which bytes a host must fetch
does::

    positions  |--------- stream 0 ---------|--------- stream 1 ---------|   stream t: ceil((N - t) / streams) samples
    windows    |-- window --|-- window -----|-- window ----|-- window ---|   whole shards, drawn anew each epoch
    step n     rows 0 .. q-1 of every batch   rows q .. 2q-1                 q = batch_size / streams
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .counts import show_count
from .permute import derive_key, hash64, permute
from .schema import IntArray

__all__ = ["BatchRows", "EpochOrder", "LastBatch", "Plan", "Shuffle"]

Shuffle: TypeAlias = Literal["global", "window", "once", "never"]
LastBatch: TypeAlias = Literal["drop", "pad", "keep"]


_ROWS_TOGETHER = 2048  # of one rank that are planned at once


class _Purpose(IntEnum):
    """Keeps the keys of independent permutations apart; the values are part of every order."""

    STREAMS = 1
    SHARDS = 2
    WINDOWS = 3


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of one batch, or of one rank's part of it.

    Args:
        ids: int64 (n,), sample ids.
        valid: bool (n,), False where a row only pads the batch to its full size.
    """

    ids: IntArray
    valid: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of one epoch: the sample at any position in O(log shards) time, from tables of O(shards) memory.

    Args:
        segment_starts: int64 (segments + 1,), position at which each run of consecutive sample ids starts.
        segment_ids: int64 (segments,), the first sample id of each run.
        window_starts: int64 (windows + 1,), position at which each shuffled window starts; None: nothing is shuffled.
        key: of the windows' permutations.
    """

    segment_starts: IntArray
    segment_ids: IntArray
    window_starts: IntArray | None
    key: int

    def samples_at(self, positions: IntArray) -> IntArray:
        """Return the sample ids at ``positions`` (int64 (n,), each in 0 .. N - 1)."""
        if self.window_starts is not None:
            one = len(self.window_starts) == 2
            window = np.zeros(1, np.int64) if one else np.searchsorted(self.window_starts, positions, "right") - 1
            start = self.window_starts[window]
            keys = hash64(window.astype(np.uint64) + np.uint64(self.key))
            positions = start + permute(positions - start, self.window_starts[window + 1] - start, keys)
        segment = np.searchsorted(self.segment_starts, positions, "right") - 1
        return self.segment_ids[segment] + (positions - self.segment_starts[segment])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The order of every epoch, as a pure function of a few integers.

    Args:
        shard_sizes: int64 (shards,), samples per shard in stored order; sample ids count through them.
        batch_size: rows of a global batch, over all ranks.
        seed: 0 <= seed < 2**64.
        shuffle: "global": each stream is shuffled as a whole, anew each epoch (best; random access).
            "window": shards are permuted and ``window`` of them shuffled together (few shards are open at a time).
            "once": as "global", with the order of epoch 0 in every epoch. "never": stored order.
        streams: parts that feed every batch equally; must divide ``batch_size``. A multiple of the number of hosts
            lets each host fetch only its own part.
        window: shards shuffled together under ``shuffle="window"``.
        last_batch: what becomes of the samples that do not fill a batch. "drop": left out (others in each epoch, if
            shuffled). "keep": a short batch. "pad": a full batch whose extra rows are marked as not valid.

    Raises:
        ConfigError: a value is out of range, or the dataset is smaller than one batch under "drop".

    Example:
        >>> import numpy as np
        >>> plan = Plan(shard_sizes=np.array([4, 6]), batch_size=4, shuffle="never", last_batch="keep")
        >>> plan.num_steps, plan.batch(0, 2).ids.tolist()
        (3, [8, 9])
    """

    shard_sizes: IntArray
    batch_size: int
    seed: int = 0
    shuffle: Shuffle = "global"
    streams: int = 1
    window: int = 16
    last_batch: LastBatch = "drop"

    def __post_init__(self) -> None:
        for name, allowed in (("shuffle", get_args(Shuffle)), ("last_batch", get_args(LastBatch))):
            if getattr(self, name) not in allowed:
                raise ConfigError(_not_among(name, getattr(self, name), allowed))
        for name in ("batch_size", "streams", "window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.batch_size >= 2**31:
            raise ConfigError(f"batch_size must be below 2**31, got {self.batch_size}")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed must be in 0 .. 2**64 - 1, got {self.seed}")
        if self.batch_size % self.streams:
            raise ConfigError(
                f"every batch takes an equal share from each stream, but batch_size {self.batch_size} is not a "
                f"multiple of streams {self.streams}: change one of them"
            )
        if self.num_samples < 1:
            raise ConfigError("the dataset has no samples: there is nothing to plan")
        if self.last_batch == "drop" and self.batch_size > self.num_samples:
            samples = show_count(self.num_samples, "sample")
            raise ConfigError(
                f"batch_size {self.batch_size} is larger than the dataset ({samples}), and "
                'last_batch="drop" would leave nothing: use a smaller batch, or last_batch="keep" or "pad"'
            )

    @cached_property
    def num_samples(self) -> int:
        """Samples of the dataset."""
        return int(self.shard_sizes.sum())

    @cached_property
    def num_steps(self) -> int:
        """Batches per epoch, on every rank."""
        full, rest = divmod(self.num_samples, self.batch_size)
        return full + (rest > 0 and self.last_batch != "drop")

    def samples_in(self, step: int) -> int:
        """Return how many rows of step ``step`` (0 <= step < num_steps) are samples of any rank, not padding."""
        share = self.batch_size // self.streams
        left = np.diff(self._stream_starts) - step * share
        return int(np.clip(left, 0, share).sum())

    def epoch(self, epoch: int) -> EpochOrder:
        """Return the order of one epoch (0 <= epoch); takes O(shards) time, whatever the number of samples."""
        if self.shuffle == "once":
            epoch = 0
        starts, ids, streams = self._segments
        key = derive_key(self.seed, _Purpose.WINDOWS, epoch)
        if self.shuffle == "never":
            return EpochOrder(starts, ids, None, key)
        if self.shuffle != "window":
            return EpochOrder(starts, ids, self._stream_starts, key)
        order = _shuffled_within(streams, derive_key(self.seed, _Purpose.SHARDS, epoch))
        starts = _starts(np.diff(starts)[order])
        first = np.searchsorted(streams, np.arange(self.streams + 1))  # each stream's first segment
        rank_in_stream = np.arange(len(streams)) - first[streams]
        window_starts = np.append(starts[:-1][rank_in_stream % self.window == 0], self.num_samples)
        return EpochOrder(starts, ids[order], window_starts, key)

    def batch(
        self, epoch: int, step: int, *, rank: int = 0, world_size: int = 1, order: EpochOrder | None = None
    ) -> BatchRows:
        """Return the rows of step ``step`` (0 <= step < num_steps) that belong to ``rank``.

        Args:
            epoch: 0 <= epoch.
            step: 0 <= step < num_steps.
            rank: this process; it takes rows ``batch_size * rank // world_size`` up to those of the next rank.
            world_size: number of ranks; the rows of all ranks, in rank order, are the same for every world size.
            order: ``self.epoch(epoch)``, if the caller has kept it.

        Raises:
            ConfigError: step or rank is out of range.
        """
        if not 0 <= step < self.num_steps:
            raise ConfigError(f"step {step} is outside of an epoch of {show_count(self.num_steps, 'step')}")
        if not 0 <= rank < world_size <= self.batch_size:
            raise ConfigError(
                f"rank {rank} of world size {world_size} cannot take rows of a batch of {self.batch_size}: "
                "0 <= rank < world_size <= batch_size must hold"
            )
        position, valid = self._places(step, rank, world_size)
        return BatchRows((order or self.epoch(epoch)).samples_at(position), valid)

    def batches(self, epoch: int, start: int = 0, *, rank: int = 0, world_size: int = 1) -> Iterator[BatchRows]:
        """Go through an epoch from step ``start`` on: what ``batch`` returns, several times faster.

        The arithmetic is done for some 2,000 rows at once, since few cost almost as much.

        Args:
            epoch: 0 <= epoch.
            start: the first step, at most ``num_steps``.
            rank: as for ``batch``.
            world_size: as for ``batch``.
        """
        order, together = self.epoch(epoch), max(1, _ROWS_TOGETHER * world_size // self.batch_size)
        for first in range(start, self.num_steps, together):
            steps = range(first, min(first + together, self.num_steps))
            positions, valid = zip(*(self._places(step, rank, world_size) for step in steps), strict=True)
            ends = list(accumulate(map(len, positions)))
            ids = order.samples_at(np.concatenate(positions))
            yield from map(BatchRows, np.split(ids, ends[:-1]), valid)

    def _places(self, step: int, rank: int, world_size: int) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the positions of a batch's rows in the epoch, and which of them are valid."""
        rows = np.arange(self.batch_size * rank // world_size, self.batch_size * (rank + 1) // world_size)
        share = self.batch_size // self.streams
        stream = rows // share
        position = self._stream_starts[stream] + step * share + rows % share
        valid = position < self._stream_starts[stream + 1]
        if self.last_batch == "keep":
            position, valid = position[valid], valid[valid]
        else:
            position = np.where(valid, position, rows % self.num_samples)
        return position, valid

    @cached_property
    def _stream_starts(self) -> IntArray:
        numbers = np.arange(self.streams)
        return _starts((self.num_samples - numbers + self.streams - 1) // self.streams)

    @cached_property
    def _segments(self) -> tuple[IntArray, IntArray, IntArray]:
        """Runs of consecutive ids: start positions (n + 1), first ids (n), streams (n). Fixed for a run.

        With several streams the shards are permuted once before they are cut into streams, so that each stream is a
        fair sample of a dataset that was stored class by class.
        """
        sizes = self.shard_sizes.astype(np.int64)
        shards = np.arange(len(sizes))
        if self.streams > 1 and self.shuffle != "never":
            shards = _shuffled_within(np.zeros_like(shards), derive_key(self.seed, _Purpose.STREAMS))
        shards = shards[sizes[shards] > 0]
        shard_starts = _starts(sizes[shards])
        cuts = np.union1d(shard_starts, self._stream_starts)
        shard = np.searchsorted(shard_starts, cuts[:-1], "right") - 1
        first_ids = _starts(sizes)[shards][shard] + cuts[:-1] - shard_starts[shard]
        return cuts, first_ids, np.searchsorted(self._stream_starts, cuts[:-1], "right") - 1


def _starts(sizes: IntArray) -> IntArray:
    """Return where each of several consecutive parts starts, and where the last one ends: int64 (n + 1,)."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _shuffled_within(groups: IntArray, key: int) -> IntArray:
    """Return an order of 0 .. n-1 that keeps the (ascending) groups apart and is random inside each."""
    hashes = hash64(hash64(np.arange(len(groups), dtype=np.uint64)) + np.uint64(key))
    return np.lexsort((hashes, groups))


def _not_among(name: str, value: object, allowed: tuple[str, ...]) -> str:
    wanted = f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}"
    if name == "shuffle" and isinstance(value, (bool, np.bool_)):
        return f"{wanted}: 'global', the default, is what True means elsewhere, and 'never' is what False means"
    if name == "last_batch" and isinstance(value, (bool, np.bool_)):
        return f"{wanted}: 'drop', the default, is what drop_last=True means elsewhere, and 'keep' is what False means"
    return wanted
