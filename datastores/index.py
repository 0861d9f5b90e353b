"""The index of a set of shards: ``index.json``, and how one is made from tars that have none.

``index.json`` is what makes a folder a dataset; it is published last. It names the shards in order, with their size,
sample count and checksums; where each sample lies stands in one packed table per shard (``offsets.py``). So an index
loads in time proportional to the number of shards, and holds no object per sample.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

from ..errors import ConfigError, DuplicateKeyError, ShardError
from .datastore import fingerprint_of
from .offsets import OffsetTable, TableBuilder
from .schema import IntArray
from .storage import Storage
from .tar import TarReader, skip_reason, split_name

__all__ = ["INDEX_NAME", "Index", "ScannedShard", "ShardEntry", "scan_shard"]

INDEX_NAME = "index.json"
_FORMAT = "headrace-index"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard, as its index knows it.

    Args:
        name: file name, without folder.
        size: bytes of the tar.
        samples: number of samples in it.
        offsets_sha256: of its packed offset table, so of its keys, fields and sizes.
        sha256: of the tar itself; None where the index was made without reading it.
    """

    name: str
    size: int
    samples: int
    offsets_sha256: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        plain = isinstance(self.name, str) and self.name not in ("", ".", "..") and not set(self.name) & set("/\0")
        counts = all(type(count) is int and 0 <= count < 2**62 for count in (self.size, self.samples))
        sums = _is_digest(self.offsets_sha256) and (self.sha256 is None or _is_digest(self.sha256))
        if not (plain and counts and sums):
            raise ConfigError(f"not a shard of an index: {self!r}")


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and not set(text) - set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Index:
    """An immutable list of shards, and the arithmetic from sample ids to places in them.

    Args:
        entries: the shards, in order.
        fields: all field names that occur, sorted.
        classes: class names by label; empty where there are none.
        class_samples: samples per class, where the index was written by a builder that knows them.

    Example:
        >>> index = Index((ShardEntry("a.tar", 9, 3, "0" * 64), ShardEntry("b.tar", 9, 2, "0" * 64)), ("jpg",))
        >>> shards, rows = index.locate(np.array([0, 2, 3]))
        >>> shards.tolist(), rows.tolist()
        ([0, 0, 1], [0, 2, 0])
    """

    entries: tuple[ShardEntry, ...]
    fields: tuple[str, ...]
    classes: tuple[str, ...] = ()
    class_samples: tuple[int, ...] = ()
    starts: IntArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = np.zeros(len(self.entries) + 1, np.int64)
        np.cumsum([entry.samples for entry in self.entries], out=starts[1:])
        starts.flags.writeable = False
        object.__setattr__(self, "starts", starts)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def fingerprint(self) -> str:
        """A digest of names, keys, fields, sizes and order, and of all bytes where the checksums are known."""
        return fingerprint_of("shards", [(e.name, e.size, e.samples, e.offsets_sha256, e.sha256) for e in self.entries])

    def locate(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Return (shard number, row in that shard) of each sample id, both int64 (n,).

        Raises:
            IndexError: an id is not in 0 .. len - 1.
        """
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"sample ids must be in 0 .. {len(self) - 1}, got {ids.min()} .. {ids.max()}")
        shards = np.searchsorted(self.starts, ids, side="right") - 1
        return shards, ids - self.starts[shards]

    def select(self, names: Iterable[str]) -> Self | None:
        """Return the index of these shards only, in the order given, or None if it does not know all of them."""
        by_name = {entry.name: entry for entry in self.entries}
        entries = tuple(by_name.get(name) for name in names)
        if any(entry is None for entry in entries):
            return None
        counts = self.class_samples if entries == self.entries else ()
        return type(self)(tuple(entry for entry in entries if entry is not None), self.fields, self.classes, counts)

    @classmethod
    def concat(cls, parts: Sequence["Index"]) -> Self:
        """Return one index of several sets, one after the other.

        Raises:
            ConfigError: two of them number their classes differently.
        """
        named = {part.classes for part in parts if part.classes}
        if len(named) > 1:
            first, second = sorted(named)[:2]
            raise ConfigError(
                f"these sets have different classes, so their labels mean different things: {list(first)} and "
                f"{list(second)}: load them one by one, or build them together"
            )
        entries = tuple(entry for part in parts for entry in part.entries)
        fields = tuple(sorted({name for part in parts for name in part.fields}))
        counts = [part.class_samples for part in parts]
        total = tuple(map(sum, zip(*counts, strict=True))) if all(counts) else ()
        return cls(entries, fields, next(iter(named), ()), total)

    def pack(self) -> bytes:
        """Return the bytes of ``index.json``; equal indexes give equal bytes."""
        shards = [
            {
                "name": e.name,
                "bytes": e.size,
                "samples": e.samples,
                "sha256": e.sha256,
                "offsets_sha256": e.offsets_sha256,
            }
            for e in self.entries
        ]
        head = {
            "format": _FORMAT,
            "version": _VERSION,
            "samples": len(self),
            "bytes": sum(entry.size for entry in self.entries),
            "fields": self.fields,
            "classes": self.classes,
            "class_samples": self.class_samples,
        }
        lines = ",\n  ".join(json.dumps(shard) for shard in shards)
        body = ",\n ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items())
        return f'{{{body},\n "shards": [\n  {lines}\n ]}}\n'.encode("ascii")

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Self:
        """Read the bytes of an ``index.json``.

        Args:
            data: the whole file.
            where: its path, for errors.

        Raises:
            ShardError: it is no index, of another version, or contradicts itself.
        """
        try:
            index = json.loads(data)
            if (index["format"], index["version"]) != (_FORMAT, _VERSION):
                raise _unusable(where, f"it is {index['format']!r}, version {index['version']!r}")
            made = cls(
                tuple(_entry(shard) for shard in index["shards"]),
                _strings(index["fields"]),
                _strings(index["classes"]),
                tuple(int(count) for count in index["class_samples"]),
            )
            totals = index["samples"], index["bytes"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _unusable(where, f"it is damaged ({error})") from error
        found = len(made), sum(entry.size for entry in made.entries)
        if totals != found or len({entry.name for entry in made.entries}) < len(made.entries):
            raise _unusable(
                where, f"it states {totals} samples and bytes, its shards sum to {found}, or one is named twice"
            )
        return made


def _entry(shard: dict[str, Any]) -> ShardEntry:
    return ShardEntry(shard["name"], shard["bytes"], shard["samples"], shard["offsets_sha256"], shard["sha256"])


def _strings(values: Any) -> tuple[str, ...]:
    if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
        raise ValueError(f"expected a list of names, found {values!r}")
    return tuple(values)


def _unusable(where: str, found: str) -> ShardError:
    return ShardError(f"{where} is no index that can be used: {found}: make it again with `headrace index --force`")


@dataclass(frozen=True, slots=True)
class ScannedShard:
    """What the headers of one tar say.

    Args:
        table: where its samples lie.
        skipped: reason -> number of members that are no part of a sample.
    """

    table: OffsetTable
    skipped: Counter[str]

    def entry(self, sha256: str | None = None) -> ShardEntry:
        """Return the shard's line in an index."""
        digest = hashlib.sha256(self.table.pack()).hexdigest()
        return ShardEntry(self.table.shard, self.table.shard_bytes, len(self.table), digest, sha256)


def scan_shard(storage: Storage, path: str) -> ScannedShard:
    """Find the samples of a tar by hopping over its headers; no payload is read.

    Members of one key are joined wherever they stand.

    Args:
        storage: where the tar lies.
        path: of the tar.

    Raises:
        MissingDataError: it is not there.
        ShardError: it is no tar, or damaged.
        DuplicateKeyError: a key has the same field twice.
    """
    size, name = storage.size(path), path.rpartition("/")[2]
    reader = TarReader(partial(storage.read, path), size, path)
    builder, skipped = TableBuilder(name), Counter[str]()
    for member in reader:
        reason = skip_reason(member.name)
        if reason is not None:
            skipped[reason] += 1
            continue
        key, field_name = split_name(member.name)
        first = builder.put(key, field_name, member.offset, member.size)
        if first is not None:
            raise DuplicateKeyError(
                f"{path}: key {key!r} has the field {field_name!r} twice, at byte {first[0]} and at byte "
                f"{member.offset}: rename one of the members (field names do not depend on case)"
            )
    return ScannedShard(builder.table(size), skipped + reader.skipped)
