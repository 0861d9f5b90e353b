"""Sets learning rates as a run goes on: by a schedule of ours, or by a scheduler of torch."""

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

    Raises:
        ConfigError: it is none of these, or the factory returned none.
    """

    def __init__(self, schedule: ScheduleLike | None, optimizer: torch.optim.Optimizer, span: Span) -> None:
        self._schedule = None if isinstance(schedule, type) or not isinstance(schedule, Schedule) else schedule
        self._optimizer = optimizer
        self._span = span
        self._scheduler: LRScheduler | None = None
        if self._schedule is not None:
            for group in optimizer.param_groups:  # as torch's own schedulers name it; a saved optimizer brings it along
                group.setdefault("initial_lr", _plain(group["lr"]))
        elif schedule is not None:
            self._scheduler = _made(schedule, optimizer)

    @property
    def schedule(self) -> str:
        """What decides about the rates, as text; empty: nothing."""
        return repr(self._schedule) if self._schedule else type(self._scheduler).__name__ if self._scheduler else ""

    def before(self, step: int) -> None:
        """Set the rates of the step that follows ``step`` earlier ones."""
        if self._schedule is None:
            return
        factor = self._schedule.factor(step, self._span)
        for group in self._optimizer.param_groups:
            rate = group["initial_lr"] * factor
            if isinstance(group["lr"], torch.Tensor):  # as capturable optimizers want it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

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
    raise ConfigError(
        f"schedule is {describe(schedule)} and came to {describe(made)}: it must be a schedule such as Cosine(), or a "
        "function that is given the run's optimizer and returns a torch scheduler over it"
    )


def _plain(rate: float | torch.Tensor) -> float:
    return float(rate)
