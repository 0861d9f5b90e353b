"""From what a user types (a folder, a glob, braces, a tar, a list of these) to shards whose samples can be found."""

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from braceexpand import braceexpand

from ..errors import ConfigError, MissingDataError
from .cache import Cache
from .index import INDEX_NAME, Index
from .listing import natural_key
from .offsets import SUFFIX, OffsetTable
from .scans import scan_shards
from .scratch import Scratch
from .staging import STAGING_NAME
from .storage import Storage, os_failure

__all__ = ["Catalog", "IndexMode", "ShardFile", "find_shards", "list_shards", "load_index"]

#: "auto": use the index beside the shards, or scan those without one; "require": an error without one; "scan": always.
IndexMode = Literal["auto", "require", "scan"]

_ANCHOR = re.compile(r"[A-Za-z0-9.+-]+://[^/]*|")  # of a URL: scheme and host, in which nothing is a wildcard
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)")
_MAX_EXPANSION = 10_000_000  # more shards than this is a slip of the hand


@dataclass(frozen=True, slots=True)
class ShardFile:
    """Where a shard and its packed offset table lie.

    Args:
        path: of the shard.
        table: path of its table.
        scanned: the shard's identity when its headers were read; None where an index tells what it must be.
    """

    path: str
    table: str
    scanned: str | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """Shards in order.

    Args:
        index: of all of them, as one set.
        files: where each lies.
        skipped: reason -> number of members that are no part of a sample, of the shards that had to be scanned.
        scratch: temporary folder with the tables of those shards.
    """

    index: Index
    files: tuple[ShardFile, ...]
    skipped: Counter[str]
    scratch: Scratch | None


def load_index(storage: Storage, folder: str) -> Index | None:
    """Read the index of a folder, or return None if it has none.

    Raises:
        ShardError: there is one, but it cannot be used.
    """
    path = f"{folder}/{INDEX_NAME}"
    try:
        file = storage.open(path)
    except MissingDataError:
        return None
    return Index.unpack(file.read(0, file.size), path)


def find_shards(
    storage: Storage,
    paths: Sequence[str],
    mode: IndexMode,
    on_scan: Callable[[], object] | None = None,
    cache: Cache | None = None,
) -> Catalog:
    """Find all shards that ``paths`` name, and where their samples lie.

    Args:
        storage: where they lie.
        paths: folders; tars; either with ``*``, ``?``, ``[...]`` or braces such as ``{000000..000123}``. A folder
            without index has the shards ``*.tar`` in natural order of their names.
        mode: what to do with and without an index.
        on_scan: called after each shard that had to be scanned.
        cache: where it is kept what was found in their headers; None: nowhere.

    Raises:
        MissingDataError: something is not there, there is no tar, or a build in that folder was not finished.
        ConfigError: the sets have different classes, or an index is required and missing.
        ShardError: a tar or an index cannot be used.
    """
    finder = _Finder(storage, mode, on_scan, cache)
    try:
        for folder, names in _groups(storage, paths):
            finder.add(folder, names)
        return finder.catalog(paths)
    except BaseException:
        if finder.scratch is not None:
            finder.scratch.remove()
        raise


def list_shards(storage: Storage, paths: Sequence[str]) -> Iterator[tuple[str, Index | None, list[str]]]:
    """Go through folders without looking into any tar: (folder, index of these shards or None, their paths).

    Raises:
        MissingDataError, ConfigError, ShardError: as ``find_shards``, but for the tars.
    """
    finder = _Finder(storage, "auto", None)
    for folder, names in _groups(storage, paths):
        part = finder.known(folder, names)
        if part is not None:
            yield folder, part, [f"{folder}/{entry.name}" for entry in part.entries]
        else:
            yield folder, None, finder.unknown(folder, names)


