"""What a loader says of its own speed, and what workers="auto" makes of it."""

import time
from pathlib import Path

import pytest
from toys import Failing, Noise, Spinning, digest

from headrace.datastores import Loader, OnError
from headrace.datastores.clock import Stage
from headrace.datastores.meter import LoaderReport, Meter
from headrace.datastores.tune import Tuner

STAGES = {"read": 1e-4, "decode": 1e-3, "augment": 2e-4}


def report(wait: float, away: float, workers: int = 2, cores: int = 8) -> LoaderReport:
    return LoaderReport(10, 1000, wait, away, STAGES, 1.5, workers, cores)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (report(0.01, 1.0), "the consumer is the limit: data wait 1.0 %"),
        (report(0.5, 0.5), "decode-bound: data wait 50.0 %; 3 workers would feed this step time, now 2"),
        (
            report(0.9, 0.1),
            "decode-bound: data wait 90.0 %; 15 workers would feed this step time (this machine has 8 cores), now 2",
        ),
        (
            report(0.5, 0.5, workers=8),
            "data wait 50.0 %, though 8 workers could feed this step time: start-up, or a slow machine",
        ),
        (
            report(0.9, 0.1, workers=8),
            "decode-bound: data wait 90.0 %; all 8 cores are in use, cheaper images or more cores would help",
        ),
        (
            report(0.9, 0.1, workers=1, cores=1),
            "decode-bound: data wait 90.0 %; the only core is in use, cheaper images or more cores would help",
        ),
        (
            report(0.9, 2.0, workers=1, cores=8),
            "data wait 31.0 %, though 1 worker could feed this step time: start-up, or a slow machine",
        ),
        (
            report(0.5, 0.5, workers=0),
            "data wait 50.0 %: batches are made while the consumer waits; background workers would make them meanwhile",
        ),
        (
            LoaderReport(0, 0, 0, 0, STAGES, 0, 2, 8),
            "no batch was measured: the first one of each epoch pays for the start and does not count",
        ),
    ],
)
def test_verdicts(found: LoaderReport, verdict: str) -> None:
    assert found.verdict == verdict
    assert str(found).endswith(verdict)
    assert "1000 us per sample" in str(found)


def test_a_notebook_shows_what_print_shows() -> None:
    found = report(0.9, 0.1, workers=1)
    assert repr(found) == str(found)
    assert "samples/s, 1 worker, 1.5 batches" in repr(found)


