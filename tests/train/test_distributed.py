"""Training on several ranks, in real processes on this machine."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import rank_jobs as jobs
from models import Pairs
from ranks import run_ranks, started
from torch import nn

from headrace.datastores import Loader
from headrace.errors import ConfigError
from headrace.train import evaluate
from headrace.train.checkpoint import CheckpointFolder
from headrace.train.checks import check_synchronized
from headrace.train.distributed import Place, find_place

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


def _close(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize(
    "settings",
    [
        {},  # of 40 samples in batches of 9, the last has 4: with 3 ranks the last one has none of them
        {"last_batch": "drop", "batch_size": 7, "validate_every": 3, "micro_batch": 2, "overlap": True},
        {"last_batch": "pad", "batch_size": 11, "patience": 1, "max_steps": 9},
    ],
)
def test_ranks_train_what_one_process_trains(settings: dict[str, Any]) -> None:
    alone = jobs.train_plain(settings)
    for size in (2, 3):
        found = run_ranks(jobs.train_plain, size, settings)
        assert len({rank["sha"] for rank in found}) == 1
        for rank in found:
            _close(rank["weights"], alone["weights"])
            assert len(rank["rows"]) == len(alone["rows"])
            for row, expected in zip(rank["rows"], alone["rows"], strict=True):
                assert row == pytest.approx(expected, rel=1e-9)
            assert {name: rank[name] for name in ("step", "reason", "samples", "group is left")} == {
                name: alone[name] for name in ("step", "reason", "samples", "group is left")
            }
            assert rank["best"] == pytest.approx(alone["best"], rel=1e-9)
        assert len({str(rank["rows"]) for rank in found}) == 1


@pytest.mark.parametrize(("last_batch", "batch_size"), [("keep", 13), ("drop", 8)])
def test_batch_norms_statistics_are_the_same_on_all_ranks_and_dropout_is_not(last_batch: str, batch_size: int) -> None:
    first, second = (run_ranks(jobs.train_model, 2, last_batch, batch_size) for _ in range(2))
    assert first == second
    assert first[0][0] == first[1][0]  # weights and buffers
    assert first[0][1] != first[1][1]
    if last_batch == "keep":  # one row is left over
        assert len(first[1][1]) == len(first[0][1]) - 3


def test_a_loop_of_ones_own_needs_no_thought_of_ranks_without_rows() -> None:
    _, ids = jobs.own_loop()
    found = run_ranks(jobs.own_loop, 3)
    assert len({sha for sha, _ in found}) == 1
    parts = zip(*(rank_ids for _, rank_ids in found), strict=True)
    assert [[*first, *second, *third] for first, second, third in parts] == ids
    assert [] in found[2][1]


@pytest.mark.parametrize(("count", "batch_size"), [(1, 4), (2, 1), (3, 3), (7, 3), (8, 4), (20, 128)])
def test_an_evaluation_sees_every_sample_once_in_order(count: int, batch_size: int) -> None:
    for size in (1, 2, 3):
        found = run_ranks(jobs.measure_numbers, size, count, batch_size)
        for scores, outputs, targets in found:
            assert targets == list(range(count))
            assert outputs == [2 * number for number in range(count)]
            assert scores["count"] == count
            assert scores["loss"] == pytest.approx(sum(n * n for n in range(count)) / count)
        assert all(rank == found[0] for rank in found)


def test_rows_of_any_dtype_are_merged() -> None:
    for same, flat, error in run_ranks(jobs.merge, 3):
        assert same == [True] * 5
        assert flat == [1, 2, 2]
        assert "have other shapes on other ranks" in error


def test_gradients_are_added_up_bucket_by_bucket() -> None:
    for found in run_ranks(jobs.sum_gradients, 3):
        assert found["loss"] == 0.5 + 1.5 + 2.5
        assert found["gradients"] == [[6.0], [0.0, 1.0, 2.0, 3.0], None, [6.0], [111.0]]
        assert found["strides"] == (1, 3)  # the gradient's own memory is kept


def test_gradients_travel_while_the_backward_pass_goes_on() -> None:
    assert run_ranks(jobs.overlapped, 3, False) == [(1, True, "")] * 3
    for early, _, error in run_ranks(jobs.overlapped, 2, True):
        assert early == 1
        assert error.startswith("a gradient changed while it was added up")


def test_a_group_that_is_there_is_used_and_left_alone() -> None:
    found = run_ranks(jobs.with_own_group, 2)
    assert [still_there for still_there, _ in found] == [True, True]
    assert found[0][1] == pytest.approx(jobs.train_plain({})["rows"][-1][2], rel=1e-9)


def test_ranks_may_come_together_again() -> None:
    found = run_ranks(jobs.twice_and_evaluate, 2)
    assert found[0] == found[1]
    assert found[0][0] is True
    assert found[0][1]["loss"] == pytest.approx(evaluate_plain(), rel=1e-9)


def evaluate_plain() -> float:
    model = jobs.plain_model()
    return evaluate(model, Pairs(), nn.functional.cross_entropy, prepare=jobs.doubled, device="cpu")["loss"]


@pytest.mark.parametrize(
    ("event", "step", "who", "last"),
    [("start", 0, 1, 0), ("step", 4, 2, 4), ("validation", 6, 0, 6), ("epoch", 5, 1, 5)],
)
def test_one_rank_that_says_stop_stops_all_after_the_same_step(event: str, step: int, who: int, last: int) -> None:
    found = run_ranks(jobs.stop_by_one, 3, event, step, who)
    assert {(steps, reason) for steps, reason, _ in found} == {(last, "stopped by on_event")}
    assert len(set(found)) == 1


@pytest.mark.parametrize(("moment", "last"), [("step", 4), ("validation", 10)])
def test_ctrl_c_on_one_rank_ends_all_after_the_same_step(moment: str, last: int) -> None:
    found = run_ranks(jobs.interrupted_run, 2, None, signal.SIGINT, moment, 1)
    assert {(steps, reason) for steps, reason, _ in found} == {(last, "interrupted")}
    assert len(set(found)) == 1


def test_sigterm_on_one_rank_saves_and_ends_all_with_143(tmp_path: Path) -> None:
    with started(jobs.interrupted_run, 3, f"{tmp_path}/run", signal.SIGTERM, "step", 2) as ranks:
        assert [rank.outcome() for rank in ranks] == ["", "", ""]
        assert [rank.process.exitcode for rank in ranks] == [143] * 3
    assert CheckpointFolder(tmp_path / "run").steps() == [4]


def test_a_bad_loss_of_one_rank_stops_all_before_the_weights_change() -> None:
    found = run_ranks(jobs.bad_loss, 3, 1)
    assert {(steps, reason) for steps, reason, _ in found} == {(2, "loss not finite")}
    warnings = [caught[0] for _, _, caught in found]
    assert all(warning.startswith("the loss of step 2 of epoch 0 is nan; its samples are ") for warning in warnings)
    assert [warning.endswith("another rank's, which names them") for warning in warnings] == [True, False, True]


@pytest.mark.parametrize("how", ["error", "kill", "hang"])
def test_a_rank_that_goes_away_ends_the_others_with_an_error(how: str) -> None:
    with started(jobs.failing, 3, how, 1) as ranks:
        if how == "hang":
            others = [ranks[0].outcome(), ranks[2].outcome()]
        else:
            first, second, third = (rank.outcome() for rank in ranks)
            others = [first, third]
            assert second == {"error": "ZeroDivisionError: third step", "kill": ""}[how]
    assert [other.startswith("RankError: rank ") for other in others] == [True, True], others
    assert "that rank died, left the run or did not answer in time" in others[0]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("seed", "position: here {"),
        ("end", "end: here "),
        ("data", "position: here {"),
        ("model", "model: here {'1.weight'"),
    ],
)
def test_ranks_that_differ_are_told_so(what: str, message: str) -> None:
    for (found,) in run_ranks(jobs.differing, 2, what):
        assert found.startswith("the ranks do not agree about the run, here on rank ")
        assert message in found


def test_what_only_rank_0_finds_wrong_ends_the_others_too(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("another run's")
    first, second = run_ranks(jobs.with_a_csv_file, 2, f"{tmp_path}/history.csv")
    assert first.startswith("DestinationError: ")
    assert second.startswith("RankError: rank 1 of 2 lost another rank")


def test_a_ready_loader_must_be_made_for_its_rank() -> None:
    _, (found,) = run_ranks(jobs.with_a_loader_for_one, 2)
    assert found.startswith(
        "the Loader for training was made with rank=0 and world_size=1, but this process is rank 1 of 2"
    )


def test_an_environment_is_read_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_place() == Place(0, 1, None)
    monkeypatch.setenv("MASTER_ADDR", "somewhere")  # some clusters set it for everybody
    assert find_place() == Place(0, 1, None)
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ConfigError, match="has RANK, MASTER_ADDR, but lacks WORLD_SIZE, MASTER_PORT: start the script"):
        find_place()
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ConfigError, match="RANK=3 and WORLD_SIZE=3"):
        find_place()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_place() == Place(3, 4, 1)
    monkeypatch.setenv("LOCAL_RANK", "one")
    with pytest.raises(ConfigError, match="LOCAL_RANK='one'"):
        find_place()


def test_synchronized_batch_norm_wants_all_ranks_in_each_pass() -> None:
    model = nn.Sequential(nn.SyncBatchNorm(3))
    loaders = {name: Loader(Pairs(), 9, last_batch=name, world_size=2) for name in ("drop", "keep")}
    check_synchronized(model, loaders["drop"], None)
    check_synchronized(model, Loader(Pairs(), 9, last_batch="keep"), 4)
    with pytest.raises(ConfigError, match="micro_batch cuts uneven parts"):
        check_synchronized(model, loaders["drop"], 4)
    with pytest.raises(ConfigError, match='last_batch="keep" gives a rank fewer'):
        check_synchronized(model, loaders["keep"], None)
    check_synchronized(nn.Sequential(nn.BatchNorm2d(3)), loaders["keep"], None)


class _Synchronizing(jobs.Collector):
    sync_on_compute = True


def test_a_metric_that_would_count_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(_VARIABLES, ("0", "2", "0", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"'count' adds up the ranks by itself.* sync_on_compute=False"):
        evaluate(nn.Identity(), Pairs(), metrics={"count": _Synchronizing()}, device="cpu")


def _counted(folder: Path, fleets: int) -> dict[int, list[int]]:
    """The samples of each step, over all ranks, in the run of which it counted: the last one that did it."""
    done: dict[int, list[int]] = {}
    for fleet in range(fleets):
        steps: dict[int, dict[int, list[int]]] = {}
        for path in folder.glob(f"fleet{fleet}-rank*"):
            for line in path.read_text().splitlines():
                step, *ids = map(int, line.split())
                steps.setdefault(step, {})[int(path.name.partition("-rank")[2])] = ids
        for step, parts in steps.items():
            done[step] = [one for rank in sorted(parts) for one in parts[rank]]
    return done


@pytest.mark.timeout(240)
def test_kill_nine_of_all_ranks_and_going_on_with_more_of_them(tmp_path: Path) -> None:
    """1, then 2, then 3 ranks: every sample once in each epoch, and the weights of a run that was never broken."""
    rng, epochs = random.Random(7), 8
    whole = jobs.killed_run(str(tmp_path / "whole"), 0, epochs, 0, 0.0)
    for fleet, size in enumerate((1, 2, 3)):
        with started(
            jobs.killed_run, size, str(tmp_path / "broken"), fleet, epochs, fleet % 2, 0.03 * (size < 3)
        ) as ranks:
            if size < 3:
                newest = CheckpointFolder(tmp_path / "broken" / "run")
                target = (newest.steps() or [0])[-1] + rng.randrange(4, 9)
                while not [step for step in newest.steps() if step >= target]:
                    time.sleep(0.01)
                time.sleep(rng.uniform(0, 0.1))
                for rank in ranks:
                    rank.process.kill()
            outcomes = [rank.outcome() for rank in ranks]
    assert len({outcome[0] for outcome in outcomes}) == 1
    _close(outcomes[0][1], whole[1])
    steps = _counted(tmp_path / "broken", 3)
    assert sorted(steps) == list(range(1, epochs * 5 + 1))
    for epoch in range(epochs):
        assert sorted(one for step in range(1, 6) for one in steps[5 * epoch + step]) == list(range(40))
    assert steps == _counted(tmp_path / "whole", 1)


def test_a_run_that_is_continued_on_as_many_ranks_is_the_same_to_the_bit(tmp_path: Path) -> None:
    whole = run_ranks(jobs.broken_at, 3, f"{tmp_path}/whole", 0)
    assert run_ranks(jobs.broken_at, 3, f"{tmp_path}/run", 7) == [()] * 3
    assert run_ranks(jobs.broken_at, 3, f"{tmp_path}/run", 0) == whole
    assert len(set(whole)) == 1