def _groups(storage: Storage, paths: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Go through folders: (folder, names of the shards in it, or none of them for all)."""
    folder, names = "", list[str]()
    for match in (match for path in paths for match in _expand(storage, path)):
        parent, _, name = match.rpartition("/")
        is_folder = _is_folder(storage, match)
        if names and (is_folder or parent != folder):
            yield folder, names
            names = []
        if is_folder:
            yield match, []
        else:
            folder = parent
            names.append(name)
    if names:
        yield folder, names


def _expand(storage: Storage, path: str) -> list[str]:
    """Return the files and folders that braces and wildcards stand for; a path that exists stands for itself."""
    if not set(path) & set("{*?[") or _exists(storage, path):
        return [path.rstrip("/")]
    # braceexpand makes a list of every range before it yields anything, so ranges are measured first.
    ranges = [abs(int(last) - int(first)) + 1 for first, last in _RANGE.findall(path)]
    too_many = math.prod(ranges) > _MAX_EXPANSION
    try:
        patterns = [] if too_many else list(islice(braceexpand(path), _MAX_EXPANSION + 1))
    except ValueError as error:
        raise ConfigError(f"{path}: the braces are not balanced: write {{000000..000123}}") from error
    if too_many or len(patterns) > _MAX_EXPANSION:
        raise ConfigError(f"{path} stands for more than {_MAX_EXPANSION} shards: check the braces")
    return [match for pattern in patterns for match in _glob(storage, pattern.rstrip("/"))]


def _exists(storage: Storage, path: str) -> bool:
    if _is_folder(storage, path):
        return True
    try:
        storage.size(path)
    except MissingDataError:
        return False
    return True


def _is_folder(storage: Storage, path: str) -> bool:
    if path.endswith(".tar"):
        return False  # the usual case needs no look
    if _names(storage, path) is not None:
        return True
    try:
        storage.size(f"{path}/{INDEX_NAME}")  # many web servers list nothing
    except MissingDataError:
        return False
    return True


def _names(storage: Storage, folder: str) -> list[str] | None:
    """Return what lies in a folder, or None where there is no such folder, or none that can be listed."""
    try:
        return storage.names(folder)
    except MissingDataError:
        return None


def _glob(storage: Storage, pattern: str) -> list[str]:
    """Return what matches a pattern, part by part, in natural order; hidden names only if the pattern says so."""
    if not set(pattern) & set("*?["):
        return [pattern]
    match = _ANCHOR.match(pattern)
    anchor = match[0] if match else ""
    matches = [anchor]
    for part in pattern.removeprefix(anchor).lstrip("/").split("/"):
        if set(part) & set("*?["):
            matches = [f"{folder}/{name}" for folder in matches for name in _matching(storage, folder or "/", part)]
        else:
            matches = [f"{folder}/{part}" for folder in matches]
    if not matches:
        raise MissingDataError(f"nothing matches {pattern}: check the path")
    return matches


def _matching(storage: Storage, folder: str, part: str) -> list[str]:
    names = _names(storage, folder)
    shown = [name for name in names or () if not name.startswith(".") or part.startswith(".")]
    return sorted((name for name in shown if fnmatch.fnmatchcase(name, part)), key=natural_key)


@dataclass(slots=True)
class _Finder:
    """Collects the shards of one folder after the other."""

    storage: Storage
    mode: IndexMode
    on_scan: Callable[[], object] | None
    cache: Cache | None = None
    scratch: Scratch | None = None
    parts: list[Index] = field(default_factory=list)
    files: list[ShardFile] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    indexes: dict[str, Index | None] = field(default_factory=dict)

    def add(self, folder: str, names: list[str]) -> None:
        """Add these shards of a folder, or all of them."""
        part = None if self.mode == "scan" else self.known(folder, names)
        if part is None:
            self._scan(self.unknown(folder, names))
            return
        paths = [f"{folder}/{entry.name}" for entry in part.entries]
        self.files += [ShardFile(path, path + SUFFIX) for path in paths]
        self.parts.append(part)

    def known(self, folder: str, names: list[str]) -> Index | None:
        """Return the index of these shards of a folder, or of all of them, if there is one that knows them."""
        index = self._index(folder)
        return index.select(names) if index is not None and names else index

    def unknown(self, folder: str, names: list[str]) -> list[str]:
        """Return the paths of these shards of a folder, or of all that lie there, where no index knows them."""
        self._refuse(folder)
        return [f"{folder}/{name}" for name in names or self._tars(folder)]

    def _index(self, folder: str) -> Index | None:
        if folder not in self.indexes:
            self.indexes[folder] = load_index(self.storage, folder)
        return self.indexes[folder]

    def _refuse(self, folder: str) -> None:
        if self.mode == "require":
            raise ConfigError(f"{folder} has no {INDEX_NAME} for these shards: make one with `headrace index {folder}`")
        if STAGING_NAME in (_names(self.storage, folder) or ()) and load_index(self.storage, folder) is None:
            raise MissingDataError(
                f"{folder} is no dataset: a build is writing into it, or was killed (it holds {STAGING_NAME}): "
                "wait for it, or run `headrace build` again"
            )

    def _tars(self, folder: str) -> list[str]:
        names = [name for name in self.storage.names(folder) if not name.startswith(".")]
        tars = sorted((name for name in names if name.endswith(".tar")), key=natural_key)
        if not tars:
            packed = sorted(name for name in names if name.endswith((".tgz", ".tar.gz", ".tar.xz", ".tar.zst")))
            hint = f"unpack {packed[0]} and the like to plain tars first" if packed else "check the path"
            raise MissingDataError(f"no shards in {folder}: it has no {INDEX_NAME} and no *.tar: {hint}")
        return tars

    def _scan(self, paths: list[str]) -> None:
        entries, fields = [], set[str]()
        for path, scanned in zip(paths, scan_shards(self.storage, paths, self.cache), strict=True):
            entries.append(scanned.entry())
            fields.update(scanned.table.fields)
            self.files.append(ShardFile(path, self._keep(scanned.table), self.storage.identity(path)))
            self.skipped += scanned.skipped
            if self.on_scan is not None:
                self.on_scan()
        self.parts.append(Index(tuple(entries), tuple(sorted(fields))))

    def _keep(self, table: OffsetTable) -> str:
        """Write a table to the temporary folder, where all processes of this run can map it."""
        try:
            if self.scratch is None:
                self.scratch = Scratch.make()
            path = self.scratch.write(f"{len(self.files):06d}{SUFFIX}", table.pack())
        except OSError as error:
            doing = f"keeping the index of {table.shard} in a temporary folder (`headrace index` makes one that stays)"
            raise os_failure(error, doing) from error
        return path

    def catalog(self, paths: Sequence[str]) -> Catalog:
        index = Index.concat(self.parts)
        if not len(index):
            found = ", ".join(f"{reason}: {count}" for reason, count in sorted(self.skipped.items())) or "nothing"
            raise MissingDataError(f"no samples in {', '.join(paths)} (passed over: {found}): check the shards")
        return Catalog(index, tuple(self.files), self.skipped, self.scratch)
