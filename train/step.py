"""One optimizer step, in the hands of whoever computes its loss."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..datastores.batch import Batch
from ..errors import ConfigError
from .checks import check_loss
from .prepare import Prepare, describe, inputs_and_targets, select_rows

__all__ = ["Part", "Step"]


class Part:
    """Rows of a step that go through the model together.

    Attributes:
        host: the rows as they came from the loader, in host memory.
        batch: the same rows on the device.
        samples: rows that are no padding; what a mean over this part is a mean of.
        is_last: no other part of the step follows.
    """

    __slots__ = ("_prepare", "_prepared", "_rows", "batch", "host", "is_last", "samples")

    def __init__(self, host: Batch, batch: Batch, prepare: Prepare | None) -> None:
        self.is_last = True
        self.host = host
        self.batch = batch
        self._prepare = prepare
        self._prepared: tuple[Any, Any] | None = None
        # asked of the host's copy: the device's would have to be waited for
        self._rows = None if bool(host.valid.all()) else host.valid.nonzero()[:, 0]
        self.samples = len(host) if self._rows is None else len(self._rows)

    @property
    def ids(self) -> torch.Tensor:
        """int64 (samples,) in host memory: the samples, without padding."""
        return self.host.ids if self._rows is None else self.host.ids[self._rows]

    @property
    def inputs(self) -> Any:
        """What ``prepare`` makes for the model, on the device, padding included."""
        return self._pair[0]

    @property
    def targets(self) -> Any:
        """What ``prepare`` makes for the loss, on the device, padding included."""
        return self._pair[1]

    @property
    def _pair(self) -> tuple[Any, Any]:
        if self._prepared is None:
            self._prepared = inputs_and_targets(self._prepare, self.batch)
        return self._prepared

    def without_padding(self, value: Any) -> Any:
        """Return the rows of ``value`` that belong to samples; ``value`` itself where there is no padding.

        Args:
            value: outputs or targets: a tensor (N, ...) with a row for each row of this part, or a tuple, list or
                mapping of such.

        Raises:
            ShapeError: a tensor has another number of rows.
        """
        return select_rows(value, self._rows, len(self.host))

    def __str__(self) -> str:
        """Say what is in it, without waiting for the device."""
        shown = ", ".join(map(str, self.ids[:8].tolist())) + (", ..." if self.samples > 8 else "")
        if self._prepared is None:
            what = describe(dict(self.batch.fields))
        else:
            what = f"inputs {describe(self._prepared[0])}, targets {describe(self._prepared[1])}"
        return f"{what}, samples {shown}"


class Step(Part):
    """One optimizer step: its data, ``backward`` for its loss, and ``update`` to change the weights.

    Made by ``Run``. Its data are there as a whole, or in ``parts()`` that fit into the device's memory. ``backward``
    weighs each loss by the share of the step's samples that it is the mean of, so the gradient is that of the mean over
    all samples of the step, however they are cut. On several ranks a step has this rank's rows, and the rest is the
    same: ``update`` adds up what the ranks have. A rank may have no samples (of a short last batch); then it has no
    ``parts``, and its losses count for nothing.

    Attributes:
        number: optimizer steps done once this one is, from 1.
        is_epoch_end: this is the last step of its epoch.
        is_done: ``update`` was called.
        all_samples: ``samples`` of all ranks together; what the step's loss is the mean over.
        loss: None before ``backward``; then one detached number on the device. Reading it waits for the device. On
            several ranks it is this rank's part before ``update``, and the whole afterwards.
    """

    __slots__ = (
        "_finish",
        "_is_complete",
        "_overlap",
        "_part_rows",
        "_seed",
        "all_samples",
        "is_done",
        "is_epoch_end",
        "loss",
        "number",
    )

    def __init__(
        self,
        host: Batch,
        batch: Batch,
        prepare: Prepare | None,
        *,
        number: int,
        is_epoch_end: bool,
        all_samples: int,
        part_rows: int | None,
        seed: Callable[[int], None],
        overlap: Callable[[], AbstractContextManager[None]],
        finish: Callable[["Step", torch.Tensor], None],
    ) -> None:
        super().__init__(host, batch, prepare)
        self.number = number
        self.is_epoch_end = is_epoch_end
        self.all_samples = all_samples
        self.is_done = False
        self.loss: torch.Tensor | None = None
        self._part_rows = part_rows or len(host)
        self._seed = seed
        self._overlap = overlap
        self._is_complete = False
        self._finish = finish

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self.host.epoch

    @property
    def index(self) -> int:
        """The step's number in its epoch, from 0."""
        return self.host.step

    def parts(self) -> Iterator[Part]:
        """Cut the step into parts of ``micro_batch`` rows, the last one maybe shorter; parts of padding are left out.

        Torch's generators are seeded anew for each, so that what a part draws depends on its place only.
        """
        if self._part_rows >= len(self.host):
            if self.samples:
                yield self
            return
        starts = range(0, len(self.host), self._part_rows)
        cuts = [(start, min(start + self._part_rows, len(self.host))) for start in starts]
        cuts = [(start, stop) for start, stop in cuts if self.host.valid[start:stop].any()]
        for start, stop in cuts:
            part = Part(self.host.rows(start, stop), self.batch.rows(start, stop), self._prepare)
            part.is_last = (start, stop) == cuts[-1]
            self._seed(start)
            yield part

    def backward(self, loss: torch.Tensor, samples: int | None = None, *, is_last: bool = False) -> None:
        """Add the gradient of ``loss`` to that of this step; may be called several times.

        Args:
            loss: one number, the mean over ``samples`` samples.
            samples: how many of the step's samples it is the mean of; None: all of them.
            is_last: no other loss of this step follows, so that several ranks may add up gradients while the pass goes
                on (``TrainConfig(overlap=True)``).

        Raises:
            ShapeError: the loss is not one floating-point number.
            ConfigError: it does not depend on the model, ``update`` was called already, or the last loss came already.
        """
        check_loss(loss)
        if self._is_complete:
            raise ConfigError("step.backward was called again after it was told is_last=True: leave that out")
        self._is_complete = is_last
        if self.is_done:
            raise ConfigError("step.backward was called after step.update(): compute all losses of a step before it")
        if not loss.requires_grad:
            raise ConfigError("the loss does not depend on any trainable parameter: was it detached, or under no_grad?")
        if not self.samples:
            self.loss = torch.zeros_like(loss, requires_grad=False)
            return
        share = (self.samples if samples is None else samples) / self.all_samples
        part = loss if share == 1.0 else loss * share
        with self._overlap() if is_last else nullcontext():
            torch.autograd.backward(part)
        self.loss = part.detach() if self.loss is None else self.loss + part.detach()

    def update(self) -> None:
        """Let the optimizer change the weights, and clear the gradients; waits for all ranks, if there are several.

        If the loss is known to be NaN or infinite (on the CPU always, on a GPU where the history is written), the
        weights stay as they are and the run stops after this step.

        Raises:
            ConfigError: there was no ``backward`` in this step, or it was updated already.
        """
        if self.loss is None and not self.samples:
            self.loss = torch.zeros((), device=self.batch.valid.device)
        if self.loss is None or self.is_done:
            problem = "before step.backward(loss)" if self.loss is None else "twice"
            raise ConfigError(f"step.update() was called {problem}: a step is one or more backward, then one update")
        self.is_done = True
        self._finish(self, self.loss)

    def __str__(self) -> str:
        """Say which step it is and what was in it, without waiting for the device."""
        return f"step {self.index} of epoch {self.epoch}: {super().__str__()}"
