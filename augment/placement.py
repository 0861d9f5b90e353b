"""Where a sample's picture goes: drawn once, applied to its image, its label maps and its coordinates alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .geometry import Box, FloatArray, about_centre, mapped_points, reflections, window
from .resample import Fill, Interpolation, cut, rectangle, resample

__all__ = ["Placement"]

_Value = TypeVar("_Value", bound=np.generic)

#: A smaller determinant is none, as in ``resample``.
_SINGULAR = 1e-12


@dataclass(frozen=True, slots=True)
class Placement:
    """The way from one image to the output: moved about its centre, cut, scaled, and maybe moved once more.

    Args:
        size: height and width of the image.
        output: height and width of the output.
        box: the rectangle of the moved image that fills the output.
        movement: what happens about the centre: a matrix (3, 3), or, where nothing needs to be interpolated, whether
            the image is mirrored top to bottom, and left to right.
        after: what happens to the output as a map of its pixels, (3, 3); None moves nothing.
        reduced: the image at hand has sides so many times shorter than ``size`` says, rounded up; all else is measured
            in the image of full size.

    Example:
        >>> placement = Placement((4, 4), (2, 2), (0, 0, 2, 2), (False, True))
        >>> placement.apply(np.arange(16, dtype=np.uint8).reshape(4, 4, 1))[..., 0].tolist()
        [[3, 2], [7, 6]]
        >>> placement.matrix.tolist()
        [[-1.0, 0.0, 3.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    size: tuple[int, int]
    output: tuple[int, int]
    box: Box
    movement: FloatArray | tuple[bool, bool]
    after: FloatArray | None = None
    reduced: int = 1

    @property
    def matrix(self) -> FloatArray:
        """The same as one forward map in pixel coordinates: float64 (3, 3)."""
        movement = self.movement
        if isinstance(movement, tuple):
            movement = reflections(np.array([movement[1]]), np.array([movement[0]]))[0]
        matrix = window(self.box, self.output) @ about_centre(movement, self.size)
        return matrix if self.after is None else self.after @ matrix

    @property
    def rectangle(self) -> tuple[int, int, int, int] | None:
        """The part of the image that is scaled, and maybe mirrored, and nothing else: left, top, right, bottom.

        None if more happens, if its edges are not whole or if they lie outside of the image.
        """
        if self.reduced > 1 or self.after is not None or not isinstance(self.movement, tuple):
            return None
        return rectangle(self.size, self.box, self.movement)

    @property
    def picture_size(self) -> tuple[int, int]:
        """Height and width of the image at hand."""
        return -(-self.size[0] // self.reduced), -(-self.size[1] // self.reduced)

    def reduction(self, possible: Sequence[int]) -> int:
        """Return the largest of some numbers that the image can be reduced by, and 1 if that is none of them.

        The reduced image has at least sqrt(2) times the resolution that the output needs, as one that is turned has
        before it is sampled (``headrace.augment.resample``). Where a number leaves a rest, the reduced image's last
        pixel is made of pixels beyond the image's edge too, and a JPEG may hold anything there: such a number counts
        only if the output sees nothing of that pixel.
        """
        (a, b, _), (d, e, _), _ = self.matrix.tolist()
        area = abs(a * e - b * d)
        if area < _SINGULAR:
            return 1
        steps = math.hypot(e, b) / area, math.hypot(d, a) / area  # pixels of the image per pixel of the output: x, y
        seen = [end + step for end, step in zip(self._last_seen(), steps, strict=True)]  # as far as filters reach
        for number in sorted(possible, reverse=True):
            whole = all(
                side % number == 0 or end <= side - side % number
                for side, end in zip(reversed(self.size), seen, strict=True)
            )
            if whole and number <= min(steps) / math.sqrt(2.0):
                return number
        return 1

    def _last_seen(self) -> tuple[float, float]:
        """Return the largest x and y of the image, measured from its left upper corner, that the output shows."""
        height, width = self.output
        corners = np.array([(0.0, 0.0), (width, 0.0), (0.0, height), (width, height)])
        backwards = np.linalg.inv(self.matrix).astype(np.float64)
        right, bottom = mapped_points(backwards, corners).max(axis=0).tolist()
        return right, bottom

    def apply(
        self,
        image: NDArray[_Value],
        fill: Fill = 0,
        out: NDArray[_Value] | None = None,
        interpolation: Interpolation = "bilinear",
    ) -> NDArray[_Value]:
        """Return what becomes of the image at hand (H, W, C); ``headrace.augment.resample`` describes the rest.

        Raises:
            ShapeError: shapes or dtypes that do not fit together.
        """
        if self.reduced > 1:
            enlarged = window((0.0, 0.0, 1.0, 1.0), (self.reduced, self.reduced))
            return resample(image, self.matrix @ enlarged, self.output, fill, out, interpolation)
        if isinstance(self.movement, tuple) and self.after is None:
            return cut(image, self.box, self.movement, self.output, fill, out, interpolation)
        return resample(image, self.matrix, self.output, fill, out, interpolation)
