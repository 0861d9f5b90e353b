"""The index of a set of shards: ``index.json``, and how one is made from tars that have none.

``index.json`` is what makes a folder a dataset; it is published last. It names the shards in order, with their size,
sample count and checksums; where each sample lies stands in one packed table per shard (``offsets.py``). So an index
loads in time proportional to the number of shards, and holds no object per sample.
"""

import hashlib
import json
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from ..errors import ConfigError, DuplicateKeyError, ShardError
from .datastore import fingerprint_of
from .offsets import OffsetTable, TableBuilder
from .schema import IntArray
from .storage import Storage
from .tar import BLOCK, TarReader, skip_reason, split_name

__all__ = ["INDEX_NAME", "Index", "ScannedShard", "ShardEntry", "scan_shard"]

INDEX_NAME = "index.json"
_FORMAT = "headrace-index"
_VERSION = 1
_NEAR = 4096  # bytes that are looked at in a header's place: a page costs no more than a block
_FAR = 1 << 14  # over a network these cost no more than a page
_MAX_COUNT = 2**62 - 1  # twice that still is an int64


class _Rule(NamedTuple):
    """What a value of an index must be."""

    fits: Callable[[Any], bool]
    wanted: str


def _is_text(value: Any) -> bool:
    """Whether it is a text that bytes can stand for: JSON can write halves of characters, which cannot be printed."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _is_file_name(value: Any) -> bool:
    return _is_text(value) and value not in ("", ".", "..") and not set(value) & set("/\0")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef")


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_text, value)) and len(set(value)) == len(value)


_COUNT = _Rule(_is_count, "a whole number from 0 to 2**62 - 1")
_COUNTS = _Rule(lambda value: isinstance(value, list) and all(map(_is_count, value)), "a list of whole numbers from 0")
_REASONS = _Rule(lambda value: isinstance(value, dict) and all(map(_is_count, value.values())), "names with counts")
_NAMES = _Rule(_are_names, "a list of different names")

#: What the fields of a ``ShardEntry`` must be.
_ENTRY = {
    "name": _Rule(_is_file_name, "the name of a file, without folder"),
    "size": _COUNT,
    "samples": _COUNT,
    "offsets_sha256": _Rule(_is_digest, "a SHA-256, 64 hexadecimal digits in lower case"),
    "sha256": _Rule(lambda value: value is None or _is_digest(value), "a SHA-256, 64 hexadecimal digits, or null"),
}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard, as its index knows it.

    Args:
        name: file name, without folder.
        size: bytes of the tar.
        samples: number of samples in it.
        offsets_sha256: of its packed offset table, so of its keys, fields and sizes.
        sha256: of the tar itself; None where the index was made without reading it.

    Raises:
        ConfigError: a value that no shard can have.
    """

    name: str
    size: int
    samples: int
    offsets_sha256: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        for name, rule in _ENTRY.items():
            if not rule.fits(getattr(self, name)):
                found = reprlib.repr(getattr(self, name))
                raise ConfigError(f"{name} of a shard in an index must be {rule.wanted}, got {found}")


