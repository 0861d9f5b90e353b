"""Is a shard what its index says, and can its images be read? All problems are listed; none ends the search.

The tar decides: its headers are walked again and compared with the offset table and with the index, its bytes with the
checksum, its labels with the classes. Each function is one task for one process and returns small values.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError, DuplicateKeyError, MissingDataError, ShardError
from .counts import show_count
from .decode import decode, decode_mask
from .index import ScannedShard, ShardEntry, scan_shard
from .keys import key_digest
from .listing import IMAGE_EXTENSIONS, extension
from .offsets import SUFFIX, OffsetTable
from .storage import Storage, sha256_of

__all__ = ["Problem", "ShardCheck", "ShardSource", "check_images", "check_shard", "is_image_field", "scanned"]

_LABEL = re.compile(rb"\s*([+-]?[0-9]{1,18})\s*")  # as ShardDatastore reads them
_MAX_LABEL_BYTES = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be.

    Args:
        kind: "missing", "size", "tar", "table", "index", "checksum", "label", "duplicate key" or "image".
        shard: path of the tar, or of the folder.
        reason: what was found, a sentence.
        key: of the sample, where it is about one.
        offset: byte of the shard where it is, where that is known.
    """

    kind: str
    shard: str
    reason: str
    key: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key!r}"
        offset = "" if self.offset is None else f", byte {self.offset}"
        return f"{self.kind}: {self.shard}{key}{offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ShardSource:
    """A tar, and what its index says about it.

    Args:
        storage: where it lies.
        path: of the tar.
        entry: its line in the index; None without an index.
        classes: number of classes that the index names; 0 where it names none.
    """

    storage: Storage
    path: str
    entry: ShardEntry | None
    classes: int = 0

    def __repr__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """What was found in one shard.

    Args:
        samples: number of samples; 0 where the tar cannot be walked.
        size: bytes of the tar.
        has_checksum: whether there was a checksum to compare its bytes with.
        problems: all that is wrong.
        is_table_bad: whether the offset table beside a tar that is as its index says is missing or another one.
        key_digests: uint64 (samples,), of the keys in stored order.
        labels: text of the field "cls" -> number of samples.
        fields: field -> number of samples.
        passed_over: reason -> number of members that are no part of a sample.
    """

    samples: int
    size: int
    has_checksum: bool
    problems: tuple[Problem, ...]
    is_table_bad: bool
    key_digests: NDArray[np.uint64]
    labels: Counter[str]
    fields: Counter[str]
    passed_over: Counter[str]


def check_shard(source: ShardSource) -> ShardCheck:
    """Walk a tar and compare it with all that is said about it; its images are not decoded.

    Raises:
        MissingDataError, ShardError: it cannot be opened, and no index says that it should be there.
    """
    problems: list[Problem] = []
    entry, digests = source.entry, np.zeros(0, np.uint64)
    labels, fields, is_table_bad = Counter[str](), Counter[str](), False
    size = _size(source, problems)
    found = None if size is None else _walk(source, problems)
    if found is not None:
        keys = [found.table.key(row) for row in range(len(found.table))]
        digests = np.array([int.from_bytes(key_digest(key)[:8], "little") for key in keys], np.uint64)
        present = (found.table.spans[:, :, 0] >= 0).sum(axis=0).tolist()
        fields.update(dict(zip(found.table.fields, present, strict=True)))
        labels = _labels(source, found.table, problems)
        is_table_bad = entry is not None and _is_table_bad(source, found, problems)
    if size is not None and entry is not None and entry.sha256 is not None:
        _compare_bytes(source, entry.sha256, problems)
    has_checksum = entry is not None and entry.sha256 is not None
    passed_over = Counter[str]() if found is None else found.skipped
    return ShardCheck(
        len(digests), size or 0, has_checksum, tuple(problems), is_table_bad, digests, labels, fields, passed_over
    )


def _size(source: ShardSource, problems: list[Problem]) -> int | None:
    try:
        size = source.storage.size(source.path)
    except (MissingDataError, ShardError) as error:
        if source.entry is None:
            raise  # nobody but the user says that it is there
        problems.append(Problem("missing", source.path, str(error)))
        return None
    if source.entry is not None and size != source.entry.size:
        problems.append(Problem("size", source.path, f"the index says {source.entry.size} bytes, it has {size}"))
    return size


def _walk(source: ShardSource, problems: list[Problem]) -> ScannedShard | None:
    try:
        return scan_shard(source.storage, source.path)
    except (ShardError, DuplicateKeyError) as error:
        kind = "duplicate key" if isinstance(error, DuplicateKeyError) else "tar"
        problems.append(Problem(kind, source.path, str(error).removeprefix(f"{source.path}: ")))
        return None


def _is_table_bad(source: ShardSource, found: ScannedShard, problems: list[Problem]) -> bool:
    """Compare the tar's headers with the index and with the table; only the latter can be made again from them."""
    entry = source.entry
    if entry is None:
        return False
    digest = found.entry().offsets_sha256
    if digest != entry.offsets_sha256:
        stated = f"the index says {show_count(entry.samples, 'sample')}, the tar has {len(found.table)}"
        reason = (
            stated if entry.samples != len(found.table) else "its keys, fields or offsets are not those of the index"
        )
        problems.append(Problem("index", source.path, reason))
        return False
    try:
        file = source.storage.open(source.path + SUFFIX)
        table = OffsetTable.open(file, source.path + SUFFIX)
        if sha256_of(file) == digest:
            return False
        problems.append(_first_difference(source, found.table, table))
    except MissingDataError:
        reason = "it has no offset table beside it, so its headers are read each time it is opened"
        problems.append(Problem("table", source.path, reason))
    except ShardError as error:
        problems.append(Problem("table", source.path, str(error)))
    return True


