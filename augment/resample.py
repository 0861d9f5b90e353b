"""The one place where pixels are interpolated: an image and a matrix become an output.

Three ways, chosen by the matrix alone, from the cheapest:

1. Mirrors, quarter turns and moves by whole pixels only copy pixels.
2. A rectangle with whole edges inside the image, scaled, maybe mirrored or turned by quarters: torch's separable
   uint8 kernel, a triangle filter that widens when it shrinks (antialiased), as in
   ``torch.nn.functional.interpolate(mode="bilinear", antialias=True)`` and bit for bit equal to it.
3. All other affine maps: the part of the image that is needed is first shrunk by that kernel, where the map shrinks,
   and then sampled bilinearly (float32) at the exact places.

In the third way what lies outside of the image has the fill value, and an output pixel on the image's edge is the
mixture of both that its covered part asks for, as far as it lies across one edge (an image that is thinner than a pixel
of the output is mixed too strongly); inside, the image goes on as its outermost pixels, as in the second way.
A scaled image that lies wholly inside of the output, edges on edges of pixels, is made by the second way too.

With ``interpolation="nearest"``, for label maps, a pixel of the output is that pixel of the image in whose square its
centre lies: pixel i of an axis owns the places from its left or upper edge (included) to the other (excluded). A place
within a millionth of a pixel of an edge lies on it. A pixel whose centre lies outside of the image is filled. No value
is ever mixed, also where the image shrinks, and whole numbers of any type are taken.

Nothing depends on the number of threads, and the cost follows the output and the part of the input that it shows. The
third way's sampling is torch's ``grid_sample``, whose last bits depend on the processor's vector instructions: between
AVX2, AVX-512 and none, some values in 100,000 differ by 1. All else is the same on any of them.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, ShapeError
from .geometry import Box, FloatArray, about_centre, reflections, window

__all__ = ["Fill", "Interpolation", "Pixels", "by_pixel", "cut", "rectangle", "resample", "scale"]

Pixels = NDArray[np.uint8]

#: "bilinear" for what has a brightness, "nearest" for what has labels.
Interpolation: TypeAlias = Literal["bilinear", "nearest"]

_Value = TypeVar("_Value", bound=np.generic)

#: 0 .. 255 for all channels, or one number per channel.
Fill = int | tuple[int, ...]

#: Differences in pixels that are rounding errors of float64 and no movement.
_TOLERANCE = 1e-6

#: A smaller determinant is none: the image would shrink to less than 1e-12 of its size in both directions. The smallest
#: scale of an augmenter, 1e-3, and a crop of 100,000 pixels that becomes one are far from it.
_SINGULAR = 1e-24

#: Mirrored top to bottom, and left to right -> the axes of (N, C, H, W) that are flipped.
_FLIPS = {(False, False): (), (True, False): (2,), (False, True): (3,), (True, True): (2, 3)}

#: How much finer than the output the image is made before it is sampled, per axis. Sampling is a second triangle
#: filter; with a step of 1 / sqrt(2) each, both together are as wide (in variance) as the one of way 2.
_FINENESS = math.sqrt(2.0)


def resample(
    image: NDArray[_Value],
    matrix: FloatArray,
    size: tuple[int, int],
    fill: Fill = 0,
    out: NDArray[_Value] | None = None,
    interpolation: Interpolation = "bilinear",
) -> NDArray[_Value]:
    """Return ``image`` as ``matrix`` maps it into an output of ``size``.

    Args:
        image: uint8 (H, W, C), any strides; it is not changed. For "nearest", whole numbers or booleans of any size.
        matrix: float64 (3, 3), forward and invertible, as :mod:`headrace.augment.geometry` describes it.
        size: height and width of the output.
        fill: for what lies outside of the image.
        out: (*size, C) of the image's type, C-contiguous, to write into; a new array by default. It must not overlap
            ``image``.
        interpolation: "bilinear" (antialiased where it shrinks) or "nearest" (never).

    Returns:
        ``out``.

    Raises:
        ShapeError: shapes or dtypes that do not fit together.

    Example:
        >>> from headrace.augment.geometry import window
        >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> resample(image, window((1, 1, 3, 3), (2, 2)), (2, 2))[..., 0].tolist()
        [[15, 18], [27, 30]]
    """
    if out is None:
        out = np.empty((*size, *image.shape[2:]), image.dtype)
    (a, b, c), (d, e, f), _ = matrix.tolist()
    _check(image, size, fill, out, interpolation)
    if not abs(a * e - b * d) > _SINGULAR:
        raise ConfigError(f"the matrix {matrix.tolist()} maps the image to a line or a point and cannot be inverted")
    image = _by_rows_of_pixels(image)
    height, width = image.shape[:2]
    if abs(a) * width < _TOLERANCE and abs(e) * height < _TOLERANCE:  # a quarter turn is a mirror after transposition
        image, height, width = image.transpose(1, 0, 2), width, height
        a, b, d, e = b, a, e, d
    aligned = abs(b) * height < _TOLERANCE and abs(d) * width < _TOLERANCE
    if aligned and _cut(image, (a, c), (e, f), fill, out, interpolation):
        return out
    if interpolation == "nearest":
        _pick(image, (a, 0.0, c, 0.0, e, f) if aligned else (a, b, c, d, e, f), fill, out)
    else:
        _warp(image, (a, b, c, d, e, f), fill, out)
    return out


def cut(
    image: NDArray[_Value],
    box: Box,
    mirrors: tuple[bool, bool],
    size: tuple[int, int],
    fill: Fill = 0,
    out: NDArray[_Value] | None = None,
    interpolation: Interpolation = "bilinear",
) -> NDArray[_Value]:
    """Return a rectangle of an image, scaled to ``size``: what ``resample`` does for such a matrix, without making one.

    Args:
        image: as for ``resample``.
        box: left, top, right and bottom edge in the image after it was mirrored.
        mirrors: whether the image is mirrored top to bottom, and left to right, before it is cut.
        size: height and width of the output.
        fill: for what lies outside of the image.
        out: as for ``resample``.
        interpolation: as for ``resample``.

    Returns:
        ``out``.

    Raises:
        ShapeError: shapes or dtypes that do not fit together.

    Example:
        >>> image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> cut(image, (0, 0, 2, 2), (False, True), (2, 2))[..., 0].tolist()
        [[9, 6], [21, 18]]
    """
    if out is None:
        out = np.empty((*size, *image.shape[2:]), image.dtype)
    _check(image, size, fill, out, interpolation)
    part = rectangle((image.shape[0], image.shape[1]), box, mirrors)
    same_size = part is not None and (part[3] - part[1], part[2] - part[0]) == size
    if part is None or (interpolation == "nearest" and not same_size):
        mirror = reflections(np.array([mirrors[1]]), np.array([mirrors[0]]))[0]
        matrix = window(box, size) @ about_centre(mirror, image.shape[:2])
        return resample(image, matrix, size, fill, out, interpolation)
    left, top, right, bottom = part
    _put(_by_rows_of_pixels(image)[top:bottom, left:right], mirrors, out)
    return out


def rectangle(size: tuple[int, int], box: Box, mirrors: tuple[bool, bool]) -> tuple[int, int, int, int] | None:
    """Return a rectangle of a mirrored image as one of the image itself, if its edges are whole and inside.

    Args:
        size: height and width of the image.
        box: left, top, right and bottom edge in the mirrored image.
        mirrors: whether the image is mirrored top to bottom, and left to right.

    Example:
        >>> rectangle((10, 20), (0, 0, 5, 5), (False, True)), rectangle((10, 20), (0.5, 0, 5, 5), (False, False))
        ((15, 0, 20, 5), None)
    """
    height, width = size
    left, top, right, bottom = (int(edge) for edge in box)
    whole: Box = left, top, right, bottom
    if whole != box or not (0 <= left < right <= width and 0 <= top < bottom <= height):
        return None
    if mirrors[0]:
        top, bottom = height - bottom, height - top
    if mirrors[1]:
        left, right = width - right, width - left
    return left, top, right, bottom


def scale(part: Pixels, out: Pixels) -> None:
    """Fill ``out``, uint8 (h, w, C), with ``part``, uint8 (H, W, C), scaled by torch's antialiased kernel."""
    _shrink(_tensor(part), out.shape[:2], _tensor(out))


