"""Sharpness: an image moves from, or to, a smoothed copy of itself."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .pixels import Column, Ids, blocks, check_images, column, pixel_uniforms, to_bytes
from .random import Draw
from .ranges import Bounds, Range, as_probability, as_range, draw_range

__all__ = ["Sharpness", "adjust_sharpness"]

_CENTRE = 5.0  # weight of the pixel itself, where each of its eight neighbours has 1
_SHARE = 1.0 / 13.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """Makes images sharper or smoother.

    The smoothed copy and the blend are those of Pillow's ``ImageEnhance.Sharpness``, and of torchvision's
    ``adjust_sharpness``: weights 1 for the eight neighbours of a pixel and 5 for itself, and pixels on the border stay
    as they are. The result is within one level of torchvision's, which cuts off where this rounds.

    Args:
        factor: of the distance to the smoothed copy, 0 .. 1000; 0 is the copy itself, 1 changes nothing. A number, or a
            range (lo, hi) to draw from.
        probability: of any change, 0 .. 1.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.tensor([0, 0, 0, 0, 130, 0, 0, 0, 0], dtype=torch.uint8).view(1, 1, 3, 3)
        >>> Sharpness(factor=0).apply(images, np.array([5]), Draw()).flatten().tolist()
        [0, 0, 0, 0, 50, 0, 0, 0, 0]
    """

    factor: Range
    probability: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", as_range("factor", self.factor, Bounds(0, 1000)))
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return sharper or smoother images; arguments, result and errors are ``PixelOperation``'s."""
        uniforms = pixel_uniforms(check_images(images, ids), draw, Column.SHARPNESS, 2)
        factors = np.where(uniforms[:, 1] < self.probability, draw_range(self.factor, uniforms[:, 0]), 1.0)
        result = torch.empty_like(images)
        for rows in blocks(images):
            planes = images[rows].to(torch.float32, memory_format=torch.contiguous_format, copy=True)
            adjust_sharpness(planes, factors[rows])
            result[rows] = to_bytes(planes)
        return result


def adjust_sharpness(planes: torch.Tensor, factors: NDArray[np.float64]) -> None:
    """Move all values from or to their smoothed copy, in place.

    Args:
        planes: float32 (n, C, H, W), whole numbers in 0 .. 255.
        factors: float64 (n,), >= 0.
    """
    height, width = planes.shape[2:]
    if height < 3 or width < 3:
        return
    inner = planes[:, :, 1:-1, 1:-1]
    smooth = inner * (_CENTRE - 1.0)
    across = planes[..., :-2] + planes[..., 1:-1]
    across.add_(planes[..., 2:])
    for top in range(3):
        smooth.add_(across[:, :, top : top + height - 2])
    smooth.mul_(_SHARE).round_()  # sums of whole numbers are exact, and 13 parts have no half
    factor = column(factors, planes)
    inner.mul_(factor).add_(smooth.mul_(1 - factor)).clamp_(0, 255)
