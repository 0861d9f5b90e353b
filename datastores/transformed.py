"""A user's own function on every sample: torchvision's and albumentations' transforms, or any callable.

What such functions draw comes from generators that belong to the process, or to themselves. All of them are seeded for
each sample by (seed, epoch, sample id), so a sample does not depend on who makes it, or after which others.
"""

import random
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..augment.described import described
from ..augment.random import Draw, Purpose
from ..augment.ranges import shown
from ..errors import ConfigError, FieldError, ShapeError
from .arguments import right_place
from .clock import Clock, Stage
from .datastore import Datastore, SupportsIndex, as_datastore, fingerprint_of, place_of
from .derived import DerivedDatastore, count_below
from .generators import own_generators, seed_generators
from .joint import joints_below
from .schema import Field, IntArray, Rows, Sample, Schema, check_sample

__all__ = ["TransformedDatastore", "transform"]

#: What a function is called with: a tensor (C, H, W), albumentations' keywords, or an array (H, W, C).
_Family: TypeAlias = Literal["tensor", "albumentations", "array"]


def transform(
    data: Datastore | SupportsIndex, function: Callable[..., Any], *, field: str | None = "image"
) -> Datastore:
    """Return a datastore whose samples have gone through a function, in the workers; labels and all else stay.

    What the function gets and returns depends on its kind:

    * a transform of torchvision, or any ``torch.nn.Module``: a tensor (C, H, W), and returns one;
    * a transform of albumentations 2 (single, or composed): ``function(image=array)["image"]``;
    * anything else that can be called: an array (H, W, C), and returns an array, a Pillow image or a tensor (C, H, W).

    With ``field=None`` it gets the whole sample, a dict of arrays, numbers and strings, and returns such a mapping: a
    function of your own can change several fields together. albumentations gets the fields as keywords (``image``,
    ``mask``). Of the tensors that it returns, "image" and torchvision's ``tv_tensors.Image`` are (C, H, W) and
    become (H, W, C), as all images of samples are; any other tensor keeps its axes.

    In a batch "image" (or ``field``) is (N, C, H, W), if it has 1, 3 or 4 channels; so are second images of an
    ``AugmentedImageDatastore`` below, its label maps never, and other fields where they are uint8 (H, W, C).

    The generators of ``random``, ``numpy.random`` and torch, and those of albumentations, are seeded for each sample
    and each function; the first three are given back afterwards. What a function gets is a copy, which it may change.
    Background workers need functions that can be pickled, unless ``start_method="fork"``: a ``Loader`` checks that. A
    saved position is only valid with the same function: ``headrace.augment.described`` says by what functions count.

    Args:
        data: any datastore, such as ``AugmentedImageDatastore`` or one of whole images.
        function: what is called.
        field: the field that is changed; None: the function gets the sample.

    Raises:
        ConfigError: ``function`` cannot be called like this.

    Example:
        >>> data = [{"image": np.zeros((4, 6, 3), np.uint8), "label": 3}]
        >>> def noisy(image):
        ...     return image + np.random.randint(0, 9, image.shape, np.uint8)
        >>> changed = transform(data, noisy)
        >>> changed[0]["label"], bool((changed[0]["image"] == changed[0]["image"]).all())
        (3, True)
    """
    if not callable(function) or isinstance(function, type):
        raise ConfigError(
            f"a transform must be a function, or a value such as v2.RandomCrop(32), got {shown(function)}: "
            f"{right_place(function)}"
        )
    family = _family(function)
    if family == "tensor" and field is None:
        raise ConfigError(
            f"{_name(function)} changes one image: name its field, or write a function of the sample that makes "
            "torchvision's tv_tensors of its fields"
        )
    if family == "albumentations" and not hasattr(function, "set_random_state"):
        raise ConfigError(f"{_name(function)} has no set_random_state(): albumentations 2 or newer is needed")
    return TransformedDatastore(as_datastore(data), function, field, family)


