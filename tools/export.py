"""``headrace export``: shards become files again, in folders of their classes; every byte stays what it is.

A sample's key is its path: ``a/cat/001`` of class cat becomes ``a/cat/001.jpg``. If the last folder of a key is not
the class, the class's folder is put in there, so that ``headrace build`` finds the same classes. Fields other than the
class lie beside the image: ``a/cat/001.json``. What was percent-encoded is decoded, unless it would lead out of the
folder.

The files appear under a temporary name beside DEST, which becomes DEST when all are there.
"""

import argparse
import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ..errors import ConfigError, DestinationError, DuplicateKeyError, HeadraceError
from .progress import Progress, show_bytes, show_count

if TYPE_CHECKING:
    from ..datastores.shards import ShardReader

__all__ = ["add_arguments", "run", "safe_path"]

_LONGEST_NAME = 255  # bytes of one part of a path, on all usual file systems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("location", metavar="URL", nargs="+", help="folder, tar or pattern of shards")
    parser.add_argument("destination", metavar="DEST", help="new or empty folder for the files")
    parser.add_argument("--fields", metavar="A,B", help="write these fields only (default: all)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    """Write the files; print how many there are."""
    from ..datastores.shards import ShardReader
    from ..datastores.storage import local_path, os_failure

    with Progress("headrace export: scanning", None, "shards", quiet=options.quiet) as progress:
        shards = ShardReader(options.location, on_scan=progress.advance)
    wanted = None if options.fields is None else set(options.fields.lower().split(","))
    if wanted is not None and wanted - set(shards.index.fields):
        unknown = min(wanted - set(shards.index.fields))
        raise ConfigError(f"there is no field {unknown!r}: the shards have {', '.join(shards.index.fields)}")
    destination = Path(local_path(options.destination))
    try:
        _check(destination)
        done = _export(shards, destination, wanted, quiet=options.quiet)
    except HeadraceError:
        raise
    except OSError as error:
        raise os_failure(error, f"writing {error.filename or destination}") from error
    _print(done, len(shards), destination, as_json=options.json)
    return 0


@dataclass(slots=True)
class _Done:
    """What was written."""

    files: int = 0
    bytes: int = 0
    classes: Counter[str] = field(default_factory=Counter)


def _check(destination: Path) -> None:
    if destination.is_symlink() and not destination.exists():
        raise DestinationError(f"{destination} is a link to nowhere: name a new folder")
    if destination.exists() and not destination.is_dir():
        raise DestinationError(f"{destination} is a file: name a new folder")
    if destination.exists() and any(destination.iterdir()):
        raise DestinationError(f"{destination} is not empty: name a new or empty folder")


def _export(shards: "ShardReader", destination: Path, wanted: set[str] | None, *, quiet: bool) -> _Done:
    """Write all files beside the destination, and put them in its place."""
    from ..datastores.filelock import FileLock
    from ..datastores.storage import fsync_folder

    destination = Path(os.path.realpath(destination))  # what a link names is replaced, not the link
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.headrace-export")
    lock = FileLock.acquire(partial.with_name(f"{partial.name}.lock"))
    if lock is None:
        raise DestinationError(f"{destination} is being written by another export: wait for it, or name another folder")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
        partial.mkdir()
        with Progress("headrace export", len(shards), "samples", quiet=quiet) as progress:
            done = _write_all(shards, partial, wanted, progress)
        os.sync()  # all files at once: one after the other would take a thousand times as long
        partial.rename(destination)
        fsync_folder(destination.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock.remove()
    return done


def _write_all(shards: "ShardReader", folder: Path, wanted: set[str] | None, progress: Progress) -> _Done:
    done, made = _Done(), set[Path]()
    names = shards.index.classes
    for index in range(len(shards)):
        fields = shards.raw(index)
        label = _class_of(fields, names)
        path = safe_path(shards.key(index), label)
        if label is not None:
            done.classes[label] += 1
            fields.pop("cls")
        for name, data in fields.items():
            if wanted is None or name in wanted:
                target = folder / f"{path}.{name}"
                if target.parent not in made:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    made.add(target.parent)
                _write(target, data, shards.locate(index))
                done.files += 1
                done.bytes += len(data)
        progress.advance()
    return done


def _write(path: Path, data: bytes, where: str) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError as error:
        raise DuplicateKeyError(
            f"{where}: another sample has the same path, {path.name}: give it another key"
        ) from error


def _class_of(fields: dict[str, bytes], names: tuple[str, ...]) -> str | None:
    """Return the name of a sample's class, its number where classes have no names, or None without a label."""
    text = fields.get("cls", b"").strip()
    if not (text.isdigit() and len(text) < 10):
        return None
    if not names:
        return str(int(text))
    return names[int(text)] if int(text) < len(names) else None


def safe_path(key: str, label: str | None) -> str:
    """Return the path of a sample, relative to the destination, without extension.

    Args:
        key: as stored.
        label: name of its class, which becomes its last folder; None for none.

    Example:
        >>> safe_path("a/cat/no%2E%201", "cat"), safe_path("a/2", "cat"), safe_path("../%2E%2E/etc/x", None)
        ('a/cat/no. 1', 'a/cat/2', '%2E%2E/%2E%2E/etc/x')
    """
    from ..datastores.keys import encode_key

    stored = encode_key(key, is_quoted=True)  # a key of somebody's tar may be anything
    plain = unquote(stored, errors="surrogateescape")
    *folders, base = (plain if _is_safe(plain) else stored).split("/")
    if label is not None and (not folders or folders[-1] != label):
        folders.append(label if _is_safe(label) and "/" not in label else encode_key(label).replace("/", "%2F"))
    return "/".join([*folders, base])


def _is_safe(path: str) -> bool:
    """Whether a path leads to a file below the folder that it starts from, on any usual file system."""
    parts = path.split("/")
    return "\0" not in path and all(
        part not in ("", ".", "..") and len(os.fsencode(part)) <= _LONGEST_NAME for part in parts
    )


def _print(done: _Done, samples: int, destination: Path, *, as_json: bool) -> None:
    if as_json:
        counts = {"samples": samples, "files": done.files, "bytes": done.bytes, "classes": dict(done.classes)}
        print(json.dumps({"destination": str(destination), **counts}, indent=1))
        return
    count = len(done.classes)
    folders = f", {show_count(count, 'class', 'classes')}" if count else ""
    files = show_count(done.files, "file")
    print(f"{show_count(samples, 'sample')} in {files} ({show_bytes(done.bytes)}{folders}): {destination}")