@dataclass(frozen=True, slots=True)
class Index:
    """An immutable list of shards, and the arithmetic from sample ids to places in them.

    Args:
        entries: the shards, in order.
        fields: all field names that occur, sorted.
        classes: class names by label; empty where there are none.
        class_samples: samples per class, where the index was written by a builder that knows them.

    Raises:
        ConfigError: a name stands twice or is no text, or there are 2**62 samples or more.

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
        for name, names in (("fields", self.fields), ("classes", self.classes)):
            if not _NAMES.fits(names):
                raise ConfigError(f"{name} of an index must be {_NAMES.wanted}, got {reprlib.repr(names)}")
        samples = [entry.samples for entry in self.entries]
        if sum(samples) > _MAX_COUNT:
            raise ConfigError(f"an index has at most 2**62 - 1 samples, these shards have {sum(samples)}")
        starts = np.zeros(len(samples) + 1, np.int64)
        np.cumsum(np.array(samples, np.int64), out=starts[1:])
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
            ShardError: it is no index, of another version, or contradicts itself; the message names the value.
        """
        try:
            document = _Value(json.loads(data), "", where)
        except (ValueError, RecursionError) as error:
            raise _unusable(where, f"it is no JSON ({error})") from error
        for name, known in (("format", _FORMAT), ("version", _VERSION)):
            value = document[name].value
            document[name].require(type(value) is type(known) and value == known, repr(known))
        entries, names = tuple(map(_entry, document["shards"].items())), set[str]()
        for shard, entry in zip(document["shards"].items(), entries, strict=True):
            shard["name"].require(entry.name not in names, "a name that no shard before it has")
            names.add(entry.name)
        for name, total in (
            ("samples", sum(entry.samples for entry in entries)),
            ("bytes", sum(entry.size for entry in entries)),
        ):
            document[name].require(document[name].take(_COUNT) == total, f"the sum over all shards, {total}")
        fields, classes = document["fields"].take(_NAMES), document["classes"].take(_NAMES)
        counts = _class_samples(document["class_samples"], entries, fields, classes)
        return cls(entries, tuple(fields), tuple(classes), counts)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value in the JSON of an index, and where it stands, for errors."""

    value: Any
    place: str
    where: str

    def __getitem__(self, name: str) -> "_Value":
        place = f"{self.place}.{name}" if self.place else name
        if not isinstance(self.value, dict):
            raise _unusable(self.where, f"{self.place or 'it'} must be an object, found {reprlib.repr(self.value)}")
        if name not in self.value:
            raise _unusable(self.where, f"it lacks {place}")
        return _Value(self.value[name], place, self.where)

    def items(self) -> "list[_Value]":
        self.require(isinstance(self.value, list), "a list")
        return [_Value(value, f"{self.place}[{number}]", self.where) for number, value in enumerate(self.value)]

    def take(self, rule: _Rule) -> Any:
        self.require(rule.fits(self.value), rule.wanted)
        return self.value

    def require(self, fits: bool, wanted: str) -> None:
        if not fits:
            raise _unusable(self.where, f"{self.place} must be {wanted}, found {reprlib.repr(self.value)}")


def _entry(shard: _Value) -> ShardEntry:
    entry = ShardEntry(**{name: shard["bytes" if name == "size" else name].take(rule) for name, rule in _ENTRY.items()})
    most = entry.size // BLOCK  # each has a header
    shard["samples"].require(entry.samples <= most, f"at most {most}, for a tar of {entry.size} bytes")
    return entry


def _class_samples(
    counts: _Value, entries: tuple[ShardEntry, ...], fields: list[str], classes: list[str]
) -> tuple[int, ...]:
    numbers = tuple(counts.take(_COUNTS))
    if numbers:
        counts.require(len(numbers) == len(classes), f"one number for each of {len(classes)} classes")
        total = sum(entry.samples for entry in entries)
        counts.require(sum(numbers) == total, f"numbers that sum to the {total} samples")
        counts.require("cls" in fields, 'empty, since fields has no "cls"')
    return numbers


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

    def pack(self) -> bytes:
        """Return it as the bytes of a file."""
        table = self.table.pack()
        head = {"sha256": hashlib.sha256(table).hexdigest(), "skipped": self.skipped}
        return json.dumps(head).encode("ascii") + b"\n" + table

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Self:
        """Read what ``pack`` returned.

        Raises:
            ShardError: it is something else, or damaged.
        """
        line, _, table = data.partition(b"\n")
        try:
            head = _Value(json.loads(line), "", where)
        except ValueError as error:
            raise _unusable(where, f"its first line is no JSON ({error})") from error
        found = hashlib.sha256(table).hexdigest()
        head["sha256"].require(head["sha256"].value == found, f"{found!r}, the SHA-256 of the table")
        return cls(OffsetTable.unpack(table, where), Counter(head["skipped"].take(_REASONS)))


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
    reader = TarReader(partial(storage.read, path), size, path, window=_FAR if storage.concurrency > 1 else _NEAR)
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
