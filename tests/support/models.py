"""A small dataset and a small model for tests of training; importable, so that scripts and workers can have them."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn


class Pairs:
    """Forty small images; ``hook(index)`` is called before each is made."""

    def __init__(self, hook: Callable[[int], None] = abs) -> None:
        self.hook = hook

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        self.hook(index)
        return np.random.default_rng(index).integers(0, 256, (4, 4, 3), dtype=np.uint8), index % 2


class Model(nn.Module):
    """Batch norm, momentum and dropout: whatever a step changes shows in the weights or buffers."""

    def __init__(self, hook: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.drop, self.linear = nn.BatchNorm2d(3), nn.Dropout(0.2), nn.Linear(48, 2)
        self.hook, self.calls = hook, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.hook(self.calls)
        return self.linear(self.drop(self.norm(inputs)).flatten(1))
