"""A user's own random __getitem__ is as reproducible as everything else."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from toys import Naive, Noise, digest

from headrace.augment import Draw
from headrace.datastores import AugmentedImageDatastore, Loader


def values(loader: Loader) -> list[list[float]]:
    return [row for batch in loader for row in batch["x"].tolist()]


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    with Loader(Naive(), 8, seed=3) as loader:
        return values(loader) + values(loader)


@pytest.mark.parametrize(("workers", "method"), [(1, "fork"), (2, "fork"), (3, "forkserver"), (2, "spawn")])
def test_naive_randomness_does_not_depend_on_workers(expected: list[list[float]], workers: int, method: str) -> None:
    with Loader(Naive(), 8, seed=3, workers=workers, start_method=method) as loader:  # type: ignore[arg-type]
        assert values(loader) + values(loader) == expected


def test_naive_randomness_differs_by_sample_epoch_and_seed(expected: list[list[float]]) -> None:
    for column in range(3):
        assert len({row[column] for row in expected}) == len(expected) == 128
    assert not {row[0] for row in values(Loader(Naive(), 8, seed=4))} & {row[0] for row in expected}


def test_the_trainers_own_generators_are_left_alone() -> None:
    def state() -> tuple[object, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()  # noqa: NPY002

    before = state()
    list(Loader(Naive(), 8))
    Naive().sample(3, Draw())
    list(Loader(AugmentedImageDatastore((4, 4), [(np.zeros((4, 4, 3), np.uint8), 1)] * 9), 8))
    assert state() == before


def test_one_sample_is_what_the_loader_gives() -> None:
    batch = next(iter(Loader(Naive(), 4, shuffle="never", seed=9)))
    assert np.array_equal(Naive().sample(2, Draw(seed=9, epoch=0))["x"], batch["x"][2].numpy())


def test_at_brings_epochs_into_loops_that_know_none() -> None:
    data = AugmentedImageDatastore((6, 5), Noise(), mode="random_crop")
    epochs = [
        torch.cat([b["image"] for b in DataLoader(Noise().at(Draw(seed=1, epoch=epoch)), 10)]) for epoch in (0, 1, 1)
    ]
    assert torch.equal(epochs[1], epochs[2])
    assert not torch.equal(epochs[0], epochs[1])
    inside = digest(Loader(data.at(Draw(seed=5, epoch=2)), 10, shuffle="never"))
    plain = Loader(data, 10, shuffle="never", seed=5)
    plain.set_epoch(2)
    assert [d[:900] for d in inside] == [d[:900] for d in digest(plain)]
    assert data.at(Draw(epoch=1)).fingerprint != data.at(Draw(epoch=2)).fingerprint
