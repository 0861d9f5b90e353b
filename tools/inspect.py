"""``headrace inspect``: what is in a set of shards, or in one of its samples."""

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError, MissingDataError
from .parallel import parse_workers
from .progress import show_bytes

if TYPE_CHECKING:
    from ..datastores.shards import ShardReader

__all__ = ["add_arguments", "run"]

_SHOWN_CLASSES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("location", metavar="URL", nargs="+", help="folder, tar or pattern of shards")
    parser.add_argument("--sample", metavar="N|KEY", help="show one sample, by number or by key")
    parser.add_argument("--checksums", action="store_true", help="compare every byte with the index first")
    parser.add_argument(
        "--deep", action="store_true", help="read the header of every image: formats, sizes, how well classes are mixed"
    )
    parser.add_argument(
        "--workers", type=parse_workers, metavar="N", help="processes of --deep (default: one for each core)"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(options: argparse.Namespace) -> int:
    """Print what the shards, or the sample, are."""
    from ..datastores.shards import ShardReader

    shards = ShardReader(options.location)
    if options.checksums:
        shards.verify()
    answer = _describe(shards) if options.sample is None else _describe_sample(shards, options.sample)
    if options.deep and options.sample is None:
        from .survey import survey

        answer |= survey(shards, options.workers, quiet=options.quiet)
    if options.json:
        print(json.dumps(answer, indent=1))
    else:
        for name, value in answer.items():
            print(f"{name.replace('_', ' '):<14} {_show(name, value)}")
    return 0


def _describe(shards: "ShardReader") -> dict[str, Any]:
    index = shards.index
    sizes = [entry.size for entry in index.entries]
    samples = [entry.samples for entry in index.entries]
    answer: dict[str, Any] = {
        "shards": len(sizes),
        "samples": len(index),
        "bytes": sum(sizes),
        "shard_bytes": {"smallest": min(sizes), "largest": max(sizes)},
        "shard_samples": {"smallest": min(samples), "largest": max(samples)},
        "fields": shards.count_each_field(),
    }
    if index.classes:
        counts = index.class_samples or [None] * len(index.classes)
        answer["classes"] = dict(zip(index.classes, counts, strict=True))
    if shards.catalog.skipped:
        answer["passed_over"] = shards.catalog.skipped
    indexed = shards.catalog.scratch is None
    return {**answer, "index": "beside the shards" if indexed else "none", "fingerprint": index.fingerprint}


def _describe_sample(shards: "ShardReader", wanted: str) -> dict[str, Any]:
    is_number = re.fullmatch("[0-9]{1,18}", wanted) is not None and int(wanted) < len(shards)
    number = int(wanted) if is_number else shards.find(wanted)
    if number is None:
        raise MissingDataError(f"no sample {wanted!r}: there are keys, and the numbers 0 to {len(shards) - 1}")
    shard, row = shards.place(number)
    fields = shards.raw(number)
    return {
        "sample": number,
        "key": shard.table.key(row),
        "shard": shard.path,
        "place": shards.locate(number).rpartition(", ")[2],
        "fields": {name: len(data) for name, data in fields.items()},
        "images": _describe_images(fields, shards.locate(number)),
        "text": {name: data.decode() for name, data in fields.items() if len(data) <= 200 and _is_text(data)},
    }


def _describe_images(fields: dict[str, bytes], where: str) -> dict[str, str]:
    """Return field -> format and size of each image, as its header states them."""
    from ..datastores.check import is_image_field
    from .samples import read_header

    found = {}
    for name, data in fields.items():
        if is_image_field(name):
            try:
                kind, (width, height) = read_header(data, where)
                found[name] = f"{kind} {width} x {height}" if kind else "too large to say"
            except DecodeError as error:
                found[name] = str(error).removeprefix(f"{where} ")
    return found


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _show(name: str, value: object) -> str:
    if name == "bytes" and isinstance(value, int):
        return f"{value:,} ({show_bytes(value)})"
    if isinstance(value, dict):
        shown = [_pair(key, item) for key, item in list(value.items())[:_SHOWN_CLASSES]]
        more = [f"and {len(value) - _SHOWN_CLASSES} more"] if len(value) > _SHOWN_CLASSES else []
        return ", ".join([*shown, *more])
    return f"{value:,}" if isinstance(value, int) else str(value)


def _pair(key: str, item: object) -> str:
    if item is None:
        return key
    return f"{key}: {item:,}" if isinstance(item, int) else f"{key}: {item}"
