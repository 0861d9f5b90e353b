"""Normalising: the last step before a model, from bytes to floats around zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import ConfigError, ShapeError

__all__ = ["Normalize"]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalize:
    """Makes floats of bytes: (value / 255 - mean) / std in each channel.

    That is one multiplication and one addition in float32, so the bits are the same on every device; torchvision's
    ``ToDtype(float32, scale=True)`` and ``Normalize`` after it differ from it by their rounding, by less than
    3e-7 / std.

    Models that were trained on ImageNet mostly expect ``mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)``.

    Args:
        mean: of each channel, as a part of 255; one number, or one per channel.
        std: of each channel, > 0, as a part of 255.

    Raises:
        ConfigError: numbers that are not finite, a ``std`` that is not above 0, different numbers of channels, or
            results that float32 cannot hold.

    Example:
        >>> images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
        >>> Normalize(mean=(0.5, 0.0, 0.5), std=(0.5, 0.2, 0.25)).apply(images).flatten().tolist()
        [-1.0, 1.0, 2.0]
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def __post_init__(self) -> None:
        means, stds = _numbers("mean", self.mean), _numbers("std", self.std)
        if min(stds) <= 0:
            raise ConfigError(f"std must be above 0, got {self.std}")
        if len(means) != len(stds):
            raise ConfigError(f"mean and std must have as many channels, got {self.mean} and {self.std}")
        if any((1 + abs(mean)) > _LARGEST * std for mean, std in zip(means, stds, strict=True)):
            raise ConfigError(f"mean={self.mean} and std={self.std} make numbers that are too large for float32")
        object.__setattr__(self, "mean", means)  # of one form, so that equal settings have equal fingerprints
        object.__setattr__(self, "std", stds)

    def apply(self, images: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return normalised images.

        Args:
            images: uint8 (N, C, H, W) on any device, in any memory layout; they are not changed.
            out: float32 (N, C, H, W) in the same memory layout to write into; a new tensor by default.

        Returns:
            ``out``, float32 (N, C, H, W) on the same device in the same memory layout.

        Raises:
            ShapeError: these are no such images, or have another number of channels.
        """
        means, stds = _numbers("mean", self.mean), _numbers("std", self.std)
        if images.dtype != torch.uint8 or images.ndim != 4 or len(means) not in (1, images.shape[1]):
            found = f"{str(images.dtype).removeprefix('torch.')} {tuple(images.shape)}"
            raise ShapeError(f"mean={self.mean} and std={self.std} need uint8 images (N, C, H, W), got {found}")
        channels, width = images.shape[1], images.shape[3]
        factors = [1 / (255 * std) for std in stds] * (channels // len(means))
        shifts = [-mean / std for mean, std in zip(means, stds, strict=True)] * (channels // len(means))
        result = torch.empty_like(images, dtype=torch.float32) if out is None else out
        planes, target = images.permute(0, 2, 3, 1), result.permute(0, 2, 3, 1)
        if planes.is_contiguous() and target.is_contiguous():  # rows of W * C numbers, taken by eights
            planes, target = planes.flatten(2), target.flatten(2)
            factors, shifts = factors * width, shifts * width
        torch.mul(planes, _vector(factors, images.device), out=target).add_(_vector(shifts, images.device))
        return result


def _numbers(name: str, value: float | Sequence[float]) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, (list, tuple, np.ndarray)) else (value,)
    if not values or not all(isinstance(v, (int, float, np.number)) and math.isfinite(v) for v in values):
        raise ConfigError(f"{name} must be a finite number, or one per channel, got {value!r}")
    return tuple(float(v) for v in values)


def _vector(numbers: list[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32).to(device, non_blocking=True)
