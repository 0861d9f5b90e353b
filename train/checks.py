"""Mistakes that torch would report late, far from their cause, or (on a GPU) not at all."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ..datastores.batch import Batch
from ..datastores.loader import Loader
from ..errors import ConfigError, SampleError, ShapeError
from .prepare import describe

__all__ = [
    "check_labels",
    "check_loss",
    "check_loss_function",
    "check_optimizer",
    "check_padding",
    "check_synchronized",
    "trainable_parameters",
]


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require gradients.

    Raises:
        ConfigError: there are none, or some have no shape yet (lazy modules).
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lazy = [name for name, each in model.named_parameters() if isinstance(each, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ConfigError(
            f"{type(model).__name__} does not know the shape of {lazy[0]} yet: run one batch through it first"
        )
    if not parameters:
        total = len(list(model.parameters()))
        raise ConfigError(
            f"{type(model).__name__} has {total} parameters, and none requires a gradient: there is nothing to train"
        )
    return parameters


def check_optimizer(optimizer: Any, parameters: list[nn.Parameter]) -> None:
    """Raise ConfigError if ``optimizer`` is none, changes none of ``parameters``, or needs more than gradients."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"the optimizer is {describe(optimizer)}: it must be a torch optimizer, or a factory that is given the "
            "list of trainable parameters and returns one, such as lambda parameters: SGD(parameters, lr=0.1)"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{type(optimizer).__name__} computes the loss several times in each step (its step() needs a closure), "
            "which a step of headrace does not do: use an optimizer of the kind of SGD or Adam"
        )
    ours = set(map(id, parameters))
    if not any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigError(
            f"{type(optimizer).__name__} holds none of the model's trainable parameters: make it from this model's "
            "parameters(), or pass a factory such as lambda parameters: SGD(parameters, lr=0.1)"
        )


def check_padding(model: nn.Module, loader: Loader) -> None:
    """Raise ConfigError if batches will be padded and the model has batch norm, which would count the padding."""
    plan = loader.plan
    if plan.last_batch != "pad" or plan.num_samples % plan.batch_size == 0:
        return
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigError(
                f'last_batch="pad" repeats samples to fill the last batch, and {type(module).__name__} {name!r} would '
                'count them in its statistics: use last_batch="drop" or "keep", or another normalisation'
            )


def check_synchronized(model: nn.Module, loader: Loader, micro_batch: int | None) -> None:
    """Raise ConfigError if the model has SyncBatchNorm, whose ranks wait for each other, and they differ in passes."""
    plan, size = loader.plan, loader.world_size
    if size == 1 or not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return
    is_uneven = micro_batch is not None and plan.batch_size % size
    is_short = plan.last_batch != "drop" and plan.num_samples % plan.batch_size
    if is_uneven or is_short:
        why = "micro_batch cuts uneven parts" if is_uneven else f'last_batch="{plan.last_batch}" gives a rank fewer'
        raise ConfigError(
            f"the model has SyncBatchNorm, so all {size} ranks must go through it equally often, but {why}: use "
            f'last_batch="drop" and a batch_size that is a multiple of {size}'
        )


def check_loss(loss: Any) -> None:
    """Raise ShapeError or ConfigError if ``loss`` is not one floating-point number."""
    if not isinstance(loss, torch.Tensor):
        raise ConfigError(f"the loss is {describe(loss)}: it must be a tensor with one number, the mean over the batch")
    if loss.ndim or not loss.is_floating_point():
        raise ShapeError(
            f"the loss is {describe(loss)}: it must be one floating-point number, the mean over the samples of the "
            'batch (reduction="mean")'
        )


def check_loss_function(loss: Any) -> None:
    """Raise ConfigError if ``loss`` cannot be called as loss(outputs, targets): a class instead of an object of it."""
    if isinstance(loss, type):
        raise ConfigError(f"loss is the class {loss.__name__}: pass an object of it, {loss.__name__}()")
    if not callable(loss):
        raise ConfigError(f"loss is {describe(loss)}: it must be a function of (outputs, targets)")


def check_labels(loss: Callable[..., Any] | None, outputs: Any, host: Batch) -> None:
    """Check class numbers on the host, before a GPU would stop at them without a word about the sample.

    Only done for torch's cross-entropy and negative log-likelihood, whose labels must be class numbers.

    Args:
        loss: the loss function.
        outputs: of the model for this batch, (N, classes, ...).
        host: the batch in host memory; one without labels is not checked.

    Raises:
        SampleError: a label is outside of 0 .. classes - 1, or no whole number.
    """
    is_class_loss = isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) or loss in (
        functional.cross_entropy,
        functional.nll_loss,
    )
    labels = host.fields.get("label")
    if not is_class_loss or labels is None:
        return
    if labels.is_floating_point():
        if isinstance(outputs, torch.Tensor) and labels.shape != outputs.shape:
            name = getattr(loss, "__name__", type(loss).__name__)
            raise SampleError(f"labels are {describe(labels)}, and {name} wants class numbers: make them integers")
        return
    if not isinstance(outputs, torch.Tensor) or outputs.ndim < 2:
        return
    classes = outputs.shape[1]
    if labels.ndim and len(labels) and labels.min() >= 0 and labels.max() < classes:
        return
    wrong = (labels < 0) | (labels >= classes)
    wrong &= labels != getattr(loss, "ignore_index", -100)
    rows = wrong.reshape(len(wrong), -1).any(1).nonzero()[:, 0]
    if len(rows):
        label = labels[rows[0]][wrong[rows[0]]].reshape(-1)[0]
        raise SampleError(
            f"sample {int(host.ids[rows[0]])} has label {int(label)}, but the model has {classes} outputs, for labels "
            f"0 .. {classes - 1} ({len(rows)} of {len(host)} samples of step {host.step} of epoch {host.epoch}): "
            "give the model more outputs, or correct the labels"
        )
