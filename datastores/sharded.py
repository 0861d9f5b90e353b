"""WebDataset shards as a datastore of images."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import ConfigError, FieldError, SampleError
from .cache import Cache
from .catalog import IndexMode
from .datastore import EncodedImage, ImageSource, fingerprint_of
from .index import Index
from .listing import IMAGE_EXTENSIONS
from .offsets import Span
from .places import is_remote
from .remote import RemoteOptions, Retry
from .schema import IntArray
from .shards import OpenShard, ShardReader
from .storage import Location, as_locations

__all__ = ["ShardDatastore"]

_LABEL = re.compile(rb"\s*([+-]?[0-9]{1,18})\s*")


class ShardDatastore(ImageSource):
    """Images in WebDataset tars, made by ``headrace build``, ``webdataset``, ``tar`` or anything else.

    A sample is {"image": uint8 (H, W, 3), "label": int, where there are labels, "key": str}; keys are unique in what
    ``headrace build`` writes, and in each shard of anything else.

    With an ``index.json`` beside the shards nothing is read before a sample is asked for. Without one the headers of
    all tars are read now, about 10 microseconds a member, and where the samples lie is kept in a temporary folder,
    about 100 bytes each, until this object is gone; ``headrace index`` saves that.

    Args:
        location: a folder, a tar, a pattern (``*``, ``?``, ``[...]``, ``{000000..000123}``), or a list of these: local
            paths, ``file://``, or URLs of one scheme that fsspec knows (``s3://``, ``https://`` and more). Tars of a
            folder without index are taken in natural order of their names. A web server needs to serve byte ranges,
            and to list the folder unless it has an index or the tars are named.
        index: "auto" uses an index where there is one; "require" refuses shards without; "scan" ignores it.
        image_field: fields that hold the image, first choice first, for example "jpg" or "jpg;png"; default: the
            formats that can be decoded (``listing.IMAGE_EXTENSIONS``). Each sample may have another one of them.
        label_field: field with the class number in ASCII digits; None ignores labels. Without any "cls" field there are
            no labels.
        cache_dir: where copies of remote shards are kept, in a folder of this user; default ``~/.cache/headrace``.
        cache_bytes: that all copies there may take together; what was not used for the longest time goes first. 0:
            none are made; default: half of what is free on that disk, with what the cache holds already.
        anonymous: send no credentials to a remote place.
        storage_options: arguments of fsspec's file system for it, such as ``endpoint_url`` or ``headers``.
        retry: how long it is asked for something.

    Raises:
        MissingDataError: there are no such shards, or no samples in them.
        ShardError: a tar or an index is damaged, they do not fit each other, or a remote place refuses or does not
            answer.
        DuplicateKeyError: a shard has the same field of the same key twice.
        ConfigError: an argument cannot work, or no sample has such an image or label field.

    Example:
        >>> import tempfile
        >>> from headrace.datastores.write import ShardWriter
        >>> folder = tempfile.TemporaryDirectory()
        >>> with ShardWriter(folder.name, classes=["cat", "dog"]) as writer:
        ...     key = writer.write("dog/1", {"jpg": b"not read yet", "cls": b"1"})
        >>> shards = ShardDatastore(folder.name)
        >>> len(shards), shards.classes, shards.key(0), shards.raw(0)
        (1, ('cat', 'dog'), 'dog/1', {'cls': b'1', 'jpg': b'not read yet'})
        >>> folder.cleanup()
    """

    def __init__(
        self,
        location: Location,
        *,
        index: IndexMode = "auto",
        image_field: str | None = None,
        label_field: str | None = "cls",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        anonymous: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
    ) -> None:
        remote = RemoteOptions(anonymous, storage_options or {}, retry or Retry())
        has_cache = cache_bytes != 0 and any(map(is_remote, as_locations(location)))
        cache = Cache.make(cache_dir, cache_bytes) if has_cache else None
        self._reader = ShardReader(location, index, remote=remote, cache=cache)
        self._image_fields = _image_fields(image_field, self.fields)
        self._label_field = _label_field(label_field, self.fields)

    def __len__(self) -> int:
        return len(self._reader)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names as the index states them.

        Empty where no index names them, even if samples have labels: those of foreign shards are mere numbers, and how
        many there are is only known to whoever reads them all, as ``count_each_label`` does.
        """
        return self.index.classes

    @property
    def has_labels(self) -> bool:
        """Whether samples have the label field."""
        return self._label_field is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """All field names that occur, sorted."""
        return self.index.fields

    @property
    def index(self) -> Index:
        """The shards, their sizes and sample counts."""
        return self._reader.index

    @property
    def skipped(self) -> dict[str, int]:
        """Reason -> number of tar members that are no part of a sample; empty where an index was used."""
        return dict(self._reader.catalog.skipped)

    @property
    def shard_sizes(self) -> IntArray:
        """Samples per shard, int64 (shards,)."""
        return np.diff(self.index.starts)

    @property
    def fingerprint(self) -> str:
        """A digest of the shards' names, keys, sizes and checksums, and of the fields that are used."""
        return fingerprint_of(self.index.fingerprint, self._image_fields, self._label_field)

    def key(self, index: int) -> str:
        """Return the key of sample ``index``."""
        return self._reader.key(index)

    def locate(self, index: int) -> str:
        """Return shard, key and the bytes that the sample's fields take."""
        return self._reader.locate(index)

    def raw(self, index: int) -> dict[str, bytes]:
        """Return all fields of sample ``index``, as stored."""
        return self._reader.raw(index)

    def verify(self) -> None:
        """Compare every byte of every shard with the checksums of the index.

        Of shards without a checksum (foreign ones, indexed without reading them) the headers are compared.

        Raises:
            ShardError: a shard or its offset table was changed since it was indexed.
        """
        self._reader.verify()

    def encoded(self, ids: IntArray) -> list[EncodedImage]:
        """Read the images and labels of the samples ``ids``; fields that lie side by side are read at once.

        Raises:
            FieldError: a sample lacks the image or label field.
            SampleError: a label is no class number.
            ShardError: a shard was changed since it was indexed, or cannot be read.
        """
        images: dict[int, EncodedImage] = {}
        for group in self._reader.groups(ids):
            found = self._reader.read_many(
                [(shard, self._image_spans(shard, row, spans)) for _, shard, row, spans in group]
            )
            for (place, shard, row, _), data in zip(group, found, strict=True):
                images[place] = EncodedImage(data[0], self._label(shard, row, data[1]) if len(data) > 1 else None)
        return [images[place] for place in range(len(ids))]

    def labels_of(self, ids: IntArray) -> IntArray:
        """Read the class numbers of the samples ``ids``, int64 (n,), and no images.

        Raises:
            ConfigError: there are no labels.
            FieldError: a sample lacks the label field.
            SampleError: a label is no class number.
        """
        if self._label_field is None:
            raise ConfigError(f"these shards have no labels: they have the fields {list(self.fields)}")
        labels = np.zeros(len(ids), np.int64)
        for group in self._reader.groups(ids):
            wanted = [(shard, [self._label_span(shard, row, spans)]) for _, shard, row, spans in group]
            for (place, shard, row, _), data in zip(group, self._reader.read_many(wanted), strict=True):
                labels[place] = self._label(shard, row, data[0])
        return labels

    def count_each_label(self) -> dict[str, int]:
        """Return class name (or number, where there are no names) -> number of samples, in class order.

        The counts of an index are used; without them every label is read.

        Raises:
            ConfigError: there are no labels.
        """
        if self.index.class_samples and self._label_field == "cls":
            return dict(zip(self.classes, self.index.class_samples, strict=True))
        found = Counter[int]()
        for number, (start, end) in enumerate(pairwise(self.index.starts.tolist())):
            self._reader.shard(number)  # an index that lies about its size is found out before as much is asked for
            found.update(self.labels_of(np.arange(start, end)).tolist())
        if self.classes:
            return {name: found.get(number, 0) for number, name in enumerate(self.classes)}
        return {str(number): count for number, count in sorted(found.items())}

    def _image_spans(self, shard: OpenShard, row: int, spans: list[Span | None]) -> list[Span]:
        """Return where the image lies, and the label if there are labels."""
        image = self._image_span(shard, row, spans)
        return [image] if self._label_field is None else [image, self._label_span(shard, row, spans)]

    def _image_span(self, shard: OpenShard, row: int, spans: list[Span | None]) -> Span:
        for name in self._image_fields:
            column = shard.columns.get(name)
            if column is not None and (span := spans[column]) is not None:
                return span
        raise _lacks(shard, row, spans, f"no image field ({';'.join(self._image_fields)})")

    def _label_span(self, shard: OpenShard, row: int, spans: list[Span | None]) -> Span:
        column = shard.columns.get(self._label_field or "")
        span = None if column is None else spans[column]
        if span is None:
            raise _lacks(shard, row, spans, f"no field {self._label_field!r} (label_field=None ignores labels)")
        return span

    def _label(self, shard: OpenShard, row: int, data: bytes) -> int:
        match = _LABEL.fullmatch(data)
        label, classes = int(match[1]) if match else None, len(self.classes)
        if label is None or (classes and not 0 <= label < classes):
            wanted = f"a number below {classes}" if classes else "a class number in ASCII digits"
            raise SampleError(
                f"{shard.where(row)}: field {self._label_field!r} holds {data[:40]!r}: expected {wanted}; "
                "label_field=None ignores labels"
            )
        return label


def _lacks(shard: OpenShard, row: int, spans: list[Span | None], what: str) -> FieldError:
    has = [name for name, span in zip(shard.table.fields, spans, strict=True) if span is not None]
    return FieldError(f"{shard.where(row)} has {what}: it has {has}")


def _image_fields(asked: str | None, fields: tuple[str, ...]) -> tuple[str, ...]:
    wanted = IMAGE_EXTENSIONS if asked is None else tuple(name.strip() for name in asked.split(";"))
    known = tuple(name for name in wanted if name in fields)
    if not known:
        raise ConfigError(
            f"no sample has an image field ({';'.join(wanted)}): the fields are {list(fields)}: choose one with "
            "image_field="
        )
    return known


def _label_field(asked: str | None, fields: tuple[str, ...]) -> str | None:
    if asked is None or asked in fields:
        return asked
    if asked == "cls":
        return None
    raise ConfigError(f"no sample has the label field {asked!r}: the fields are {list(fields)}")
