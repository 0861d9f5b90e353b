"""What differs on a GPU: nothing waits inside of a step, and errors are found without the device's help."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from toys import Noise

from headrace.datastores import Batch, Loader
from headrace.errors import SampleError
from headrace.train import Accuracy, TrainConfig, evaluate, fit, weights_sha256
from headrace.train.device import DeviceFeed, choose_device, restored_generators, seed_step
from headrace.train.loop import FitState

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


def _model(outputs: int = 100) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, outputs))


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _config(**settings: object) -> TrainConfig:
    return TrainConfig(**({"max_epochs": 3, "batch_size": 20, "device": "cuda", "progress": "none"} | settings))


def test_copies_are_right_while_slots_are_used_again() -> None:
    device, data = choose_device("cuda"), Noise(400, (64, 64, 3))
    feed = DeviceFeed(device)
    with Loader(data, batch_size=20, shuffle="never", workers=2) as loader:
        moved = []
        for host in loader:
            batch = feed.move(host)
            torch.cuda._sleep(20_000_000)
            moved.append((batch.images.double().sum((1, 2, 3)), batch.labels))
            feed.mark()
        assert feed.is_busy()
    sums = torch.cat([sums for sums, _ in moved]).cpu()
    assert torch.cat([labels for _, labels in moved]).tolist() == list(range(400))
    assert sums.tolist() == [float(data[i]["image"].sum()) for i in range(400)]
    torch.cuda.synchronize()
    assert not feed.is_busy()


@pytest.mark.parametrize("last_batch", ["drop", "pad", "keep"])
def test_no_step_waits_for_the_device(last_batch: str) -> None:
    def guard(event: str, state: FitState) -> None:
        mode = "error" if event == "step" and state.step < 14 else "default"
        torch.cuda.set_sync_debug_mode(mode)

    try:
        result = fit(_model(), Noise(90), cross_entropy, _sgd, _config(last_batch=last_batch, log_every=1000),
                     on_event=guard)  # fmt: skip
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert result.step == (12 if last_batch == "drop" else 15)


def test_evaluation_waits_only_at_its_end() -> None:
    model = _model().cuda()
    ends: list[int] = []

    class Watched(Loader):
        def __iter__(self) -> Iterator[Batch]:
            yield from super().__iter__()
            torch.cuda.set_sync_debug_mode("default")
            ends.append(1)

    metric = Accuracy()
    loader = Watched(Noise(90), 20, shuffle="never", last_batch="pad")
    torch.cuda.set_sync_debug_mode("error")
    try:
        scores = evaluate(model, loader, None, {"accuracy": metric}, device="cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ends == [1]
    assert scores == evaluate(model, Noise(90), None, {"accuracy": Accuracy()}, device="cuda", batch_size=90)


def test_it_learns_as_on_the_cpu() -> None:
    losses = {}
    for device in ("cpu", "cuda"):
        model = _model()
        model[3] = nn.Identity()  # dropout draws other numbers on another kind of device
        result = fit(model, Noise(90), cross_entropy, _sgd, _config(device=device, log_every=1))
        assert next(model.parameters()).device.type == device
        losses[device] = [row.loss for row in result.history]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)


def test_two_runs_and_other_workers_have_the_same_weights() -> None:
    def digest(**settings: object) -> str:
        torch.rand(3, device="cuda")
        return weights_sha256(fit(_model(), Noise(90), cross_entropy, _sgd, _config(**settings)).model)

    reference = digest()
    assert digest() == reference
    assert digest(workers=2, log_every=1) == reference
    assert digest(seed=1) != reference


def test_a_bad_loss_is_found_late_but_exactly() -> None:
    calls = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return cross_entropy(outputs, targets) * (math.nan if len(calls) == 7 else 1.0)

    with pytest.warns(RuntimeWarning, match="the loss of step 2 of epoch 1 is nan"):
        result = fit(_model(), Noise(90), loss, _sgd, _config(log_every=10))
    assert result.stop_reason == "loss not finite"
    assert result.step == 9  # the step at which it was read was not made


def test_a_label_without_an_output_leaves_the_device_usable() -> None:
    with pytest.raises(SampleError, match="but the model has 50 outputs"):
        fit(_model(50), Noise(90), cross_entropy, _sgd, _config())
    with pytest.raises(SampleError, match="but the model has 50 outputs"):
        evaluate(_model(50), Noise(90), cross_entropy, device="cuda")
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_best_weights_and_an_optimizer_with_state_follow_the_model(tmp_path: Path) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = Noise(90)
    fit(model, data, cross_entropy, optimizer, _config(device="cpu"))
    result = fit(model, data, cross_entropy, optimizer, _config(keep="best", csv=tmp_path / "run.csv"), data)
    assert result.best_step is not None
    again = evaluate(model, data, cross_entropy, device="cuda", batch_size=20)
    assert again["loss"] == pytest.approx(result.best_value, rel=1e-5)


def test_device_draws_are_keyed_and_given_back() -> None:
    device = choose_device("cuda")
    before = torch.cuda.get_rng_state()
    draws: list[torch.Tensor] = []
    with restored_generators(device):
        for step in (1, 1, 2):
            seed_step(device, 0, 0, step)
            draws.append(torch.rand(4, device=device))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.cuda.get_rng_state(), before)
