"""Gradients of a batch that several ranks share: each has its part, and all get the sum.

A step's loss is the mean over the samples of all ranks, so the parts of a gradient are weighted before they are added
(``Step.backward``), and adding is all that is left. It is done here and not by torch's DistributedDataParallel for
three reasons: a model stays the one that was given, and your own forward pass needs no wrapper; a rank without a sample
takes part as any other; and what is added in which order depends on the model and the number of ranks alone,
where DistributedDataParallel regroups after the first step of a process, so that a run which is continued would add in
another order than one which was not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ..errors import ConfigError
from .distributed import Ranks

__all__ = ["GradientSum"]

_BUCKET_BYTES = 25 << 20  # large enough that no time goes into starting, small enough that copies go on meanwhile


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Parameters of one dtype whose gradients travel together.

    Args:
        parameters: positions in the list of all parameters.
        flat: (numbers,), what travels.
        views: of ``flat``, one in the shape of each parameter.
    """

    parameters: tuple[int, ...]
    flat: torch.Tensor
    views: tuple[torch.Tensor, ...]


class GradientSum:
    """Adds up the gradients of all ranks; on each of them the result is the same to the bit.

    Args:
        parameters: those that are trained, in the same order on every rank.
        ranks: who takes part.
        bucket_bytes: of the gradients that travel together.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks, *, bucket_bytes: int = _BUCKET_BYTES) -> None:
        self._parameters = parameters
        self._ranks = ranks
        self._buckets = [] if ranks.is_alone else _buckets(parameters, bucket_bytes)
        self._bucket_of = {n: bucket for bucket, each in enumerate(self._buckets) for n in each.parameters}
        self._all_present: torch.Tensor | None = None
        self._waits: list[Callable[[], None]] = []  # for the buckets on their way, which are the first ones

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Let each bucket travel as soon as the last backward pass of a step, done in this block, has filled it.

        Raises:
            ConfigError: a gradient came in two pieces, the second one too late.
        """
        missing = [set(bucket.parameters) for bucket in self._buckets]

        def ready(number: int, _: torch.Tensor) -> None:
            if self._bucket_of[number] < len(self._waits):
                raise ConfigError(
                    "a gradient changed while it was added up: a parameter that several checkpointed parts of the "
                    "model share needs torch.utils.checkpoint(..., use_reentrant=False)"
                )
            missing[self._bucket_of[number]].discard(number)
            while len(self._waits) < len(missing) and not missing[len(self._waits)]:
                self._send_next()

        with ExitStack() as stack:
            for number in self._bucket_of:
                hook = self._parameters[number].register_post_accumulate_grad_hook(partial(ready, number))
                stack.callback(hook.remove)
            yield

    @torch.no_grad()
    def add_up(self, loss: torch.Tensor) -> torch.Tensor:
        """Replace each gradient by its sum over all ranks, and return the sum of ``loss``; all ranks call it.

        A parameter without a gradient counts as zero; it has none afterwards if it had none on any rank. Only a rank
        that lacks a gradient waits for the device, to learn whether another one has it.

        Args:
            loss: one number.
        """
        if self._ranks.is_alone:
            return loss
        while len(self._waits) < len(self._buckets):
            self._send_next()
        present = [parameter.grad is not None for parameter in self._parameters]
        if self._all_present is None:
            self._all_present = torch.ones(len(present), dtype=torch.float64, device=loss.device)
        # a copy from the host would wait for the device
        counts = self._all_present if all(present) else self._all_present.new_tensor(present)
        head = torch.cat([loss.double().reshape(1), counts])
        self._waits.append(self._ranks.sum_(head))
        waits, self._waits = self._waits, []
        for wait in waits:
            wait()
        if not all(present):
            self._make_missing(head[1:].tolist())
        for bucket in self._buckets:
            _unpack(bucket, self._parameters)
        return head[0]

    @torch.no_grad()
    def _send_next(self) -> None:
        bucket = self._buckets[len(self._waits)]
        _pack(bucket, self._parameters)
        self._waits.append(self._ranks.sum_(bucket.flat))

    def _make_missing(self, counts: list[float]) -> None:
        for parameter, count in zip(self._parameters, counts, strict=True):
            if parameter.grad is None and count:
                parameter.grad = torch.empty_like(parameter)


def _buckets(parameters: Sequence[nn.Parameter], size: int) -> list[_Bucket]:
    """The last parameters come first, as their gradients do."""
    groups: list[list[int]] = []
    newest: dict[torch.dtype, list[int]] = {}
    room: dict[torch.dtype, int] = {}
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        if room.get(parameter.dtype, 0) < parameter.nbytes:
            groups.append([])
            newest[parameter.dtype], room[parameter.dtype] = groups[-1], size
        newest[parameter.dtype].append(number)
        room[parameter.dtype] -= parameter.nbytes
    return [_bucket(tuple(group), [parameters[number] for number in group]) for group in groups]


def _bucket(numbers: tuple[int, ...], parameters: Sequence[nn.Parameter]) -> _Bucket:
    first = parameters[0]
    flat = torch.zeros(sum(each.numel() for each in parameters), dtype=first.dtype, device=first.device)
    parts = flat.split([each.numel() for each in parameters])
    views = tuple(part.view(each.shape) for part, each in zip(parts, parameters, strict=True))
    return _Bucket(numbers, flat, views)


def _pack(bucket: _Bucket, parameters: Sequence[nn.Parameter]) -> None:
    gradients = [parameters[number].grad for number in bucket.parameters]
    there = [(view, gradient) for view, gradient in zip(bucket.views, gradients, strict=True) if gradient is not None]
    if any(gradient.layout != torch.strided for _, gradient in there):
        raise ConfigError(
            "a parameter has a sparse gradient, which several ranks cannot add up here: make its layer with "
            "sparse=False"
        )
    if len(there) < len(gradients):
        bucket.flat.zero_()
    if there:
        torch._foreach_copy_([view for view, _ in there], [gradient for _, gradient in there])


def _unpack(bucket: _Bucket, parameters: Sequence[nn.Parameter]) -> None:
    pairs = [(parameters[number].grad, view) for number, view in zip(bucket.parameters, bucket.views, strict=True)]
    there = [(gradient, view) for gradient, view in pairs if gradient is not None]
    if there:
        torch._foreach_copy_([gradient for gradient, _ in there], [view for _, view in there])
