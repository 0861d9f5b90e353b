"""An exponential moving average of a model's weights, which often does better than the weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["WeightAverage"]


class WeightAverage:
    """average = decay * average + (1 - decay) * weights, after each step.

    Floating-point and complex parameters and buffers (batch norm's statistics) are averaged in their own precision;
    other buffers are copied. The average starts as the weights are when it is made.

    Args:
        model: whose weights are averaged.
        decay: in 0 .. 1.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> average = WeightAverage(model, 0.5)
        >>> _ = nn.init.ones_(model.weight)
        >>> average.update()
        >>> with average.applied():
        ...     model.weight.item()
        0.5
        >>> model.weight.item()
        1.0
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._weights = _tensors(model)
        self._average = {name: tensor.detach().clone() for name, tensor in self._weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        numbers = [name for name, tensor in self._weights.items() if tensor.is_floating_point() or tensor.is_complex()]
        if numbers:
            torch._foreach_lerp_(
                [self._average[name] for name in numbers], [self._weights[name] for name in numbers], 1 - self._decay
            )
        for name in self._weights.keys() - set(numbers):
            self._average[name].copy_(self._weights[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the average inside this context, and its own weights afterwards."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Let the model and the average change places."""
        for name, tensor in self._weights.items():
            own = tensor.detach().clone()
            tensor.copy_(self._average[name])
            self._average[name] = own

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the average, name -> tensor."""
        return dict(self._average)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up an average that was saved."""
        for name, tensor in self._average.items():
            tensor.copy_(state[name])


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
