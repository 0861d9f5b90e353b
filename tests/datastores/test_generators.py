"""A user's own random __getitem__ is as reproducible as everything else."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from toys import Naive, Noise, digest

from headrace.augment import Draw
from headrace.datastores import AugmentedImageDatastore, Loader
from headrace.datastores.generators import seed_generators
from headrace.datastores.locks import ProcessLock
from headrace.errors import ConfigError


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


class Shared(Naive):
    """Lets other threads in between its draws."""

    def __getitem__(self, index: int) -> dict[str, object]:
        first = random.random()
        time.sleep(0.001)
        return {"x": np.array([first, random.random(), torch.rand(1).item()]), "label": index}


def test_threads_with_loaders_of_their_own_do_not_disturb_each_other() -> None:
    alone = values(Loader(Shared(), 8, seed=3))
    together: list[list[list[float]]] = []
    threads = [threading.Thread(target=lambda: together.append(values(Loader(Shared(), 8, seed=3)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [alone] * 3


@pytest.mark.parametrize("augmented", [False, True])
def test_an_error_that_somebody_keeps_does_not_keep_the_generators(augmented: bool) -> None:
    """Its traceback holds the frames that were making samples."""

    class Failing(Shared):
        def __getitem__(self, index: int) -> dict[str, object]:
            if index == 3:
                raise ZeroDivisionError(f"drew {random.random()}")
            return {"image": np.zeros((4, 4, 3), np.uint8), "label": index}

    before = random.getstate()
    data = AugmentedImageDatastore((4, 4), Failing()) if augmented else Failing()
    with pytest.raises(ZeroDivisionError) as kept:
        list(Loader(data, 8, shuffle="never"))
    assert random.getstate() == before
    thread = threading.Thread(target=lambda: Naive().sample(0, Draw()), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), kept


def test_a_process_forked_while_samples_are_made_makes_its_own() -> None:
    inside, leave = threading.Event(), threading.Event()

    class Slow(Naive):
        def __getitem__(self, index: int) -> dict[str, object]:
            inside.set()
            leave.wait(10)
            return {"x": np.zeros(3), "label": index}

    thread = threading.Thread(target=lambda: Slow().sample(0, Draw()))
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        Naive().sample(0, Draw())
        os._exit(7)
    deadline = time.monotonic() + 5
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    leave.set()
    thread.join()
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended[1]) == 7


def test_waiting_for_oneself_ends_with_an_error() -> None:
    lock = ProcessLock(patience=0.1, what="is busy")
    with lock:
        errors: list[Exception] = []

        def enter() -> None:
            try:
                with lock:
                    pass
            except ConfigError as error:
                errors.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert str(errors[0]) == "waited for 0.1 s, and another thread still is busy"


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


def test_the_three_generators_draw_independent_numbers() -> None:
    class Coins(Naive):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> dict[str, object]:
            bits = (random.getrandbits(1), np.random.randint(0, 2), int(torch.randint(0, 2, (1,))))  # noqa: NPY002
            levels = (random.random(), np.random.random(), torch.rand(1, dtype=torch.float64).item())  # noqa: NPY002
            raw = (random.getrandbits(32), np.random.randint(0, 2**32), int(torch.randint(0, 2**32, (1,))))  # noqa: NPY002
            return {"bits": bits, "levels": levels, "raw": raw}

    samples = [Coins().sample(index, Draw(1)) for index in range(1000)]
    for name in ("bits", "levels"):
        assert np.abs(np.corrcoef([sample[name] for sample in samples], rowvar=False) - np.eye(3)).max() < 0.13
    assert not any(len(set(sample["raw"])) < 3 for sample in samples)


def test_numpys_seed_has_more_than_32_bits() -> None:
    """A state that one word of seed makes, holds that word."""
    keys, state = set(), np.random.get_state()  # noqa: NPY002
    try:
        for index in range(40):
            seed_generators(Draw(), index)
            keys.add(tuple(np.random.get_state()[1][:4].tolist()))  # noqa: NPY002
            one_word = np.random.RandomState(np.random.get_state()[1][0]).get_state()[1]  # noqa: NPY002
            assert not np.array_equal(one_word, np.random.get_state()[1])  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002
    assert len(keys) == 40
