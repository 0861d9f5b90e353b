"""Normalised images, made by the workers, for models that are trained on a CPU."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ..augment.normalize import Normalize
from ..augment.random import Draw
from ..augment.ranges import shown
from ..errors import ConfigError, ShapeError
from .arguments import right_place
from .clock import Clock, Stage
from .datastore import Datastore, SupportsIndex, as_datastore, fingerprint_of
from .derived import DerivedDatastore
from .schema import IntArray, Rows, Sample, Schema

__all__ = ["normalize"]


def normalize(
    data: Datastore | SupportsIndex, normalization: Normalize, *, fields: Sequence[str] = ("image",)
) -> Datastore:
    """Return a datastore whose images are normalised; everything else in a sample stays.

    Its batches are float32, four times as large as bytes, and ready for the model. That pays where the model runs on a
    CPU, since the workers do it. Where it runs on a GPU, send bytes and normalise them there, with
    ``prepare=headrace.train.normalized_images(...)`` or ``Normalize.apply``: the bits are the same.

    Args:
        data: a datastore whose images are uint8 and of one size, such as ``AugmentedImageDatastore``.
        normalization: mean and standard deviation.
        fields: which fields are images.

    Raises:
        ConfigError: ``normalization`` is none, or ``data`` is no datastore.

    Example:
        >>> data = [{"image": np.full((2, 2, 3), 255, np.uint8), "label": 3}]
        >>> sample = normalize(data, Normalize(mean=0.5, std=0.5))[0]
        >>> sample["image"].dtype, float(sample["image"].min()), sample["label"]
        (dtype('float32'), 1.0, 3)
    """
    if not isinstance(normalization, Normalize):
        raise ConfigError(
            f"normalization must be Normalize(mean=..., std=...), got {shown(normalization)}: "
            f"{right_place(normalization)}"
        )
    if isinstance(fields, str) or not fields:
        raise ConfigError(f"fields must be a list of field names, such as ['image'], got {fields!r}")
    return _NormalizedDatastore(as_datastore(data), normalization, tuple(fields))


class _NormalizedDatastore(DerivedDatastore):
    def __init__(self, source: Datastore, normalization: Normalize, fields: tuple[str, ...]) -> None:
        super().__init__(source)
        self.normalization = normalization
        self.fields = fields

    def sample(self, index: int, draw: Draw) -> Sample:
        sample = dict(self.source.sample(index, draw))
        for name in self.fields:
            image = np.ascontiguousarray(sample[name])
            out = np.empty(image.shape, np.float32)
            self._apply(image[np.newaxis], out[np.newaxis], index, name)
            sample[name] = out
        return sample

    def schema(self) -> Schema:
        """As the source's, but for the images.

        Raises:
            ConfigError: a field is missing, or is no image.
        """
        schema = self.source.schema()
        fields = {field.name: field for field in schema.fields}
        for name in self.fields:
            if name not in fields or not fields[name].is_image or fields[name].dtype != "uint8":
                raise ConfigError(
                    f"field {name!r} cannot be normalised: it must be an image, uint8 (H, W, C), and {self.source!r} "
                    f"has {fields.get(name, f'the fields {sorted(fields)}')}"
                )
            fields[name] = replace(fields[name], dtype="float32")
        return replace(schema, fields=tuple(fields.values()))

    def fill(self, ids: IntArray, draw: Draw, rows: Rows, clock: Clock) -> None:
        scratch = {name: np.empty(rows[name].shape, np.uint8) for name in self.fields if name in rows}
        self.source.fill(ids, draw, {**rows, **scratch}, clock)
        for name, images in scratch.items():
            self._apply(images, rows[name], int(ids[0]), name)
        clock.lap(Stage.AUGMENT)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(type(self).__qualname__, self.source.fingerprint, self.normalization, self.fields)

    def _apply(self, images: NDArray[np.uint8], out: NDArray[np.float32], index: int, name: str) -> None:
        try:
            if images.ndim != 4 or images.dtype != np.uint8:
                raise ShapeError(f"an image must be uint8 (H, W, C), got {images.dtype} {images.shape[1:]}")
            sources, targets = (torch.from_numpy(array).permute(0, 3, 1, 2) for array in (images, out))
            self.normalization.apply(sources, targets)
        except ShapeError as error:
            raise ShapeError(f"field {name!r} of {self.locate(index)}: {error}") from error
