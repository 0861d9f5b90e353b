"""Handwritten digits, a small network, and settings that show nothing."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from headrace.datastores import Datastore
from headrace.datastores.schema import Sample
from headrace.train import TrainConfig


class Digits(Datastore):
    """Some of scikit-learn's 1797 handwritten digits: images uint8 (8, 8, 1), labels 0 .. 9."""

    def __init__(self, first: int, last: int) -> None:
        digits = load_digits()
        self.images = (digits.images[first:last, :, :, None] * 15).astype(np.uint8)
        self.labels = digits.target[first:last]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return {"image": self.images[index], "label": int(self.labels[index])}


@pytest.fixture(scope="session")
def digits() -> Digits:
    return Digits(0, 403)


@pytest.fixture(scope="session")
def held_out() -> Digits:
    return Digits(1500, 1797)


@pytest.fixture
def make_model() -> Callable[[], nn.Module]:
    """Makes the same network each time: convolution, dropout and two dense layers."""

    def make(outputs: int = 10) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 32), nn.ReLU(),
                nn.Linear(32, outputs),
            )  # fmt: skip

    return make


@pytest.fixture
def config() -> TrainConfig:
    return TrainConfig(max_epochs=2, batch_size=50, device="cpu", progress="none", log_every=1)
