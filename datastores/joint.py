"""Fields of a sample that go the way of its image: which ones they are, and what the way means for each kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..augment.geometry import mapped_boxes, mapped_points
from ..augment.placement import Placement
from ..errors import ConfigError, ShapeError

__all__ = ["Joint", "different_size", "joints_below"]


@dataclass(frozen=True, slots=True)
class Joint:
    """Names of fields, by kind; ``repr`` names all settings, since it enters the fingerprint.

    Args:
        masks: label maps.
        images: second images, which the datastore moves like the first.
        boxes: rectangles.
        keypoints: points.
        mask_fill: label of what lies outside of the image.
    """

    masks: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    keypoints: tuple[str, ...] = ()
    mask_fill: int = 255

    @classmethod
    def of(
        cls,
        masks: Sequence[str],
        images: Sequence[str],
        boxes: Sequence[str],
        keypoints: Sequence[str],
        mask_fill: int,
    ) -> "Joint":
        """Check what a user wrote.

        Raises:
            ConfigError: names that are no names, that occur twice, or that are taken.

        Example:
            >>> sorted(Joint.of(["mask"], [], ["boxes"], [], 255).names)
            ['boxes', 'mask']
        """
        seen = {"image", "label", "key"}
        for kind, names in (("masks", masks), ("images", images), ("boxes", boxes), ("keypoints", keypoints)):
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise ConfigError(f"{kind} must be a list of field names, such as {kind}=['name'], got {names!r}")
            for name in names:
                if name in seen:
                    raise ConfigError(f"{kind}={list(names)!r}: {name!r} is named twice, or is no field of this kind")
                seen.add(name)
        if isinstance(mask_fill, bool) or not isinstance(mask_fill, (int, np.integer)):
            raise ConfigError(f"mask_fill must be a whole number, got {mask_fill!r}")
        return cls(tuple(masks), tuple(images), tuple(boxes), tuple(keypoints), int(mask_fill))

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.images, *self.others))

    @property
    def others(self) -> tuple[str, ...]:
        """All but the images: what ``moved`` takes."""
        return (*self.masks, *self.boxes, *self.keypoints)

    def moved(self, name: str, value: NDArray[Any], placement: Placement) -> NDArray[Any]:
        """Return what becomes of a label map, of boxes or of points.

        Args:
            name: of the field, one of ``others``.
            value: as the source gives it; it is not changed.
            placement: where the sample's image goes.

        Returns:
            A new array of the same dtype; a label map has the size of the output.

        Raises:
            ShapeError: an array that is nothing of the kind.
        """
        if name in self.masks:
            return self._moved_mask(name, value, placement)
        numbers, kind = (4, "boxes") if name in self.boxes else (2, "points")
        if value.dtype.kind != "f" or value.ndim < 1 or value.shape[-1] != numbers:
            raise ShapeError(f"field {name!r} is {value.dtype} {value.shape}: {kind} must be float (n, {numbers})")
        exact = value.astype(np.float64)
        if name in self.boxes:
            return mapped_boxes(placement.matrix, exact, placement.output).astype(value.dtype)
        return mapped_points(placement.matrix, exact).astype(value.dtype)

    def _moved_mask(self, name: str, mask: NDArray[Any], placement: Placement) -> NDArray[Any]:
        if mask.dtype.kind not in "biu" or mask.ndim not in (2, 3):
            raise ShapeError(f"field {name!r} is {mask.dtype} {mask.shape}: a mask must be whole numbers (H, W)")
        if mask.shape[:2] != placement.size:
            raise ShapeError(different_size(name, mask, placement))
        stacked = mask[:, :, np.newaxis] if mask.ndim == 2 else mask
        try:
            moved = placement.apply(stacked, self.mask_fill, interpolation="nearest")
        except ShapeError as error:
            raise ShapeError(f"field {name!r}: {error}") from error
        return moved[:, :, 0] if mask.ndim == 2 else moved


def different_size(name: str, value: NDArray[Any], placement: Placement) -> str:
    """Say that a field has not the size of its image."""
    height, width = placement.size
    return (
        f"field {name!r} is {value.shape[0]} x {value.shape[1]} pixels (height x width), but the image is {height} x "
        f"{width}: what goes the same way must have the same size"
    )


def joints_below(data: object) -> list[Joint]:
    """Return what the datastores that ``data`` is made of, itself included, move along with their images."""
    found = list[Joint]()
    while data is not None:
        joint = getattr(data, "joint", None)
        if isinstance(joint, Joint):
            found.append(joint)
        data = getattr(data, "source", None)
    return found
