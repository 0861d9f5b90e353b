"""Where bytes lie: the one seam between the package and disks or object stores.

Everything above this file names data by path and asks for ranges; nothing above it opens a file of a dataset.
"""

import errno
import hashlib
import os
import resource
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias

from ..errors import ConfigError, MissingDataError, ShardError
from .filelock import FileLock

__all__ = [
    "MAX_FILE_BYTES",
    "ByteRange",
    "LocalStorage",
    "Location",
    "Readable",
    "Storage",
    "affordable_descriptors",
    "as_locations",
    "fsync_folder",
    "local_path",
    "os_failure",
    "read_file",
    "sha256_of",
    "without_secrets",
]

#: One location, or several whose samples follow one another.
Location: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

#: Path, offset and length in bytes.
ByteRange: TypeAlias = tuple[str, int, int]

#: The largest file that is read as one sample: more than any image has, less than a disk image or a sparse file.
MAX_FILE_BYTES = 1 << 30

_PIECE = 1 << 23

#: Paths that nothing can lie at.
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}

_REMEDIES = {
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "change the permissions, or choose another place",
    errno.EPERM: "change the permissions, or choose another place",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.ENOLCK: "mount the file system with locks, or choose another place",
    errno.ENOSYS: "mount the file system with locks, or choose another place",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class Readable(Protocol):
    """An open file: the same bytes whatever is put in its place, but it may be cut."""

    @property
    def size(self) -> int:
        """Bytes, when it was opened."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from byte ``offset``.

        Raises:
            ShardError: the file ends before, or cannot be read.
        """


class Storage(Protocol):
    """A place that holds files. Paths are plain strings with ``/``; what they mean is the storage's own business.

    An implementation pickles small, opens what it needs on first use in each process, survives a fork, and may be used
    by several threads.
    """

    @property
    def concurrency(self) -> int:
        """Reads that are worth making at the same time: 1 where each takes next to no time."""

    def size(self, path: str) -> int:
        """Return the bytes of a file.

        Raises:
            MissingDataError: there is no such file.
            ShardError: it cannot be opened.
        """

    def identity(self, path: str) -> str:
        """Return a text that changes when the file is replaced by another one."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from byte ``offset``.

        Raises:
            MissingDataError: there is no such file.
            ShardError: it ends before, or cannot be read.
        """

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read several ranges, at the same time where that is worth it; see ``read``."""

    def open(self, path: str) -> Readable:
        """Return a file, open as long as what is returned is kept.

        Raises:
            MissingDataError: there is no such file.
            ShardError: it cannot be opened.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, in no order.

        Raises:
            MissingDataError: there is no such folder.
        """

    def write_atomic(self, path: str, data: bytes) -> None:
        """Create or replace a file: whoever reads it sees all of the old bytes or all of the new ones.

        Raises:
            ShardError: it cannot be written; the old file is as it was.
        """


def as_locations(location: Location) -> list[str]:
    """Return what a user gave (one location or several) as a list of strings.

    Raises:
        ConfigError: it is empty.
    """
    several = [location] if isinstance(location, (str, os.PathLike)) else list(location)
    if not several or not all(os.fspath(one) for one in several):
        raise ConfigError(f"location must be a path or a list of paths, got {location!r}")
    return [os.fspath(one) for one in several]


def local_path(location: str | os.PathLike[str]) -> str:
    """Return the absolute path of a location; the one rule for all that is read or written.

    Args:
        location: a local path, or ``file://`` followed by an absolute path. ``~`` and ``~user`` at its beginning are
            home folders; a folder that is called ``~`` is ``./~``.

    Raises:
        ConfigError: the location is not local.
        MissingDataError: the path is relative, and the current folder is gone.

    Example:
        >>> local_path("file:///data/train"), local_path("/data/~")
        ('/data/train', '/data/~')
    """
    path = os.fspath(location)
    scheme, separator, rest = path.partition("://")
    if separator and scheme == "file" and rest.startswith("/"):
        path, separator = rest, ""
    if separator or path.startswith("pipe:"):
        raise ConfigError(
            f"{without_secrets(path)!r} is not local: a local path, or file:// followed by one, is wanted here; only "
            "shards are read from other places"
        )
    if "\0" in path:
        raise ConfigError(f"{path!r} is no path: it holds a zero byte")
    # Absolute, since a worker may have another current folder; "x/.." stays, since x may be a symbolic link.
    try:
        found = Path(os.path.expanduser(path))  # noqa: PTH111 - Path drops "./" and fails for "~nobody"
        return str(found if found.is_absolute() else Path.cwd() / found)
    except FileNotFoundError as error:
        raise os_failure(error, f"looking for the current folder, which {path} is relative to") from error


def without_secrets(url: str) -> str:
    """Return a location as it may be shown: without what stands before ``@``, and without a query.

    Example:
        >>> without_secrets("https://me:word@host/x.tar?signature=1")
        'https://host/x.tar'
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def affordable_descriptors(most: int) -> int:
    """Return ``most``, or a quarter of the files that this process may open where that is less."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, limit // 4))


class _OpenFile:
    """A descriptor that is closed when the last one who reads through it lets it go, whatever the cache does."""

    __slots__ = ("fd", "identity", "path", "size")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        state = os.fstat(fd)
        self.size = state.st_size
        self.identity = f"{state.st_size}-{state.st_mtime_ns}-{state.st_ino}"

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from byte ``offset``."""
        try:
            data = os.pread(self.fd, length, offset)
            while len(data) < length and (more := os.pread(self.fd, length - len(data), offset + len(data))):
                data += more  # one call returns 2 GiB at most
        except OSError as error:
            raise os_failure(error, f"reading {length} bytes at byte {offset} of {self.path}") from error
        except MemoryError as error:
            raise ShardError(f"no memory for {length} bytes at byte {offset} of {self.path}") from error
        if len(data) < length:
            raise ShardError(
                f"{self.path} ends too early: asked for bytes {offset} to {offset + length}, found {len(data)} of "
                f"{length} bytes: the file was cut, so copy it again"
            )
        return data

    def __del__(self) -> None:
        os.close(self.fd)


class LocalStorage:
    """Files of this machine, read with ``pread``: no file position, so threads and forks share descriptors safely.

    At most ``max_open`` files stay open, the least recently used one is closed first.

    Args:
        max_open: default: 64, or a quarter of this process's limit where that is less.
    """

    concurrency = 1

    def __init__(self, max_open: int | None = None) -> None:
        self.max_open = max_open or affordable_descriptors(64)
        self._file = lru_cache(self.max_open)(_open)

    def __reduce__(self) -> tuple[type["LocalStorage"], tuple[int]]:
        return LocalStorage, (self.max_open,)

    def size(self, path: str) -> int:
        """Return the bytes of a file, as it was when this storage opened it."""
        return self._file(path).size

    def identity(self, path: str) -> str:
        """Return size, time of last change and inode of the file."""
        return self._file(path).identity

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from byte ``offset``."""
        return self._file(path).read(offset, length)

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read several ranges."""
        return [self.read(path, offset, length) for path, offset, length in ranges]

    def open(self, path: str) -> Readable:
        """Return a file, open as long as what is returned is kept."""
        return self._file(path)

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, in no order."""
        try:
            with os.scandir(folder or ".") as entries:
                return [entry.name for entry in entries]
        except OSError as error:
            raise os_failure(error, f"listing {folder}") from error

    def write_atomic(self, path: str, data: bytes) -> None:
        """Create or replace a file: written under a temporary name, flushed to the disk, renamed.

        What a killed writer left under that name is written over; a living one is waited for.
        """
        target = Path(path)
        try:
            _replace(target, data)
            fsync_folder(target.parent)
        except OSError as error:
            raise os_failure(error, f"writing {path}") from error
        self._file.cache_clear()  # it may hold the file that was replaced


def _replace(target: Path, data: bytes) -> None:
    lock = FileLock.acquire(target.with_name(f".{target.name}.tmp"), wait=True)
    assert lock is not None  # noqa: S101 - it was waited for
    try:
        os.ftruncate(lock.descriptor, 0)
        with open(lock.descriptor, "wb", buffering=0, closefd=False) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(lock.descriptor)
        lock.path.replace(target)
    except BaseException:
        with suppress(OSError):  # it must not hide what went wrong
            lock.remove()
        raise
    finally:
        lock.release()


def _open(path: str) -> _OpenFile:
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise os_failure(error, f"opening {path}") from error
    file = _OpenFile(path, fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise MissingDataError(f"opening {path}: expected a file, found a folder or a device")
    return file


def read_file(path: str) -> bytes:
    """Return a whole file of a reasonable size.

    Raises:
        MissingDataError: there is no such file.
        ShardError: it cannot be read, or has more than ``MAX_FILE_BYTES``.
    """
    file = _open(path)
    if file.size > MAX_FILE_BYTES:
        raise ShardError(f"{path} has {file.size} bytes: one sample may have {MAX_FILE_BYTES}, so leave it out")
    return file.read(0, file.size)


def fsync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush a folder's entries to the disk: after this a rename in it survives a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def os_failure(error: OSError, doing: str) -> MissingDataError | ShardError:
    """Return the package's own error for one of the operating system.

    Args:
        error: what the system said.
        doing: what was tried, with the path: "reading 10 bytes of a/b.tar".
    """
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _NOWHERE:
        return MissingDataError(f"{doing}: {reason}: check the path")
    remedy = _REMEDIES.get(error.errno or 0)
    return ShardError(f"{doing}: {reason}: {remedy}" if remedy else f"{doing}: {reason}")


def sha256_of(file: Readable) -> str:
    """Return the SHA-256 of a whole file, 64 hexadecimal digits; reads it piece by piece."""
    sha256 = hashlib.sha256()
    for offset in range(0, file.size, _PIECE):
        sha256.update(file.read(offset, min(_PIECE, file.size - offset)))
    return sha256.hexdigest()
