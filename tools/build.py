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
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..errors import ConfigError, DecodeError, HeadraceError
from .build_report import Built, Report, print_dry_run, print_summary
from .build_source import open_source
from .division import Shares, divide, parse_shares, shuffled
from .inputs import FolderInput, Input, check_keys
from .parallel import default_workers, in_order, parse_workers
from .progress import Progress, show_count
from .samples import Item, Made, Recipe, make

if TYPE_CHECKING:
    from ..datastores.schema import IntArray
    from ..datastores.write import ShardWriter

__all__ = ["add_arguments", "run"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_KEPT_OPTIONS = (
    "shard_bytes", "shard_samples", "labels", "skip_bad", "keep_extensions", "path_column", "label_column", "fields",
    "keys", "rekey", "shuffle", "stratify", "split_seed", "quality",
)  # fmt: skip
_FORMATS = {"jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
_CHUNK = 16  # images of a task for another process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "source",
        metavar="SRC",
        nargs="+",
        help="folder of class folders or of images; manifest (.csv, .tsv, .jsonl); tars, or folders of them",
    )
    parser.add_argument("destination", metavar="DEST", help="new or empty folder for the shards")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--shard-bytes", type=_bytes, metavar="SIZE", help="largest shard (default: 256MiB)")
    size.add_argument("--shard-samples", type=_count, metavar="N", help="samples per shard")
    parser.add_argument(
        "--labels",
        choices=["auto", "foldernames", "none"],
        default="auto",
        help="take class names from the folder that an image lies in; auto: if all lie in sub-folders (default), from "
        "a manifest's column, or as tars have them; none: leave them out",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out files that are no images, and list them in build.json (default: stop at the first)",
    )
    parser.add_argument(
        "--keep-extensions", action="store_true", help="keep each file's extension in its key, for a.bmp beside a.gif"
    )
    parser.add_argument("--dry-run", action="store_true", help="do all but write: say what would be built and left out")
    _add_selection(parser)
    _add_pixels(parser)
    parser.add_argument("--workers", type=parse_workers, metavar="N", help="processes that read and encode images")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which samples, in what order")
    group.add_argument(
        "--path-column", metavar="NAME", help="manifest's column of paths (default: path, file_name, ...)"
    )
    group.add_argument("--label-column", metavar="NAME", help="manifest's column of classes (default: label or class)")
    group.add_argument("--fields", type=_names, metavar="A,B", help="keep these fields of tars only")
    group.add_argument("--keys", metavar="GLOB", help="take only samples whose key matches, such as 'train/*'")
    group.add_argument("--rekey", action="store_true", help="number the samples: keys 000000000, 000000001 and so on")
    group.add_argument("--shuffle", type=_seed, metavar="SEED", help="write in random order, over the whole set")
    group.add_argument(
        "--split",
        type=parse_shares,
        metavar="train=0.9,val=0.1",
        help="build DEST/train and DEST/val, with one class map",
    )
    group.add_argument("--stratify", action="store_true", help="split every class in the same way")
    group.add_argument("--split-seed", type=_seed, metavar="SEED", default=0, help="who goes where (default: 0)")


def _add_pixels(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "pixels", "Images that are small enough, and of the wanted format, pass unchanged."
    )
    group.add_argument(
        "--resize", type=_resize, metavar="N[:long]", help="shrink so that the short (or the long) side has N pixels"
    )
    group.add_argument(
        "--format", choices=list(_FORMATS), help="encode as this; default: as the file is, where it can be"
    )
    group.add_argument(
        "--quality", type=_quality, default=90, metavar="Q", help="of JPEG and WebP, 1 to 100 (default: 90)"
    )


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?i?)b?", text.lower())
    size = int(match[1]) * _UNITS.get(match[2], 0) if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 256MiB, 1GB or 500000")
    return size


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,14}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of samples: write 1000")
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: write a number from 0 to 2**64 - 1")
    return int(text)


def _resize(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"([1-9][0-9]{0,4})(?::(short|long))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 256, 256:short or 512:long")
    return int(match[1]), match[2] or "short"


