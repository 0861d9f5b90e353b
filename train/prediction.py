"""What a trained model says of data: outputs, classes, or what one of its layers makes of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..datastores.batch import Batch
from ..datastores.loader import Loader
from ..errors import ConfigError, SampleError, ShapeError
from .device import DeviceFeed, choose_device, mode
from .distributed import find_place
from .loading import Data, class_names, evaluation_loader
from .prepare import Prepare, describe, inputs_and_targets, scaled_images, select_rows

__all__ = ["Classes", "Prediction", "activations", "classify", "predict"]


@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """What came out for some samples; in host memory.

    Args:
        ids: int64 (n,), sample ids.
        outputs: what the model (or a layer) returned for them: a tensor (n, ...), or a tuple, list or mapping of such.
    """

    ids: torch.Tensor
    outputs: Any

    def __repr__(self) -> str:
        return f"<Prediction of {len(self.ids)} samples: {describe(self.outputs)}>"


@dataclass(frozen=True, slots=True)
class Classes:
    """Which class a model takes each sample for; in host memory.

    Args:
        ids: int64 (n,), sample ids.
        labels: int64 (n,), the class with the highest output; the first one of equals.
        probabilities: float32 (n,), softmax of the outputs at that class.
        names: of the classes by number; empty where the data know none.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    probabilities: torch.Tensor
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        shown = [self.names[label] if self.names else str(label) for label in self.labels[:4].tolist()]
        return f"<Classes of {len(self)} samples: {', '.join(shown)}{', ...' if len(self) > 4 else ''}>"


def predict(
    model: nn.Module,
    data: Data,
    *,
    batch_size: int = 128,
    workers: int | Literal["auto"] = 0,
    device: str = "auto",
    prepare: Prepare | None = None,
) -> Iterator[Prediction]:
    """Go through ``data`` once, in stored order, and give the model's outputs batch by batch.

    The model is in evaluation mode meanwhile and has its modes back afterwards; it stays on the device. Memory holds a
    few batches, however long the data are. The data need no labels.

    Args:
        model: any module.
        data: a datastore, any object with ``__len__`` and ``__getitem__``, or a ready Loader that drops nothing (whose
            settings and order then win); epoch 0 of it.
        batch_size: rows of a batch.
        workers: background processes that make batches.
        device: as in ``TrainConfig``.
        prepare: makes (inputs, targets) of a batch on the device, of which only the inputs are used; None: images as
            float32 in [0, 1].

    Raises:
        ConfigError: no samples, or a device that is not there; raised at once, not at the first batch.
        ShapeError: the model's outputs have not one row for each sample.

    Example:
        >>> data = [{"image": torch.zeros(4, 4, 1, dtype=torch.uint8).numpy()} for _ in range(5)]
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> found = predict(model, data, batch_size=3, device="cpu")
        >>> [(part.ids.tolist(), tuple(part.outputs.shape)) for part in found]
        [([0, 1, 2], (3, 2)), ([3, 4], (2, 2))]
    """
    feed = DeviceFeed(choose_device(device, find_place().local_rank))
    loader = evaluation_loader(data, "the prediction", batch_size=batch_size, workers=workers)
    return _predict(model, loader, feed, prepare, closes=loader is not data)


def _predict(
    model: nn.Module, loader: Loader, feed: DeviceFeed, prepare: Prepare | None, *, closes: bool
) -> Iterator[Prediction]:
    try:
        loader.set_epoch(0)
        model.to(feed.device)
        for host in loader:
            if not len(host):  # every sample of it was skipped
                continue
            # not around the yield: whoever reads these may train in between
            with torch.no_grad(), mode(model, training=False):
                outputs = model(_inputs(prepare, feed.move(host)))
            rows = None if bool(host.valid.all()) else host.valid.nonzero()[:, 0]
            ids = host.ids if rows is None else host.ids[rows]
            yield Prediction(ids.clone(), _to_host(_rows_of(outputs, rows, len(host))))
    finally:
        if closes:
            loader.close()


