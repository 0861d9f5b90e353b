from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from headrace.datastores import Batch, Loader
from headrace.errors import ConfigError, SampleError, ShapeError
from headrace.train import TrainConfig, fit
from headrace.train.checks import check_labels, check_loss, check_optimizer, check_padding, trainable_parameters


def _batch(labels: list[int]) -> Batch:
    pairs = [(np.zeros((2, 2, 1), np.uint8), label) for label in labels]
    return next(iter(Loader(pairs, len(pairs), shuffle="never")))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="ReLU has 0 parameters"):
        trainable_parameters(nn.ReLU())
    frozen = nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(ConfigError, match="Linear has 2 parameters, and none requires a gradient"):
        trainable_parameters(frozen)
    frozen.bias.requires_grad_(True)
    assert trainable_parameters(frozen) == [frozen.bias]


def test_a_model_without_shapes_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not know the shape of weight yet: run one batch through it"):
        trainable_parameters(nn.LazyLinear(3))


def test_an_optimizer_of_another_model_is_refused() -> None:
    mine, other = nn.Linear(1, 1), nn.Linear(1, 1)
    check_optimizer(torch.optim.SGD([mine.bias], lr=0.1), trainable_parameters(mine))
    with pytest.raises(ConfigError, match="SGD holds none of the model's"):
        check_optimizer(torch.optim.SGD(other.parameters(), lr=0.1), trainable_parameters(mine))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (None, "the optimizer is NoneType: it must be a torch optimizer, or a factory"),
        ("SGD", "the optimizer is str"),
        (lambda parameters: None, "the optimizer is NoneType"),
        (torch.optim.LBFGS, "LBFGS computes the loss several times in each step"),
    ],
)
def test_what_is_no_optimizer_of_its_kind_is_refused(optimizer: Any, message: str) -> None:
    config = TrainConfig(batch_size=2, device="cpu", progress="none")
    data = [(np.zeros((2, 2, 1), np.uint8), 0)] * 4
    with pytest.raises(ConfigError, match=message):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), data, functional.cross_entropy, optimizer, config)


@pytest.mark.parametrize(("samples", "last_batch"), [(8, "pad"), (9, "keep"), (9, "drop")])
def test_batch_norm_may_be_trained_where_nothing_is_padded(samples: int, last_batch: str) -> None:
    check_padding(nn.BatchNorm2d(1), Loader([{"x": 1.0}] * samples, 4, last_batch=last_batch))


def test_batch_norm_is_refused_where_rows_are_padded() -> None:
    loader = Loader([{"x": 1.0}] * 9, 4, last_batch="pad")
    check_padding(nn.Sequential(nn.GroupNorm(1, 1)), loader)
    with pytest.raises(ConfigError, match="BatchNorm2d '0' would count them"):
        check_padding(nn.Sequential(nn.BatchNorm2d(1)), loader)


@pytest.mark.parametrize(
    ("loss", "error", "found"),
    [
        (0.5, ConfigError, "the loss is float"),
        (torch.zeros(3), ShapeError, r"the loss is float32 \(3,\) on cpu"),
        (torch.tensor(1), ShapeError, r"the loss is int64 \(\) on cpu"),
    ],
)
def test_a_loss_must_be_one_number(loss: object, error: type[Exception], found: str) -> None:
    check_loss(torch.tensor(1.0))
    with pytest.raises(error, match=found):
        check_loss(loss)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.NLLLoss(), functional.cross_entropy, functional.nll_loss])
def test_a_label_without_an_output_is_named_with_its_sample(loss: object) -> None:
    with pytest.raises(SampleError, match=r"sample 2 has label 3, but the model has 3 outputs, .*\(1 of 4 samples"):
        check_labels(loss, torch.zeros(4, 3), _batch([0, 2, 3, 1]))
    with pytest.raises(SampleError, match=r"sample 0 has label -1.*\(2 of 3 samples of step 0 of epoch 0\)"):
        check_labels(loss, torch.zeros(3, 3), _batch([-1, 2, 3]))


@given(st.lists(st.integers(-2, 5), min_size=1, max_size=6))
def test_a_label_is_refused_exactly_when_torch_would_refuse_it(labels: list[int]) -> None:
    loss, outputs = nn.CrossEntropyLoss(ignore_index=-2), torch.zeros(len(labels), 4)
    try:
        loss(outputs, torch.tensor(labels))
        torch_refuses = False
    except IndexError:
        torch_refuses = True
    try:
        check_labels(loss, outputs, _batch(labels))
        refused = False
    except SampleError:
        refused = True
    assert refused == torch_refuses


def test_labels_that_are_no_class_numbers_are_not_checked() -> None:
    batch = _batch([7, 8])
    check_labels(lambda outputs, targets: outputs.sum(), torch.zeros(2, 3), batch)
    check_labels(nn.MSELoss(), torch.zeros(2, 3), batch)
    check_labels(None, torch.zeros(2, 3), batch)
    check_labels(nn.CrossEntropyLoss(), (torch.zeros(2, 3),), batch)
    probabilities = next(iter(Loader([{"label": np.ones(3, np.float32)}] * 2, 2)))
    check_labels(nn.CrossEntropyLoss(), torch.zeros(2, 3), probabilities)
