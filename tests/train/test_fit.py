import csv
import dataclasses
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from toys import Noise

from headrace.augment import Normalize
from headrace.datastores import Datastore, Loader
from headrace.errors import ConfigError, DestinationError, FieldError, SampleError, ShapeError
from headrace.train import Accuracy, FitResult, TrainConfig, evaluate, fit, weights_sha256
from headrace.train.device import seed_step
from headrace.train.loop import FitState

Make = Callable[..., nn.Module]


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Line(nn.Module):
    """Its output is its only weight, which ``fit`` moves up by 1 a step under ``_steps_or_table``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(len(inputs))


def _steps_or_table(values: list[float]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A loss that falls by 1 per unit of weight where labels are 0, and is values[weight] where they are 1."""
    table = torch.tensor([math.nan, *values])
    return lambda outputs, targets: table[outputs[0].long()] if targets[0] else -outputs.mean()


def _samples(count: int, label: int) -> list[tuple[np.ndarray, int]]:
    return [(np.zeros((1, 1, 1), np.uint8), label)] * count


def _fit_line(values: list[float], **settings: object) -> FitResult:
    config = TrainConfig(
        **({"max_epochs": len(values), "batch_size": 2, "device": "cpu", "progress": "none"} | settings)
    )
    return fit(
        Line(), _samples(2, 0), _steps_or_table(values), lambda p: torch.optim.SGD(p, lr=1.0), config, _samples(3, 1)
    )


def test_digits_are_learnt(digits: Datastore, held_out: Datastore, make_model: Make, tmp_path: Path) -> None:
    config = TrainConfig(
        max_epochs=12, batch_size=32, device="cpu", progress="none", log_every=6, csv=tmp_path / "run.csv"
    )
    model = make_model()
    result = fit(model, digits, cross_entropy, torch.optim.Adam(model.parameters(), lr=5e-3), config, held_out,
                 metrics={"accuracy": Accuracy()})  # fmt: skip
    assert result.model is model
    assert result.history[-1].validation["accuracy"] >= 0.85
    assert result.history[-1].loss < 0.2 < 1.5 < result.history[0].loss
    assert (result.step, result.stop_reason, result.message) == (144, *["max epochs completed"] * 2)
    assert math.fsum(result.report.shares.values()) == pytest.approx(1)
    assert min(result.report.shares.values()) >= 0
    assert (result.report.steps, result.report.samples) == (144, 144 * 32)
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(result.history) == 24
    for read, row in zip(rows, result.history, strict=True):
        assert (int(read["step"]), int(read["epoch"]), float(read["loss"])) == (row.step, row.epoch, row.loss)
        assert read["val_accuracy"] == (repr(row.validation["accuracy"]) if row.step % 12 == 0 else "")
    best = min((row for row in result.history if row.validation), key=lambda row: row.validation["loss"])
    assert (result.best_step, result.best_value) == (best.step, best.validation["loss"])


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    digits: Datastore, held_out: Datastore, make_model: Make, config: TrainConfig
) -> None:
    def digest(validation: Datastore | None = None, **settings: object) -> str:
        torch.rand(3)
        result = fit(make_model(), digits, cross_entropy, _sgd, dataclasses.replace(config, **settings), validation)
        return weights_sha256(result.model)

    reference = digest()
    assert digest() == reference
    assert digest(held_out, validate_every=3, log_every=7) == reference
    assert digest(workers=2, prefetch=1) == reference
    assert digest(seed=1) != reference


def test_padding_is_ignored_bit_for_bit(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    by_hand, losses = make_model(), []
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1, momentum=0.9)
    loader = Loader(digits, 50, last_batch="pad")
    for _ in range(2):
        for batch in loader:
            seed_step(torch.device("cpu"), 0, batch.epoch, batch.step)
            outputs = by_hand(batch.images.float() / 255)
            loss = cross_entropy(outputs[batch.valid], batch.labels[batch.valid])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    by_hand.eval()
    right, total, total_loss = 0, 0, 0.0
    for batch in Loader(digits, 50, shuffle="never", last_batch="pad"):
        with torch.no_grad():
            outputs = by_hand(batch.images.float() / 255)[batch.valid]
        right += int((outputs.argmax(1) == batch.labels[batch.valid]).sum())
        total_loss += float(cross_entropy(outputs, batch.labels[batch.valid])) * len(outputs)
        total += len(outputs)

    padded = Loader(digits, 50, shuffle="never", last_batch="pad")
    result = fit(make_model(), digits, cross_entropy, _sgd, dataclasses.replace(config, last_batch="pad"), padded,
                 metrics={"accuracy": Accuracy()})  # fmt: skip
    assert len(losses) == 18
    assert [row.loss for row in result.history] == losses
    assert weights_sha256(result.model) == weights_sha256(by_hand)
    assert result.history[-1].validation == {"loss": total_loss / total, "accuracy": right / total}
    assert total == len(digits) == 403
    assert result.report.samples == 2 * 403


