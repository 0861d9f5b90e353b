"""``fit``: the whole of a training run in one call."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import torch
from torch import nn

from ..datastores.interrupt import Terminated, held
from ..datastores.loader import Loader
from ..errors import ConfigError
from .checks import check_labels, check_loss_function
from .config import DEFAULTS, TrainConfig
from .evaluation import LossFunction
from .history import History
from .loading import Data, check_same_classes
from .metrics import Metric
from .prepare import Prepare
from .rates import ScheduleLike
from .report import Report
from .run import OptimizerLike, Run, StopReason
from .validation import Validator

__all__ = ["Event", "FitResult", "FitState", "OnEvent", "fit"]

Event: TypeAlias = Literal["start", "step", "validation", "epoch", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """What ``on_event`` is told.

    Args:
        rank: of this process, 0 where there is one only.
        step: optimizer steps done.
        epoch: of the last of them, from 0.
        total_steps: what ``step`` will be at the end, unless the run is stopped.
        model: the model, in the midst of its training.
        optimizer: its optimizer, for example to set a learning rate.
        loss: of the last step, one number on the device (reading it waits for a GPU); None before the first step.
        validation: name -> value of the last validation; empty before the first one.
        history: the rows so far.
    """

    rank: int
    step: int
    epoch: int
    total_steps: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: torch.Tensor | None
    validation: Mapping[str, float]
    history: History


OnEvent: TypeAlias = Callable[[Event, FitState], Literal["stop"] | None]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FitResult:
    """What a run came to.

    Args:
        model: the model that was given, on the device it was trained on, with the weights that were to be kept (after
            Ctrl-C: those of the last step).
        history: rows of loss, speed and validation values.
        stop_reason: "max epochs completed", "max steps completed", "validation patience met", "stopped by on_event",
            "loss not finite" or "interrupted" (by Ctrl-C). (After SIGTERM, "terminated", the process ends.)
        message: the same as a sentence with its particulars.
        report: where the time went; ``print(result.report)``.
        step: optimizer steps done.
        best_step: of the best validation; None without validation.
        best_value: its loss.
    """

    model: nn.Module
    history: History
    stop_reason: StopReason
    message: str
    report: Report
    step: int
    best_step: int | None
    best_value: float | None

    def __repr__(self) -> str:
        best = "" if self.best_step is None else f", best validation loss {self.best_value:.4g} after {self.best_step}"
        loss = f", loss {self.history[-1].loss:.4g}" if len(self.history) else ""
        return f"<FitResult: {self.message} ({self.step} steps{loss}{best})>"


def fit(
    model: nn.Module,
    data: Data,
    loss: LossFunction,
    optimizer: OptimizerLike,
    config: TrainConfig = DEFAULTS,
    validation: Data | None = None,
    *,
    metrics: Mapping[str, Metric] | None = None,
    schedule: ScheduleLike | None = None,
    prepare: Prepare | None = None,
    on_event: OnEvent | None = None,
) -> FitResult:
    """Train ``model`` on ``data`` and return it with its history.

    The weights depend on the model's first weights, data, loss, optimizer, seed, batch size and number of steps; not on
    workers, prefetch, validation or logging: bit for bit, as far as the device's own kernels are repeatable. What the
    model draws (dropout) is seeded anew at each step; torch's random generators and the mode of each module are left as
    they were found. A loader that was given stays open and stands after the last step that changed the weights, however
    the run ended: whoever iterates it goes on there.

    Under torchrun each rank calls this and trains its rows of each batch; every rank ends with the same weights (those
    of rank 0 are where it starts, and its buffers, such as batch norm's statistics, are everybody's after each step). A
    rank that wants to stop, by ``on_event`` or Ctrl-C, stops all of them after the same step. Rank 0 shows progress and
    writes files. The weights depend on the number of ranks as far as sums are rounded, batch norm sees the rows of its
    rank, and dropout draws for each rank.

    Args:
        model: any module with trainable parameters; trained in place.
        data: a datastore, any object with ``__len__`` and ``__getitem__``, or a ready Loader, whose settings then win.
        loss: (outputs, targets) -> one number, the mean over the samples of the batch.
        optimizer: a torch optimizer over the model's parameters, or a factory that is given their list.
        config: the settings.
        validation: as ``data``, with the same numbers for the same classes; a ready Loader must drop nothing.
        metrics: name -> metric, measured at each validation.
        schedule: how learning rates change: a schedule such as ``Cosine()``, or a factory that makes a torch scheduler
            of the optimizer; None: not at all.
        prepare: makes (inputs, targets) of a batch that is on the device; None: images as float32 in [0, 1], and
            labels.
        on_event: called as ``on_event(event, state)`` at "start", after each "step", "validation" and "epoch", and when
            all is "done"; the run ends when it returns "stop". On several ranks it is called on each of them, and may
            call ``evaluate`` only if it does so on all.

    Returns:
        The model, its history, why the run ended and where its time went. Ctrl-C ends the run as well, after the step
        that it came in, with the stop reason "interrupted"; pressed a second time it does not wait for the step.

    Raises:
        ConfigError: settings that cannot work, found before the first step.
        SampleError: a label that the model has no output for, or a sample that cannot be made.
        RankError: another rank died, left, or did not answer in time.

    Warns:
        RuntimeWarning: the run ended because a loss was NaN or infinite; names the step and its samples.

    Example:
        >>> import numpy as np
        >>> data = [(np.full((4, 4, 1), 9 * i, np.uint8), i % 2) for i in range(12)]
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> config = TrainConfig(max_epochs=2, batch_size=4, progress="none", device="cpu")
        >>> result = fit(model, data, nn.functional.cross_entropy, torch.optim.Adam, config)
        >>> result.step, result.stop_reason
        (6, 'max epochs completed')
    """
    _check(data, loss, validation)
    with (
        held(),
        Validator(validation, loss, metrics, config, prepare) as validator,
        Run(
            model,
            data,
            optimizer,
            config,
            schedule=schedule,
            prepare=prepare,
            validation_names=validator.names,
            companion=validator,
        ) as run,
    ):
        tell = _Teller(on_event, run, validator)
        try:
            tell("start")
            for step in run:
                for part in step.parts():
                    outputs = model(part.inputs)
                    if prepare is None:
                        check_labels(loss, outputs, part.host)
                    value = loss(part.without_padding(outputs), part.without_padding(part.targets))
                    step.backward(value, part.samples, is_last=part.is_last)
                step.update()
                tell("step")
                if validator.is_due(step, run) and run.check_finite():
                    validator.validate(run)
                    tell("validation")
                if step.is_epoch_end:
                    tell("epoch")
            run.ranks.poll()  # an interrupt that came in the last step
        except KeyboardInterrupt as interrupt:
            run.end("terminated" if isinstance(interrupt, Terminated) else "interrupted", _where(run))
        run.save()
        if run.stop_reason != "interrupted":  # whoever goes on needs the weights that the optimizer has seen
            validator.restore_best(run)
    tell("done")
    if run.stop_reason == "loss not finite":
        warnings.warn(run.message, RuntimeWarning, stacklevel=2)
    return FitResult(
        model=model,
        history=run.history,
        stop_reason=cast("StopReason", run.stop_reason),  # whatever ended the loop has set it
        message=run.message,
        report=run.report,
        step=run.step,
        best_step=validator.best_step,
        best_value=validator.best_value,
    )


def _check(data: Data, loss: LossFunction, validation: Data | None) -> None:
    check_loss_function(loss)
    if validation is data and isinstance(data, Loader):
        raise ConfigError("one Loader cannot serve training and validation, which take turns: make one for each")
    if validation is not None:
        check_same_classes(data, validation)


def _where(run: Run) -> str:
    last = run.last_step
    if last is None or last.is_done:
        return f"interrupted after step {run.step}"
    return (
        f"interrupted twice, in the middle of step {last.number}: the optimizer did {run.step} steps, and what a "
        "forward pass changes (batch norm's statistics) may be ahead of it"
    )


class _Teller:
    """Tells ``on_event`` what happened, and stops the run if it says so."""

    def __init__(self, on_event: OnEvent | None, run: Run, validator: Validator) -> None:
        self._on_event = on_event
        self._run = run
        self._validator = validator

    def __call__(self, event: Event) -> None:
        if self._on_event is None:
            return
        run = self._run
        last = run.last_step
        state = FitState(
            rank=run.ranks.rank,
            step=run.step,
            epoch=last.epoch if last else run.loader.epoch,
            total_steps=run.total_steps,
            model=run.model,
            optimizer=run.optimizer,
            loss=last.loss if last else None,
            validation=self._validator.values,
            history=run.history,
        )
        answer = self._on_event(event, state)
        if answer == "stop":
            run.stop("stopped by on_event")
        elif answer is not None:
            raise ConfigError(f'on_event returned {answer!r} at "{event}": it must return None or "stop"')
