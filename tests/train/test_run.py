import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from headrace.augment import ColorAugmenter, CutMix, Draw
from headrace.datastores import Datastore, Loader
from headrace.errors import ConfigError, ShapeError
from headrace.train import Run, TrainConfig, evaluate, fit, weights_sha256
from headrace.train.device import seed_step
from headrace.train.step import Step

Make = Callable[..., nn.Module]


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _train(step: Step, model: nn.Module) -> None:
    step.backward(cross_entropy(model(step.inputs), step.targets))
    step.update()


def _drive(run: Run, body: Callable[[Step], object]) -> None:
    with run:
        for step in run:
            body(step)


def test_it_equals_a_loop_by_hand_bit_for_bit(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    by_hand, losses = make_model(), []
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1, momentum=0.9)
    loader = Loader(digits, 50)
    for _ in range(2):
        for batch in loader:
            seed_step(torch.device("cpu"), 0, batch.epoch, batch.step)
            loss = cross_entropy(by_hand(batch.images.float() / 255), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    model = make_model()
    with Run(model, digits, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), config) as run:
        assert run.total_steps == 16
        for step in run:
            _train(step, model)
    assert weights_sha256(model) == weights_sha256(by_hand)
    assert [row.loss for row in run.history] == losses
    assert [(row.step, row.epoch) for row in run.history] == [(n + 1, n // 8) for n in range(16)]
    assert (run.step, run.stop_reason) == (16, "max epochs completed")
    assert run.report.samples == 800


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_a_loop_may_color_and_mix_its_batches(
    last_batch: str, digits: Datastore, make_model: Make, config: TrainConfig
) -> None:
    """The loop that docs/architecture.md shows; padding has no part in the result, nor has the number of workers."""
    color = ColorAugmenter(brightness=(0.5, 1.5))

    def trained(**settings: object) -> str:
        model = make_model()
        changed = dataclasses.replace(config, last_batch=last_batch, batch_size=46, **settings)
        with Run(model, digits, _sgd, changed) as run:
            for step in run:
                draw = Draw(changed.seed, step.epoch)
                images = color.apply(step.batch.images, step.host.ids, draw)
                mixed = CutMix().apply(images, step.batch.labels, step.host.ids, draw, step.host.valid)
                outputs = step.without_padding(model(mixed.images.float() / 255))
                step.backward(cross_entropy(outputs, step.without_padding(mixed.targets(10))))
                step.update()
        assert [row.loss for row in run.history][-1] < run.history[0].loss
        return weights_sha256(model)

    assert trained() == trained(workers=2)


def test_a_loss_in_parts_has_the_gradient_of_the_whole(
    digits: Datastore, make_model: Make, config: TrainConfig
) -> None:
    whole, parts = make_model().double(), make_model().double()
    for model in (whole, parts):
        model[3] = nn.Identity()
    config = dataclasses.replace(config, last_batch="keep", max_epochs=1)
    with Run(whole, digits, _sgd, config) as run:
        for step in run:
            step.backward(cross_entropy(whole(step.inputs.double()), step.targets))
            step.update()
    with Run(parts, digits, _sgd, config) as run_parts:
        for step in run_parts:
            for rows in torch.arange(step.samples).split(19):
                loss = cross_entropy(parts(step.inputs[rows].double()), step.targets[rows])
                step.backward(loss, samples=len(rows))
            step.update()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-9, atol=1e-12)
    assert [row.loss for row in run_parts.history] == pytest.approx([row.loss for row in run.history], rel=1e-12)


def test_nothing_may_follow_the_last_loss_of_a_step(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    model = make_model()

    def body(step: Step) -> None:
        step.backward(cross_entropy(model(step.inputs), step.targets), is_last=True)
        with pytest.raises(ConfigError, match="again after it was told is_last=True"):
            step.backward(cross_entropy(model(step.inputs), step.targets))
        step.update()

    _drive(Run(model, digits, _sgd, dataclasses.replace(config, max_steps=1)), body)


@pytest.mark.parametrize(("micro_batch", "last_batch"), [(16, "drop"), (7, "keep"), (50, "pad"), (1, "drop")])
def test_a_step_in_parts_has_the_gradient_of_the_whole(
    digits: Datastore, config: TrainConfig, micro_batch: int, last_batch: Any
) -> None:
    """Also where the last part is short, or holds padding."""

    def model() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def train(settings: TrainConfig) -> nn.Module:
        return fit(model(), digits, cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1), settings).model

    whole = train(dataclasses.replace(config, last_batch=last_batch))
    parts = train(dataclasses.replace(config, last_batch=last_batch, micro_batch=micro_batch))
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_what_a_part_draws_depends_on_its_place_only(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    settings = dataclasses.replace(config, micro_batch=20)
    first = fit(make_model(), digits, cross_entropy, torch.optim.SGD, settings)
    torch.rand(17)
    second = fit(make_model(), digits, cross_entropy, torch.optim.SGD, settings)
    assert weights_sha256(first.model) == weights_sha256(second.model)


@pytest.mark.parametrize("how", ["close", "evaluate", "next", "fit"])
def test_a_loader_that_is_moved_meanwhile_is_an_error(digits: Datastore, config: TrainConfig, how: str) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def move(event: str, state: Any) -> None:
        if event == "step" and state.step == 3:
            if how == "close":
                loader.close()
            elif how == "evaluate":
                evaluate(state.model, loader, cross_entropy, device="cpu")
            elif how == "next":
                next(iter(loader))
            else:
                fit(model(), loader, cross_entropy, torch.optim.SGD, dataclasses.replace(config, max_steps=5))

    with Loader(digits, 50, last_batch="keep") as loader:
        with pytest.raises(ConfigError, match="the Loader was moved while the run used it: step 4 was next"):
            fit(model(), loader, cross_entropy, torch.optim.SGD, config, on_event=move)
        assert (loader.epoch, loader.step) == (0, 3)


def test_several_losses_add_up(digits: Datastore, config: TrainConfig) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    with Run(model, digits, _sgd, dataclasses.replace(config, max_steps=1)) as run:
        for step in run:
            step.backward(model(step.inputs).mean())
            step.backward(2 * model(step.inputs).mean())
            gradient = model[1].bias.grad.item()
            step.update()
    assert gradient == pytest.approx(3)
    assert run.history[0].loss == pytest.approx(float(step.loss))


@pytest.mark.parametrize("cut", [3, 8, 11])
def test_a_run_that_is_cut_goes_on_as_if_it_had_not_been(
    digits: Datastore, make_model: Make, config: TrainConfig, cut: int
) -> None:
    unbroken, model = make_model(), make_model()
    with Run(unbroken, digits, _sgd, config) as run:
        for step in run:
            _train(step, unbroken)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = Loader(digits, 50)
    with Run(model, loader, optimizer, dataclasses.replace(config, max_steps=cut)) as first:
        for step in first:
            _train(step, model)
    assert (first.step, first.stop_reason) == (cut, "max epochs completed" if cut == 16 else "max steps completed")
    other = Loader(digits, 50)
    other.load_state_dict(loader.state_dict())
    torch.rand(7)
    for second_loader in (loader, other):
        twin = make_model()
        twin.load_state_dict(model.state_dict())
        twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        with Run(twin, second_loader, twin_optimizer, config) as second:
            assert second.step == cut
            for step in second:
                _train(step, twin)
        assert second.report.steps == 16 - cut
        assert second.history[0].step == cut + 1
        assert weights_sha256(twin) == weights_sha256(unbroken)


def test_nothing_left_to_do_is_an_error(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    loader = Loader(digits, 50)
    loader.set_epoch(2)
    with pytest.raises(ConfigError, match=r"stands after step 16, and the run ends at step 16: raise max_epochs"):
        Run(make_model(), loader, _sgd, config)


def test_modes_and_random_numbers_are_as_they_were(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    model = make_model()
    model.eval()
    model[3].train()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)

    def train_5_steps(step: Step) -> None:
        assert all(module.training for module in model.modules())
        _train(step, model)
        _ = 1 // (5 - step.number)

    run = Run(model, digits, _sgd, config)
    with pytest.raises(ZeroDivisionError):
        _drive(run, train_5_steps)
    assert [module.training for module in model.modules()] == [False] * 4 + [True] + [False] * 3
    assert torch.equal(torch.rand(3), expected)
    assert run.step == 5


@pytest.mark.parametrize(("given", "is_closed"), [(True, False), (False, True)])
def test_only_a_loader_made_here_is_closed(
    digits: Datastore, make_model: Make, config: TrainConfig, given: bool, is_closed: bool
) -> None:
    model = make_model()
    with Loader(digits, 50, workers=1) as loader:
        run = Run(model, loader if given else digits, _sgd, dataclasses.replace(config, workers=1, max_steps=2))
        with run:
            for step in run:
                _train(step, model)
        dispatcher = run.loader._dispatcher
        assert (dispatcher is None or dispatcher.closed) == is_closed


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 64), ("seed", 5), ("workers", 2), ("prefetch", 2), ("shuffle", "once"), ("last_batch", "keep")],
)
def test_a_setting_that_differs_from_the_loaders_is_refused(digits: Datastore, name: str, value: object) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    loader = Loader(digits, 50)
    with pytest.raises(ConfigError, match=f"TrainConfig says {name}={value!r}, but the Loader was made with"):
        Run(model, loader, _sgd, TrainConfig(device="cpu", progress="none", **{name: value}))
    agreeing = Loader(digits, **({"batch_size": 50} | {name: value}))
    Run(model, agreeing, _sgd, TrainConfig(device="cpu", progress="none", **{name: value}))
    Run(model, agreeing, _sgd, TrainConfig(device="cpu", progress="none"))


