"""The losses of a run, kept on the device until somebody needs them."""

import math
from dataclasses import dataclass

import torch

__all__ = ["LossMeter"]


@dataclass(frozen=True, slots=True)
class _StepLoss:
    epoch: int
    index: int
    ids: torch.Tensor  # int64 (samples,), on the host
    loss: torch.Tensor  # one number, on the device
    samples: int  # that it is the mean of
    own: torch.Tensor | None  # this rank's part of the loss, if there are others


class LossMeter:
    """Collects one loss per step; all that were collected are read from the device at once.

    Args:
        shown_ids: how many sample ids an error names.
    """

    def __init__(self, shown_ids: int = 8) -> None:
        self.samples = 0
        self._shown_ids = shown_ids
        self._unread: list[_StepLoss] = []
        self._sum = 0.0
        self._count = 0

    def add(
        self,
        epoch: int,
        index: int,
        ids: torch.Tensor,
        loss: torch.Tensor,
        *,
        samples: int | None = None,
        own: torch.Tensor | None = None,
    ) -> None:
        """Take the mean loss of a step's samples, without waiting for it.

        Args:
            epoch: of the step.
            index: of the step in its epoch.
            ids: int64 (n,), its samples, without padding, in memory that may be kept; on several ranks this one's.
            loss: one number, detached.
            samples: that it is the mean of; None: ``len(ids)``.
            own: on several ranks, this one's part of the loss.
        """
        count = len(ids) if samples is None else samples
        self._unread.append(_StepLoss(epoch, index, ids, loss, count, own))
        self.samples += count

    def read(self) -> str | None:
        """Wait for the losses that were added since the last call, and return what is wrong with the first bad one.

        Returns:
            None if all are finite; else a sentence that names the step, its epoch, its loss and its samples.
        """
        if not self._unread:
            return None
        steps, self._unread = self._unread, []
        # one wait for all of them; a single one, as on the CPU, is cheaper without the stack
        losses = [step.loss for step in steps]
        values = [losses[0].item()] if len(losses) == 1 else torch.stack([x.double() for x in losses]).tolist()
        for step, value in zip(steps, values, strict=True):
            self._sum += value * step.samples
            self._count += step.samples
            if not math.isfinite(value):
                return self._complaint(step, value)
        return None

    def take_mean(self) -> float:
        """Return the mean over all samples read since the last call; NaN if there are none."""
        mean = self._sum / self._count if self._count else math.nan
        self._sum, self._count = 0.0, 0
        return mean

    @property
    def sums(self) -> tuple[float, int]:
        """Sum of the losses that were read and are in no mean yet, and how many samples they are of."""
        return self._sum, self._count

    def take_up(self, sums: tuple[float, int]) -> None:
        """Go on from ``sums``."""
        self._sum, self._count = sums

    def _complaint(self, step: _StepLoss, value: float) -> str:
        what = f"the loss of step {step.index} of epoch {step.epoch} is {value}"
        if step.own is not None and math.isfinite(step.own.item()):
            return f"{what}; its samples are another rank's, which names them"
        shown = ", ".join(map(str, step.ids[: self._shown_ids].tolist()))
        more = f" and {len(step.ids) - self._shown_ids} more" if len(step.ids) > self._shown_ids else ""
        return f"{what}; its samples are {shown}{more}"
