"""What the pixels of an opened file mean: Pillow's modes, and where its readers do not say what the file says.

Mended are BMPs whose palette is gray, which Pillow reads as if they had one bit or eight, transparent colours of PNGs,
which it compares with values that were scaled, and gray PNGs with alpha of 16 bits, which it takes for colors. What
TIFFs say of their values is looked up in their tags.
"""

import io
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from ..errors import DecodeError

__all__ = ["Color", "Pixels", "convert", "labels", "loaded"]

Pixels: TypeAlias = NDArray[np.uint8]

#: "rgb": 3 channels, gray repeated. "gray": 1 channel, by Pillow's luma (ITU-R 601: 0.299 R + 0.587 G + 0.114 B).
#: "keep": 1 channel for gray files, 3 for all others.
Color: TypeAlias = Literal["rgb", "gray", "keep"]

#: Tags of the TIFF specification, revision 6.0, and two values of them.
_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO, _SIGNED = 0, 2

#: Color type of a PNG.
_GRAY_WITH_ALPHA = 4

#: Pillow's names of the compressions of TIFF that give back what was stored.
_LOSSLESS = frozenset(
    (
        "raw",
        "tiff_ccitt",
        "group3",
        "group4",
        "tiff_lzw",
        "packbits",
        "tiff_deflate",
        "tiff_adobe_deflate",
        "lzma",
        "zstd",
    )
)


def loaded(image: ImageFile.ImageFile, data: bytes) -> Image.Image:
    """Return an image that was opened with its pixels, as its file says.

    Args:
        image: as ``Image.open`` returns it.
        data: the whole file.
    """
    if image.format == "BMP" and image.mode in ("1", "L"):
        return _gray_bmp(image, data)
    image.load()
    if image.format != "PNG":
        return image
    if "transparency" in image.info:
        _mark_transparent(image, data)
    if image.mode == "RGBA" and data[25] == _GRAY_WITH_ALPHA:  # 16 bits each, which Pillow reads as colors
        return _with_format(image.convert("LA"), image)
    return image


def convert(image: Image.Image, color: Color) -> Pixels:
    """Return the pixels of a loaded image in the wanted channels, by the rules of ``decode``.

    Args:
        image: of any mode that has a rule.
        color: which channels are wanted.

    Returns:
        uint8 (H, W, C), C-contiguous, maybe read-only.

    Raises:
        DecodeError: its mode has no rule.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        image = _upper_bits(image)
    elif image.mode in ("I", "F") or _tag(image, _SAMPLE_FORMAT) == _SIGNED:
        raise DecodeError(
            f"its pixels are 32-bit or signed numbers (Pillow mode {image.mode!r}): no rule says what is white"
        )
    is_gray = image.mode in ("1", "L", "LA", "La")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    if image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    mode = "L" if color == "gray" or (color == "keep" and is_gray) else "RGB"
    pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels if mode == "RGB" else pixels[:, :, np.newaxis]


def labels(image: Image.Image, data: bytes) -> NDArray[Any]:
    """Return the values that the file of a loaded label map holds, by the rules of ``decode_mask``.

    Args:
        image: the label map.
        data: the whole file.

    Returns:
        (H, W), maybe read-only: uint8, or int32 where more than 8 bits or a sign are stored.

    Raises:
        DecodeError: it is no label map, or its values need not be those that were stored.
    """
    if image.format not in ("PNG", "TIFF", "BMP", "GIF"):
        raise DecodeError(f"it is a {image.format} file, which need not keep label values: store label maps as PNG")
    if image.format == "TIFF" and image.info.get("compression") not in _LOSSLESS:
        raise DecodeError(
            f"it is a TIFF with the compression {image.info.get('compression')!r}, which need not keep label values: "
            "store label maps as PNG"
        )
    values, signed = np.asarray(image), _tag(image, _SAMPLE_FORMAT) == _SIGNED
    if image.mode in ("1", "P", "L"):
        stored = _stored_bytes(values.astype(np.uint8), image, data)
        return stored.view(np.int8).astype(np.int32) if signed else stored
    if image.mode != "I" and not image.mode.startswith("I;16"):
        raise DecodeError(
            f"its pixels (Pillow mode {image.mode!r}) are no labels: a label map is gray or has a palette"
        )
    if image.mode == "I" and not signed and (values < 0).any():
        raise DecodeError("it holds labels of 2**31 and more, which do not fit into int32")
    return values.astype(np.int32)


def _stored_bytes(values: Pixels, image: Image.Image, data: bytes) -> Pixels:
    """Undo what Pillow does to gray of up to 8 bits: it stretches few bits, and inverts where white is 0."""
    bits = 1 if image.mode == "1" else data[24] if image.format == "PNG" else _tag(image, _BITS) or 8
    if image.mode == "L" and bits in (2, 4):
        values = values // np.uint8(255 // (2**bits - 1))
    inverted = image.mode != "P" and _white_is_zero(image)
    return np.uint8(2**bits - 1) - values if inverted else values


def _upper_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    upper = (values >> (4 if _tag(image, _BITS) == 12 else 8)).astype(np.uint8)
    transparent = image.info.get("transparency")
    if transparent is not None:
        upper[values == transparent] = 255
    return Image.fromarray(255 - upper if _white_is_zero(image) else upper)


def _white_is_zero(image: Image.Image) -> bool:
    return image.format == "TIFF" and _tag(image, _PHOTOMETRIC) in (None, _WHITE_IS_ZERO)  # Pillow's default


def _tag(image: Image.Image, number: int) -> int | None:
    """Return the value of a TIFF's tag, of the first channel if there are several; None where there is none."""
    value = getattr(image, "tag_v2", {}).get(number)
    first: int | None = value[0] if isinstance(value, tuple) else value
    return first


def _gray_bmp(image: ImageFile.ImageFile, data: bytes) -> Image.Image:
    """Load a BMP whose palette is black and white, or gray in order; Pillow takes its pixels for bits, or for bytes."""
    bits = data[24] if data[14] == 12 else data[28]  # 12: the size of the oldest header
    tile: Any = image.tile[0]
    if tile.codec_name != "raw" or bits == {"1": 1, "L": 8}[image.mode]:
        image.load()
        return image
    _, stride, direction = tile.args
    packed = "P" if bits == 8 else f"P;{bits}"
    indices = np.asarray(Image.frombytes("P", image.size, data[tile.offset :], "raw", packed, stride, direction))
    return _with_format(Image.fromarray(indices > 0 if image.mode == "1" else indices), image)


def _with_format(mended: Image.Image, image: Image.Image) -> Image.Image:
    mended.format = image.format
    return mended


def _mark_transparent(image: Image.Image, data: bytes) -> None:
    """Make the transparent colour of a PNG, which is given in stored values, one of the image's or an alpha channel."""
    bits, color = data[24], image.info["transparency"]
    if image.mode == "L":
        image.info["transparency"] = color % 2**bits * (255 // (2**bits - 1))
    elif image.mode == "RGB" and bits == 8:
        image.info["transparency"] = tuple(value % 256 for value in color)
    elif image.mode == "RGB":
        with Image.open(io.BytesIO(data), formats=("PNG",)) as lower:
            lower.tile = [tile._replace(args="RGB;16L") for tile in lower.tile]  # the other byte of each two
            values = np.asarray(image).astype(np.uint16) << 8 | np.asarray(lower)
        opaque = (values != np.array(color, np.uint16)).any(axis=2)
        image.putalpha(Image.fromarray(opaque.astype(np.uint8) * np.uint8(255)))
        del image.info["transparency"]
