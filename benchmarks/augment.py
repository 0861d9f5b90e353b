"""Time and exactness of headrace's geometry beside torchvision v2, and albumentations where it is installed.

    python benchmarks/augment.py [--rounds 7] [--images 32]

One core, decoded photos of 500 x 375 pixels, outputs of 224 x 224. All libraries get the same images and the same
parameters, drawn beforehand, so that all do the same work; drawing them is not measured. The arms take turns image by
image in every round. The table shows the median over all images and rounds, and the PSNR to a reference: each pixel of
the output is the mean of 8 x 8 bilinear samples in float64, placed by the one matrix that the recipe comes to.

Recipes: a random-resized-crop with flip; rotation, scale and translation of the whole image, then a resize (shear
costs the same, but the libraries do not agree on what it is); a plain crop; brightness, contrast, saturation and hue,
whose reference is torchvision's in float64 without rounding in between (albumentations draws the order of the four).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from headrace.augment import ColorAugmenter, Draw, ImageAugmenter, RandomResizedCrop
from headrace.augment.crop import RandomCrop
from headrace.augment.geometry import about_centre, reflections, window
from headrace.augment.random import Purpose
from headrace.augment.resample import cut, resample

SIZE = (224, 224)
PHOTO = (375, 500)
CHECKED = 6  # images whose reference is made: a second each

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """One image and what happens to it; ``box`` is cut after the movement."""

    image: Pixels
    box: tuple[int, int, int, int]
    flip: bool = False
    angle: float = 0.0
    scale: float = 1.0
    shift: tuple[int, int] = (0, 0)

    @property
    def is_affine(self) -> bool:
        """Whether the image is moved before it is cut."""
        return (self.angle, self.scale, self.shift) != (0.0, 1.0, (0, 0))

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The whole way as one map, without the flip."""
        x, y = self.shift
        movement = ImageAugmenter(rotation=self.angle, scale=self.scale, x_translation=x, y_translation=y)
        return window(self.box, SIZE) @ movement.sample_matrix(0, Draw(), PHOTO)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    arms = {"headrace": headrace_arm, "torchvision v2": torchvision_arm}
    if find_spec("albumentations"):
        arms["albumentations"] = albumentations_arm
    print(f"{'':36}{'us/image':>9}{'PSNR':>9}")
    for recipe, cases in recipes(photos(options.images)).items():
        runs = {name: [arm(case) for case in cases] for name, arm in arms.items()}
        times = measure(runs, options.rounds)
        references = [reference(case) for case in cases[:CHECKED]]
        for name, calls in runs.items():
            exactness = psnr([call() for call in calls[:CHECKED]], references)
            print(f"{recipe:20}{name:16}{times[name] * 1e6:9.0f}{exactness}")
    colors(photos(options.images), options.rounds, with_albumentations="albumentations" in arms)


def colors(images: list[Pixels], rounds: int, *, with_albumentations: bool) -> None:
    """Brightness, contrast, saturation and hue, in this order, of 224 x 224 pixels; headrace takes a batch at once."""
    from torchvision.transforms.v2 import functional

    batch = torch.from_numpy(np.stack([image[: SIZE[0], : SIZE[1]] for image in images])).permute(0, 3, 1, 2)
    ids, factors = np.arange(len(batch)), {"brightness": 1.2, "contrast": 0.8, "saturation": 1.3, "hue": 0.05}
    color = ColorAugmenter(**factors)

    def one_by_one(image: torch.Tensor) -> torch.Tensor:
        for name, factor in factors.items():
            image = getattr(functional, f"adjust_{name}")(image, factor)
        return image

    planar = [image.contiguous() for image in batch]
    runs: dict[str, list[Call]] = {
        "headrace": [lambda: color.apply(batch, ids, Draw())],
        "torchvision v2": [lambda: torch.stack([one_by_one(image) for image in planar])],
    }
    if with_albumentations:
        import albumentations

        jitter = albumentations.ColorJitter(**{name: (factor, factor) for name, factor in factors.items()}, p=1.0)
        pixels = [np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in batch]
        runs["albumentations"] = [lambda: np.stack([jitter(image=image)["image"] for image in pixels])]
    times = measure(runs, rounds)
    references = [255 * one_by_one(image.double() / 255).permute(1, 2, 0).numpy() for image in batch[:CHECKED]]
    for name, (call,) in runs.items():
        exactness = psnr(list(call()[:CHECKED]), references)
        print(f"{'color':20}{name:16}{times[name] / len(batch) * 1e6:9.0f}{exactness}")


