"""Object stores and web servers as a ``Storage``: asked again where that may help, and never wrong.

fsspec stands behind it, for its clients know how to log in. They are made in each process on first use, so nothing of
them is pickled or used across a fork.
"""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import ConfigError, ShardError
from .failures import failure_of
from .http import HttpTransport
from .locks import ProcessLock
from .s3 import S3Transport
from .storage import ByteRange, Readable
from .transport import CommonTransport, Stat, Transport, load_filesystem

__all__ = ["RemoteOptions", "RemoteStorage", "Retry", "scheme_of"]

T = TypeVar("T")

_PIECE = 1 << 23  # one request; what a broken connection costs at most
_HELD = 1 << 24  # files up to this size are read at once when they are opened: indexes and their tables
_STATS = 4096  # objects whose size and mark are remembered
_ANONYMOUS: dict[str, dict[str, Any]] = {
    "s3": {"anon": True},
    "s3a": {"anon": True},
    "gs": {"token": "anon"},
    "gcs": {"token": "anon"},
    "az": {"anon": True},
    "abfs": {"anon": True},
    "http": {},
    "https": {},
}


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a remote place is asked for something.

    Between two attempts lies a pause that doubles each time, of which a random part is left out so that many processes
    do not come back at once (the "full jitter" of exponential backoff, halved).

    Args:
        attempts: requests for one piece, at least 1.
        timeout: seconds that each may take, above 0.
        pause: seconds before the second attempt, at least 0.
        longest_pause: seconds.

    Raises:
        ConfigError: a number that cannot work.
    """

    attempts: int = 6
    timeout: float = 60.0
    pause: float = 0.25
    longest_pause: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or not self.timeout > 0 or not 0 <= self.pause <= self.longest_pause:
            raise ConfigError(
                "Retry needs attempts of at least 1, timeout above 0 and 0 <= pause <= longest_pause, got "
                f"{self.attempts}, {self.timeout}, {self.pause} and {self.longest_pause}"
            )

    def wait(self, attempt: int) -> None:
        """Wait behind attempt number ``attempt``, which failed; the first is 1."""
        longest = min(self.longest_pause, self.pause * 2.0 ** (attempt - 1))
        # A generator of its own: the user's stays where it is.
        time.sleep(random.SystemRandom().uniform(longest / 2, longest))


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How remote places are reached.

    Args:
        anonymous: send no credentials.
        storage_options: arguments of fsspec's file system for the scheme, such as ``endpoint_url`` or ``headers``.
        retry: how long they are asked.
    """

    anonymous: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # it may hold a password
    retry: Retry = Retry()

    def filesystem_options(self, scheme: str) -> dict[str, Any]:
        """Return the arguments of fsspec's file system.

        Raises:
            ConfigError: it is not known how to be anonymous there.
        """
        if not self.anonymous:
            return dict(self.storage_options)
        if scheme not in _ANONYMOUS:
            raise ConfigError(f"anonymous=True is not known for {scheme}://: say it with storage_options=")
        return {**_ANONYMOUS[scheme], **self.storage_options}


def scheme_of(path: str) -> str:
    """Return what stands before ``://``, in lower case; "" for a local path."""
    scheme, separator, _ = path.partition("://")
    return scheme.lower() if separator else ""


