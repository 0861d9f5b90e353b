from typing import Any

import pytest
import torch
from torch import nn

from headrace.datastores import Datastore
from headrace.errors import ConfigError
from headrace.train import TrainConfig, evaluate, fit
from headrace.train.average import WeightAverage


def test_it_is_the_mean_it_says() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    expected = {name: tensor.clone().double() for name, tensor in model.state_dict().items()}
    average = WeightAverage(model, 0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator))
        model(torch.randn(4, 2, generator=generator))
        average.update()
        for name, tensor in model.state_dict().items():
            expected[name] = 0.9 * expected[name] + 0.1 * tensor.double()
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with average.applied():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                assert torch.allclose(tensor.double(), expected[name], atol=1e-5), name
            else:
                assert tensor == 20
    assert all(torch.equal(own[name], tensor) for name, tensor in model.state_dict().items())


def test_complex_weights_are_averaged_too() -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.complex64)
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, 0.5)
    nn.init.ones_(model.weight)
    average.update()
    assert average.state_dict()["weight"].item() == 0.5


def test_weights_come_back_after_an_error() -> None:
    model = nn.Linear(1, 1)
    average = WeightAverage(model, 0.0)
    nn.init.constant_(model.weight, 5.0)
    with pytest.raises(ZeroDivisionError), average.applied():
        raise ZeroDivisionError
    assert model.weight.item() == 5.0


def test_a_state_is_taken_up() -> None:
    model = nn.Linear(1, 1)
    average = WeightAverage(model, 0.5)
    nn.init.constant_(model.weight, 5.0)
    average.update()
    other = WeightAverage(model, 0.5)
    other.load_state_dict(average.state_dict())
    assert other.state_dict()["weight"] == average.state_dict()["weight"] != 5.0


@pytest.mark.parametrize("keep", ["last", "best"])
def test_fit_validates_the_average_and_returns_it(
    digits: Datastore, held_out: Datastore, make_model: Any, keep: Any
) -> None:
    config = TrainConfig(max_epochs=2, batch_size=50, device="cpu", progress="none", ema_decay=0.8, keep=keep)
    losses: list[float] = []
    plain = fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.Adam,
                TrainConfig(max_epochs=2, batch_size=50, device="cpu", progress="none"), held_out)  # fmt: skip
    note = lambda event, state: losses.append(state.validation["loss"]) if event == "validation" else None  # noqa: E731
    result = fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.Adam, config, held_out, on_event=note)
    found = evaluate(result.model, held_out, nn.functional.cross_entropy, device="cpu")["loss"]
    assert found == pytest.approx(losses[-1], abs=1e-6)
    assert found != pytest.approx(plain.history[-1].validation["loss"], abs=1e-3)
    # what the average is of does not depend on it
    assert [row.loss for row in result.history] == [row.loss for row in plain.history]


@pytest.mark.parametrize("decay", [1.0, -0.1, 1, "0.9", float("nan")])
def test_bad_decays_are_refused(decay: Any) -> None:
    with pytest.raises(ConfigError, match="ema_decay must be a float"):
        TrainConfig(ema_decay=decay)
