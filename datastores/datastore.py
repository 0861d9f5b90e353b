"""A datastore: anything with ``__len__`` and ``__getitem__``. Everything that a Loader needs is derived from them."""

import hashlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..augment.random import Draw
from ..errors import ConfigError, FieldError, ShapeError
from .clock import Clock, Stage
from .counts import show_count
from .generators import own_generators, seed_generators
from .schema import IntArray, Rows, Sample, Schema

__all__ = [
    "Datastore",
    "EncodedImage",
    "ImageSource",
    "SupportsIndex",
    "as_datastore",
    "as_index",
    "classes_of",
    "fingerprint_of",
    "place_of",
]


_DESCRIBED = 32  # samples that are tried for a description


class SupportsIndex(Protocol):
    """Any object with ``__len__`` and ``__getitem__``: a list, an array, a map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Datastore(ABC):
    """Base of all datastores, and of yours: write ``__len__`` and ``__getitem__``, the rest follows.

    A ``__getitem__`` may be random: see ``sample``. Every datastore is a valid map-style dataset for
    ``torch.utils.data.DataLoader`` as well, where ``at`` brings in the epoch.

    Example:
        >>> import numpy as np
        >>> class Squares(Datastore):
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, index):
        ...         return {"x": np.float32(index), "label": index * index}
        >>> [field.name for field in Squares().schema().fields]
        ['x', 'label']
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def __getitem__(self, index: int) -> Sample:
        """Return sample ``index`` (0 <= index < len) as field name -> array, number or string."""

    def __iter__(self) -> Iterator[Sample]:
        """Go through all samples in stored order."""
        return (self[index] for index in range(len(self)))

    def sample(self, index: int, draw: Draw) -> Sample:
        """Return sample ``index`` as ``draw`` makes it.

        By default that is ``self[index]``, with the generators of ``random``, ``numpy.random`` and torch seeded for
        this sample, so that a ``__getitem__`` which draws from them gives the same for any worker, order and batch.
        Write your own to draw from ``draw`` directly, which is faster: ``rng = draw.generator(index)``.
        """
        index = as_index(index)
        with own_generators():
            seed_generators(draw, index)
            return self[index]

    def at(self, draw: Draw) -> "Datastore":
        """Return this datastore in one random world: its ``[index]`` is ``sample(index, draw)``.

        For loops that know no seeds and epochs, such as torch's DataLoader: make one for each epoch.

        Example:
            ``DataLoader(data.at(Draw(seed=0, epoch=epoch)), batch_size=32, shuffle=True)``
        """
        return _DatastoreAt(self, draw)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {show_count(len(self), 'sample')}>"

    @property
    def shard_sizes(self) -> IntArray:
        """Samples per shard in stored order, int64 (shards,): what lies together and is best read together."""
        return np.array([len(self)], np.int64)

    @property
    def fingerprint(self) -> str:
        """A digest of what the data are and how they are prepared; a saved position is only valid for the same."""
        return fingerprint_of(type(self).__qualname__, len(self))

    def locate(self, index: int) -> str:
        """Say where sample ``index`` comes from, for an error message."""
        return f"sample {index} of {type(self).__name__}"

    def schema(self) -> Schema:
        """Describe one row of a batch, by reading the first sample that can be made (of the first 32).

        Raises:
            ConfigError: there are no samples.
        """
        if not len(self):
            raise ConfigError(f"{type(self).__name__} is empty: there is nothing to load")
        errors: list[Exception] = []
        for index in range(min(len(self), _DESCRIBED)):
            try:
                return self._described(index)
            except Exception as error:  # noqa: BLE001 - a sample that cannot be made is met again in its turn
                errors.append(error)
        raise errors[0]

    def _described(self, index: int) -> Schema:
        sample = self.sample(index, Draw())
        schema = Schema.of(sample, place_of(self, index))
        if schema.fields:
            return schema
        raise ShapeError(
            f"{place_of(self, index)} has nothing that can become a tensor: its fields are {sorted(sample)}"
        )

    def fill(self, ids: IntArray, draw: Draw, rows: Rows, clock: Clock) -> None:
        """Write the samples ``ids`` into ``rows``, one after the other.

        Args:
            ids: int64 (n,), sample ids.
            draw: the random world they are drawn in.
            rows: field name -> array (n, *shape) to write into, as ``schema()`` describes it.
            clock: told how long each stage took.

        Raises:
            FieldError: a sample lacks a field.
            ShapeError: a sample's field has another shape or a dtype that does not fit.
        """
        with closing(self.sample_many(ids, draw)) as samples:
            for row, (index, sample) in enumerate(zip(ids.tolist(), samples, strict=True)):
                for name, column in rows.items():
                    self._put(sample, index, name, column, row)
                self._check_rest(sample, index, rows)
                clock.lap(Stage.READ)

    def sample_many(self, ids: IntArray, draw: Draw) -> Generator[Sample]:
        """Make samples one after the other, each as ``sample`` makes it; to be closed if it is left before its end.

        Args:
            ids: int64 (n,), sample ids.
            draw: the random world.
        """
        if type(self).sample is not Datastore.sample:
            yield from (self.sample(index, draw) for index in ids.tolist())
            return
        with own_generators():  # given back once for all
            for index in ids.tolist():
                seed_generators(draw, index)
                yield self[index]

    def _put(self, sample: Sample, index: int, name: str, column: NDArray[Any], row: int) -> None:
        if name not in sample:
            raise FieldError(f"{place_of(self, index)} has no field {name!r}: it has {sorted(sample)}")
        value = np.asarray(sample[name])
        shape = column.shape[1:]
        if value.shape != shape or not _fits(value, column.dtype):
            raise ShapeError(
                f"field {name!r} of {place_of(self, index)} is {value.dtype} {value.shape}, but the first sample's is "
                f"{column.dtype} {shape}: all samples of a batch must agree, so resize or crop them first"
            )
        with np.errstate(over="ignore"):  # looked at below
            column[row] = value
        if (
            value.dtype.kind == "f"
            and value.dtype != column.dtype
            and np.isinf(column[row]).sum() > np.isinf(value).sum()
        ):
            raise ShapeError(
                f"field {name!r} of {place_of(self, index)} holds {np.abs(value).max()}, too much for {column.dtype}, "
                "the first sample's type: return one type for all samples"
            )

    def _check_rest(self, sample: Sample, index: int, rows: Rows) -> None:
        """Refuse what a batch would silently lack: a field that is no text, and that the first sample did not have."""
        for name, value in sample.items():
            if name not in rows and not isinstance(value, (str, bytes)):
                raise FieldError(
                    f"{place_of(self, index)} has a field {name!r}, which the first sample does not have, or has as "
                    "text: all samples of a batch must agree"
                )


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image as stored: its file's bytes, and its class number (None where there are no labels)."""

    data: bytes
    label: int | None


