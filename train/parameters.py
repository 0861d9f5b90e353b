"""Groups of a model's parameters that an optimizer treats differently."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..errors import ConfigError

__all__ = ["decay_groups"]


def decay_groups(model: nn.Module, weight_decay: float, *, without: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer: biases and scales of normalisation layers are not decayed.

    A parameter is decayed if it has two dimensions or more, which weights of dense layers and convolutions have.

    Args:
        model: whose trainable parameters are grouped.
        weight_decay: of the first group, at least 0.
        without: names (as in ``model.named_parameters()``) of more parameters that are not to be decayed.

    Returns:
        One or two groups, in the model's order, none of them empty.

    Raises:
        ConfigError: the decay is negative, or there is no parameter of such a name.

    Example:
        >>> groups = decay_groups(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), 0.01)
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(1, 0.01), (3, 0.0)]
    """
    if not weight_decay >= 0:
        raise ConfigError(f"weight_decay must be at least 0, got {weight_decay!r}")
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    spared = set(without)
    unknown = spared - set(parameters)
    if unknown:
        raise ConfigError(f"{type(model).__name__} has no trainable parameters named {sorted(unknown)}")
    decayed = [each for name, each in parameters.items() if each.ndim >= 2 and name not in spared]
    others = [each for name, each in parameters.items() if each.ndim < 2 or name in spared]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
