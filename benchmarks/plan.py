"""How long it takes to plan an epoch, and a batch of it, by number of samples: time and peak memory.

``python benchmarks/plan.py`` takes about ten seconds.
"""

import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from headrace.datastores.plan import Plan

CASES = [(10**6, 1_000), (10**9, 10_000), (10**9, 1_000)]  # samples, samples per shard


def main() -> None:
    print(f"{'samples':>14}{'shards':>10}  {'shuffle':8}{'epoch ms':>10}{'batch us':>10}{'peak MB':>9}")
    for samples, per_shard in CASES:
        for shuffle in ("global", "window"):
            sizes = np.full(samples // per_shard, per_shard)

            def plan(sizes: np.ndarray = sizes, shuffle: str = shuffle) -> Plan:
                return Plan(shard_sizes=sizes, batch_size=256, shuffle=shuffle, streams=8)  # type: ignore[arg-type]

            epoch = 1e3 * median(lambda plan=plan: plan().epoch(3), 5)  # type: ignore[misc]
            planned = plan()
            order = planned.epoch(3)
            batch = 1e6 * median(lambda p=planned, o=order: p.batch(3, 1000, order=o), 200)  # type: ignore[misc]
            tracemalloc.start()
            fresh = plan()
            fresh.batch(3, 1000)
            peak = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            print(f"{samples:>14,}{len(sizes):>10,}  {shuffle:8}{epoch:>10.1f}{batch:>10.0f}{peak:>9.1f}")


def median(call: Callable[[], object], times: int) -> float:
    """Seconds of one call, the median of several."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
