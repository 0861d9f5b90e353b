"""Sets learning rates as a run goes on: by a schedule of ours, or by a scheduler of torch."""

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..errors import ConfigError
from .prepare import describe
from .schedule import Schedule, Span

__all__ = ["Rates", "ScheduleLike"]

#: A schedule, or what makes one of torch's schedulers from the optimizer.
ScheduleLike: TypeAlias = Schedule | Callable[[torch.optim.Optimizer], LRScheduler]


class Rates:
    """Holds what decides about learning rates; without it they stay what the optimizer was made with.

    Args:
        schedule: None; a schedule, whose factor multiplies each group's own rate; or a factory of a torch scheduler,
            which takes a step after each optimizer step (``ReduceLROnPlateau``: after each validation).
        optimizer: whose rates are set.
        span: steps of the run.
        done: steps that were done before. At 0, the rates that the optimizer has now are its own; later, those that it
            had at step 0, and torch's schedulers are brought to where they stood by then.

    Raises:
        ConfigError: it is none of these, or the factory returned none.
    """

    def __init__(
        self, schedule: ScheduleLike | None, optimizer: torch.optim.Optimizer, span: Span, done: int = 0
    ) -> None:
        self._schedule = None if isinstance(schedule, type) or not isinstance(schedule, Schedule) else schedule
        self._optimizer = optimizer
        self._span = span
        self._scheduler: LRScheduler | None = None
        if schedule is None:
            return
        for group in optimizer.param_groups:  # as torch's own schedulers name it; a saved optimizer brings it along
            if not done or "initial_lr" not in group:
                group["initial_lr"] = _plain(group["lr"])
        if self._schedule is None:
            self._set(1.0)
            self._scheduler = _made(schedule, optimizer)
            self._catch_up(done)

    @property
    def schedule(self) -> str:
        """What decides about the rates, as text; empty: nothing."""
        return repr(self._schedule) if self._schedule else type(self._scheduler).__name__ if self._scheduler else ""

    def before(self, step: int) -> None:
        """Set the rates of the step that follows ``step`` earlier ones."""
        if self._schedule is None:
            return
        try:
            factor = self._schedule.factor(step, self._span)
        except OverflowError:
            factor = math.inf
        if not 0 <= factor < math.inf:
            raise ConfigError(f"{self._schedule} gives the factor {factor} for step {step}: it must be at least 0")
        self._set(factor)

    def _set(self, factor: float) -> None:
        for group in self._optimizer.param_groups:
            rate = group["initial_lr"] * factor
            if isinstance(group["lr"], torch.Tensor):  # as capturable optimizers want it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _catch_up(self, done: int) -> None:
        with warnings.catch_warnings():  # torch looks for the optimizer's steps, which were done before
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for _ in range(done):
                self.after()

    @property
    def needs_validation(self) -> bool:
        """Whether nothing happens without losses of validations."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    def after(self) -> None:
        """Note that the optimizer has taken a step."""
        if self._scheduler is not None and not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()

    def validated(self, loss: float) -> None:
        """Note the loss of a validation."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step's rates depend on besides its number."""
        return {} if self._scheduler is None else self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where ``state`` was taken."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state)


def _made(schedule: Any, optimizer: torch.optim.Optimizer) -> LRScheduler:
    is_factory = callable(schedule) and not isinstance(schedule, (LRScheduler, type))
    made = schedule(optimizer) if is_factory else schedule
    if isinstance(made, LRScheduler) and made.optimizer is optimizer:
        return made
    if isinstance(schedule, type):
        raise ConfigError(
            f"schedule is the class {schedule.__name__}: pass an object of it, or a function that makes one"
        )
    raise ConfigError(
        f"schedule is {describe(schedule)} and came to {describe(made)}: it must be a schedule such as Cosine(), or a "
        "function that is given the run's optimizer and returns a torch scheduler over it"
    )


def _plain(rate: float | torch.Tensor) -> float:
    return float(rate)
