"""Bytes of an image file become pixels: one rule for every kind of file, decided by content and never by name.

| found | rule |
|---|---|
| JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, MPO | read; all else is an error |
| AVIF; HEIC | read where Pillow has it; with the extra ``heic`` |
| several frames or pages | the first; of HEIC the one that it names as its primary image |
| EXIF orientation 2 .. 8 | applied; other values are ignored. Only EXIF counts (all pieces of a block), XMP does not |
| EXIF of a PNG | the chunk, else the text "Raw profile type exif", which ImageMagick writes |
| TIFF and HEIC orientation | always applied |
| transparency: an alpha channel, transparent palette entries or colours | composited on white |
| 12 or 16 bits per channel | the upper 8 bits, so 4095 or 65535 becomes 255 |
| PPM whose white is not 255 | scaled to 255; colors are rounded, gray of more than 8 bits is cut to its upper 8 |
| gray TIFF that says that 0 is white | inverted |
| palette, 1 bit | expanded |
| CMYK and YCCK | converted by Pillow's plain formula; JPEGs are taken as inverted, as Adobe writes them |
| ICC profiles | ignored |
| signed numbers, 32-bit integers and floats | an error: nothing says which value is white |
| truncated or damaged data | an error, also where a part could be read |
| the same, but all pixels are there | read: the last bytes of a PNG or GIF hold no pixels, and may be missing |
| more pixels than ``max_pixels`` | an error, found in the header before anything is decoded; a TIFF's tiles count too |
| the same, read at a half, a quarter or an eighth | the size it is read at counts |
| a JPEG whose scans go over more than 2**32 pixels in sum | an error: such files keep a decoder busy for minutes |

A label map has rules of its own (``decode_mask``), since its values are names and not brightnesses:

| found | rule |
|---|---|
| PNG, TIFF, BMP, GIF | read; all else is an error, since it may hold other values than were stored |
| TIFF compressed as JPEG, WebP, or in other ways that lose something | an error |
| palette | the indices; colors and transparency are ignored |
| gray of 2, 4 or 8 bits | the stored values, so 0 .. 3, 0 .. 15 or 0 .. 255; 1 bit: 0 and 1 |
| gray of 12, 16 or 32 bits, or signed | all bits, as int32; values of 2**31 and more are an error |
| gray TIFF that says that 0 is white | the stored values all the same |
| colors, an alpha channel, floats | an error |
| orientation, frames, limits, damaged data | as for images |

JPEGs of the usual kinds are decoded by simplejpeg where it is installed (extra ``fast``), all else by Pillow. Both use
libjpeg-turbo with the accurate DCT and smooth chroma upsampling, and their results are equal bit for bit, also where a
JPEG is read at a half, a quarter or an eighth of its size: the smaller image is made from the lower frequencies of each
block, which saves most of the work but for reading the bits (``Decoder.reductions``).

Warnings about odd files are kept from the user (``headrace.datastores.quiet``), but for what libtiff writes to stderr.
"""

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from ..errors import ConfigError, DecodeError
from .exif import block_of, orientation_of
from .headers import JpegHeader, jpeg_header, kind_of, scans_of, webp_size
from .heif import codec_of, load_heic_reader
from .modes import Color, Pixels, convert, labels, loaded
from .quiet import QUIET

__all__ = ["MAX_PIXELS", "OWN_BYTES", "Color", "Decoder", "Pixels", "convert", "decode", "decode_mask"]

#: Default limit of width * height: above what a 100-megapixel camera makes; 400 MB as RGB.
MAX_PIXELS = 2**27

#: Pixels of at most this many bytes get memory of their own, which costs nothing; larger ones go to a scratch buffer,
#: since fresh memory for each would cost page faults. A buffer that grew beyond the second limit is not kept.
OWN_BYTES, _KEPT_BYTES = 2**16, 2**26

#: What a JPEG can be reduced by, and the pixels from which on that saves more time than whoever scales it has to spend
#: on edges that are no longer whole.
_REDUCTIONS, _LARGE = (2, 4, 8), 2**20

#: Pixels that all scans of a JPEG may go through together: about five seconds. Cameras make up to about ten scans.
_MAX_SCANNED = 2**32


def decode(
    data: bytes, *, where: str, color: Color = "rgb", apply_orientation: bool = True, max_pixels: int = MAX_PIXELS
) -> Pixels:
    """Return the pixels of an image file; ``help("headrace.datastores.decode")`` has the rules, in its first table.

    Args:
        data: the whole file.
        where: what an error shall call it: file, or shard and key.
        color: which channels are wanted.
        apply_orientation: turn the image as its EXIF block says.
        max_pixels: largest width * height that is decoded. Beyond about 179 million, Pillow has a limit of its own
            (``PIL.Image.MAX_IMAGE_PIXELS``, times two), which is the program's to raise.

    Returns:
        uint8 (H, W, C), writable and C-contiguous, C as ``color`` says.

    Raises:
        DecodeError: the bytes are no image that can be read, whatever the reason.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (3, 2), 255).save(file, "PNG")
        >>> decode(file.getvalue(), where="white.png").shape
        (2, 3, 3)
    """
    pixels = Decoder(color, apply_orientation=apply_orientation, max_pixels=max_pixels)(data, lambda: where)
    return np.require(pixels, requirements=("C", "W"))


