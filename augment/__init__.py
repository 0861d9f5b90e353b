"""Keyed randomness, the geometry of an image and its colors: pure functions of (sample, seed, epoch, sample id)."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .augmenter import ImageAugmenter
    from .blur import GaussianBlur
    from .color import ColorAugmenter
    from .crop import RandomResizedCrop
    from .erase import RandomErasing
    from .mix import CutMix, Mixed, MixUp
    from .noise import GaussianNoise, SaltAndPepperNoise
    from .random import Draw, Purpose

__all__ = [
    "ColorAugmenter",
    "CutMix",
    "Draw",
    "GaussianBlur",
    "GaussianNoise",
    "ImageAugmenter",
    "MixUp",
    "Mixed",
    "Purpose",
    "RandomErasing",
    "RandomResizedCrop",
    "SaltAndPepperNoise",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "ColorAugmenter": "color",
        "CutMix": "mix",
        "Draw": "random",
        "GaussianBlur": "blur",
        "GaussianNoise": "noise",
        "ImageAugmenter": "augmenter",
        "MixUp": "mix",
        "Mixed": "mix",
        "Purpose": "random",
        "RandomErasing": "erase",
        "RandomResizedCrop": "crop",
        "SaltAndPepperNoise": "noise",
    },
)