def test_misuse_is_named(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    model = make_model()

    def twice(step: Step) -> None:
        _train(step, model)
        step.update()

    def after(step: Step) -> None:
        _train(step, model)
        step.backward(model(step.inputs).mean())

    def detached(step: Step) -> None:
        step.backward(model(step.inputs).mean().detach())

    for body, complaint in [
        (lambda step: step.update(), r"before step\.backward"),
        (lambda _: None, r"ended without step\.update"),
        (twice, "called twice"),
        (after, "was called after"),
        (detached, "does not depend on any"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            _drive(Run(model, digits, _sgd, config), body)


def test_a_run_is_iterated_once_and_inside_of_with(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    model = make_model()
    run = Run(model, digits, _sgd, config)
    with pytest.raises(ConfigError, match="inside of `with"):
        next(iter(run))
    with run:
        for step in run:
            _train(step, model)
            break
        with pytest.raises(ConfigError, match="once"):
            next(iter(run))


def test_prepare_must_return_a_pair(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    run = Run(make_model(), digits, _sgd, config, prepare=lambda batch: batch.images)
    with pytest.raises(ConfigError, match=r"prepare returned uint8 \(50, 1, 8, 8\) on cpu"):
        _drive(run, lambda step: step.inputs)


def test_an_error_in_a_step_says_where_it_was(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(RuntimeError, match="3 channels") as caught:
        _drive(Run(model, digits, _sgd, config), lambda step: model(step.inputs))
    ids = ", ".join(map(str, Loader(digits, 50).plan.batch(0, 0).ids[:8]))
    (note,) = caught.value.__notes__
    assert note == (
        "headrace: in step 0 of epoch 0: inputs float32 (50, 1, 8, 8) on cpu, "
        f"targets int64 (50,) on cpu, samples {ids}, ..."
    )


def test_an_error_outside_of_a_step_is_not_blamed_on_one(make_model: Make, config: TrainConfig) -> None:
    class Broken(Datastore):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> dict[str, object]:
            if index == 77:
                raise ShapeError("sample 77 is bad")
            return {"image": np.zeros((8, 8, 1), np.uint8), "label": 0}

    model = make_model()
    config = dataclasses.replace(config, shuffle="never")
    run = Run(model, Broken(), _sgd, config)
    with pytest.raises(ShapeError, match="sample 77 is bad") as caught:
        _drive(run, lambda step: _train(step, model))
    assert run.step == 1
    assert not any("headrace: in step" in note for note in getattr(caught.value, "__notes__", []))


def test_history_has_a_row_every_so_many_steps_and_for_the_rest(
    digits: Datastore, make_model: Make, config: TrainConfig
) -> None:
    model, all_losses = make_model(), []
    config = dataclasses.replace(config, log_every=5, last_batch="keep", max_epochs=1)
    with Run(model, digits, _sgd, config, validation_names=["x"]) as run:
        for step in run:
            _train(step, model)
            all_losses.append((float(step.loss), step.samples))
            if step.number == 7:
                run.record({"x": 3.0})
    assert [row.step for row in run.history] == [5, 7, 9]
    assert [row.validation for row in run.history] == [{}, {"x": 3.0}, {}]
    (a, n), (b, m) = all_losses[7:]
    assert (n, m) == (50, 3)
    assert run.history[-1].loss == pytest.approx((a * n + b * m) / (n + m), rel=1e-12)
    assert all(row.lr == 0.1 and row.images_per_second > 0 and 0 <= row.wait_share <= 1 for row in run.history)


def test_an_optimizer_keeps_its_state(digits: Datastore, make_model: Make, config: TrainConfig) -> None:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    for steps in (1, 2):
        with Run(model, digits, optimizer, dataclasses.replace(config, max_steps=steps)) as run:
            for step in run:
                _train(step, model)
    assert optimizer.state[model[0].weight]["step"] == 3
    assert run.optimizer is optimizer
