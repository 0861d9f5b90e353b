"""``headrace build``: a folder of images becomes shards; the bytes of every image stay what they are.

Class folders give the field "cls" (the class number in ASCII digits; the names stand in ``index.json``); the image's
field is its file extension in lower case; its key is its path without extension, made safe (``datastores/keys.py``).
``build.json`` beside the shards says what was built from what, and what was left out and why.
"""

import argparse
import json
import os
import re
import stat
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import ConfigError, DecodeError, DuplicateKeyError, HeadraceError, MissingDataError
from .progress import Progress, show_bytes, show_count

if TYPE_CHECKING:
    from ..datastores.image import ImageDatastore
    from ..datastores.write import ShardWriter

__all__ = ["add_arguments", "run"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_KEPT_OPTIONS = ("shard_bytes", "shard_samples", "labels", "skip_bad", "keep_extensions")
_PILLOW_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "PPM", "TIFF", "AVIF", "HEIF")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("source", metavar="SRC", help="folder of class folders, or of images")
    parser.add_argument("destination", metavar="DEST", help="new or empty folder for the shards")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--shard-bytes", type=_bytes, metavar="SIZE", help="largest shard (default: 256MiB)")
    size.add_argument("--shard-samples", type=_count, metavar="N", help="samples per shard")
    parser.add_argument(
        "--labels",
        choices=["auto", "foldernames", "none"],
        default="auto",
        help="take class names from the folder that an image lies in; auto: if all lie in sub-folders (default)",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out files that are no images, and list them in build.json (default: stop at the first)",
    )
    parser.add_argument(
        "--keep-extensions", action="store_true", help="keep each file's extension in its key, for a.bmp beside a.gif"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


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


@dataclass(slots=True)
class _Report:
    """What ``build.json`` says.

    Args:
        source: as it was typed.
        options: those that the result depends on.
        samples: written.
        image_bytes: of the images, without labels and headers.
        classes: class name -> samples.
        merged_classes: class name -> its folders, where they are several, as in train/cat and test/cat.
        passed_over: reason -> files and folders that are no images by name.
        bad: files that were left out by ``--skip-bad``, with reasons.
        encoded_keys: number of keys with percent-encoded characters.
        shortened_keys: stored key -> original, where that was too long.
    """

    source: str
    options: dict[str, Any]
    samples: int = 0
    image_bytes: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    merged_classes: dict[str, list[str]] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    bad: list[dict[str, str]] = field(default_factory=list)
    encoded_keys: int = 0
    shortened_keys: dict[str, str] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return the bytes of ``build.json``."""
        head = {"format": "headrace-build", "version": 1, "headrace": __version__}
        return (json.dumps(head | asdict(self), indent=1) + "\n").encode("ascii")


def run(options: argparse.Namespace) -> int:
    """Build the shards; print what was built."""
    from ..datastores.image import ImageDatastore
    from ..datastores.listing import EMPTY_FILE
    from ..datastores.write import ShardWriter

    _check_folders(options.source, options.destination)
    images = ImageDatastore(options.source, label_source=None if options.labels == "none" else options.labels)
    _check_keys(images, options.keep_extensions)
    kept = {name: getattr(options, name) for name in _KEPT_OPTIONS}
    report = _Report(options.source, kept, classes=dict.fromkeys(images.classes, 0), passed_over=images.skipped)
    report.merged_classes = {name: list(found) for name, found in images.class_folders().items() if len(found) > 1}
    report.passed_over.pop(EMPTY_FILE, None)  # these are images by name, so they are listed one by one
    for name in images.empty_files:
        _leave_out(report, name, f"{images.root}/{name} is empty", skip=options.skip_bad)
    with (
        ShardWriter(
            options.destination,
            shard_bytes=options.shard_bytes,
            shard_samples=options.shard_samples,
            classes=images.classes,
        ) as writer,
        Progress("headrace build", len(images), "images", quiet=options.quiet) as progress,
    ):
        _write_images(images, writer, report, progress)
        report.encoded_keys, report.shortened_keys = writer.encoded_keys, writer.shortened_keys
        writer.attach("build.json", report.pack())
    _print_summary(report, writer, options)
    return 0


def _check_folders(source: str, destination: str) -> None:
    from ..datastores.storage import local_path, os_failure

    # realpath, since Path.resolve fails for links that lead to themselves
    from_folder, to_folder = (Path(os.path.realpath(local_path(name))) for name in (source, destination))
    try:
        is_folder = stat.S_ISDIR(from_folder.stat().st_mode)
    except FileNotFoundError as error:
        raise MissingDataError(f"{source} is not there: check the path") from error
    except OSError as error:
        raise os_failure(error, f"looking for {source}") from error
    if not is_folder:
        raise ConfigError(f"{source} is a file: name a folder of images")
    if to_folder.is_relative_to(from_folder):
        raise ConfigError(f"{destination} lies inside {source}: name a folder outside of it for the shards")


def _check_keys(images: "ImageDatastore", keep_extensions: bool) -> None:
    """Refuse two files that would get one key, before anything is written."""
    seen: dict[str, str] = {}
    twins: list[str] = []
    folder = ""
    for index in range(len(images)):
        path = images.key(index)
        if path.rpartition("/")[0] != folder:
            folder = path.rpartition("/")[0]
            seen.clear()
        first = seen.setdefault(_key(path, keep_extensions), path)
        if first != path:
            twins.append(f"{first} and {path}")
    if twins:
        shown = "; ".join(twins[:10]) + ("; ..." if len(twins) > 10 else "")
        raise DuplicateKeyError(
            f"{show_count(len(twins), 'pair')} of files in {images.root} would get one key: {shown}: rename them, or "
            "let keys keep the extension with --keep-extensions"
        )


def _key(path: str, keep_extension: bool) -> str:
    return path if keep_extension else path.rpartition(".")[0]


def _write_images(
    images: "ImageDatastore",
    writer: "ShardWriter",
    report: _Report,
    progress: Progress,
) -> None:
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about images that are merely large or odd
        for index in range(len(images)):
            path = images.key(index)
            try:
                encoded = images.encoded(np.array([index]))[0]
                _check_header(encoded.data, images.locate(index))
            except HeadraceError as error:
                _leave_out(report, path, str(error), skip=report.options["skip_bad"], cause=error)
            else:
                fields = {path.rpartition(".")[2].lower(): encoded.data}
                if encoded.label is not None:
                    fields["cls"] = str(encoded.label).encode("ascii")
                    report.classes[images.classes[encoded.label]] += 1
                writer.write(_key(path, report.options["keep_extensions"]), fields)
                report.samples += 1
                report.image_bytes += len(encoded.data)
            progress.advance()


def _check_header(data: bytes, path: str) -> None:
    """Read an image's header, with its size in pixels; no pixel is decoded."""
    import io

    from PIL import Image

    from ..datastores.heif import codec_of, load_heic_reader

    try:
        if codec_of(data) == "HEIF":
            load_heic_reader()
        Image.open(io.BytesIO(data), formats=_PILLOW_FORMATS).close()
    except Image.DecompressionBombError:
        return  # a large image is an image
    except Exception as error:  # Pillow's readers raise nearly every type there is
        message = f"{path} is no image that can be read: it begins with {data[:16]!r} ({_reason(error)})"
        raise DecodeError(message) from error


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    return "nothing reads it" if isinstance(error, UnidentifiedImageError) else str(error)  # which names an address


def _leave_out(report: _Report, path: str, reason: str, *, skip: bool, cause: Exception | None = None) -> None:
    if not skip:
        raise DecodeError(f"{reason}: repair or remove it, or leave such files out with --skip-bad") from cause
    report.bad.append({"file": path, "reason": reason})


def _print_summary(report: _Report, writer: "ShardWriter", options: argparse.Namespace) -> None:
    index = writer.index
    total = sum(entry.size for entry in index.entries)
    if options.json:
        result = {"destination": options.destination, "shards": len(index.entries), "bytes": total}
        print(json.dumps(result | asdict(report), indent=1))
        return
    images, shards = show_count(report.samples, "image"), show_count(len(index.entries), "shard")
    classes = f", {show_count(len(report.classes), 'class', 'classes')}" if report.classes else ""
    print(f"{images} in {shards} ({show_bytes(total)}{classes}): {options.destination}")
    if report.merged_classes and not options.quiet:
        name, folders = next(iter(report.merged_classes.items()))
        merged = show_count(len(report.merged_classes), "class is", "classes are")
        print(
            f"headrace build: {merged} made of several folders, such as {name} of {' and '.join(folders[:2])}; if "
            "these are parts like train and test, build each on its own",
            file=sys.stderr,
        )
    left_out = {**report.passed_over, **({"no images": len(report.bad)} if report.bad else {})}
    if left_out and not options.quiet:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(left_out.items()))
        print(f"headrace build: passed over ({reasons}), see build.json", file=sys.stderr)
