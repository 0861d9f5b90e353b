"""What is measured besides the loss: anything with ``update``, ``compute`` and ``reset``."""

from typing import Any, Protocol, SupportsFloat

import torch

from ..errors import ConfigError, ShapeError

__all__ = ["Accuracy", "Metric"]


class Metric(Protocol):
    """The duck type of a metric; those of torchmetrics fit, once they are moved to the device."""

    def update(self, outputs: Any, targets: Any, /) -> Any:
        """Take in what the model said for a batch, and what was right; padding rows are never among them."""

    def compute(self) -> SupportsFloat:
        """Return the value over all batches since the last ``reset``."""

    def reset(self) -> Any:
        """Forget everything."""


class Accuracy:
    """The share of samples whose label is among the ``top`` highest outputs.

    It counts on the device and never waits for it before ``compute``.

    Args:
        top: 1 for plain accuracy, 5 for "top-5".

    Raises:
        ConfigError: ``top`` is below 1.

    Example:
        >>> accuracy = Accuracy()
        >>> accuracy.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        >>> accuracy.compute()
        0.5
    """

    def __init__(self, top: int = 1) -> None:
        if top < 1:
            raise ConfigError(f"top must be at least 1, got {top}")
        self.top = top
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._correct: torch.Tensor | int = 0
        self._samples = 0

    def update(self, outputs: torch.Tensor, targets: torch.Tensor, /) -> None:
        """Count a batch.

        Args:
            outputs: (N, classes), the higher the likelier.
            targets: integer (N,), class numbers.

        Raises:
            ShapeError: the shapes are others.
        """
        if outputs.ndim != 2 or targets.shape != outputs.shape[:1] or outputs.shape[1] < self.top:
            raise ShapeError(
                f"Accuracy(top={self.top}) needs outputs (N, classes) with at least {self.top} classes and targets "
                f"(N,), got {tuple(outputs.shape)} and {tuple(targets.shape)}"
            )
        one = self.top == 1  # argmax takes the first of equal outputs, which topk does not promise
        guesses = outputs.argmax(1, keepdim=True) if one else outputs.topk(self.top, dim=1).indices
        self._correct = self._correct + (guesses == targets[:, None]).sum()
        self._samples += len(targets)

    def compute(self) -> float:
        """Return the share, in [0, 1].

        Raises:
            ConfigError: nothing was counted since the last ``reset``.
        """
        if not self._samples:
            raise ConfigError("Accuracy has counted no samples: call update before compute")
        return int(self._correct) / self._samples
