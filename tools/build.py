"""``headrace build``: images become shards; the bytes of every image stay what they are, unless pixels are asked for.

SRC is a folder of images or of class folders, a manifest (``manifest.py``), or WebDataset tars (``inputs.py``). The
image's field is its file extension in lower case; classes give the field "cls" (the class number in ASCII digits; the
names stand in ``index.json``); a key is a path without extension, made safe (``datastores/keys.py``). ``build.json``
beside the shards says what was built from what, and what was left out and why.

The flow: ``inputs.py`` lists items -> ``division.py`` says which of them go where, in what order -> ``samples.py``
makes each, in processes if asked to -> one ``ShardWriter`` for each set writes them in that order. So the bytes do not
depend on the number of workers.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import ConfigError, DecodeError, HeadraceError
from .build_options import add_arguments
from .build_report import REPORT_NAME, Built, Part, Report, print_dry_run, print_summary, published
from .build_source import open_source
from .division import Shares, divide, shuffled
from .inputs import FolderInput, Input, check_keys
from .parallel import default_workers, in_order
from .progress import Progress, show_count
from .samples import Item, Made, Recipe, make

if TYPE_CHECKING:
    from ..datastores.schema import IntArray
    from ..datastores.write import ShardWriter

__all__ = ["add_arguments", "run"]

_KEPT_OPTIONS = (
    "shard_bytes", "shard_samples", "labels", "classes", "skip_bad", "keep_extensions", "path_column", "label_column",
    "fields", "keys", "rekey", "shuffle", "stratify", "split_seed", "quality",
)  # fmt: skip
_FORMATS = {"jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
_CHUNK = 16  # images of a task for another process


def run(options: argparse.Namespace) -> int:
    """Build the shards; print what was built."""
    source = open_source(options)
    parts = list(_parts(source, options))
    if not options.rekey:
        check_keys(source)
    reports = [_report(source, options, part, parts[0]) for part in parts]
    return (_dry_run if options.dry_run else _build)(source, parts, reports, options)


def _build(source: Input, parts: list[Part], reports: list[Report], options: argparse.Namespace) -> int:
    pairs = list(zip(parts, reports, strict=True))
    known = [published(*pair) for pair in pairs if options.resume]
    built = {one.part: one for one in known if one is not None}
    pending = [pair for pair in pairs if pair[0].name not in built]
    cursors: list[_Cursor] = []
    try:
        with ExitStack() as stack:
            for part, report in pending:
                cursors.append(_cursor(stack, source, part, report, options))
            with _progress([part for part, _ in pending], options) as progress:
                for cursor in cursors:
                    _write(source, cursor, options, progress)
            for cursor in cursors:
                cursor.writer.attach(REPORT_NAME, cursor.report.pack())
                cursor.writer.close()
    except BaseException:
        if not options.quiet and any(cursor.writer.is_suspended for cursor in cursors):
            left = show_count(sum(cursor.writer.samples for cursor in cursors), "sample")
            print(f"headrace build: {left} finished; the same command with --resume goes on there", file=sys.stderr)
        raise
    for cursor in cursors:
        built[cursor.part.name] = Built.of(cursor.part, cursor.writer.index, cursor.report)
    print_summary([built[part.name] for part in parts], as_json=options.json, quiet=options.quiet)
    return 0


@dataclass(slots=True)
class _Cursor:
    """A set while it is written: where it is, and what its journal has to know.

    Args:
        part: what is to be written.
        report: on all before ``position``.
        position: of the next item in the part's order.
        listed: bad items that the journal knows.
    """

    part: Part
    report: Report
    position: int = 0
    listed: int = 0
    writer: "ShardWriter" = field(init=False)

    def note(self) -> dict[str, Any]:
        """Return what is written down with a finished shard."""
        bad, self.listed = self.report.bad[self.listed :], len(self.report.bad)
        return {"next": self.position, "image_bytes": self.report.image_bytes, "bad": bad}

    def go_on(self) -> None:
        """Stand behind the finished shards of the build that is continued."""
        notes = self.writer.notes
        if notes:
            self.position, self.report.image_bytes = notes[-1]["next"], notes[-1]["image_bytes"]
            self.report.bad = [bad for note in notes for bad in note["bad"]]
            self.listed = len(self.report.bad)


def _cursor(stack: ExitStack, source: Input, part: Part, report: Report, options: argparse.Namespace) -> _Cursor:
    from ..datastores.write import ShardWriter

    cursor = _Cursor(part, report)
    with Progress("headrace build: checking finished shards", None, "shards", quiet=options.quiet) as progress:
        cursor.writer = ShardWriter(
            part.destination,
            shard_bytes=options.shard_bytes,
            shard_samples=options.shard_samples,
            classes=source.classes,
            plan=report.plan,
            note=cursor.note,
            resume=options.resume,
            on_kept=progress.advance,
        )
    stack.enter_context(cursor.writer)
    cursor.go_on()
    return cursor


def _write(source: Input, cursor: _Cursor, options: argparse.Namespace, progress: Progress) -> None:
    """Write all that is left of a set; nothing is published."""
    writer, report = cursor.writer, cursor.report
    progress.advance(cursor.position)
    for made in _made(source, cursor.part.ids[cursor.position :], options):
        error: HeadraceError | None = made.failure
        if error is None:
            try:
                writer.write(made.item.key, made.fields, is_quoted=made.item.is_quoted)
                report.image_bytes += made.image_bytes
            except ConfigError as refused:  # a field name of somebody's tar, or a label that is no class
                error = refused
        if error is not None:
            _leave_out(report, made.item.name, str(error), skip=options.skip_bad, cause=error)
        cursor.position += 1
        progress.advance()
    writer.finish()
    report.samples, report.classes = writer.samples, dict(zip(source.classes, writer.class_samples, strict=True))
    report.encoded_keys, report.shortened_keys = writer.encoded_keys, writer.shortened_keys


def _made(source: Input, ids: "IntArray", options: argparse.Namespace) -> Iterator[Made]:
    """Make samples in the order of their ids."""
    side = {} if options.resize is None else {"resize": options.resize[0], "side": options.resize[1]}
    recipe = Recipe(**side, format=_FORMATS.get(options.format), quality=options.quality)
    workers = options.workers
    if workers is None:  # what only moves bytes is not worth a process
        workers = default_workers() if recipe.changes_pixels else 0
    size = _CHUNK if workers else 1
    chunks = (ids[start : start + size].tolist() for start in range(0, len(ids), size))
    tasks = ((tuple(_item(source, i, options) for i in chunk), source.storage, recipe) for chunk in chunks)
    for made in in_order(make, tasks, workers):
        yield from made


def _item(source: Input, index: int, options: argparse.Namespace) -> Item:
    item = source.item(index)
    return replace(item, key=f"{index:09d}", is_quoted=False) if options.rekey else item


def _dry_run(source: Input, parts: list[Part], reports: list[Report], options: argparse.Namespace) -> int:
    from ..datastores.shardfile import ShardLimit, sample_bytes
    from ..datastores.tar import END
    from ..datastores.write import check_sample

    limit, built = ShardLimit(options.shard_bytes, options.shard_samples), []
    with _progress(parts, options) as progress:
        for part, report in zip(parts, reports, strict=True):
            shards, total, size, samples = 0, 0, 0, 0
            for made in _made(source, part.ids, options):
                progress.advance()
                try:
                    if made.failure is not None:
                        raise made.failure
                    _, label = check_sample(made.item.key, made.fields, source.classes)
                except HeadraceError as error:
                    report.leave_out(made.item.name, str(error))
                    continue
                more = sample_bytes(made.fields)
                if not samples or limit.is_full(size, samples, more):
                    shards, total, size, samples = shards + 1, total + len(END), 0, 0
                total, size, samples = total + more, size + more, samples + 1
                report.samples += 1
                report.image_bytes += made.image_bytes
                if label is not None:
                    report.classes[source.classes[label]] += 1
            built.append(Built(part.name, part.destination, shards, total, report))
    print_dry_run(built, as_json=options.json)
    bad = [entry for report in reports for entry in report.bad]
    if bad and not options.skip_bad:
        raise DecodeError(
            f"{show_count(len(bad), 'file')} would stop the build, the first is {bad[0]['file']}: repair or remove "
            "them, or leave them out with --skip-bad"
        )
    return 0


def _progress(parts: list[Part], options: argparse.Namespace) -> Progress:
    return Progress("headrace build", sum(len(part.ids) for part in parts), "images", quiet=options.quiet)


def _leave_out(report: Report, name: str, reason: str, *, skip: bool, cause: Exception | None = None) -> None:
    if not skip:
        raise DecodeError(f"{reason}: repair or remove it, or leave such files out with --skip-bad") from cause
    report.leave_out(name, reason)


def _report(source: Input, options: argparse.Namespace, part: Part, first: Part) -> Report:
    """Return what is known of a set beforehand; what belongs to no set is listed with the first one."""
    kept = {name: getattr(options, name) for name in _KEPT_OPTIONS}
    kept["resize"] = None if options.resize is None else f"{options.resize[0]}:{options.resize[1]}"
    kept["format"] = options.format
    if options.split:
        kept["split"], kept["part"] = {name: str(share) for name, share in options.split}, part.name
    typed = options.source[0] if len(options.source) == 1 else options.source
    report = Report(typed, kept, classes=dict.fromkeys(source.classes, 0), passed_over=dict(source.passed_over))
    if isinstance(source, FolderInput):
        folders = source.images.class_folders().items()
        report.merged_classes = {name: list(found) for name, found in folders if len(found) > 1}
    report.plan = _plan(source, part, kept)
    for name, reason in source.bad if part is first else ():
        _leave_out(report, name, reason, skip=options.skip_bad or options.dry_run)
    return report


def _plan(source: Input, part: Part, kept: dict[str, Any]) -> str:
    """Return a digest of all that decides about the bytes of a set; whoever encodes is part of it."""
    encoder = ""
    if kept["resize"] or kept["format"]:
        import PIL

        encoder = PIL.__version__
    order = hashlib.sha256(part.ids.astype("<i8").tobytes()).hexdigest()
    what = [__version__, encoder, source.fingerprint, source.classes, order, kept]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("ascii")).hexdigest()


# -- what is built from what -------------------------------------------------------------------------------------------


def _parts(source: Input, options: argparse.Namespace) -> Iterator[Part]:
    """Say which items go into which set, in what order."""
    import numpy as np

    if options.stratify and not options.split:
        raise ConfigError("--stratify is for --split: say into what, such as --split train=0.9,val=0.1")
    ids = np.arange(len(source))
    if options.keys is not None:
        ids = ids[[fnmatchcase(source.key(index), options.keys) for index in range(len(source))]]
        source.passed_over["key does not match --keys"] = len(source) - len(ids)
        if not len(ids):
            raise ConfigError(f"no key matches --keys {options.keys!r}: the first is {source.key(0)!r}")
    shares: Shares | None = options.split
    divided = [ids]
    if shares is not None:
        divided = divide(ids, shares, options.split_seed, source.labels() if options.stratify else None)
    for (name, _), members in zip(shares or (("", 1),), divided, strict=True):
        if not len(members):
            raise ConfigError(f"the part {name} would be empty: there are {len(ids)} samples to split")
        order = members if options.shuffle is None else shuffled(members, options.shuffle)
        yield Part(name, f"{options.destination.rstrip('/')}/{name}" if name else options.destination, order)
