"""EXIF blocks: which way up an image is.

A block is a small TIFF file. Pillow's reading of it is the rule, ``ImageOps.exif_transpose`` without XMP; what cameras
write is read here in 2 microseconds, and Pillow, which takes 30, is asked about all that is odd.
"""

import re
import struct
from collections.abc import Mapping
from typing import Any

from PIL import ExifTags, Image

from .quiet import QUIET

__all__ = ["PREFIX", "block_of", "orientation_of"]

#: What a JPEG has before an EXIF block.
PREFIX = b"Exif\0\0"

#: Where PNGs had their EXIF block before there was a chunk for it: as a text, ImageMagick's. Behind three lines (the
#: first one empty, then the kind and the length) comes the block in hexadecimal digits.
_TEXT, _TEXT_LINES = "Raw profile type exif", 3

#: Pillow passes over as many.
_PREFIXES = re.compile(b"(?:Exif\0\0){0,2}")

#: Of the TIFF specification, revision 6.0, and BigTIFF: bytes of a value of each kind; 0 where there is no such kind.
_SHORT, _LONG = 3, 4
_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8)

_ORIENTATIONS = {number: number for number in range(1, 9)}


def block_of(info: Mapping[Any, Any]) -> bytes:
    r"""Return the EXIF block among what Pillow found beside an image's pixels; empty where there is none.

    Args:
        info: ``Image.info``.

    Example:
        >>> block_of({"Raw profile type exif": "\nexif\n      10\n457869660000\n49492a00\n"})
        b'Exif\x00\x00II*\x00'
    """
    block = info.get("exif")
    if isinstance(block, bytes):  # a PNG's text may be called so
        return block
    text = info.get(_TEXT, "")
    try:
        return bytes.fromhex("".join(text.split("\n")[_TEXT_LINES:]))
    except ValueError:
        return b""  # damaged metadata take nothing from the pixels


def orientation_of(block: bytes) -> int:
    r"""Return the orientation that an EXIF block states, 1 .. 8; 1 where there is none that is valid.

    Args:
        block: with or without ``Exif\0\0`` in front. A JPEG may have its block in several pieces, which are joined.

    Example:
        >>> orientation_of(b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0))
        6
    """
    match = _PREFIXES.match(block)
    tiff = block[match.end() :] if match else block
    if not tiff:
        return 1
    usual = _usual(tiff)
    return _by_pillow(tiff) if usual is None else usual


def _usual(tiff: bytes) -> int | None:
    """Return what the usual kinds of blocks state, or None for all others."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return None
    try:
        start: int = struct.unpack_from(order + "I", tiff, 4)[0]
        entries: int = struct.unpack_from(order + "H", tiff, start)[0]
        for entry in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, count, value, upper = struct.unpack_from(order + "HHIHH", tiff, entry)
            if tag == ExifTags.Base.Orientation:
                if kind == _LONG:
                    value = value | upper << 16 if order == "<" else value << 16 | upper
                return _ORIENTATIONS.get(value, 1) if kind in (_SHORT, _LONG) and count == 1 else None
            size = count * _SIZES[kind] if kind < len(_SIZES) else 0
            if size > 4 and struct.unpack_from(order + "I", tiff, entry + 8)[0] + size > len(tiff):
                return None  # Pillow reads no tag behind one whose data are not there
    except struct.error:  # an offset that points beyond the block
        return None
    return 1


def _by_pillow(tiff: bytes) -> int:
    exif = Image.Exif()
    try:
        with QUIET:
            exif.load(tiff)
            return _ORIENTATIONS.get(exif.get(ExifTags.Base.Orientation, 1), 1)
    except (SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, OSError, struct.error):
        return 1  # damaged metadata take nothing from the pixels
