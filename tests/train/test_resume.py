"""A run that is killed, told to stop, or made longer, and continued."""

import csv
import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from models import Model, Pairs
from torch import nn
from torch.nn.functional import cross_entropy

from headrace.datastores import Loader
from headrace.errors import ConfigError, StateError
from headrace.train import Chain, Cosine, FitResult, Run, TrainConfig, Warmup, fit, weights_sha256
from headrace.train.checkpoint import CheckpointFolder
from headrace.train.loop import FitState

_CONFIG = TrainConfig(
    max_epochs=4, batch_size=8, progress="none", device="cpu", log_every=3, checkpoint_every=2, resume="auto",
    ema_decay=0.9, clip=("norm", 1.0), micro_batch=5, keep="best",
)  # fmt: skip
_SCHEDULE = Chain(Warmup(3), Cosine())


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def _train(folder: Path | None, config: TrainConfig = _CONFIG, **more: Any) -> FitResult:
    settings = dataclasses.replace(config, checkpoints=folder, csv=None if folder is None else f"{folder}.csv")
    return fit(Model(), Pairs(), cross_entropy, _adam, settings, Pairs(), schedule=_SCHEDULE, **more)


def _rows(result: FitResult) -> list[tuple[Any, ...]]:
    return [(row.step, row.epoch, row.loss, row.lr, dict(row.validation)) for row in result.history]


class _StopError(Exception):
    """Ends a run without giving it time for anything."""


def _stopping_at(step: int) -> Callable[[str, FitState], None]:
    def stop(event: str, state: FitState) -> None:
        if event == "step" and state.step == step:
            raise _StopError

    return stop


