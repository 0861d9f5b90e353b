"""Any field of any sample of a set of shards, as bytes: the set is opened shard by shard, on first use."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, repeat
from operator import itemgetter
from typing import Any

import numpy as np

from ..errors import ConfigError, MissingDataError, ShardError
from .cache import Cache
from .cached import CachedStorage
from .catalog import Catalog, IndexMode, ShardFile, find_shards
from .datastore import as_index
from .index import Index, scan_shard
from .offsets import OffsetTable, Span
from .places import open_storage
from .remote import RemoteOptions, RemoteStorage
from .schema import IntArray
from .storage import LocalStorage, Location, Storage, affordable_descriptors, as_locations, sha256_of

__all__ = ["OpenShard", "ShardReader"]

_OPEN_TABLES = 128  # each costs a descriptor
_MAX_GAP = 4096  # bytes between two fields that are cheaper to read than to skip


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard whose size was compared with its index.

    Args:
        path: of the tar.
        identity: what the storage said of the file when it was opened.
        table: where its samples lie.
        columns: field name -> position in the table's fields.
    """

    path: str
    identity: str
    table: OffsetTable
    columns: dict[str, int]

    def where(self, row: int) -> str:
        """Name a sample, for an error."""
        return f"{self.path}, key {self.table.key(row)!r}"


