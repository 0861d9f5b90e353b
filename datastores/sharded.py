"""WebDataset shards as a datastore: any sample of any tar, found through an index."""

import hashlib
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..errors import ConfigError, FieldError, MissingDataError, SampleError, ShardError
from .catalog import Catalog, IndexMode, ShardFile, find_shards
from .datastore import EncodedImage, ImageSource, fingerprint_of
from .index import Index, scan_shard
from .listing import IMAGE_EXTENSIONS
from .offsets import OffsetTable, Span
from .schema import IntArray
from .storage import Location, Storage, affordable_descriptors, as_locations, open_storage

__all__ = ["ShardDatastore"]

_OPEN_TABLES = 128  # each maps a file, so each costs a descriptor
_MAX_GAP = 4096  # bytes between two fields that are cheaper to read than to skip
_PIECE = 1 << 23
_LABEL = re.compile(rb"\s*([+-]?[0-9]{1,18})\s*")


class ShardDatastore(ImageSource):
    """Images in WebDataset tars, made by ``headrace build``, ``webdataset``, ``tar`` or anything else.

    A sample is {"image": uint8 (H, W, 3), "label": int, where there are labels, "key": str}; keys are unique in what
    ``headrace build`` writes, and in each shard of anything else.

    With an ``index.json`` beside the shards nothing is read before a sample is asked for. Without one the headers of
    all tars are read now, about 10 microseconds a member, and where the samples lie is kept in a temporary folder,
    about 100 bytes each, until this object is gone; ``headrace index`` saves that.

    Args:
        location: a folder, a tar, a pattern (``*``, ``?``, ``[...]``, ``{000000..000123}``), or a list of these; local
            paths or ``file://``. Tars of a folder without index are taken in natural order of their names.
        index: "auto" uses an index where there is one; "require" refuses shards without; "scan" ignores it.
        image_field: fields that hold the image, first choice first, for example "jpg" or "jpg;png"; default: the
            formats that can be decoded (``listing.IMAGE_EXTENSIONS``). Each sample may have another one of them.
        label_field: field with the class number in ASCII digits; None ignores labels. Without any "cls" field there are
            no labels.

    Raises:
        MissingDataError: there are no such shards, or no samples in them.
        ShardError: a tar or an index is damaged, or they do not fit each other.
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
    ) -> None:
        if index not in ("auto", "require", "scan"):
            raise ConfigError(f'index must be "auto", "require" or "scan", got {index!r}')
        self._storage, paths = open_storage(as_locations(location))
        catalog = find_shards(self._storage, paths, index)
        if catalog.scratch is not None:
            weakref.finalize(self, _remove_scratch, catalog.scratch, os.getpid())
        self._catalog = catalog
        self._image_fields = _image_fields(image_field, catalog.index.fields)
        self._label_field = _label_field(label_field, catalog.index.fields)
        self._shard = self._opener()

    def _opener(self) -> "Callable[[int], _OpenShard]":
        # Not a method: a cache of bound methods would keep this object alive until the garbage collector comes.
        limit = affordable_descriptors(_OPEN_TABLES)
        return lru_cache(limit)(partial(_open_shard, self._storage, self._catalog))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_shard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._shard = self._opener()

    def __len__(self) -> int:
        return len(self._catalog.index)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names as the index states them; empty without."""
        return self._catalog.index.classes

    @property
    def has_labels(self) -> bool:
        """Whether samples have the label field."""
        return self._label_field is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """All field names that occur, sorted."""
        return self._catalog.index.fields

    @property
    def index(self) -> Index:
        """The shards, their sizes and sample counts."""
        return self._catalog.index

    @property
    def skipped(self) -> dict[str, int]:
        """Reason -> number of tar members that are no part of a sample; empty where an index was used."""
        return dict(self._catalog.skipped)

    @property
    def shard_sizes(self) -> IntArray:
        """Samples per shard, int64 (shards,)."""
        return np.diff(self._catalog.index.starts)

    @property
    def fingerprint(self) -> str:
        """A digest of the shards' names, keys, sizes and checksums, and of the fields that are used."""
        return fingerprint_of(self._catalog.index.fingerprint, self._image_fields, self._label_field)

    def key(self, index: int) -> str:
        """Return the key of sample ``index``."""
        shard, row = self._place(index)
        return shard.table.key(row)

    def find(self, key: str) -> int | None:
        """Return the first sample with this key, or None; looks through all shards."""
        for number, start in enumerate(self._catalog.index.starts[:-1].tolist()):
            row = self._shard(number).table.find(key)
            if row is not None:
                return int(start) + row
        return None

    def locate(self, index: int) -> str:
        """Return shard, key and the bytes that its fields take, headers left out."""
        shard, row = self._place(index)
        spans = [span for span in shard.table.spans_of([row])[0] if span is not None]
        start, end = _extent(spans)
        return f"{shard.path}, key {shard.table.key(row)!r}, bytes {start} to {end}"

    def raw(self, index: int) -> dict[str, bytes]:
        """Return all fields of sample ``index``, as stored."""
        shard, row = self._place(index)
        spans = shard.table.spans_of([row])[0]
        present = {name: span for name, span in zip(shard.table.fields, spans, strict=True) if span is not None}
        return dict(zip(present, self._read(shard, list(present.values())), strict=True))

    def encoded(self, ids: IntArray) -> list[EncodedImage]:
        """Read the images and labels of the samples ``ids``; fields that lie side by side are read at once.

        Raises:
            FieldError: a sample lacks the image or label field.
            SampleError: a label is no class number.
            ShardError: a shard was changed since it was indexed, or cannot be read.
        """
        images: dict[int, EncodedImage] = {}
        for shard, places, rows in self._by_shard(ids):
            for place, row, spans in zip(places, rows, shard.table.spans_of(rows), strict=True):
                images[place] = self._image(shard, row, spans)
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
        for shard, places, rows in self._by_shard(ids):
            for place, row, spans in zip(places, rows, shard.table.spans_of(rows), strict=True):
                data = self._read(shard, [self._label_span(shard, row, spans)])[0]
                labels[place] = self._label(shard, row, data)
        return labels

    def count_each_label(self) -> dict[str, int]:
        """Return class name (or number, where there are no names) -> number of samples, in class order.

        The counts of an index are used; without them every label is read.
        """
        index = self._catalog.index
        if index.class_samples and self._label_field == "cls":
            return dict(zip(index.classes, index.class_samples, strict=True))
        numbers, counts = np.unique(self.labels_of(np.arange(len(self))), return_counts=True)
        found = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        if index.classes:
            return {name: found.get(number, 0) for number, name in enumerate(index.classes)}
        return {str(number): count for number, count in found.items()}

    def verify(self) -> None:
        """Compare every byte of every shard with the checksums of the index.

        Of shards without a checksum (foreign ones, indexed without reading them) the headers are compared.

        Raises:
            ShardError: a shard or its offset table was changed since it was indexed.
        """
        for number, entry in enumerate(self._catalog.index.entries):
            shard = self._shard(number)
            found = hashlib.sha256(shard.table.pack()).hexdigest()
            if found == entry.offsets_sha256:
                found = scan_shard(self._storage, shard.path).entry().offsets_sha256
            if found != entry.offsets_sha256:
                raise _unfit(shard.path, "an offset table with SHA-256", entry.offsets_sha256, found)
            if entry.sha256 is not None:
                found = _sha256_of(self._storage, shard.path, entry.size)
                if found != entry.sha256:
                    raise _unfit(shard.path, "SHA-256", entry.sha256, found)

    def _place(self, index: int) -> "tuple[_OpenShard, int]":
        shards, rows = self._catalog.index.locate(np.array([index], np.int64))
        return self._shard(int(shards[0])), int(rows[0])

    def _by_shard(self, ids: IntArray) -> "Iterator[tuple[_OpenShard, list[int], list[int]]]":
        """Go through the shards of ``ids`` in stored order: (shard, positions in ``ids``, rows in the shard)."""
        order = np.argsort(ids, kind="stable")
        shards, rows = self._catalog.index.locate(ids[order])
        ends = [*(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(order)]
        start = 0
        for end in ends if len(order) else []:
            shard = self._shard(int(shards[start]))
            yield shard, order[start:end].tolist(), rows[start:end].tolist()
            start = end

    def _image(self, shard: "_OpenShard", row: int, spans: list[Span | None]) -> EncodedImage:
        columns = (shard.columns.get(name) for name in self._image_fields)
        image = next((spans[column] for column in columns if column is not None and spans[column] is not None), None)
        if image is None:
            raise self._lacks(shard, row, spans, f"no image field ({';'.join(self._image_fields)})")
        if self._label_field is None:
            return EncodedImage(self._read(shard, [image])[0], None)
        data, label = self._read(shard, [image, self._label_span(shard, row, spans)])
        return EncodedImage(data, self._label(shard, row, label))

    def _label_span(self, shard: "_OpenShard", row: int, spans: list[Span | None]) -> Span:
        column = shard.columns.get(self._label_field or "")
        span = None if column is None else spans[column]
        if span is None:
            raise self._lacks(shard, row, spans, f"no field {self._label_field!r} (label_field=None ignores labels)")
        return span

    def _lacks(self, shard: "_OpenShard", row: int, spans: list[Span | None], what: str) -> FieldError:
        has = [name for name, span in zip(shard.table.fields, spans, strict=True) if span is not None]
        return FieldError(f"{shard.path}, key {shard.table.key(row)!r} has {what}: it has {has}")

    def _label(self, shard: "_OpenShard", row: int, data: bytes) -> int:
        match = _LABEL.fullmatch(data)
        label = int(match[1]) if match else None
        if label is None or (self.classes and not 0 <= label < len(self.classes)):
            wanted = f"a number below {len(self.classes)}" if self.classes else "a class number in ASCII digits"
            raise SampleError(
                f"{shard.path}, key {shard.table.key(row)!r}: field {self._label_field!r} holds {data[:40]!r}: "
                f"expected {wanted}; label_field=None ignores labels"
            )
        return label

    def _read(self, shard: "_OpenShard", spans: list[Span]) -> list[bytes]:
        shard.check(self._storage)
        start, end = _extent(spans)
        if end - start > sum(length for _, length in spans) + _MAX_GAP * (len(spans) - 1):
            return [self._storage.read(shard.path, offset, length) for offset, length in spans]
        data = self._storage.read(shard.path, start, end - start)
        return [data[offset - start : offset - start + length] for offset, length in spans]


@dataclass(frozen=True, slots=True)
class _OpenShard:
    """A shard whose size was compared with its index, and its offset table."""

    path: str
    identity: str
    table: OffsetTable
    columns: dict[str, int]

    def check(self, storage: Storage) -> None:
        """Refuse a file that has taken the place of the one that was opened first."""
        found = storage.identity(self.path)
        if found != self.identity:
            raise ShardError(
                f"{self.path} was replaced while it was in use (size-time-inode {self.identity}, now {found}): start "
                "again with the new shards"
            )


def _extent(spans: list[Span]) -> Span:
    """Return the first byte of the spans, and the one behind the last."""
    return min((start for start, _ in spans), default=0), max((start + size for start, size in spans), default=0)


def _open_shard(storage: Storage, catalog: Catalog, number: int) -> _OpenShard:
    entry, file = catalog.index.entries[number], catalog.files[number]
    size = storage.size(file.path)
    if size != entry.size:
        raise _unfit(file.path, "bytes:", str(entry.size), str(size))
    table = _open_table(storage, file, entry.offsets_sha256)
    stated, found = (entry.name, entry.size, entry.samples), (table.shard, table.shard_bytes, len(table))
    if stated != found:
        raise _unfit(file.table, "(name, bytes, samples)", str(stated), str(found))
    columns = {name: column for column, name in enumerate(table.fields)}
    return _OpenShard(file.path, storage.identity(file.path), table, columns)


def _open_table(storage: Storage, file: ShardFile, sha256: str) -> OffsetTable:
    try:
        return OffsetTable.unpack(storage.map(file.table), file.table)
    except MissingDataError:  # not copied along with the tar, or the temporary folder is gone
        scanned = scan_shard(storage, file.path)
        found = scanned.entry().offsets_sha256
        if found != sha256:
            raise _unfit(file.path, "an offset table with SHA-256", sha256, found) from None
        return scanned.table


def _unfit(path: str, what: str, stated: str, found: str) -> ShardError:
    return ShardError(
        f"{path} does not fit its index: the index states {what} {stated}, found {found}: copy the shard again, or "
        "make the index again with `headrace index --force`"
    )


def _sha256_of(storage: Storage, path: str, size: int) -> str:
    sha256 = hashlib.sha256()
    for offset in range(0, size, _PIECE):
        sha256.update(storage.read(path, offset, min(_PIECE, size - offset)))
    return sha256.hexdigest()


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


def _remove_scratch(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked worker: the folder is still in use
        shutil.rmtree(folder, ignore_errors=True)