def decode_mask(
    data: bytes, *, where: str, apply_orientation: bool = True, max_pixels: int = MAX_PIXELS
) -> NDArray[Any]:
    """Return the values of a label map's file: indices stay what they are, colors and other changed values are refused.

    ``help("headrace.datastores.decode")`` shows all rules, in its second table.

    Args:
        data: the whole file.
        where: what an error shall call it: file, or shard and key.
        apply_orientation: turn it as its EXIF block says.
        max_pixels: largest width * height that is decoded.

    Returns:
        (H, W), writable and C-contiguous: uint8, or int32 where more than 8 bits or a sign are stored.

    Raises:
        DecodeError: the bytes are no label map that can be read, whatever the reason.

    Example:
        >>> file = io.BytesIO()
        >>> mask = Image.new("P", (3, 2), 17)
        >>> mask.putpalette([200, 0, 0] * 18)
        >>> mask.save(file, "PNG")
        >>> decode_mask(file.getvalue(), where="mask.png").tolist()
        [[17, 17, 17], [17, 17, 17]]
    """
    try:
        with _loaded(data, max_pixels) as image:
            values, exif = labels(image, data), block_of(image.info)
    except Exception as error:  # Pillow's readers raise nearly every type there is
        raise DecodeError(_complaint(data, error, where)) from error
    turned = _TURNS[orientation_of(exif)](values[:, :, np.newaxis]) if apply_orientation else values[:, :, np.newaxis]
    return np.require(turned[:, :, 0], requirements=("C", "W"))


