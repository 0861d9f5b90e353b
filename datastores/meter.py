"""Where the time of a loader goes, and what would make it faster."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .clock import Stage
from .counts import show_count

__all__ = ["LoaderReport", "Meter", "usable_cores"]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, repr=False)
class LoaderReport:
    """What a loader did, and what limits it; ``str(report)`` is a small table, ``report.verdict`` one line.

    Args:
        batches: handed out, without the first one of an iteration, which pays for the start.
        rows: in them.
        wait_seconds: for which the consumer waited for them.
        away_seconds: for which the consumer was busy with other things.
        stage_seconds: name of a stage -> seconds per row that workers spend on it.
        queue: batches that were ready when the consumer asked for one, on average.
        workers: background processes now; 0: this process makes the batches.
        cores: that this process may use.
        notes: what else there is to say, a line each: samples that could not be made, and why ``workers="auto"`` has
            come to its number.
    """

    batches: int
    rows: int
    wait_seconds: float
    away_seconds: float
    stage_seconds: dict[str, float]
    queue: float
    workers: int
    cores: int
    notes: tuple[str, ...] = ()

    @property
    def rows_per_second(self) -> float:
        """Rows per second of wall time."""
        seconds = self.wait_seconds + self.away_seconds
        return self.rows / seconds if seconds else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the consumer's time that it waited, in [0, 1]."""
        seconds = self.wait_seconds + self.away_seconds
        return self.wait_seconds / seconds if seconds else 0.0

    @property
    def workers_needed(self) -> int:
        """Workers that would keep up with a consumer that never waits, with a tenth to spare."""
        busy = 1.1 * self.rows * sum(self.stage_seconds.values())
        return max(1, math.ceil(busy / self.away_seconds)) if self.away_seconds else self.cores

    @property
    def verdict(self) -> str:
        """What limits the run, by how much, and what to do about it."""
        if not self.batches:
            return "no batch was measured: the first one of each epoch pays for the start and does not count"
        wait = f"data wait {100 * self.wait_share:.1f} %"
        if self.wait_share < 0.05:
            return f"the consumer is the limit: {wait}"
        stage = max(self.stage_seconds, key=lambda name: self.stage_seconds[name])
        needed, feeding = self.workers_needed, show_count(self.workers_needed, "worker")
        cores = show_count(self.cores, "core")
        if not self.workers:
            return f"{wait}: batches are made while the consumer waits; background workers would make them meanwhile"
        if needed <= self.workers:
            now = show_count(self.workers, "worker")
            return f"{wait}, though {now} could feed this step time: start-up, or a slow machine"
        if self.workers >= self.cores:
            used = f"all {cores} are" if self.cores > 1 else "the only core is"
            return f"{stage}-bound: {wait}; {used} in use, cheaper images or more cores would help"
        room = "" if needed <= self.cores else f" (this machine has {cores})"
        return f"{stage}-bound: {wait}; {feeding} would feed this step time{room}, now {self.workers}"

    def __str__(self) -> str:
        lines = [f"{name:<12}{1e6 * cost:10.0f} us per sample" for name, cost in self.stage_seconds.items()]
        workers = show_count(self.workers, "worker")
        speed = f"{self.rows_per_second:10.0f} samples/s, {workers}, {self.queue:.1f} batches ready"
        return "\n".join([*lines, f"{'all':<12}{speed}", *self.notes, self.verdict])

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows


class Meter:
    """Collects what a ``LoaderReport`` says; costs about a microsecond per batch."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.wait_seconds = 0.0
        self.away_seconds = 0.0
        self._made = 0
        self._stage_seconds = [0.0] * len(Stage)
        self._ready = 0
        self._at = 0.0
        self._running = False

    def start(self) -> None:
        """An iteration starts: its first batch is not counted."""
        self._running = False

    def asked(self, ready: int) -> None:
        """The consumer asks for a batch, and ``ready`` of those that were ordered are done."""
        now = time.perf_counter()
        if self._running:
            self.away_seconds += now - self._at
            self._ready += ready
        self._at = now

    def given(self, rows: int) -> None:
        """The consumer gets a batch."""
        now = time.perf_counter()
        if self._running:
            self.wait_seconds += now - self._at
            self.batches += 1
            self.rows += rows
        self._at, self._running = now, True

    def add_task(self, rows: int, seconds: Sequence[float]) -> None:
        """Add what one task of ``rows`` rows took, per stage."""
        self._made += rows
        self._stage_seconds = [a + b for a, b in zip(self._stage_seconds, seconds, strict=True)]

    @property
    def row_seconds(self) -> float:
        """Seconds that a row has taken, all stages together; 0 before the first one."""
        return sum(self._stage_seconds) / max(self._made, 1)

    def report(self, workers: int) -> LoaderReport:
        """Return what was collected so far."""
        stages = {stage.name.lower(): self._stage_seconds[stage] / max(self._made, 1) for stage in Stage}
        queue = self._ready / self.batches if self.batches else 0.0
        return LoaderReport(
            self.batches, self.rows, self.wait_seconds, self.away_seconds, stages, queue, workers, usable_cores()
        )
