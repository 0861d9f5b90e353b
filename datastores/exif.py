"""EXIF blocks: which way up an image is.

A block is a small TIFF file. Pillow's reading of it is the rule, ``ImageOps.exif_transpose`` without XMP; what cameras
write is read here in 2 microseconds, and Pillow, which takes 30, is asked about all that is odd.
"""

import re
import struct

from PIL import ExifTags, Image

from .quiet import QUIET

__all__ = ["PREFIX", "orientation_of"]

#: What a JPEG has before an EXIF block.
PREFIX = b"Exif\0\0"

#: Pillow passes over as many.
_PREFIXES = re.compile(b"(?:Exif\0\0){0,2}")

#: Of the TIFF specification, revision 6.0, and BigTIFF: bytes of a value of each kind; 0 where there is no such kind.
_SHORT, _LONG = 3, 4
_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8)

_ORIENTATIONS = {number: number for number in range(1, 9)}


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
