"""``headrace index``: shards that somebody else made get an index, so that opening them reads no tar.

Only headers are read, unless ``--checksums`` asks for the SHA-256 of every shard.
"""

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import ConfigError, DestinationError, MissingDataError, ShardError
from .progress import Progress, show_bytes, show_count

if TYPE_CHECKING:
    from ..datastores.index import Index
    from ..datastores.shards import ShardReader
    from ..datastores.storage import Storage

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("location", metavar="URL", help="folder with shards (*.tar)")
    parser.add_argument("--checksums", action="store_true", help="read every shard and note its SHA-256")
    parser.add_argument("--force", action="store_true", help="replace an index that does not fit the shards")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    """Scan the shards, write the index beside them, print what it holds."""
    from ..datastores.shards import ShardReader

    with Progress("headrace index", None, "shards", quiet=options.quiet) as progress:
        shards = ShardReader(options.location, "scan", on_scan=progress.advance)
    folder = _folder(shards)
    old = _old_index(shards.storage, folder, force=options.force)
    index = _with_checksums(shards, options) if options.checksums else shards.index
    if old is not None:
        index = _merged(folder, old, index, force=options.force)
    _publish(shards, folder, index)
    _print_summary(shards, folder, options, changed=index != old)
    return 0


def _folder(shards: "ShardReader") -> str:
    """Return the one folder that all shards lie in, having made sure that it holds no others."""
    places = [file.path.rpartition("/") for file in shards.catalog.files]
    folders = {folder for folder, _, _ in places}
    if len(folders) > 1:
        raise ConfigError(f"the shards lie in {len(folders)} folders: index one folder after the other")
    folder = folders.pop()
    tars = {name for name in shards.storage.names(folder) if name.endswith(".tar") and not name.startswith(".")}
    others = sorted(tars - {name for _, _, name in places})
    if others:
        raise ConfigError(f"{folder} holds more shards ({others[0]}): an index is for all of them, so name the folder")
    return folder


def _old_index(storage: "Storage", folder: str, *, force: bool) -> "Index | None":
    from ..datastores.catalog import load_index

    try:
        return load_index(storage, folder)
    except ShardError:
        if force:
            return None
        raise


def _merged(folder: str, old: "Index", new: "Index", *, force: bool) -> "Index":
    """Return ``new`` with what only the old index knows: class names, and checksums if it is right about the rest."""
    if _agree(old, new):
        pairs = zip(old.entries, new.entries, strict=True)
        entries = tuple(replace(entry, sha256=entry.sha256 or known.sha256) for known, entry in pairs)
        return replace(new, entries=entries, classes=old.classes, class_samples=old.class_samples)
    if not force:
        samples, shards = show_count(len(old), "sample"), show_count(len(old.entries), "shard")
        raise DestinationError(
            f"{folder} has an index of other contents ({samples} in {shards}; the tars "
            f"have {len(new):,} in {len(new.entries)}): replace it with --force"
        )
    return replace(new, classes=old.classes)


def _agree(old: "Index", new: "Index") -> bool:
    return len(old.entries) == len(new.entries) and all(
        replace(a, sha256=None) == replace(b, sha256=None) and (None in (a.sha256, b.sha256) or a.sha256 == b.sha256)
        for a, b in zip(old.entries, new.entries, strict=True)
    )


def _with_checksums(shards: "ShardReader", options: argparse.Namespace) -> "Index":
    from ..datastores.storage import sha256_of

    entries = []
    with Progress("headrace index: checksums", len(shards.index.entries), "shards", quiet=options.quiet) as progress:
        for entry, file in zip(shards.index.entries, shards.catalog.files, strict=True):
            entries.append(replace(entry, sha256=sha256_of(shards.storage.open(file.path))))
            progress.advance()
    return replace(shards.index, entries=tuple(entries))


def _publish(shards: "ShardReader", folder: str, index: "Index") -> None:
    """Write the offset tables that are missing or other ones, then the index."""
    from ..datastores.index import INDEX_NAME
    from ..datastores.offsets import SUFFIX
    from ..datastores.storage import LocalStorage

    storage = shards.storage
    for file in shards.catalog.files:
        table = LocalStorage(1).open(file.table)  # where the tables of scanned shards lie
        _write_if_other(storage, file.path + SUFFIX, table.read(0, table.size))
    _write_if_other(storage, f"{folder}/{INDEX_NAME}", index.pack())


def _write_if_other(storage: "Storage", path: str, data: bytes) -> None:
    try:
        old = storage.open(path)
        if old.size == len(data) and old.read(0, old.size) == data:
            return
    except MissingDataError:
        pass  # the usual case: there is none yet
    try:
        storage.write_atomic(path, data)
    except (ShardError, MissingDataError) as error:
        folder = path.rpartition("/")[0]
        raise type(error)(f"{error}; the shards open without an index too, or copy {folder} and index that") from error


def _print_summary(shards: "ShardReader", folder: str, options: argparse.Namespace, *, changed: bool) -> None:
    index, skipped = shards.index, shards.catalog.skipped
    total = sum(entry.size for entry in index.entries)
    if options.json:
        counts = {"shards": len(index.entries), "samples": len(index), "bytes": total, "fields": index.fields}
        print(json.dumps({"folder": folder, **counts, "passed_over": skipped, "changed": changed}, indent=1))
        return
    state = "indexed" if changed else "indexed before, and unchanged since"
    samples, tars = show_count(len(index), "sample"), show_count(len(index.entries), "shard")
    print(f"{samples} in {tars} ({show_bytes(total)}) {state}: {folder}\nfields: {', '.join(index.fields)}")
    if skipped and not options.quiet:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(skipped.items()))
        print(f"headrace index: passed over ({reasons})", file=sys.stderr)