def photos(count: int) -> list[Pixels]:
    """Return different parts of scikit-learn's two photos, with a camera's noise."""
    random, result = np.random.default_rng(0), []
    pictures = [Image.fromarray(image) for image in load_sample_images().images]
    for number in range(count):
        zoom, left, top = random.uniform(0.6, 0.8), random.uniform(0, 0.2), random.uniform(0, 0.2)
        width, height = pictures[number % 2].size
        box = (left * width, top * height, (left + zoom) * width, (top + zoom) * height)
        part = np.asarray(pictures[number % 2].resize((PHOTO[1], PHOTO[0]), box=box)).astype(np.float64)
        result.append((part + random.normal(0, 4, part.shape)).clip(0, 255).astype(np.uint8))
    return result


def recipes(images: list[Pixels]) -> dict[str, list[Case]]:
    ids = np.arange(len(images))
    numbers = Draw().uniforms(ids, Purpose.CROP, RandomResizedCrop.num_draws).tolist()
    moves = Draw().uniforms(ids, Purpose.GEOMETRY, 4)
    parts = [RandomResizedCrop().box(PHOTO, SIZE, row) for row in numbers]
    crops = [RandomCrop().box(PHOTO, SIZE, row) for row in numbers]
    whole = (0, 0, PHOTO[1], PHOTO[0])
    return {
        "resized crop, flip": [Case(images[i], parts[i], flip=bool(moves[i, 0] < 0.5)) for i in ids],
        "affine, resize": [
            Case(images[i], whole, angle=30 * a - 15, scale=0.8 + 0.4 * s, shift=(round(40 * x - 20), 7))
            for i, (_, a, s, x) in enumerate(moves.tolist())
        ],
        "crop": [Case(images[i], crops[i]) for i in ids],
    }


# --- arms: each returns a function that makes the output of one case, (224, 224, 3) or (3, 224, 224) ------------------


Call = Callable[[], object]


def headrace_arm(case: Case) -> Call:
    out = np.empty((*SIZE, 3), np.uint8)  # a row of a batch
    if case.is_affine:
        matrix = case.matrix
        return lambda: resample(case.image, matrix, SIZE, out=out)
    mirrors, box = (False, case.flip), mirrored(case)
    return lambda: cut(case.image, box, mirrors, SIZE, out=out)


def mirrored(case: Case) -> tuple[int, int, int, int]:
    """Return the box as headrace measures it: in the image after it was mirrored."""
    left, top, right, bottom = case.box
    return (PHOTO[1] - right, top, PHOTO[1] - left, bottom) if case.flip else case.box


def torchvision_arm(case: Case) -> Call:
    from torchvision.transforms.v2 import InterpolationMode, functional

    image = torch.from_numpy(case.image).permute(2, 0, 1).contiguous()  # as its decoder gives it
    left, top, right, bottom = case.box
    part = (top, left, bottom - top, right - left)

    def affine() -> torch.Tensor:
        moved = functional.affine(
            image, -case.angle, list(case.shift), case.scale, [0.0, 0.0], interpolation=InterpolationMode.BILINEAR
        )
        return functional.resize(moved, list(SIZE), antialias=True)

    def crop() -> torch.Tensor:
        if part[2:] == SIZE:
            cropped = functional.crop(image, *part)
        else:
            cropped = functional.resized_crop(image, *part, list(SIZE), antialias=True)
        return (functional.horizontal_flip(cropped) if case.flip else cropped).contiguous()

    return affine if case.is_affine else crop


