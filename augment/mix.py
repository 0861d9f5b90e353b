"""MixUp and CutMix: each image gets a part of its neighbour in the batch, and a part of its label.

::

    rows of the global batch   0 1 | 2 3 | 4 5 | ...      partners: row 2k and row 2k + 1
    ranks take whole runs      [ rank 0  | rank 1 ...     no pair is divided if each rank has an even number of rows

Another rank's rows cannot be had without talking to it, and a partner drawn among a rank's own rows would change with
the number of ranks. Neighbours do not: the plan has shuffled the samples, so any fixed pairs are random ones, and other
ones in each epoch. How a row is mixed is keyed by its own sample id. So a mixed batch is the same for any number of
ranks that leaves each an even number of rows; the last row of an odd number has no partner and stays as it is.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, ShapeError
from .pixels import Ids, blocks, check_images, column, to_bytes
from .random import Draw, Purpose
from .ranges import Bounds, as_number, as_probability, as_whole

__all__ = ["CutMix", "MixUp", "Mixed", "beta_quantiles"]

_MIXUP, _CUTMIX, _COUNT = 0, 4, 8  # columns of Purpose.MIX: part of every result, never renumbered
_GRID = 4096
_ALPHA = Bounds(0.01, 100)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Images that are mixtures of two.

    Args:
        images: uint8 (N, C, H, W).
        labels: int64 (N,), of the image that a row held.
        partner_labels: int64 (N,), of the image that was mixed in.
        weights: float32 (N,), share of the first, 0 .. 1; that of the partner is the rest.
    """

    images: torch.Tensor
    labels: torch.Tensor
    partner_labels: torch.Tensor
    weights: torch.Tensor

    def targets(self, classes: int) -> torch.Tensor:
        """Return the labels as probabilities, float32 (N, classes), which ``cross_entropy`` takes as they are.

        Args:
            classes: how many there are, from 1 on; labels are below.

        Raises:
            ConfigError: that is no such number, or, on a CPU, a label is not below it. (A GPU would have to be waited
                for; it stops with an error of its own.)

        Example:
            >>> images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
            >>> mixed = Mixed(images, torch.tensor([0, 2]), torch.tensor([2, 0]), torch.tensor([0.75, 1.0]))
            >>> mixed.targets(3).tolist()
            [[0.75, 0.0, 0.25], [0.0, 0.0, 1.0]]
        """
        classes = as_whole("classes", classes, 1, 2**31 - 1, "1 .. 2**31 - 1")
        if self.labels.device.type == "cpu" and self.labels.numel():
            both = torch.stack((self.labels, self.partner_labels))
            lowest, highest = int(both.min()), int(both.max())
            if lowest < 0 or highest >= classes:
                raise ConfigError(f"classes={classes} needs labels in 0 .. {classes - 1}, got {lowest} .. {highest}")
        result = torch.zeros(len(self.labels), classes, device=self.labels.device)
        weights = self.weights.view(-1, 1)
        result.scatter_add_(1, self.labels.view(-1, 1), weights)
        return result.scatter_add_(1, self.partner_labels.view(-1, 1), 1 - weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp:
    """Blends each image with its partner (Zhang and others: "mixup: beyond empirical risk minimization", ICLR 2018).

    Args:
        alpha: 0.01 .. 100; a row's own share is drawn from the distribution Beta(alpha, alpha), which is uniform for
            1 and leaves most images nearly alone if it is small.
        probability: of being mixed at all, 0 .. 1, for each row.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.tensor([0, 200], dtype=torch.uint8).view(2, 1, 1, 1)
        >>> mixed = MixUp(alpha=1.0).apply(images, torch.tensor([0, 1]), np.array([5, 8]), Draw())
        >>> bool((mixed.images.view(2) == (200 * torch.tensor([1, 0]) + mixed.weights * torch.tensor([-200, 200]))
        ...       .round()).all())
        True
    """

    alpha: float = 0.2
    probability: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", as_number("alpha", self.alpha, _ALPHA))
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, ids: Ids, draw: Draw, valid: torch.Tensor | None = None
    ) -> Mixed:
        """Mix the rows of a batch, on its device; the bits are the same on every device.

        Args:
            images: uint8 (N, C, H, W); they are not changed.
            labels: int64 (N,), on the same device.
            ids: int64 (N,), sample ids; best not on a GPU, since they are needed on the host.
            draw: the random world.
            valid: bool (N,): rows that only pad a batch are mixed with nothing; None: there are none.

        Raises:
            ShapeError: these do not belong together.
        """
        partners, uniforms = _pairs(images, labels, ids, draw, valid)
        own = beta_quantiles(uniforms[:, _MIXUP + 1], self.alpha)
        own[(uniforms[:, _MIXUP] >= self.probability) | (partners == np.arange(len(partners)))] = 1
        others = torch.from_numpy(partners).to(images.device, non_blocking=True)
        result = torch.empty_like(images)
        for rows in blocks(images):
            planes = images[rows].to(torch.float32, copy=True)
            weight = column(own[rows], planes)
            mixed_in = images.index_select(0, others[rows]).to(torch.float32)
            result[rows] = to_bytes(planes.mul_(weight).add_(mixed_in.mul_(1 - weight)))
        return Mixed(result, labels, labels.index_select(0, others), column(own, images).view(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix:
    """Pastes a rectangle of its partner into each image (Yun and others: "CutMix", ICCV 2019).

    The rectangle has the image's shape, its centre may lie anywhere, and what reaches beyond the image is cut off;
    the labels' shares are those of the pixels that remain.

    Args:
        alpha: 0.01 .. 100; the share of the image outside of the uncut rectangle is drawn from Beta(alpha, alpha).
        probability: of being mixed at all, 0 .. 1, for each row.

    Raises:
        ConfigError: a value that is out of range.

    Example:
        >>> images = torch.tensor([0, 1], dtype=torch.uint8).view(2, 1, 1, 1).repeat(1, 1, 8, 8)
        >>> mixed = CutMix().apply(images, torch.tensor([0, 1]), np.array([5, 8]), Draw())
        >>> float(mixed.weights[1]) == float(mixed.images[1].float().mean())
        True
    """

    alpha: float = 1.0
    probability: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", as_number("alpha", self.alpha, _ALPHA))
        object.__setattr__(self, "probability", as_probability("probability", self.probability))

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, ids: Ids, draw: Draw, valid: torch.Tensor | None = None
    ) -> Mixed:
        """Mix the rows of a batch; arguments, result and errors are those of ``MixUp.apply``."""
        partners, uniforms = _pairs(images, labels, ids, draw, valid)
        height, width = images.shape[2:]
        boxes = _boxes(uniforms[:, _CUTMIX + 1 :], self.alpha, height, width)
        boxes[(uniforms[:, _CUTMIX] >= self.probability) | (partners == np.arange(len(partners)))] = 0
        result = images.clone()
        for row, (partner, (top, left, bottom, right)) in enumerate(
            zip(partners.tolist(), boxes.tolist(), strict=True)
        ):
            if bottom > top and right > left:
                result[row, :, top:bottom, left:right] = images[partner, :, top:bottom, left:right]
        pasted = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        others = torch.from_numpy(partners).to(images.device, non_blocking=True)
        weights = column(1 - pasted / max(1, height * width), images).view(-1)
        return Mixed(result, labels, labels.index_select(0, others), weights)


def beta_quantiles(uniforms: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Turn uniform numbers into numbers of the distribution Beta(alpha, alpha), by its quantiles.

    The integral of s^(alpha - 1) (1 - s)^(alpha - 1) from 0 to x is taken over t = s^alpha, where it has no pole at 0,
    on a grid up to x = 1/2; the upper half mirrors the lower one. The error of a quantile is below 1e-4.

    Args:
        uniforms: float64 (n,), in 0 .. 1.
        alpha: 0.01 .. 100.

    Example:
        >>> beta_quantiles(np.array([0.25, 0.5, 0.75]), 1.0).round(6).tolist()
        [0.25, 0.5, 0.75]
    """
    places = 0.5 * np.linspace(0, 1, _GRID) ** (1 / min(alpha, 1.0))
    powers = places**alpha
    density = (1 - places) ** (alpha - 1)
    below = np.concatenate(([0.0], np.cumsum(np.diff(powers) * (density[1:] + density[:-1]) / 2)))
    lower = np.minimum(uniforms, 1 - uniforms)
    found = np.interp(lower, below * (0.5 / below[-1]), powers) ** (1 / alpha)
    return np.where(uniforms <= 0.5, found, 1 - found)


def _pairs(
    images: torch.Tensor, labels: torch.Tensor, ids: Ids, draw: Draw, valid: torch.Tensor | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return each row's partner, which is the row itself where it has none, and each row's uniform numbers."""
    numbers = check_images(images, ids)
    count = len(numbers)
    if labels.shape != (count,) or (valid is not None and valid.shape != (count,)):
        raise ShapeError(
            f"there must be one label, and one mark of validity, for each image: got labels {tuple(labels.shape)}, "
            f"valid {None if valid is None else tuple(valid.shape)} for {count} images"
        )
    rows = np.arange(count)
    partners = np.minimum(rows ^ 1, count - 1)
    if valid is not None:
        marks = valid.cpu().numpy()
        partners = np.where(marks & marks[partners], partners, rows)
    return partners, draw.uniforms(numbers, Purpose.MIX, _COUNT)


def _boxes(uniforms: NDArray[np.float64], alpha: float, height: int, width: int) -> NDArray[np.int64]:
    """Return rectangles as rows top, left, bottom, right, inside of the image: int64 (n, 4)."""
    sides = np.sqrt(1 - beta_quantiles(uniforms[:, 0], alpha))
    edges = []
    for sign in (-0.5, 0.5):
        for uniform, size in ((uniforms[:, 1], height), (uniforms[:, 2], width)):
            edges.append(np.clip(np.rint(uniform * size + sign * sides * size), 0, size))
    return np.stack(edges, axis=1).astype(np.int64)
