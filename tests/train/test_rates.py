import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from headrace.datastores import Datastore, Loader
from headrace.errors import ConfigError
from headrace.train import Cosine, Exponential, TrainConfig, Warmup, fit, weights_sha256
from headrace.train.rates import Rates, ScheduleLike
from headrace.train.schedule import Span


def _optimizer() -> torch.optim.Optimizer:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    return torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": [second], "lr": 0.1}])


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def test_each_group_keeps_its_own_rate() -> None:
    optimizer = _optimizer()
    rates = Rates(Warmup(2, 0.5), optimizer, Span(10, 5))
    seen = []
    for step in range(3):
        rates.before(step)
        seen.append(_rates(optimizer))
    assert seen == [[0.5, 0.05], [0.75, pytest.approx(0.075)], [1.0, 0.1]]


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=rate, foreach=False)
    Rates(Warmup(2, 0.5), optimizer, Span(10, 5)).before(0)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


@pytest.mark.parametrize("schedule", ["cosine", 3, lambda optimizer: None, Cosine])
def test_what_is_no_schedule_is_refused(schedule: Any) -> None:
    with pytest.raises(ConfigError, match=r"it must be a schedule such as Cosine|is the class Cosine: pass an object"):
        Rates(schedule, _optimizer(), Span(10, 5))


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    other = torch.optim.lr_scheduler.StepLR(_optimizer(), 1)
    with pytest.raises(ConfigError, match="it must be a schedule"):
        Rates(lambda optimizer: other, _optimizer(), Span(10, 5))


def test_torchs_schedulers_step_with_the_optimizer(digits: Datastore, make_model: Any, config: TrainConfig) -> None:
    result = fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.SGD, config,
                 schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5))  # fmt: skip
    assert [row.lr for row in result.history] == [1e-3 * 0.5 ** (step // 5) for step in range(16)]


def test_plateaus_are_those_of_the_validation(
    digits: Datastore, held_out: Datastore, make_model: Any, config: TrainConfig
) -> None:
    def plateau(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.ReduceLROnPlateau:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)

    result = fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.SGD, config, held_out, schedule=plateau)
    assert [row.lr for row in result.history][::8] == [1e-3, 1e-3]  # of two validations only the second one can drop it
    longer = TrainConfig(max_epochs=3, batch_size=50, device="cpu", progress="none", log_every=1)
    result = fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.SGD, longer, held_out, schedule=plateau)
    assert [row.lr for row in result.history][::8] == [1e-3, 1e-3, 5e-4]


@pytest.mark.parametrize(
    "schedule",
    [
        Cosine(),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=17),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 16),
    ],
)
def test_rates_go_on_where_an_interrupted_run_stood(
    digits: Datastore, make_model: Any, config: TrainConfig, schedule: ScheduleLike
) -> None:
    whole = fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.SGD, config, schedule=schedule)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())
    rates = []
    with Loader(digits, 50) as loader:
        for last in (4, 11, 16):
            part = dataclasses.replace(config, max_steps=None)

            def stop(event: str, state: Any, last: int = last) -> Any:
                return "stop" if event == "step" and state.step == last else None

            result = fit(model, loader, nn.functional.cross_entropy, optimizer, part, schedule=schedule, on_event=stop)
            rates += [row.lr for row in result.history]
    assert rates == pytest.approx([row.lr for row in whole.history], rel=1e-9)


def test_a_rate_that_was_set_before_a_new_run_counts(digits: Datastore, make_model: Any, config: TrainConfig) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(model, digits, nn.functional.cross_entropy, optimizer, config, schedule=Cosine())
    optimizer.param_groups[0]["lr"] = 0.5
    result = fit(model, digits, nn.functional.cross_entropy, optimizer, config, schedule=Cosine())
    assert result.history[0].lr == 0.5


class _Odd:
    """A schedule whose factor is what it was given."""

    def __init__(self, factor: float) -> None:
        self.value = factor

    def factor(self, step: int, span: Span) -> float:
        return self.value


@pytest.mark.parametrize("schedule", [_Odd(-1.0), _Odd(float("nan")), _Odd(float("inf")), Exponential(1e300, "step")])
def test_a_factor_that_makes_no_sense_is_refused(schedule: Any) -> None:
    rates = Rates(schedule, _optimizer(), Span(10, 5))
    with pytest.raises(ConfigError, match=r"gives the factor .* it must be at least 0"):
        rates.before(3)


def test_a_plateau_without_validation_is_refused(digits: Datastore, make_model: Any, config: TrainConfig) -> None:
    with pytest.raises(ConfigError, match="ReduceLROnPlateau changes rates by the losses of validations"):
        fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.SGD, config,
            schedule=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o))  # fmt: skip


def test_a_run_in_two_pieces_has_the_rates_of_one(digits: Datastore, make_model: Any, config: TrainConfig) -> None:
    schedule: ScheduleLike = Cosine()
    whole = fit(make_model(), digits, nn.functional.cross_entropy, torch.optim.SGD, config, schedule=schedule)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters())
    with Loader(digits, 50) as loader:

        def stop(event: str, state: Any) -> Any:
            return "stop" if event == "step" and state.step == 7 else None

        for on_event in (stop, None):
            fit(model, loader, nn.functional.cross_entropy, optimizer, config, schedule=schedule, on_event=on_event)
    assert weights_sha256(model) == weights_sha256(whole.model)
    assert whole.history[-1].lr == pytest.approx(1e-3 * (1 + math.cos(math.pi * 15 / 16)) / 2)
