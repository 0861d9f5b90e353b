from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from toys import Failing, Noise

from headrace.datastores import AugmentedImageDatastore, Datastore, Loader
from headrace.errors import ConfigError, SampleError, ShapeError
from headrace.train import Accuracy, classify, evaluate, predict

Make = Callable[..., nn.Module]


class Parity(Datastore):
    """Sample i is the number i; its label is its parity."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": np.float64(index), "label": index % 2}


class Seen:
    """A metric that remembers what it was given; its value is the number of samples."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.targets: list[int] = []

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        assert len(outputs) == len(targets)
        self.targets += targets.tolist()

    def compute(self) -> torch.Tensor:
        return torch.tensor(len(self.targets))


def _numbers(batch: object) -> tuple[torch.Tensor, torch.Tensor]:
    return batch["x"], batch.ids


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 40))
def test_every_sample_counts_once_whatever_the_batch_size(samples: int, batch_size: int) -> None:
    seen = Seen()
    scores = evaluate(
        nn.Identity(), Parity(samples), lambda outputs, _: outputs.mean(), {"seen": seen},
        batch_size=batch_size, device="cpu", prepare=_numbers,
    )  # fmt: skip
    assert seen.targets == list(range(samples))
    assert scores["seen"] == samples
    assert scores["loss"] == pytest.approx((samples - 1) / 2, rel=1e-12)


def test_it_equals_what_the_whole_set_at_once_gives(held_out: Datastore, make_model: Make) -> None:
    model = make_model().double().eval()
    images = torch.tensor(held_out.images).permute(0, 3, 1, 2).double() / 255
    labels = torch.tensor(held_out.labels)
    with torch.no_grad():
        outputs = model(images)
    scores = evaluate(
        model, held_out, cross_entropy, {"accuracy": Accuracy(), "top3": Accuracy(3)}, batch_size=64, device="cpu",
        prepare=lambda batch: (batch.images.double() / 255, batch.labels),
    )  # fmt: skip
    assert scores["loss"] == pytest.approx(cross_entropy(outputs, labels).item(), rel=1e-12)
    assert scores["accuracy"] == (outputs.argmax(1) == labels).double().mean().item()
    assert scores["top3"] == pytest.approx((outputs.topk(3).indices == labels[:, None]).any(1).double().mean().item())


def test_padding_counts_nowhere(held_out: Datastore, make_model: Make) -> None:
    model, seen = make_model(), Seen()
    padded = Loader(held_out, 64, shuffle="never", last_batch="pad")
    kept = Loader(held_out, 64, shuffle="never", last_batch="keep")
    results = [
        evaluate(model, loader, cross_entropy, {"accuracy": Accuracy(), "seen": seen}, device="cpu")
        for loader in (padded, kept)
    ]
    assert results[0]["seen"] == results[1]["seen"] == len(held_out) == 297
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-6)


def test_the_mode_comes_back_and_no_gradient_is_left(held_out: Datastore, make_model: Make) -> None:
    model = make_model()
    model[0].eval()
    evaluate(model, held_out, lambda o, t: cross_entropy(o, t).requires_grad_(), device="cpu")
    assert [module.training for module in model] == [False] + [True] * 6
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_a_ready_loader_shows_epoch_0_each_time() -> None:
    data = Noise(20)
    with Loader(data, 8, last_batch="keep", workers=1) as loader:

        def total(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return outputs.mean()

        first, second = (evaluate(nn.Identity(), loader, total, device="cpu") for _ in range(2))
        assert first == second
        assert not loader._dispatcher.closed
    assert evaluate(nn.Identity(), data, total, device="cpu", workers=1)["loss"] == pytest.approx(first["loss"])


def test_batches_whose_samples_are_all_skipped_count_nothing() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return targets.double().mean()

    data = AugmentedImageDatastore((8, 8), Failing(range(8), samples=24), color="gray")
    with Loader(data, 8, shuffle="never", last_batch="keep", on_error="skip") as loader:
        found = evaluate(nn.Identity(), loader, loss, device="cpu")
        assert found["loss"] == np.arange(8, 24).mean()
        assert found == evaluate(nn.Identity(), loader, loss, device="cpu", prepare=lambda b: (b.images, b.labels))
        ids = torch.cat([part.ids for part in predict(nn.Identity(), loader, device="cpu")])
        assert ids.tolist() == list(range(8, 24))


def test_an_evaluation_of_nothing_is_an_error() -> None:
    data = Failing((), samples=8)
    with Loader(data, 8, shuffle="never", last_batch="keep", on_error="skip") as loader:
        data.bad = frozenset(range(8))
        with pytest.raises(SampleError, match="no sample of the evaluation could be made"):
            evaluate(nn.Identity(), loader, cross_entropy, device="cpu")
        with pytest.raises(SampleError, match="no sample could be made"):
            classify(nn.Flatten(), loader, device="cpu")


def test_bad_input_is_refused(held_out: Datastore, make_model: Make) -> None:
    model = make_model()
    with pytest.raises(ConfigError, match="the evaluation has no samples"):
        evaluate(model, [], cross_entropy, device="cpu")
    with pytest.raises(ConfigError, match="neither a loss nor metrics"):
        evaluate(model, held_out, device="cpu")
    with pytest.raises(ConfigError, match="drops the samples"):
        evaluate(model, Loader(held_out, 64), cross_entropy, device="cpu")
    with pytest.raises(ConfigError, match="rank=1 and world_size=2, but this process is rank 0 of 1"):
        evaluate(model, Loader(held_out, 64, last_batch="keep", rank=1, world_size=2), cross_entropy, device="cpu")
    with pytest.raises(ConfigError, match="metrics must be a dict"):
        evaluate(model, held_out, metrics=[Accuracy()], device="cpu")
    with pytest.raises(ConfigError, match='cannot be named "loss"'):
        evaluate(model, held_out, cross_entropy, {"loss": Accuracy()}, device="cpu")
    with pytest.raises(ConfigError, match="prepare returned"):
        evaluate(model, held_out, cross_entropy, device="cpu", prepare=lambda batch: [batch.images, batch.labels])
    with pytest.raises(ConfigError, match="not there"):
        evaluate(model, held_out, cross_entropy, device="cuda:99")
    with pytest.raises(ShapeError, match=r"the loss is float32 \(128,\)"):
        evaluate(model, held_out, lambda o, t: cross_entropy(o, t, reduction="none"), device="cpu")
    with pytest.raises(SampleError, match=r"has label 9, but the model has 9 outputs"):
        evaluate(make_model(9), held_out, cross_entropy, device="cpu")
    assert model.training
