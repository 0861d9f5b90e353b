"""The loader: same bits for any workers, start method, ranks and resumes; errors arrive; nothing is left behind."""

import contextlib
import copy
import gc
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Deadly, Failing, Lost, Noise, UnpicklableError, digest

from headrace.datastores import Loader
from headrace.errors import ConfigError, FieldError, ShapeError, StateError, WorkerError

METHODS = ["fork", "forkserver", "spawn"]


def _descriptors() -> list[str]:
    """What this process has open."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return sorted(re.sub(r"\d+", "N", str(link.readlink())) for link in links)


def _workers() -> list[psutil.Process]:
    """Background workers of this process; the server that forks them has no children of its own otherwise."""
    family = psutil.Process().children(recursive=True)
    return [p for p in family if p.status() != psutil.STATUS_ZOMBIE and _is_worker(p)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("headrace-slots" in line.path for line in process.memory_maps(grouped=False))
    except psutil.Error:
        return False


# --- the same bits -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> list[bytes]:
    with Loader(Noise(), 16, seed=5, last_batch="keep") as loader:
        return digest(loader) + digest(loader)


@pytest.mark.parametrize(
    ("workers", "method"),
    [(0, "auto"), (1, "fork"), (3, "fork"), (1, "forkserver"), (3, "forkserver"), (1, "spawn"), (3, "spawn")],
)
def test_workers_and_start_methods_change_no_bit(reference: list[bytes], workers: int, method: Any) -> None:
    with Loader(Noise(), 16, seed=5, last_batch="keep", workers=workers, start_method=method, prefetch=2) as loader:
        assert digest(loader) + digest(loader) == reference


def test_epochs_and_seeds_differ(reference: list[bytes]) -> None:
    assert len(set(reference)) == len(reference) == 14
    assert not set(digest(Loader(Noise(), 16, seed=6))) & set(reference)


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(1, 60),
    batch=st.integers(1, 24),
    world=st.integers(1, 5),
    last=st.sampled_from(["keep", "pad", "drop"]),
    shuffle=st.sampled_from(["global", "window", "once", "never"]),
)
def test_ranks_see_the_parts_of_one_batch(samples: int, batch: int, world: int, last: Any, shuffle: Any) -> None:
    if last == "drop":
        batch = min(batch, samples)
    world = min(world, batch)
    settings_ = {"batch_size": batch, "last_batch": last, "shuffle": shuffle, "window": 2}
    whole = list(Loader(Noise(samples), **settings_))
    ranks = [list(Loader(Noise(samples), rank=r, world_size=world, **settings_)) for r in range(world)]
    assert {len(steps) for steps in ranks} == {len(whole)} == {len(Loader(Noise(samples), **settings_))}
    for step, expected in enumerate(whole):
        parts = [steps[step] for steps in ranks]
        assert torch.cat([p.ids for p in parts]).tolist() == expected.ids.tolist()
        assert torch.equal(torch.cat([p.images for p in parts]), expected.images)


def test_a_batch_is_channels_last_and_has_no_copy() -> None:
    batch = next(iter(Loader(Noise(shape=(6, 5, 3)), 8)))
    assert batch.images.shape == (8, 3, 6, 5)
    assert batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.labels.dtype == torch.int64
    assert len(batch) == 8
    assert batch.to("cpu").images.data_ptr() == batch.images.data_ptr()
    with pytest.raises(FieldError, match=r"no field 'mask': it has \['image', 'label'\]"):
        batch["mask"]


def test_fewer_rows_than_workers_and_one_sample() -> None:
    with Loader(Noise(samples=1), 4, workers=3, last_batch="keep") as loader:
        assert [batch.labels.tolist() for batch in loader] == [[0]]


def test_any_object_with_len_and_getitem_will_do() -> None:
    pairs = [(np.full((2, 2, 1), i, np.uint8), i) for i in range(5)]
    batches = list(Loader(pairs, 2, shuffle="never", last_batch="keep"))
    assert [b.labels.tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    assert batches[2].images.tolist() == [[[[4, 4], [4, 4]]]]


# --- position ----------------------------------------------------------------------------------------------------

RESUME = """
import json, sys, pickle
sys.path.insert(0, {path!r})
from toys import Noise, digest
from headrace.datastores import Loader
if __name__ == "__main__":
    loader = Loader(Noise(), 16, seed=5, last_batch="keep", workers={workers}, start_method="fork")
    loader.load_state_dict(json.loads({state!r}))
    sys.stdout.buffer.write(pickle.dumps(digest(loader) + digest(loader)))
    loader.close()