class ImageSource(Datastore):
    """A datastore of encoded images: decoding is left to whoever knows which size is wanted."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """Class names; the label of a sample is a position in this tuple. Empty where labels have no names."""

    @property
    @abstractmethod
    def has_labels(self) -> bool:
        """Whether samples carry a label."""

    @abstractmethod
    def encoded(self, ids: IntArray) -> list[EncodedImage]:
        """Read the samples ``ids``, in this order, without decoding them."""

    @abstractmethod
    def key(self, index: int) -> str:
        """The name of sample ``index`` inside its dataset, unique there."""

    def sample(self, index: int, draw: Draw) -> Sample:
        """Return ``self[index]``: a stored image is the same in every random world."""
        del draw
        return self[index]

    def __repr__(self) -> str:
        unnamed = ", labels without names" if self.has_labels else ""
        classes = f", {show_count(len(self.classes), 'class', 'classes')}" if self.classes else unnamed
        return f"<{type(self).__name__} of {show_count(len(self), 'image')}{classes}>"

    def __getitem__(self, index: int) -> Sample:
        """Return {"image": uint8 (H, W, 3), "label": int, where there are labels, "key": str}."""
        from .decode import decode  # here, so that commands which decode nothing load no decoder

        index = as_index(index)
        encoded = self.encoded(np.array([index], np.int64))[0]
        label = {} if encoded.label is None else {"label": encoded.label}
        return {"image": decode(encoded.data, where=self.locate(index)), **label, "key": self.key(index)}


def _fits(value: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a value keeps its meaning in a dtype: whole numbers must not wrap, floats may lose digits."""
    if value.dtype == dtype or np.can_cast(value.dtype, dtype, "safe"):
        return True
    if value.dtype.kind in "iu" and dtype.kind in "iuf":
        return bool((value.astype(dtype) == value).all())
    return np.can_cast(value.dtype, dtype, "same_kind")