class RemoteStorage:
    """Objects of one scheme. Paths are whole URLs, without user names, queries and fragments.

    Args:
        scheme: "s3", "https" and the like.
        options: how they are reached.

    Raises:
        ConfigError: fsspec does not know the scheme, or a package is missing.
    """

    concurrency = 16

    def __init__(self, scheme: str, options: RemoteOptions | None = None) -> None:
        self.scheme = scheme
        self.options = options or RemoteOptions()
        self._filesystem = load_filesystem(scheme)
        self._arguments = self.options.filesystem_options(scheme)
        self._lock = ProcessLock()
        self._owner = 0
        self._transport: Transport | None = None
        self._inherited: list[Transport] = []
        self._stats: dict[str, Stat] = {}

    def __reduce__(self) -> tuple[type["RemoteStorage"], tuple[str, RemoteOptions]]:
        return RemoteStorage, (self.scheme, self.options)

    def size(self, path: str) -> int:
        """Return the bytes of an object, as it was when this storage first saw it."""
        return self._stat(path).size

    def identity(self, path: str) -> str:
        """Return size and ETag, or size and time, of an object as it was when this storage first saw it."""
        return self._stat(path).identity

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from byte ``offset``, asked for piece by piece."""
        stat = self._stat(path)
        found = max(0, min(length, stat.size - offset))
        if found < length:
            raise ShardError(
                f"{path} ends too early: asked for bytes {offset} to {offset + length}, found {found} of {length} "
                "bytes: the object was cut, so copy it again"
            )
        starts = range(offset, offset + length, _PIECE)
        return b"".join([self._piece(path, start, min(_PIECE, offset + length - start), stat) for start in starts])

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read several ranges at the same time."""
        if len(ranges) < 2:
            return [self.read(path, offset, length) for path, offset, length in ranges]
        with ThreadPoolExecutor(min(self.concurrency, len(ranges))) as pool:  # costs far less than one answer takes
            return list(pool.map(self.read, *zip(*ranges, strict=True)))

    def open(self, path: str) -> Readable:
        """Return an object; all its bytes are of the version that was found first."""
        stat = self._stat(path)
        if stat.size > _HELD:
            return _RemoteFile(self, path, stat.size)
        return _HeldFile(path, self.read(path, 0, stat.size))

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, in no order."""
        return self._ask(f"listing {folder}", lambda transport: transport.names(folder))

    def write_atomic(self, path: str, data: bytes) -> None:
        """Create or replace an object."""
        self._ask(f"writing {path}", lambda transport: transport.write(path, data))
        self._stats.pop(path, None)

    def _stat(self, path: str) -> Stat:
        stat = self._stats.get(path)
        if stat is None:
            stat = self._ask(f"opening {path}", lambda transport: transport.stat(path))
            while len(self._stats) >= _STATS:
                self._stats.pop(next(iter(list(self._stats))), None)  # a copy: other threads add to it
            self._stats[path] = stat
        return stat

    def _piece(self, path: str, offset: int, length: int, stat: Stat) -> bytes:
        doing = f"reading {length} bytes at byte {offset} of {path}"
        return self._ask(doing, lambda transport: transport.read(path, offset, length, stat))

    def _ask(self, doing: str, ask: Callable[[Transport], T]) -> T:
        attempt = 1
        while True:
            try:
                return ask(self._own_transport())
            except (ConfigError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - libraries raise what they like; failure_of sorts it
                failure = failure_of(error, self.scheme)
            if not failure.again or attempt >= self.options.retry.attempts:
                raise failure.error(doing, attempt)
            self.options.retry.wait(attempt)
            attempt += 1

    def _own_transport(self) -> Transport:
        """Return the transport of this process; one that a fork brought along is kept, and never touched."""
        with self._lock:
            if self._transport is None or self._owner != os.getpid():
                if self._transport is not None:
                    self._inherited.append(self._transport)
                self._transport, self._owner = self._make_transport(), os.getpid()
            return self._transport

    def _make_transport(self) -> Transport:
        if self.scheme in ("http", "https"):
            return HttpTransport(self._filesystem, self._arguments, self.options.retry.timeout)
        if self.scheme in ("s3", "s3a"):
            return S3Transport(self._filesystem, self._arguments, self.options.retry.timeout)
        return CommonTransport(self._filesystem, self._arguments)


@dataclass(frozen=True, slots=True)
class _HeldFile:
    """A small object, read at once."""

    path: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        data = self.data[offset : offset + length]
        if len(data) < length:
            raise ShardError(
                f"{self.path} ends too early: asked for bytes {offset} to {offset + length}, found {len(data)} of "
                f"{length} bytes: the object was cut, so copy it again"
            )
        return data


@dataclass(frozen=True, slots=True)
class _RemoteFile:
    """A large object, read range by range."""

    storage: RemoteStorage
    path: str
    size: int

    def read(self, offset: int, length: int) -> bytes:
        return self.storage.read(self.path, offset, length)
