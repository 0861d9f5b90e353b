"""Blur: a gaussian of a random width, separable, in additions and multiplications of fixed order."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .pixels import Column, Ids, blocks, check_images, column, pixel_uniforms, to_bytes
from .random import Draw
from .ranges import Bounds, Range, as_probability, as_range, draw_range

__all__ = ["GaussianBlur"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianBlur:
    """Blurs images by a gaussian; beyond its edges an image is mirrored.

    The kernel reaches three times the largest ``sigma`` to either side, and so costs time in proportion to it.

    Args:
        sigma: standard deviation in pixels, 0 .. 100: a number, or a range (lo, hi) to draw from.
        probability: of being blurred at all, 0 .. 1.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
        >>> images[0, 0, 4, 4] = 255
        >>> GaussianBlur(sigma=1.0).apply(images, np.array([5]), Draw())[0, 0, 4, 2:7].tolist()
        [5, 25, 41, 25, 5]
    """

    sigma: Range
    probability: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", as_range("sigma", self.sigma, Bounds(0, 100)))
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return blurred images; arguments, result and errors are ``PixelOperation``'s."""
        uniforms = pixel_uniforms(check_images(images, ids), draw, Column.BLUR, 2)
        sigmas = draw_range(self.sigma, uniforms[:, 0]) * (uniforms[:, 1] < self.probability)
        weights = self._weights(sigmas)
        result = torch.empty_like(images)
        for rows in blocks(images):
            planes = images[rows].to(torch.float32, memory_format=torch.contiguous_format)
            for axis in (2, 3):
                planes = _blurred(planes, weights[rows], axis)
            result[rows] = to_bytes(planes.clamp_(0, 255))
        return result

    def _weights(self, sigmas: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights of the places at distance 0, 1, ... from the centre, float64 (n, radius + 1)."""
        radius = math.ceil(3 * float(np.max(self.sigma)))
        steps = np.arange(radius + 1) / np.maximum(sigmas, 1e-3)[:, np.newaxis]
        weights = np.exp(-0.5 * np.minimum(steps, 30.0) ** 2)
        whole: NDArray[np.float64] = weights / (2 * weights.sum(axis=1, keepdims=True) - 1)
        return whole


def _blurred(planes: torch.Tensor, weights: NDArray[np.float64], axis: int) -> torch.Tensor:
    size, radius = planes.shape[axis], weights.shape[1] - 1
    places = torch.from_numpy(_mirrored(size, radius)).to(planes.device, non_blocking=True)
    padded = planes.index_select(axis, places)
    result = padded.narrow(axis, radius, size) * column(weights[:, 0], planes)
    for step in range(1, radius + 1):
        both = padded.narrow(axis, radius - step, size) + padded.narrow(axis, radius + step, size)
        result.add_(both.mul_(column(weights[:, step], planes)))
    return result


def _mirrored(size: int, radius: int) -> NDArray[np.int64]:
    """Return the places -radius .. size + radius - 1 as places inside: ... 2 1 0 1 2 ..., however small the image."""
    period = max(1, 2 * (size - 1))
    places = np.arange(-radius, size + radius) % period
    return np.minimum(places, period - places) if size > 1 else np.zeros_like(places)
