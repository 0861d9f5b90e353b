"""Colors at random: gamma, brightness, contrast, saturation and hue of each image.

The formulas are those of torchvision's ``transforms.v2.functional`` (``adjust_gamma``, ``adjust_brightness`` and so
on), which follow Pillow's ``ImageEnhance``. Two things differ: the order is fixed, and values are rounded once at the
end, not cut off after each step. One step alone is within two levels of torchvision's, for
factors up to 3.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .pixels import Column, Ids, blocks, check_images, column, pixel_uniforms, to_bytes
from .random import Draw
from .ranges import Bounds, Range, as_range, draw_range

__all__ = [
    "ColorAugmenter",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "gamma_planes",
    "luma",
]

#: The column of its uniform number for each parameter: part of every result, so never reordered. Switching one
#: parameter on leaves the draws of the others as they were.
_COLUMNS = ("brightness", "contrast", "saturation", "hue", "gamma")
_BOUNDS = {"hue": Bounds(-0.5, 0.5), "gamma": Bounds(0.01, 100)}
_FACTOR = Bounds(0, 1000)
_NEUTRAL = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0, "gamma": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColorAugmenter:
    """Changes the colors of each image at random; nothing changes by default.

    A number means "always this much", a pair (lo, hi) is drawn uniformly. The steps are made in the order gamma,
    brightness, contrast, saturation, hue; between two steps values are held within 0 .. 255 but not rounded. What
    sample i gets in epoch e depends on the seed, e and i only, and is the same to the bit on a CPU and on a GPU.
    Images of one channel have neither saturation nor hue: these two leave them as they are.

    Args:
        brightness: factor of all values, 0 .. 1000; 0 is black, 1 changes nothing.
        contrast: factor of the distance to the image's mean gray, 0 .. 1000; 0 is plain gray.
        saturation: factor of the distance to each pixel's own gray, 0 .. 1000; 0 is a gray image.
        hue: turns of the color circle, -0.5 .. 0.5, which both mean the opposite color.
        gamma: exponent of the values as parts of 255, 0.01 .. 100; more than 1 darkens the shadows.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> color = ColorAugmenter(brightness=(0.6, 1.4), saturation=(0.6, 1.4), hue=(-0.1, 0.1))
        >>> images = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
        >>> changed = color.apply(images, np.array([5, 6]), Draw(seed=1))
        >>> changed.shape, changed.dtype
        (torch.Size([2, 3, 8, 8]), torch.uint8)
    """

    brightness: Range = 1.0
    contrast: Range = 1.0
    saturation: Range = 1.0
    hue: Range = 0.0
    gamma: Range = 1.0

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            object.__setattr__(self, name, as_range(name, getattr(self, name), _BOUNDS.get(name, _FACTOR)))

    def sample_values(self, ids: NDArray[np.int64], draw: Draw) -> dict[str, NDArray[np.float64]]:
        """Return what each sample gets: name of the parameter -> float64 (n,).

        Args:
            ids: int64 (n,), sample ids; what one gets does not depend on the others.
            draw: the random world.
        """
        uniforms = pixel_uniforms(ids, draw, Column.COLOR, len(_COLUMNS))
        return {name: draw_range(getattr(self, name), uniforms[:, i]) for i, name in enumerate(_COLUMNS)}

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return the images in other colors; a datastore calls it for its rows, you may call it for a batch on a GPU.

        Args:
            images: uint8 (N, C, H, W), C = 1 or 3 (RGB), on any device, in any memory layout; they are not changed.
            ids: int64 (N,), sample ids; best not on a GPU, since they are needed on the host.
            draw: the random world.

        Returns:
            uint8 (N, C, H, W) on the same device in the same memory layout.

        Raises:
            ShapeError: these are no such images.
        """
        values = self.sample_values(check_images(images, ids, (1, 3)), draw)
        result = torch.empty_like(images)
        for rows in blocks(images):
            result[rows] = self._changed(images[rows], {name: numbers[rows] for name, numbers in values.items()})
        return result

    def _changed(self, images: torch.Tensor, values: dict[str, NDArray[np.float64]]) -> torch.Tensor:
        if self._is_off("gamma"):
            planes = images.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        else:
            planes = gamma_planes(images, values["gamma"])
        for name, adjust in _STEPS:
            if not self._is_off(name) and (images.shape[1] == 3 or name not in ("saturation", "hue")):
                adjust(planes, values[name])
        return to_bytes(planes)

    def _is_off(self, name: str) -> bool:
        neutral = _NEUTRAL[name]
        return getattr(self, name) in (neutral, (neutral, neutral))


