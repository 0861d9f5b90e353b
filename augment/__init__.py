"""Keyed randomness and the geometry of an image: pure functions of (sample, seed, epoch, sample id)."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .augmenter import ImageAugmenter
    from .crop import RandomResizedCrop
    from .random import Draw, Purpose

__all__ = ["Draw", "ImageAugmenter", "Purpose", "RandomResizedCrop"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"Draw": "random", "ImageAugmenter": "augmenter", "Purpose": "random", "RandomResizedCrop": "crop"}
)