def _quality(text: str) -> int:
    if not re.fullmatch(r"0*([1-9][0-9]?|100)", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no quality: write a number from 1 to 100")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted(set(text.lower().split(","))))


@dataclass(frozen=True, slots=True)
class _Part:
    """A set that is to be built: its name in a split or "", its folder as typed, the items in order."""

    name: str
    destination: str
    ids: "IntArray"


def run(options: argparse.Namespace) -> int:
    """Build the shards; print what was built."""
    source = open_source(options)
    parts = list(_parts(source, options))
    if not options.rekey:
        check_keys(source)
    reports = [_report(source, options, part) for part in parts]
    return (_dry_run if options.dry_run else _build)(source, parts, reports, options)


def _build(source: Input, parts: list[_Part], reports: list[Report], options: argparse.Namespace) -> int:
    from ..datastores.write import ShardWriter

    size = {"shard_bytes": options.shard_bytes, "shard_samples": options.shard_samples}
    with ExitStack() as stack:
        writers = [stack.enter_context(ShardWriter(part.destination, **size, classes=source.classes)) for part in parts]
        with _progress(parts, options) as progress:
            for part, writer, report in zip(parts, writers, reports, strict=True):
                _write(source, part, writer, report, options, progress)
                writer.finish()
        for writer, report in zip(writers, reports, strict=True):
            report.encoded_keys, report.shortened_keys = writer.encoded_keys, writer.shortened_keys
            writer.attach("build.json", report.pack())
            writer.close()
    built = [
        Built(part.name, part.destination, len(writer.index.entries), sum(e.size for e in writer.index.entries), report)
        for part, writer, report in zip(parts, writers, reports, strict=True)
    ]
    print_summary(built, as_json=options.json, quiet=options.quiet)
    return 0


def _write(
    source: Input, part: _Part, writer: "ShardWriter", report: Report, options: argparse.Namespace, progress: Progress
) -> None:
    for made in _made(source, part.ids, options):
        error: HeadraceError | None = made.failure
        if error is None:
            try:
                writer.write(made.item.key, made.fields, is_quoted=made.item.is_quoted)
                report.count(made, source.classes)
            except ConfigError as refused:  # a field name of somebody's tar, or a label that is no class
                error = refused
        if error is not None:
            _leave_out(report, made.item.name, str(error), skip=options.skip_bad, cause=error)
        progress.advance()


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


def _dry_run(source: Input, parts: list[_Part], reports: list[Report], options: argparse.Namespace) -> int:
    from ..datastores.tar import END
    from ..datastores.write import ShardLimit, sample_bytes

    limit, built = ShardLimit(options.shard_bytes, options.shard_samples), []
    with _progress(parts, options) as progress:
        for part, report in zip(parts, reports, strict=True):
            shards, total, size, samples = 0, 0, 0, 0
            for made in _made(source, part.ids, options):
                progress.advance()
                if made.failure is not None:
                    report.leave_out(made.item.name, str(made.failure))
                    continue
                more = sample_bytes(made.fields)
                if not samples or limit.is_full(size, samples, more):
                    shards, total, size, samples = shards + 1, total + len(END), 0, 0
                total, size, samples = total + more, size + more, samples + 1
                report.count(made, source.classes)
            built.append(Built(part.name, part.destination, shards, total, report))
    print_dry_run(built, as_json=options.json)
    bad = [entry for report in reports for entry in report.bad]
    if bad and not options.skip_bad:
        raise DecodeError(
            f"{show_count(len(bad), 'file')} would stop the build, the first is {bad[0]['file']}: repair or remove "
            "them, or leave them out with --skip-bad"
        )
    return 0


def _progress(parts: list[_Part], options: argparse.Namespace) -> Progress:
    return Progress("headrace build", sum(len(part.ids) for part in parts), "images", quiet=options.quiet)


def _leave_out(report: Report, name: str, reason: str, *, skip: bool, cause: Exception | None = None) -> None:
    if not skip:
        raise DecodeError(f"{reason}: repair or remove it, or leave such files out with --skip-bad") from cause
    report.leave_out(name, reason)


def _report(source: Input, options: argparse.Namespace, part: _Part) -> Report:
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
    for name, reason in source.bad:
        _leave_out(report, name, reason, skip=options.skip_bad or options.dry_run)
    return report


# -- what is built from what -------------------------------------------------------------------------------------------


def _parts(source: Input, options: argparse.Namespace) -> Iterator[_Part]:
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
        yield _Part(name, f"{options.destination.rstrip('/')}/{name}" if name else options.destination, order)
