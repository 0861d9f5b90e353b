"""Validation while a run goes on: when, which weights were best, and when patience is over."""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch

from ..errors import ConfigError
from .config import DEFAULTS, TrainConfig
from .distributed import find_place
from .evaluation import LossFunction, check_metrics, measure
from .loading import Data, evaluation_loader
from .metrics import Metric
from .prepare import Prepare
from .run import Run
from .step import Step

__all__ = ["Validator"]


class Validator:
    """Validates a run from time to time; without data it never does.

    Args:
        data: to validate on, or None.
        loss: (outputs, targets) -> the mean over the batch.
        metrics: name -> metric.
        config: says when, and what to keep.
        prepare: makes (inputs, targets) of a batch on the device; None: images and labels.

    Attributes:
        names: of the values that a validation makes.
        values: those of the last validation; empty before the first one.
        best_step: optimizer steps done at the best validation; None before the first one with a finite loss.
        best_value: its loss.

    Raises:
        ConfigError: there are no samples, or settings that need a validation and there is none.
    """

    def __init__(
        self,
        data: Data | None,
        loss: LossFunction,
        metrics: Mapping[str, Metric] | None,
        config: TrainConfig,
        prepare: Prepare | None,
    ) -> None:
        place = find_place()
        check_metrics(metrics, place)
        self.best_step: int | None = None
        self.best_value: float | None = None
        self.values: dict[str, float] = {}
        self._loss = loss
        self._metrics = dict(metrics or {})
        self._config = config
        self._prepare = prepare
        self._best_weights: dict[str, Any] = {}
        self._misses = 0
        self._data = data
        if data is None:
            _check_not_needed(config, self._metrics)
            self.names: tuple[str, ...] = ()
            return
        self.names = ("loss", *self._metrics)
        self._loader = evaluation_loader(
            data,
            "validation",
            batch_size=config.batch_size,
            workers=config.workers,
            prefetch=config.prefetch,
            place=place,
            seed=config.seed,
        )

    def is_due(self, step: Step, run: Run) -> bool:
        """Whether ``step`` is to be followed by a validation."""
        if self._data is None or run.is_stopped:
            return False
        every = self._config.validate_every
        due = step.is_epoch_end if every == "epoch" else step.number % every == 0
        return due or step.number == run.total_steps

    def validate(self, run: Run) -> None:
        """Measure the model, write the values into the history, and stop the run if patience is over.

        Ctrl-C breaks off the measuring, and then nothing is changed.
        """
        with run.validating():
            with run.ranks.interrupts():
                values = measure(run.model, self._loader, run.feed, run.ranks, self._loss, self._metrics, self._prepare)
            self.values = values
            self._judge(run)
        run.record(self.values)

    def _judge(self, run: Run) -> None:
        value, config = self.values["loss"], self._config
        if not math.isnan(value) and (self.best_value is None or value < self.best_value):
            self.best_step, self.best_value, self._misses = run.step, value, 0
            if config.keep == "best":
                self._best_weights = {name: _copy(entry) for name, entry in run.model.state_dict().items()}
            return
        self._misses += 1
        if self._misses == config.patience:
            run.stop(
                "validation patience met",
                f"validation patience met: the loss was not below {self.best_value} (step {self.best_step}) in "
                f"{self._misses} validations",
            )

    def restore_best(self, run: Run) -> None:
        """Give the model the weights that are to be kept; those of the last step if there was no validation yet."""
        if self._best_weights:
            run.model.load_state_dict(self._best_weights)
        elif run.average is not None:
            run.average.exchange()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next validation is compared with, and the best weights."""
        judged = {"best_step": self.best_step, "best_value": self.best_value, "misses": self._misses}
        return judged | {"values": self.values} | {f"best/{name}": part for name, part in self._best_weights.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""
        self.best_step, self.best_value, self._misses = state["best_step"], state["best_value"], state["misses"]
        self.values = state["values"]
        weights = {name.removeprefix("best/"): part for name, part in state.items() if name.startswith("best/")}
        self._best_weights = weights

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._data is not None and self._loader is not self._data:
            self._loader.close()


def _check_not_needed(config: TrainConfig, metrics: Mapping[str, Metric]) -> None:
    asked = {
        'keep="best"': config.keep == "best",
        "patience": config.patience is not None,
        "validate_every": config.validate_every != DEFAULTS.validate_every,
        "metrics": bool(metrics),
    }
    needy = [name for name, is_asked in asked.items() if is_asked]
    if needy:
        raise ConfigError(f"{', '.join(needy)} need validation data: pass validation=..., or leave them out")


def _copy(entry: Any) -> Any:
    return entry.detach().to("cpu", copy=True) if isinstance(entry, torch.Tensor) else entry
