"""``headrace view``: a contact sheet, originals above what a model sees of them in the epochs to come."""

import argparse
import io
import operator
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, FieldError, HeadraceError, ShapeError
from .progress import show_count
from .source import open_images

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from ..augment import Draw, ImageAugmenter
    from ..datastores import AugmentedImageDatastore, Datastore
    from ..datastores.datastore import SupportsIndex
    from ..datastores.joint import Joint

__all__ = ["add_arguments", "parse_augmenter", "preview", "run"]

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_LONGEST_SIDE = {"JPEG": 65500, "WEBP": 16383}  # PNG has room for more than a sheet may have
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_PER_BAND = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("location", metavar="URL", help="shards, or a folder of images")
    parser.add_argument(
        "-o", "--output", type=_picture, required=True, metavar="FILE", help="where to: .png, .jpg or .webp"
    )
    parser.add_argument(
        "--augment",
        type=_augmenter,
        metavar="SPEC",
        help="settings of ImageAugmenter, separated by commas, a range as LO:HI: "
        "rotation=-10:10,x_reflection,scale=0.9:1.1,fill_value=128 (a color is 124/116/104)",
    )
    parser.add_argument("--size", type=_size, default=(224, 224), metavar="HxW", help="output size (default: 224x224)")
    parser.add_argument(
        "--mode",
        choices=["resize", "letterbox", "center_crop", "resized_center_crop", "random_crop", "random_resized_crop"],
        default="resize",
        help="how images get that size (default: resize)",
    )
    parser.add_argument("--seed", type=_natural, default=0, metavar="S", help="of the run that is shown (default: 0)")
    parser.add_argument("--epoch", type=_natural, default=0, metavar="E", help="of the first draw (default: 0)")
    parser.add_argument(
        "--draws", type=_count, default=3, metavar="N", help="draws per image, an epoch each (default: 3)"
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out images that cannot be read, and say which on stderr (default: stop at the first)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ids", type=_ids, metavar="3,17,...", help="which samples")
    which.add_argument("--samples", type=_count, default=8, metavar="N", help="so many, evenly spread (default: 8)")


def run(options: argparse.Namespace) -> int:
    """Draw the sheet and write it."""
    from ..datastores import AugmentedImageDatastore
    from ..datastores.storage import LocalStorage, local_path

    source = open_images(options.location)
    data = AugmentedImageDatastore(options.size, source, mode=options.mode, augment=options.augment)
    ids = options.ids or spread(len(data), options.samples)
    if options.skip_bad:
        ids = _readable(data, _chosen(data, ids, options.draws))
    sheet = preview(data, ids, draws=options.draws, seed=options.seed, epoch=options.epoch)
    file, kind = io.BytesIO(), _FORMATS[Path(options.output).suffix.lower()]
    if max(sheet.size) > _LONGEST_SIDE.get(kind, max(sheet.size)):
        raise ConfigError(
            f"{options.output}: the sheet is {sheet.width} x {sheet.height} pixels, and {kind} files have at most "
            f"{_LONGEST_SIDE[kind]} a side: show fewer draws or samples, or write a .png"
        )
    sheet.save(file, kind)
    LocalStorage().write_atomic(local_path(options.output), file.getvalue())
    print(f"{options.output}: {len(ids):,} of {show_count(len(data), 'image')}, {sheet.width} x {sheet.height} pixels")
    return 0


def _readable(data: "AugmentedImageDatastore", ids: Sequence[int]) -> list[int]:
    """Return the samples that can be made, and name the others on stderr."""
    from ..augment import Draw

    found, errors = list[int](), list[HeadraceError]()
    for index in ids:
        try:
            data.sample(index, Draw())
        except HeadraceError as error:
            errors.append(error)
            print(f"headrace view: left out: {error}", file=sys.stderr)
        else:
            found.append(index)
    if errors and not found:
        raise errors[0]
    return found


def preview(
    data: "Datastore | SupportsIndex",
    ids: Sequence[int] | None = None,
    *,
    draws: int = 3,
    seed: int = 0,
    epoch: int = 0,
    tile: int = 168,
) -> "Image":
    """Return a contact sheet of samples as training would see them; a notebook shows it.

    Each column is a sample: its original, as it is stored, and below it what it looks like in ``draws`` epochs. Label
    maps that ``data`` moves along (``masks``) are laid over the pictures in colors. What ``normalize`` made is shown as
    it was before; other values than bytes are shown as they are if they are in 0 .. 1 or whole numbers in 0 .. 255, and
    else stretched so that the smallest of each picture is black and the largest white.

    Args:
        data: any datastore whose samples have an "image": ``AugmentedImageDatastore``, ``transform(...)``, a list.
        ids: sample ids; 8 of them, evenly spread, by default.
        draws: epochs to show, at least 1.
        seed: of the run that is shown.
        epoch: the first epoch that is shown.
        tile: pixels of the square that each picture is fitted into.

    Returns:
        An RGB image.

    Raises:
        ConfigError: there are no such samples, ``data`` is something else, or the sheet would be too large.
        DecodeError, FieldError, ShapeError: a sample cannot be made.

    Example:
        >>> import numpy as np
        >>> from headrace.augment import ImageAugmenter
        >>> from headrace.datastores import AugmentedImageDatastore
        >>> images = [{"image": np.zeros((40, 60, 3), np.uint8), "label": 3}]
        >>> data = AugmentedImageDatastore((32, 32), images, augment=ImageAugmenter(rotation=(-9, 9)))
        >>> preview(data, [0], draws=2).mode
        'RGB'
    """
    from ..augment import Draw
    from ..datastores.datastore import as_datastore
    from ..datastores.joint import joints_below
    from .contact_sheet import Column, contact_sheet, shrunk

    shown = as_datastore(data)
    chosen, chain = _chosen(shown, ids, draws), _chain(shown)
    worlds = [Draw(seed, epoch + number) for number in range(draws)]
    columns, sizes, joints = list[Column](), set[str](), joints_below(shown)
    for index in chosen:
        original = _original(chain, index, worlds[0])
        seen = list["NDArray[Any]"]()
        for world in worlds:  # of each picture only what the sheet shows is kept
            picture = _picture_of(joints, chain[0].sample(index, world), chain[0].locate(index))
            sizes.add("{} x {}".format(*picture.shape))
            seen.append(shrunk(picture, tile))
        title, subtitle = _names(shown, index, original)
        picture = _picture_of(joints, original, chain[0].locate(index))
        columns.append(Column(title, shrunk(picture, tile), seen, subtitle))
    epochs = f"epoch {epoch}" if draws == 1 else f"epochs {epoch} to {epoch + draws - 1}"
    size = f"{sizes.pop()} (height x width)" if len(sizes) == 1 else "of several sizes"
    return contact_sheet(columns, tile=tile, caption=f"seed {seed}, {epochs}, {size}", per_band=_PER_BAND)


def _chain(data: "Datastore") -> "list[Datastore]":
    """Return a datastore whose values can be shown, the one that it is made of, and so on to the stored samples."""
    from ..datastores import AugmentedImageDatastore
    from ..datastores.derived import DerivedDatastore

    found = [data]
    while isinstance(found[-1], (AugmentedImageDatastore, DerivedDatastore)) and len(found[-1].source) == len(data):
        found.append(found[-1].source)
    normalized = (isinstance(one, DerivedDatastore) and hasattr(one, "normalization") for one in found)
    return found[list(normalized).index(False) :]


def _original(chain: "list[Datastore]", index: int, draw: "Draw") -> dict[str, Any]:
    """Return a sample as it is stored: the first one on its way that has an image."""
    sample: dict[str, Any] = {}
    for store in reversed(chain):
        sample = store.sample(index, draw)
        if "image" in sample:
            return sample
    raise FieldError(f"{chain[0].locate(index)} has no image to show: its fields are {sorted(sample)}")


def _chosen(data: "Datastore", ids: Sequence[int] | None, draws: int) -> list[int]:
    """Return the ids that are shown, or say why they cannot be."""
    from ..augment.ranges import shown

    if ids is None:
        ids = spread(len(data), _PER_BAND)
    try:
        chosen = [operator.index(index) for index in ids]
    except TypeError:
        raise ConfigError(
            f"ids must be a list of sample numbers, got {shown(ids)} (the picture that preview returns has a save())"
        ) from None
    wrong = [index for index in chosen if not 0 <= index < len(data)]
    if wrong or not chosen or draws < 1:
        asked = f"{show_count(draws, 'draw')} of samples {wrong or chosen}"
        raise ConfigError(f"cannot show {asked}: there are samples 0 .. {len(data) - 1}, and a sheet needs one of each")
    return chosen


def spread(count: int, wanted: int) -> list[int]:
    """Return up to ``wanted`` of ``count`` ids, evenly spread.

    Example:
        >>> spread(100, 4), spread(2, 4)
        ([0, 25, 50, 75], [0, 1])
    """
    number = min(count, wanted)
    return [position * count // number for position in range(number)]


def parse_augmenter(text: str) -> "ImageAugmenter":
    """Return the augmenter that a line of text describes.

    Args:
        text: settings of ``ImageAugmenter``, separated by commas: ``name`` (a reflection, with probability 1/2),
            ``name=number``, ``name=lo:hi`` (a range), ``fill_value=r/g/b`` (one number per channel).

    Raises:
        ConfigError: a setting that does not exist, or a value that it cannot have.

    Example:
        >>> parse_augmenter("rotation=-10:10,x_reflection").rotation
        (-10.0, 10.0)
    """
    from dataclasses import fields

    from ..augment import ImageAugmenter

    names = [field.name for field in fields(ImageAugmenter)]
    settings: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name not in names:
            raise ConfigError(f"{name!r} is no setting of ImageAugmenter: it has {', '.join(names)}")
        if name in settings:
            raise ConfigError(f"{name} is given twice")
        settings[name] = _value(name, value, given=bool(equals))
    return ImageAugmenter(**settings)


def _value(name: str, text: str, *, given: bool) -> object:
    if not given and name.endswith("_reflection"):
        return True
    if name == "fill_value" and re.fullmatch(r"\d{1,3}(/\d{1,3})*", text):
        values = tuple(int(number) for number in text.split("/"))
        return values if len(values) > 1 else values[0]
    if name != "fill_value" and re.fullmatch(_NUMBER, text):
        return float(text)
    ends = text.split(":")
    if name != "fill_value" and len(ends) == 2 and all(re.fullmatch(_NUMBER, end) for end in ends):
        return float(ends[0]), float(ends[1])
    kinds = "whole numbers: fill_value=128, or 124/116/104" if name == "fill_value" else f"{name}=5 or {name}=-5:5"
    raise ConfigError(f"{name}={text!r} is not understood: write {kinds}")


def _names(data: "Datastore", index: int, sample: dict[str, Any]) -> tuple[str, str]:
    """Return what stands above a column: the label, and below it the key; of what is there."""
    import numpy as np

    from ..datastores.datastore import classes_of

    number = f"sample {index}"
    key = str(sample.get("key", number))
    if "label" not in sample:
        return (key, "") if key == number else (number, key)
    label, classes = sample["label"], classes_of(data)
    is_class = isinstance(label, (int, np.integer)) and 0 <= label < len(classes)
    return (classes[label] if is_class else f"label {label}"), key


def _picture_of(joints: "list[Joint]", sample: dict[str, Any], where: str) -> "NDArray[Any]":
    """Return what can be shown of an image: 1 or 3 channels, with its label maps laid over it."""
    import numpy as np

    from .contact_sheet import overlaid

    image = np.asarray(sample["image"])
    image = image[:, :, np.newaxis] if image.ndim == 2 else image
    if image.ndim != 3 or 0 in image.shape or image.dtype.kind not in "biuf":
        raise ShapeError(f"the image of {where} is {image.dtype} {image.shape}: only (H, W) and (H, W, C) can be shown")
    image = _as_bytes(image[:, :, : 1 if image.shape[2] < 3 else 3])
    for joint in joints:
        for name in joint.masks:
            if name in sample:
                mask = np.asarray(sample[name])
                image = overlaid(image, mask if mask.ndim == 2 else mask[:, :, 0], joint.mask_fill)
    return image


def _as_bytes(image: "NDArray[Any]") -> "NDArray[Any]":
    """Return values of any type as bytes that can be seen, as ``preview`` describes it."""
    import numpy as np

    if image.dtype == np.uint8:
        return image
    values = np.nan_to_num(image.astype(np.float64), posinf=0.0, neginf=0.0)
    lowest, highest = float(values.min()), float(values.max())
    is_share = image.dtype.kind in "bf" and lowest >= 0 and highest <= 1
    if not is_share and image.dtype.kind in "iu" and lowest >= 0 and highest <= 255:
        return image.astype(np.uint8)
    if not is_share:
        values = (values - lowest) / max(highest - lowest, 1e-12)
    return np.rint(values * 255).astype(np.uint8)


# --- words of the command line ---------------------------------------------------------------------------------------


def _picture(text: str) -> str:
    if Path(text).suffix.lower() not in _FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(_FORMATS)}")
    return text


def _augmenter(text: str) -> "ImageAugmenter":
    try:
        return parse_augmenter(text)
    except HeadraceError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 224 or 224x320 (height x width)")
    return int(found[1]), int(found[2] or found[1])


def _natural(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number in 1 .. 999")
    return int(text)


def _ids(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,12}(,\d{1,12})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of sample ids: write 3,17,42")
    return [int(number) for number in text.split(",")]