class _DatastoreAt(Datastore):
    """A datastore in one random world."""

    def __init__(self, source: Datastore, draw: Draw) -> None:
        self.source = source
        self.draw = draw

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        return self.source.sample(index, self.draw)

    def sample(self, index: int, draw: Draw) -> Sample:
        del draw
        return self[index]

    def schema(self) -> Schema:
        return self.source.schema()

    @property
    def classes(self) -> tuple[str, ...]:
        return classes_of(self.source)

    @property
    def shard_sizes(self) -> IntArray:
        return self.source.shard_sizes

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(type(self).__qualname__, self.source.fingerprint, self.draw)

    def locate(self, index: int) -> str:
        return self.source.locate(index)


class _MapDatastore(Datastore):
    """A user's own object with ``__len__`` and ``__getitem__``, made a datastore."""

    def __init__(self, source: "SupportsIndex") -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        item = self.source[index]
        if isinstance(item, Mapping):
            return dict(item)
        if isinstance(item, tuple) and len(item) == 2:
            if isinstance(item[1], str):
                raise FieldError(
                    f"the label of {self.locate(index)} is the text {item[1]!r}: it must be a number, such as the "
                    "position of its name in a list of classes"
                )
            return {"image": _plain(item[0]), "label": _plain(item[1])}
        raise ShapeError(
            f"{self.locate(index)} is {type(item).__name__}: return a mapping of field names to arrays, "
            "or a pair (image, label)"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return classes_of(self.source)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(type(self.source).__qualname__, len(self))

    def locate(self, index: int) -> str:
        return f"sample {index} of {type(self.source).__name__}"


def as_datastore(source: "Datastore | SupportsIndex") -> Datastore:
    """Return ``source`` itself if it is a datastore, or one that wraps any object with ``__len__`` and ``__getitem__``.

    Its items may be mappings (field name -> array or number) or pairs (image, label).

    Raises:
        ConfigError: the object lacks one of the two methods.
    """
    if isinstance(source, Datastore):
        return source
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise ConfigError(
            f"{type(source).__name__} is no datastore: it needs __len__ and __getitem__ (an iterable-only source "
            "has no length and no order that could be repeated)"
        )
    return _MapDatastore(source)


def as_index(index: object) -> int:
    """Return the number of a sample as an int.

    Raises:
        TypeError: it is no whole number; rounding it would give another sample than was asked for.

    Example:
        >>> as_index(np.int64(3))
        3
    """
    try:
        return operator.index(index)  # type: ignore[arg-type]  # what it cannot be is what is asked
    except TypeError:
        raise TypeError(f"the number of a sample must be a whole number, got {index!r}") from None


def _plain(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def classes_of(source: object) -> tuple[str, ...]:
    """Return the class names of a datastore or of a user's own dataset; empty where it has none."""
    names = getattr(source, "classes", ())
    return tuple(names) if isinstance(names, (tuple, list)) else ()


def place_of(source: Datastore, index: int) -> str:
    """Say where a sample comes from, even if the user's own ``locate`` cannot."""
    try:
        return source.locate(index)
    except Exception as error:  # noqa: BLE001 - a user's locate must not hide the error it should explain
        return f"sample {index} (its place is unknown: {error})"


def fingerprint_of(*parts: object) -> str:
    """Return a SHA-256 over the ``repr`` of the parts: 64 hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()