"""


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_the_rest_of_an_epoch_in_a_new_process(reference: list[bytes], workers: int) -> None:
    loader = Loader(Noise(), 16, seed=5, last_batch="keep", workers=2, start_method="fork")
    for _, _ in zip(range(3), loader, strict=False):
        state = json.dumps(loader.state_dict())
    loader.close()
    code = RESUME.format(path=str(Path(__file__).parents[1] / "support"), state=state, workers=workers)
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert pickle.loads(result.stdout) == reference[3:]


def test_resume_at_every_batch_any_number_of_times(reference: list[bytes]) -> None:
    seen, state = [], Loader(Noise(), 16, seed=5, last_batch="keep").state_dict()
    while len(seen) < len(reference):
        loader = Loader(Noise(), 16, seed=5, last_batch="keep")
        loader.load_state_dict(state)
        seen += digest([next(iter(loader))])
        state = copy.deepcopy(loader.state_dict())
    assert seen == reference
    assert (state["epoch"], state["step"]) == (2, 0)


def test_a_broken_off_epoch_is_followed_by_the_next() -> None:
    loader = Loader(Noise(), 16)
    for batch in loader:
        assert (batch.epoch, batch.step) == (0, 0)
        break
    assert (loader.epoch, loader.step) == (0, 1)
    assert next(iter(loader)).epoch == 1
    loader.set_epoch(7)
    assert [b.epoch for b in loader] == [7] * 6
    assert loader.epoch == 8


@pytest.mark.parametrize("epoch", [1.5, True, "3", -1])
def test_epochs_must_be_whole(epoch: Any) -> None:
    with pytest.raises(ConfigError, match="epoch must be"):
        Loader(Noise(), 16).set_epoch(epoch)


def test_a_numpy_epoch_is_saved_as_a_plain_one() -> None:
    loader = Loader(Noise(), 16)
    loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert loader.epoch == 3


def test_prefetch_beyond_the_epoch_takes_no_memory() -> None:
    with Loader(Noise(), 50, workers=1, start_method="fork", prefetch=10**9) as loader:
        assert len(list(loader)) == 2


def test_a_second_iteration_ends_the_first() -> None:
    loader = Loader(Noise(), 16)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second).epoch == 1
    assert list(first) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed: saved 9, now 5"),
        ({"batch_size": 8}, "batch_size: saved 8, now 16"),
        ({"data": "x"}, "data: saved 'x'"),
        ({"version": 99}, "version: saved 99"),
        ({"step": 7}, "outside of an epoch of 7 steps"),
        ({"epoch": -1}, "outside of an epoch"),
        ({"epoch": 2**64}, "outside of an epoch"),
        ({"seed": np.zeros(2)}, "seed: saved"),
        ({"step": None}, "lacks step"),
        ({"step": "3"}, "epoch 0, step '3' lies outside"),
    ],
)
def test_a_state_of_another_run_is_refused(change: dict[str, Any], message: str) -> None:
    loader = Loader(Noise(), 16, seed=5, last_batch="keep")
    state = {k: v for k, v in {**loader.state_dict(), **change}.items() if v is not None}
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)
    assert (loader.epoch, loader.step) == (0, 0)
    with pytest.raises(StateError, match="this is no loader state, but NoneType"):
        loader.load_state_dict(None)  # type: ignore[arg-type]


# --- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_may_be_kept_and_changed(reference: list[bytes], workers: int) -> None:
    with Loader(Noise(), 16, seed=5, last_batch="keep", workers=workers, prefetch=1, start_method="fork") as loader:
        kept = list(loader)
        parts = [batch.images[1:2] for batch in loader]  # a view of one row keeps its slot
        changed = [batch for batch in loader if batch.images.zero_() is not None]
    del loader
    gc.collect()
    assert digest(kept) == reference[:7]
    assert [p.permute(0, 2, 3, 1).numpy().tobytes() for p in parts] == [d[90:180] for d in reference[7:14]]
    assert all(not batch.images.any() for batch in changed)


def test_slots_are_used_again() -> None:
    with Loader(Noise(), 10, prefetch=2, workers=1, start_method="fork") as loader:
        addresses = {batch.images.data_ptr() for _ in range(5) for batch in loader}
    assert len(addresses) <= 5


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_its_sample_and_comes_in_order(workers: int) -> None:
    with Loader(Failing({17, 50}), 16, shuffle="never", workers=workers, start_method="fork") as loader:
        batches = iter(loader)
        assert next(batches).labels.tolist() == list(range(16))
        with pytest.raises(ZeroDivisionError, match="a bad day") as caught:
            next(batches)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 17: key 'k17' in shard s2.tar" in notes
    assert workers == 0 or ("in sample" in notes and "raise self.error" in notes)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_datastore_that_cannot_locate_its_samples_hides_no_error(workers: int) -> None:
    with Loader(Lost({17}), 16, shuffle="never", workers=workers, start_method="fork") as loader:
        with pytest.raises(ZeroDivisionError, match="a bad day") as raised:
            list(loader)
        assert "sample 17 (its place is unknown: no idea where 17 is)" in "".join(raised.value.__notes__)


class _MuteError(Exception):
    """Its text cannot be had, and its notes are no list."""

    def __init__(self) -> None:
        super().__init__()
        self.__notes__ = "odd"  # type: ignore[assignment]

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_that_cannot_be_told_is_told_as_far_as_possible(workers: int) -> None:
    with Loader(Failing({17}, _MuteError()), 16, shuffle="never", workers=workers, start_method="fork") as loader:
        with pytest.raises((_MuteError, WorkerError)) as raised:
            list(loader)
        assert "sample 17" in "".join(raised.value.__notes__)
        assert isinstance(raised.value, _MuteError) or "_MuteError" in str(raised.value)
    with Loader(Failing({17}, _MuteError()), 16, workers=workers, start_method="fork", on_error="substitute") as loader:
        assert len(list(loader)) == 6


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_goes_on_where_it_stands(reference: list[bytes], copied: Any) -> None:
    with Loader(Noise(), 16, seed=5, last_batch="keep", workers=1, start_method="fork") as loader:
        batches = iter(loader)
        next(batches)
        other = copied(loader)
        other.load_state_dict(loader.state_dict())
        assert digest(other) == reference[1:7] == digest(batches)
        other.close()


@pytest.mark.parametrize("last", ["keep", "pad", "drop"])
def test_absurd_batches_are_refused(last: Any) -> None:
    with pytest.raises(ConfigError, match=r"batch_size must be below 2\*\*31, got"):
        Loader(Noise(40), 2**62, last_batch=last)


def test_a_huge_batch_takes_the_memory_of_its_rows() -> None:
    batch = next(iter(Loader(Noise(40), 10**7, last_batch="keep")))
    assert len(batch) == 40
    assert batch.images.untyped_storage().nbytes() < 10**6


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_lives_on_after_an_error(workers: int) -> None:
    with Loader(Failing({99}), 16, shuffle="never", last_batch="keep", workers=workers, start_method="fork") as loader:
        for _ in range(2):
            seen = []
            with pytest.raises(ZeroDivisionError):
                seen.extend(batch.step for batch in loader)
        loader.data.bad = frozenset()  # type: ignore[attr-defined]
        loader.close()
        assert len(list(loader)) == 7


def test_an_error_that_cannot_travel_arrives_as_a_worker_error() -> None:
    with (
        Loader(Failing({3}, UnpicklableError("two", 2)), 16, workers=1, start_method="fork") as loader,
        pytest.raises(WorkerError, match=r"toys\.UnpicklableError: two 2"),
    ):
        list(loader)


def test_shapes_that_do_not_agree_name_the_sample() -> None:
    data = [{"image": np.zeros((4, 4, 3), np.uint8)}, {"image": np.zeros((5, 4, 3), np.uint8)}]
    with pytest.raises(ShapeError, match=r"field 'image' of sample 1 of list is uint8 \(5, 4, 3\), but the first"):
        list(Loader(data, 2, shuffle="never"))
    with pytest.raises(FieldError, match=r"sample 1 of list has no field 'x'"):
        list(Loader([{"x": 1}, {"y": 1}], 2, shuffle="never"))
    for empty in ({}, {"name": "cat"}):
        with pytest.raises(ShapeError, match="sample 0 of list has nothing that can become a tensor"):
            Loader([empty], 1)
    with pytest.raises(ShapeError, match="field 'x' of sample 0 of list is object"):
        Loader([{"x": object()}], 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 200}, "larger than the dataset"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"workers": -1}, "workers must be .* at least 0.* got -1"),
        ({"prefetch": 0}, "prefetch at least 1"),
        ({"timeout": 0}, "timeout above 0"),
        ({"timeout": "5"}, "timeout above 0, got .* '5'"),
        ({"on_error": "ignore"}, "on_error must be one of 'raise', 'substitute', 'skip', got 'ignore'"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world size 2"),
        ({"data": []}, "no samples"),
        ({"data": iter([1])}, "needs __len__ and __getitem__"),
        ({"start_method": "thread", "workers": 1}, "start_method must be one of 'auto', 'fork', .* got 'thread'"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(**{"data": Noise(), "batch_size": 4, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 10.0}, "batch_size must be a whole number, got 10.0"),
        ({"workers": 2.0}, "workers must be a whole number"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"prefetch": "2"}, "prefetch must be a whole number, got '2'"),
    ],
)
def test_numbers_must_be_whole(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(**{"data": Noise(), "batch_size": 4, **arguments})


def test_numpy_numbers_will_do() -> None:
    assert len(Loader(Noise(), np.int64(10), seed=np.uint32(3), workers=np.int8(0))) == 10  # type: ignore[arg-type]


def test_unpacking_a_batch_says_what_to_write() -> None:
    with pytest.raises(FieldError, match=r"a batch has fields, not positions.* write batch\.images and batch\.labels"):
        for _images, _labels in Loader(Noise(), 10):  # type: ignore[misc]
            pass


def test_reprs_are_short() -> None:
    loader = Loader(Noise(), 10, workers=0)
    assert repr(loader) == "<Loader: 10 batches of 10 from <Noise of 100 samples>, 0 workers>"
    assert repr(next(iter(loader))) == (
        "<Batch of epoch 0, step 0: image: torch.uint8 (10, 3, 6, 5), label: torch.int64 (10,)>"
    )


UNGUARDED = """
import sys
sys.path.insert(0, {support!r})
from toys import Noise
from headrace.datastores import Loader
class Mine(Noise):
    pass
