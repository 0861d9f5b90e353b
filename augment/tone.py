"""Curves of tone: each value of an image becomes another one, by a rule that is drawn, or made from the image itself.

The formulas are those of Pillow's ``ImageOps``, which the papers on augmentation policies build on, and after it of
torchvision's ``transforms.v2.functional``. All of it is arithmetic on whole numbers, so it is exact on any device.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError
from .pixels import Column, Ids, change_rows, check_images, pixel_uniforms
from .random import Draw
from .ranges import Bounds, Range, as_probability, as_range, draw_range

__all__ = [
    "AutoContrast",
    "Equalize",
    "Posterize",
    "Solarize",
    "autocontrasted",
    "equalized",
    "posterized",
    "solarized",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterize:
    """Keeps the upper bits of each value and clears the others.

    Args:
        bits: 1 .. 8, how many are kept: a whole number, or a range (lo, hi) of which each is equally probable.
        probability: of any change, 0 .. 1.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.tensor([0, 63, 64, 255], dtype=torch.uint8).view(1, 1, 1, 4)
        >>> Posterize(bits=2).apply(images, np.array([5]), Draw()).flatten().tolist()
        [0, 0, 64, 192]
    """

    bits: int | tuple[int, int]
    probability: float = 1.0

    def __post_init__(self) -> None:
        bits = as_range("bits", self.bits, Bounds(1, 8))
        if not all(isinstance(end, int) for end in (bits if isinstance(bits, tuple) else (bits,))):
            raise ConfigError(f"bits must be whole numbers, got {self.bits!r}")
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return posterized images; arguments, result and errors are ``PixelOperation``'s."""
        uniforms = pixel_uniforms(check_images(images, ids), draw, Column.POSTERIZE, 2)
        low, high = self.bits if isinstance(self.bits, tuple) else (self.bits, self.bits)
        bits = np.floor(draw_range((low, high + 1), uniforms[:, 0]))
        return posterized(images, np.where(uniforms[:, 1] < self.probability, bits, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Solarize:
    """Inverts the values from a threshold on.

    Args:
        threshold: 0 .. 256: values at or above it are inverted; 256 changes nothing. A number, or a range (lo, hi).
        probability: of any change, 0 .. 1.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.tensor([0, 127, 128, 255], dtype=torch.uint8).view(1, 1, 1, 4)
        >>> Solarize(threshold=128).apply(images, np.array([5]), Draw()).flatten().tolist()
        [0, 127, 127, 0]
    """

    threshold: Range
    probability: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", as_range("threshold", self.threshold, Bounds(0, 256)))
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return solarized images; arguments, result and errors are ``PixelOperation``'s."""
        uniforms = pixel_uniforms(check_images(images, ids), draw, Column.SOLARIZE, 2)
        thresholds = draw_range(self.threshold, uniforms[:, 0])
        return solarized(images, np.where(uniforms[:, 1] < self.probability, thresholds, 256))


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoContrast:
    """Stretches each channel so that its smallest value becomes 0 and its largest 255.

    Args:
        probability: of any change, 0 .. 1.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.tensor([100, 110, 150], dtype=torch.uint8).view(1, 1, 1, 3)
        >>> AutoContrast().apply(images, np.array([5]), Draw()).flatten().tolist()
        [0, 51, 255]
    """

    probability: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return stretched images; arguments, result and errors are ``PixelOperation``'s."""
        uniforms = pixel_uniforms(check_images(images, ids), draw, Column.AUTO_CONTRAST, 1)[:, 0]
        result = images.clone()
        change_rows(result, np.flatnonzero(uniforms < self.probability), lambda part, _: autocontrasted(part))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Equalize:
    """Spreads the values of each channel so that all of them are about equally frequent.

    Args:
        probability: of any change, 0 .. 1.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.arange(100, 116, dtype=torch.uint8).repeat(64).view(1, 1, 32, 32)
        >>> Equalize().apply(images, np.array([5]), Draw())[0, 0, 0, :6].tolist()
        [0, 21, 43, 64, 85, 107]
    """

    probability: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return equalized images; arguments, result and errors are ``PixelOperation``'s."""
        uniforms = pixel_uniforms(check_images(images, ids), draw, Column.EQUALIZE, 1)[:, 0]
        result = images.clone()
        change_rows(result, np.flatnonzero(uniforms < self.probability), lambda part, _: equalized(part))
        return result


def posterized(images: torch.Tensor, bits: NDArray[np.float64]) -> torch.Tensor:
    """Keep the upper bits of each value.

    Args:
        images: uint8 (n, C, H, W).
        bits: float64 (n,), whole numbers in 0 .. 8.

    Returns:
        uint8 (n, C, H, W), a new tensor.
    """
    masks = (255 - (2.0 ** (8 - bits) - 1)).astype(np.uint8)
    return images & torch.from_numpy(masks).to(images.device, non_blocking=True).view(-1, 1, 1, 1)


def solarized(images: torch.Tensor, thresholds: NDArray[np.float64]) -> torch.Tensor:
    """Invert the values at or above each image's threshold, 0 .. 256; arguments and result as for ``posterized``."""
    lowest = np.ceil(thresholds).astype(np.int16)
    limits = torch.from_numpy(lowest).to(images.device, non_blocking=True).view(-1, 1, 1, 1)
    inverted = (images >= limits).to(torch.uint8).mul_(255)
    return inverted.bitwise_xor_(images)


def autocontrasted(images: torch.Tensor) -> torch.Tensor:
    """Stretch each channel to 0 .. 255, rounded to the nearest value; a channel of one value stays as it is.

    Args:
        images: uint8 (n, C, H, W).

    Returns:
        uint8 (n, C, H, W), a new tensor.
    """
    smallest = images.amin((2, 3)).to(torch.int32).unsqueeze(-1)
    spread = images.amax((2, 3)).to(torch.int32).unsqueeze(-1) - smallest
    values = torch.arange(256, dtype=torch.int32, device=images.device)
    above = (values - smallest).clamp_(min=0)
    stretched = (above * 510 + spread).div(2 * spread.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    return _looked_up(images, torch.where(spread > 0, stretched, values).to(torch.uint8))


def equalized(images: torch.Tensor) -> torch.Tensor:
    """Equalize each channel's histogram, by the rule of Pillow's ``ImageOps.equalize``.

    A channel whose pixels, less those of the largest value, are fewer than 255 stays as it is.

    Args:
        images: uint8 (n, C, H, W).

    Returns:
        uint8 (n, C, H, W), a new tensor.
    """
    count, channels, height, width = images.shape
    histograms = torch.zeros(count * channels * 256, dtype=torch.int32, device=images.device)
    places = _places(images).view(-1)
    histograms.index_add_(0, places, torch.ones(1, dtype=torch.int32, device=images.device).expand(len(places)))
    below = histograms.view(count, channels, 256).cumsum(-1, dtype=torch.int32)
    most = images.amax((2, 3)).to(torch.int64).unsqueeze(-1)
    largest = histograms.view(count, channels, 256).gather(-1, most)
    step = (height * width - largest).div(255, rounding_mode="floor")
    shifted = torch.nn.functional.pad(below[..., :-1], (1, 0))
    half = step.div(2, rounding_mode="floor")
    spread = (shifted + half).div(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    values = torch.arange(256, dtype=torch.int32, device=images.device)
    return _looked_up(images, torch.where(step > 0, spread, values).to(torch.uint8))


def _looked_up(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Return what tables of 256 values, one per image and channel, say: uint8 (n, C, 256) -> uint8 (n, C, H, W)."""
    return tables.reshape(-1).index_select(0, _places(images).view(-1)).view(images.shape)


def _places(images: torch.Tensor) -> torch.Tensor:
    """Return where each value lies in such tables: int32 (n, C, H, W), contiguous."""
    count, channels = images.shape[:2]
    places = images.to(torch.int32, memory_format=torch.contiguous_format)
    places += torch.arange(0, 256 * count * channels, 256, dtype=torch.int32, device=images.device).view(
        count, channels, 1, 1
    )
    return places
