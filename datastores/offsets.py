"""The packed offset table of one shard: per sample and field where its bytes lie, and the samples' keys.

A table is one file beside its shard, ``<shard>.offsets``, little-endian::

    byte 0    8 bytes   b"HEADRACE"
    byte 8    uint32    version, 1
    byte 12   uint32    bytes of the JSON header
    byte 16   JSON      {"shard": name, "bytes": its size, "samples": n, "fields": [names], "key_bytes": k}
    then, each beginning at a multiple of 64 bytes, zeros between:
              int64     spans, (n, fields, 2): offset and length in the shard; -1, -1 where the sample lacks the field
              int64     key starts, (n + 1)
              uint8     keys, (k), UTF-8

It stays on the disk: a row is read when it is used, so ten million samples take no more memory than ten, and all
processes share what the system caches. (A mapped file would do the same, but whoever cuts it would end the process.)
Nothing in it is trusted: the sections must fit the file exactly, and each row is checked when it is used.
"""

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from ..errors import ShardError
from .schema import IntArray
from .storage import Readable

__all__ = ["SUFFIX", "OffsetTable", "Span", "TableBuilder"]

#: Offset and length in bytes.
Span: TypeAlias = tuple[int, int]

SUFFIX = ".offsets"
_MAGIC = b"HEADRACE"
_VERSION = 1
_PREFIX = struct.Struct("<8sII")
_ALIGNMENT = 64
_MAX_HEADER = 1 << 20
_MAX_FIELDS = 256  # samples x fields is what a table costs
_ABSENT = (-1, -1)
_KEY_ENDS = struct.Struct("<qq")
_DENSE = 4  # rows are read at once if at least every fourth is wanted


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the sections of a table begin, and where it ends, in bytes."""

    spans: int
    starts: int
    keys: int
    end: int

    @classmethod
    def of(cls, header_bytes: int, samples: int, fields: int, key_bytes: int) -> "_Layout":
        spans = _aligned(_PREFIX.size + header_bytes)
        starts = _aligned(spans + 16 * samples * fields)
        keys = _aligned(starts + 8 * (samples + 1))
        return cls(spans, starts, keys, keys + key_bytes)


def _aligned(position: int) -> int:
    return position + -position % _ALIGNMENT


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """Where the bytes of one shard's samples lie.

    Args:
        shard: name of the shard, without its folder.
        shard_bytes: its size.
        fields: names of all fields that occur in it, sorted.
        file: the packed table.
        layout: where its sections begin.
        samples: number of rows.
        key_bytes: of all keys together.
    """

    shard: str
    shard_bytes: int
    fields: tuple[str, ...]
    file: Readable
    layout: _Layout
    samples: int
    key_bytes: int

    def __len__(self) -> int:
        return self.samples

    @property
    def spans(self) -> IntArray:
        """All spans, int64 (samples, fields, 2): offset and length in bytes; -1 where a sample lacks the field."""
        return self._spans(0, self.samples)

    def key(self, row: int) -> str:
        """Return the key of sample ``row``.

        Raises:
            ShardError: the table is damaged, or was cut.
        """
        start, end = _KEY_ENDS.unpack(self.file.read(self.layout.starts + 8 * row, 16))
        if not 0 <= start <= end <= self.key_bytes:
            raise self._damaged(row, f"its key is at {start} to {end} of {self.key_bytes} bytes")
        return self.file.read(self.layout.keys + start, end - start).decode("utf-8", "surrogateescape")

    def find(self, key: str) -> int | None:
        """Return the row of a key, or None; looks at one key after the other."""
        wanted = key.encode("utf-8", "surrogateescape")
        starts = np.frombuffer(self.file.read(self.layout.starts, 8 * (self.samples + 1)), "<i8")
        keys = self.file.read(self.layout.keys, self.key_bytes)
        rows = np.flatnonzero(np.diff(starts) == len(wanted)).tolist()
        return next((row for row in rows if keys.startswith(wanted, starts[row]) and self.key(row) == key), None)

    def spans_of(self, rows: IntArray | Sequence[int]) -> list[list[Span | None]]:
        """Return for each of ``rows`` and each of ``fields`` the span of its bytes, or None where there are none.

        Raises:
            ShardError: a span does not lie inside the shard, or the table was cut.
        """
        if not len(rows):
            return []
        first, last = int(min(rows)), int(max(rows))
        if last - first < _DENSE * len(rows):
            known = self._spans(first, last + 1)
            found = [known[row - first].tolist() for row in rows]
        else:
            start, row_bytes = self.layout.spans, 16 * len(self.fields)
            data = b"".join([self.file.read(start + int(row) * row_bytes, row_bytes) for row in rows])
            found = np.frombuffer(data, "<i8").reshape(len(rows), len(self.fields), 2).tolist()
        return [
            [self._checked(row, offset, length) for offset, length in fields]
            for row, fields in zip(rows, found, strict=True)
        ]

    def _spans(self, start: int, end: int) -> IntArray:
        row_bytes = 16 * len(self.fields)
        data = self.file.read(self.layout.spans + start * row_bytes, (end - start) * row_bytes)
        return np.frombuffer(data, "<i8").reshape(end - start, len(self.fields), 2)

    def _checked(self, row: int, offset: int, length: int) -> Span | None:
        if (offset, length) == _ABSENT:
            return None
        if offset < 0 or length < 0 or offset + length > self.shard_bytes:
            raise self._damaged(row, f"offset {offset}, length {length} in a shard of {self.shard_bytes} bytes")
        return offset, length

    def _damaged(self, row: int, found: str) -> ShardError:
        return ShardError(
            f"the offset table of shard {self.shard} is damaged at sample {row}: {found}: make it again with "
            "`headrace index`"
        )

    def pack(self) -> bytes:
        """Return the table as the bytes of a file; equal tables give equal bytes."""
        return self.file.read(0, self.layout.end)

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Self:
        """Open a packed table that is in memory; see ``open``."""
        return cls.open(_Packed(data), where)

    @classmethod
    def open(cls, file: Readable, where: str) -> Self:
        """Open a packed table; its rows are read when they are used.

        Args:
            file: the whole table.
            where: its path, for errors.

        Raises:
            ShardError: it is no such table, of another version, or its sections do not fit the file.
        """
        length = file.size
        head = file.read(0, min(length, _PREFIX.size)).ljust(_PREFIX.size, b"\0")
        magic, version, header_bytes = _PREFIX.unpack(head)
        if magic != _MAGIC or version != _VERSION:
            raise _unusable(where, f"it begins with {magic!r}, version {version}; expected {_MAGIC!r}, {_VERSION}")
        if header_bytes > min(_MAX_HEADER, length - _PREFIX.size):
            raise _unusable(where, f"its header claims {header_bytes} bytes and the file has {length}")
        header = _Header.parse(file.read(_PREFIX.size, header_bytes), where)
        layout = _Layout.of(header_bytes, header.samples, len(header.fields), header.key_bytes)
        if layout.end != length:
            raise _unusable(where, f"{header.samples} samples need {layout.end} bytes and the file has {length}")
        return cls(header.shard, header.shard_bytes, header.fields, file, layout, header.samples, header.key_bytes)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A table in memory, read like a file."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@dataclass(frozen=True, slots=True)
class _Header:
    """The JSON part of a table, checked."""

    shard: str
    shard_bytes: int
    samples: int
    fields: tuple[str, ...]
    key_bytes: int

    @classmethod
    def parse(cls, data: bytes, where: str) -> "_Header":
        try:
            header: Any = json.loads(data)
            shard, fields = header["shard"], header["fields"]
            counts = [header[name] for name in ("bytes", "samples", "key_bytes")]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unusable(where, f"its header is damaged ({error})") from error
        if not all(type(count) is int and 0 <= count < 2**62 for count in counts):
            raise _unusable(where, f"its header has the counts {counts}")
        if not (isinstance(shard, str) and isinstance(fields, list) and all(isinstance(name, str) for name in fields)):
            raise _unusable(where, f"its header names shard {shard!r} and fields {fields!r}")
        return cls(shard, counts[0], counts[1], tuple(fields), counts[2])


def _unusable(where: str, found: str) -> ShardError:
    return ShardError(f"{where} is no offset table that can be used: {found}: make it again with `headrace index`")


class TableBuilder:
    """Collects the members of one shard, in any order; samples keep the order in which they first appear.

    Example:
        >>> builder = TableBuilder("shard-000000.tar")
        >>> builder.put("a/1", "jpg", 512, 1000)
        >>> builder.put("a/1", "cls", 2048, 1)
        >>> table = builder.table(10240)
        >>> table.fields, table.spans.tolist()
        (('cls', 'jpg'), [[[2048, 1], [512, 1000]]])

    Args:
        shard: name of the shard, without its folder.
    """

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self._rows: dict[str, int] = {}
        self._fields: dict[str, array[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: str, field: str, offset: int, length: int) -> Span | None:
        """Note where the bytes of a field lie.

        Returns:
            The span that was noted for this key and field before, which stays, or None: the caller says what a
            duplicate means.

        Raises:
            ShardError: there are more different fields than any real shard has.
        """
        row = self._rows.setdefault(key, len(self._rows))
        column = self._fields.setdefault(field, array("q"))
        if len(self._fields) > _MAX_FIELDS:
            raise ShardError(
                f"more than {_MAX_FIELDS} different fields in {self.shard}, the last is {field!r} of key {key!r}: a "
                "name is cut at its first dot, so rename members whose keys hold dots"
            )
        column.extend(_ABSENT * (row + 1 - len(column) // 2))
        known = column[2 * row], column[2 * row + 1]
        if known != _ABSENT:
            return known
        column[2 * row], column[2 * row + 1] = offset, length
        return None

    def table(self, shard_bytes: int) -> OffsetTable:
        """Return the table of what was collected, for a shard of so many bytes."""
        samples, fields = len(self._rows), sorted(self._fields)
        spans = np.full((samples, len(fields), 2), -1, np.int64)
        for position, field in enumerate(fields):
            column = np.array(self._fields[field], np.int64).reshape(-1, 2)
            spans[: len(column), position] = column
        keys = [key.encode("utf-8", "surrogateescape") for key in self._rows]
        starts = np.zeros(samples + 1, np.int64)
        np.cumsum(np.fromiter(map(len, keys), np.int64, samples), out=starts[1:])
        names = {"shard": self.shard, "bytes": shard_bytes, "samples": samples, "fields": fields}
        return OffsetTable.unpack(_packed(names, spans, starts, b"".join(keys)), f"the table of {self.shard}")


def _packed(names: dict[str, Any], spans: IntArray, starts: IntArray, keys: bytes) -> bytes:
    header = json.dumps({**names, "key_bytes": len(keys)}).encode("ascii")
    layout = _Layout.of(len(header), len(spans), len(names["fields"]), len(keys))
    packed = bytearray(layout.end)
    packed[: _PREFIX.size] = _PREFIX.pack(_MAGIC, _VERSION, len(header))
    packed[_PREFIX.size : _PREFIX.size + len(header)] = header
    for start, section in (
        (layout.spans, spans.astype("<i8").tobytes()),
        (layout.starts, starts.astype("<i8").tobytes()),
        (layout.keys, keys),
    ):
        packed[start : start + len(section)] = section
    return bytes(packed)
