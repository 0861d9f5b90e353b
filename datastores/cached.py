"""Remote shards read through the cache: what is not there yet is read by ranges, and fetched meanwhile.

So the first batch waits for the bytes of its samples only, and a reader never waits for a whole shard. Threads of each
process fetch what it reads from; the cache sees to it that no two processes fetch the same.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from ..errors import HeadraceError, ShardError
from .cache import Cache, CacheItem, Fetched, MismatchError
from .remote import RemoteStorage
from .storage import ByteRange, Readable

__all__ = ["CachedStorage"]

_THREADS = 2  # objects that a process fetches at a time
_FULL_SECONDS = 2.0  # until room is looked for again


class CachedStorage:
    """A remote storage whose shards and offset tables are read from the cache where they are in it.

    Args:
        origin: where they lie.
        cache: where copies lie.
        shards: path of each shard -> its SHA-256, None where no index states it.
        tables: the same of the offset tables.
    """

    def __init__(
        self, origin: RemoteStorage, cache: Cache, shards: Mapping[str, str | None], tables: Mapping[str, str | None]
    ) -> None:
        self.origin = origin
        self.cache = cache
        self.shards = shards
        self.tables = tables
        self._fetcher: _Fetcher | None = None

    @property
    def concurrency(self) -> int:
        """Reads that are worth making at the same time."""
        return self.origin.concurrency

    def __reduce__(self) -> tuple[type["CachedStorage"], tuple[object, ...]]:
        return CachedStorage, (self.origin, self.cache, self.shards, self.tables)

    def size(self, path: str) -> int:
        """Return the bytes of an object."""
        return self.origin.size(path)

    def identity(self, path: str) -> str:
        """Return size and ETag, or size and time, of an object."""
        return self.origin.identity(path)

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, in no order."""
        return self.origin.names(folder)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Create or replace an object."""
        self.origin.write_atomic(path, data)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from byte ``offset``."""
        data = self._copied(path, offset, length)
        return self.origin.read(path, offset, length) if data is None else data

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Read several ranges, those that are not in the cache at the same time."""
        copied = [self._copied(*one) for one in ranges]
        absent = [one for one, data in zip(ranges, copied, strict=True) if data is None]
        found = iter(self.origin.read_many(absent))
        return [next(found) if data is None else data for data in copied]

    def _copied(self, path: str, offset: int, length: int) -> bytes | None:
        """Return bytes of a shard from the cache, or None if it is not there; then it is wished for."""
        if path not in self.shards or offset + length > self.origin.size(path):
            return None
        item = self._item(path, self.shards[path])
        data = self.cache.read(item, offset, length)
        if data is None:
            self._own_fetcher().want(item)
        return data

    def open(self, path: str) -> Readable:
        """Return an object; an offset table comes out of the cache, and is put there first."""
        if path in self.tables:
            item = self._item(path, self.tables[path])
            if self.cache.has(item) or self._own_fetcher().fetch(item):
                return _Table(self, path, item)
        return self.origin.open(path)

    def _item(self, path: str, sha256: str | None) -> CacheItem:
        return CacheItem(path, self.origin.identity(path), self.origin.size(path), sha256)

    def _own_fetcher(self) -> "_Fetcher":
        """Return the fetcher of this process: a fork inherits no threads."""
        if self._fetcher is None or self._fetcher.owner != os.getpid():
            self._fetcher = _Fetcher(self.origin, self.cache)
        return self._fetcher


class _Table:
    """An offset table in the cache; where room was made of it, it is read once more and held in memory."""

    def __init__(self, storage: CachedStorage, path: str, item: CacheItem) -> None:
        self.size = item.size
        self._storage = storage
        self._path = path
        self._item = item
        self._held: Readable | None = None

    def read(self, offset: int, length: int) -> bytes:
        if self._held is None and offset + length <= self.size:
            data = self._storage.cache.read(self._item, offset, length)
            if data is not None:
                return data
        if self._held is None:
            self._held = self._storage.origin.open(self._path)
        return self._held.read(offset, length)


class _Fetcher:
    """Fills the cache, in threads that begin with the first wish and end with the process.

    Args:
        origin: where objects are fetched.
        cache: where they are put.
    """

    def __init__(self, origin: RemoteStorage, cache: Cache) -> None:
        self.owner = os.getpid()
        self._origin = origin
        self._cache = cache
        self._wishes: queue.SimpleQueue[CacheItem] = queue.SimpleQueue()
        self._wanted: set[str] = set()
        self._full: dict[str, float] = {}  # URL -> when there may be room for it
        self._wrong: dict[str, ShardError] = {}
        self._threads = 0
        self._is_off = False

    def want(self, item: CacheItem) -> None:
        """Have an object fetched soon.

        Raises:
            ShardError: it was fetched twice, and was not what its index states.
        """
        if item.url in self._wrong:
            raise self._wrong[item.url]
        if self._is_off or item.url in self._wanted or self._full.get(item.url, 0.0) > time.monotonic():
            return
        self._wanted.add(item.url)
        self._wishes.put(item)
        if self._threads < _THREADS:
            self._threads += 1
            threading.Thread(target=self._serve, name="headrace-fetch", daemon=True).start()

    def _serve(self) -> None:
        while True:
            item = self._wishes.get()
            try:
                self.fetch(item)
            except ShardError as error:
                self._wrong[item.url] = error
            self._wanted.discard(item.url)

    def fetch(self, item: CacheItem) -> bool:
        """Put an object into the cache now; return whether it is there.

        Raises:
            ShardError: its bytes are not what its index states, also when it was fetched a second time.
        """
        if self._is_off:
            return False
        for last in (False, True):
            try:
                done = self._cache.fetch(item, partial(self._origin.read, item.url))
            except MismatchError as error:
                if last:
                    raise _wrong(item, error.found) from None
            except HeadraceError:
                return False  # whoever reads a range of it next meets the same, and says so
            except OSError as error:
                self._give_up(error)
                return False
            else:
                if done is Fetched.NO_ROOM:
                    self._full[item.url] = time.monotonic() + _FULL_SECONDS
                return done is Fetched.STORED
        return False

    def _give_up(self, error: OSError) -> None:
        self._is_off = True
        reason = os.strerror(error.errno) if error.errno else str(error)
        sys.stderr.write(
            f"headrace: nothing more is put into the cache {self._cache.folder} by process {self.owner} ({reason}); "
            "shards are read over the network\n"
        )


def _wrong(item: CacheItem, found: str) -> ShardError:
    return ShardError(
        f"{item.url} does not fit its index: the index states SHA-256 {item.sha256}, found {found}, twice: copy it "
        f"there again, or make the index again with `headrace index --force {item.url.rpartition('/')[0]}`"
    )