@pytest.mark.parametrize("keep", ["last", "best"])
def test_the_weights_that_are_kept(keep: str) -> None:
    result = _fit_line([3.0, 1.0, 1.0, 2.0], keep=keep)
    assert (result.best_step, result.best_value, result.step) == (2, 1.0, 4)
    assert result.model.weight.item() == (2.0 if keep == "best" else 4.0)
    assert [row.validation["loss"] for row in result.history] == [3.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "patience", "steps"),
    [
        ([1.0, 0.9, 0.9, 0.95, 0.1], 2, 4),  # not below the best one twice in a row
        ([1.0, 0.9, 0.9, 0.8, 0.9, 0.7], 2, 6),  # an improvement starts the count again
        ([1.0, 1.0], 1, 2),
        ([math.nan, math.nan, 1.0], 2, 2),  # NaN is never an improvement
        ([math.nan, 1.0, 2.0, 2.0], 2, 4),  # and never a best value
        ([5.0, 6.0, 7.0], None, 3),
    ],
)
def test_patience_counts_validations_that_are_not_below_the_best(
    values: list[float], patience: int | None, steps: int
) -> None:
    result = _fit_line(values, patience=patience, max_epochs=len(values))
    met = patience is not None and steps < len(values)
    assert result.step == steps
    assert len(result.history) == steps
    if met:
        assert result.stop_reason == "validation patience met"
        assert result.message.startswith("validation patience met: the loss was not below ")


@pytest.mark.parametrize(
    ("settings", "at"),
    [
        ({"validate_every": 2}, [2, 4, 5]),
        ({"validate_every": 9}, [5]),
        ({"validate_every": 2, "max_steps": 3}, [2, 3]),
        ({"max_steps": 3}, [1, 2, 3]),
    ],
)
def test_when_it_validates(settings: dict[str, object], at: list[int]) -> None:
    result = _fit_line([5.0, 4.0, 3.0, 2.0, 1.0], log_every=1000, **settings)
    assert [row.step for row in result.history if row.validation] == at
    assert result.stop_reason == f"max {'steps' if 'max_steps' in settings else 'epochs'} completed"


def test_events_come_in_order_and_show_the_run(make_model: Make, digits: Datastore, config: TrainConfig) -> None:
    seen: list[tuple[str, int, int]] = []

    def watch(event: str, state: FitState) -> None:
        seen.append((event, state.step, state.epoch))
        assert state.total_steps == 4
        assert (state.loss is None) == (event == "start")
        if event == "validation":
            assert state.validation == state.history[-1].validation != {}

    config = dataclasses.replace(config, batch_size=200)
    fit(make_model(), digits, cross_entropy, _sgd, config, digits, on_event=watch)
    expected = [("start", 0, 0)]
    for epoch in range(2):
        first, second = 2 * epoch + 1, 2 * epoch + 2
        expected += [("step", first, epoch)]
        expected += [(event, second, epoch) for event in ("step", "validation", "epoch")]
    assert seen == [*expected, ("done", 4, 1)]


@pytest.mark.parametrize(("event", "steps"), [("start", 0), ("step", 1), ("validation", 8), ("epoch", 8)])
def test_on_event_can_stop(make_model: Make, digits: Datastore, config: TrainConfig, event: str, steps: int) -> None:
    result = fit(make_model(), digits, cross_entropy, _sgd, config, digits,
                 on_event=lambda name, _: "stop" if name == event else None)  # fmt: skip
    assert (result.step, result.stop_reason) == (steps, "stopped by on_event")
    assert len(result.history) == steps


def test_an_answer_that_means_nothing_is_refused(make_model: Make, digits: Datastore, config: TrainConfig) -> None:
    with pytest.raises(ConfigError, match='on_event returned True at "start"'):
        fit(make_model(), digits, cross_entropy, _sgd, config, on_event=lambda *_: True)


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_loss_that_is_not_finite_stops_before_it_does_harm(
    make_model: Make, digits: Datastore, config: TrainConfig, log_every: int
) -> None:
    calls = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return cross_entropy(outputs, targets) * (math.nan if len(calls) == 12 else 1.0)

    config = dataclasses.replace(config, log_every=log_every)
    reference = fit(make_model(), digits, cross_entropy, _sgd, dataclasses.replace(config, max_steps=11))
    with pytest.warns(RuntimeWarning, match="the loss of step 3 of epoch 1 is nan"):
        result = fit(make_model(), digits, loss, _sgd, config)
    ids = Loader(digits, 50).plan.batch(1, 3).ids
    assert result.stop_reason == "loss not finite"
    assert result.message == (
        f"the loss of step 3 of epoch 1 is nan; its samples are {', '.join(map(str, ids[:8]))} and 42 more"
    )
    assert result.step == 11
    assert weights_sha256(result.model) == weights_sha256(reference.model)
    assert math.isnan(result.history[-1].loss)


