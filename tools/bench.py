"""``headrace bench``: how fast a dataset can be loaded here, and what limits it, without a model."""

import argparse
import json
import math
import re
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from .progress import Progress, show_count
from .source import open_images

if TYPE_CHECKING:
    from ..datastores import Loader

__all__ = ["add_arguments", "run"]

_EPOCH_BATCHES = 1000  # each epoch starts with a batch that does not count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("location", metavar="URL", help="shards, or a folder of images")
    parser.add_argument(
        "--size", type=_positive, default=224, metavar="N", help="output height and width (default: 224)"
    )
    parser.add_argument(
        "--mode",
        choices=["resize", "letterbox", "center_crop", "resized_center_crop", "random_crop", "random_resized_crop"],
        default="random_resized_crop",
        help="how images get that size (default: random_resized_crop); they are mirrored at random too",
    )
    parser.add_argument("--batch", type=_positive, default=64, metavar="N", help="batch size (default: 64)")
    parser.add_argument("--workers", type=_workers, default="auto", help="a number, or auto (default)")
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="how long to measure (default: 10)")
    parser.add_argument(
        "--step-ms",
        type=_seconds,
        default=0.0,
        metavar="MS",
        help="pretend that a training step takes so long (default: 0)",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="count images that cannot be read, and take others in their places (default: stop at the first)",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _positive(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,6}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _workers(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not re.fullmatch(r"\d{1,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers: write auto, 0 or 4")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,7}(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 10 or 2.5")
    return float(text)


def run(options: argparse.Namespace) -> int:
    """Load batches for a while and print the loader's report."""
    from ..augment import ImageAugmenter
    from ..datastores import AugmentedImageDatastore, Loader, OnError
    from ..datastores.repeated import RepeatedDatastore

    size, flip = (options.size, options.size), ImageAugmenter(x_reflection=True)
    data = AugmentedImageDatastore(size, open_images(options.location), mode=options.mode, augment=flip)
    batch = min(options.batch, len(data))
    long = RepeatedDatastore(data, math.ceil(_EPOCH_BATCHES * batch / len(data)))  # once where there are enough
    on_error = OnError("substitute", limit=sys.maxsize) if options.skip_bad else OnError()
    with Loader(long, batch, workers=options.workers, on_error=on_error) as loader:
        first = _measure(loader, options)
        report = loader.report()
    if options.json:
        answer: dict[str, Any] = {
            **asdict(report),
            "samples_per_second": report.rows_per_second,
            "wait_share": report.wait_share,
            "workers_needed": report.workers_needed,
            "first_batch_seconds": first,
            "verdict": report.verdict,
        }
        print(json.dumps(answer, indent=1))
    else:
        print(f"{show_count(len(data), 'image')}, batches of {batch}; the first one after {first:.2f} s\n{report}")
    return 0


def _measure(loader: "Loader", options: argparse.Namespace) -> float:
    """Take batches for the given time, over as many epochs as that is; return the seconds until the first.

    There are at least two, since the first batch of an epoch does not count.
    """
    started = time.perf_counter()
    first: float | None = None
    with Progress("headrace bench", None, "images", quiet=options.quiet) as progress:
        while True:
            for batch in loader:
                now = time.perf_counter()
                if first is None:
                    first, started = now - started, now
                elif now - started >= options.seconds:
                    return first
                time.sleep(options.step_ms / 1000)
                progress.advance(len(batch))
