"""Erasing: a random rectangle of an image is painted over."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ShapeError
from .pixels import Column, Ids, check_images, pixel_uniforms
from .random import Draw
from .ranges import Bounds, Range, as_levels, as_probability, as_range, draw_range

__all__ = ["RandomErasing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomErasing:
    """Paints over one random rectangle (Zhong and others: "Random erasing data augmentation", AAAI 2020).

    Area and shape are drawn first, then a place, each equally probable; a rectangle that is longer than a side of the
    image is cut off there, not drawn again.

    Args:
        probability: of erasing anything, 0 .. 1.
        area: of the rectangle as a part of the image, 0 .. 1: a number, or a range (lo, hi) to draw from.
        ratio: width / height of the rectangle, 0.01 .. 100; its logarithm is drawn uniformly.
        fill: 0 .. 255, what it is painted with: one number, or one per channel.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.full((1, 1, 8, 8), 100, dtype=torch.uint8)
        >>> erasing = RandomErasing(probability=1, area=0.25, ratio=1)
        >>> int((erasing.apply(images, np.array([5]), Draw()) == 0).sum())
        16
    """

    probability: float = 0.5
    area: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    fill: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", as_probability("probability", self.probability))
        object.__setattr__(self, "area", as_range("area", self.area, Bounds(0, 1)))
        object.__setattr__(self, "ratio", as_range("ratio", self.ratio, Bounds(0.01, 100)))
        object.__setattr__(self, "fill", as_levels("fill", self.fill))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return images with a rectangle erased; arguments, result and errors are ``PixelOperation``'s."""
        numbers = check_images(images, ids)
        channels = images.shape[1]
        values = self.fill if isinstance(self.fill, tuple) else (self.fill,) * channels
        if len(values) != channels:
            raise ShapeError(f"fill={self.fill} has {len(values)} values, but the images have {channels} channels")
        result = images.clone()
        paint = torch.tensor(values, dtype=torch.uint8).to(images.device, non_blocking=True).view(-1, 1, 1)
        for row, (top, left, bottom, right) in self._boxes(numbers, draw, images.shape[2], images.shape[3]):
            result[row, :, top:bottom, left:right] = paint
        return result

    def _boxes(
        self, ids: NDArray[np.int64], draw: Draw, height: int, width: int
    ) -> list[tuple[int, tuple[int, int, int, int]]]:
        """Return the rows where something is erased, each with its rectangle: top, left, bottom, right."""
        uniforms = pixel_uniforms(ids, draw, Column.ERASING, 5)
        areas = draw_range(self.area, uniforms[:, 1]) * height * width
        low, high = self.ratio if isinstance(self.ratio, tuple) else (self.ratio, self.ratio)
        ratios = np.exp(draw_range((math.log(low), math.log(high)), uniforms[:, 2]))
        heights = np.minimum(np.rint(np.sqrt(areas / ratios)), height)
        widths = np.minimum(np.rint(np.sqrt(areas * ratios)), width)
        tops = np.floor(uniforms[:, 3] * (height - heights + 1))
        lefts = np.floor(uniforms[:, 4] * (width - widths + 1))
        boxes = np.stack((tops, lefts, tops + heights, lefts + widths), axis=1).astype(np.int64)
        rows = np.flatnonzero(uniforms[:, 0] < self.probability).tolist()
        return [(row, tuple(boxes[row].tolist())) for row in rows]
