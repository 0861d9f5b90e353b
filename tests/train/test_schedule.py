import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.train import Chain, Cosine, Cyclical, Exponential, Piecewise, Polynomial, Warmup, scaled_rate
from headrace.train.schedule import Schedule, Span

TEN_BY_TEN = Span(100, 10)


def _table(schedule: Schedule, span: Span = TEN_BY_TEN) -> list[float]:
    return [schedule.factor(step, span) for step in range(span.steps)]


def _torch_table(make: Any, steps: int = 100) -> list[float]:
    """What a scheduler of torch makes of a rate of 1, step by step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Piecewise(0.1, 30, "step"), lambda o: torch.optim.lr_scheduler.StepLR(o, 30, 0.1)),
        (Piecewise(0.5, 3), lambda o: torch.optim.lr_scheduler.StepLR(o, 30, 0.5)),
        (Exponential(0.97, "step"), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.97)),
        (Polynomial(2.0), lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 100, 2.0)),
        (Cosine(0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100, 0.1)),
        (
            Cosine(period=10, growth=2, unit="step"),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 10, 2),
        ),
        (
            Cyclical(3.0, 20, unit="step"),
            lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1.0, 3.0, 10, cycle_momentum=False),
        ),
        (Warmup(20, 0.1), lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 20)),
    ],
)
def test_rates_are_those_of_torch(schedule: Schedule, make: Any) -> None:
    assert _table(schedule) == pytest.approx(_torch_table(make), abs=1e-9)


def test_a_chain_counts_from_the_start_of_each_part() -> None:
    chain = Chain(Warmup(5), (Piecewise(0.1, 10, "step"), 25), Cosine())
    expected = [*_table(Warmup(5), Span(5, 10)), *_table(Piecewise(0.1, 10, "step"), Span(25, 10))]
    assert _table(chain) == [*expected, *_table(Cosine(), Span(70, 10))]


def test_a_chain_that_is_longer_than_the_run_is_cut() -> None:
    assert _table(Chain(Warmup(200), Cosine()), TEN_BY_TEN)[-1] == Warmup(200).factor(99, TEN_BY_TEN) < 0.6


_SCHEDULES: list[Schedule] = [
    Warmup(7),
    Piecewise(),
    Exponential(0.9),
    Polynomial(0.5, 0.1),
    Cosine(),
    Cosine(period=2, growth=1.5),
    Cyclical(5.0, 3, 0.3),
    Chain(Warmup(3), Cosine()),
]


@given(st.sampled_from(_SCHEDULES), st.integers(1, 10**6), st.integers(1, 10**4), st.data())
def test_factors_are_finite_and_start_where_they_should(
    schedule: Schedule, steps: int, per_epoch: int, data: st.DataObject
) -> None:
    span = Span(steps, per_epoch)
    step = data.draw(st.integers(0, steps - 1))
    assert math.isfinite(schedule.factor(step, span))
    assert 0 <= schedule.factor(step, span) <= 5
    assert schedule.factor(0, span) in (1.0, 0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Warmup(0), "steps must be a whole number"),
        (lambda: Warmup(5, 1.5), r"first must be a number in 0 \.\. 1, got 1.5"),
        (lambda: Piecewise(0.0), "drop must be a number above 0"),
        (lambda: Piecewise(math.nan), "drop must be"),
        (lambda: Piecewise(every=True), "every must be a whole number"),
        (lambda: Piecewise(unit="week"), 'unit must be "epoch" or "step"'),
        (lambda: Exponential(-1), "gamma must be"),
        (lambda: Polynomial(last=math.inf), "last must be a number of at least 0"),
        (lambda: Cosine(period=0), "period must be"),
        (lambda: Cosine(growth=0.5), "growth must be a number of at least 1"),
        (lambda: Cyclical(2.0, 3, 1.0), "up must be in"),
        (lambda: Chain(), "at least one"),
        (lambda: Chain(Cosine(), Cosine()), r"how long does Cosine\(.*\) last"),
        (lambda: Chain((Cosine(), -1), Cosine()), "length of a part"),
        (lambda: Chain("cosine", Cosine()), "'cosine' is none"),
        (lambda: Chain(Cosine), "is none"),
        (lambda: scaled_rate(0.1, 0), "batch_size must be"),
        (lambda: scaled_rate(0.1, 10, rule="cubic"), "rule must be"),
    ],
)
def test_bad_values_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
