"""Which part of an image becomes the output: a rectangle, chosen from the image's size and a few random numbers.

A crop is a small frozen value with two members: ``num_draws`` says how many uniform numbers a sample needs, ``box``
turns them into a rectangle. The rectangle may have any size and may reach beyond the image: it is stretched over the
whole output, and what lies outside of the image gets the fill value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ..errors import ShapeError
from .geometry import Box
from .ranges import Bounds, as_number, as_pair

__all__ = ["CenterCrop", "Crop", "Letterbox", "RandomCrop", "RandomResizedCrop", "Resize", "ResizedCenterCrop"]

#: Rectangles that RandomResizedCrop tries before it falls back; the number is torchvision's, so results compare.
_ATTEMPTS = 10

_SHARE = Bounds(0, 1, "lowest")
_RATIO = Bounds(1e-6, 1e6)  # no image is longer


class Crop(Protocol):
    """What chooses the rectangle; ``repr`` must name all settings, since it enters the fingerprint."""

    @property
    def num_draws(self) -> int:
        """Uniform numbers that ``box`` uses, the same for every sample."""

    def box(self, size: tuple[int, int], output: tuple[int, int], draws: Sequence[float]) -> Box:
        """Return the rectangle of an image that fills the output.

        Args:
            size: height and width of the image.
            output: height and width of the output.
            draws: ``num_draws`` numbers in [0, 1).

        Raises:
            ShapeError: the image is too small; the caller adds which one it is.
        """


@dataclass(frozen=True, slots=True)
class Resize:
    """The whole image, whatever its shape: width and height are scaled each on its own."""

    num_draws: ClassVar[int] = 0

    def box(self, size: tuple[int, int], output: tuple[int, int], draws: Sequence[float]) -> Box:
        """Return the whole image."""
        del output, draws
        return 0, 0, size[1], size[0]


@dataclass(frozen=True, slots=True)
class Letterbox:
    """The whole image in its own shape, as large as fits, in the middle; the rest of the output gets the fill value.

    Width and height are rounded to whole pixels of the output, so that the image has sharp edges; where the rest
    cannot be halved, the image lies half a pixel up or left.

    Example:
        >>> Letterbox().box((100, 200), (50, 50), [])  # scaled by 1/4: 12.5 rows above the image, and 12.5 below
        (0.0, -48.0, 200.0, 152.0)
    """

    num_draws: ClassVar[int] = 0

    def box(self, size: tuple[int, int], output: tuple[int, int], draws: Sequence[float]) -> Box:
        """Return the rectangle around the image that becomes the output."""
        del draws
        scale = min(output[0] / size[0], output[1] / size[1])
        height, width = (max(1, round(length * scale)) for length in size)
        x_unit, y_unit = size[1] / width, size[0] / height  # a pixel of the output, in pixels of the image
        left, top = -((output[1] - width) // 2) * x_unit, -((output[0] - height) // 2) * y_unit
        return left, top, left + output[1] * x_unit, top + output[0] * y_unit


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """A rectangle of the output's own size in the middle; it lies half a pixel up or left where it cannot be exact."""

    num_draws: ClassVar[int] = 0

    def box(self, size: tuple[int, int], output: tuple[int, int], draws: Sequence[float]) -> Box:
        """Return the rectangle in the middle.

        Raises:
            ShapeError: the image is smaller than the output.
        """
        del draws
        y_room, x_room = _room(size, output)
        return _placed(x_room // 2, y_room // 2, output)


@dataclass(frozen=True, slots=True)
class ResizedCenterCrop:
    """The largest rectangle of the output's shape in the middle, less a margin: how models are usually evaluated.

    With the default this is the "shorter side to 256, then the middle 224" of many papers, in one step.

    Args:
        fraction: of the largest rectangle's sides that is kept, 0 < fraction <= 1; 224 / 256 by default.

    Raises:
        ConfigError: the fraction is out of range.

    Example:
        >>> ResizedCenterCrop().box((256, 400), (224, 224), [])
        (88, 16, 312, 240)
    """

    fraction: float = 0.875
    num_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        fraction = as_number("fraction of a resized center crop", self.fraction, _SHARE)
        object.__setattr__(self, "fraction", fraction)

    def box(self, size: tuple[int, int], output: tuple[int, int], draws: Sequence[float]) -> Box:
        """Return the rectangle in the middle, with whole edges."""
        del draws
        scale = self.fraction * min(size[0] / output[0], size[1] / output[1])
        height, width = (max(1, min(room, round(wanted * scale))) for room, wanted in zip(size, output, strict=True))
        return _placed((size[1] - width) // 2, (size[0] - height) // 2, (height, width))


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """A rectangle of the output's own size anywhere inside the image, each place equally probable."""

    num_draws: ClassVar[int] = 2

    def box(self, size: tuple[int, int], output: tuple[int, int], draws: Sequence[float]) -> Box:
        """Return a rectangle; ``draws[0]`` places it in x, ``draws[1]`` in y.

        Raises:
            ShapeError: the image is smaller than the output.
        """
        y_room, x_room = _room(size, output)
        return _placed(int(draws[0] * (x_room + 1)), int(draws[1] * (y_room + 1)), output)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A rectangle of random area and shape, anywhere inside the image.

    Up to 10 pairs of an area (uniform) and a ratio (uniform in its logarithm) are tried; the first rectangle that
    fits into the image is taken. Where none fits, it is the largest rectangle in the middle whose ratio is allowed.
    Edges lie between pixels, so a rectangle is cut without interpolation. This is the "inception" crop of Szegedy et
    al., "Going deeper with convolutions", CVPR 2015, in the form that torchvision made common.

    Args:
        scale: smallest and largest area as a part of the image's, 0 < lo <= hi <= 1.
        ratio: smallest and largest width / height, 1e-6 <= lo <= hi <= 1e6.

    Raises:
        ConfigError: a range that is empty or out of bounds.

    Example:
        >>> RandomResizedCrop(scale=(0.25, 0.25), ratio=(1, 1)).box((100, 100), (32, 32), [0.0, 0.0] + [0.5] * 20)
        (0, 0, 50, 50)
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    num_draws: ClassVar[int] = 2 + 2 * _ATTEMPTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", as_pair("scale of a random resized crop", self.scale, _SHARE))
        object.__setattr__(self, "ratio", as_pair("ratio of a random resized crop", self.ratio, _RATIO))

    def box(self, size: tuple[int, int], output: tuple[int, int], draws: Sequence[float]) -> Box:
        """Return a rectangle; draws 0 and 1 place it in x and y, each pair after them is one attempt."""
        del output
        height, width = size
        found = self._first_fit(height, width, draws)
        if found is None:
            inner_height, inner_width = self._largest(height, width)
            return _placed((width - inner_width) // 2, (height - inner_height) // 2, (inner_height, inner_width))
        y_room, x_room = _room(size, found)
        return _placed(int(draws[0] * (x_room + 1)), int(draws[1] * (y_room + 1)), found)

    def _first_fit(self, height: int, width: int, draws: Sequence[float]) -> tuple[int, int] | None:
        low, high = self.scale
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(2, self.num_draws, 2):
            area = height * width * (low + (high - low) * draws[attempt])
            ratio = math.exp(log_low + (log_high - log_low) * draws[attempt + 1])
            box_height, box_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < box_height <= height and 0 < box_width <= width:
                return box_height, box_width
        return None

    def _largest(self, height: int, width: int) -> tuple[int, int]:
        low, high = self.ratio
        if width < low * height:
            return min(height, max(1, round(width / low))), width
        if width > high * height:
            return height, min(width, max(1, round(height * high)))
        return height, width


def _room(size: tuple[int, int], inner: tuple[int, int]) -> tuple[int, int]:
    if inner[0] > size[0] or inner[1] > size[1]:
        raise ShapeError(
            f"a crop of {inner[0]} x {inner[1]} pixels (height x width) does not fit into an image of "
            f"{size[0]} x {size[1]}: ask for a smaller output, leave small images out, or choose mode 'resize', "
            "'letterbox' or 'random_resized_crop', which scale"
        )
    return size[0] - inner[0], size[1] - inner[1]


def _placed(left: int, top: int, size: tuple[int, int]) -> Box:
    return left, top, left + size[1], top + size[0]
