import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.train.report import Phase, Report, Stopwatch

SECONDS = st.floats(0, 1e6, allow_subnormal=False)


def _report(workers: int = 2, steps: int = 10, **seconds: float) -> Report:
    return Report({phase: seconds.get(phase.name.lower(), 0.0) for phase in Phase}, steps, 1000, workers)


@given(st.lists(SECONDS, min_size=len(Phase), max_size=len(Phase)))
def test_shares_add_up_to_one(seconds: list[float]) -> None:
    report = Report(dict(zip(Phase, seconds, strict=True)), steps=1, samples=1, workers=0)
    shares = report.shares
    assert list(shares) == ["start", "data wait", "transfer", "compute", "validation", "checkpoint", "other"]
    assert all(0 <= share <= 1 for share in shares.values())
    assert math.fsum(shares.values()) == pytest.approx(1.0 if any(seconds) else 0.0)


def test_every_moment_belongs_to_one_phase() -> None:
    before = time.perf_counter()
    watch = Stopwatch()
    for phase in (Phase.START, Phase.WAIT, Phase.COMPUTE, Phase.WAIT, Phase.VALIDATION):
        time.sleep(0.01)
        watch.lap(phase)
    elapsed = time.perf_counter() - before
    assert 0.05 <= math.fsum(watch.seconds.values()) <= elapsed
    assert watch.seconds[Phase.WAIT] >= 0.02
    assert watch.seconds[Phase.OTHER] == 0.0
    assert 0.03 <= watch.training_seconds <= elapsed - 0.02


def test_speed_leaves_out_the_start_and_validation() -> None:
    report = _report(start=5, wait=1, transfer=1, compute=6, validation=7, other=2)
    assert report.wall_seconds == 22
    assert report.images_per_second == 100
    assert report.wait_share == 0.1


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (_report(compute=98.8, wait=1.2), "compute-bound: data wait 1.2 %"),
        (_report(0, compute=69, wait=31), r"data wait 31.0 % .*background workers"),
        (_report(1, compute=60, wait=40), r"data wait 40.0 % .*loader limits this run; 1 more workers"),
        (_report(1000, compute=69, wait=31), r"data wait 31.0 % .*1000 workers would have to be 1450, and .* cores"),
        (_report(compute=80, transfer=20), r"transfer 20.0 %: copies"),
        (_report(compute=50, validation=50), r"validation 50.0 %: validate less often"),
        (_report(compute=80, other=20), r"other work 20.0 %: on_event"),
        (_report(compute=60, start=40), r"start 40.0 %: the run is too short"),
        (_report(steps=0, start=1), "no step was done"),
    ],
)
def test_the_verdict_names_the_bottleneck_and_the_remedy(
    report: Report, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    assert re.match(verdict, report.verdict)
    assert str(report).endswith(report.verdict)


def test_the_table_has_a_line_for_each_phase() -> None:
    lines = str(_report(start=1, wait=1, compute=8)).splitlines()
    assert lines[1].split() == ["data", "wait", "1.00", "s", "10.0", "%"]
    assert " ".join(lines[7].split()) == (
        "wall time 10.00 s 10 steps; 111 images/s without start, validation and checkpoints"
    )
    assert len(lines) == 9


def test_workers_and_threads_that_crowd_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.train.report.usable_cores", lambda: 4)
    seconds = dict.fromkeys(Phase, 0.0) | {Phase.COMPUTE: 9.5, Phase.WAIT: 0.5}
    crowded = Report(seconds, steps=10, samples=100, workers=2, threads=4)
    assert crowded.verdict.endswith(
        "2 workers and 4 threads of torch share 4 cores: torch.set_num_threads(2) may be faster"
    )
    for workers, threads in ((0, 4), (2, 2), (4, 1)):
        assert "share" not in Report(seconds, steps=10, samples=100, workers=workers, threads=threads).verdict
