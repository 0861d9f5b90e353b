"""Where the time of a run went, and what would make it faster."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..datastores.meter import usable_cores

__all__ = ["Phase", "Report", "Stopwatch"]


class Phase(Enum):
    """What a run's wall time is spent on; the phases do not overlap."""

    START = "start"  # until the first batch is there: workers start
    WAIT = "data wait"
    TRANSFER = "transfer"
    COMPUTE = "compute"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


_APART = (Phase.START, Phase.VALIDATION, Phase.CHECKPOINT)


class Stopwatch:
    """Gives every moment to one phase; a lap costs about 0.2 microseconds and never waits for a GPU.

    Example:
        >>> watch = Stopwatch()
        >>> watch.lap(Phase.WAIT)       # all the time since the last lap was waiting
        >>> watch.seconds[Phase.WAIT] > 0
        True
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(Phase, 0.0)
        self._last = time.perf_counter()

    def restart(self) -> None:
        """Let the next lap begin now: what went before belongs to no phase."""
        self._last = time.perf_counter()

    def lap(self, phase: Phase) -> None:
        """Add the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    @property
    def training_seconds(self) -> float:
        """Seconds spent so far on steps: not the start, validation or checkpoints."""
        return math.fsum(s for phase, s in self.seconds.items() if phase not in _APART)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Where the time of a run went; ``str(report)`` is a small table, ``report.verdict`` the line that matters.

    On a GPU the host only queues work, so the phases are what the *host* did. Waiting for data and copying it count as
    such only if the device had nothing left to do at their end; hidden behind queued work, they count as "compute".

    Args:
        seconds: per phase; together the wall time of the run.
        steps: optimizer steps done.
        samples: rows that went through a step, without padding.
        workers: background processes that made the batches.
        threads: that torch computes with on the CPU; 0 if a GPU computes.
    """

    seconds: Mapping[Phase, float]
    steps: int
    samples: int
    workers: int
    threads: int = 0

    @property
    def wall_seconds(self) -> float:
        """Seconds from the start of the run to its end."""
        return math.fsum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Share of the wall time per phase, by the phase's name; they add up to 1 (all are 0 if no time passed)."""
        wall = self.wall_seconds
        return {phase.value: self.seconds[phase] / wall if wall else 0.0 for phase in Phase}

    @property
    def images_per_second(self) -> float:
        """Samples per second of the time spent on steps (without the start, validation and checkpoints)."""
        seconds = self._training_seconds
        return self.samples / seconds if seconds else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the time spent on steps that was waiting for data."""
        seconds = self._training_seconds
        return self.seconds[Phase.WAIT] / seconds if seconds else 0.0

    @property
    def _training_seconds(self) -> float:
        return self.wall_seconds - math.fsum(self.seconds[phase] for phase in _APART)

    @property
    def verdict(self) -> str:
        """What limits the run, by how much, and what to do about it, in one line."""
        if not self.steps:
            return "no step was done: nothing can be said about its speed"
        shares = self.shares
        if self.wait_share >= 0.10:
            return f"data wait {_percent(self.wait_share)} of the training time: {self._loader_remedy()}"
        if shares["transfer"] >= 0.10:
            return f"transfer {_percent(shares['transfer'])}: copies to the device limit this run; smaller images help"
        if shares["validation"] >= 0.30:
            return f"validation {_percent(shares['validation'])}: validate less often, or on fewer samples"
        if shares["checkpoint"] >= 0.10:
            return f"checkpoints {_percent(shares['checkpoint'])}: save less often, or to a faster disk"
        if shares["other"] >= 0.10:
            return f"other work {_percent(shares['other'])}: on_event, or your own code between steps, limits this run"
        if shares["start"] >= 0.30:
            return f"start {_percent(shares['start'])}: the run is too short to say more"
        return f"compute-bound: data wait {_percent(self.wait_share)}{self._crowding()}"

    def _crowding(self) -> str:
        """Say so if workers and the threads that compute need more cores than there are."""
        cores = usable_cores()
        if not self.workers or self.threads + self.workers <= cores:
            return ""
        fewer = max(1, cores - self.workers)
        return (
            f"; {self.workers} workers and {self.threads} threads of torch share {cores} cores: "
            f"torch.set_num_threads({fewer}) may be faster"
            if self.threads > fewer
            else ""
        )

    def _loader_remedy(self) -> str:
        if not self.workers:
            return "batches are made between the steps; background workers (workers=...) would make them meanwhile"
        # k workers feed 1 - wait of what the steps could take
        more = math.ceil(self.workers / max(1 - self.wait_share, 0.01)) - self.workers
        cores = usable_cores()
        if self.workers + more > cores:
            return (
                f"the loader limits this run; {self.workers} workers would have to be {self.workers + more}, and there "
                f"are {cores} cores: cheaper decoding (smaller stored images) or more cores would help"
            )
        return f"the loader limits this run; {more} more workers, or cheaper decoding, would feed it"

    def __repr__(self) -> str:
        lines = [
            f"{phase.value:<12}{self.seconds[phase]:9.2f} s {_percent(share):>8}"
            for phase, share in zip(Phase, self.shares.values(), strict=True)
        ]
        speed = f"{self.steps} steps; {self.images_per_second:.0f} images/s without start, validation and checkpoints"
        return "\n".join([*lines, f"{'wall time':<12}{self.wall_seconds:9.2f} s   {speed}", self.verdict])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
