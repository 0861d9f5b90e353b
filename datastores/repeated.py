"""The samples of a small dataset, several times over, as one long epoch: for measurements."""

from collections.abc import Generator

import numpy as np

from ..augment.random import Draw
from .clock import Clock
from .datastore import Datastore, fingerprint_of
from .derived import DerivedDatastore
from .schema import IntArray, Rows, Sample, Schema

__all__ = ["RepeatedDatastore"]


class RepeatedDatastore(DerivedDatastore):
    """Has all samples of its source ``times`` times; a copy is made as often as it is asked for.

    Args:
        source: has the samples.
        times: how often, at least 1.

    Example:
        >>> from headrace.datastores.datastore import as_datastore
        >>> twice = RepeatedDatastore(as_datastore([{"x": 5}, {"x": 7}]), 2)
        >>> [sample["x"] for sample in twice]
        [5, 7, 5, 7]
    """

    def __init__(self, source: Datastore, times: int) -> None:
        super().__init__(source)
        self.times = times

    def __len__(self) -> int:
        return len(self.source) * self.times

    def sample(self, index: int, draw: Draw) -> Sample:
        """Return sample ``index % len(source)`` of the source."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample ids must be in 0 .. {len(self) - 1}, got {index}")
        return self.source.sample(index % len(self.source), draw)

    def sample_many(self, ids: IntArray, draw: Draw) -> Generator[Sample]:
        """Make samples as the source makes them."""
        return self.source.sample_many(ids % len(self.source), draw)

    def schema(self) -> Schema:
        """As the source's."""
        return self.source.schema()

    def fill(self, ids: IntArray, draw: Draw, rows: Rows, clock: Clock) -> None:
        """Write samples as the source writes them."""
        self.source.fill(ids % len(self.source), draw, rows, clock)

    @property
    def shard_sizes(self) -> IntArray:
        """As the source's, again and again."""
        return np.tile(self.source.shard_sizes, self.times)

    @property
    def fingerprint(self) -> str:
        """A digest of the source and the number of times."""
        return fingerprint_of(type(self).__qualname__, self.source.fingerprint, self.times)

    def locate(self, index: int) -> str:
        """Say where sample ``index`` comes from: what the source says."""
        return super().locate(index % len(self.source))
