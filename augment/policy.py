"""Policies: a few operations are drawn for each image from a list of fourteen, as TrivialAugment and RandAugment do.

::

    image --> movement --> crop --> policy's movement --> row of uint8 --> policy's photometric operations, in order
              `------------- one matrix ------------'

The list is that of both papers. Where an operation moves pixels, its matrix joins the one that crops and mirrors, so an
image is still interpolated once; it acts on the output, as it would if it came after the crop, except that it sees what
lies beside the crop where the papers' implementations see the fill value. All else is photometric and follows, in the
order in which it was drawn. Sharper, brighter and so on round once at the end of each operation.

| operation | TrivialAugment ("wide") | RandAugment |
|---|---|---|
| ``identity``, ``auto_contrast``, ``equalize`` | | |
| ``shear_x``, ``shear_y`` about the upper left corner, as a ratio | -0.99 .. 0.99 | -0.3 .. 0.3 |
| ``translate_x``, ``translate_y``, whole pixels | -32 .. 32 | up to 150/331 of the side |
| ``rotate``, degrees | -135 .. 135 | -30 .. 30 |
| ``brightness``, ``color`` (saturation), ``contrast``, ``sharpness``: factor | 0.01 .. 1.99 | 0.1 .. 1.9 |
| ``posterize``, bits kept | 8 .. 2 | 8 .. 4 |
| ``solarize``, threshold | 256 .. 0 | 256 .. 0 |

Magnitudes have 31 steps, 0 .. 30; 0 changes nothing and 30 is the stronger end, except that ``auto_contrast`` and
``equalize`` have no magnitude and always act. Of two signs each is equally probable.
The ranges are those of torchvision's ``TrivialAugmentWide`` and ``RandAugment``, but for the threshold, which is the
papers': torchvision begins at 255, and so inverts white at magnitude 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .color import adjust_brightness, adjust_contrast, adjust_saturation
from .geometry import FloatArray, about_centre, rotations
from .pixels import Ids, change_rows, check_images, to_bytes
from .random import Draw, Purpose
from .ranges import as_whole
from .sharpen import adjust_sharpness
from .tone import autocontrasted, equalized, posterized, solarized

__all__ = ["OPERATIONS", "Movements", "Policy", "PolicyGeometry", "RandAugment", "TrivialAugment"]

#: The names of all operations; their order is part of every result.
OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "auto_contrast", "equalize",
)  # fmt: skip

_GEOMETRIC = frozenset(OPERATIONS[1:6])
_STEPS = 30  # magnitudes 0 .. 30
_COLUMNS = 3  # uniform numbers of Purpose.POLICY for each operation: which one, how strong, which sign


class Movements(Protocol):
    """What moves outputs; ``repr`` must name all settings, since it enters the fingerprint."""

    def sample_movements(self, ids: NDArray[np.int64], draw: Draw, size: tuple[int, int]) -> list[FloatArray | None]:
        """Return how each sample's output is moved, as a map of its pixels.

        Args:
            ids: int64 (n,), sample ids; what one gets does not depend on the others.
            draw: the random world.
            size: height and width of the output.

        Returns:
            For each sample a forward map, float64 (3, 3), as ``headrace.augment.geometry`` describes it, or None where
            nothing moves.
        """


@dataclass(frozen=True, slots=True)
class _Space:
    """The stronger end of each operation's range."""

    shear: float
    shift_pixels: float
    shift_share: float  # of the image's side
    degrees: float
    enhancement: float  # distance of the factor from 1
    dropped_bits: float

    def amount(self, name: str, strength: float, size: tuple[int, int]) -> float:
        """Return a strength in -1 .. 1 in the unit of the operation; 0 for one that has none."""
        if name.startswith("shear"):
            return self.shear * strength
        if name.startswith("translate"):
            side = size[1] if name == "translate_x" else size[0]
            return float(int((self.shift_pixels + self.shift_share * side) * strength))
        if name == "posterize":
            return float(8 - round(self.dropped_bits * abs(strength)))
        amounts = {"rotate": self.degrees * strength, "solarize": 256 * (1 - abs(strength))}
        enhanced = 1 + self.enhancement * strength if name in _ENHANCEMENTS else 0.0
        return amounts.get(name, enhanced)


