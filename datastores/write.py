"""Samples in, shards out: plain ustar WebDataset tars with an index, byte-reproducible, published as a whole.

Each shard gets its SHA-256 and its offset table while it is written; nothing is read back.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import ConfigError, DuplicateKeyError
from .index import INDEX_NAME, Index, ShardEntry
from .keys import encode_key, fit_key, key_digest
from .offsets import SUFFIX, TableBuilder
from .staging import Staging, write_synced
from .storage import local_path, os_failure
from .tar import BLOCK, END, padding, ustar_header

__all__ = ["DEFAULT_SHARD_BYTES", "ShardLimit", "ShardWriter", "sample_bytes"]

#: Large enough to be read in one stream from a disk or a bucket, small enough for thousands of shards a terabyte.
DEFAULT_SHARD_BYTES = 256 * 2**20

_FIELD = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,47}")
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


class ShardWriter:
    """Writes samples into ``shard-000000.tar`` and so on, and publishes them with their index when it is closed.

    The same samples in the same order with the same options give the same bytes. Members have time 0, owner 0 and
    mode 0644, fields are sorted, and keys that readers could misread are encoded (``keys.py``). Leaving the ``with``
    block by an exception discards everything; after a kill the destination holds no index, and the next writer removes
    the remains. About 100 bytes of memory are kept per key, to refuse a second one.

    Args:
        destination: a folder that does not exist or is empty (see ``storage.local_path``).
        shard_bytes: a shard is closed before it would grow beyond this many bytes, headers included; default 256 MiB
            where ``shard_samples`` is not given. A larger sample gets a shard of its own.
        shard_samples: a shard is closed when it has this many samples.
        classes: class names; then each sample's "cls" field must be a position in this list.

    Raises:
        ConfigError: an option is out of range, or the destination has a name that would be opened as one tar.
        DestinationError: the destination holds something else; nothing was changed.
        ShardError: the destination cannot be written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with ShardWriter(folder.name, shard_samples=2) as writer:
        ...     for number in range(3):
        ...         key = writer.write(f"digit/{number}", {"txt": b"hello", "cls": b"0"})
        >>> [(shard.name, shard.samples) for shard in writer.index.entries]
        [('shard-000000.tar', 2), ('shard-000001.tar', 1)]
        >>> folder.cleanup()
    """

    def __init__(
        self,
        destination: str | os.PathLike[str],
        *,
        shard_bytes: int | None = None,
        shard_samples: int | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        self.limit = ShardLimit(shard_bytes, shard_samples)
        self.classes = Index((), (), tuple(classes)).classes  # refuses now what could not be published later
        #: Number of keys with percent-encoded characters.
        self.encoded_keys = 0
        #: Stored key -> original, where the original was too long.
        self.shortened_keys: dict[str, str] = {}
        self._class_samples = [0] * len(self.classes)
        self._digests: set[bytes] = set()
        self._entries: list[ShardEntry] = []
        self._fields: set[str] = set()
        self._shard: _ShardFile | None = None
        self._index: Index | None = None
        self._staging = Staging(_folder(destination))

    @property
    def index(self) -> Index:
        """The index of the published shards; it exists after ``close``."""
        if self._index is None:
            raise ConfigError("the shards are not published yet: close the writer first")
        return self._index

    def write(self, key: str, fields: Mapping[str, bytes], *, is_quoted: bool = False) -> str:
        """Append a sample.

        Args:
            key: its name, unique in the whole set; folders are separated by ``/``.
            fields: field name -> bytes, stored as they are. A name is like a file extension: lower case, "jpg", "cls".
            is_quoted: the key comes from a tar, so ``%`` in it stays what it is.

        Returns:
            The key as stored.

        Raises:
            ConfigError: a field name, a label or the key cannot be stored.
            DuplicateKeyError: the key was written before.
            ShardError: the shard cannot be written, for example because the disk is full.
        """
        names = self._checked_fields(key, fields)
        label = self._label(key, fields)
        stored = self._stored_key(encode_key(key, is_quoted=is_quoted), key, max(names, key=len))
        shard = self._shard_for(sample_bytes(fields))
        shard.add(stored, [(name, fields[name]) for name in names])
        self._fields.update(names)
        if label is not None:
            self._class_samples[label] += 1
        return stored

    def attach(self, name: str, data: bytes) -> None:
        """Publish a small file beside the shards, for example a report."""
        path = self._staging.path(name)
        try:
            write_synced(path, data)
        except OSError as error:
            raise os_failure(error, f"writing {path}") from error

    def finish(self) -> None:
        """Finish the last shard, without publishing anything: several sets can so be published close together.

        Raises:
            ConfigError: no sample was written.
            ShardError: the operating system failed.
        """
        self._finish_shard()
        if not self._entries:
            raise ConfigError(f"no samples were written: {self._staging.destination} is left as it was")

    def close(self) -> None:
        """Finish the last shard and publish all of them; the index comes last.

        Raises:
            ConfigError: no sample was written; nothing is published.
            ShardError: the operating system failed; nothing is published.
        """
        if self._index is not None:
            return
        try:
            self.finish()
            index = Index(tuple(self._entries), tuple(sorted(self._fields)), self.classes, tuple(self._class_samples))
            self.attach(INDEX_NAME, index.pack())
            self._staging.publish()
        except BaseException:
            self.discard()
            raise
        self._index = index

    def discard(self) -> None:
        """Give up: remove all that was written."""
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        self._staging.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _checked_fields(self, key: str, fields: Mapping[str, bytes]) -> list[str]:
        names = sorted(fields)
        if not names:
            raise ConfigError(f"sample {key!r} has no fields")
        for name in names:
            if not _FIELD.fullmatch(name):
                raise ConfigError(
                    f"sample {key!r} has the field name {name!r}: use at most 48 of a-z, 0-9, '_', '.', '-', and begin "
                    "with none of the last two"
                )
        return names

    def _label(self, key: str, fields: Mapping[str, bytes]) -> int | None:
        if not self.classes:
            return None
        text = fields.get("cls", b"")
        if not (text.isdigit() and len(text) < 10 and int(text) < len(self.classes)):
            raise ConfigError(f"sample {key!r} has the label {text!r}: there are classes 0 to {len(self.classes) - 1}")
        return int(text)

    def _stored_key(self, encoded: str, key: str, longest_field: str) -> str:
        stored = fit_key(encoded, longest_field)
        digest = key_digest(stored)
        if digest in self._digests:
            raise DuplicateKeyError(f"key {key!r} was written before: keys must be unique in the whole set of shards")
        self._digests.add(digest)
        self.encoded_keys += encoded != key
        if stored != encoded:
            self.shortened_keys[stored] = key
        return stored

    def _shard_for(self, more: int) -> "_ShardFile":
        """Return the shard that the next sample, of so many bytes, goes into."""
        if self._shard is not None and self.limit.is_full(self._shard.size, len(self._shard), more):
            self._finish_shard()
        if self._shard is None:
            self._shard = _ShardFile(self._staging.path(f"shard-{len(self._entries):06d}.tar"))
        return self._shard

    def _finish_shard(self) -> None:
        if self._shard is not None:
            self._entries.append(self._shard.finish())
            self._shard = None


def _folder(destination: str | os.PathLike[str]) -> Path:
    folder = Path(local_path(destination))
    if folder.name.endswith(".tar"):
        raise ConfigError(f"{folder} would be opened as one tar: name a folder that does not end in .tar")
    return folder


class _ShardFile:
    """One tar while it is written: its bytes, their SHA-256 and its offset table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
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
        self._file.close()
