"""Samples that cannot be made: substituted, skipped, written down, and not too many of them."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from toys import Deadly, Failing, Hanging, Noise, digest

from headrace.augment.random import Draw
from headrace.datastores import Loader, OnError
from headrace.datastores.incidents import substitutes
from headrace.datastores.schema import Schema
from headrace.errors import ConfigError, SampleError, WorkerError

BAD = {3, 17, 50, 99}


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


@given(sizes=SIZES, seed=st.integers(0, 2**64 - 1), data=st.data())
def test_substitutes_are_arithmetic_and_near(sizes: list[int], seed: int, data: st.DataObject) -> None:
    sample = data.draw(st.integers(0, sum(sizes) - 1))
    found = list(substitutes(sample, Draw(seed, 3), np.array(sizes)))
    assert found == list(substitutes(sample, Draw(seed, 3), np.array(sizes)))
    assert all(0 <= other < sum(sizes) and other != sample for other in found)
    ends = np.cumsum(sizes)
    shard = int(np.searchsorted(ends, sample, "right"))
    assert sizes[shard] < 3 or ends[shard] - sizes[shard] <= found[0] < ends[shard], "the own shard comes first"
    assert found or sum(sizes) < 20, "a dataset of more samples always has a substitute"


def test_substitutes_differ_by_sample_and_epoch() -> None:
    sizes = np.array([10**6])
    firsts = {next(substitutes(sample, Draw(0, epoch), sizes)) for sample in range(50) for epoch in range(4)}
    assert len(firsts) == 200


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_substitutes_are_the_same_for_any_workers(workers: int, tmp_path: Path) -> None:
    with Loader(Failing(BAD), 16, last_batch="keep", on_error="substitute") as inline:
        expected = digest(inline)
    policy = OnError("substitute", log=tmp_path / "bad.jsonl")
    with Loader(Failing(BAD), 16, last_batch="keep", on_error=policy, workers=workers, start_method="fork") as loader:
        batches = list(loader)
    assert digest(batches) == expected
    assert loader.incidents == 4
    ids = np.concatenate([batch.ids.numpy() for batch in batches])
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    assert ids.tolist() == labels.tolist(), "the ids are those of what is really there"
    assert len(ids) == 100
    assert not set(ids.tolist()) & BAD
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {line["sample"] for line in lines} == BAD
    assert lines == sorted(lines, key=lambda line: (line["step"], line["row"]))
    one = next(line for line in lines if line["sample"] == 17)
    assert one["where"] == "sample 17: key 'k17' in shard s2.tar"
    assert one["reason"] == "ZeroDivisionError: a bad day"
    assert ids[one["step"] * 16 + one["row"]] == one["substitute"]


def test_ranks_substitute_alike() -> None:
    whole = list(Loader(Failing(BAD), 16, on_error="substitute"))
    ranks = [list(Loader(Failing(BAD), 16, on_error="substitute", rank=r, world_size=3)) for r in range(3)]
    for step, batch in enumerate(whole):
        assert [i for rank in ranks for i in rank[step].ids.tolist()] == batch.ids.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_rows_are_gone(workers: int) -> None:
    settings: dict[str, Any] = {"workers": workers, "start_method": "fork", "shuffle": "never", "last_batch": "keep"}
    with Loader(Failing(BAD), 16, on_error="skip", **settings) as loader:
        batches = list(loader)
    assert [i for batch in batches for i in batch.ids.tolist()] == [i for i in range(100) if i not in BAD]
    assert [len(batch) for batch in batches] == [15, 15, 16, 15, 16, 16, 3]
    assert all(batch.labels.tolist() == batch.ids.tolist() and len(batch.images) == len(batch) for batch in batches)


KINDS: list[type[Exception]] = [OSError, ValueError, SyntaxError, TypeError, StopIteration]


@pytest.mark.parametrize("kind", [*KINDS, Image.DecompressionBombError])
@pytest.mark.parametrize("workers", [0, 1])
def test_every_kind_of_error_counts(kind: type[Exception], workers: int) -> None:
    with Loader(Failing({5}, kind("x")), 20, on_error="substitute", workers=workers, start_method="fork") as loader:
        assert sum(len(batch) for batch in loader) == 100
        assert loader.incidents == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_stop_the_run(workers: int) -> None:
    policy = OnError("substitute", limit=3)
    with (
        Loader(Failing(BAD), 10, on_error=policy, workers=workers, start_method="fork") as loader,
        pytest.raises(SampleError, match=r"4 samples could not be made, and on_error accepts 3; the last one: sample "),
    ):
        list(loader)


def test_a_dataset_that_is_bad_as_a_whole_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(Loader(Failing(range(1, 100)), 100, on_error="substitute"))
    assert any("substitutes failed too" in note for note in caught.value.__notes__)


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    policy = OnError("substitute", log=tmp_path)
    with pytest.raises(ConfigError, match=r"the log of on_error, .* cannot be written"):
        list(Loader(Failing(BAD), 10, on_error=policy))
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        OnError(limit=-1)
    with pytest.raises(ConfigError, match="whole number of at least 0, got 'many'"):
        OnError(limit="many")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the folder of on_error's log, /nowhere/log, does not exist"):
        OnError(log="/nowhere/log")


def test_a_sample_that_kills_workers_is_substituted(tmp_path: Path) -> None:
    data = Deadly(victim=20, times=99, tally=tmp_path / "tally")
    policy = OnError("substitute", log=tmp_path / "bad.jsonl")
    with Loader(data, 16, last_batch="keep", workers=2, start_method="fork", on_error=policy) as loader:
        batches = list(loader)
    ids = [i for batch in batches for i in batch.ids.tolist()]
    assert len(ids) == 100
    assert 20 not in ids
    line = json.loads((tmp_path / "bad.jsonl").read_text())
    assert line["sample"] == 20
    assert "killed 3 background workers, the last one by SIGKILL" in line["reason"]
    quiet = [b.images for b in Loader(Noise(), 16, last_batch="keep")]
    different = [int(row) for a, b in zip(quiet, batches, strict=True) for row in (a != b.images).flatten(1).any(1)]
    assert sum(different) == 1


def test_a_worker_that_hangs_is_replaced() -> None:
    with Loader(Hanging({7}), 50, workers=2, start_method="fork", timeout=0.3, on_error="skip") as loader:
        ids = [i for batch in loader for i in batch.ids.tolist()]
    assert sorted(ids) == [i for i in range(100) if i != 7]
    with (
        Loader(Hanging({7}), 50, workers=1, start_method="fork", timeout=0.3) as loader,
        pytest.raises(WorkerError, match=r"sample 7 of Hanging killed 3 .* because a task took more than 0.3 s"),
    ):
        list(loader)


def test_samples_that_all_kill_workers_do_not_stand_in_for_each_other(tmp_path: Path) -> None:
    class Killers(Noise):
        def sample(self, index: int, draw: Draw) -> dict[str, object]:
            if index < 2:
                os._exit(3)
            return super().sample(index, draw)

        def schema(self) -> Schema:
            return Noise().schema()

    data = Killers(samples=40, shards=20)  # two of one shard
    with Loader(data, 40, workers=1, start_method="fork", on_error=OnError("substitute", limit=5)) as loader:
        batch = next(iter(loader))
    assert len(batch) == 40
    assert not {0, 1} & set(batch.ids.tolist())
    assert 2 <= loader.incidents <= 3, "one may have been tried for the other once"