class Decoder(threading.local):
    """Decodes one image after the other, JPEGs into memory that is used again, since fresh memory costs page faults.

    Each thread that shares a decoder has memory of its own, and a pickled decoder travels without any.

    Args:
        color: which channels are wanted.
        apply_orientation: turn the images as their EXIF blocks say.
        max_pixels: largest width * height that is decoded.

    Raises:
        ConfigError: an unknown ``color``, or a limit below 1.
    """

    def __init__(self, color: Color = "rgb", *, apply_orientation: bool = True, max_pixels: int = MAX_PIXELS) -> None:
        if color not in get_args(Color):
            raise ConfigError(f"color must be one of {', '.join(map(repr, get_args(Color)))}, got {color!r}")
        if max_pixels < 1:
            raise ConfigError(f"max_pixels must be at least 1, got {max_pixels}")
        self.color: Color = color
        self.apply_orientation = apply_orientation
        self.max_pixels = max_pixels
        self._scratch = np.empty(0, np.uint8)
        self._header: JpegHeader | None = None  # of the last file

    def __reduce__(self) -> tuple[Callable[..., "Decoder"], tuple[object, ...]]:
        return _decoder, (self.color, self.apply_orientation, self.max_pixels)

    def reductions(self, data: bytes) -> tuple[tuple[int, int], tuple[int, ...]] | None:
        """Return the height and width of a large JPEG, and what it can be reduced by; None for all other files.

        Large are JPEGs of a megapixel and more. One that is turned is only reduced by what divides both of its sides,
        so that the first pixel always begins at the image's edge. Progressive ones are read in full: their decoder
        spends its time and memory on them before anything could be reduced.

        Args:
            data: the whole file, whatever it is.
        """
        header = self._header_of(data)
        if header is None or header.several_scans or header.width * header.height < _LARGE:
            return None
        height, width, orientation = header.height, header.width, 1
        if header.exif and self.apply_orientation:
            orientation = orientation_of(header.exif)
        exact = tuple(n for n in _REDUCTIONS if orientation == 1 or (height % n == 0 and width % n == 0))
        return ((width, height) if orientation >= 5 else (height, width)), exact

    def __call__(self, data: bytes, where: Callable[[], str], reduced: int = 1) -> Pixels:
        """Return the pixels of an image file, for a short time.

        Args:
            data: the whole file.
            where: called only if an error needs to say which file it is.
            reduced: 1, or one of what ``reductions`` returned for this file: sides become so many times shorter,
                rounded up.

        Returns:
            uint8 (H, W, C), maybe read-only, and with strides of any kind where the image was turned. More than 64 KiB
            are valid until the next call in this thread.

        Raises:
            DecodeError: the bytes are no image that can be read, whatever the reason.
        """
        try:
            pixels, exif = self._usual_jpeg(data, reduced) or self._any(data, reduced)
        except Exception as error:  # Pillow's readers raise nearly every type there is
            raise DecodeError(_complaint(data, error, where())) from error
        return _TURNS[orientation_of(exif)](pixels) if exif and self.apply_orientation else pixels

    def _usual_jpeg(self, data: bytes, reduced: int = 1) -> tuple[Pixels, bytes] | None:
        turbo = _simplejpeg()
        header = self._header_of(data) if turbo else None
        if turbo is None or header is None:
            return None
        height, width = -(-header.height // reduced), -(-header.width // reduced)
        _check_size(width, height, self.max_pixels)
        if header.several_scans:
            _check_scans(data, header.width, header.height)
        gray = header.channels == 1 and self.color != "rgb"
        room = self._room(height * width * (1 if gray else 3))
        least = (height, width) if reduced > 1 else (0, 0)
        try:
            pixels: Pixels = turbo.decode_jpeg(data, "GRAY" if gray else "RGB", False, False, *least, buffer=room)
        except ValueError:  # damaged, or of a kind that it does not know: Pillow's verdict is the rule
            return None
        if self.color == "gray" and not gray:
            pixels = convert(Image.fromarray(pixels), "gray")
        return pixels, header.exif

    def _header_of(self, data: bytes) -> JpegHeader | None:
        """Read a JPEG's header; images of one size from one program often have the same, byte for byte."""
        if self._header is None or not data.startswith(self._header.start):
            self._header = jpeg_header(data)
        return self._header

    def _any(self, data: bytes, reduced: int = 1) -> tuple[Pixels, bytes]:
        opened = _loaded(data, self.max_pixels) if reduced == 1 else _loaded_reduced(data, self.max_pixels, reduced)
        with opened as image:
            return convert(image, self.color), block_of(image.info)

    def _room(self, size: int) -> Pixels | None:
        if not OWN_BYTES < size <= _KEPT_BYTES:
            return None
        if size > self._scratch.size:
            self._scratch = np.empty(size, np.uint8)
        return self._scratch[:size]


def _decoder(color: Color, apply_orientation: bool, max_pixels: int) -> Decoder:
    return Decoder(color, apply_orientation=apply_orientation, max_pixels=max_pixels)


@contextmanager
def _loaded(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Decode an image with the one reader that its first bytes name."""
    kind = kind_of(data) or codec_of(data)
    if kind is None:
        raise DecodeError("no image format that is read here begins like this")
    if kind == "HEIF":
        load_heic_reader()
    for load_readers in (Image.preinit, Image.init):  # the common ones, then all
        if kind not in Image.OPEN:
            load_readers()
    if kind not in Image.OPEN:
        raise DecodeError(f"this Pillow was built without {kind}: install a newer one, or convert the file")
    if kind == "WEBP":  # Pillow makes room for the pixels when it opens one
        _check_size(*webp_size(data), max_pixels)
    with QUIET, Image.open(io.BytesIO(data), formats=(kind,)) as image:
        _check_size(image.width, image.height, max_pixels)
        if kind == "JPEG":
            _check_scans(data, image.width, image.height)
        if kind == "TIFF":
            _check_tiles(image, max_pixels)
        yield loaded(image, data)


@contextmanager
def _loaded_reduced(data: bytes, max_pixels: int, reduced: int) -> Iterator[Image.Image]:
    """Decode a JPEG of one scan at a part of its size; ``Image.open`` would measure all of it by Pillow's own limit."""
    with QUIET, JpegImageFile(io.BytesIO(data)) as image:
        width, height = image.size
        _check_size(-(-width // reduced), -(-height // reduced), max_pixels)
        image.draft(None, (width // reduced, height // reduced))
        image.load()
        yield image


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    module: ModuleType = simplejpeg
    return module


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise DecodeError(f"it has {width} x {height} pixels (width x height), more than max_pixels={max_pixels}")


def _check_tiles(image: Image.Image, max_pixels: int) -> None:
    """A tile is decoded as a whole, however small the image is; strips end with the image."""
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0)
    if width * height > max_pixels:
        raise DecodeError(
            f"its tiles have {width} x {height} pixels (width x height), more than max_pixels={max_pixels}"
        )


def _check_scans(data: bytes, width: int, height: int) -> None:
    most = _MAX_SCANNED // max(1, width * height)
    scans = scans_of(data, most)
    if scans > most:
        raise DecodeError(f"it goes {scans} times over its {width} x {height} pixels: no camera writes such a JPEG")


def _complaint(data: bytes, error: Exception, where: str) -> str:
    if not data:
        cause = "it is empty"
    elif data.lstrip()[:1] == b"<":
        cause = "it is HTML or XML, as servers send it in place of a missing file"
    elif isinstance(error, UnidentifiedImageError):
        cause = "its header is damaged"  # Pillow's own words name an object in memory
    else:
        cause = str(error) if isinstance(error, DecodeError) else f"{type(error).__name__}: {error}"
    return (
        f"{where} cannot be decoded: {cause} ({len(data)} bytes, beginning with {data[:12]!r}); "
        "replace the file, or do without it: on_error of a Loader, --skip-bad of headrace build, view and bench"
    )


#: Of the TIFF specification, revision 6.0.
_TILE_WIDTH, _TILE_LENGTH = 322, 323

#: Orientation -> the view that shows the image upright.
_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda image: image,
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: image.transpose(1, 0, 2)[:, ::-1],
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: lambda image: image.transpose(1, 0, 2)[::-1],
}