class TransformedDatastore(DerivedDatastore):
    """What ``transform`` makes.

    Args:
        source: gives the samples.
        function: changes them.
        field: which part of them; None: all.
        family: how the function is called.
    """

    def __init__(self, source: Datastore, function: Callable[..., Any], field: str | None, family: _Family) -> None:
        super().__init__(source)
        self.function = function
        self.field = field
        self._family = family
        self._identity = described(function)  # now, before it is called and remembers something
        self._depth = 1 + count_below(source, TransformedDatastore)  # each function has its own random numbers

    def sample(self, index: int, draw: Draw) -> Sample:
        """Return sample ``index`` as ``draw`` makes it.

        Raises:
            FieldError, ShapeError: there is no such field, or the function returned something that is no image.
        """
        with closing(self.sample_many(np.array([index], np.int64), draw)) as samples:
            return next(samples)

    def sample_many(self, ids: IntArray, draw: Draw) -> Generator[Sample]:
        """Make samples one after the other, each as ``sample`` makes it; to be closed if it is left before its end."""
        return self._made(ids, draw, Clock())

    def fill(self, ids: IntArray, draw: Draw, rows: Rows, clock: Clock) -> None:
        """Write the samples ``ids`` into ``rows``; a source that makes many at once does so here too.

        Raises:
            FieldError, ShapeError: a sample lacks a field, or does not fit into the rows.
        """
        taken = next((field for field in self._source_fields if field.name == self.field and field.name in rows), None)
        if taken is None:
            with closing(self._made(ids, draw, clock)) as samples:
                for row, (index, sample) in enumerate(zip(ids.tolist(), samples, strict=True)):
                    for name, column in rows.items():
                        self._put(sample, index, name, column, row)
            return
        scratch = np.empty((len(ids), *taken.shape), taken.dtype)
        self.source.fill(ids, draw, {**rows, taken.name: scratch}, clock)
        with own_generators():
            for row, index in enumerate(ids.tolist()):
                self._seed(draw, index)
                sample = self._changed({taken.name: scratch[row]}, index)
                self._put(sample, index, taken.name, rows[taken.name], row)
        clock.lap(Stage.AUGMENT)

    @cached_property
    def _source_fields(self) -> tuple[Field, ...]:
        """Of a source that makes many samples at once, all of one shape; none of other sources."""
        plain = (Datastore.fill, TransformedDatastore.fill)
        return () if type(self.source).fill in plain else self.source.schema().fields

    def _made(self, ids: IntArray, draw: Draw, clock: Clock) -> Generator[Sample]:
        with own_generators(), closing(self.source.sample_many(ids, draw)) as samples:
            for index, sample in zip(ids.tolist(), samples, strict=True):
                clock.lap(Stage.READ)
                self._seed(draw, index)
                changed = self._changed(sample, index)
                clock.lap(Stage.AUGMENT)
                yield changed

    def _seed(self, draw: Draw, index: int) -> None:
        seed_generators(draw, index, self._depth)
        if self._family == "albumentations":
            rng = draw.generator(index, Purpose.TRANSFORM, self._depth)
            # One generator for all parts: set_random_seed() would give each part the same numbers.
            self.function.set_random_state(rng, random.Random(int(rng.integers(2**63))))  # type: ignore[attr-defined]  # noqa: S311

    def schema(self) -> Schema:
        """Describe one row of a batch, by making the first sample that can be made (of the first 32)."""
        own = super().schema()
        fields = tuple(replace(field, is_image=self._is_image(field)) for field in own.fields)
        self._source_fields  # noqa: B018 - a source that cannot say them says so now, and workers need not ask
        return replace(own, fields=fields)

    @property
    def fingerprint(self) -> str:
        """A digest of the source and the function; ``augment.described`` says by what a function counts."""
        return fingerprint_of("transform", self.source.fingerprint, self._identity, self.field)

    def _is_image(self, field: Field) -> bool:
        below = joints_below(self.source)
        if any(field.name in joint.others for joint in below):
            return False
        named = field.name == (self.field or "image") or any(field.name in joint.images for joint in below)
        return field.is_image or (named and len(field.shape) == 3 and field.shape[2] in (1, 3, 4))

    def _changed(self, sample: Sample, index: int) -> Sample:
        check_sample(sample, place_of(self, index))
        own = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        if self.field is None:
            result = self.function(**own) if self._family == "albumentations" else self.function(own)
            if not isinstance(result, Mapping):
                raise self._wrong(result, index, "a mapping of field names to arrays, numbers or strings")
            return {name: _array(value, is_image=name == "image") for name, value in result.items()}
        if self.field not in own:
            raise FieldError(f"{place_of(self, index)} has no field {self.field!r}: it has {sorted(own)}")
        result = self._called(np.asarray(own[self.field]))
        value = _array(result, is_image=True)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise self._wrong(result, index, "an image: an array (H, W, C), or a tensor (C, H, W)")
        return own | {self.field: value}

    def _called(self, image: NDArray[Any]) -> Any:
        if self._family == "albumentations":
            return self.function(image=image)["image"]
        if self._family == "array":
            return self.function(image)
        planes = torch.from_numpy(image[:, :, np.newaxis] if image.ndim == 2 else image).permute(2, 0, 1)
        with torch.no_grad():
            return self.function(planes.contiguous())

    def _wrong(self, result: object, index: int, wanted: str) -> ShapeError:
        found = f"{_name(self.function)} returned {type(result).__name__} for {place_of(self, index)}"
        return ShapeError(f"{found}: it must return {wanted}")


def _family(function: Callable[..., Any]) -> _Family:
    roots = {kind.__module__.partition(".")[0] for kind in type(function).__mro__}
    if "albumentations" in roots:
        return "albumentations"
    return "tensor" if roots & {"torch", "torchvision"} else "array"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _array(value: object, *, is_image: bool) -> object:
    """Return a tensor as an array, (H, W, C) if it is an image (C, H, W), a Pillow image too, and all else as it is."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().as_subclass(torch.Tensor)
        is_image = is_image or type(value).__name__ == "Image"  # of torchvision.tv_tensors
        return (plain.permute(1, 2, 0) if is_image and plain.ndim == 3 else plain).numpy()
    return np.asarray(value) if hasattr(value, "__array_interface__") else value