list(Loader(Mine(), 10, workers=2))
"""


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_a_script_without_a_guard_gets_one_clear_error(tmp_path: Path, how: str) -> None:
    code = UNGUARDED.format(support=str(Path(__file__).parents[1] / "support"))
    (tmp_path / "mine.py").write_text(code)
    words = [str(tmp_path / "mine.py")] if how == "file" else ["-"]
    result = subprocess.run([sys.executable, *words], input=code, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1
    found = result.stderr.splitlines()[-1]
    assert "ConfigError: Mine is defined in" in found
    assert ("if __name__ ==" in found) == (how == "file")


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_cannot_be_sent_to_a_worker_is_named(method: Any) -> None:
    data = Noise()
    data.recipe = {"scale": lambda x: x}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"Noise.recipe.scale \(.*lambda.* cannot be sent to a background worker"):
        list(Loader(data, 4, workers=1, start_method=method))
    with Loader(data, 4, workers=1, start_method="fork") as loader:
        assert len(list(loader)) == 25


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError])
def test_every_refusal_to_be_pickled_is_named(error: type[Exception]) -> None:
    """RuntimeError is what torch's scripted modules raise."""

    class Refusing:
        def __reduce__(self) -> tuple[object, ...]:
            raise error("has no __getstate__")

    data = Noise()
    data.recipe = {"scale": Refusing()}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"Noise.recipe.scale \(.*Refusing\) cannot be sent to a background worker"):
        Loader(data, 4, workers=1)


