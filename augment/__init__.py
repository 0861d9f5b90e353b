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
    from .normalize import Normalize
    from .pixels import apply_all
    from .policy import RandAugment, TrivialAugment
    from .random import Draw, Purpose
    from .sharpen import Sharpness
    from .tone import AutoContrast, Equalize, Posterize, Solarize

__all__ = [
    "AutoContrast",
    "ColorAugmenter",
    "CutMix",
    "Draw",
    "Equalize",
    "GaussianBlur",
    "GaussianNoise",
    "ImageAugmenter",
    "MixUp",
    "Mixed",
    "Normalize",
    "Posterize",
    "Purpose",
    "RandAugment",
    "RandomErasing",
    "RandomResizedCrop",
    "SaltAndPepperNoise",
    "Sharpness",
    "Solarize",
    "TrivialAugment",
    "apply_all",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AutoContrast": "tone",
        "ColorAugmenter": "color",
        "CutMix": "mix",
        "Draw": "random",
        "Equalize": "tone",
        "GaussianBlur": "blur",
        "GaussianNoise": "noise",
        "ImageAugmenter": "augmenter",
        "MixUp": "mix",
        "Mixed": "mix",
        "Normalize": "normalize",
        "Posterize": "tone",
        "Purpose": "random",
        "RandAugment": "policy",
        "RandomErasing": "erase",
        "RandomResizedCrop": "crop",
        "SaltAndPepperNoise": "noise",
        "Sharpness": "sharpen",
        "Solarize": "tone",
        "TrivialAugment": "policy",
        "apply_all": "pixels",
    },
)
