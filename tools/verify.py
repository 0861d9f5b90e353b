"""``headrace verify``: is a set of shards whole, and what it says it is? Everything that is wrong is listed.

Compared are the headers of every tar, its offset table, its line in the index, its bytes with their checksum, its
labels with the classes, and the keys of all shards with each other; ``--deep`` decodes every image.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ..errors import MissingDataError
from .parallel import default_workers, in_order, parse_workers
from .progress import Progress, show_bytes, show_count

if TYPE_CHECKING:
    from ..datastores.check import Problem, ShardCheck, ShardSource
    from ..datastores.index import Index
    from ..datastores.storage import Storage

__all__ = ["add_arguments", "run"]

_CHUNK = 64  # images of a task: some seconds of the largest photos
_SHOWN_LABELS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("location", metavar="URL", nargs="+", help="folder, tar or pattern of shards")
    parser.add_argument("--deep", action="store_true", help="decode every image")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="write offset tables that are missing or damaged again, from tars that are as the index says",
    )
    parser.add_argument(
        "--workers", type=parse_workers, metavar="N", help="processes (default: one for each core; 0: none)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


@dataclass(slots=True)
class _Found:
    """What was found in all shards together."""

    shards: int = 0
    samples: int = 0
    bytes: int = 0
    without_checksum: int = 0
    without_index: int = 0
    images: int | None = None
    fields: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    problems: "list[Problem]" = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)


def run(options: argparse.Namespace) -> int:
    """Check the shards; print what they hold and all that is wrong; return 1 if anything is."""
    from ..datastores.catalog import list_shards
    from ..datastores.check import check_shard
    from ..datastores.index import Index
    from ..datastores.places import open_storage
    from ..datastores.storage import as_locations

    storage, paths = open_storage(as_locations(options.location))
    groups = list(list_shards(storage, paths))
    index = Index.concat([part or Index((), ()) for _, part, _ in groups])
    found = _Found()
    sources = [source for group in groups for source in _sources(storage, group, index, found)]
    workers = min(default_workers() if options.workers is None else options.workers, len(sources))
    checks: list[ShardCheck] = []
    with Progress("headrace verify", len(sources), "shards", quiet=options.quiet) as progress:
        for source, check in zip(sources, in_order(check_shard, sources, workers), strict=True):
            checks.append(check)
            _add(found, source, check, repair=options.repair)
            progress.advance()
    found.problems += _duplicates(sources, checks)
    _name_labels(found, checks, index)
    if options.deep:
        _decode(found, sources, checks, options)
    _print(found, options)
    return 1 if found.problems else 0


def _sources(
    storage: "Storage", group: "tuple[str, Index | None, list[str]]", whole: "Index", found: _Found
) -> "Iterator[ShardSource]":
    """Go through the shards of a folder; note those that its index does not know."""
    from ..datastores.catalog import load_index
    from ..datastores.check import Problem, ShardSource

    folder, part, paths = group
    entries = [None] * len(paths) if part is None else part.entries
    for path, entry in zip(paths, entries, strict=True):
        yield ShardSource(storage, path, entry, len(whole.classes))
    if part is not None and part == load_index(storage, folder):
        try:
            names = storage.names(folder)
        except MissingDataError:
            return  # many web servers list nothing, so there is no telling
        shown = {f"{folder}/{name}" for name in names if name.endswith(".tar") and not name.startswith(".")}
        for path in sorted(shown - set(paths)):
            reason = "the index of its folder does not know it: make it again with `headrace index --force`"
            found.problems.append(Problem("index", path, reason))


def _add(found: _Found, source: "ShardSource", check: "ShardCheck", *, repair: bool) -> None:
    found.shards += 1
    found.samples += check.samples
    found.bytes += check.size
    found.without_index += source.entry is None
    found.without_checksum += not check.has_checksum
    for total, more in ((found.fields, check.fields), (found.passed_over, check.passed_over)):
        for name, count in more.items():
            total[name] = total.get(name, 0) + count
    is_sound = not any(problem.kind == "checksum" for problem in check.problems)
    if repair and check.is_table_bad and is_sound:
        _write_table(source)
        found.repaired.append(source.path)
        found.problems += [problem for problem in check.problems if problem.kind != "table"]
    else:
        found.problems += check.problems


def _write_table(source: "ShardSource") -> None:
    from ..datastores.check import scanned
    from ..datastores.offsets import SUFFIX

    source.storage.write_atomic(source.path + SUFFIX, scanned(source.storage, source.path).pack())


def _duplicates(sources: "Sequence[ShardSource]", checks: "Sequence[ShardCheck]") -> "list[Problem]":
    """Find keys that stand in several shards; 8 bytes of memory a key, and the keys themselves only of the suspects."""
    import numpy as np

    from ..datastores.check import Problem, scanned

    digests = np.concatenate([check.key_digests for check in checks])
    starts = np.cumsum([0, *(check.samples for check in checks)])
    ordered = np.sort(digests)
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    problems: list[Problem] = []
    first: dict[str, str] = {}
    suspects = np.flatnonzero(np.isin(digests, twice)) if len(twice) else np.zeros(0, np.int64)
    for number in suspects.tolist():
        shard = int(np.searchsorted(starts, number, side="right")) - 1
        source = sources[shard]
        table = scanned(source.storage, source.path)
        row = number - int(starts[shard])
        key = table.key(row)
        known = first.setdefault(key, source.path)
        if known != source.path:
            offset = min(span[0] for span in table.spans_of([row])[0] if span is not None)
            problems.append(Problem("duplicate key", source.path, f"{known} has this key too", key, offset))
    return problems


def _name_labels(found: _Found, checks: "Sequence[ShardCheck]", index: "Index") -> None:
    """Count samples by class name, and compare with what the index says."""
    from ..datastores.check import Problem

    counts = sum((check.labels for check in checks), Counter[str]())
    if not index.classes:
        found.labels = {label: counts[label] for label in sorted(counts, key=int)}
        return
    found.labels = {name: counts[str(number)] for number, name in enumerate(index.classes)}
    if index.class_samples and not found.problems:
        for (name, count), stated in zip(found.labels.items(), index.class_samples, strict=True):
            if count != stated:
                reason = f"class {name!r} has {show_count(count, 'sample')}, the index says {stated}"
                found.problems.append(Problem("label", "all shards", reason))


def _decode(
    found: _Found, sources: "Sequence[ShardSource]", checks: "Sequence[ShardCheck]", options: argparse.Namespace
) -> None:
    from ..datastores.check import check_images

    tasks = [
        (source, start, min(start + _CHUNK, check.samples))
        for source, check in zip(sources, checks, strict=True)
        for start in range(0, check.samples, _CHUNK)
    ]
    workers = min(default_workers() if options.workers is None else options.workers, len(tasks))
    found.images = 0
    with Progress("headrace verify --deep", found.samples, "samples", quiet=options.quiet) as progress:
        for (_, start, stop), (count, problems) in zip(tasks, in_order(check_images, tasks, workers), strict=True):
            found.images += count
            found.problems += problems
            progress.advance(stop - start)


def _print(found: _Found, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"ok": not found.problems, **asdict(found)}, indent=1))
    else:
        for problem in found.problems:
            print(problem)
        for line in _lines(found):
            print(line)
    if found.problems:
        shards = len({problem.shard for problem in found.problems})
        wrong = show_count(len(found.problems), "problem")
        print(f"headrace verify: {wrong} in {shards} of {show_count(found.shards, 'shard')}", file=sys.stderr)


def _lines(found: _Found) -> Iterator[str]:
    images = "" if found.images is None else f", {show_count(found.images, 'image')} decoded"
    samples, shards = show_count(found.samples, "sample"), show_count(found.shards, "shard")
    yield f"{samples} in {shards} ({show_bytes(found.bytes)}){images}: {'not sound' if found.problems else 'sound'}"
    for name, counts in (("fields", found.fields), ("labels", found.labels), ("passed over", found.passed_over)):
        if counts:
            shown = [f"{key}: {count:,}" for key, count in list(counts.items())[:_SHOWN_LABELS]]
            more = [f"and {len(counts) - _SHOWN_LABELS} more"] if len(counts) > _SHOWN_LABELS else []
            yield f"{name}: {', '.join(shown + more)}"
    if found.without_index:
        yield f"{show_count(found.without_index, 'shard')} without index: only the tars themselves were checked"
    elif found.without_checksum:
        yield f"{show_count(found.without_checksum, 'shard')} without checksum: `headrace index --checksums` notes them"
    for path in found.repaired:
        yield f"repaired: the offset table of {path}"