# --- workers that die --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_is_replaced(reference: list[bytes], tmp_path: Path, method: Any) -> None:
    data = Deadly(victim=20, times=2, tally=tmp_path / "tally")
    with Loader(data, 16, seed=5, last_batch="keep", workers=2, start_method=method) as loader:
        assert digest(loader) + digest(loader) == reference
    assert (tmp_path / "tally").stat().st_size == 2


def test_a_sample_that_kills_every_worker_is_blamed(tmp_path: Path) -> None:
    data = Deadly(victim=20, times=99, tally=tmp_path / "tally")
    with (
        Loader(data, 16, shuffle="never", workers=2, start_method="fork") as loader,
        pytest.raises(WorkerError, match=r"sample 20 of Deadly killed 3 background workers, the last one by SIGKILL"),
    ):
        list(loader)


def test_workers_that_cannot_start_are_an_error() -> None:
    class Broken(Noise):
        def __reduce__(self) -> Any:
            return os._exit, (3,)

    with pytest.raises(WorkerError, match="died while starting, the last one with exit code 3"):
        list(Loader(Broken(), 4, workers=1, start_method="spawn"))


# --- nothing is left behind --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_leaving_in_any_way_leaves_nothing(method: Any) -> None:
    with Loader(Noise(), 8, workers=1, start_method=method) as warm_up:
        list(warm_up)
    gc.collect()  # what earlier tests left to the collector
    before = _descriptors()
    for _ in range(3):
        loader = Loader(Noise(), 8, workers=2, start_method=method)
        next(iter(loader))
        assert len(_workers()) == 2
        del loader  # collected in the middle of an epoch
        gc.collect()
        with Loader(Noise(), 8, workers=2, start_method=method) as closed:
            for batch in closed:
                del batch
                break
        with contextlib.suppress(RuntimeError), Loader(Noise(), 8, workers=2, start_method=method) as closed:
            for batch in closed:
                del batch
                raise RuntimeError("mine")
        del closed
    gc.collect()
    assert _workers() == []
    assert _descriptors() == before
    assert list(Path("/dev/shm").glob("*headrace*")) == []


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {support!r})
from toys import Slow
from headrace.datastores import Loader
loader = Loader(Slow(Path({folder!r}), 0.01), 16, workers=2, start_method={method!r})
for batch in loader:
    print("batch", flush=True)
    {action}