def classify(
    model: nn.Module,
    data: Data,
    *,
    names: Sequence[str] | None = None,
    batch_size: int = 128,
    workers: int | Literal["auto"] = 0,
    device: str = "auto",
    prepare: Prepare | None = None,
) -> Classes:
    """Return which class ``model`` takes each sample for.

    Args:
        model: returns (N, classes), the higher the likelier (logits).
        data: as for ``predict``.
        names: of the classes by number, as the training set numbers them (``images.classes``); None: those of the
            data, if they have as many as the model has outputs.
        batch_size: rows of a batch.
        workers: background processes that make batches.
        device: as in ``TrainConfig``.
        prepare: as for ``predict``.

    Raises:
        ConfigError: as for ``predict``, or the names are not as many as the model's outputs.
        ShapeError: the outputs are not (N, classes).
        SampleError: not one sample could be made.

    Example:
        >>> data = [{"image": torch.zeros(2, 2, 1, dtype=torch.uint8).numpy()}] * 3
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> found = classify(model, data, names=["cat", "dog"], device="cpu")
        >>> found.labels.shape, found.names
        (torch.Size([3]), ('cat', 'dog'))
    """
    ids, labels, probabilities = [], [], []
    for part in predict(model, data, batch_size=batch_size, workers=workers, device=device, prepare=prepare):
        outputs = part.outputs
        if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
            raise ShapeError(f"classify needs outputs (N, classes), and the model returned {describe(outputs)}")
        guesses = outputs.argmax(1)
        ids.append(part.ids)
        labels.append(guesses)
        probabilities.append(outputs.float().softmax(1).gather(1, guesses[:, None])[:, 0])
    if not ids:
        raise SampleError("no sample could be made: all of them were skipped (on_error)")
    return Classes(torch.cat(ids), torch.cat(labels), torch.cat(probabilities), _names(names, data, outputs.shape[1]))


def activations(
    model: nn.Module,
    data: Data,
    layer: str,
    *,
    batch_size: int = 128,
    workers: int | Literal["auto"] = 0,
    device: str = "auto",
    prepare: Prepare | None = None,
) -> Iterator[Prediction]:
    """Go through ``data`` once and give what a layer of the model puts out, batch by batch.

    Args:
        model: any module.
        data: as for ``predict``.
        layer: the layer's name as in ``model.named_modules()``, for example "features.3".
        batch_size: rows of a batch.
        workers: background processes that make batches.
        device: as in ``TrainConfig``.
        prepare: as for ``predict``.

    Raises:
        ConfigError: there is no such layer (the message names those there are), the model does not use it, or as for
            ``predict``.

    Example:
        >>> data = [{"image": torch.zeros(2, 2, 1, dtype=torch.uint8).numpy()}] * 3
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [tuple(part.outputs.shape) for part in activations(model, data, "2", device="cpu")]
        [(3, 8)]
    """
    return predict(_UpTo(model, layer), data, batch_size=batch_size, workers=workers, device=device, prepare=prepare)


class _UpTo(nn.Module):
    """Returns what one layer of a model puts out, of its last call; the rest of the model runs as well."""

    def __init__(self, model: nn.Module, layer: str) -> None:
        super().__init__()
        layers = dict(model.named_modules())
        if layer not in layers or not layer:
            raise ConfigError(
                f"{type(model).__name__} has no layer {layer!r}: it has {', '.join(name for name in layers if name)}"
            )
        self.model = model
        self._name = layer
        self._found: list[Any] = []

    def forward(self, inputs: Any) -> Any:
        self._found.clear()
        hook = self.model.get_submodule(self._name).register_forward_hook(self._keep)
        try:
            self.model(inputs)
        finally:
            hook.remove()
        if not self._found:
            raise ConfigError(f"the model does not use its layer {self._name!r}: nothing came out of it")
        return self._found.pop()

    def _keep(self, module: nn.Module, inputs: Any, outputs: Any) -> None:  # noqa: ARG002 - the signature of a hook
        self._found = [outputs]


def _names(given: Sequence[str] | None, data: Data, outputs: int) -> tuple[str, ...]:
    names = class_names(data) if given is None else tuple(given)
    if names and len(names) != outputs:
        whose = "the data have" if given is None else "names has"
        raise ConfigError(
            f"{whose} {len(names)} classes and the model has {outputs} outputs: pass the names of the classes that it "
            "was trained on, names=images.classes of the training set"
        )
    return names


def _inputs(prepare: Prepare | None, batch: Batch) -> Any:
    return scaled_images(batch) if prepare is None else inputs_and_targets(prepare, batch)[0]


def _rows_of(outputs: Any, rows: torch.Tensor | None, count: int) -> Any:
    if isinstance(outputs, torch.Tensor) and (not outputs.ndim or len(outputs) != count):
        raise ShapeError(f"the model returned {describe(outputs)} for {count} samples: it must return a row for each")
    return select_rows(outputs, rows, count)


def _to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {name: _to_host(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_to_host(part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