class Policy(ABC):
    """A policy moves outputs (``sample_movements``) and changes their pixels (``apply``); give it to a datastore whole.

    To run the second half on a GPU, give the datastore ``policy.geometry`` and call ``policy.apply`` for the batch: the
    bits are the same.
    """

    __slots__ = ()
    _space: ClassVar[_Space]

    @abstractmethod
    def _chosen(self, ids: NDArray[np.int64], draw: Draw) -> tuple[NDArray[np.intp], FloatArray]:
        """Return for each sample numbers of operations, (n, k), and their strengths in -1 .. 1, float64 (n, k)."""

    @property
    def geometry(self) -> "PolicyGeometry":
        """The movements alone."""
        return PolicyGeometry(self)

    def sample_operations(
        self, ids: NDArray[np.int64], draw: Draw, size: tuple[int, int]
    ) -> list[list[tuple[str, float]]]:
        """Return what each sample gets, as pairs of a name of ``OPERATIONS`` and an amount in its unit, in order.

        Args:
            ids: int64 (n,), sample ids; what one gets does not depend on the others.
            draw: the random world.
            size: height and width of the output.
        """
        numbers, strengths = self._chosen(ids, draw)
        return [
            [(OPERATIONS[o], self._space.amount(OPERATIONS[o], s, size)) for o, s in zip(*row, strict=True)]
            for row in zip(numbers.tolist(), strengths.tolist(), strict=True)
        ]

    def sample_movements(self, ids: NDArray[np.int64], draw: Draw, size: tuple[int, int]) -> list[FloatArray | None]:
        """Return how each sample's output is moved; arguments and result are those of ``Movements``."""
        return [_movement(operations, size) for operations in self.sample_operations(ids, draw, size)]

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return images after the photometric operations; their movements are for the datastore.

        Args:
            images: uint8 (N, C, H, W), C = 1 or 3 (RGB), on any device, in any memory layout; they are not changed.
            ids: int64 (N,), sample ids; best not on a GPU, since they are needed on the host.
            draw: the random world.

        Returns:
            uint8 (N, C, H, W) on the same device in the same memory layout.

        Raises:
            ShapeError: these are no such images.
        """
        numbers, strengths = self._chosen(check_images(images, ids, (1, 3)), draw)
        size = (images.shape[2], images.shape[3])
        result = images.clone()
        for step in range(numbers.shape[1]):
            for number in np.unique(numbers[:, step]).tolist():
                change = _CHANGES.get(OPERATIONS[number])
                if change is None or (OPERATIONS[number] == "color" and images.shape[1] == 1):
                    continue
                rows = np.flatnonzero(numbers[:, step] == number)
                amounts = [self._space.amount(OPERATIONS[number], s, size) for s in strengths[rows, step].tolist()]
                change_rows(result, rows, partial(_part_changed, change, np.array(amounts)))
        return result


@dataclass(frozen=True, slots=True)
class PolicyGeometry:
    """The movements of a policy, without the rest of it."""

    policy: Policy

    def sample_movements(self, ids: NDArray[np.int64], draw: Draw, size: tuple[int, int]) -> list[FloatArray | None]:
        """Return how each sample's output is moved; arguments and result are those of ``Movements``."""
        return self.policy.sample_movements(ids, draw, size)


