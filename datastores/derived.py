"""A datastore that is made of another one, sample by sample: what all such have in common."""

from ..augment.random import Draw
from .datastore import Datastore, classes_of, place_of
from .schema import IntArray, Sample

__all__ = ["DerivedDatastore", "count_below"]


class DerivedDatastore(Datastore):
    """As many samples as its source has, in the same order and from the same places; only ``sample`` is to be written.

    Args:
        source: what it is made of.
    """

    def __init__(self, source: Datastore) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        """Return sample ``index`` as seed 0 and epoch 0 draw it; ``sample`` takes any draw."""
        return self.sample(index, Draw())

    @property
    def shard_sizes(self) -> IntArray:
        """As the source's."""
        return self.source.shard_sizes

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, as the source's; empty where it has none."""
        return classes_of(self.source)

    def locate(self, index: int) -> str:
        """Say where sample ``index`` comes from: what the source says."""
        return place_of(self.source, index)


def count_below(data: object, kind: type[Datastore]) -> int:
    """Return how many datastores of a kind lie inside of each other in ``data``, itself included.

    Each of them draws from a world of its own. A datastore of a user's is searched too: its attributes, and the
    datastores in its lists.

    Example:
        >>> from headrace.datastores.datastore import as_datastore
        >>> count_below(DerivedDatastore(as_datastore([1])), DerivedDatastore)
        1
    """
    inside = 0
    for value in vars(data).values() if hasattr(data, "__dict__") else ():
        parts = value if isinstance(value, (list, tuple)) and value and isinstance(value[0], Datastore) else (value,)
        inside = max(inside, *(count_below(part, kind) for part in parts if isinstance(part, Datastore)), 0)
    return isinstance(data, kind) + inside
