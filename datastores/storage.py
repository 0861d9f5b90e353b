"""Where bytes lie: the one seam between the package and disks or object stores.

Everything above this file names data by path and asks for ranges; nothing above it opens a file of a dataset.
"""

import hashlib
import mmap
import os
import resource
import secrets
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias

from ..errors import ConfigError, MissingDataError, ShardError

__all__ = [
    "Buffer",
    "LocalStorage",
    "Location",
    "Storage",
    "affordable_descriptors",
    "as_locations",
    "fsync_folder",
    "open_storage",
    "os_failure",
    "sha256_of",
]

#: One location, or several whose samples follow one another.
Location: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

#: A whole file in memory, or mapped.
Buffer: TypeAlias = "mmap.mmap | bytes"


_PIECE = 1 << 23


class Storage(Protocol):
    """A place that holds files. Paths are plain strings with ``/``; what they mean is the storage's own business.

    An implementation pickles small, opens what it needs on first use in each process, and survives a fork.
    """

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

    def map(self, path: str) -> Buffer:
        """Return a whole file as a read-only buffer; at best without reading it now."""

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


def open_storage(locations: Sequence[str]) -> tuple[Storage, list[str]]:
    """Return the storage that serves these locations, and their paths in it.

    Args:
        locations: local paths (``~`` is the home folder), or ``file://`` followed by an absolute path.

    Raises:
        ConfigError: a location is of a kind that this version cannot read.
    """
    return LocalStorage(), [_local_path(location) for location in locations]


def _local_path(location: str) -> str:
    scheme, separator, rest = location.partition("://")
    if separator and scheme == "file" and rest.startswith("/"):
        location, separator = rest, ""
    if separator or location.startswith("pipe:"):
        raise ConfigError(
            f"{location!r} is not local: this version reads local paths and file:// only, so copy the shards to a disk"
        )
    # Absolute, since a worker may have another current folder; "x/.." stays, since x may be a symbolic link.
    return str(Path.cwd() / Path(location).expanduser())


def affordable_descriptors(most: int) -> int:
    """Return ``most``, or a quarter of the files that this process may open where that is less."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else max(1, min(most, limit // 4))


class _OpenFile:
    """A descriptor that is closed when the last one who reads through it lets it go, whatever the cache does."""

    __slots__ = ("fd", "identity", "size")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        state = os.fstat(fd)
        self.size = state.st_size
        self.identity = f"{state.st_size}-{state.st_mtime_ns}-{state.st_ino}"

    def __del__(self) -> None:
        os.close(self.fd)


class LocalStorage:
    """Files of this machine, read with ``pread``: no file position, so threads and forks share descriptors safely.

    At most ``max_open`` files stay open, the least recently used one is closed first.

    Args:
        max_open: default: 64, or a quarter of this process's limit where that is less.
    """

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
        file = self._file(path)
        try:
            data = os.pread(file.fd, length, offset)
            while len(data) < length and (more := os.pread(file.fd, length - len(data), offset + len(data))):
                data += more  # one call returns 2 GiB at most
        except OSError as error:
            raise os_failure(error, f"reading {length} bytes at byte {offset} of {path}") from error
        if len(data) < length:
            raise ShardError(
                f"{path} ends too early: asked for bytes {offset} to {offset + length}, found {len(data)} of "
                f"{length} bytes: the file was cut, so copy it again"
            )
        return data

    def map(self, path: str) -> Buffer:
        """Return a whole file, memory-mapped, so that all processes share one copy."""
        file = self._file(path)
        return mmap.mmap(file.fd, 0, access=mmap.ACCESS_READ) if file.size else b""

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, in no order."""
        try:
            with os.scandir(folder or ".") as entries:
                return [entry.name for entry in entries]
        except OSError as error:
            raise os_failure(error, f"listing {folder}") from error

    def write_atomic(self, path: str, data: bytes) -> None:
        """Create or replace a file: written under a temporary name, flushed to the disk, renamed."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            fsync_folder(target.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise os_failure(error, f"writing {path}") from error
        self._file.cache_clear()  # it may hold the file that was replaced


def _open(path: str) -> _OpenFile:
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise os_failure(error, f"opening {path}") from error
    file = _OpenFile(fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise MissingDataError(f"opening {path}: expected a file, found a folder or a device")
    return file


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
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return MissingDataError(f"{doing}: {reason}: check the path")
    return ShardError(f"{doing}: {reason}")


def sha256_of(storage: Storage, path: str) -> str:
    """Return the SHA-256 of a whole file, 64 hexadecimal digits; reads it piece by piece."""
    sha256, size = hashlib.sha256(), storage.size(path)
    for offset in range(0, size, _PIECE):
        sha256.update(storage.read(path, offset, min(_PIECE, size - offset)))
    return sha256.hexdigest()