def _by_rows_of_pixels(image: NDArray[Any]) -> NDArray[Any]:
    """Return the image, or a copy, in which the bytes of a pixel lie together."""
    return image if image.strides[2] == image.itemsize or image.shape[2] == 1 else np.ascontiguousarray(image)


def _check(
    image: NDArray[Any], size: tuple[int, int], fill: Fill, out: NDArray[Any], interpolation: Interpolation
) -> None:
    nearest = interpolation == "nearest"
    if not nearest and interpolation != "bilinear":
        raise ConfigError(f"interpolation must be one of {get_args(Interpolation)}, got {interpolation!r}")
    kind = "whole numbers or booleans" if nearest else "uint8"
    typed = image.dtype.kind in "biu" if nearest else image.dtype == np.uint8
    if image.ndim != 3 or not typed or 0 in image.shape:
        raise ShapeError(f"an image must be {kind} (H, W, C) with at least one pixel, got {image.dtype} {image.shape}")
    wanted = (*size, image.shape[2])
    if out.shape != wanted or out.dtype != image.dtype or not out.flags.carray:
        raise ShapeError(
            f"the output must be {image.dtype} {wanted}, C-contiguous and writable, got {out.dtype} {out.shape} "
            f"with strides {out.strides}"
        )
    if isinstance(fill, tuple) and len(fill) != image.shape[2]:
        raise ShapeError(f"fill {fill} has {len(fill)} values, but the image has {image.shape[2]} channels")
    values = fill if isinstance(fill, tuple) else (fill,)
    lowest, highest = _limits(image.dtype) if nearest else (0, 255)
    if min(values) < lowest or max(values) > highest:
        raise ShapeError(f"fill {fill} does not fit into {image.dtype}: choose one in {lowest} .. {highest}")


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return (0, 1) if dtype == np.bool_ else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _cut(
    image: NDArray[Any],
    x: tuple[float, float],
    y: tuple[float, float],
    fill: Fill,
    out: NDArray[Any],
    interpolation: Interpolation,
) -> bool:
    """Do it in way 1 or 2 if the map cuts between pixels, and say whether it does.

    Each axis is mapped on its own, by a scale and an offset.
    """
    x_edges, y_edges = _edges(*x, out.shape[1]), _edges(*y, out.shape[0])
    if x_edges is None or y_edges is None:
        return interpolation == "bilinear" and _inset(image, x, y, fill, out)
    (left, right), (top, bottom) = sorted(x_edges), sorted(y_edges)
    mirrors = (y_edges[0] > y_edges[1], x_edges[0] > x_edges[1])
    same_size = (bottom - top, right - left) == out.shape[:2]
    inside = 0 <= left < right <= image.shape[1] and 0 <= top < bottom <= image.shape[0]
    if inside and (same_size or interpolation == "bilinear"):
        _put(image[top:bottom, left:right], mirrors, out)
    elif same_size:
        _move(image, left, top, mirrors, fill, out)
    else:
        return interpolation == "bilinear" and _inset(image, x, y, fill, out)
    return True


