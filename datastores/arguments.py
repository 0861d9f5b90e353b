"""What ``AugmentedImageDatastore`` is told to do: each value in its argument, or an error that names the right one."""

import inspect
from collections.abc import Sequence
from typing import Any

from ..augment.augmenter import ImageAugmenter
from ..augment.crop import CenterCrop, Crop, Letterbox, RandomCrop, RandomResizedCrop, Resize, ResizedCenterCrop
from ..augment.mix import CutMix, MixUp
from ..augment.normalize import Normalize
from ..augment.pixels import PixelOperation
from ..augment.policy import Movements, Policy
from ..augment.ranges import shown
from ..errors import ConfigError

__all__ = ["as_augmenter", "as_crop", "as_movements", "as_operations", "is_operation", "right_place"]

_MODES = ("resize", "letterbox", "center_crop", "resized_center_crop", "random_crop", "random_resized_crop")


def right_place(value: object) -> str:
    """Say where a value belongs that was given to an argument which cannot use it.

    Example:
        >>> right_place(ImageAugmenter(x_reflection=True))
        'ImageAugmenter belongs to AugmentedImageDatastore(..., augment=...)'
        >>> right_place(Normalize)
        'this is a class: write Normalize(...)'
    """
    name = type(value).__name__
    if isinstance(value, type):
        return f"this is a class: write {value.__name__}(...)"
    if isinstance(value, ImageAugmenter):
        return f"{name} belongs to {_argument('augment')}"
    if isinstance(value, Normalize):
        return "Normalize belongs to normalize(data, ...), or to fit(..., prepare=normalized_images(...))"
    if isinstance(value, (MixUp, CutMix)):
        return f"{name} mixes the rows of whole batches: apply it in the training loop"
    if _is_movements(value):
        return f"{name} belongs to {_argument('policy')}"
    if _is_crop(value):
        return f"{name} belongs to {_argument('mode')}"
    if is_operation(value):
        return f"{name} belongs to {_argument('photometric')}"
    if isinstance(value, (list, tuple)):
        return "one value is wanted, not several"
    if callable(value):
        return "functions, and transforms of torchvision or albumentations, belong to transform(data, ...)"
    return "it is nothing that changes images"


def as_augmenter(value: Any) -> ImageAugmenter | None:
    """Return what ``augment=`` was given.

    Raises:
        ConfigError: it is something else than an ``ImageAugmenter`` or None.
    """
    if value is None or isinstance(value, ImageAugmenter):
        return value
    raise _misplaced("augment", "an ImageAugmenter(...)", value)


def as_movements(value: Any) -> Movements | None:
    """Return what ``policy=`` was given.

    Raises:
        ConfigError: it is no policy.
    """
    if value is None or _is_movements(value):
        return value  # type: ignore[no-any-return]  # just checked
    raise _misplaced("policy", "TrivialAugment(), RandAugment(...) or .geometry of one", value)


def as_operations(value: Any) -> tuple[PixelOperation, ...]:
    """Return what ``photometric=`` was given as a tuple; None is none.

    Raises:
        ConfigError: something in it is no operation on pixels, or does more than that.
    """
    if value is None:
        return ()
    operations = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for operation in operations:
        if _is_movements(operation) or not is_operation(operation):
            raise _misplaced("photometric", "operations on pixels such as ColorAugmenter(...)", operation)
    return operations


def as_crop(mode: Any, scale: tuple[float, float] | None, ratio: tuple[float, float] | None) -> Crop:
    """Return what ``mode=``, ``crop_scale=`` and ``crop_ratio=`` ask for.

    Raises:
        ConfigError: there is no such mode, or the other two do not belong to it.
    """
    if isinstance(mode, str) and mode == "random_resized_crop":
        usual = RandomResizedCrop()
        return RandomResizedCrop(usual.scale if scale is None else scale, usual.ratio if ratio is None else ratio)
    if scale is not None or ratio is not None:
        raise ConfigError(f'crop_scale and crop_ratio belong to mode="random_resized_crop", not to mode={mode!r}')
    if not isinstance(mode, str):
        if not _is_crop(mode):
            raise _misplaced("mode", "the name of a mode, or a crop such as RandomResizedCrop(...)", mode)
        return mode  # type: ignore[no-any-return]  # just checked
    plain: tuple[Crop, ...] = (Resize(), Letterbox(), CenterCrop(), ResizedCenterCrop(), RandomCrop())
    if mode not in _MODES:
        raise ConfigError(f"mode must be one of {', '.join(map(repr, _MODES))}, or a crop, got {mode!r}")
    return plain[_MODES.index(mode)]


def is_operation(value: object) -> bool:
    """Whether a value has the method ``apply(images, ids, draw)`` of a ``PixelOperation``.

    Many things have a method of that name: a torch module's takes a function, and ``Normalize``'s no ids.
    """
    apply = getattr(value, "apply", None)
    if isinstance(value, type) or not callable(apply):
        return False
    try:
        inspect.signature(apply).bind("images", "ids", "draw")
    except (TypeError, ValueError):
        return False
    return True


def _is_movements(value: object) -> bool:
    return isinstance(value, Policy) or (not isinstance(value, type) and hasattr(value, "sample_movements"))


def _is_crop(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "box") and hasattr(value, "num_draws")


def _argument(name: str) -> str:
    return f"AugmentedImageDatastore(..., {name}=...)"


def _misplaced(argument: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(f"{argument} must be {wanted}, got {shown(value)}: {right_place(value)}")