@dataclass(frozen=True, slots=True)
class TrivialAugment(Policy):
    """One operation per image, any of the fourteen at any strength: nothing to tune.

    Müller and Hutter: "TrivialAugment: tuning-free yet state-of-the-art data augmentation", ICCV 2021, with the "wide"
    ranges. ``help("headrace.augment.policy")`` has the table of operations and ranges.

    Example:
        >>> TrivialAugment().sample_operations(np.arange(2, 6), Draw(seed=1), (224, 224))
        [[('posterize', 7.0)], [('sharpness', 1.429)], [('rotate', 90.0)], [('translate_y', -29.0)]]
    """

    _space: ClassVar[_Space] = _Space(0.99, 32.0, 0.0, 135.0, 0.99, 6.0)

    def _chosen(self, ids: NDArray[np.int64], draw: Draw) -> tuple[NDArray[np.intp], FloatArray]:
        numbers, uniforms = _drawn(ids, draw, 1)
        return numbers, _signs(uniforms) * np.floor(uniforms[..., 1] * (_STEPS + 1)) / _STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class RandAugment(Policy):
    """Several operations per image, all of one strength.

    Cubuk, Zoph, Shlens and Le: "RandAugment: practical automated data augmentation with a reduced search space",
    NeurIPS 2020. ``help("headrace.augment.policy")`` has the table of operations and ranges.

    Args:
        num_ops: 1 .. 14, operations per image; one may be drawn twice. N in the paper.
        magnitude: 0 .. 30, how strong they are. M in the paper.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> RandAugment(magnitude=15).sample_operations(np.arange(2), Draw(seed=1), (224, 224))
        [[('sharpness', 1.45), ('rotate', 15.0)], [('shear_y', 0.15), ('rotate', -15.0)]]
    """

    num_ops: int = 2
    magnitude: int = 9
    _space: ClassVar[_Space] = _Space(0.3, 0.0, 150 / 331, 30.0, 0.9, 4.0)

    def __post_init__(self) -> None:
        for name, lowest, highest in (("num_ops", 1, len(OPERATIONS)), ("magnitude", 0, _STEPS)):
            value = as_whole(name, getattr(self, name), lowest, highest, f"{lowest} .. {highest}")
            object.__setattr__(self, name, value)

    def _chosen(self, ids: NDArray[np.int64], draw: Draw) -> tuple[NDArray[np.intp], FloatArray]:
        numbers, uniforms = _drawn(ids, draw, self.num_ops)
        return numbers, _signs(uniforms) * (self.magnitude / _STEPS)


def _drawn(ids: NDArray[np.int64], draw: Draw, count: int) -> tuple[NDArray[np.intp], FloatArray]:
    """Return which operations each sample gets, (n, count), and its uniform numbers, (n, count, _COLUMNS)."""
    uniforms = draw.uniforms(ids, Purpose.POLICY, _COLUMNS * count).reshape(len(ids), count, _COLUMNS)
    return np.floor(uniforms[..., 0] * len(OPERATIONS)).astype(np.intp), uniforms


def _signs(uniforms: FloatArray) -> FloatArray:
    return np.where(uniforms[..., 2] < 0.5, -1.0, 1.0)


def _movement(operations: list[tuple[str, float]], size: tuple[int, int]) -> FloatArray | None:
    matrix = None
    for name, amount in operations:
        if name in _GEOMETRIC and amount:
            matrix = _matrix(name, amount, size) if matrix is None else _matrix(name, amount, size) @ matrix
    return matrix


def _matrix(name: str, amount: float, size: tuple[int, int]) -> FloatArray:
    if name == "rotate":
        return about_centre(rotations(np.array([amount]))[0], size)
    matrix = np.eye(3)
    row, is_shear = (0 if name.endswith("x") else 1), name.startswith("shear")
    if is_shear:
        matrix[row, 1 - row] = amount
    matrix[row, 2] = amount / 2 if is_shear else amount  # the corner lies half a pixel before the first centre
    return matrix


def _part_changed(
    change: Callable[[torch.Tensor, FloatArray], torch.Tensor], amounts: FloatArray, images: torch.Tensor, part: slice
) -> torch.Tensor:
    return change(images, amounts[part])


def _enhanced(
    adjust: Callable[[torch.Tensor, FloatArray], None], images: torch.Tensor, factors: FloatArray
) -> torch.Tensor:
    planes = images.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    adjust(planes, factors)
    return to_bytes(planes)


_ENHANCEMENTS: dict[str, Callable[[torch.Tensor, FloatArray], None]] = {
    "brightness": adjust_brightness,
    "color": adjust_saturation,
    "contrast": adjust_contrast,
    "sharpness": adjust_sharpness,
}

#: The photometric operations: uint8 images (n, C, H, W) and their amounts -> uint8 images.
_CHANGES: dict[str, Callable[[torch.Tensor, FloatArray], torch.Tensor]] = {
    **{name: partial(_enhanced, adjust) for name, adjust in _ENHANCEMENTS.items()},
    "posterize": posterized,
    "solarize": solarized,
    "auto_contrast": lambda images, _: autocontrasted(images),
    "equalize": lambda images, _: equalized(images),
}
