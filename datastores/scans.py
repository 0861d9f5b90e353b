"""Headers of many tars: walked at the same time where each look takes long, and remembered where there is a cache."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ..errors import ShardError
from .cache import Cache, CacheItem
from .index import ScannedShard, scan_shard
from .storage import Storage

__all__ = ["scan_shards"]


def scan_shards(storage: Storage, paths: Sequence[str], cache: Cache | None = None) -> Iterator[ScannedShard]:
    """Scan tars, in the order of ``paths``; see ``index.scan_shard``.

    Args:
        storage: where they lie.
        paths: of the tars.
        cache: where what was found is kept, for the same version of each tar; None: nowhere.

    Raises:
        MissingDataError, ShardError, DuplicateKeyError: as ``scan_shard``.
    """
    scan = partial(_scan, storage, cache)
    if storage.concurrency == 1:
        yield from map(scan, paths)
    else:
        with ThreadPoolExecutor(min(storage.concurrency, max(1, len(paths)))) as pool:
            yield from pool.map(scan, paths)  # an error, or the end of whoever asks, cancels what has not begun


def _scan(storage: Storage, cache: Cache | None, path: str) -> ScannedShard:
    if cache is None:
        return scan_shard(storage, path)
    place, identity = f"{path}#headers", storage.identity(path)
    known = cache.recall(place, identity)
    if known is not None:
        try:
            return ScannedShard.unpack(known, place)
        except ShardError:
            pass  # it is made again, and replaces what is damaged
    scanned = scan_shard(storage, path)
    data = scanned.pack()
    try:
        cache.forget(place, identity)
        cache.fetch(CacheItem(place, identity, len(data)), lambda offset, length: data[offset : offset + length])
    except OSError as error:
        sys.stderr.write(
            f"headrace: what the headers of {path} say is not put into the cache {cache.folder} ({error})\n"
        )
    return scanned
