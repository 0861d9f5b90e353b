"""How good a model is on some data: every sample exactly once."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from ..datastores.loader import Loader
from ..errors import ConfigError, SampleError
from .checks import check_labels, check_loss, check_loss_function
from .config import DEFAULTS
from .device import DeviceFeed, choose_device, mode
from .distributed import Place, Ranks, find_place, joined
from .loading import Data, evaluation_loader
from .metrics import Metric
from .prepare import Prepare, inputs_and_targets, select_rows

__all__ = ["LossFunction", "check_metrics", "evaluate", "measure"]

_METHODS = ("update", "compute", "reset")

#: (outputs, targets) -> one number, the mean over the samples of the batch.
LossFunction: TypeAlias = Callable[[Any, Any], torch.Tensor]


def evaluate(
    model: nn.Module,
    data: Data,
    loss: LossFunction | None = None,
    metrics: Mapping[str, Metric] | None = None,
    *,
    batch_size: int = 128,
    workers: int | Literal["auto"] = 0,
    device: str = "auto",
    prepare: Prepare | None = None,
) -> dict[str, float]:
    """Return the loss and the metrics of ``model`` on ``data``, each sample counting exactly once.

    The model is moved to the device and stays there; each of its modules has its mode back afterwards. On several ranks
    (under torchrun) each has its part of each batch, and all of them return the same values.

    Args:
        model: any module.
        data: a datastore, any object with ``__len__`` and ``__getitem__``, or a ready Loader that drops nothing (whose
            settings then win, and which is made for this rank); epoch 0 of it, so that augmented data are the same at
            each call.
        loss: (outputs, targets) -> the mean over the batch; batches are weighted by their samples.
        metrics: name -> object with ``update(outputs, targets)``, ``compute()`` and ``reset()``. On several ranks each
            is given the outputs of all of them, in the order of the samples.
        batch_size: rows of a batch, of all ranks together.
        workers: background processes that make batches.
        device: as in ``TrainConfig``.
        prepare: makes (inputs, targets) of a batch on the device; None: images as float32 in [0, 1], and labels.

    Returns:
        "loss" (if there is one) and one value for each metric.

    Raises:
        ConfigError: no samples, neither loss nor metrics, or a device that is not there.
        SampleError: a label that the model has no output for, or not one sample could be made.

    Example:
        >>> import numpy as np
        >>> from headrace.train import Accuracy
        >>> data = [(np.zeros((4, 4, 1), np.uint8), 0) for _ in range(5)]
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> sorted(evaluate(model, data, nn.functional.cross_entropy, {"accuracy": Accuracy()}, device="cpu"))
        ['accuracy', 'loss']
    """
    if loss is not None:
        check_loss_function(loss)
    if loss is None and not metrics:
        raise ConfigError("evaluate was given neither a loss nor metrics: there is nothing to measure")
    place = find_place()
    check_metrics(metrics, place)
    feed = DeviceFeed(choose_device(device, place.local_rank))
    loader = evaluation_loader(data, "the evaluation", batch_size=batch_size, workers=workers, place=place)
    try:
        with joined(place, feed.device, DEFAULTS.rank_timeout) as ranks:
            return measure(model.to(feed.device), loader, feed, ranks, loss, metrics or {}, prepare)
    finally:
        if loader is not data:
            loader.close()


def check_metrics(metrics: Mapping[str, Metric] | None, place: Place) -> None:
    """Raise ConfigError unless ``metrics`` maps names other than "loss" to metrics that leave other ranks alone."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ConfigError(f"metrics must be a dict of name -> metric, got {type(metrics).__name__}")
    for name, metric in (metrics or {}).items():
        if isinstance(metric, type):
            raise ConfigError(f"metric {name!r} is a class: pass an object of it, {metric.__name__}()")
        if not isinstance(name, str) or not all(callable(getattr(metric, each, None)) for each in _METHODS):
            raise ConfigError(f"metrics maps names to objects with update, compute and reset, got {name!r}: {metric!r}")
    if metrics and "loss" in metrics:
        raise ConfigError('a metric cannot be named "loss": that is the name of the loss itself')
    for name, metric in (metrics or {}).items():
        if place.world_size > 1 and getattr(metric, "sync_on_compute", False):  # of torchmetrics
            raise ConfigError(
                f"the metric {name!r} adds up the ranks by itself, and would count each sample {place.world_size} "
                "times, since it is given the outputs of all ranks already: make it with sync_on_compute=False"
            )


@torch.no_grad()
def measure(
    model: nn.Module,
    loader: Loader,
    feed: DeviceFeed,
    ranks: Ranks,
    loss: LossFunction | None,
    metrics: Mapping[str, Metric],
    prepare: Prepare | None,
) -> dict[str, float]:
    """Do what ``evaluate`` does with a loader and a device that are there already; the device is waited for once.

    An interrupt that was put off on one of several ranks ends it between two batches, on all of them.
    """
    total, samples = torch.zeros((), dtype=torch.float64, device=feed.device), 0
    for metric in metrics.values():
        metric.reset()
    loader.set_epoch(0)
    with mode(model, training=False):
        for host in loader:
            if not len(host):  # every sample of it was skipped
                continue
            inputs, targets = inputs_and_targets(prepare, feed.move(host))
            rows = None if bool(host.valid.all()) else host.valid.nonzero()[:, 0]
            outputs, targets = select_rows((model(inputs), targets), rows, len(host))
            count = len(host) if rows is None else len(rows)
            if loss is not None and count:
                if prepare is None:
                    check_labels(loss, outputs, host)
                value = loss(outputs, targets)
                check_loss(value)
                total += value.double() * count
            if metrics:
                outputs, targets = ranks.merged((outputs, targets))
            for metric in metrics.values():
                metric.update(outputs, targets)
            samples += count
            ranks.poll()
    sums = torch.stack([total, torch.full_like(total, samples)])
    ranks.sum_(sums)()
    loss_sum, all_samples = sums.tolist()  # waits for the device
    if not all_samples:
        raise SampleError("no sample of the evaluation could be made: all of them were skipped (on_error)")
    scores = {} if loss is None else {"loss": loss_sum / all_samples}
    scores |= {name: float(metric.compute()) for name, metric in metrics.items()}
    return dict(zip(scores, ranks.values_of_first(list(scores.values())), strict=True))