def test_what_stays_on_the_screen_says_how_it_went(
    digits: Datastore, held_out: Datastore, make_model: Make, config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = dataclasses.replace(config, max_epochs=1, progress="lines")
    result = fit(make_model(), digits, cross_entropy, _sgd, settings, held_out)
    last = capsys.readouterr().err.splitlines()[-1]
    loss = f"{result.history[-1].loss:.4g}"
    assert last.startswith(f"max epochs completed after step {result.step}, loss {loss}; ")
    assert repr(result) == (
        f"<FitResult: max epochs completed ({result.step} steps, loss {loss}, best validation loss "
        f"{result.best_value:.4g} after {result.step})>"
    )


class _Named:
    """Digits whose classes have names."""

    def __init__(self, source: Datastore, classes: tuple[str, ...]) -> None:
        self.source, self.classes = source, classes

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> object:
        return self.source[index]


def test_a_validation_set_that_numbers_its_classes_differently_is_refused(
    digits: Datastore, held_out: Datastore, make_model: Make, config: TrainConfig
) -> None:
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    data, lacking = _Named(digits, names), _Named(held_out, names[:3] + names[4:])
    with pytest.raises(ConfigError, match="class 3 is 'three' in one and 'four' in the other"):
        fit(make_model(), data, cross_entropy, _sgd, config, lacking)
    short = dataclasses.replace(config, max_steps=1)
    fit(make_model(), data, cross_entropy, _sgd, short, _Named(held_out, names))
    fit(make_model(), data, cross_entropy, _sgd, short, held_out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": nn.CrossEntropyLoss}, r"loss is the class CrossEntropyLoss: pass an object of it"),
        ({"loss": "mse"}, "loss is str: it must be a function"),
        ({"metrics": {"a": Accuracy}, "validation": [1]}, r"metric 'a' is a class: pass an object of it, Accuracy"),
        ({"metrics": {"m": None}, "validation": [1]}, r"metrics maps names to objects .* got 'm': None"),
        ({"prepare": Normalize(mean=0.5, std=0.5)}, r"pass prepare=normalized_images"),
    ],
)
def test_classes_in_place_of_objects_are_named(
    digits: Datastore, make_model: Make, config: TrainConfig, arguments: dict[str, object], message: str
) -> None:
    given = {"loss": cross_entropy, "optimizer": _sgd, "config": config} | arguments
    with pytest.raises(ConfigError, match=message):
        fit(make_model(), digits, **given)


def test_labels_that_are_no_numbers_of_classes_are_named(make_model: Make, config: TrainConfig) -> None:
    data = [(np.zeros((8, 8, 1), np.uint8), np.float32(1.5))] * 60
    with pytest.raises(SampleError, match=r"labels are float32 \(50,\) on cpu, and cross_entropy wants class numbers"):
        fit(make_model(), data, cross_entropy, _sgd, config)


@pytest.mark.parametrize("keep", [{"keep": "best"}, {"ema_decay": 0.9}])
def test_ctrl_c_leaves_the_weights_that_the_optimizer_knows(
    digits: Datastore, held_out: Datastore, make_model: Make, config: TrainConfig, keep: dict[str, object]
) -> None:
    """Or whoever goes on with them would go on from elsewhere."""

    def press(event: str, state: FitState) -> None:
        if event == "step" and state.step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    plain = fit(make_model(), digits, cross_entropy, _sgd, dataclasses.replace(config, max_steps=10))
    stopped = fit(
        make_model(), digits, cross_entropy, _sgd, dataclasses.replace(config, **keep), held_out, on_event=press
    )
    assert stopped.stop_reason == "interrupted"
    assert weights_sha256(stopped.model) == weights_sha256(plain.model)


@pytest.mark.parametrize("workers", [0, 1])
def test_ctrl_c_leaves_everything_usable(
    make_model: Make, digits: Datastore, held_out: Datastore, config: TrainConfig, workers: int
) -> None:
    def press(event: str, state: FitState) -> None:
        if event == "step" and state.step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    children = set(psutil.Process().children(recursive=True))
    model = make_model()
    result = fit(model, digits, cross_entropy, _sgd, dataclasses.replace(config, workers=workers), held_out,
                 on_event=press)  # fmt: skip
    assert (result.step, result.stop_reason) == (10, "interrupted")
    assert len(result.history) == 10
    assert evaluate(model, held_out, cross_entropy, device="cpu")["loss"] < 3
    left = set(psutil.Process().children(recursive=True)) - children
    assert all("headrace" not in " ".join(child.cmdline()) for child in left)
    assert model.training


