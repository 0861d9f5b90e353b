"""Turns what a run does into rows of its history."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .history import History, Row
from .losses import LossMeter
from .progress import Progress
from .report import Phase, Stopwatch
from .step import Step

__all__ = ["Recorder"]


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a row begins."""

    samples: int = 0
    wait_seconds: float = 0.0
    training_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest step that is in no row yet; not the step itself, whose images would stay in memory."""

    step: int
    epoch: int
    lr: float | torch.Tensor


class Recorder:
    """Keeps time and losses, and writes a row when it is told to.

    Args:
        history: where rows go.
        progress: what is shown of them.

    Attributes:
        watch: the time of the run.
        samples: samples trained on, without padding.
    """

    def __init__(self, history: History, progress: Progress) -> None:
        self.watch = Stopwatch()
        self._history = history
        self._progress = progress
        self._losses = LossMeter()
        self._last: _Newest | None = None
        self._start = _Start()

    @property
    def samples(self) -> int:
        """Samples trained on, without padding."""
        return self._losses.samples

    def add(self, step: Step, loss: torch.Tensor, lr: float | torch.Tensor, *, own: torch.Tensor | None = None) -> None:
        """Take in a step, without waiting for its loss; ``own`` is this rank's part of it, if there are others."""
        ids = step.ids.clone()  # a slot's ids would hold the slot
        self._losses.add(step.epoch, step.index, ids, loss, samples=step.all_samples, own=own)
        self._last = _Newest(step.number, step.epoch, lr)

    @property
    def unwritten(self) -> dict[str, Any]:
        """What the next row depends on, besides steps to come and times; losses have been read."""
        newest = None if self._last is None else (self._last.step, self._last.epoch, float(self._last.lr))
        return {"sums": self._losses.sums, "newest": newest}

    def take_up(self, state: dict[str, Any]) -> None:
        """Go on from what ``unwritten`` was."""
        self._losses.take_up(state["sums"])
        self._last = None if state["newest"] is None else _Newest(*state["newest"])

    def read(self) -> str | None:
        """Wait for the losses so far; see ``LossMeter.read``."""
        complaint = self._losses.read()
        self.watch.lap(Phase.COMPUTE)  # whoever waits for a loss waits for the device to compute it
        return complaint

    def write(self, validation: Mapping[str, float] | None = None) -> None:
        """Write a row for the steps since the last one, if there are any; their losses have been read."""
        if self._last is None:
            return
        watch, last = self.watch, self._last
        now = _Start(self.samples, watch.seconds[Phase.WAIT], watch.training_seconds)
        start, self._start, self._last = self._start, now, None
        seconds = now.training_seconds - start.training_seconds
        row = Row(
            step=last.step,
            epoch=last.epoch,
            loss=self._losses.take_mean(),
            images_per_second=(now.samples - start.samples) / seconds if seconds else 0.0,
            wait_share=(now.wait_seconds - start.wait_seconds) / seconds if seconds else 0.0,
            lr=float(last.lr),
            validation=dict(validation or {}),
        )
        self._history.append(row)
        self._progress.row(row)