@pytest.mark.parametrize("stops", [[7], [1], [19], [2, 3, 11], [5, 5, 10, 15]])
def test_a_run_that_broke_goes_on_as_if_it_had_not(tmp_path: Path, stops: list[int]) -> None:
    whole = _train(None)
    for step in stops:
        with pytest.raises(_StopError):
            _train(tmp_path / "run", on_event=_stopping_at(step))
    result = _train(tmp_path / "run")
    assert weights_sha256(result.model) == weights_sha256(whole.model)
    assert _rows(result) == _rows(whole)
    assert (result.step, result.best_step, result.best_value) == (whole.step, whole.best_step, whole.best_value)
    with Path(f"{tmp_path}/run.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [row.step for row in whole.history]
    assert CheckpointFolder(tmp_path / "run").steps() == [16, 18, 20]


def test_a_finished_run_that_is_started_again_gives_what_it_came_to(tmp_path: Path) -> None:
    first = _train(tmp_path / "run")
    second = _train(tmp_path / "run")
    assert (second.step, second.stop_reason) == (20, "max epochs completed")
    assert weights_sha256(second.model) == weights_sha256(first.model)
    assert _rows(second) == _rows(first)


def test_a_run_may_be_made_longer_if_its_rates_do_not_depend_on_its_end(tmp_path: Path) -> None:
    def train(epochs: int, folder: Path | None) -> FitResult:
        config = dataclasses.replace(_CONFIG, max_epochs=epochs, checkpoints=folder, keep="last")
        return fit(Model(), Pairs(), cross_entropy, _adam, config)

    train(2, tmp_path)
    assert weights_sha256(train(3, tmp_path).model) == weights_sha256(train(3, None).model)
    _train(tmp_path / "run")
    with pytest.raises(StateError, match="total steps: saved 20, now 25"):
        _train(tmp_path / "run", dataclasses.replace(_CONFIG, max_epochs=5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed: saved 0, now 1"),
        ({"batch_size": 4}, "batch_size: saved 8, now 4"),
        ({"micro_batch": None}, "micro_batch: saved 5, now None"),
        ({"clip": ("value", 1.0)}, r"clip: saved \('norm', 1.0\), now \('value', 1.0\)"),
        ({"ema_decay": 0.5}, "ema_decay: saved 0.9, now 0.5"),
    ],
)
def test_another_config_is_refused_with_the_difference(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    _train(tmp_path / "run")
    with pytest.raises(StateError, match=message):
        _train(tmp_path / "run", dataclasses.replace(_CONFIG, **change))


def test_another_model_optimizer_or_dataset_is_refused(tmp_path: Path) -> None:
    config = TrainConfig(batch_size=8, progress="none", device="cpu", checkpoints=tmp_path, resume="auto")
    fit(Model(), Pairs(), cross_entropy, _adam, config)
    wide = Model()
    wide.linear = nn.Linear(48, 3)
    with pytest.raises(StateError, match=r"linear.weight: saved float32 \(2, 48\), now float32 \(3, 48\)"):
        fit(wide, Pairs(), cross_entropy, _adam, config)
    with pytest.raises(StateError, match="optimizer: saved 'AdamW', now 'SGD'"):
        fit(Model(), Pairs(), cross_entropy, torch.optim.SGD, config)
    with pytest.raises(StateError, match="schedule: saved '', now \"Cosine"):
        fit(Model(), Pairs(), cross_entropy, _adam, config, schedule=Cosine())
    with pytest.raises(StateError, match="belongs to another run"):
        fit(Model(), [Pairs()[i] for i in range(40)], cross_entropy, _adam, config)


def test_never_refuses_a_folder_that_has_checkpoints(tmp_path: Path) -> None:
    _train(tmp_path / "run")
    with pytest.raises(ConfigError, match='newest one of step 20: continue it with resume="auto"'):
        _train(tmp_path / "run", dataclasses.replace(_CONFIG, resume="never"))


def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path: Path) -> None:
    _train(tmp_path / "run")
    (CheckpointFolder(tmp_path / "run").of_step(20) / "run.json").write_text("{}")
    with pytest.raises(StateError, match=r"step-0000000020/run.json is not what was saved"):
        _train(tmp_path / "run")


def test_it_says_what_it_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(_CONFIG, progress="lines")
    with pytest.raises(_StopError):
        _train(tmp_path / "run", config, on_event=_stopping_at(8))
    capsys.readouterr()
    _train(tmp_path / "run", config)
    first = capsys.readouterr().err.splitlines()[0]
    assert first == (
        f"resumed from {tmp_path}/run/step-0000000006: step 6 of 20 (step 1 of epoch 1 is next), 3 rows of history"
    )


def test_torchs_schedulers_are_restored(tmp_path: Path) -> None:
    def train(folder: Path | None, on_event: Any = None) -> FitResult:
        config = TrainConfig(max_epochs=2, batch_size=8, progress="none", device="cpu", checkpoints=folder,
                             checkpoint_every=1, resume="auto", log_every=1)  # fmt: skip
        cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=11)
        return fit(Model(), Pairs(), cross_entropy, _adam, config, on_event=on_event, schedule=cycle)

    whole = train(None)
    with pytest.raises(_StopError):
        train(tmp_path, _stopping_at(6))
    assert _rows(train(tmp_path)) == _rows(whole)


def test_a_scheduler_that_cannot_be_saved_says_so(tmp_path: Path) -> None:
    config = TrainConfig(batch_size=8, progress="none", device="cpu", checkpoints=tmp_path)
    with pytest.raises(ConfigError, match=r"rates.* is a function, and a checkpoint holds tensors and plain values"):
        fit(Model(), Pairs(), cross_entropy, _adam, config,
            schedule=lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, _Halving()))  # fmt: skip


class _Halving:
    def __init__(self) -> None:
        self.half = lambda: 0.5

    def __call__(self, step: int) -> float:
        return self.half()


def test_a_loop_of_ones_own_is_saved_and_continued(tmp_path: Path) -> None:
    config = TrainConfig(max_epochs=2, batch_size=8, progress="none", device="cpu", checkpoints=tmp_path,
                         checkpoint_every=1, resume="auto")  # fmt: skip

    def train(settings: TrainConfig, stop: int) -> tuple[str, list[int]]:
        model, ids = Model(), []
        with Run(model, Pairs(), _adam(list(model.parameters())), settings) as run:
            for step in run:
                step.backward(cross_entropy(model(step.inputs), step.targets))
                step.update()
                ids += step.ids.tolist()
                if step.number == stop:
                    break
        return weights_sha256(model), ids

    whole, all_ids = train(dataclasses.replace(config, checkpoints=None), 0)
    _, first = train(config, 4)
    last, second = train(config, 0)
    assert last == whole
    assert first + second == all_ids


