"""Affine maps as 3x3 matrices: every movement of an image, and the window that is cut from it, in one notation.

Conventions, which every matrix in the package keeps:

* x points right, y points down, in pixels; the centre of the first pixel is (0, 0), so an image W pixels wide has
  its centre at x = (W - 1) / 2 and its edges at -1/2 and W - 1/2;
* a matrix is *forward*: it maps a point of the input, as a column (x, y, 1), to the point of the output where it is
  seen;
* the last row is (0, 0, 1), the dtype float64.

The elementary maps below take one number per sample and return (n, 3, 3); ``@`` composes them, right factor first.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Box",
    "FloatArray",
    "about_centre",
    "mapped_boxes",
    "mapped_points",
    "reflections",
    "rotations",
    "scalings",
    "shears",
    "translations",
    "window",
]

FloatArray: TypeAlias = NDArray[np.float64]

#: Left, top, right and bottom edge of a rectangle of pixels: pixel i reaches from edge i to edge i + 1, so
#: (0, 0, W, H) is a whole image.
Box: TypeAlias = tuple[float, float, float, float]


def reflections(x: NDArray[np.bool_], y: NDArray[np.bool_]) -> FloatArray:
    """Return the maps that mirror left and right where ``x`` is true, top and bottom where ``y`` is: (n, 3, 3).

    Example:
        >>> reflections(np.array([True]), np.array([False]))[0].diagonal().tolist()
        [-1.0, 1.0, 1.0]
    """
    return scalings(np.where(x, -1.0, 1.0), np.where(y, -1.0, 1.0))


def scalings(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the maps that enlarge by the factors ``x`` and ``y``, each (n,): (n, 3, 3)."""
    matrices = _identities(len(x))
    matrices[:, 0, 0] = x
    matrices[:, 1, 1] = y
    return matrices


def shears(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the maps that shear along x by ``x`` degrees, then along y by ``y`` degrees, each (n,): (n, 3, 3).

    The shear along x moves a point to the right by tan(x) times how far below the origin it lies; the one along y
    moves it down by tan(y) times how far right it lies. One after the other they keep all areas, whatever the angles
    (both at once would collapse the image where tan(x) tan(y) = 1).
    """
    along_x, along_y = _identities(len(x)), _identities(len(y))
    along_x[:, 0, 1] = np.tan(np.radians(x))
    along_y[:, 1, 0] = np.tan(np.radians(y))
    return along_y @ along_x


def rotations(degrees: FloatArray) -> FloatArray:
    """Return the maps that turn by ``degrees`` (n,), counter-clockwise as seen on a screen: (n, 3, 3).

    Quarter turns are exact: their matrices hold 0, 1 and -1 and nothing else.

    Example:
        >>> rotations(np.array([90.0]))[0, :2, :2].tolist()     # the point (1, 0), on the right, moves up
        [[0.0, 1.0], [-1.0, 0.0]]
    """
    quarters = np.round(degrees / 90.0)
    rest = np.radians(degrees - 90.0 * quarters)
    cosine, sine = np.cos(rest), np.sin(rest)
    turn = quarters.astype(np.int64) % 4
    cosines = np.choose(turn, (cosine, -sine, -cosine, sine)) + 0.0
    sines = np.choose(turn, (sine, cosine, -sine, -cosine)) + 0.0
    matrices = _identities(len(degrees))
    matrices[:, 0, 0] = matrices[:, 1, 1] = cosines
    matrices[:, 0, 1] = sines
    matrices[:, 1, 0] = -sines + 0.0  # adding 0.0 turns -0.0 into 0.0
    return matrices


def translations(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the maps that move right by ``x`` and down by ``y`` pixels, each (n,): (n, 3, 3)."""
    matrices = _identities(len(x))
    matrices[:, 0, 2] = x
    matrices[:, 1, 2] = y
    return matrices


def about_centre(matrix: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Return the map (3, 3) that does about the centre of an image what ``matrix`` (3, 3) does about the origin.

    Args:
        matrix: an affine map of coordinates that are measured from the centre.
        size: height and width of the image.
    """
    x, y = (size[1] - 1) / 2, (size[0] - 1) / 2
    moved = matrix.copy()
    moved[0, 2] += x - matrix[0, 0] * x - matrix[0, 1] * y
    moved[1, 2] += y - matrix[1, 0] * x - matrix[1, 1] * y
    return moved


def window(box: Box, size: tuple[int, int]) -> FloatArray:
    """Return the map (3, 3) that makes the rectangle ``box`` of the input fill an output of ``size``.

    Args:
        box: may reach beyond the image.
        size: height and width of the output.

    Example:
        >>> window((10, 20, 30, 40), (20, 20))[:2, 2].tolist()     # a cut without scaling: the box's corner moves to 0
        [-10.0, -20.0]
    """
    left, top, right, bottom = box
    x_scale, y_scale = size[1] / (right - left), size[0] / (bottom - top)
    # From edge to edge: x + 1/2 is the coordinate that scales without an offset.
    x_offset, y_offset = (0.5 - left) * x_scale - 0.5, (0.5 - top) * y_scale - 0.5
    return np.array([[x_scale, 0.0, x_offset], [0.0, y_scale, y_offset], [0.0, 0.0, 1.0]])


def mapped_points(matrix: FloatArray, points: FloatArray) -> FloatArray:
    """Return where points go, measured between edges as people write coordinates down, not as matrices do.

    Args:
        matrix: float64 (3, 3), a forward map.
        points: float64 (..., 2), x and y: (0, 0) is the image's upper left corner, (1/2, 1/2) the centre of the first
            pixel, (W, H) the lower right corner. NaN stays NaN.

    Returns:
        float64 (..., 2), measured in the same way in the output; maybe outside of it.

    Example:
        >>> mapped_points(window((0, 0, 10, 10), (20, 40)), np.array([[0.0, 0.0], [5.0, 10.0]])).tolist()
        [[0.0, 0.0], [20.0, 20.0]]
    """
    x, y = points[..., 0] - 0.5, points[..., 1] - 0.5
    (a, b, c), (d, e, f), _ = matrix.tolist()
    return np.stack((a * x + b * y + (c + 0.5), d * x + e * y + (f + 0.5)), axis=-1)


def mapped_boxes(matrix: FloatArray, boxes: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Return the upright rectangles around rectangles that were moved, cut to the output.

    Args:
        matrix: float64 (3, 3), a forward map.
        boxes: float64 (..., 4): left, top, right and bottom edge, measured as ``mapped_points`` says.
        size: height and width of the output.

    Returns:
        float64 (..., 4), inside of the output. A box that has left it has no area; it lies on the border.

    Example:
        >>> mapped_boxes(window((5, 5, 15, 15), (10, 10)), np.array([[0.0, 0.0, 8.0, 8.0]]), (10, 10)).tolist()
        [[0.0, 0.0, 3.0, 3.0]]
    """
    corners = mapped_points(matrix, boxes[..., [[0, 1], [2, 1], [0, 3], [2, 3]]])
    hull = np.concatenate((corners.min(axis=-2), corners.max(axis=-2)), axis=-1)
    height, width = size
    clipped: FloatArray = np.clip(hull, 0.0, np.array([width, height, width, height], np.float64))
    return clipped


def _identities(count: int) -> FloatArray:
    matrices = np.zeros((count, 3, 3))
    matrices[:, (0, 1, 2), (0, 1, 2)] = 1.0
    return matrices
