from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headrace.datastores import Datastore
from headrace.errors import ConfigError
from headrace.train import TrainConfig, fit
from headrace.train.clipping import Clip, clip_gradients


def _parameters(*gradients: list[float] | None) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient or [0])))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        parameters.append(parameter)
    return parameters


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (("norm", 6.5), [[1.5, 2.0], [6.0, 0.0]]),
        (("each", 2.5), [[1.5, 2.0], [2.5, 0.0]]),
        (("value", 3.5), [[3.0, 3.5], [3.5, 0.0]]),
        (("norm", 100), [[3.0, 4.0], [12.0, 0.0]]),
    ],
)
def test_rules(clip: Clip, expected: list[list[float]]) -> None:
    parameters = _parameters([3.0, 4.0], [12.0, 0.0], None)
    clip_gradients(parameters, clip)
    assert [p.grad.tolist() for p in parameters if p.grad is not None] == [pytest.approx(e) for e in expected]
    assert parameters[2].grad is None


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9), min_size=1, max_size=5),
       st.sampled_from(["norm", "each", "value"]), st.floats(0.01, 1e4))  # fmt: skip
def test_nothing_is_longer_than_the_limit_and_what_is_short_keeps_its_bits(
    gradients: list[list[float]], rule: Any, limit: float
) -> None:
    parameters = _parameters(*gradients)
    clip_gradients(parameters, (rule, limit))
    pairs = [(p.grad, torch.tensor(gradient)) for p, gradient in zip(parameters, gradients, strict=True)]
    for group in [pairs] if rule == "norm" else [[pair] for pair in pairs]:
        now, then = (torch.cat(gradients) for gradients in zip(*group, strict=True))
        size = torch.max if rule == "value" else torch.linalg.vector_norm
        assert size(now.abs()) <= limit * (1 + 1e-5)
        if size(then.abs()) < limit * (1 - 1e-5):
            assert torch.equal(now, then)


def test_no_gradient_at_all() -> None:
    clip_gradients(_parameters(None), ("norm", 1.0))
    clip_gradients(_parameters([0.0]), ("norm", 1.0))


@pytest.mark.parametrize(
    "clip", ["norm", ("norm",), ("length", 1.0), ("norm", 0), ("norm", True), ("norm", float("nan"))]
)
def test_bad_rules_are_refused(clip: Any) -> None:
    with pytest.raises(ConfigError, match="clip must be None, or a pair"):
        TrainConfig(clip=clip)


def test_fit_clips(digits: Datastore, make_model: Any) -> None:
    config = TrainConfig(batch_size=50, max_steps=1, device="cpu", progress="none", clip=("norm", 1e-3))
    model = make_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    fit(model, digits, nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=1.0), config)
    moved = torch.cat([(now - then).flatten() for now, then in zip(model.parameters(), before, strict=True)])
    assert torch.linalg.vector_norm(moved).item() == pytest.approx(1e-3, rel=1e-3)