_SCRIPT = """
import sys
from pathlib import Path
from test_resume import _CONFIG, _train
from headrace.train import weights_sha256
import dataclasses
config = dataclasses.replace(_CONFIG, workers=int(sys.argv[2]), progress="none", max_epochs=20)
print("go", flush=True)
def tell(event, state):
    if event == "step":
        print(state.step, flush=True)

result = _train(Path(sys.argv[1]), config, on_event=tell)
print("done", weights_sha256(result.model), len(result.history), flush=True)
"""


def _start(folder: Path, workers: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(folder), str(workers)], stdout=subprocess.PIPE,
                            text=True, env=os.environ | {"PYTHONPATH": path})  # fmt: skip


@pytest.mark.timeout(200)
def test_kill_nine_at_any_moment_costs_nothing_but_time(tmp_path: Path) -> None:
    whole = _train(None, dataclasses.replace(_CONFIG, max_epochs=20))
    rng, kills, lines = random.Random(4), 0, [""]
    while not lines[-1].startswith("done"):
        with _start(tmp_path / "run", workers=kills % 2) as process:
            assert process.stdout is not None
            if kills < 5:
                for _ in range(rng.randrange(2, 25)):
                    process.stdout.readline()
                time.sleep(rng.uniform(0, 0.02))
                process.kill()
                kills += 1
            lines = process.stdout.read().splitlines() or [""]
    assert lines[-1] == f"done {weights_sha256(whole.model)} {len(whole.history)}"
    assert kills == 5


def test_sigterm_saves_the_step_and_exits_143(tmp_path: Path) -> None:
    with _start(tmp_path / "run", workers=1) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "7\n":
            pass
        process.send_signal(signal.SIGTERM)
        last = [int(line) for line in process.stdout.read().split()]
    assert process.returncode == 143
    done = max([7, *last])
    assert CheckpointFolder(tmp_path / "run").steps()[-1] == done < 100
    result = _train(tmp_path / "run", dataclasses.replace(_CONFIG, max_epochs=20))
    assert weights_sha256(result.model) == weights_sha256(
        _train(None, dataclasses.replace(_CONFIG, max_epochs=20)).model
    )


def test_ctrl_c_saves_too(tmp_path: Path) -> None:
    def press(event: str, state: FitState) -> None:
        if event == "step" and state.step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    assert _train(tmp_path / "run", on_event=press).stop_reason == "interrupted"
    assert CheckpointFolder(tmp_path / "run").steps()[-1] == 7


def test_a_loss_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    model = Model()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets) * (float("inf") if model.calls == 4 else 1)

    config = TrainConfig(batch_size=8, progress="none", device="cpu", checkpoints=tmp_path, checkpoint_every=1)
    with pytest.warns(RuntimeWarning, match="step 3 of epoch 0"):
        fit(model, Pairs(), loss, _adam, config)
    assert CheckpointFolder(tmp_path).steps() == [1, 2, 3]


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="checkpoints cannot be written to"):
        _train(tmp_path / "file" / "run")


def test_a_ready_loader_is_moved_to_where_the_run_was(tmp_path: Path) -> None:
    config = TrainConfig(max_epochs=2, batch_size=8, progress="none", device="cpu", checkpoints=tmp_path,
                         checkpoint_every=1, resume="auto")  # fmt: skip
    with Loader(Pairs(), 8) as loader, pytest.raises(_StopError):
        fit(Model(), loader, cross_entropy, _adam, config, on_event=_stopping_at(3))
    with Loader(Pairs(), 8) as loader:
        fit(Model(), loader, cross_entropy, _adam, dataclasses.replace(config, max_steps=5))
        assert (loader.epoch, loader.step) == (1, 0)
