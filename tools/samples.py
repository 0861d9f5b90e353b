"""From where the pieces of a sample lie to its fields: read, checked, and changed only where pixels are asked for.

With ``--resize`` or ``--format`` the image of a sample (its first field that is called like an image format) is decoded
by the package's own rules (``datastores/decode.py``: turned upright, transparency on white, 8 bits), resampled with
Lanczos' filter and encoded. An image that has the wanted format, and is not larger than wanted, passes unchanged.
Further images of a sample, such as "seg.png", always do.
"""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import DecodeError, HeadraceError, ShardError

if TYPE_CHECKING:
    from ..datastores.storage import Storage

__all__ = ["FilePart", "Item", "Made", "Recipe", "Task", "make", "read_header"]

_PILLOW_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "PPM", "TIFF", "AVIF", "HEIF")
_UNKNOWN = (0, 0)
_WRITTEN = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file.

    Args:
        path: in the storage of the whole task.
        offset: the first byte.
        length: number of bytes; None for the whole file.
    """

    path: str
    offset: int = 0
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """A sample that is to be written, and where its pieces lie.

    Args:
        key: its name.
        name: what reports call it.
        where: what errors call it.
        fields: (field name, bytes or where they lie).
        is_checked: whether its image must be one; tars pass as they are.
        is_quoted: whether the key was encoded before (``keys.py``).
    """

    key: str
    name: str
    where: str
    fields: tuple[tuple[str, bytes | FilePart], ...]
    is_checked: bool = True
    is_quoted: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is done to the image of each sample.

    Args:
        resize: wanted length of a side in pixels; None changes no size. Smaller images are never enlarged.
        side: which side: the shorter or the longer one.
        format: Pillow's name of the wanted format; None keeps JPEG, PNG and WebP, and makes PNG of GIF, BMP, TIFF and
            PPM, and JPEG of AVIF and HEIC, where an image is resized.
        quality: of JPEG and WebP, 1 .. 100.
    """

    resize: int | None = None
    side: Literal["short", "long"] = "short"
    format: str | None = None
    quality: int = 90

    @property
    def changes_pixels(self) -> bool:
        """Whether images may have to be decoded."""
        return self.resize is not None or self.format is not None

    def apply(self, field: str, data: bytes, where: str) -> tuple[str, bytes]:
        """Return the field name and the bytes of an image as it is wanted.

        Raises:
            DecodeError: it cannot be read.
        """
        kind, size = read_header(data, where)
        wanted = self.format or kind
        if size != _UNKNOWN and kind == wanted and self._fitted(size) == size:
            return field, data
        return self._encoded(field, data, where, kind)

    def _fitted(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the (width, height) that an image of this size gets."""
        side = min(size) if self.side == "short" else max(size)
        if self.resize is None or side <= self.resize:
            return size
        width, height = (max(1, (2 * length * self.resize + side) // (2 * side)) for length in size)
        return width, height

    def _encoded(self, field: str, data: bytes, where: str, kind: str) -> tuple[str, bytes]:
        from PIL import Image

        from ..datastores.decode import decode

        pixels = decode(data, where=where, color="keep")
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        size = self._fitted(image.size)
        if size != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        wanted = self.format or (kind if kind in _WRITTEN else "JPEG" if kind in ("AVIF", "HEIF") else "PNG")
        file = io.BytesIO()
        try:
            image.save(file, wanted, **({} if wanted == "PNG" else {"quality": self.quality}))
        except (OSError, ValueError) as error:  # WebP has at most 16383 pixels a side, JPEG 65500
            raise DecodeError(
                f"{where} cannot be written as {wanted} of {size[0]} x {size[1]} pixels: {error}"
            ) from error
        return field if wanted == kind else _WRITTEN[wanted], file.getvalue()


@dataclass(frozen=True, slots=True)
class Made:
    """A sample, or why there is none.

    Args:
        item: what was asked for.
        fields: field name -> bytes; empty where it failed.
        image_bytes: of its image.
        failure: why it failed.
    """

    item: Item
    fields: dict[str, bytes]
    image_bytes: int = 0
    failure: HeadraceError | None = None


#: Some samples, the storage that their pieces lie in, and what is done to them.
Task: TypeAlias = "tuple[Sequence[Item], Storage, Recipe]"


def make(task: Task) -> list[Made]:
    """Return the samples of a task, in order."""
    items, storage, recipe = task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about images that are merely large or odd
        return [_make(item, storage, recipe) for item in items]


def _make(item: Item, storage: "Storage", recipe: Recipe) -> Made:
    from ..datastores.check import is_image_field

    fields: dict[str, bytes] = {}
    image_bytes = 0
    try:
        for name, piece in item.fields:
            data = piece if isinstance(piece, bytes) else _read(storage, piece)
            is_image = is_image_field(name)
            if is_image and not image_bytes and "." not in name:
                if recipe.changes_pixels:
                    before, (name, data) = name, recipe.apply(name, data, item.where)
                    _refuse_second(name, before, item)
                elif item.is_checked:
                    read_header(data, item.where)
                image_bytes = len(data)
            fields[name] = data
    except HeadraceError as error:
        return Made(item, {}, 0, error)
    return Made(item, fields, image_bytes)


def _refuse_second(name: str, before: str, item: Item) -> None:
    if name != before and any(field == name for field, _ in item.fields):
        raise DecodeError(f"{item.where} has a field {name!r} already, which its changed image would replace")


def _read(storage: "Storage", part: FilePart) -> bytes:
    if part.length is None:
        file = storage.open(part.path)
        _refuse_huge(part.path, file.size)
        return file.read(0, file.size)
    _refuse_huge(f"a field in {part.path} at byte {part.offset}", part.length)
    return storage.read(part.path, part.offset, part.length)


def _refuse_huge(what: str, size: int) -> None:
    from ..datastores.storage import MAX_FILE_BYTES

    if size > MAX_FILE_BYTES:
        raise ShardError(f"{what} has {size} bytes: one sample may have {MAX_FILE_BYTES}, so leave it out")


def read_header(data: bytes, where: str) -> tuple[str, tuple[int, int]]:
    """Read an image's header; no pixel is decoded.

    Returns:
        Pillow's name of its format and its (width, height) as stored; "" and (0, 0) of an image that is so large that
        Pillow does not say.

    Raises:
        DecodeError: it is no image.
    """
    from PIL import Image

    from ..datastores.headers import jpeg_header
    from ..datastores.heif import codec_of, load_heic_reader

    usual = jpeg_header(data)
    if usual is not None:
        return "JPEG", (usual.width, usual.height)
    try:
        if codec_of(data) == "HEIF":
            load_heic_reader()
        Image.init()
        formats = [name for name in _PILLOW_FORMATS if name in Image.OPEN]  # not everybody has AVIF and HEIF
        with Image.open(io.BytesIO(data), formats=formats) as image:
            return "JPEG" if image.format == "MPO" else str(image.format), image.size
    except Image.DecompressionBombError:
        return "", _UNKNOWN  # a large image is an image; whoever decodes it says whether it can
    except Exception as error:  # Pillow's readers raise nearly every type there is
        if not data:
            raise DecodeError(f"{where} is empty") from error
        message = f"{where} is no image that can be read: it begins with {data[:16]!r} ({_reason(error)})"
        raise DecodeError(message) from error


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    return "nothing reads it" if isinstance(error, UnidentifiedImageError) else str(error)  # which names an address