"""


def _run_script(tmp_path: Path, method: str, action: str) -> subprocess.Popen[str]:
    script = tmp_path / "user_script.py"  # has no `if __name__ == "__main__"` on purpose
    support = str(Path(__file__).parents[1] / "support")
    (tmp_path / "pids").mkdir()
    script.write_text(SCRIPT.format(support=support, folder=str(tmp_path / "pids"), method=method, action=action))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "batch\n", process.communicate()
    return process


def _assert_gone(trainer: int, tmp_path: Path, seconds: float, count: int = 2) -> None:
    pids = {int(path.name) for path in (tmp_path / "pids").iterdir()} - {trainer}
    assert len(pids) == count
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlived its trainer"
        time.sleep(0.05)


_CELLS = """
import sys
main = sys.modules["__main__"]
del main.__file__  # a notebook's main module has none
cell = '''
loader = Loader(Slow(Path({folder!r}), 0.01), 16, workers=2)
for batch in loader:
    if batch.step == 2:
        break
'''
exec("from pathlib import Path; from toys import Slow; from headrace.datastores import Loader", main.__dict__)
for _ in range(3):
    exec(compile(cell, "<cell>", "exec"), main.__dict__)
import gc, psutil, time
gc.collect()
deadline = time.monotonic() + 5
def alive():
    pids = [int(path.name) for path in Path({folder!r}).iterdir()]
    return sum(psutil.pid_exists(pid) and pid != psutil.Process().pid for pid in pids)
while alive() > 2 and time.monotonic() < deadline:
    time.sleep(0.05)
print(alive())
"""


def test_a_cell_that_is_run_again_leaves_only_its_last_workers(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    script = tmp_path / "notebook.py"
    support = str(Path(__file__).parents[1] / "support")
    cells = _CELLS.format(folder=str(tmp_path / "pids"))
    script.write_text(f"import sys\nsys.path.insert(0, {support!r})\n{cells}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("2\n", "")
    _assert_gone(0, tmp_path, 5, count=7)  # the script itself, and two workers each time


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_ends_everything_quietly(tmp_path: Path, method: str) -> None:
    process = _run_script(tmp_path, method, "pass")
    for worker in psutil.Process(process.pid).children(recursive=True):
        if _is_worker(worker):
            worker.send_signal(signal.SIGINT)  # a terminal sends it to the whole group
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=5)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1, errors
    _assert_gone(process.pid, tmp_path, 5)


_STARTING = """
import os, signal, sys, threading, time
sys.path.insert(0, {support!r})
from toys import Noise
from headrace.datastores import Loader
os.setpgrp()  # what a terminal does: Ctrl-C goes to all of a group, also to children that are starting
loader = Loader(Noise(), 8, workers=2, start_method={method!r})
threading.Timer({delay}, lambda: os.killpg(0, signal.SIGINT)).start()
deadline = time.monotonic() + 30
while time.monotonic() < deadline:
    for batch in loader:
        pass
"""


@pytest.mark.parametrize(("method", "delay"), [("fork", 0.0), ("forkserver", 0.2), ("forkserver", 1.0), ("spawn", 0.5)])
def test_ctrl_c_while_workers_start_is_neither_lost_nor_noisy(tmp_path: Path, method: str, delay: float) -> None:
    script = tmp_path / "script.py"
    support = str(Path(__file__).parents[1] / "support")
    script.write_text(_STARTING.format(support=support, method=method, delay=delay))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.stderr.count("Traceback") == 1, done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_kill_nine_of_the_trainer_ends_the_workers(tmp_path: Path, method: str) -> None:
    process = _run_script(tmp_path, method, "pass")
    process.kill()
    process.communicate(timeout=5)
    _assert_gone(process.pid, tmp_path, 5)


@pytest.mark.parametrize("action", ["sys.exit(0)", "break"])
def test_the_interpreter_ends_with_a_loader_open(tmp_path: Path, action: str) -> None:
    process = _run_script(tmp_path, "forkserver", action)
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")
    _assert_gone(process.pid, tmp_path, 1)