class ShardReader:
    """Reads samples by number from shards that are found through their offset tables.

    It pickles small (some 300 bytes a shard), opens shards again in each process, and survives a fork.

    Args:
        location: see ``ShardDatastore``.
        mode: what to do with and without an index.
        on_scan: called after the headers of each shard without index were read.
        remote: how remote places are reached.
        cache: where copies of remote shards are kept; None: nowhere.

    Raises:
        MissingDataError: there are no such shards, or no samples in them.
        ShardError: a tar or an index is damaged.
        DuplicateKeyError: a shard has the same field of the same key twice.
        ConfigError: the location or the mode cannot work.
    """

    def __init__(
        self,
        location: Location,
        mode: IndexMode = "auto",
        on_scan: Callable[[], object] | None = None,
        remote: RemoteOptions | None = None,
        cache: Cache | None = None,
    ) -> None:
        if mode not in ("auto", "require", "scan"):
            raise ConfigError(f'index must be "auto", "require" or "scan", got {mode!r}')
        self.storage, paths = open_storage(as_locations(location), remote)
        self.catalog = find_shards(self.storage, paths, mode, on_scan, cache)
        if cache is not None and isinstance(self.storage, RemoteStorage):
            self.storage = CachedStorage(self.storage, cache, *_checksums(self.catalog))
        self.shard = self._opener()

    def _opener(self) -> Callable[[int], OpenShard]:
        # Not a method: a cache of bound methods would keep this object alive until the garbage collector comes.
        limit = affordable_descriptors(_OPEN_TABLES)
        return lru_cache(limit)(partial(_open_shard, self.storage, self.catalog))

    def __getstate__(self) -> dict[str, Any]:
        return {"storage": self.storage, "catalog": self.catalog}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.storage, self.catalog = state["storage"], state["catalog"]
        self.shard = self._opener()

    @property
    def index(self) -> Index:
        """The shards, their sizes and sample counts."""
        return self.catalog.index

    def __len__(self) -> int:
        return len(self.index)

    def place(self, index: int) -> tuple[OpenShard, int]:
        """Return the shard of sample ``index``, and its row there."""
        shards, rows = self.index.locate(np.array([as_index(index)], np.int64))
        return self.shard(int(shards[0])), int(rows[0])

    def groups(self, ids: IntArray) -> Iterator[list[tuple[int, OpenShard, int, list[Span | None]]]]:
        """Go through samples in stored order, in groups that should be read at once.

        A group ends with a shard: the first one, so that few are open, or a later one where several reads are worth
        making at the same time.

        Args:
            ids: int64 (n,), of the samples.

        Yields:
            For each sample of a group: its position in ``ids``, its shard, its row there, and where its fields lie.
        """
        order = np.argsort(ids, kind="stable")
        shards, rows = self.index.locate(ids[order])
        starts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist()] if len(order) else []
        group: list[tuple[int, OpenShard, int, list[Span | None]]] = []
        for start, end in zip(starts, [*starts[1:], len(order)], strict=False):
            shard, places, inside = self.shard(int(shards[start])), order[start:end].tolist(), rows[start:end].tolist()
            group += zip(places, repeat(shard), inside, shard.table.spans_of(inside), strict=False)
            if len(group) >= self.storage.concurrency or end == len(order):
                yield group
                group = []

    def read(self, shard: OpenShard, spans: list[Span]) -> list[bytes]:
        """Return the bytes of some spans of a shard; those that lie close together are read at once.

        Raises:
            ShardError: the shard was replaced since it was opened, or cannot be read.
        """
        pieces = self._pieces(shard, spans)
        return _cut([self.storage.read(shard.path, offset, length) for offset, length in pieces], pieces, spans)

    def read_many(self, wanted: Sequence[tuple[OpenShard, list[Span]]]) -> list[list[bytes]]:
        """Return the bytes of some spans of several samples, read at the same time where that is worth it.

        Raises:
            ShardError: as ``read``.
        """
        if self.storage.concurrency == 1:
            return [self.read(shard, spans) for shard, spans in wanted]
        pieces = [self._pieces(shard, spans) for shard, spans in wanted]
        ranges = [(shard.path, *piece) for (shard, _), some in zip(wanted, pieces, strict=True) for piece in some]
        data = iter(self.storage.read_many(ranges))
        return [
            _cut(list(islice(data, len(some))), some, spans) for some, (_, spans) in zip(pieces, wanted, strict=True)
        ]

    def _pieces(self, shard: OpenShard, spans: list[Span]) -> list[Span]:
        """Return what is read for these spans: one piece where the gaps are cheaper to read than to skip."""
        found = self.storage.identity(shard.path)
        if found != shard.identity:
            raise _replaced(shard.path, shard.identity, found)
        start, end = _extent(spans)
        if end - start > sum(map(itemgetter(1), spans)) + _MAX_GAP * (len(spans) - 1):
            return spans
        return [(start, end - start)]

    def key(self, index: int) -> str:
        """Return the key of sample ``index``."""
        shard, row = self.place(index)
        return shard.table.key(row)

    def find(self, key: str) -> int | None:
        """Return the first sample with this key, or None; looks through all shards."""
        for number, start in enumerate(self.index.starts[:-1].tolist()):
            row = self.shard(number).table.find(key)
            if row is not None:
                return int(start) + row
        return None

    def locate(self, index: int) -> str:
        """Return shard, key and the bytes that the sample's fields take, for an error."""
        shard, row = self.place(index)
        start, end = _extent([span for span in shard.table.spans_of([row])[0] if span is not None])
        return f"{shard.where(row)}, bytes {start} to {end}"

    def raw(self, index: int) -> dict[str, bytes]:
        """Return all fields of sample ``index``, as stored."""
        shard, row = self.place(index)
        spans = shard.table.spans_of([row])[0]
        present = {name: span for name, span in zip(shard.table.fields, spans, strict=True) if span is not None}
        return dict(zip(present, self.read(shard, list(present.values())), strict=True))

    def count_each_field(self) -> dict[str, int]:
        """Return field name -> number of samples that have it."""
        counts = Counter[str]()
        for number in range(len(self.index.entries)):
            table = self.shard(number).table
            present = (table.spans[:, :, 0] >= 0).sum(axis=0).tolist()
            counts.update(dict(zip(table.fields, present, strict=True)))
        return dict(sorted(counts.items()))

    def verify(self) -> None:
        """Compare every byte of every shard with the checksums of the index.

        Of shards without a checksum (foreign ones, indexed without reading them) the headers are compared.

        Raises:
            ShardError: a shard or its offset table was changed since it was indexed.
        """
        for number, entry in enumerate(self.index.entries):
            shard = self.shard(number)
            found = hashlib.sha256(shard.table.pack()).hexdigest()
            if found == entry.offsets_sha256:
                found = scan_shard(self.storage, shard.path).entry().offsets_sha256
            if found != entry.offsets_sha256:
                raise _unfit(shard.path, "an offset table with SHA-256", entry.offsets_sha256, found)
            if entry.sha256 is not None:
                found = sha256_of(self.storage.open(shard.path))
                if found != entry.sha256:
                    raise _unfit(shard.path, "SHA-256", entry.sha256, found)