def _first_difference(source: ShardSource, tar: OffsetTable, table: OffsetTable) -> Problem:
    rows = zip_longest(_rows(tar), _rows(table))
    for row, (true, stated) in enumerate(rows):
        if true != stated:
            key, spans = true or (None, {})
            offset = min((span[0] for span in spans.values() if span is not None), default=None)
            reason = f"its offset table says {stated} for sample {row}, the tar {true}"
            return Problem("table", source.path, reason, key, offset)
    return Problem("table", source.path, "its offset table has another name, size or list of fields than the tar")


def _rows(table: OffsetTable) -> "list[tuple[str | None, dict[str, tuple[int, int] | None]]]":
    """Return (key, spans by field) of every row; None for what is damaged."""
    rows: list[tuple[str | None, dict[str, tuple[int, int] | None]]] = []
    spans = table.spans.tolist()
    for row in range(len(table)):
        try:
            key = table.key(row)
        except ShardError:
            key = None
        named = zip(table.fields, spans[row], strict=True)
        rows.append((key, {name: (span[0], span[1]) for name, span in named if span[0] >= 0}))
    return rows


def _labels(source: ShardSource, table: OffsetTable, problems: list[Problem]) -> Counter[str]:
    counts = Counter[str]()
    if "cls" not in table.fields:
        if source.classes and len(table):
            problems.append(Problem("label", source.path, "the index names classes, and no sample has the field 'cls'"))
        return counts
    column = table.fields.index("cls")
    for row, span in enumerate(table.spans[:, column].tolist()):
        text = _label(source, span)
        if text is not None and (not source.classes or 0 <= int(text) < source.classes):
            counts[text] += 1
            continue
        if span[0] < 0:
            if source.classes:
                problems.append(Problem("label", source.path, "it has no label", table.key(row)))
            continue
        reason = f"the label is {source.storage.read(source.path, span[0], min(span[1], 40))!r}"
        wanted = f"a number from 0 to {source.classes - 1}" if source.classes else "a whole number"
        problems.append(Problem("label", source.path, f"{reason}, it must be {wanted}", table.key(row), span[0]))
    return counts


def _label(source: ShardSource, span: list[int]) -> str | None:
    if span[0] < 0:
        return None
    match = _LABEL.fullmatch(source.storage.read(source.path, span[0], min(span[1], _MAX_LABEL_BYTES)))
    return None if match is None or span[1] > _MAX_LABEL_BYTES else str(int(match[1]))


def _compare_bytes(source: ShardSource, stated: str, problems: list[Problem]) -> None:
    try:
        found = sha256_of(source.storage.open(source.path))
    except (MissingDataError, ShardError) as error:
        problems.append(Problem("checksum", source.path, str(error)))
        return
    if found != stated:
        problems.append(Problem("checksum", source.path, f"the index says SHA-256 {stated}, it has {found}"))


def is_image_field(name: str) -> bool:
    """Whether a field holds an image, by its name: "jpg", "seg.png".

    Example:
        >>> is_image_field("seg.png"), is_image_field("cls")
        (True, False)
    """
    return extension(f".{name}") in IMAGE_EXTENSIONS


def scanned(storage: Storage, path: str) -> OffsetTable:
    """Return the table of a tar, made from its headers; the last two are kept for this process's next tasks."""
    return _scanned(_Tar(path, storage.identity(path), storage))


@dataclass(frozen=True, slots=True)
class _Tar:
    path: str
    identity: str
    storage: Storage = field(compare=False)  # each task brings its own


@lru_cache(2)
def _scanned(tar: _Tar) -> OffsetTable:
    return scan_shard(tar.storage, tar.path).table


def check_images(task: tuple[ShardSource, int, int]) -> tuple[int, tuple[Problem, ...]]:
    """Decode every image of some samples of a shard.

    Args:
        task: the shard, its first sample and the one behind the last.

    Returns:
        The number of images that were tried, and what is wrong.
    """
    source, start, stop = task
    count, problems = 0, []
    try:
        table = scanned(source.storage, source.path)
        for row, spans in zip(range(start, stop), table.spans_of(range(start, stop)), strict=True):
            for name, span in zip(table.fields, spans, strict=True):
                if span is not None and is_image_field(name):
                    count += 1
                    where = f"{source.path}, key {table.key(row)!r}"
                    reason = _cannot_decode(name, source.storage.read(source.path, *span), where)
                    if reason:
                        problems.append(Problem("image", source.path, f"{name}: {reason}", table.key(row), span[0]))
    except (MissingDataError, ShardError) as error:  # it was changed since it was walked
        problems.append(Problem("tar", source.path, str(error)))
    return count, tuple(problems)


def _cannot_decode(field: str, data: bytes, where: str) -> str | None:
    """Say why an image cannot be decoded; a second image of a sample may be a label map."""
    readers: list[Callable[..., object]] = [decode, decode_mask] if "." in field else [decode]
    reason = None
    for read in readers:
        try:
            read(data, where=where)
        except DecodeError as error:
            reason = reason or str(error).removeprefix(f"{where}: ").removeprefix(f"{where} ")
        else:
            return None
    return reason