def _inset(image: Pixels, x: tuple[float, float], y: tuple[float, float], fill: Fill, out: Pixels) -> bool:
    """Do it in way 2 if the whole image covers whole pixels of the output, and say whether it does."""
    x_edges, y_edges = _edges(1 / x[0], -x[1] / x[0], image.shape[1]), _edges(1 / y[0], -y[1] / y[0], image.shape[0])
    if x_edges is None or y_edges is None:
        return False
    (left, right), (top, bottom) = sorted(x_edges), sorted(y_edges)
    if not (0 <= left < right <= out.shape[1] and 0 <= top < bottom <= out.shape[0]):
        return False
    scaled = np.empty((bottom - top, right - left, image.shape[2]), np.uint8)
    _put(image, (y_edges[0] > y_edges[1], x_edges[0] > x_edges[1]), scaled)
    out[...] = fill
    by_pixel(out)[top:bottom, left:right] = by_pixel(scaled)
    return True


def _edges(scale: float, offset: float, length: int) -> tuple[int, int] | None:
    """Return where the first and the last edge of the output lie in the input, or None if that is inside a pixel."""
    start, end = (-0.5 - offset) / scale + 0.5, (length - 0.5 - offset) / scale + 0.5
    first, last = round(start), round(end)
    return (first, last) if abs(start - first) + abs(end - last) < _TOLERANCE else None


def _put(part: NDArray[Any], mirrors: tuple[bool, bool], out: NDArray[Any]) -> None:
    """Fill the output with a part of the image, scaled if need be, which only uint8 can be."""
    axes = _FLIPS[mirrors]
    if part.shape != out.shape:
        target = _tensor(out)
        _shrink(_tensor(part), out.shape[:2], target)
        if axes:
            target.copy_(target.flip(axes))
    elif axes and part.dtype == np.uint8:
        _tensor(out).copy_(_tensor(part).flip(axes))
    else:
        by_pixel(_mirrored(out, mirrors))[...] = by_pixel(part)


