"""``headrace bench``: how fast a dataset can be loaded here, and what limits it, without a model."""

import argparse
import json
import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from .progress import Progress
from .source import open_images

if TYPE_CHECKING:
    from ..datastores import Loader

__all__ = ["add_arguments", "run"]


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
    from ..datastores import AugmentedImageDatastore, Loader

    size, flip = (options.size, options.size), ImageAugmenter(x_reflection=True)
    data = AugmentedImageDatastore(size, open_images(options.location), mode=options.mode, augment=flip)
    batch = min(options.batch, len(data))
    with Loader(data, batch, workers=options.workers) as loader:
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
        print(f"{len(data)} images, batches of {batch}; the first one after {first:.2f} s\n{report}")
    return 0


def _measure(loader: "Loader", options: argparse.Namespace) -> float:
    """Take batches for the given time, over as many epochs as that is; return the seconds until the first."""
    started = time.perf_counter()
    first: float | None = None
    with Progress("headrace bench", None, "images", quiet=options.quiet) as progress:
        while True:
            for batch in loader:
                now = time.perf_counter()
                if first is None:
                    first, started = now - started, now
                time.sleep(options.step_ms / 1000)
                progress.advance(len(batch))
                if now - started >= options.seconds:
                    return first
