"""HEIC and AVIF, two codecs in one container: which one a file holds, and the reader of HEIC where it is installed."""

from typing import Literal

from PIL import Image

from ..errors import DecodeError

__all__ = ["codec_of", "load_heic_reader"]

#: Brands of ISO/IEC 23008-12 (HEIF), annex B, and of the AV1 Image File Format; others name no codec.
_HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
_AVIF = frozenset((b"avif", b"avis"))
_MOST_BRANDS = 64


def codec_of(data: bytes) -> Literal["AVIF", "HEIF"] | None:
    r"""Return Pillow's name of the format of such a file, by the brands in its first box; None for all other files.

    Args:
        data: the file, or its beginning.

    Example:
        >>> codec_of(b"\0\0\0\x1cftypmif1\0\0\0\0mif1heicmiaf")
        'HEIF'
    """
    if data[4:8] != b"ftyp":
        return None
    end = min(int.from_bytes(data[:4], "big"), len(data), 16 + 4 * _MOST_BRANDS)
    for at in (8, *range(16, end, 4)):  # the major brand, its version, the compatible ones
        brand = data[at : at + 4]
        if brand in _AVIF or brand in _HEIC:
            return "AVIF" if brand in _AVIF else "HEIF"
    return None


def load_heic_reader() -> None:
    """Make Pillow read HEIC, by the plug-in of the extra ``heic``.

    Raises:
        DecodeError: it is not installed.
    """
    if "HEIF" in Image.OPEN:
        return
    try:
        import pillow_heif
    except ImportError as error:
        raise DecodeError('it is HEIC, which needs the extra "heic" (pip install pillow-heif)') from error
    pillow_heif.register_heif_opener()
