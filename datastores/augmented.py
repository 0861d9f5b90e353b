"""Images of one size, each moved at random: what training reads.

::

    source -- bytes --> decode -- uint8 (H, W, C) --> resample by one matrix --> a row of the batch --> colors, all rows
                                                         ^                                                at once
                 sample id, seed, epoch --> policy @ crop @ movement, drawn before any pixel is touched;
                                            the same for the sample's label maps, boxes and key points
"""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..augment.augmenter import ImageAugmenter
from ..augment.crop import Crop
from ..augment.described import described
from ..augment.geometry import FloatArray
from ..augment.pixels import PixelOperation, apply_all
from ..augment.placement import Placement
from ..augment.policy import Movements, Policy
from ..augment.random import Draw, Purpose
from ..augment.together import cut_together
from ..errors import ConfigError, FieldError, ShapeError
from .arguments import as_augmenter, as_crop, as_movements, as_operations
from .clock import Clock, Stage
from .datastore import (
    Datastore,
    ImageSource,
    SupportsIndex,
    as_datastore,
    as_index,
    classes_of,
    fingerprint_of,
    place_of,
)
from .decode import OWN_BYTES, Color, Decoder, Pixels, convert
from .derived import count_below
from .joint import Joint, different_size
from .schema import Field, IntArray, Rows, Sample, Schema

__all__ = ["AugmentedImageDatastore"]

#: What was drawn for a sample: the crop's numbers, the movement as a matrix, or as the mirrors if there is no more, and
#: how a policy moves the output.
_Drawn: TypeAlias = tuple[list[float], FloatArray | tuple[bool, bool], FloatArray | None]

#: Images that are cut together, with their rows: they should stay in a core's cache.
_GROUP_BYTES = 2**21

#: The first world of a datastore around another one; those before it are for operations that occur again.
_FIRST_FORK = 2**16


