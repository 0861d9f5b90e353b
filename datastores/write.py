"""Samples in, shards out: plain ustar WebDataset tars with an index, byte-reproducible, published as a whole.

Each shard gets its SHA-256 and its offset table while it is written; nothing is read back.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import ConfigError, DestinationError, DuplicateKeyError, MissingDataError, SampleError
from .index import INDEX_NAME, Index, ShardEntry
from .journal import JOURNAL_NAME, FinishedShard, Journal, read_journal
from .keys import encode_key, fit_key, key_digest
from .offsets import SUFFIX, OffsetTable
from .shardfile import ShardFile, ShardLimit, sample_bytes
from .staging import Staging, write_synced
from .storage import LocalStorage, local_path, os_failure

__all__ = ["ShardWriter", "check_sample"]

_FIELD = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,47}")


class ShardWriter:
    """Writes samples into ``shard-000000.tar`` and so on, and publishes them with their index when it is closed.

    The same samples in the same order with the same options give the same bytes. Members have time 0, owner 0 and
    mode 0644, fields are sorted, and keys that readers could misread are encoded (``keys.py``). Leaving the ``with``
    block by an exception discards everything; after a kill the destination holds no index, and the next writer removes
    the remains. About 100 bytes of memory are kept per key, to refuse a second one.

    With a ``plan`` the finished shards are written down in a journal. Then a signal, a full disk or a dead worker leave
    them behind, as a kill does, and a writer with ``resume`` goes on behind them: the caller, who writes the same
    samples again from the place that the last of ``notes`` names, gets the bytes of an unbroken build.

    Args:
        destination: a folder that does not exist or is empty (see ``storage.local_path``).
        shard_bytes: a shard is closed before it would grow beyond this many bytes, headers included; default 256 MiB
            where ``shard_samples`` is not given. A larger sample gets a shard of its own.
        shard_samples: a shard is closed when it has this many samples.
        classes: class names; then each sample's "cls" field must be a position in this list.
        plan: digest of all that decides about the bytes: samples, order, options.
        note: called for each finished shard, before the sample that did not fit into it counts as written; what it
            returns (JSON) is kept with the shard.
        resume: go on with what a build of the same plan left; where there is nothing, begin.
        on_kept: called after each shard of that build was compared with its checksums.

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
        plan: str | None = None,
        note: Callable[[], Any] | None = None,
        resume: bool = False,
        on_kept: Callable[[], object] | None = None,
    ) -> None:
        if resume and plan is None:
            raise ConfigError("a build can only be continued by its plan: pass plan=")
        self.limit = ShardLimit(shard_bytes, shard_samples)
        self.classes = Index((), (), tuple(classes)).classes  # refuses now what could not be published later
        #: Of all finished shards: number of keys with percent-encoded characters.
        self.encoded_keys = 0
        #: Of all finished shards: stored key -> original, where the original was too long.
        self.shortened_keys: dict[str, str] = {}
        #: What ``note`` returned for the shards of the build that is continued.
        self.notes: list[Any] = []
        #: Whether finished shards were left behind for a build that goes on with them.
        self.is_suspended = False
        self._note = note
        self._labels = Counter[int]()
        self._digests: set[bytes] = set()
        self._entries: list[ShardEntry] = []
        self._fields: set[str] = set()
        self._shard: ShardFile | None = None
        self._index: Index | None = None
        self._journal: Journal | None = None
        self._staging = Staging(_folder(destination), keep=resume)
        if plan is not None:
            try:
                self._open_journal(plan, resume, on_kept)
            except BaseException as error:
                if resume or isinstance(error, DestinationError):
                    self._staging.suspend()
                else:
                    self._staging.discard()
                raise

    def _open_journal(self, plan: str, resume: bool, on_kept: Callable[[], object] | None) -> None:
        """Take over what is intact of an unfinished build, remove the rest, and begin a journal."""
        folder, kept = self._staging.folder, list[FinishedShard]()
        for shard in read_journal(folder, plan) if resume else ():
            if not shard.is_intact(folder):
                break
            kept.append(shard)
            self._take_over(shard)
            if on_kept is not None:
                on_kept()
        names = {shard.entry.name for shard in kept}
        self._staging.keep_only(names | {name + SUFFIX for name in names} | {JOURNAL_NAME})
        try:
            self._journal = Journal(folder, plan, kept)
        except OSError as error:
            raise os_failure(error, f"writing the journal in {folder}") from error

    def _take_over(self, shard: FinishedShard) -> None:
        """Count a shard that another writer has finished."""
        path = str(self._staging.path(shard.entry.name)) + SUFFIX
        table = OffsetTable.open(LocalStorage(1).open(path), path)
        self._digests.update(key_digest(table.key(row)) for row in range(len(table)))
        self._fields.update(table.fields)
        self._count(shard)
        self.notes.append(shard.note)

    def _count(self, shard: FinishedShard) -> None:
        self._entries.append(shard.entry)
        self._labels += shard.labels
        self.encoded_keys += shard.encoded_keys
        self.shortened_keys |= shard.shortened_keys

    @property
    def class_samples(self) -> tuple[int, ...]:
        """Samples of each class in the shards that are finished; empty without classes."""
        return tuple(self._labels[label] for label in range(len(self.classes)))

    @property
    def samples(self) -> int:
        """Samples in the shards that are finished."""
        return sum(entry.samples for entry in self._entries)

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
        names, label = check_sample(key, fields, self.classes)
        encoded = encode_key(key, is_quoted=is_quoted)
        stored = fit_key(encoded, max(names, key=len))
        digest = key_digest(stored)
        if digest in self._digests:
            raise DuplicateKeyError(f"key {key!r} was written before: keys must be unique in the whole set of shards")
        shard = self._shard_for(sample_bytes(fields))  # from here on the sample counts, for the new shard
        shard.add(stored, [(name, fields[name]) for name in names])
        self._digests.add(digest)
        self._fields.update(names)
        shard.encoded_keys += encoded != key
        if label is not None:
            shard.labels[label] += 1
        if stored != encoded:
            shard.shortened_keys[stored] = key
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
            index = Index(tuple(self._entries), tuple(sorted(self._fields)), self.classes, self.class_samples)
            self.attach(INDEX_NAME, index.pack())
            self._staging.publish()
        except BaseException as error:
            self._give_up(error)
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
        if error is None:
            self.close()
        else:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Leave finished shards for a build that goes on, unless the samples themselves are at fault."""
        if self._index is not None or self.is_suspended:
            return
        is_input = isinstance(error, (ConfigError, DuplicateKeyError, SampleError, MissingDataError))
        if self._journal is None or not self._entries or is_input:
            self.discard()
            return
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        self._staging.suspend()
        self.is_suspended = True

    def _shard_for(self, more: int) -> ShardFile:
        """Return the shard that the next sample, of so many bytes, goes into."""
        if self._shard is not None and self.limit.is_full(self._shard.size, len(self._shard), more):
            self._finish_shard()
        if self._shard is None:
            self._shard = ShardFile(self._staging.path(f"shard-{len(self._entries):06d}.tar"))
        return self._shard

    def _finish_shard(self) -> None:
        shard = self._shard
        if shard is None:
            return
        entry = shard.finish()
        self._shard = None
        note = None if self._note is None else self._note()
        finished = FinishedShard(entry, shard.labels, shard.encoded_keys, shard.shortened_keys, note)
        if self._journal is not None:
            self._journal.add(finished)
        self._count(finished)


def check_sample(key: str, fields: Mapping[str, bytes], classes: Sequence[str]) -> tuple[list[str], int | None]:
    """Return a sample's field names, sorted, and its label; without classes there is none.

    Raises:
        ConfigError: a field name or the label cannot be stored.
    """
    names = sorted(fields)
    if not names:
        raise ConfigError(f"sample {key!r} has no fields")
    for name in names:
        if not _FIELD.fullmatch(name):
            raise ConfigError(
                f"sample {key!r} has the field name {name!r}: use at most 48 of a-z, 0-9, '_', '.', '-', and begin "
                "with none of the last two"
            )
    if not classes:
        return names, None
    text = fields.get("cls", b"")
    if not (text.isdigit() and len(text) < 10 and int(text) < len(classes)):
        raise ConfigError(f"sample {key!r} has the label {text!r}: there are classes 0 to {len(classes) - 1}")
    return names, int(text)


def _folder(destination: str | os.PathLike[str]) -> Path:
    folder = Path(local_path(destination))
    if folder.name.endswith(".tar"):
        raise ConfigError(f"{folder} would be opened as one tar: name a folder that does not end in .tar")
    return folder
