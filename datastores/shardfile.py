"""One shard while it is written, and when it is full."""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .index import ShardEntry
from .offsets import SUFFIX, TableBuilder
from .staging import write_synced
from .storage import os_failure
from .tar import BLOCK, END, padding, ustar_header

__all__ = ["DEFAULT_SHARD_BYTES", "ShardFile", "ShardLimit", "sample_bytes"]

#: Large enough to be read in one stream from a disk or a bucket, small enough for thousands of shards a terabyte.
DEFAULT_SHARD_BYTES = 256 * 2**20

_BUFFER_BYTES = 1 << 20
_MAX_PIECES = 900  # one writev takes 1024 at most


@dataclass(frozen=True, slots=True)
class ShardLimit:
    """When a shard is closed.

    Args:
        size: before it would grow beyond this many bytes; ``DEFAULT_SHARD_BYTES`` where nothing else is given.
        samples: when it has this many samples.

    Raises:
        ConfigError: one of them is below 1.

    Example:
        >>> ShardLimit(samples=2).is_full(4096, 2, 1024)
        True
    """

    size: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.size is None and self.samples is None:
            object.__setattr__(self, "size", DEFAULT_SHARD_BYTES)
        if any(limit is not None and limit < 1 for limit in (self.size, self.samples)):
            raise ConfigError(f"shard size must be at least 1, got {self.size} bytes, {self.samples} samples")

    def is_full(self, size: int, samples: int, more: int) -> bool:
        """Whether a shard of so many bytes and samples is closed before a sample of ``more`` bytes is written."""
        return (self.size is not None and size + more + len(END) > self.size) or samples == self.samples


def sample_bytes(fields: Mapping[str, bytes]) -> int:
    """Return the bytes that a sample takes in a tar."""
    return sum(BLOCK + len(data) + padding(len(data)) for data in fields.values())


class ShardFile:
    """One tar while it is written: its bytes, their SHA-256, its offset table, and what its index line needs.

    Args:
        path: of the tar; its table is written beside it.

    Raises:
        ShardError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        #: Class number -> samples, as the caller counts them.
        self.labels = Counter[int]()
        #: What the caller did to keys.
        self.encoded_keys = 0
        self.shortened_keys: dict[str, str] = {}
        self._sha256 = hashlib.sha256()
        self._table = TableBuilder(path.name)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        try:
            self._file = path.open("xb", buffering=0)  # large payloads need no copy into a buffer
        except OSError as error:
            raise os_failure(error, f"creating {path}") from error

    def __len__(self) -> int:
        return len(self._table)

    def add(self, key: str, fields: Sequence[tuple[str, bytes]]) -> None:
        """Append the fields of a sample."""
        for name, data in fields:
            header = ustar_header(f"{key}.{name}", len(data))
            self._table.put(key, name, self.size + BLOCK, len(data))
            self._put(header, data, bytes(padding(len(data))))

    def _put(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._sha256.update(piece)
            self._pending_bytes += len(piece)
            self.size += len(piece)
        self._pending.extend(pieces)
        if self._pending_bytes >= _BUFFER_BYTES or len(self._pending) > _MAX_PIECES:
            self._flush()

    def _flush(self) -> None:
        try:
            written = os.writev(self._file.fileno(), self._pending) if self._pending else 0
            if written < self._pending_bytes:  # a disk that is nearly full, or more than 2 GiB at once
                rest = memoryview(b"".join(self._pending))[written:]
                while rest:
                    rest = rest[os.write(self._file.fileno(), rest) :]
        except OSError as error:
            raise os_failure(error, f"writing {self.path} near byte {self.size}") from error
        self._pending, self._pending_bytes = [], 0

    def finish(self) -> ShardEntry:
        """End the tar, flush it and its table to the disk, and return its line for an index."""
        self._put(END)
        self._flush()
        packed = self._table.table(self.size).pack()
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            write_synced(self.path.with_name(self.path.name + SUFFIX), packed)
        except OSError as error:
            raise os_failure(error, f"writing {self.path}") from error
        digest = hashlib.sha256(packed).hexdigest()
        return ShardEntry(self.path.name, self.size, len(self), digest, self._sha256.hexdigest())

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()