def albumentations_arm(case: Case) -> Call:
    import albumentations
    import cv2

    cv2.setNumThreads(0)
    steps = []
    if case.is_affine:
        shift = {"x": (case.shift[0], case.shift[0]), "y": (case.shift[1], case.shift[1])}
        rotate, scale = (case.angle, case.angle), (case.scale, case.scale)
        steps.append(albumentations.Affine(rotate=rotate, scale=scale, translate_px=shift, shear=0, p=1.0))
    elif case.box != (0, 0, PHOTO[1], PHOTO[0]):
        steps.append(albumentations.Crop(*case.box, p=1.0))
    if (case.box[3] - case.box[1], case.box[2] - case.box[0]) != SIZE:
        steps.append(albumentations.Resize(*SIZE, p=1.0))
    if case.flip:
        steps.append(albumentations.HorizontalFlip(p=1.0))
    transform = albumentations.Compose(steps)
    return lambda: np.ascontiguousarray(transform(image=case.image)["image"])


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(runs: dict[str, list[Call]], rounds: int) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):  # the first one warms up
        for calls in zip(*runs.values(), strict=True):
            for name, call in zip(runs, calls, strict=True):
                started = time.perf_counter()
                call()
                if number:
                    seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


def reference(case: Case) -> NDArray[np.float64]:
    """Return the mean of 8 x 8 bilinear samples per pixel: float64 (224, 224, 3)."""
    image, matrix = case.image, case.matrix
    if not case.is_affine:  # a crop does not see what lies around it
        left, top, right, bottom = case.box
        image = image[top:bottom, left:right]
        matrix = window((0, 0, right - left, bottom - top), SIZE)
        matrix = matrix @ about_centre(reflections(np.array([case.flip]), np.array([False]))[0], image.shape[:2])
    (a, b, c), (d, e, f), _ = np.linalg.inv(matrix)
    height, width = image.shape[:2]
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]].astype(np.float64)
    offsets = [0.0] if image.shape[:2] == SIZE else ((np.arange(8) + 0.5) / 8 - 0.5).tolist()
    total = np.zeros((*SIZE, 3))
    for dy in offsets:
        for dx in offsets:
            x, y = a * (columns + dx) + b * (rows + dy) + c, d * (columns + dx) + e * (rows + dy) + f
            inside = (x >= -0.5) & (x < width - 0.5) & (y >= -0.5) & (y < height - 0.5)
            total += np.where(inside[..., np.newaxis], bilinear(image, x, y), 0.0)
    return total / len(offsets) ** 2


def bilinear(image: Pixels, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    height, width = image.shape[:2]
    x, y = x.clip(0, width - 1), y.clip(0, height - 1)
    left, top = np.minimum(x.astype(int), width - 2), np.minimum(y.astype(int), height - 2)
    right_share, lower_share = (x - left)[..., np.newaxis], (y - top)[..., np.newaxis]
    upper = image[top, left] * (1 - right_share) + image[top, left + 1] * right_share
    lower = image[top + 1, left] * (1 - right_share) + image[top + 1, left + 1] * right_share
    return upper * (1 - lower_share) + lower * lower_share


def psnr(found: list[object], references: list[NDArray[np.float64]]) -> str:
    errors = []
    for output, expected in zip(found, references, strict=True):
        pixels = output.permute(1, 2, 0).numpy() if isinstance(output, torch.Tensor) else np.asarray(output)
        errors.append(np.mean((pixels - expected) ** 2))
    return f"{10 * np.log10(255**2 / np.mean(errors)):6.1f} dB" if np.mean(errors) > 0 else f"{'exact':>9}"


if __name__ == "__main__":
    main()
