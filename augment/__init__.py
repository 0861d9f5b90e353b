"""Keyed randomness, the geometry of an image and its colors: pure functions of (sample, seed, epoch, sample id)."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .augmenter import ImageAugmenter
    from .color import ColorAugmenter
    from .crop import RandomResizedCrop
    from .random import Draw

__all__ = ["ColorAugmenter", "Draw", "ImageAugmenter", "RandomResizedCrop"]

__getattr__ = lazy_exports(
    __name__,
    {"ColorAugmenter": "color", "Draw": "random", "ImageAugmenter": "augmenter", "RandomResizedCrop": "crop"},
)
