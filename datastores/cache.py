"""Whole remote objects on a local disk, within a bound: what was fetched once is read like a file.

One folder for each user, private to him (0700), holds one file for each object::

    <sha256 of URL and identity>                the object's bytes, then a line of JSON that says what they are
    <sha256 of URL and identity>.<bytes>.part   the same on its way, locked by who fetches it
    lock                                        held while room is made

So another version of an object is another file, and what a process reads is whole or absent. Files are opened for each
read: nobody holds them, so room that is made is free at once, at the cost of some microseconds.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from ..errors import ConfigError
from .filelock import FileLock
from .storage import fsync_folder, os_failure

__all__ = ["IDLE_SECONDS", "Cache", "CacheEntry", "CacheItem", "Fetched", "MismatchError"]

#: An object that was read within so many seconds is in use.
IDLE_SECONDS = 10.0

_PIECE = 1 << 23
_SMALL = 1 << 18
_ENTRY = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[0-9a-f]{64}\.([0-9]{1,18})\.part")
_LOCK = "lock"
_MOST_FOOTER = 1 << 16


class MismatchError(Exception):
    """An object whose bytes are not those that its index states.

    Args:
        found: SHA-256 of what was fetched.
    """

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


class Fetched(Enum):
    """What became of an object that was to be fetched."""

    STORED = "it is in the cache now"
    BUSY = "somebody else is fetching it"
    NO_ROOM = "it is larger than what the cache may hold beside what is in use or on its way"


@dataclass(frozen=True, slots=True)
class CacheItem:
    """One version of one object.

    Args:
        url: where it lies.
        identity: what its storage says of it.
        size: bytes.
        sha256: of its bytes, where an index states it.
    """

    url: str
    identity: str
    size: int
    sha256: str | None = None

    @property
    def name(self) -> str:
        """Name of its file: 64 hexadecimal digits."""
        return hashlib.sha256(f"{self.url}\0{self.identity}".encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def footer(self) -> bytes:
        """The line behind its bytes."""
        return b"\n" + json.dumps({"url": self.url, "identity": self.identity, "bytes": self.size}).encode() + b"\n"

    @property
    def stored_bytes(self) -> int:
        """Bytes of its file."""
        return self.size + len(self.footer)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An object that the cache holds.

    Args:
        url: where it came from; "" if its file is damaged.
        size: bytes of its file.
        used: seconds since 1970 when it was read last.
        path: of its file.
    """

    url: str
    size: int
    used: float
    path: Path


