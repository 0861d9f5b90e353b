"""Rectangles of many small images, cut and scaled at once, with the bits that each alone would get.

A call of torch's kernel costs several microseconds whatever its work, for a small image five times the work itself. The
kernel scales the width first and then the height, each on its own, with whole numbers in between, so many calls become
few: first all rectangles of one width, on top of each other, then all of one height, side by side::

    rectangles, by width       strips, all as wide as the output      by height               rows of the batch
    +--+ +-----+ +----+        +--------+ +--------+ +--------+       +--------+--------+
    |a | |b    | |c   |  --->  |a       | |b       | |c       |  ---> |a       |b       | ... ---> a, b, c
    +--+ |     | +----+        +--------+ |        | +--------+       +--------+--------+
         +-----+                          +--------+
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from .placement import Placement
from .resample import Pixels, by_pixel, scale

__all__ = ["cut_together"]


def cut_together(images: Sequence[Pixels], placements: Sequence[Placement], out: Pixels) -> list[int]:
    """Fill those rows of a batch that are scaled rectangles of their images, where doing so at once is faster.

    Args:
        images: uint8 (H, W, C), of any sizes.
        placements: the way of each image; they agree in the output's size.
        out: uint8 (n, height, width, C), C-contiguous: the rows. Those that are not filled are left as they were.

    Returns:
        Positions of the rows that are not filled, in order: their images have to be moved one by one.

    Example:
        >>> images = [np.full((4, 4, 1), level, np.uint8) for level in range(8)]
        >>> out = np.empty((8, 2, 2, 1), np.uint8)
        >>> cut_together(images, [Placement((4, 4), (2, 2), (0, 0, 4, 4), (False, False))] * 8, out)
        []
        >>> out[:, 0, 0, 0].tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    parts = dict[int, Pixels]()  # as rows of bytes, which are copied faster than pixels
    for position, (image, placement) in enumerate(zip(images, placements, strict=True)):
        part = _part(image, placement, out)
        if part is not None:
            parts[position] = part
    by_width = _grouped((part.shape[1], position) for position, part in parts.items())
    by_height = _grouped((part.shape[0], position) for position, part in parts.items())
    if 2 * (len(by_width) + len(by_height)) > len(parts):  # too few have a side in common
        return list(range(len(images)))
    _, height, width, channels = out.shape
    strips = dict[int, Pixels]()
    for positions in by_width.values():
        strips |= zip(positions, _widened([parts[position] for position in positions], width, channels), strict=True)
    for positions in by_height.values():
        out[positions] = _heightened([strips[position] for position in positions], height, width, channels)
    for axis in (1, 2):
        _mirror(out, [position for position in parts if placements[position].movement[axis - 1]], axis)
    return [position for position in range(len(images)) if position not in parts]


def _part(image: Pixels, placement: Placement, out: Pixels) -> Pixels | None:
    """Return the rectangle (h, w C) of a usual image, or None if it is unusual or something else is done to it."""
    channels = out.shape[3]
    usual = image.dtype == out.dtype and image.shape == (*placement.size, channels)
    box = placement.rectangle if usual else None
    if box is None:
        return None
    left, top, right, bottom = box
    return image.reshape(len(image), -1)[top:bottom, left * channels : right * channels]


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    groups = defaultdict[int, list[int]](list)
    for length, position in pairs:
        groups[length].append(position)
    return groups


def _widened(parts: list[Pixels], width: int, channels: int) -> Iterator[Pixels]:
    """Scale parts of one width, on top of each other, to another width."""
    stacked = np.concatenate(parts)
    strips = np.empty((len(stacked), width * channels), np.uint8)
    scale(stacked.reshape(len(stacked), -1, channels), strips.reshape(-1, width, channels))
    ends = accumulate(map(len, parts))
    return (strips[end - len(part) : end] for part, end in zip(parts, ends, strict=True))


def _heightened(strips: list[Pixels], height: int, width: int, channels: int) -> Pixels:
    """Scale strips of one size, side by side, to another height: (n, height, width, channels)."""
    beside = np.stack(strips, axis=1)
    scaled = np.empty((height, len(strips), width, channels), np.uint8)
    scale(beside.reshape(len(beside), -1, channels), scaled.reshape(height, -1, channels))
    return scaled.swapaxes(0, 1)


def _mirror(out: Pixels, positions: list[int], axis: int) -> None:
    pixels = by_pixel(out)
    pixels[positions] = np.flip(pixels[positions], axis)
