"""Operations on the values of pixels: what they have in common, and the rules by which every device agrees.

::

    uint8 (N, C, H, W) -- blocks of rows --> float32 planes, 0 .. 255 -- steps --> rounded to uint8

The same numbers must come out for a sample in any company and on any device. So every step is a single addition,
subtraction, multiplication, division, comparison or rounding of float32 numbers, which IEEE 754 defines to the bit:
never a power, an exponential, a convolution, an addition that scales (``alpha=``), or a division by a Python number,
whose last bits depend on the kernel that a device or a memory layout chooses. Sums over an image are sums of whole
numbers in float64, which are exact in any order. What needs more is computed for each sample on the host, and
travels as a table or a factor.
"""

from abc import ABC
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ShapeError
from .random import Draw, Purpose

__all__ = [
    "Column",
    "Ids",
    "PixelOperation",
    "apply_all",
    "blocks",
    "change_rows",
    "check_images",
    "column",
    "pixel_uniforms",
    "to_bytes",
]

#: Sample ids: int64 (N,), as an array or as a tensor.
Ids: TypeAlias = NDArray[np.int64] | torch.Tensor

#: Pixels that are worked on at once by a CPU: their float32 planes stay in a core's second-level cache.
_BLOCK_PIXELS = 1 << 16


class Column(IntEnum):
    """The first of each operation's uniform numbers of ``Purpose.COLOR``: part of every result, never renumbered."""

    COLOR = 0  # five
    BLUR = 8  # two
    NOISE = 12  # one
    SALT_AND_PEPPER = 14  # one
    ERASING = 16  # five
    POSTERIZE = 24  # two
    SOLARIZE = 26  # two
    AUTO_CONTRAST = 28  # one
    EQUALIZE = 29  # one
    SHARPNESS = 30  # two


class PixelOperation(Protocol):
    """What changes pixels where they are; ``repr`` must name all settings, since it enters the fingerprint."""

    def apply(self, images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
        """Return changed images; what happens to one depends on its id and the draw, never on the others.

        Args:
            images: uint8 (N, C, H, W) on any device, in any memory layout; they are not changed.
            ids: int64 (N,), their sample ids.
            draw: the random world.

        Returns:
            uint8 (N, C, H, W) on the same device, a new tensor.

        Raises:
            ShapeError: these are no such images.
        """


def apply_all(operations: Sequence[PixelOperation], images: torch.Tensor, ids: Ids, draw: Draw) -> torch.Tensor:
    """Apply operations one after the other, as ``AugmentedImageDatastore(..., photometric=[...])`` does it.

    Where an operation occurs again, of whatever settings, it draws other numbers: occurrence k, from 0, draws from
    ``draw.fork(k)``. So the first of each kind does what its own ``apply`` does.

    Args:
        operations: in their order; none of them leave the images as they are.
        images: uint8 (N, C, H, W), on any device; they are not changed.
        ids: int64 (N,), sample ids.
        draw: the random world.

    Returns:
        uint8 (N, C, H, W) on the same device.

    Raises:
        ShapeError: these are no such images.

    Example:
        >>> from headrace.augment import RandomErasing
        >>> twice = [RandomErasing(probability=1, area=0.1)] * 2
        >>> images = torch.full((1, 1, 20, 20), 100, dtype=torch.uint8)
        >>> int((apply_all(twice, images, np.array([5]), Draw()) == 0).sum()) > 60
        True
    """
    seen = Counter[type]()
    for operation in operations:
        # Kinds that share their numbers have a class in common: all policies, and a class and what is derived from it.
        kind = [base for base in type(operation).__mro__ if base not in (object, ABC)][-1]
        images = operation.apply(images, ids, draw.fork(seen[kind]))
        seen[kind] += 1
    return images


def check_images(images: torch.Tensor, ids: Ids, channels: tuple[int, ...] | None = None) -> NDArray[np.int64]:
    """Check what an operation was given, and return the ids as an array.

    Ids that lie on a GPU are fetched from there, which waits for it.

    Raises:
        ShapeError: the images are not uint8 (N, C, H, W), have another number of channels, or there are more or
            fewer ids than images.
    """
    found = f"{str(images.dtype).removeprefix('torch.')} {tuple(images.shape)}"
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ShapeError(f"images must be uint8 (N, C, H, W), got {found}: permute them, or apply this before scaling")
    if channels is not None and images.shape[1] not in channels:
        wanted = " or ".join(map(str, channels))
        raise ShapeError(f"images must have {wanted} channels, got {found}")
    numbers = ids.cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    if numbers.shape != (len(images),):
        raise ShapeError(f"there must be one id for each image: got {numbers.shape} ids for {found}")
    return numbers


def pixel_uniforms(ids: NDArray[np.int64], draw: Draw, first: Column, count: int) -> NDArray[np.float64]:
    """Return an operation's numbers in [0, 1) for each sample, float64 (n, count)."""
    return draw.uniforms(ids, Purpose.COLOR, first + count)[:, first:]


def blocks(images: torch.Tensor) -> Iterator[slice]:
    """Divide the rows into blocks that are worked on one after the other; a GPU takes all rows at once."""
    count, pixels = len(images), max(1, images.shape[2] * images.shape[3])
    size = max(1, count if images.is_cuda else _BLOCK_PIXELS // pixels)
    return (slice(start, start + size) for start in range(0, count, size))


def change_rows(
    images: torch.Tensor, rows: NDArray[np.int64], change: Callable[[torch.Tensor, slice], torch.Tensor]
) -> None:
    """Change some rows in place, block by block.

    Args:
        images: uint8 (N, C, H, W).
        rows: int64 (n,), which ones, each at most once.
        change: gets a block of these images and its place among ``rows``, and returns the changed block.
    """
    for part in blocks(images[: len(rows)]):
        chosen = torch.from_numpy(rows[part]).to(images.device, non_blocking=True)
        images.index_copy_(0, chosen, change(images.index_select(0, chosen), part))


def column(values: NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    """Return one number per row as float32 (n, 1, 1, 1), on the device of ``like``."""
    return torch.from_numpy(values.astype(np.float32)).to(like.device, non_blocking=True).view(-1, 1, 1, 1)


def to_bytes(planes: torch.Tensor) -> torch.Tensor:
    """Round float32 in 0 .. 255 to the nearest uint8, ties to even; the planes are used up."""
    return planes.round_().to(torch.uint8)