def test_notes_stand_above_the_verdict() -> None:
    found = LoaderReport(10, 1000, 0.1, 0.9, STAGES, 1.5, 2, 8, ("one thing", "another"))
    assert str(found).splitlines()[-3:] == ["one thing", "another", found.verdict]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_could_not_be_made_are_in_the_report(workers: int, tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    notes = {}
    for policy in (OnError("substitute", log=log), OnError("substitute"), OnError("skip")):
        with Loader(Failing({3, 17}), 20, on_error=policy, workers=workers, start_method="fork") as loader:
            assert loader.report().notes == ()
            assert len(list(loader)) == 5
            (notes[policy],) = loader.report().notes
    assert list(notes.values()) == [
        f"2 samples could not be made and were replaced by others: {log} says which and why",
        '2 samples could not be made and were replaced by others: OnError("substitute", log=...) writes down which',
        '2 samples could not be made and were left out: OnError("skip", log=...) writes down which',
    ]
    with Loader(Failing({3}), 20, on_error="skip") as loader:
        assert len(list(loader)) == 5
        assert loader.report().notes[0].startswith("1 sample could not be made and was left out")


def test_a_meter_counts_what_happens() -> None:
    meter = Meter()
    for _ in range(2):
        meter.start()
        for _ in range(3):
            meter.asked(ready=1)
            time.sleep(0.01)
            meter.given(rows=5)
            time.sleep(0.02)
    assert meter.row_seconds == 0
    meter.add_task(10, [0.1, 0.2, 0.3])
    assert meter.row_seconds == pytest.approx(0.06)
    found = meter.report(workers=2)
    assert (found.batches, found.rows, found.queue) == (4, 20, 1.0), (
        "the first batch of an iteration pays for the start"
    )
    assert 0.04 <= found.wait_seconds < found.away_seconds, "four waits of 10 ms, four absences of 20 ms"
    assert found.away_seconds >= 0.08
    assert found.stage_seconds == pytest.approx({"read": 0.01, "decode": 0.02, "augment": 0.03})
    assert found.wait_share == found.wait_seconds / (found.wait_seconds + found.away_seconds)


def test_a_loader_reports_who_waits_for_whom() -> None:
    with Loader(Spinning(0.002, samples=200), 20, workers=1, start_method="fork") as loader:
        for _ in loader:
            pass
        slow = loader.report()
    assert slow.wait_share > 0.8
    assert 0.002 <= slow.stage_seconds[Stage.READ.name.lower()] < 0.2, "a busy machine takes longer, never less"
    with Loader(Noise(), 10, workers=1, start_method="fork") as loader:
        for _ in loader:
            time.sleep(0.01)
        assert loader.report().wait_share < 0.5
        assert loader.report().queue > 2, "batches lie ready"


class Fake:
    """A meter whose next window is set by hand."""

    def __init__(self) -> None:
        self.batches, self.rows, self.wait, self.away = 0, 0, 0.0, 0.0

    def window(self, rate: float, wait_share: float) -> None:
        self.batches += 10
        self.rows += int(rate * 2)
        self.wait += 2 * wait_share
        self.away += 2 * (1 - wait_share)

    def report(self, workers: int) -> LoaderReport:
        return LoaderReport(self.batches, self.rows, self.wait, self.away, STAGES, 0, workers, 8)


def test_the_tuner_climbs_and_takes_back_what_did_not_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.datastores.tune.usable_cores", lambda: 8)
    meter = Fake()
    tuner = Tuner(meter)  # type: ignore[arg-type]
    assert tuner.first == 4
    meter.window(rate=1000, wait_share=0.5)
    assert tuner.advise(2) == 3, "the consumer waits"
    assert "3 workers instead of 2 (decode-bound" in capsys.readouterr().err
    meter.window(rate=1400, wait_share=0.3)
    assert tuner.advise(3) == 3, "it helped"
    meter.window(rate=1400, wait_share=0.3)
    assert tuner.advise(3) == 4
    meter.window(rate=1390, wait_share=0.3)
    assert tuner.advise(4) == 3, "it did not help"
    meter.window(rate=1390, wait_share=0.3)
    assert tuner.advise(3) == 3, "and is not tried again"


def test_the_tuner_sends_idle_workers_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.datastores.tune.usable_cores", lambda: 8)
    meter = Fake()
    tuner = Tuner(meter)  # type: ignore[arg-type]
    meter.window(rate=500, wait_share=0.0)
    assert tuner.advise(4) == 3
    meter.window(rate=500, wait_share=0.2)
    assert tuner.advise(3) == 4, "that was one too many"
    meter.window(rate=500, wait_share=0.0)
    assert tuner.advise(4) == 4


def test_the_tuner_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.datastores.tune.usable_cores", lambda: 3)
    meter = Fake()
    tuner = Tuner(meter)  # type: ignore[arg-type]
    assert tuner.reason(2) == "too little was measured to judge; that takes 8 batches and 1 s"
    meter.window(rate=1000, wait_share=0.02)
    assert tuner.advise(1) == 1
    assert tuner.reason(1) == "that feeds the consumer (data wait 2.0 %)"
    meter.window(rate=1000, wait_share=0.5)
    assert tuner.advise(1) == 2
    assert tuner.reason(2) == "this number is on trial"
    meter.window(rate=1500, wait_share=0.4)
    assert tuner.advise(2) == 2
    assert tuner.reason(2) == "more will be tried"
    meter.window(rate=1500, wait_share=0.4)
    assert tuner.advise(2) == 3
    meter.window(rate=2000, wait_share=0.4)
    assert tuner.advise(3) == 3
    assert tuner.reason(3) == "there are no more cores"
    tuner = Tuner(meter)  # type: ignore[arg-type]
    meter.window(rate=1000, wait_share=0.5)
    assert tuner.advise(1) == 2
    meter.window(rate=1000, wait_share=0.5)
    assert tuner.advise(2) == 1
    assert tuner.reason(1) == "more were tried and were no faster"


def test_auto_judges_short_epochs_as_well() -> None:
    with Loader(Spinning(0.004, samples=20), 5, workers="auto", start_method="fork") as loader:
        assert loader.report().notes[0].endswith("too little was measured to judge; that takes 8 batches and 1 s")
        for _ in range(200):
            for _ in loader:
                pass
            if "too little" not in loader.report().notes[0]:
                return
    pytest.fail("200 epochs of 4 batches tell nothing")


def test_auto_changes_the_number_and_no_bit() -> None:
    with Loader(Spinning(0.001, samples=3000), 10, seed=5) as inline:
        expected = digest(inline)
    with Loader(Spinning(0.001, samples=3000), 10, seed=5, workers="auto", start_method="fork") as loader:
        loader._tuner._most = 3  # type: ignore[union-attr]  # as if this machine had more cores
        assert digest(loader) == expected
        assert loader.workers >= 1
