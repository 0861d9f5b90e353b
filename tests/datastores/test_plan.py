"""The plan: every sample once, whatever the ranks, streams and windows; golden values; O(1) memory."""

import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datastores.plan import Plan
from headrace.errors import ConfigError

SHUFFLES = ("global", "window", "once", "never")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
    streams = draw(st.integers(1, 5))
    batch_size = streams * draw(st.integers(1, 8))
    last_batch = draw(st.sampled_from(("keep", "pad", "drop")))
    if sum(sizes) < batch_size and last_batch == "drop":
        last_batch = "keep"
    return Plan(
        shard_sizes=np.array(sizes),
        batch_size=batch_size,
        seed=draw(st.integers(0, 2**64 - 1)),
        shuffle=draw(st.sampled_from(SHUFFLES)),
        streams=streams,
        window=draw(st.integers(1, 6)),
        last_batch=last_batch,
    )


@given(plan=plans())
def test_the_samples_of_a_step_are_known_without_it(plan: Plan) -> None:
    assert [plan.samples_in(n) for n in range(plan.num_steps)] == [batch.valid.sum() for batch in plan.batches(0)]


@settings(max_examples=300)
@given(plan=plans(), epoch=st.integers(0, 5))
def test_every_sample_exactly_once(plan: Plan, epoch: int) -> None:
    batches = [plan.batch(epoch, step) for step in range(plan.num_steps)]
    seen = np.concatenate([b.ids[b.valid] for b in batches]) if batches else np.zeros(0, np.int64)
    assert len(set(seen.tolist())) == len(seen)
    if plan.last_batch == "drop":
        assert len(seen) == plan.num_samples // plan.batch_size * plan.batch_size
    else:
        assert sorted(seen.tolist()) == list(range(plan.num_samples))
    full = batches if plan.last_batch == "pad" else batches[: plan.num_samples // plan.batch_size]
    assert all(len(b.ids) == plan.batch_size for b in full)
    assert all(b.ids.min() >= 0 and b.ids.max() < plan.num_samples for b in batches)


def same(first: Any, second: Any) -> bool:
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a.ids, b.ids) and np.array_equal(a.valid, b.valid) for a, b in pairs)


@settings(max_examples=100, deadline=None)
@given(plan=plans(), epoch=st.integers(0, 3), data=st.data())
def test_an_epoch_is_its_batches(plan: Plan, epoch: int, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, plan.batch_size))
    rank, start = data.draw(st.integers(0, world_size - 1)), data.draw(st.integers(0, plan.num_steps))
    alone = [plan.batch(epoch, step, rank=rank, world_size=world_size) for step in range(start, plan.num_steps)]
    assert same(plan.batches(epoch, start, rank=rank, world_size=world_size), alone)


@pytest.mark.parametrize("batch_size", [500, 700, 3000])
def test_a_long_epoch_is_its_batches(batch_size: int) -> None:
    plan = Plan(shard_sizes=np.full(9, 1000), batch_size=batch_size, last_batch="keep")
    assert same(plan.batches(2, 1), [plan.batch(2, step) for step in range(1, plan.num_steps)])


@settings(max_examples=200)
@given(plan=plans(), epoch=st.integers(0, 3), data=st.data())
def test_ranks_share_the_same_batch(plan: Plan, epoch: int, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, plan.batch_size))
    for step in range(plan.num_steps):
        whole = plan.batch(epoch, step)
        parts = [plan.batch(epoch, step, rank=r, world_size=world_size) for r in range(world_size)]
        assert np.concatenate([p.ids for p in parts]).tolist() == whole.ids.tolist()
        assert np.concatenate([p.valid for p in parts]).tolist() == whole.valid.tolist()


@settings(max_examples=100)
@given(plan=plans())
def test_a_kept_order_gives_the_same_batches(plan: Plan) -> None:
    order = plan.epoch(2)
    for step in range(plan.num_steps):
        assert plan.batch(2, step, order=order).ids.tolist() == plan.batch(2, step).ids.tolist()


@pytest.mark.parametrize("shuffle", ["global", "window"])
def test_epochs_and_seeds_differ(shuffle: Any) -> None:
    plan = Plan(shard_sizes=np.full(10, 50), batch_size=50, shuffle=shuffle, window=3)
    orders = {tuple(p.batch(e, 0).ids.tolist()) for p in (plan, replace(plan, seed=1)) for e in range(3)}
    assert len(orders) == 6


def test_once_repeats_its_order_and_never_keeps_the_stored_one() -> None:
    once = Plan(shard_sizes=np.array([30, 70]), batch_size=100, shuffle="once")
    assert once.batch(0, 0).ids.tolist() == once.batch(7, 0).ids.tolist() != list(range(100))
    assert replace(once, shuffle="never").batch(3, 0).ids.tolist() == list(range(100))