class AugmentedImageDatastore(Datastore):
    """Reads images and makes them one size, moved at random if asked; nothing is stored.

    Each image is decoded, converted to ``color``, moved by ``augment`` about its centre at its full size, and then cut
    and scaled to ``output_size`` by ``mode``; then the movements of ``policy`` follow. All these are one matrix and one
    interpolation. What changes values comes after it: that of ``policy``, then ``photometric``. What sample i looks
    like depends on the seed, the epoch and i, never on the batch or the worker. Around another
    ``AugmentedImageDatastore`` it draws other numbers (``own_draw``), and so does an operation that occurs again in
    ``photometric`` (``headrace.augment.apply_all``).

    A source of arrays may have more to move than an image: label maps, second images, boxes and key points that are
    named here go the same way. Coordinates are measured between edges: (0, 0) is the upper left corner of the image,
    (1/2, 1/2) the centre of its first pixel, (W, H) its lower right corner. A batch needs as many boxes of every
    sample, so pad them in the source, with NaN for example, which stays NaN.

    Args:
        output_size: height and width of every output; a third number is accepted if it is the number of channels.
        source: an image datastore, or anything with ``__len__`` and ``__getitem__`` whose samples have an "image",
            uint8 (H, W) or (H, W, C). Fields that are not named below are passed on unchanged.
        mode: "resize" scales width and height each on its own; "letterbox" scales the image until it fits, puts it in
            the middle and fills the rest with the ``fill_value`` of ``augment``, or 0; "center_crop" and "random_crop"
            cut ``output_size`` pixels without scaling; "random_resized_crop" cuts a random part and scales it, and
            "resized_center_crop" the middle (7/8 of it), as models trained so are evaluated; or a value such as
            ``RandomResizedCrop(scale=(0.5, 1))``.
        augment: the random movements; none by default.
        color: "rgb" (gray is repeated), "gray" (Pillow's luma) or "keep", for sources whose images all agree.
        policy: ``TrivialAugment`` or ``RandAugment``; its movements act on the output. ``policy.geometry`` is those
            alone, where a GPU does the rest.
        crop_scale: for "random_resized_crop": smallest and largest area as a part of the image's, (0.08, 1) by default.
        crop_ratio: for "random_resized_crop": smallest and largest width / height, (3/4, 4/3) by default.
        photometric: what changes the values of the pixels, such as ``ColorAugmenter``: one operation, or several that
            are applied in their order; none by default. Leave it out to apply them to whole batches on a GPU instead:
            ``apply_all(operations, batch.images, batch.ids, Draw(seed, batch.epoch))`` gives the same bits.
        masks: fields with label maps, whole numbers (H, W) or (H, W, C) of the image's size. Labels are never mixed:
            each pixel of the output takes the one that its centre lies in. In a batch they are (N, h, w) or (N, h, w,
            C), of any type and number of channels; second images are (N, C, h, w).
        images: fields with second images of the image's size, which may have other channels with color="keep". They
            are converted, moved and filled like the image, but keep their values: ``photometric`` and the values of
            ``policy`` are for "image" alone, since a second image is most often what a model is to find. Where it shall
            change too, ``apply_all(operations, batch["second"], ...)`` draws the same for it.
        boxes: fields with rectangles, float (n, 4): left, top, right and bottom edge. They become the upright
            rectangles around the moved ones, cut to the output; one that has left it keeps its row and has no area.
        keypoints: fields with points, float (n, 2): x and y. They are not cut to the output.
        mask_fill: label of what lies outside of the image; 255 is what most losses are told to ignore.
        reduced_decode: read JPEGs of a megapixel and more at a half, a quarter or an eighth of their size, as long as
            that leaves sqrt(2) times the resolution that the output needs. Crops and movements are the same, measured
            in the image of full size, but pixels differ a little (39 dB and more; ``benchmarks/reduced.py``). Where the
            right or lower edge is seen, only what divides the image's width or height is used. Images that only then
            are within the limit of ``decode.MAX_PIXELS`` are read. Only for image files.

    Raises:
        ConfigError: settings that cannot work, alone or together.

    Example:
        >>> images = [{"image": np.zeros((40, 60), np.uint8), "label": 3}]
        >>> augment = ImageAugmenter(x_reflection=True, rotation=(-5, 5))
        >>> data = AugmentedImageDatastore((32, 32), images, mode="random_crop", augment=augment)
        >>> data[0]["image"].shape, data[0]["label"]
        ((32, 32, 3), 3)
        >>> street = [{"image": np.zeros((40, 60, 3), np.uint8), "mask": np.zeros((40, 60), np.uint8)}]
        >>> AugmentedImageDatastore((32, 32), street, mode="letterbox", masks=["mask"])[0]["mask"][:, 0].tolist()[:7]
        [255, 255, 255, 255, 255, 0, 0]
    """

    def __init__(
        self,
        output_size: Sequence[int],
        source: Datastore | SupportsIndex,
        *,
        mode: str | Crop = "resize",
        augment: ImageAugmenter | None = None,
        policy: Movements | None = None,
        color: Color = "rgb",
        crop_scale: tuple[float, float] | None = None,
        crop_ratio: tuple[float, float] | None = None,
        photometric: PixelOperation | Sequence[PixelOperation] | None = None,
        masks: Sequence[str] = (),
        images: Sequence[str] = (),
        boxes: Sequence[str] = (),
        keypoints: Sequence[str] = (),
        mask_fill: int = 255,
        reduced_decode: bool = False,
    ) -> None:
        self.source = as_datastore(source)
        self.augment = as_augmenter(augment)
        self.crop = as_crop(mode, crop_scale, crop_ratio)
        self.color = color
        self.policy = as_movements(policy)
        values = (policy,) if isinstance(policy, Policy) else ()  # its .geometry changes none
        self.photometric = (*values, *as_operations(photometric))
        self.joint = Joint.of(masks, images, boxes, keypoints, mask_fill)
        self._pictures = ("image", *self.joint.images)
        if self.joint.names and isinstance(self.source, ImageSource):
            raise ConfigError(
                f"{type(self.source).__name__} gives images and labels, and no fields {sorted(self.joint.names)}: "
                "write a Datastore whose samples have them as arrays, for example by decode_mask()"
            )
        if reduced_decode and not isinstance(self.source, ImageSource):
            raise ConfigError(f"reduced_decode is about image files, and {self.source!r} gives arrays: leave it out")
        self.reduced_decode = reduced_decode
        self._decode = Decoder(color)
        self._size, self._channels = _output(output_size, color)
        fill = () if augment is None or isinstance(augment.fill_value, int) else augment.fill_value
        if fill and self._channels not in (None, len(fill)):
            raise ConfigError(f"fill_value={fill} has {len(fill)} values, but color={color!r} has {self._channels}")
        self._fill = 0 if augment is None else augment.fill_value
        self._depth = count_below(self.source, AugmentedImageDatastore)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        """Return sample ``index`` as seed 0 and epoch 0 draw it; ``sample`` takes any draw."""
        return self.sample(index, Draw())

    def sample(self, index: int, draw: Draw) -> Sample:
        """Return a sample: "image" uint8 (h, w, C), "label" and "key" where the source has them, and its other fields.

        Raises:
            DecodeError, FieldError, ShapeError: the sample cannot be made.
        """
        index = as_index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"sample ids must be in 0 .. {len(self) - 1}, got {index}")
        ids = np.array([index], np.int64)
        with closing(self._groups(ids, draw, Clock())) as groups:
            sample, placement = next(groups)[0]
        for name in (*self._pictures, *self.joint.others):
            sample[name] = self._moved(index, sample, name, placement)
        if self.photometric:
            sample["image"] = self._changed(np.array(sample["image"])[np.newaxis], ids, draw)[0]
        if isinstance(self.source, ImageSource):
            sample["key"] = self.source.key(index)
        return sample

    def own_draw(self, draw: Draw) -> Draw:
        """Return what this datastore draws from in a random world, for the part of its work that is left to a GPU.

        That is ``draw`` itself, unless it is made of another ``AugmentedImageDatastore``.
        """
        return draw.fork(_FIRST_FORK + self._depth) if self._depth else draw

    def schema(self) -> Schema:
        """Describe one row, without reading anything if the source holds image files and the channels are known.

        Raises:
            ConfigError: there are no samples.
        """
        if not len(self):
            raise ConfigError(f"{type(self.source).__name__} is empty: there is nothing to load")
        if isinstance(self.source, ImageSource):
            found = Schema((Field("label", (), "int64"),) if self.source.has_labels else (), ("key",))
        else:
            found = self.source.schema()
        sample = self.sample(0, Draw()) if self._channels is None or self.joint.names else {}
        channels = {name: sample[name].shape[2] if sample else self._channels or 0 for name in self._pictures}
        pictures = (Field(name, (*self._size, channels[name]), "uint8", is_image=True) for name in self._pictures)
        found_moved = Schema.of({name: sample[name] for name in self.joint.others}, self.locate(0)).fields
        moved = (replace(field, is_image=False) for field in found_moved)  # a label map of three channels is none
        kept = (field for field in found.fields if field.name not in (*self._pictures, *self.joint.others))
        return Schema((*pictures, *moved, *kept), found.texts)

    def fill(self, ids: IntArray, draw: Draw, rows: Rows, clock: Clock) -> None:
        """Write the samples ``ids`` into ``rows``; each image is resampled straight into its row.

        Raises:
            DecodeError, FieldError, ShapeError: a sample cannot be made; the message says which.
        """
        first = 0
        with closing(self._groups(ids, draw, clock)) as groups:
            for group in groups:
                part = slice(first, first + len(group))
                samples, placements = zip(*group, strict=True)
                self._write(ids[part].tolist(), samples, placements, {name: rows[name][part] for name in rows})
                first = part.stop
                clock.lap(Stage.AUGMENT)
        if self.photometric and "image" in rows:
            rows["image"][:] = self._changed(rows["image"], ids, draw)
            clock.lap(Stage.AUGMENT)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, as the source's; empty where it has none."""
        return classes_of(self.source)

    @property
    def shard_sizes(self) -> IntArray:
        """As the source's."""
        return self.source.shard_sizes

    @property
    def fingerprint(self) -> str:
        """A digest of the source and all settings; ``augment.described`` says by what functions and objects count."""
        augment = None if self.augment is None else self.augment.settings
        values = described((self.crop, self.photometric))
        settings = (self._size, self._channels, values, self.color, augment, self.joint)
        policy = () if self.policy is None else (described(self.policy),)
        reduced = ("reduced",) if self.reduced_decode else ()
        return fingerprint_of(type(self).__qualname__, self.source.fingerprint, *settings, *policy, *reduced)

    def locate(self, index: int) -> str:
        """Say where sample ``index`` comes from: what the source says."""
        return place_of(self.source, index)

    def _groups(self, ids: IntArray, draw: Draw, clock: Clock) -> Generator[list[tuple[Sample, Placement]]]:
        """Read samples, a few at a time if they are small; their images are valid until the next ones are asked for.

        Doing the same thing to many images, and then the next thing, is faster than all to each in turn.
        """
        drawn = self._drawn(ids, draw)
        clock.lap(Stage.AUGMENT)
        if isinstance(self.source, ImageSource):
            files = self.source.encoded(ids)
            clock.lap(Stage.READ)
            group, size, row_bytes = list[tuple[Sample, Placement]](), 0, math.prod(self._size) * 3
            for index, file, numbers in zip(ids.tolist(), files, drawn, strict=True):
                image, placement = self._decoded(index, file.data, numbers)
                labels = {} if file.label is None else {"label": file.label}
                group.append(({"image": image, **labels}, placement))
                size += image.nbytes + row_bytes
                if image.nbytes > OWN_BYTES or size > _GROUP_BYTES:
                    clock.lap(Stage.DECODE)
                    yield group
                    group, size = [], 0
            clock.lap(Stage.DECODE)
            if group:
                yield group
            return
        with closing(self.source.sample_many(ids, draw)) as samples:
            for index, found, numbers in zip(ids.tolist(), samples, drawn, strict=True):
                sample: Sample = dict(found)
                clock.lap(Stage.READ)
                for name in self._pictures:
                    sample[name] = self._pixels(sample, index, name)
                clock.lap(Stage.DECODE)
                yield [(sample, self._placement(index, sample["image"].shape[:2], numbers))]

    def _decoded(self, index: int, data: bytes, drawn: _Drawn) -> tuple[Pixels, Placement]:
        """Return an image, maybe reduced, and where it goes; that is chosen by its full size in any case."""
        reductions = self._decode.reductions(data) if self.reduced_decode else None
        if reductions is None:
            image = self._decode(data, partial(self.locate, index))
            return image, self._placement(index, image.shape[:2], drawn)
        size, possible = reductions
        placement = self._placement(index, size, drawn)
        placement = replace(placement, reduced=placement.reduction(possible))
        return self._decode(data, partial(self.locate, index), placement.reduced), placement

    def _write(self, ids: list[int], samples: Sequence[Sample], placements: Sequence[Placement], rows: Rows) -> None:
        for name, column in rows.items():
            if name in self._pictures:
                for row in cut_together([sample[name] for sample in samples], placements, column):
                    self._moved_picture(ids[row], name, samples[row][name], placements[row], column[row])
                continue
            if name in self.joint.others:
                for index, sample, placement in zip(ids, samples, placements, strict=True):
                    sample[name] = self._moved(index, sample, name, placement)
            for row, (index, sample) in enumerate(zip(ids, samples, strict=True)):
                self._put(sample, index, name, column, row)
        for index, sample in zip(ids, samples, strict=True):
            self._check_rest(sample, index, rows)

    def _pixels(self, sample: Sample, index: int, name: str) -> Pixels:
        image = np.asarray(self._value(sample, index, name))
        image = image[:, :, np.newaxis] if image.ndim == 2 else image
        wanted = {"rgb": 3, "gray": 1}.get(self.color)
        usual = wanted is None or image.shape[2:] in ((1,), (2,), (3,), (4,))
        if image.dtype != np.uint8 or image.ndim != 3 or 0 in image.shape or not usual:
            raise ShapeError(
                f"the {name} of {self.locate(index)} is {image.dtype} {image.shape}: it must be uint8 (H, W) or "
                '(H, W, C) of at least one pixel, C = 1 to 4 (gray or color, with or without alpha) unless color="keep"'
            )
        if wanted in (None, image.shape[2]):
            return image
        return convert(Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image), self.color)

    def _value(self, sample: Sample, index: int, name: str) -> object:
        if name not in sample:
            raise FieldError(f'{self.locate(index)} has no field "{name}": it has {sorted(sample)}')
        return sample[name]

    def _drawn(self, ids: IntArray, draw: Draw) -> Iterator[_Drawn]:
        """Draw what all samples need at once: the crop's numbers and the movements of each."""
        draw = self.own_draw(draw)
        count = self.crop.num_draws
        numbers = draw.uniforms(ids, Purpose.CROP, count).tolist() if count else [[]] * len(ids)
        after = self.policy.sample_movements(ids, draw, self._size) if self.policy else [None] * len(ids)
        if self.augment is None:
            return zip(numbers, [(False, False)] * len(ids), after, strict=True)
        if self.augment.only_mirrors:
            return zip(numbers, self.augment.sample_mirrors(ids, draw), after, strict=True)
        return zip(numbers, self.augment.sample_matrices(ids, draw), after, strict=True)

    def _changed(self, images: Pixels, ids: IntArray, draw: Draw) -> Pixels:
        """Return images (n, h, w, C) after all photometric operations."""
        tensor = torch.from_numpy(images).permute(0, 3, 1, 2)
        try:
            tensor = apply_all(self.photometric, tensor, ids, self.own_draw(draw))
        except ShapeError as error:
            raise ShapeError(f"{self.locate(int(ids[0]))}: {error}") from error
        changed: Pixels = tensor.permute(0, 2, 3, 1).numpy()
        return changed

    def _placement(self, index: int, size: tuple[int, int], drawn: _Drawn) -> Placement:
        numbers, movement, after = drawn
        try:
            box = self.crop.box(size, self._size, numbers)
        except ShapeError as error:
            raise ShapeError(f"{self.locate(index)}: {error}") from error
        return Placement(size, self._size, box, movement, after)

    def _moved(self, index: int, sample: Sample, name: str, placement: Placement) -> NDArray[Any]:
        """Return a field as the placement moves it."""
        if name in self._pictures:
            return self._moved_picture(index, name, sample[name], placement)
        value = np.asarray(self._value(sample, index, name))
        try:
            return self.joint.moved(name, value, placement)
        except ShapeError as error:
            raise ShapeError(f"{self.locate(index)}: {error}") from error

    def _moved_picture(
        self, index: int, name: str, picture: Pixels, placement: Placement, out: Pixels | None = None
    ) -> Pixels:
        wanted = out.shape[2] if out is not None else self._channels if name == "image" else None
        if wanted not in (None, picture.shape[2]):
            raise ShapeError(
                f"{self.locate(index)} has {picture.shape[2]} channels where {wanted} are wanted: choose "
                'color="rgb" or "gray" to make all images alike'
            )
        try:
            if picture.shape[:2] != placement.picture_size:
                raise ShapeError(different_size(name, picture, placement))
            return placement.apply(picture, self._fill, out)
        except ShapeError as error:
            raise ShapeError(f"{self.locate(index)}: {error}") from error


def _output(output_size: Sequence[int], color: Color) -> tuple[tuple[int, int], int | None]:
    """Return height and width, and the number of channels as far as it is known without an image."""
    sizes = tuple(output_size) if isinstance(output_size, Sequence) else ()
    if len(sizes) not in (2, 3) or not all(_is_size(n) for n in sizes):
        raise ConfigError(f"output_size must be (height, width) in whole pixels, at least 1 each, got {output_size!r}")
    wanted = {"rgb": 3, "gray": 1}.get(color)
    if wanted is not None and sizes[2:] not in ((), (wanted,)):
        raise ConfigError(
            f"output_size={sizes} asks for {sizes[2]} channels, but color={color!r} gives {wanted}: give height and "
            'width only, or choose color="rgb", "gray" or "keep"'
        )
    return (int(sizes[0]), int(sizes[1])), wanted or (int(sizes[2]) if len(sizes) == 3 else None)


def _is_size(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and int(number) > 0
