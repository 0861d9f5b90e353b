"""Noise: its strength is drawn for each sample, its field by a hash of the pixel's place and the sample's key.

A field needs a number for each value of an image, on a GPU the same ones as on a CPU, so they are counted and hashed:
two rounds of a 32-bit integer hash ("lowbias32", C. Wellons, hash-prospector, public domain), each of them keyed by 32
bits of Philox. That takes a quarter of the time of Philox itself, which is worth it for numbers that end in eight bits.
"""

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from .pixels import Column, Ids, blocks, check_images, column, pixel_uniforms, to_bytes
from .random import Draw, Purpose
from .ranges import Bounds, Range, as_range, draw_range

__all__ = ["GaussianNoise", "SaltAndPepperNoise", "noise_bits"]

_LEVELS = 1 << 16
_GAUSSIAN_KEYS, _SALT_KEYS = 0, 2  # columns of Purpose.NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise:
    """Adds normal noise, independent for each pixel and channel.

    It has 65536 levels and ends at 4.3 standard deviations.

    Args:
        sigma: standard deviation as a part of 255, 0 .. 10: a number, or a range (lo, hi) to draw from.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.full((1, 3, 8, 8), 100, dtype=torch.uint8)
        >>> bool(GaussianNoise(sigma=0.1).apply(images, np.array([5]), Draw()).float().std() > 10)
        True
    """

    sigma: Range

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", as_range("sigma", self.sigma, Bounds(0, 10)))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return noisy images; arguments, result and errors are ``PixelOperation``'s."""
        numbers = check_images(images, ids)
        sigmas = 255 * draw_range(self.sigma, pixel_uniforms(numbers, draw, Column.NOISE, 1)[:, 0])
        keys = _keys(numbers, draw, _GAUSSIAN_KEYS)
        table = _normal_quantiles(images.device)
        result = torch.empty_like(images)
        for rows in blocks(images):
            planes = images[rows].to(torch.float32, memory_format=torch.contiguous_format, copy=True)
            places = noise_bits(keys[rows], planes[0].numel(), images.device).bitwise_and_(_LEVELS - 1)
            field = table.index_select(0, places.view(-1)).view(planes.shape)
            result[rows] = to_bytes(planes.add_(field.mul_(column(sigmas[rows], planes))).clamp_(0, 255))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltAndPepperNoise:
    """Makes single pixels black or white, each with the same probability, in all channels at once.

    Args:
        amount: share of the pixels that change, 0 .. 1: a number, or a range (lo, hi) to draw from.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.full((1, 3, 9, 9), 100, dtype=torch.uint8)
        >>> SaltAndPepperNoise(amount=0.5).apply(images, np.array([5]), Draw()).unique().tolist()
        [0, 100, 255]
    """

    amount: Range

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", as_range("amount", self.amount, Bounds(0, 1)))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return noisy images; arguments, result and errors are ``PixelOperation``'s."""
        numbers = check_images(images, ids)
        amounts = draw_range(self.amount, pixel_uniforms(numbers, draw, Column.SALT_AND_PEPPER, 1)[:, 0])
        keys = _keys(numbers, draw, _SALT_KEYS)
        result = torch.empty_like(images)
        height, width = images.shape[2:]
        for rows in blocks(images):
            bits = noise_bits(keys[rows], height * width, images.device).bitwise_and_(_LEVELS - 1)
            levels = torch.from_numpy(np.rint(amounts[rows] * _LEVELS).astype(np.int32))
            changed = levels.to(images.device, non_blocking=True)
            field = bits.sub_(changed.view(-1, 1)).view(-1, 1, height, width)  # below 0 where a pixel changes
            mask = (field >> 31).to(torch.uint8)  # 255 there, else 0
            salt = field.bitwise_and_(1).mul_(255).to(torch.uint8).bitwise_and_(mask)
            kept = images[rows].contiguous().bitwise_and(mask.bitwise_not_())
            result[rows] = kept.bitwise_or_(salt)
        return result


def noise_bits(keys: NDArray[np.int32], count: int, device: torch.device) -> torch.Tensor:
    """Return ``count`` uniform whole numbers for each sample: int32 (n, count), all 32 bits of them random.

    Args:
        keys: int32 (n, 2), of each sample.
        count: numbers per sample, below 2**32.
        device: where they are made; the numbers are the same everywhere.
    """
    key = torch.from_numpy(keys).to(device, non_blocking=True)
    bits = torch.arange(count, dtype=torch.int32, device=device) ^ key[:, :1]
    return _mixed(_mixed(bits).add_(key[:, 1:]))


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """Mix int32 in place; shifts are logical, multiplications modulo 2**32."""
    bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    bits.bitwise_xor_((bits >> 15).bitwise_and_(0x1FFFF)).mul_(0x846CA68B - (1 << 32))
    return bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF))


def _keys(ids: NDArray[np.int64], draw: Draw, first: int) -> NDArray[np.int32]:
    uniforms = draw.uniforms(ids, Purpose.NOISE, first + 2)[:, first:]
    return (uniforms * 2.0**32).astype(np.uint32).view(np.int32)


@cache
def _normal_quantiles(device: torch.device) -> torch.Tensor:
    """Return the normal distribution as 65536 numbers of equal probability, float32; made once, in 30 ms."""
    normal = NormalDist()
    return torch.tensor([normal.inv_cdf((i + 0.5) / _LEVELS) for i in range(_LEVELS)], dtype=torch.float32).to(device)