def _mirrored(pixels: NDArray[Any], mirrors: tuple[bool, bool]) -> NDArray[Any]:
    return pixels[:: -1 if mirrors[0] else 1, :: -1 if mirrors[1] else 1]


def _move(image: NDArray[Any], left: int, top: int, mirrors: tuple[bool, bool], fill: Fill, out: NDArray[Any]) -> None:
    """Copy what the output shows of an image that it leaves partly or wholly; the rest is filled."""
    out[...] = fill
    height, width = out.shape[:2]
    x_first, x_last = max(left, 0), min(left + width, image.shape[1])
    y_first, y_last = max(top, 0), min(top + height, image.shape[0])
    if x_first < x_last and y_first < y_last:
        target = _mirrored(out, mirrors)[y_first - top : y_last - top, x_first - left : x_last - left]
        by_pixel(target)[...] = by_pixel(image[y_first:y_last, x_first:x_last])


def _shrink(pixels: torch.Tensor, size: tuple[int, int], out: torch.Tensor | None = None) -> torch.Tensor:
    # What torch.nn.functional.interpolate calls: only this can write into a given row, which saves a third of the time.
    # The same operator in torch.ops takes two microseconds more. A test holds it equal to the public function.
    kernel: Any = torch._C._nn._upsample_bilinear2d_aa  # noqa: SLF001 - its stub does not know `out`
    shrunk: torch.Tensor = kernel(pixels, size, False, None, out=out)  # align_corners, scale_factors
    return shrunk


def _pick(image: NDArray[Any], matrix: tuple[float, ...], fill: Fill, out: NDArray[Any]) -> None:
    """Give every pixel of the output the value of that pixel of the image in which its centre lies."""
    height, width = out.shape[:2]
    x_row, y_row = _inverse(matrix)
    columns, rows = _owners(x_row, image.shape[1], width, height), _owners(y_row, image.shape[0], width, height)
    inside = (columns >= 0) & (columns < image.shape[1]) & (rows >= 0) & (rows < image.shape[0])
    np.clip(columns, 0, image.shape[1] - 1, out=columns)
    np.clip(rows, 0, image.shape[0] - 1, out=rows)
    by_pixel(out)[...] = by_pixel(image)[rows, columns]
    if not inside.all():
        out[~inside] = fill


def _owners(row: tuple[float, float, float], length: int, width: int, height: int) -> NDArray[np.intp]:
    """Return which pixel of an axis every pixel of the output lies in: (height, width), or 1 where all are alike.

    Places before the axis are pixel -1, those behind it pixel ``length``.
    """
    along_x, along_y, offset = row
    places = np.full((1, 1), offset + 0.5 + _TOLERANCE)
    if along_x:
        places = places + along_x * np.arange(width)
    if along_y:
        places = places + along_y * np.arange(height)[:, np.newaxis]
    owners: NDArray[np.intp] = np.floor(np.clip(places, -1.0, length)).astype(np.intp)
    return owners


