"""From a batch to what the model and the loss are given."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from ..augment.normalize import Normalize
from ..datastores.batch import Batch
from ..errors import ConfigError, ShapeError

__all__ = [
    "Prepare",
    "describe",
    "images_and_labels",
    "inputs_and_targets",
    "normalized_images",
    "scaled_images",
    "select_rows",
]

#: Makes (inputs, targets) of a batch that is already on the device.
Prepare: TypeAlias = Callable[[Batch], tuple[Any, Any]]


def images_and_labels(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images as float32 (N, C, H, W) in [0, 1] in channels-last memory, and labels as int64 (N,).

    Images that are not uint8 become float32 with their values unchanged.

    Raises:
        FieldError: the batch has no "image" or no "label".
    """
    return scaled_images(batch), batch.labels


def scaled_images(batch: Batch) -> torch.Tensor:
    """Return images as ``images_and_labels`` does, alone.

    Raises:
        FieldError: the batch has no "image".
    """
    images = batch.images
    scaled = images.to(torch.float32)
    return scaled.div_(255) if images.dtype == torch.uint8 else scaled


def normalized_images(normalization: Normalize) -> Prepare:
    """Return what makes normalised images and labels of a batch, for ``prepare=``, on the device that trains.

    On a CPU that is the trainer's own time; there, ``headrace.datastores.normalize`` lets the workers do it.

    Args:
        normalization: mean and standard deviation.

    Example:
        >>> from headrace.augment import Normalize
        >>> from headrace.datastores import Batch
        >>> images, ids = torch.full((2, 3, 4, 4), 255, dtype=torch.uint8), torch.arange(2)
        >>> batch = Batch({"image": images, "label": ids}, ids, ids >= 0, epoch=0, step=0)
        >>> inputs, targets = normalized_images(Normalize(mean=0.5, std=0.25))(batch)
        >>> float(inputs.mean()), targets.tolist()
        (2.0, [0, 1])
    """
    return lambda batch: (normalization.apply(batch.images), batch.labels)


def inputs_and_targets(prepare: Prepare | None, batch: Batch) -> tuple[Any, Any]:
    """Return what ``prepare`` makes of a batch on the device; None stands for ``images_and_labels``.

    Raises:
        ConfigError: ``prepare`` returned no pair.
    """
    if isinstance(prepare, Normalize):
        raise ConfigError("prepare is a Normalize: pass prepare=normalized_images(...) with it")
    pair = (prepare or images_and_labels)(batch)
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise ConfigError(f"prepare returned {describe(pair)}: it must return a pair (inputs, targets)")
    return pair


def select_rows(value: Any, rows: torch.Tensor | None, count: int) -> Any:
    """Return the given rows of every tensor in ``value``.

    Args:
        value: a tensor (N, ...), or a tuple, list or mapping of such, nested as deep as you like; other objects stay.
        rows: int64 (n,), rows to keep; None: all of them, and ``value`` comes back as it is.
        count: N, which each tensor must have.

    Raises:
        ShapeError: a tensor has another number of rows.
    """
    if rows is None:
        return value
    if isinstance(value, torch.Tensor):
        if value.ndim == 0 or len(value) != count:
            raise ShapeError(f"a tensor {tuple(value.shape)} has no row for each of the {count} rows of the batch")
        return value.index_select(0, rows.to(value.device, non_blocking=True))
    if isinstance(value, Mapping):
        return {name: select_rows(part, rows, count) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [select_rows(part, rows, count) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def describe(value: Any) -> str:
    """Say in a few words what ``value`` is, for an error: "float32 (128, 3, 8, 8) on cpu"."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} on {value.device}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {describe(part)}" for name, part in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(describe, value)) + ")"
    return type(value).__name__
