"""What ``reduced_decode=True`` saves, and what it costs: time per JPEG, and PSNR to what all of its pixels make.

    python benchmarks/reduced.py [--rounds 5] [--images 6]

One core, JPEGs of quality 90 with a camera's noise, random-resized-crop to 224 x 224. Both ways take turns image by
image; the table shows medians over all images and rounds, and the median and the worst PSNR.
"""

import argparse
import io
import statistics
import time

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from headrace.augment import Draw
from headrace.datastores import AugmentedImageDatastore
from headrace.datastores.datastore import EncodedImage, ImageSource

Pixels = NDArray[np.uint8]


class Files(ImageSource):
    """Image files in memory, without labels."""

    classes = ()
    has_labels = False

    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def encoded(self, ids: NDArray[np.int64]) -> list[EncodedImage]:
        """Return the files."""
        return [EncodedImage(self.files[index], None) for index in ids.tolist()]

    def key(self, index: int) -> str:
        """Return the number."""
        return str(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':14}{'kB':>7}{'ms, full':>11}{'ms, reduced':>13}{'PSNR':>9}{'worst':>8}")
    for width, height in ((1200, 900), (2000, 1500), (4000, 3000)):
        files = [camera(number, width, height) for number in range(options.images)]
        full, reduced, errors = measure(Files(files), options.rounds)
        size = statistics.median(map(len, files)) / 1000
        name = f"{width} x {height}"
        print(f"{name:14}{size:7.0f}{full:11.1f}{reduced:13.1f}{statistics.median(errors):9.1f}{min(errors):8.1f}")


def camera(number: int, width: int, height: int) -> bytes:
    """Return a JPEG of one of scikit-learn's two photos."""
    picture = Image.fromarray(load_sample_images().images[number % 2]).resize((width, height), Image.Resampling.LANCZOS)
    noise = np.random.default_rng(number).normal(0, 3, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def measure(source: Files, rounds: int) -> tuple[float, float, list[float]]:
    """Return milliseconds per image of both ways, and the PSNR of each image."""
    ways = [
        AugmentedImageDatastore((224, 224), source, mode="random_resized_crop", reduced_decode=reduced)
        for reduced in (False, True)
    ]
    seconds: list[list[float]] = [[], []]
    errors = []
    for epoch in range(rounds):
        for index in range(len(source)):
            images = []
            for way, times in zip(ways, seconds, strict=True):
                started = time.perf_counter()
                images.append(way.sample(index, Draw(0, epoch))["image"].astype(np.float64))
                times.append(time.perf_counter() - started)
            error = np.mean((images[0] - images[1]) ** 2)
            errors.append(10 * np.log10(255**2 / error) if error else np.inf)
    full, reduced = (1000 * statistics.median(times) for times in seconds)
    return full, reduced, errors


if __name__ == "__main__":
    main()