def gamma_planes(images: torch.Tensor, exponents: NDArray[np.float64]) -> torch.Tensor:
    """Return 255 (v / 255) ** exponent as float32 planes, from one table of 256 values per image.

    Args:
        images: uint8 (n, C, H, W).
        exponents: float64 (n,), > 0.
    """
    tables = 255 * (np.arange(256) / 255) ** exponents[:, np.newaxis]
    table = torch.from_numpy(tables.astype(np.float32)).to(images.device, non_blocking=True)
    places = images.to(torch.int64, memory_format=torch.contiguous_format)
    places += torch.arange(0, 256 * len(images), 256, device=images.device).view(-1, 1, 1, 1)
    return table.view(-1).index_select(0, places.view(-1)).view(places.shape)


def adjust_brightness(planes: torch.Tensor, factors: NDArray[np.float64]) -> None:
    """Multiply all values, in place.

    Args:
        planes: float32 (n, C, H, W) in 0 .. 255.
        factors: float64 (n,), >= 0.
    """
    planes.mul_(column(factors, planes)).clamp_(max=255)


def adjust_contrast(planes: torch.Tensor, factors: NDArray[np.float64]) -> None:
    """Move all values from or to the mean of the image's gray, in place; arguments as for ``adjust_brightness``."""
    gray = luma(planes).round_()
    means = gray.sum((1, 2, 3), keepdim=True, dtype=torch.float64).mul_(1 / gray[0].numel()).to(torch.float32)
    factor = column(factors, planes)
    planes.mul_(factor).add_(means.mul_(1 - factor)).clamp_(0, 255)


def adjust_saturation(planes: torch.Tensor, factors: NDArray[np.float64]) -> None:
    """Move all values from or to their pixel's gray, in place; arguments as for ``adjust_brightness``, C = 3."""
    gray, factor = luma(planes), column(factors, planes)
    planes.mul_(factor).add_(gray.mul_(1 - factor)).clamp_(0, 255)


def adjust_hue(planes: torch.Tensor, turns: NDArray[np.float64]) -> None:
    """Turn the hue of each pixel and keep the largest and smallest of its three values, in place.

    The hexagon of HSV (Smith: "Color gamut transform pairs", SIGGRAPH 1978), written without branches.

    Args:
        planes: float32 (n, 3, H, W) in 0 .. 255.
        turns: float64 (n,), of the whole circle.
    """
    red, green, blue = planes.split(1, dim=1)
    largest = torch.maximum(torch.maximum(red, green), blue)
    smallest = torch.minimum(torch.minimum(red, green), blue)
    # 0 where red (green) is the largest, else 1; where two are, the first of them counts
    not_red, not_green = (largest - red).sign_(), (largest - green).sign_()
    from_green, from_red = blue - red, green - blue
    numerator = from_green + not_green * ((red - green) - from_green)
    numerator = from_red + not_red * (numerator - from_red)
    chroma = largest - smallest
    hue = numerator.div_(chroma.clamp(min=1e-9)).add_(not_green.add_(1).mul_(2).mul_(not_red))
    hue.add_(column(turns * 6, planes))
    hue.sub_((hue * (1 / 6)).floor_().mul_(6))  # 0 .. 6: red is at 0, green at 2, blue at 4
    share_red = (hue - 3).abs_().sub_(1)
    share_green = (hue - 2).abs_().neg_().add_(2)
    share_blue = hue.sub_(4).abs_().neg_().add_(2)
    for plane, share in ((red, share_red), (green, share_green), (blue, share_blue)):
        plane.copy_(share.clamp_(0, 1).mul_(chroma).add_(smallest))


def luma(planes: torch.Tensor) -> torch.Tensor:
    """Return the gray of RGB planes, float32 (n, 1, H, W): 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601)."""
    if planes.shape[1] == 1:
        return planes.clone()
    red, green, blue = planes.split(1, dim=1)
    gray: torch.Tensor = (red * 0.299).add_(green * 0.587).add_(blue * 0.114)
    return gray


#: What follows gamma, in this order.
_STEPS = (
    ("brightness", adjust_brightness),
    ("contrast", adjust_contrast),
    ("saturation", adjust_saturation),
    ("hue", adjust_hue),
)
