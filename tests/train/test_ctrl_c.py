import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from models import Model, Pairs
from torch import nn
from torch.nn.functional import cross_entropy

from headrace.datastores import Loader
from headrace.errors import ConfigError
from headrace.train import FitResult, Run, TrainConfig, fit, weights_sha256
from headrace.train.loop import FitState

_CONFIG = TrainConfig(max_epochs=2, batch_size=8, progress="none", device="cpu")


def _press(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _press_at(*moments: int) -> Callable[[int], None]:
    return lambda number: _press() if number in moments else None


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _whole(epochs: int = 2) -> str:
    model = Model()
    fit(model, Pairs(), cross_entropy, _optimizer(model), dataclasses.replace(_CONFIG, max_epochs=epochs))
    return weights_sha256(model)


def _fit_until_done(model: nn.Module, loader: Loader) -> list[FitResult]:
    optimizer, results = _optimizer(model), []
    while not results or results[-1].stop_reason == "interrupted":
        results.append(fit(model, loader, cross_entropy, optimizer, _CONFIG))
        assert len(results) < 20
    return results


def test_ctrl_c_within_a_step_loses_no_step() -> None:
    model = Model(_press_at(1, 3, 5, 9))
    with Loader(Pairs(), 8) as loader:
        results = _fit_until_done(model, loader)
        assert [result.step for result in results] == [1, 3, 5, 9, 10]
        assert (loader.epoch, loader.step) == (2, 0)
    assert weights_sha256(model) == _whole()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_a_batch_is_made_is_not_put_off() -> None:
    made: list[int] = []

    def hook(index: int) -> None:
        made.append(index)
        if len(made) == 21:
            _press()

    model = Model()
    with Loader(Pairs(hook), 8) as loader:
        results = _fit_until_done(model, loader)
    assert [result.step for result in results] == [2, 10]
    assert len(made) < 21 + 8 * 8 + 8  # the sample in hand was given up
    assert weights_sha256(model) == _whole()


_SCRIPT = """
import dataclasses, os, signal, sys, time
from test_ctrl_c import _CONFIG, Loader, Model, Pairs, _optimizer, cross_entropy, fit, weights_sha256

model = Model(lambda _: time.sleep(0.005))
optimizer, loader = _optimizer(model), Loader(Pairs(), 8, workers=int(sys.argv[1]))
config = dataclasses.replace(_CONFIG, max_epochs=8)
stopped = 0
while True:
    try:
        while loader.epoch < config.max_epochs:
            print("go", flush=True)
            stopped += fit(model, loader, cross_entropy, optimizer, config).stop_reason == "interrupted"
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        break
    except KeyboardInterrupt:  # it came while a fit was set up or taken down
        pass
loader.close()
print(stopped, loader.epoch, loader.step, weights_sha256(model), flush=True)
os._exit(0)  # the end of the interpreter brings the usual Ctrl-C back
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_ctrl_c_at_any_moment_loses_no_step(workers: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    ) as process:
        assert process.stdout is not None
        rng, presses = random.Random(0), 8
        while (line := process.stdout.readline()) == "go\n":  # one press each time: a second one would not wait
            if presses:
                time.sleep(rng.uniform(0, 0.3))
                process.send_signal(signal.SIGINT)
                presses -= 1
        stopped, *rest = line.split()
    assert int(stopped) >= 1
    assert rest == ["8", "0", _whole(8)]


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    model = Model(lambda call: (_press(), _press()) if call == 3 else None)
    with Loader(Pairs(), 8) as loader:
        result = fit(model, loader, cross_entropy, _optimizer(model), _CONFIG)
        assert (loader.epoch, loader.step) == (0, 2)
    assert (result.step, result.stop_reason) == (2, "interrupted")
    assert "in the middle of step 3" in result.message


def test_ctrl_c_does_not_cut_on_event_short() -> None:
    saved: list[int] = []

    def save(event: str, state: FitState) -> None:
        if event == "step":
            _press()
            saved.append(state.step)

    model = Model()
    result = fit(model, Pairs(), cross_entropy, _optimizer(model), _CONFIG, on_event=save)
    assert saved == [1] == [result.step]


def test_an_error_in_the_model_leaves_the_loader_before_that_step() -> None:
    def fail(call: int) -> None:
        if call == 4:
            raise ZeroDivisionError("fourth")

    model = Model(fail)
    optimizer = _optimizer(model)
    with Loader(Pairs(), 8) as loader:
        with pytest.raises(ZeroDivisionError, match="fourth"):
            fit(model, loader, cross_entropy, optimizer, _CONFIG)
        assert (loader.epoch, loader.step) == (0, 3)
        fit(model, loader, cross_entropy, optimizer, _CONFIG)
    assert weights_sha256(model) == _whole()


def test_an_infinite_loss_leaves_the_loader_before_that_step() -> None:
    model = Model()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs, targets) * (np.inf if model.calls == 4 else 1)

    with Loader(Pairs(), 8) as loader:
        with pytest.warns(RuntimeWarning, match="step 3 of epoch 0"):
            result = fit(model, loader, loss, _optimizer(model), _CONFIG)
        assert (result.step, loader.epoch, loader.step) == (3, 0, 3)


def test_a_run_that_is_left_in_a_step_settles_its_loader() -> None:
    model = Model()
    with Loader(Pairs(), 8) as loader:
        with Run(model, loader, _optimizer(model), _CONFIG) as run:
            for step in run:
                if step.number == 4:
                    break
                step.backward(cross_entropy(model(step.inputs), step.targets))
                step.update()
        assert (loader.epoch, loader.step) == (0, 3)
        assert next(iter(loader)).step == 3


def test_two_threads_cannot_train_at_once() -> None:
    """Both would seed torch's generators, which belong to the process."""
    inside, leave, errors = threading.Event(), threading.Event(), list[Exception]()

    def wait(_: int) -> None:
        inside.set()
        leave.wait(10)

    def train() -> None:
        model = Model(wait)
        fit(model, Pairs(), cross_entropy, _optimizer(model), dataclasses.replace(_CONFIG, max_steps=1))

    thread = threading.Thread(target=train)
    thread.start()
    inside.wait(10)
    try:
        model = Model()
        fit(model, Pairs(), cross_entropy, _optimizer(model), _CONFIG)
    except ConfigError as error:
        errors.append(error)
    leave.set()
    thread.join()
    assert "another thread of this process is training" in str(errors[0])
    fit(model, Pairs(), cross_entropy, _optimizer(model), _CONFIG)
    assert weights_sha256(model) == _whole()


def test_other_threads_may_train() -> None:
    results: list[FitResult] = []

    def train() -> None:
        model = Model()
        results.append(fit(model, Pairs(), cross_entropy, _optimizer(model), _CONFIG))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert weights_sha256(results[0].model) == _whole()
