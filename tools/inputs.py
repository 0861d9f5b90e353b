"""What ``headrace build`` reads: each kind of source is a list of items, described but not read.

A folder of images, a manifest (``manifest.py``) and WebDataset tars have the same members (``Input``), so shuffling,
splitting, writing and reporting know nothing of where samples come from.
"""

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from ..errors import ConfigError, DuplicateKeyError
from .progress import show_count
from .samples import FilePart, Item

if TYPE_CHECKING:
    from ..datastores.image import ImageDatastore
    from ..datastores.schema import IntArray
    from ..datastores.shards import ShardReader
    from ..datastores.storage import Storage

__all__ = ["FolderInput", "Input", "ShardInput", "check_keys"]


class Input(Protocol):
    """Samples that can be built."""

    storage: "Storage"  # where the pieces of all items lie

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by label; empty where there are none."""

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides about the items."""

    @property
    def passed_over(self) -> dict[str, int]:
        """Reason -> number of files or members that are no samples."""

    @property
    def bad(self) -> list[tuple[str, str]]:
        """(Name, reason) of what should be a sample and cannot be one."""

    def __len__(self) -> int:
        """Return the number of items."""

    def key(self, index: int) -> str:
        """Return the key of an item."""

    def item(self, index: int) -> Item:
        """Return an item."""

    def labels(self) -> "IntArray":
        """Return the label of every item, int64 (n,).

        Raises:
            ConfigError: there are none.
        """


class FolderInput:
    """Image files in folders; the key of each is its path without the extension.

    Args:
        images: the files.
        keep_extensions: let keys keep them.
    """

    def __init__(self, images: "ImageDatastore", *, keep_extensions: bool) -> None:
        from ..datastores.listing import EMPTY_FILE
        from ..datastores.storage import LocalStorage

        self.images = images
        self.keep_extensions = keep_extensions
        self.storage: Storage = LocalStorage()
        self.classes = images.classes
        self.fingerprint = images.fingerprint
        self.passed_over = images.skipped
        self.passed_over.pop(EMPTY_FILE, None)  # these are images by name, so they are listed one by one
        self.bad = [(name, f"{images.root}/{name} is empty") for name in images.empty_files]

    def __len__(self) -> int:
        return len(self.images)

    def key(self, index: int) -> str:
        """Return the path relative to the root, without its extension unless that is kept."""
        path = self.images.key(index)
        return path if self.keep_extensions else path.rpartition(".")[0]

    def item(self, index: int) -> Item:
        """Return one file, and its class if there are classes."""
        import numpy as np

        name, path = self.images.key(index), self.images.locate(index)
        fields: list[tuple[str, bytes | FilePart]] = [(name.rpartition(".")[2].lower(), FilePart(path))]
        if self.classes:
            fields.append(("cls", b"%d" % self.images.labels_of(np.array([index]))[0]))
        return Item(self.key(index), name, path, tuple(fields))

    def labels(self) -> "IntArray":
        """Return the class number of every file."""
        return self.images.labels


class ShardInput:
    """Samples of tars; what they hold passes as it is.

    Hard links are read where they lead to. Symbolic links, devices and folders are no samples; names that lead out of a
    folder become keys that do not (``keys.py``).

    Args:
        shards: the tars.
        fields: those that are kept; None for all.
    """

    def __init__(self, shards: "ShardReader", fields: tuple[str, ...] | None = None) -> None:
        unknown = sorted(set(fields or ()) - set(shards.index.fields))
        if unknown:
            raise ConfigError(f"there is no field {unknown[0]!r}: the shards have {', '.join(shards.index.fields)}")
        self.shards = shards
        self.fields = fields
        self.storage = shards.storage
        self.classes = shards.index.classes if fields is None or "cls" in fields else ()
        self.fingerprint = hashlib.sha256(repr((shards.index.fingerprint, self.classes, fields)).encode()).hexdigest()
        self.passed_over: dict[str, int] = dict(shards.catalog.skipped)
        self.bad: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self.shards)

    def key(self, index: int) -> str:
        """Return the key as stored."""
        return self.shards.key(index)

    def item(self, index: int) -> Item:
        """Return one sample."""
        shard, row = self.shards.place(index)
        spans = zip(shard.table.fields, shard.table.spans_of([row])[0], strict=True)
        fields = tuple(
            (name, FilePart(shard.path, *span))
            for name, span in spans
            if span is not None and (self.fields is None or name in self.fields)
        )
        key = shard.table.key(row)
        return Item(key, key, shard.where(row), fields, is_checked=False, is_quoted=True)

    def labels(self) -> "IntArray":
        """Read the labels of all samples.

        Raises:
            ConfigError: a sample has none.
        """
        import numpy as np

        labels = np.empty(len(self), np.int64)
        for index in range(len(self)):
            shard, row = self.shards.place(index)
            column = shard.columns.get("cls")
            span = None if column is None else shard.table.spans_of([row])[0][column]
            text = b"" if span is None else self.shards.read(shard, [span])[0].strip()
            if not (text.isdigit() and len(text) < 10):
                raise ConfigError(f"{shard.where(row)} has no label (a number in the field 'cls'), found {text[:40]!r}")
            labels[index] = int(text)
        return labels


def check_keys(source: Input) -> None:
    """Refuse samples that would get one key, before anything is written; 8 bytes of memory a key.

    Raises:
        DuplicateKeyError: there are such; the first few are named.
    """
    import numpy as np

    from ..datastores.keys import key_digest

    digests = np.empty(len(source), np.uint64)
    for index in range(len(source)):
        digests[index] = int.from_bytes(key_digest(source.key(index))[:8], "little")
    ordered = np.sort(digests)
    suspects = np.flatnonzero(np.isin(digests, ordered[1:][ordered[1:] == ordered[:-1]]))
    first: dict[str, str] = {}
    counts, twins = Counter[str](), list[str]()
    for index in suspects.tolist():
        item = source.item(index)
        counts[item.key] += 1
        known = first.setdefault(item.key, item.name)
        if counts[item.key] == 2:
            twins.append(f"{known} and {item.name}" if known != item.name else f"{item.where} a second time")
    if twins:
        shown = "; ".join(twins[:10]) + ("; ..." if len(twins) > 10 else "")
        raise DuplicateKeyError(
            f"{show_count(len(twins), 'pair')} of samples would get one key: {shown}: rename them, number all samples "
            "with --rekey, or let keys keep files' extensions with --keep-extensions"
        )
