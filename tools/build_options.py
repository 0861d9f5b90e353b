"""What ``headrace build`` can be asked for."""

import argparse
import re

from .division import parse_shares
from .parallel import parse_workers

__all__ = ["add_arguments"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_FORMATS = ("jpeg", "png", "webp")


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
        "--classes",
        metavar="A,B,C|FILE",
        help="class folders in the order of their numbers, no others; FILE has a name a line, or is the index.json of "
        "a training set, whose numbers a validation set then gets",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out files that are no images, and list them in build.json (default: stop at the first)",
    )
    parser.add_argument(
        "--keep-extensions", action="store_true", help="keep each file's extension in its key, for a.bmp beside a.gif"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with what the same command left when it was killed or interrupted"
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
    group.add_argument("--format", choices=_FORMATS, help="encode as this; default: as the file is, where it can be")
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
