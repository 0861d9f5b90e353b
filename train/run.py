"""The engine of a training run: it owns position, data, device, optimizer, time and history; you own the loss.

Flow: loader -> batch on the device -> ``Step`` (your forward, ``step.backward(loss)``, ``step.update()``) -> history.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeAlias, get_args

import torch
from torch import nn

from ..datastores.batch import Batch
from ..datastores.interrupt import Terminated, held, taken
from ..errors import ConfigError
from .alignment import align
from .average import WeightAverage
from .checkpoint import CheckpointFolder
from .checks import check_optimizer, check_padding, check_synchronized, trainable_parameters
from .clipping import clip_gradients
from .config import DEFAULTS, TrainConfig
from .device import (
    DeviceFeed,
    alone_in_process,
    choose_device,
    mode,
    restored_generators,
    seed_step,
)
from .distributed import Ranks, find_place, interrupt_code, joined, raise_interrupt
from .gradients import GradientSum
from .history import History
from .loading import Data, training_loader
from .prepare import Prepare
from .progress import Progress
from .rates import Rates, ScheduleLike
from .recorder import Recorder
from .report import Phase, Report
from .resume import Companion, put_back, take
from .saver import Saver
from .schedule import Span
from .step import Step

__all__ = ["OptimizerLike", "Run", "StopReason"]

StopReason: TypeAlias = Literal[
    "max epochs completed",
    "max steps completed",
    "validation patience met",
    "stopped by on_event",
    "loss not finite",
    "interrupted",
    "terminated",
]

#: An optimizer, or what makes one from the list of trainable parameters.
OptimizerLike: TypeAlias = torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Run:
    """A training run whose forward and backward pass are yours; ``fit`` is built on it.

    Inside ``with``, the model is on the device and in training mode, and iterating gives the steps that are left. At
    the start of each step torch's random generators are seeded from (seed, epoch, step), so that dropout does not
    depend on what happened before; afterwards they, and the mode of every module, are as they were. The loader is
    closed if it was made here. The model stays on the device.

    Under torchrun every rank makes a Run, and each step has the rows of its rank; a rank may have none of a short last
    batch, and ``step.parts()`` is empty then. All ranks must go through all steps, and whoever stops uses ``stop``.

    Args:
        model: any module with trainable parameters.
        data: a datastore, any object with ``__len__`` and ``__getitem__``, or a ready Loader, whose settings then win
            and whose position is where the run starts.
        optimizer: a torch optimizer over the model's parameters, or a factory that is given their list.
        config: the settings. ``validate_every``, ``patience`` and ``keep`` are for ``fit`` and do nothing here.
        schedule: how learning rates change: a schedule such as ``Cosine()``, or a factory that makes a torch scheduler
            of the optimizer; None: not at all.
        prepare: makes ``step.inputs`` and ``step.targets`` of a batch on the device; None: images as float32 in [0, 1],
            and labels.
        validation_names: of the values that you will ``record``, the columns of the CSV file.
        companion: is saved in checkpoints and restored with them: an object with ``state_dict`` (tensors and plain
            values by name) and ``load_state_dict``; None: nothing besides the run itself.

    Attributes:
        loader: where batches come from.
        optimizer: the optimizer, also if it came from a factory.
        average: of the weights, if the config has an ``ema_decay``.
        device: where the model computes.
        feed: carries batches there.
        history: the rows so far.
        companion: as given.
        ranks: the processes that share this run, inside ``with``; alone, ``ranks.rank`` is 0 and ``ranks.size`` 1.
        step: optimizer steps done since the start of epoch 0.
        last_step: the newest step, done or not; None before the first.
        total_steps: what ``step`` will be at the end, unless the run is stopped.
        stop_reason: why the run ended; None while it goes on.
        message: the same as a sentence with its particulars.

    Raises:
        ConfigError: settings that cannot work, or the checkpoint folder has checkpoints and ``resume`` is "never".
        StateError: the newest checkpoint is damaged, or of another model, optimizer, dataset or of other settings.

    Example:
        >>> import numpy as np
        >>> data = [(np.full((4, 4, 1), 9 * i, np.uint8), i % 2) for i in range(12)]
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> config = TrainConfig(batch_size=4, progress="none", device="cpu")
        >>> with Run(model, data, torch.optim.SGD(model.parameters(), lr=0.1), config) as run:
        ...     for step in run:
        ...         outputs = model(step.inputs)
        ...         step.backward(nn.functional.cross_entropy(outputs, step.targets))
        ...         step.update()
        >>> run.step, run.stop_reason
        (3, 'max epochs completed')
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        optimizer: OptimizerLike,
        config: TrainConfig = DEFAULTS,
        *,
        schedule: ScheduleLike | None = None,
        prepare: Prepare | None = None,
        validation_names: Sequence[str] = (),
        companion: Companion | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self._place = place = find_place()
        self.device = choose_device(config.device, place.local_rank)
        self.stop_reason: StopReason | None = None
        self.message = ""
        self._prepare = prepare
        self._parameters = parameters = trainable_parameters(model)
        if isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer):
            check_optimizer(optimizer, parameters)
        self.loader = training_loader(data, config, place, pin_memory=self.device.type == "cuda")
        self._owns_loader = self.loader is not data
        check_padding(model, self.loader)
        check_synchronized(model, self.loader, config.micro_batch)
        self.total_steps = _total_steps(config, len(self.loader))
        self.step = self._start = self.loader.epoch * len(self.loader) + self.loader.step
        self.companion = companion
        model.to(self.device)
        self.optimizer = _optimizer_on_device(optimizer, parameters)
        self.rates = Rates(schedule, self.optimizer, Span(self.total_steps, len(self.loader)), self.step)
        if self.rates.needs_validation and not validation_names:
            raise ConfigError("ReduceLROnPlateau changes rates by the losses of validations: give validation data")
        self.average = None if config.ema_decay is None else WeightAverage(model, config.ema_decay)
        is_first = place.rank == 0  # the one that shows and writes
        self.history = History(config.csv if is_first else None, validation_names)
        self._progress = Progress(config.progress if is_first else "none", self.total_steps)
        self.recorder = Recorder(self.history, self._progress)
        self._folder = CheckpointFolder(config.checkpoints, config.keep_checkpoints) if config.checkpoints else None
        self._saver = Saver(self._folder) if self._folder and is_first else None
        self._resumed = self._resume(self._folder) if self._folder else ""
        self._check_something_is_left()
        self.feed = DeviceFeed(self.device)
        self.last_step: Step | None = None
        self._open: ExitStack | None = None
        self._is_iterated = False
        self.ranks = Ranks(place)
        self._wish: tuple[StopReason, str] | None = None

    def _resume(self, folder: CheckpointFolder) -> str:
        """Continue from the newest checkpoint, if there is one; say what was restored."""
        steps = folder.steps()
        if not steps:
            return ""
        if self.config.resume == "never":
            raise ConfigError(
                f"{folder.path} has checkpoints of a run, the newest one of step {steps[-1]}: continue it with "
                'resume="auto", or choose another folder'
            )
        put_back(self, folder.read(steps[-1]))
        self.step = self._start = steps[-1]
        epoch, step = divmod(self.step, len(self.loader))
        return (
            f"resumed from {folder.of_step(self.step)}: step {self.step} of {self.total_steps} (step {step} of epoch "
            f"{epoch} is next), {len(self.history)} rows of history"
        )

    def _check_something_is_left(self) -> None:
        if self.step < self.total_steps:
            return
        if self._resumed:  # whoever starts a finished run again gets what it came to
            self._complete()
            return
        raise ConfigError(
            f"nothing is left to do: the Loader stands after step {self.step}, and the run ends at step "
            f"{self.total_steps}: raise max_epochs or max_steps, or call loader.set_epoch(0)"
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(alone_in_process())
            stack.enter_context(held(termination=self._folder is not None))
            stack.callback(self._forget_interrupt)
            self.ranks = stack.enter_context(joined(self._place, self.device, self.config.rank_timeout))
            align(self)
            self._gradients = GradientSum(self._parameters, self.ranks)
            if self._saver is not None:
                stack.enter_context(self._saver)
            if self._owns_loader:
                stack.callback(self.loader.close)
            stack.enter_context(self.history)
            stack.enter_context(self._progress.beginning_at(self.step))
            if self._resumed:
                self._progress.say(self._resumed)
            stack.enter_context(restored_generators(self.device))
            stack.enter_context(mode(self.model, training=True))
            self.optimizer.zero_grad()
            self._open = stack.pop_all()
        self.recorder.watch.restart()
        return self

    def _forget_interrupt(self) -> None:
        """One Ctrl-C comes to all ranks of a machine: to some of them when another one has stopped the run already."""
        if not self.ranks.is_alone and self.stop_reason in ("interrupted", "terminated"):
            taken()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is None:
            return
        stack, self._open = self._open, None
        try:
            self._finish(error)
        finally:
            stack.__exit__(kind, error, trace)
        if isinstance(error, Terminated) or self.stop_reason == "terminated":
            raise SystemExit(128 + signal.SIGTERM)

    def _finish(self, error: BaseException | None) -> None:
        if self._is_iterated and not self._owns_loader:
            self._settle_loader()
        if isinstance(error, Exception) and self.last_step is not None and not self.last_step.is_done:
            error.add_note(f"headrace: in {self.last_step}")
        if error is None or isinstance(error, KeyboardInterrupt):
            self.save()
        if error is None:
            self._write_row()
            self._progress.end(f"{self._summary()}; {self.report.verdict}")
        self.recorder.watch.lap(Phase.OTHER)

    def _summary(self) -> str:
        loss = f", loss {self.history[-1].loss:.4g}" if len(self.history) else ""
        return f"{self.stop_reason or 'left'} after step {self.step}{loss}"

    def _settle_loader(self) -> None:
        """Let a loader that was given stand after the last step that changed the weights, so that no batch is lost.

        It stands elsewhere if the loop was left inside a step, or if a step's loss was refused.
        """
        epoch, step = divmod(self.step, len(self.loader))
        self.loader.load_state_dict(self.loader.state_dict() | {"epoch": epoch, "step": step})

    def __iter__(self) -> Iterator[Step]:
        """Go through the steps that are left.

        Raises:
            ConfigError: outside of ``with``, a second time, or after a step without ``update``.
        """
        if self._open is None or self._is_iterated:
            raise ConfigError("iterate over a Run once, inside of `with Run(...) as run:`")
        self._is_iterated = True
        # a loader that was left inside an epoch would go on with the next one: a run continues where it stands
        self.loader.load_state_dict(self.loader.state_dict())
        raise_interrupt(self._agree())
        self.recorder.watch.lap(Phase.OTHER)
        for host in self._batches():
            self.last_step = step = self._begin(host)
            yield step
            self._end(step)
            if self.is_stopped:
                return
            self.recorder.watch.lap(Phase.OTHER)

    def _batches(self) -> Iterator[Batch]:
        while not self.is_stopped:
            batches = iter(self.loader)
            while (batch := self._wait_for(batches)) is not None:
                yield batch

    def _wait_for(self, batches: Iterator[Batch]) -> Batch | None:
        with self.ranks.interrupts():
            return next(batches, None)

    def _begin(self, host: Batch) -> Step:
        number = host.epoch * len(self.loader) + host.step + 1
        expected = self.last_step.number + 1 if self.last_step else self._start + 1
        if number != expected:
            raise ConfigError(
                f"the Loader was moved while the run used it: step {expected} was next, and it gave step {number}; "
                "evaluate, predict and loops of your own need a Loader of their own"
            )
        self._lap_unless_hidden(Phase.START if self.last_step is None else Phase.WAIT)
        batch = self.feed.move(host)
        self._lap_unless_hidden(Phase.TRANSFER)
        seed = partial(self._seed, host.epoch, host.step)
        seed(0)
        self.rates.before(number - 1)
        return Step(
            host,
            batch,
            self._prepare,
            number=number,
            is_epoch_end=host.step + 1 == len(self.loader),
            all_samples=self.loader.plan.samples_in(host.step),
            part_rows=self.config.micro_batch,
            seed=seed,
            overlap=self._gradients.during_backward if self.config.overlap else nullcontext,
            finish=self._update,
        )

    def _seed(self, epoch: int, step: int, row: int) -> None:
        """Ranks, and parts, draw by the place of their rows in the batch of all, so no two of them draw the same."""
        first = self.loader.plan.batch_size * self.ranks.rank // self.ranks.size
        seed_step(self.device, self.loader.plan.seed, epoch, step, first + row)

    def _lap_unless_hidden(self, phase: Phase) -> None:
        """Give the time to ``phase``, or to computing if the device was busy all the while: then it cost nothing."""
        self.recorder.watch.lap(Phase.COMPUTE if self.feed.is_busy() else phase)

    def _update(self, step: Step, loss: torch.Tensor) -> None:
        step.loss = self._gradients.add_up(loss)
        if not self.ranks.is_alone:
            self.ranks.share_first(list(self.model.buffers()))
        own = None if self.ranks.is_alone else loss
        self.recorder.add(step, step.loss, self.optimizer.param_groups[0]["lr"], own=own)
        # on a GPU the loss is unknown until somebody waits for it, and that would leave the device without work
        may_wait = self.device.type == "cpu" or step.number % self.config.log_every == 0
        if not may_wait or self._read_losses():
            self._change_weights()
            self.step = step.number
        self.optimizer.zero_grad()
        self.feed.mark()
        self._progress.step()
        self.recorder.watch.lap(Phase.COMPUTE)

    def _change_weights(self) -> None:
        if self.config.clip is not None:
            clip_gradients(self._parameters, self.config.clip)
        self.optimizer.step()
        self.rates.after()
        if self.average is not None:
            self.average.update()

    def _end(self, step: Step) -> None:
        if not step.is_done:
            raise ConfigError("a step ended without step.update(): call step.backward(loss) and step.update() in each")
        interrupt = self._agree()
        is_last = step.number == self.total_steps
        if is_last or step.number % self.config.log_every == 0:
            self._write_row()
        every = self.config.checkpoint_every
        if is_last or (step.is_epoch_end if every == "epoch" else step.number % every == 0):
            self.save()
        if is_last:
            self._complete()
        if interrupt:
            self.check_finite()  # waits for what ranks have under way: whoever leaves with an error ends it
        raise_interrupt(interrupt)

    def _agree(self) -> int:
        """Between two steps, on all ranks: a wish to stop is granted, and an interrupt of any rank is returned."""
        if self.ranks.is_alone:
            return 0
        reasons = get_args(StopReason)
        own = 0 if self._wish is None else 1 + reasons.index(self._wish[0])
        wish, interrupt = self.ranks.highest([own, interrupt_code()])
        if wish:
            message = self._wish[1] if self._wish is not None and wish == own else reasons[wish - 1]
            self.end(reasons[wish - 1], message)
        return interrupt

    def _complete(self) -> None:
        by_epochs = self.total_steps == self.config.max_epochs * len(self.loader)
        self.end("max epochs completed" if by_epochs else "max steps completed")

    def save(self) -> None:
        """Save a checkpoint, if the config names a folder and this step is not saved yet.

        It is copied at once and written in the background. A step that is not done, or whose loss is not finite, is
        never saved.

        Raises:
            ConfigError: the optimizer, a scheduler or the companion holds something that no checkpoint can.

        Warns:
            RuntimeWarning: an earlier one could not be written.
        """
        if self._saver is None or self.step in (self._saver.saved_step, self._start):
            return
        if self.last_step is None or self.last_step.number != self.step or not self.check_finite():
            return
        self._saver.save(take(self))
        self.recorder.watch.lap(Phase.CHECKPOINT)

    def _write_row(self, validation: Mapping[str, float] | None = None) -> None:
        self.check_finite()
        self.recorder.write(validation)

    @property
    def is_stopped(self) -> bool:
        """Whether no step follows."""
        return self.stop_reason is not None

    def check_finite(self) -> bool:
        """Wait for the losses so far; if one is NaN or infinite, stop the run and return False."""
        self.recorder.watch.lap(Phase.OTHER)
        return self._read_losses()

    def _read_losses(self) -> bool:
        complaint = self.recorder.read()
        if complaint is not None:
            self.stop_reason, self.message = "loss not finite", complaint
        return self.stop_reason != "loss not finite"

    def stop(self, reason: StopReason, message: str = "") -> None:
        """Let the run end after this step; the first reason counts.

        On several ranks one of them is enough. ``is_stopped`` says so once all of them know, at the end of the step;
        until then, what is due goes on (a validation, for example).

        Args:
            reason: what ``stop_reason`` will be.
            message: the same with its particulars; empty: the reason itself.
        """
        if self.ranks.size == 1:
            self.end(reason, message)
        elif self._wish is None:
            self._wish = reason, message or reason

    def end(self, reason: StopReason, message: str = "") -> None:
        """Do as ``stop`` does, at once: for what all ranks know of."""
        if self.stop_reason is None:
            self.stop_reason, self.message = reason, message or reason

    def record(self, validation: Mapping[str, float]) -> None:
        """Write a row of the history that ends with this step and has ``validation`` values.

        A ``ReduceLROnPlateau`` is told the value named "loss".

        Raises:
            ConfigError: a name is not among ``validation_names``.
        """
        self._write_row(validation)
        if "loss" in validation:
            self.rates.validated(validation["loss"])

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Count the time inside as validation, not as training; what was queued before is waited for.

        Inside, the model has the average of its weights if there is one.
        """
        self.check_finite()
        try:
            with self.average.applied() if self.average else nullcontext():
                yield
        finally:
            self.recorder.watch.lap(Phase.VALIDATION)

    @property
    def report(self) -> Report:
        """Where the time went so far."""
        return Report(
            seconds=dict(self.recorder.watch.seconds),
            steps=self.step - self._start,
            samples=self.recorder.samples,
            workers=self.loader.workers,
            threads=torch.get_num_threads() if self.device.type == "cpu" else 0,
        )


def _total_steps(config: TrainConfig, steps_per_epoch: int) -> int:
    total = config.max_epochs * steps_per_epoch
    return total if config.max_steps is None else min(total, config.max_steps)


def _optimizer_on_device(optimizer: OptimizerLike, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.Optimizer):
        if optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())  # carries its state to where its parameters are now
        return optimizer
    made = optimizer(parameters)
    check_optimizer(made, parameters)
    return made
