"""Gradients that are too long are shortened."""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn

from ..errors import ConfigError

__all__ = ["Clip", "ClipRule", "check_clip", "clip_gradients"]

ClipRule: TypeAlias = Literal["norm", "each", "value"]

#: A rule and its limit.
Clip: TypeAlias = tuple[ClipRule, float]


def check_clip(clip: Any) -> None:
    """Raise ConfigError unless ``clip`` is None, or a pair of a rule and a number above 0."""
    if clip is None:
        return
    known = isinstance(clip, tuple) and len(clip) == 2 and clip[0] in get_args(ClipRule)
    if not known or isinstance(clip[1], bool) or not isinstance(clip[1], (int, float)) or not 0 < clip[1] < math.inf:
        raise ConfigError(
            f'clip must be None, or a pair such as ("norm", 1.0) of "norm", "each" or "value" and a number above 0, '
            f"got {clip!r}"
        )


def clip_gradients(parameters: Sequence[nn.Parameter], clip: Clip) -> None:
    """Shorten the gradients of ``parameters`` in place, without waiting for the device.

    Args:
        parameters: those without a gradient are passed over.
        clip: "norm": if the norm over all parameters together is above the limit, all are scaled to it. "each": the
            same for each parameter alone. "value": each number is clamped to -limit .. limit.

    Example:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> clip_gradients([weight], ("norm", 1.0))
        >>> [round(x, 2) for x in weight.grad.tolist()]
        [0.6, 0.8]
    """
    rule, limit = clip
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    if rule == "value":
        nn.utils.clip_grad_value_(with_gradient, limit)
        return
    groups = [with_gradient] if rule == "norm" else [[parameter] for parameter in with_gradient]
    for group in groups:
        _scale_to(group, limit)


def _scale_to(parameters: list[nn.Parameter], limit: float) -> None:
    """As ``clip_grad_norm_``, but a gradient below the limit keeps its bits: the factor is exactly 1 there."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    norm = nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, torch.clamp(limit / norm, max=1.0))
