"""``workers="auto"``: finds the number of workers that feeds the consumer, while it runs."""

import sys

from .counts import show_count
from .meter import LoaderReport, Meter, usable_cores

__all__ = ["Tuner"]

_WINDOW_SECONDS = 1.0
_WINDOW_BATCHES = 8
_WAIT = 0.05  # share of waiting that is worth another worker
_GAIN = 1.03  # a worker that brings less is sent home again


class Tuner:
    """Climbs the hill: more workers while the consumer waits and they help, fewer when fewer would do.

    Args:
        meter: of the loader.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._most = usable_cores()
        self._least = 1
        self._since = meter.report(0)
        self._last: LoaderReport | None = None  # the last window
        self._before: tuple[int, float] | None = None  # workers and speed before the change that is on trial
        self.first = max(1, min(4, self._most - 1))

    def advise(self, workers: int) -> int:
        """Return how many workers there should be; looks closer about once a second."""
        now = self._meter.report(workers)
        window = _between(self._since, now)
        if window.batches < _WINDOW_BATCHES or window.wait_seconds + window.away_seconds < _WINDOW_SECONDS:
            return workers
        self._since, self._last = now, window
        wanted = self._judge(workers, window) if self._before else self._change(workers, window)
        if wanted != workers:
            number = show_count(wanted, "worker")
            sys.stderr.write(f"headrace: {number} instead of {workers} ({window.verdict})\n")
        return wanted

    def reason(self, workers: int) -> str:
        """Say why there are as many workers as there are."""
        if self._last is None:
            return f"too little was measured to judge; that takes {_WINDOW_BATCHES} batches and {_WINDOW_SECONDS:g} s"
        if self._before is not None:
            return "this number is on trial"
        if self._last.wait_share <= _WAIT:
            return f"that feeds the consumer (data wait {100 * self._last.wait_share:.1f} %)"
        if workers < self._most:
            return "more will be tried"
        return "more were tried and were no faster" if self._most < usable_cores() else "there are no more cores"

    def _judge(self, workers: int, window: LoaderReport) -> int:
        """Keep the change that is on trial, or take it back and do not try it again."""
        assert self._before is not None  # noqa: S101 - the caller has looked
        before, speed = self._before
        self._before = None
        if workers > before and window.rows_per_second < _GAIN * speed:
            self._most = before
            return before
        if workers < before and window.wait_share > _WAIT:
            self._least = before
            return before
        return workers

    def _change(self, workers: int, window: LoaderReport) -> int:
        wanted = workers
        if window.wait_share > _WAIT:
            wanted = min(self._most, workers + max(1, workers // 2))
        elif window.wait_share < _WAIT / 5 and window.workers_needed < workers:
            wanted = max(self._least, workers - 1)
        if wanted != workers:
            self._before = (workers, window.rows_per_second)
        return wanted


def _between(earlier: LoaderReport, later: LoaderReport) -> LoaderReport:
    batches = later.batches - earlier.batches
    return LoaderReport(
        batches,
        later.rows - earlier.rows,
        later.wait_seconds - earlier.wait_seconds,
        later.away_seconds - earlier.away_seconds,
        later.stage_seconds,
        later.queue,
        later.workers,
        later.cores,
    )