class Cache:
    """The cached objects of one user in one folder; any number of processes may use it.

    Args:
        folder: that holds the files.
        limit: bytes of all files together; None: half of what is free on the disk and held already.
        idle_seconds: how long an object was not read when it may go. Were objects in use to go, a set that is larger
            than the cache and shuffled as a whole would be fetched again and again.
    """

    def __init__(self, folder: str, limit: int | None = None, idle_seconds: float = IDLE_SECONDS) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self.idle_seconds = idle_seconds

    def __reduce__(self) -> tuple[type["Cache"], tuple[str, int | None, float]]:
        return Cache, (str(self.folder), self.limit, self.idle_seconds)

    @classmethod
    def make(
        cls,
        place: str | os.PathLike[str] | None = None,
        limit: int | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> Self:
        """Open a cache, creating its folder.

        Args:
            place: the folder in which this user's folder is made; default ``~/.cache/headrace``.
            limit: bytes of all files together, above 0; default: half of what is free on that disk, with what the
                cache holds already.
            idle_seconds: how long an object was not read when it may go.

        Raises:
            ConfigError: the limit is not above 0, there is no home folder, or the folder belongs to somebody else or is
                open to others.
            ShardError, MissingDataError: it cannot be created.
        """
        if limit is not None and limit < 1:
            raise ConfigError(f"cache_bytes must be above 0, or 0 for no cache, got {limit}")
        try:
            above = Path("~/.cache/headrace" if place is None else place).expanduser().absolute()
        except RuntimeError as error:
            raise ConfigError(f"no home folder for a cache ({error}): pass cache_dir=, or cache_bytes=0") from error
        folder = above / f"headrace-{os.geteuid()}"
        try:
            above.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            state = folder.lstat()
        except OSError as error:
            doing = f"making the cache {folder} (choose another place with cache_dir=, or none with cache_bytes=0)"
            raise os_failure(error, doing) from error
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
            raise ConfigError(
                f"the cache {folder} must be a folder of this user that nobody else may enter (mode 0700): remove it, "
                "or choose another place with cache_dir="
            )
        return cls(str(folder), limit, idle_seconds)

    def read(self, item: CacheItem, offset: int, length: int) -> bytes | None:
        """Return exactly these bytes of an object, or None if it is not here.

        Raises:
            ShardError: it is here and cannot be read.
        """
        try:
            descriptor = self._open(item)
            if descriptor is None:
                return None
            try:
                data = os.pread(descriptor, length, offset)
                while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
                    data += more
            finally:
                os.close(descriptor)
        except OSError as error:
            raise os_failure(error, f"reading {item.url} in the cache {self.folder}") from error
        return data if len(data) == length else None

    def recall(self, url: str, identity: str) -> bytes | None:
        """Return a whole object whose size is not known, or None if it is not here.

        Raises:
            ShardError: it is here and cannot be read.
        """
        path = self.path(CacheItem(url, identity, 0))
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise os_failure(error, f"reading {url} in the cache {self.folder}") from error
        size = len(data) - len(CacheItem(url, identity, 0).footer)
        for item in (CacheItem(url, identity, size - digits) for digits in range(20)):  # it states its own size
            if item.size >= 0 and data[item.size :] == item.footer:
                return data[: item.size]
        return None

    def forget(self, url: str, identity: str) -> None:
        """Remove an object, if it is here.

        Raises:
            OSError: it cannot be removed.
        """
        self.path(CacheItem(url, identity, 0)).unlink(missing_ok=True)

    def has(self, item: CacheItem) -> bool:
        """Whether an object is here."""
        return self.read(item, 0, 0) is not None

    def path(self, item: CacheItem) -> Path:
        """Return where the file of an object lies, or would lie."""
        return self.folder / item.name

    def _open(self, item: CacheItem) -> int | None:
        try:
            descriptor = os.open(self.path(item), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        if os.fstat(descriptor).st_size != item.stored_bytes:  # a disk that lost its end, or someone's hand
            os.close(descriptor)
            self.path(item).unlink(missing_ok=True)
            return None
        os.utime(descriptor)
        return descriptor

    def fetch(self, item: CacheItem, read: Callable[[int, int], bytes]) -> Fetched:
        """Fetch an object, unless it is here or on its way.

        What a killed process had fetched of it is used if a checksum will tell whether it is right.

        Args:
            item: the object.
            read: ``read(offset, length)`` returns exactly these bytes of it.

        Raises:
            MismatchError: its bytes do not have its checksum.
            OSError: the disk is full, or cannot be written.
            Exception: what ``read`` raises.
        """
        part = self._begin(item)
        if isinstance(part, Fetched):
            return part
        try:
            _download(item, part.descriptor, read)
            os.fsync(part.descriptor)
            part.path.replace(self.path(item))
            fsync_folder(self.folder)
        finally:
            part.remove()  # nothing to remove if it was renamed
        return Fetched.STORED

    def _begin(self, item: CacheItem) -> "FileLock | Fetched":
        """Return the locked file that an object is fetched into, room having been made for it, or why there is none."""
        with self._locked():
            part = FileLock.acquire(self.folder / f"{item.name}.{item.stored_bytes}.part")
            if part is None:
                return Fetched.BUSY
            try:
                outcome = Fetched.STORED if self.has(item) else self._make_room(item, part.path)
            except BaseException:
                part.remove()
                raise
            if outcome is not None:
                part.remove()
        return outcome or part

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder: parts begin, and are looked for, one process at a time."""
        lock = FileLock.acquire(self.folder / _LOCK, wait=True)
        assert lock is not None  # noqa: S101 - it was waited for
        try:
            yield
        finally:
            lock.release()

    def _make_room(self, item: CacheItem, own: Path) -> Fetched | None:
        """Remove what was not used for the longest time until an object fits; return ``NO_ROOM`` if it cannot."""
        on_their_way, orphans = self._parts(own)
        files, newest = list(self._files()), time.time() - self.idle_seconds
        idle = [entry for entry in files if entry.used <= newest]
        idle.sort(key=lambda entry: (entry.size < _SMALL, entry.used))  # small ones last: they free next to nothing
        held = sum(entry.size for entry in [*files, *orphans])
        excess = item.stored_bytes + on_their_way + held - self._limit(held)
        if excess > sum(entry.size for entry in [*orphans, *idle]):
            return Fetched.NO_ROOM
        for entry in [*orphans, *idle]:
            if excess <= 0:
                break
            excess -= _drop(entry)
        return None

    def _limit(self, held: int) -> int:
        if self.limit is not None:
            return self.limit
        disk = os.statvfs(self.folder)
        return (disk.f_bavail * disk.f_frsize + held) // 2

    def _parts(self, own: Path | None = None) -> tuple[int, list[CacheEntry]]:
        """Return the bytes that others will have written, and what killed processes left."""
        total, orphans = 0, []
        for path in self.folder.iterdir():
            match = _PART.fullmatch(path.name)
            if match is None or path == own:
                continue
            lock = FileLock.acquire(path)
            if lock is None:
                total += int(match[1])
            else:
                state = os.fstat(lock.descriptor)
                orphans.append(CacheEntry("", state.st_size, state.st_mtime, path))
                lock.release()
        return total, orphans

    def _files(self) -> Iterator[CacheEntry]:
        """Go through the files, without looking into them."""
        for path in self.folder.iterdir():
            if _ENTRY.fullmatch(path.name):
                with suppress(FileNotFoundError):  # removed meanwhile
                    state = path.lstat()
                    yield CacheEntry("", state.st_size, state.st_mtime, path)

    def entries(self) -> list[CacheEntry]:
        """Return what the cache holds, used last first.

        Raises:
            ShardError, MissingDataError: the folder cannot be read.
        """
        try:
            found = [CacheEntry(_url_of(entry.path), entry.size, entry.used, entry.path) for entry in self._files()]
        except OSError as error:
            raise os_failure(error, f"reading the cache {self.folder}") from error
        return sorted(found, key=lambda entry: -entry.used)

    def clear(self) -> tuple[int, int]:
        """Remove all objects that nobody is fetching, and nothing else; return their number and bytes.

        Raises:
            ShardError, MissingDataError: they cannot be removed.
        """
        try:
            with self._locked():
                found = [*self._files(), *self._parts()[1]]
                for entry in found:
                    _drop(entry)
        except OSError as error:
            raise os_failure(error, f"clearing the cache {self.folder}") from error
        return len(found), sum(entry.size for entry in found)


def _drop(entry: CacheEntry) -> int:
    """Remove a file, unless somebody has begun to fetch into it again; return the bytes that this has freed."""
    if _ENTRY.fullmatch(entry.path.name):
        entry.path.unlink(missing_ok=True)
        return entry.size
    lock = FileLock.acquire(entry.path)
    if lock is None:
        return 0
    lock.remove()
    return entry.size


def _download(item: CacheItem, descriptor: int, read: Callable[[int, int], bytes]) -> None:
    """Write an object's bytes, and its footer, into its file."""
    sha256, start = hashlib.sha256(), 0
    if item.sha256 is not None:
        start = min(os.fstat(descriptor).st_size, item.size) // _PIECE * _PIECE
        for offset in range(0, start, _PIECE):
            sha256.update(os.pread(descriptor, _PIECE, offset))
    os.ftruncate(descriptor, start)
    for offset in range(start, item.size, _PIECE):
        data = read(offset, min(_PIECE, item.size - offset))
        sha256.update(data)
        _write(descriptor, data, offset)
    if item.sha256 not in (None, sha256.hexdigest()):
        raise MismatchError(sha256.hexdigest())
    _write(descriptor, item.footer, item.size)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _url_of(path: Path) -> str:
    """Return the URL in the footer of a file, or "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_FOOTER))
            line = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        url = json.loads(line)["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return url if isinstance(url, str) else ""