def test_a_window_opens_few_shards_at_a_time() -> None:
    plan = Plan(shard_sizes=np.full(64, 100), batch_size=100, shuffle="window", window=4)
    for step in range(plan.num_steps):
        assert len(np.unique(plan.batch(0, step).ids // 100)) <= 4 + (step % 4 == 3)
    first = [set((plan.batch(e, 0).ids // 100).tolist()) for e in range(2)]
    assert first[0] != first[1], "another epoch must draw other shards into a window"


def test_each_rank_reads_only_its_own_streams() -> None:
    plan = Plan(shard_sizes=np.full(40, 25), batch_size=40, shuffle="window", streams=8, window=2)
    shards: list[set[int]] = []
    for rank in range(4):
        ids = [plan.batch(e, s, rank=rank, world_size=4).ids for e in range(2) for s in range(plan.num_steps)]
        shards.append(set((np.concatenate(ids) // 25).tolist()))
    assert all(len(s) <= 11 for s in shards), "10 whole shards and at most one that is cut"
    assert sum(map(len, shards)) <= 44


# The order is part of the format: a saved position is only worth something while these stay as they are.
GOLDEN = {
    "global": [2, 28, 31, 14, 19, 24, 22, 3],
    "window": [0, 3, 2, 4, 15, 1, 14, 13],
    "streams": [27, 25, 7, 8, 12, 18, 2, 24],
    "billion": [326868777, 517973732, 66162640, 825069318],
}


def test_golden_order() -> None:
    sizes = np.array([5, 8, 3, 9, 7])
    common = Plan(shard_sizes=sizes, batch_size=8, seed=42)
    assert common.batch(1, 2).ids.tolist() == GOLDEN["global"]
    assert replace(common, shuffle="window", window=2).batch(1, 0).ids.tolist() == GOLDEN["window"]
    assert replace(common, shuffle="window", window=2, streams=4).batch(0, 1).ids.tolist() == GOLDEN["streams"]
    assert replace(common, last_batch="pad", shuffle="never", streams=2).batch(0, 3).valid.tolist() == [True] * 8
    billion = Plan(shard_sizes=np.full(1000, 10**6), batch_size=4, seed=7)
    assert billion.batch(3, 123_456_789).ids.tolist() == GOLDEN["billion"]


def test_a_billion_samples_plan_in_little_time_and_memory() -> None:
    started = time.perf_counter()
    tracemalloc.start()
    plan = Plan(shard_sizes=np.full(100_000, 10_000), batch_size=1024, shuffle="window", streams=16)
    plan.batch(3, 900_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert time.perf_counter() - started < 20, "benchmarks/plan.py measures it; this only catches O(samples)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"streams": -1}, "streams must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"seed": -1}, "seed must be in"),
        ({"shuffle": "always"}, "shuffle must be one of"),
        ({"last_batch": "wrap"}, "last_batch must be one of"),
        ({"streams": 3}, "batch_size 4 is not a multiple of streams 3"),
        ({"batch_size": 11}, "batch_size 11 is larger than the dataset"),
        ({"shard_sizes": np.array([0, 0])}, "no samples"),
    ],
)
def test_bad_settings_say_what_to_change(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**{"shard_sizes": np.array([10]), "batch_size": 4, **arguments})


def test_steps_and_ranks_out_of_range() -> None:
    plan = Plan(shard_sizes=np.array([10]), batch_size=4)
    with pytest.raises(ConfigError, match="step 2 is outside of an epoch of 2 steps"):
        plan.batch(0, 2)
    with pytest.raises(ConfigError, match="rank 4 of world size 4"):
        plan.batch(0, 0, rank=4, world_size=4)
    with pytest.raises(ConfigError, match="world size 5"):
        plan.batch(0, 0, rank=0, world_size=5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            {"shuffle": True},
            "shuffle must be one of 'global', 'window', 'once', 'never', got True: 'global', the default",
        ),
        ({"shuffle": False}, "'never' is what False means"),
        ({"shuffle": "yes"}, "shuffle must be one of 'global', 'window', 'once', 'never', got 'yes'$"),
        ({"last_batch": True}, "last_batch must be one of 'drop', 'pad', 'keep', got True: 'drop', the default"),
        ({"last_batch": "fill"}, "last_batch must be one of 'drop', 'pad', 'keep', got 'fill'$"),
    ],
)
def test_choices_are_quoted_and_words_of_others_translated(setting, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(shard_sizes=np.array([10]), batch_size=2, **setting)


def test_one_is_one() -> None:
    with pytest.raises(ConfigError, match=r"is larger than the dataset \(1 sample\)"):
        Plan(shard_sizes=np.array([1]), batch_size=2)