def _cut(data: list[bytes], pieces: list[Span], spans: list[Span]) -> list[bytes]:
    """Return the bytes of each span, out of pieces that are the spans or one around all of them."""
    if pieces is spans:
        return data
    start = pieces[0][0]
    return [data[0][offset - start : offset - start + length] for offset, length in spans]


def _checksums(catalog: Catalog) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Return path -> SHA-256 of the shards, and of the offset tables beside them."""
    pairs = list(zip(catalog.index.entries, catalog.files, strict=True))
    tables: dict[str, str | None] = {file.table: entry.offsets_sha256 for entry, file in pairs if file.scanned is None}
    return {file.path: entry.sha256 for entry, file in pairs}, tables


def _extent(spans: list[Span]) -> Span:
    """Return the first byte of the spans, and the one behind the last."""
    return min(spans, default=(0, 0))[0], max(map(sum, spans), default=0)


def _open_shard(storage: Storage, catalog: Catalog, number: int) -> OpenShard:
    entry, file = catalog.index.entries[number], catalog.files[number]
    size = storage.size(file.path)
    if size != entry.size:
        raise _unfit(file.path, "bytes:", str(entry.size), str(size))
    table, digest = _open_table(storage, file, entry.offsets_sha256)
    stated, found = (entry.name, entry.size, entry.samples), (table.shard, table.shard_bytes, len(table))
    if stated != found:
        raise _unfit(file.table, "(name, bytes, samples)", str(stated), str(found))
    if digest != entry.offsets_sha256:
        raise _unfit(file.table, "an offset table with SHA-256", entry.offsets_sha256, digest)
    if not set(table.fields) <= set(catalog.index.fields):
        raise _unfit(file.table, "the fields", str(list(catalog.index.fields)), str(list(table.fields)))
    columns = {name: column for column, name in enumerate(table.fields)}
    identity = storage.identity(file.path)
    if file.scanned not in (None, identity):
        raise _replaced(file.path, str(file.scanned), identity)
    return OpenShard(file.path, identity, table, columns)


def _open_table(storage: Storage, file: ShardFile, sha256: str) -> tuple[OffsetTable, str]:
    try:
        # Tables of shards that were scanned lie in a temporary folder here, wherever the shards are.
        data = (storage if file.scanned is None else LocalStorage(1)).open(file.table)
        return OffsetTable.open(data, file.table), sha256_of(data)
    except MissingDataError:  # not copied along with the tar, or the temporary folder is gone
        scanned = scan_shard(storage, file.path)
        found = scanned.entry().offsets_sha256
        if found != sha256:
            raise _unfit(file.path, "an offset table with SHA-256", sha256, found) from None
        return scanned.table, found


def _replaced(path: str, was: str, now: str) -> ShardError:
    return ShardError(
        f"{path} was replaced while it was in use (it was {was}, now {now}: size, then time and inode, or the ETag): "
        "start again with the new shards"
    )


def _unfit(path: str, what: str, stated: str, found: str) -> ShardError:
    return ShardError(
        f"{path} does not fit its index: the index states {what} {stated}, found {found}: copy the shard again, or "
        f"make the index again with `headrace index --force {path.rpartition('/')[0]}`"
    )
