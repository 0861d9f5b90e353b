from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import encode, photo
from torch import nn

from headrace.datastores import AugmentedImageDatastore, Datastore, ImageDatastore, Loader
from headrace.errors import ConfigError, ShapeError
from headrace.train import activations, classify, predict


def _images(count: int = 11) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"image": rng.integers(0, 256, (4, 4, 1), dtype=np.uint8)} for _ in range(count)]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def _expected(model: nn.Module, data: list[dict[str, np.ndarray]]) -> torch.Tensor:
    images = torch.from_numpy(np.stack([sample["image"] for sample in data])).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        return model.eval()(images)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_each_sample_once_in_stored_order(batch_size: int) -> None:
    data, model = _images(), _model().train()
    parts = list(predict(model, data, batch_size=batch_size, device="cpu"))
    assert model.training
    assert torch.cat([part.ids for part in parts]).tolist() == list(range(11))
    assert torch.allclose(torch.cat([part.outputs for part in parts]), _expected(model, data), atol=1e-6)


def test_padding_is_left_out_and_a_ready_loader_stays_open() -> None:
    data, model = _images(), _model()
    with Loader(data, 4, last_batch="pad", seed=5) as loader:
        parts = list(predict(model, loader, device="cpu"))
        ids = torch.cat([part.ids for part in parts])
        assert sorted(ids.tolist()) == list(range(11))
        assert torch.allclose(torch.cat([part.outputs for part in parts]), _expected(model, data)[ids], atol=1e-6)
        assert not loader._dispatcher.closed  # type: ignore[union-attr]


def test_a_model_may_be_trained_between_two_batches() -> None:
    data, model = _images(), _model().train()
    for _ in predict(model, data, batch_size=4, device="cpu"):
        assert model.training
        model(torch.rand(2, 1, 4, 4)).sum().backward()


def test_outputs_may_be_structures() -> None:
    class Both(nn.Module):
        def forward(self, inputs: torch.Tensor) -> dict[str, Any]:
            return {"mean": inputs.flatten(1).mean(1), "pair": (inputs, [inputs[:, 0]])}

    (part,) = predict(Both(), _images(3), device="cpu")
    assert part.outputs["mean"].shape == (3,)
    assert part.outputs["pair"][1][0].shape == (3, 4, 4)


def test_prepare_gives_the_inputs() -> None:
    data = [{"image": sample["image"], "label": 1} for sample in _images(3)]
    (part,) = predict(nn.Identity(), data, device="cpu", prepare=lambda batch: (batch.images + 1, batch.labels))
    assert part.outputs.dtype == torch.uint8


def test_classes_have_names_and_probabilities(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / ["dog", "cat", "fox"][number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(photo(6, 6, number), "PNG"))
    data = AugmentedImageDatastore((4, 4), ImageDatastore(tmp_path), color="gray")
    model = _model()
    found = classify(model, data, device="cpu", batch_size=4)
    outputs = torch.cat([part.outputs for part in predict(model, data, device="cpu")])
    assert found.names == ("cat", "dog", "fox")
    assert found.ids.tolist() == list(range(6))
    assert torch.equal(found.labels, outputs.argmax(1))
    assert torch.allclose(found.probabilities, outputs.softmax(1).max(1).values)
    assert repr(found).startswith(f"<Classes of 6 samples: {found.names[found.labels[0]]}, ")
    with pytest.raises(ConfigError, match="names has 1 classes and the model has 3 outputs"):
        classify(model, data, names=["one"], device="cpu")
    with pytest.raises(ConfigError, match="the data have 3 classes and the model has 4 outputs"):
        classify(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), data, device="cpu")
    assert classify(model, _images(2), names=["a", "b", "c"], device="cpu").names == ("a", "b", "c")
    with Loader(data, 2, last_batch="keep") as loader:
        assert classify(model, loader, device="cpu").names == ("cat", "dog", "fox")


def test_activations_are_those_of_the_layer() -> None:
    data, model = _images(5), _model().eval()
    (part,) = activations(model, data, "3", device="cpu")
    with torch.no_grad():
        images = torch.from_numpy(np.stack([sample["image"] for sample in data])).permute(0, 3, 1, 2) / 255
        assert torch.allclose(part.outputs, model[:4](images), atol=1e-6)
    assert not model[3]._forward_hooks


def test_bad_input_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="the prediction has no samples"):
        predict(_model(), [], device="cpu")
    with pytest.raises(ConfigError, match=r"Sequential has no layer '9': it has 0, 1, 2, 3, 4"):
        activations(_model(), _images(), "9", device="cpu")
    with pytest.raises(ConfigError, match="has no layer ''"):
        activations(_model(), _images(), "", device="cpu")

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ReLU()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs

    with pytest.raises(ConfigError, match="does not use its layer 'layer'"):
        list(activations(Unused(), _images(), "layer", device="cpu"))
    with pytest.raises(ShapeError, match="a row for each"):
        list(predict(nn.Flatten(0), _images(), device="cpu"))
    with pytest.raises(ShapeError, match=r"classify needs outputs \(N, classes\)"):
        classify(nn.Identity(), _images(), device="cpu")


def test_workers_are_ended_when_the_predictions_are_left(digits: Datastore) -> None:
    parts = predict(nn.Flatten(), digits, workers=1, batch_size=50, device="cpu")
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    import multiprocessing

    assert not [child for child in multiprocessing.active_children() if "headrace" in child.name]