def test_a_loader_that_was_given_serves_the_next_fit(make_model: Make, digits: Datastore, config: TrainConfig) -> None:
    whole = fit(make_model(), digits, cross_entropy, torch.optim.SGD, config)
    model = make_model()
    with Loader(digits, 50, workers=1) as loader:
        optimizer = torch.optim.SGD(model.parameters())
        fit(model, loader, cross_entropy, optimizer, dataclasses.replace(config, max_steps=5))
        rest = fit(model, loader, cross_entropy, optimizer, config)
    assert (rest.step, rest.report.steps) == (16, 11)
    assert weights_sha256(model) == weights_sha256(whole.model)


def test_an_autoencoder_needs_only_prepare(digits: Datastore, config: TrainConfig) -> None:
    def as_target(batch: object) -> tuple[torch.Tensor, torch.Tensor]:
        images = batch.images.float() / 255
        return images, images

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, 64), nn.Unflatten(1, (1, 8, 8)))
    config = dataclasses.replace(config, max_epochs=8)
    result = fit(model, digits, mse_loss, torch.optim.Adam, config, digits, prepare=as_target)
    assert result.history[-1].validation["loss"] < 0.7 * result.history[0].loss


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"keep": "best"}, 'keep="best"'), ({"patience": 3}, "patience"), ({"validate_every": 5}, "validate_every")],
)
def test_settings_that_need_validation_data_are_refused_without(
    digits: Datastore, make_model: Make, config: TrainConfig, settings: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"{named} need validation data"):
        fit(make_model(), digits, cross_entropy, _sgd, dataclasses.replace(config, **settings))


def test_bad_input_is_refused_before_the_first_step(
    digits: Datastore, make_model: Make, config: TrainConfig, tmp_path: Path
) -> None:
    model = make_model()
    untouched = weights_sha256(model)
    with pytest.raises(ConfigError, match="validation has no samples"):
        fit(model, digits, cross_entropy, _sgd, config, [])
    with pytest.raises(ConfigError, match="metrics need validation data"):
        fit(model, digits, cross_entropy, _sgd, config, metrics={"accuracy": Accuracy()})
    with pytest.raises(ConfigError, match="drops the samples"):
        fit(model, digits, cross_entropy, _sgd, config, Loader(digits, 50))
    with pytest.raises(ConfigError, match="none requires a gradient"):
        fit(make_model().requires_grad_(False), digits, cross_entropy, _sgd, config)
    with pytest.raises(ConfigError, match="holds none of the model's"):
        fit(model, digits, cross_entropy, torch.optim.SGD(make_model().parameters()), config)
    with pytest.raises(ConfigError, match="larger than the dataset"):
        fit(model, digits, cross_entropy, _sgd, dataclasses.replace(config, batch_size=404))
    with pytest.raises(ConfigError, match=r"is empty|no samples"):
        fit(model, [], cross_entropy, _sgd, config)
    kept = Loader(digits, 50, last_batch="keep")
    with pytest.raises(ConfigError, match="one Loader cannot serve training and validation"):
        fit(model, kept, cross_entropy, _sgd, config, kept)
    (tmp_path / "run.csv").write_text("")
    with pytest.raises(DestinationError, match="exists already"):
        fit(model, digits, cross_entropy, _sgd, dataclasses.replace(config, csv=tmp_path / "run.csv"))
    with pytest.raises(ConfigError, match="BatchNorm2d '1' would count"):
        fit(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)), digits, cross_entropy, _sgd,
            dataclasses.replace(config, last_batch="pad"))  # fmt: skip
    assert weights_sha256(model) == untouched


def test_bad_data_and_shapes_are_named_with_their_step(
    digits: Datastore, make_model: Make, config: TrainConfig, tmp_path: Path
) -> None:
    config = dataclasses.replace(config, csv=tmp_path / "run.csv")
    with pytest.raises(SampleError, match=r"has label 9, but the model has 9 outputs") as caught:
        fit(make_model(9), digits, cross_entropy, _sgd, config)
    assert "headrace: in step 0 of epoch 0: inputs float32 (50, 1, 8, 8)" in caught.value.__notes__[0]
    with pytest.raises(ShapeError, match=r'float32 \(50,\) on cpu: .*reduction="mean"'):
        fit(make_model(), digits, lambda o, t: cross_entropy(o, t, reduction="none"), _sgd, config)
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught_shapes:
        fit(make_model(), Noise(60, (9, 8, 1)), cross_entropy, _sgd, config)
    assert "inputs float32 (50, 1, 9, 8)" in caught_shapes.value.__notes__[0]
    with pytest.raises(FieldError, match="no field 'label'"):
        fit(make_model(), [{"image": np.zeros((8, 8, 1), np.uint8)}] * 60, cross_entropy, _sgd, config)
    assert not (tmp_path / "run.csv").exists()
