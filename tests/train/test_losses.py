import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.train.losses import LossMeter


@given(st.lists(st.tuples(st.floats(0, 100, width=32), st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 4))
def test_the_mean_counts_each_sample_once_however_often_it_is_read(losses: list[tuple[float, int]], every: int) -> None:
    meter = LossMeter()
    for index, (loss, count) in enumerate(losses):
        meter.add(0, index, torch.arange(count), torch.tensor(loss))
        if index % every == 0:
            assert meter.read() is None
    assert meter.read() is None
    samples = sum(count for _, count in losses)
    assert meter.samples == samples
    assert meter.take_mean() == pytest.approx(math.fsum(loss * n for loss, n in losses) / samples, rel=1e-12)
    assert math.isnan(meter.take_mean())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_with_its_samples(bad: float) -> None:
    meter = LossMeter(shown_ids=3)
    meter.add(4, 10, torch.tensor([1]), torch.tensor(1.0))
    meter.add(4, 11, torch.tensor([20, 30, 5, 6, 7]), torch.tensor(bad))
    meter.add(4, 12, torch.tensor([9]), torch.tensor(math.nan))
    assert meter.read() == f"the loss of step 11 of epoch 4 is {bad}; its samples are 20, 30, 5 and 2 more"
    assert meter.read() is None


def test_a_single_loss_comes_back_bit_for_bit() -> None:
    meter, loss = LossMeter(), torch.tensor(math.pi, dtype=torch.float64)
    meter.add(0, 0, torch.arange(128), loss)
    meter.read()
    assert meter.take_mean() == math.pi


def test_another_ranks_bad_part_is_not_blamed_on_this_ones_samples() -> None:
    meter, nan = LossMeter(), torch.tensor(math.nan)
    meter.add(0, 0, torch.arange(3), torch.tensor(2.0), samples=7, own=torch.tensor(1.0))
    assert meter.read() is None
    assert (meter.samples, meter.sums) == (7, (14.0, 7))
    meter.add(0, 1, torch.arange(3), nan, samples=7, own=torch.tensor(1.0))
    assert meter.read() == "the loss of step 1 of epoch 0 is nan; its samples are another rank's, which names them"
    meter.add(0, 2, torch.arange(3), nan, samples=7, own=nan)
    assert meter.read() == "the loss of step 2 of epoch 0 is nan; its samples are 0, 1, 2"