def _inverse(matrix: tuple[float, ...]) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return the two rows of the map from the output to the image."""
    a, b, c, d, e, f = matrix
    area = a * e - b * d
    return (e / area, -b / area, (b * f - c * e) / area), (-d / area, a / area, (c * d - a * f) / area)


def _warp(image: NDArray[Any], matrix: tuple[float, ...], fill: Fill, out: NDArray[Any]) -> None:
    height, width = out.shape[:2]
    x_row, y_row = _inverse(matrix)
    x_axis = _Axis.seen(x_row, image.shape[1], width, height)
    y_axis = _Axis.seen(y_row, image.shape[0], width, height)
    if x_axis.first >= x_axis.last or y_axis.first >= y_axis.last:
        out[...] = fill
        return
    pixels = _tensor(image[y_axis.first : y_axis.last, x_axis.first : x_axis.last])
    if pixels.shape[2:] != (y_axis.samples, x_axis.samples):
        pixels = _shrink(pixels, (y_axis.samples, x_axis.samples))
    x_places, y_places = x_axis.places(width, height), y_axis.places(width, height)
    sampled = torch.nn.functional.grid_sample(
        pixels.to(torch.float32), _grid(x_axis, x_places, y_axis, y_places), padding_mode="border", align_corners=False
    )
    if not (x_axis.inside and y_axis.inside):
        covered = torch.from_numpy(x_axis.covered(x_places) * y_axis.covered(y_places))
        outside = torch.tensor(fill, dtype=torch.float32).view(-1, 1, 1)
        sampled.sub_(outside).mul_(covered).add_(outside)
    planes = sampled.add_(0.5)[0].numpy()  # the conversion to uint8 cuts, so this rounds
    for channel, plane in enumerate(planes):
        np.copyto(out[..., channel], plane, casting="unsafe")


def _grid(
    x_axis: "_Axis", x_places: NDArray[np.float32], y_axis: "_Axis", y_places: NDArray[np.float32]
) -> torch.Tensor:
    """Return places as grid_sample wants them, (1, H, W, 2): -1 at the first edge of the part, 1 at the last."""
    grid = np.empty((2, *x_places.shape), np.float32)
    for plane, axis, places in ((grid[0], x_axis, x_places), (grid[1], y_axis, y_places)):
        np.multiply(places, 2.0 / (axis.last - axis.first), out=plane)
        plane -= 1.0
    return torch.from_numpy(grid).permute(1, 2, 0).unsqueeze(0)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of the input as the output sees it.

    Places along it are measured between edges: the image reaches from 0 to ``length``, pixel i from i to i + 1. The
    pixel in column x and row y of the output lies at ``along_x * x + along_y * y + offset``.
    """

    along_x: float
    along_y: float
    offset: float
    length: int
    first: int  # the part of the axis that is needed, as a slice
    last: int
    samples: int  # how many pixels this part has after it was shrunk
    inside: bool  # whether every pixel of the output lies wholly inside of the image

    @classmethod
    def seen(cls, row: tuple[float, float, float], length: int, width: int, height: int) -> "_Axis":
        """Describe the axis for an output of ``width`` and ``height``, from a row of the inverse matrix."""
        along_x, along_y, offset = row[0], row[1], row[2] + 0.5
        lowest = offset + min(0.0, along_x * (width - 1)) + min(0.0, along_y * (height - 1))
        highest = offset + max(0.0, along_x * (width - 1)) + max(0.0, along_y * (height - 1))
        step = math.hypot(along_x, along_y)
        shrunk = min(1.0, _FINENESS / step)
        margin = 2.0 / shrunk + 1.0  # one sample to interpolate with, and what the filter needs to make it
        first = max(0, math.floor(max(lowest - margin, 0)))
        last = min(length, math.ceil(min(highest + margin, length)))
        samples = max(1, round((last - first) * shrunk))
        inside = lowest >= step / 2 and highest <= length - step / 2
        return cls(along_x, along_y, offset, length, first, last, samples, inside)

    def places(self, width: int, height: int) -> NDArray[np.float32]:
        """Return where every pixel of the output lies, measured from ``first``: float32 (height, width)."""
        columns = self.along_x * np.arange(width) + (self.offset - self.first)
        rows = self.along_y * np.arange(height)
        places: NDArray[np.float32] = rows.astype(np.float32)[:, None] + columns.astype(np.float32)
        return places

    def covered(self, places: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return which part of a pixel of the output lies inside the image, 0 .. 1, as far as this axis decides."""
        covered = np.minimum(places + self.first, (self.length - self.first) - places)
        covered *= 1.0 / math.hypot(self.along_x, self.along_y)
        covered += 0.5
        return np.clip(covered, 0.0, 1.0, out=covered)


def _tensor(pixels: Pixels) -> torch.Tensor:
    """Return (H, W, C) pixels as (1, C, H, W), channels last: a view, or a copy where torch cannot have one."""
    if not pixels.flags.writeable or min(pixels.strides) < 0:
        pixels = np.array(by_pixel(pixels), order="C").view(np.uint8)
    (height, width, channels), (row, column, channel) = pixels.shape, pixels.strides
    return torch.from_numpy(pixels).as_strided((1, channels, height, width), (height * row, channel, row, column))


def by_pixel(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return a view with one item per pixel: NumPy copies these three times faster than single bytes."""
    channels = pixels.shape[-1]
    return pixels if channels == 1 else pixels.view(np.dtype((np.void, channels * pixels.itemsize)))
