"""EXIF blocks: whatever they hold, an image is turned as Pillow turns it, by whichever decoder it was read."""

import io
import struct
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import encode, exif, photo
from PIL import Image, ImageOps, PngImagePlugin

from headrace.datastores.decode import Decoder, decode, decode_mask
from headrace.datastores.exif import PREFIX, orientation_of

PHOTO = photo(9, 14)
PLAIN = encode(PHOTO, "JPEG")
XMP = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="3"/>'
TURNS = (None, None, 0, 3, 1, 5, 4, 6, 2)  # orientation -> Image.Transpose


def with_segments(*payloads: bytes) -> bytes:
    """Return a JPEG with these APP1 segments in front."""
    segments = (b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload for payload in payloads)
    return PLAIN[:2] + b"".join(segments) + PLAIN[2:]


def orientation_by_pillow(data: bytes) -> int:
    """Return what Pillow's own reading of a file's EXIF block says."""
    with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as image:
        try:
            found = Image.Exif()
            found.load(image.info.get("exif", b""))
            return next((number for number in range(1, 9) if number == found.get(0x0112)), 1)
        except Exception:
            return 1  # exif_transpose would fail, and a picture is worth more than that


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    way = TURNS[orientation]
    return pixels if way is None else np.asarray(Image.fromarray(pixels).transpose(Image.Transpose(way)))


def check(data: bytes) -> int:
    """Compare both decoders with Pillow; return the orientation."""
    decoder, expected = Decoder(), orientation_by_pillow(data)
    fast, slow = decoder._usual_jpeg(data), decoder._any(data)
    assert fast is not None, "it is not the fast path that is tested"
    assert orientation_of(fast[1]) == orientation_of(slow[1]) == expected
    assert np.array_equal(decode(data, where="x"), turned(slow[0], expected))
    return expected


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_every_orientation_in_both_byte_orders(orientation: int, order: str, kind: int) -> None:
    data = with_segments(PREFIX + exif(orientation, order, kind))
    assert check(data) == (orientation if 1 <= orientation <= 8 else 1)
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(decode(data, where="x"), np.asarray(ImageOps.exif_transpose(image)))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("cut", [3, 7, 8, 9, 10, 20, 30, 40])
def test_a_block_in_two_segments_is_joined(order: str, cut: int) -> None:
    block = exif(6, order)
    assert check(with_segments(PREFIX + block[:cut], PREFIX + block[cut:])) == 6


@pytest.mark.parametrize(
    ("payloads", "orientation"),
    [
        ([PREFIX, PREFIX + exif(6)], 6),
        ([PREFIX, PREFIX, PREFIX + exif(6)], 6),
        ([PREFIX + PREFIX + exif(6)], 6),
        ([PREFIX + exif(6), PREFIX], 6),
        ([PREFIX + exif(1), PREFIX + exif(6)], 1),
        ([XMP, PREFIX + exif(6)], 6),
        ([PREFIX + exif(6), XMP], 6),
        ([PREFIX + exif(6)[:12], XMP, PREFIX + exif(6)[12:]], 6),
        ([b"Exif", PREFIX + exif(6)], 6),
        ([b"", PREFIX + exif(6)], 6),
        ([PREFIX + b"XX", PREFIX + exif(6)], 1),
        ([XMP], 1),
        ([PREFIX], 1),
        ([b"Exif\0" + exif(6)], 1),
    ],
)
def test_segments_in_any_company(payloads: list[bytes], orientation: int) -> None:
    assert check(with_segments(*payloads)) == orientation


def test_a_block_behind_the_frame_counts_too() -> None:
    at = PLAIN.index(b"\xff\xda")
    assert check(PLAIN[:at] + with_segments(PREFIX + exif(8))[2 : -len(PLAIN) + 2] + PLAIN[at:]) == 8


def block(kind: int, count: int, value: bytes, order: str = "<", header: bytes = b"") -> bytes:
    mark = header or (b"II*\0" if order == "<" else b"MM\0*")
    entry = struct.pack(order + "HHI", 0x0112, kind, count) + value.ljust(4, b"\0")
    return mark + struct.pack(order + "IH", 8, 1) + entry + bytes(4) + struct.pack(order + "II", 6, 1)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", range(19))
@pytest.mark.parametrize("count", [0, 1, 2, 2**31])
def test_an_orientation_of_any_type(order: str, kind: int, count: int) -> None:
    for value in (
        struct.pack(order + "HH", 6, 6),
        struct.pack(order + "I", 6),
        struct.pack(order + "f", 6),
        b"\6",
        b"6",
    ):
        check(with_segments(PREFIX + block(kind, count, value, order)))
    check(with_segments(PREFIX + block(kind, count, struct.pack(order + "I", 26), order)))  # 6 / 1 lies there


@pytest.mark.parametrize("header", [b"MM*\0", b"II\0*", b"II+\0", b"MM\0+", b"MM+\0", b"II**", b"XX*\0", b"ii*\0"])
def test_headers_that_are_none_or_odd(header: bytes) -> None:
    for order in "<>":
        check(with_segments(PREFIX + block(3, 1, struct.pack(order + "H", 6), order, header)))


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_block_cut_anywhere(order: str) -> None:
    whole = exif(6, order)
    found = [check(with_segments(PREFIX + whole[:length])) for length in range(len(whole) + 1)]
    assert set(found) == {1, 6}


WHOLE = [exif(6), exif(8, ">"), exif(3, "<", 4), block(3, 1, b"\5")]


@settings(max_examples=300)
@given(
    st.sampled_from(WHOLE),
    st.lists(st.tuples(st.integers(0, 45), st.binary(min_size=1, max_size=4)), max_size=4),
    st.lists(st.integers(0, 45), max_size=2),
    st.binary(max_size=30),
)
@example(exif(6), [(8, b"\xff\xff")], [], b"")
@example(exif(8, ">"), [(17, b"\5\1")], [], b"")  # another tag, whose data lie outside of the block
def test_a_damaged_block_in_any_pieces(
    whole: bytes, changes: list[tuple[int, bytes]], cuts: list[int], tail: bytes
) -> None:
    data = bytearray(whole + tail)
    for position, raw in changes:
        data[position : position + len(raw)] = raw
    edges = [0, *sorted(cuts), len(data)]
    pieces = [PREFIX + data[start:end] for start, end in pairwise(edges)]
    check(with_segments(*map(bytes, pieces)))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("start", [b"", PREFIX])
def test_other_files_follow_the_same_rule(kind: str, start: bytes) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(PHOTO, kind, exif=start + block(8, 1, b"\6"), **options)  # a signed short: odd, and read by Pillow
    assert np.array_equal(decode(data, where="x"), turned(PHOTO, 6))


def with_text(digits: str, compressed: bool, image: np.ndarray = PHOTO, **options: object) -> bytes:
    """Return a PNG with a text as ImageMagick writes it."""
    lines = "\n".join(digits[start : start + 72] for start in range(0, len(digits), 72))
    text = PngImagePlugin.PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(digits) // 2:8}\n{lines}\n", zip=compressed)
    return encode(image, "PNG", pnginfo=text, **options)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("start", [b"", PREFIX])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_old_exif_text_of_pngs_turns_images_and_masks_alike(
    compressed: bool, start: bytes, orientation: int
) -> None:
    digits = (start + exif(orientation)).hex()
    data = with_text(digits, compressed)
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(decode(data, where="x"), np.asarray(ImageOps.exif_transpose(image)))
    assert np.array_equal(decode(data, where="x"), turned(PHOTO, orientation))
    assert np.array_equal(decode(data, where="x", apply_orientation=False), PHOTO)
    gray = PHOTO[..., 0]
    assert np.array_equal(decode_mask(with_text(digits, compressed, gray), where="x"), turned(gray, orientation))
    both = with_text(digits, compressed, exif=exif(2))
    assert np.array_equal(decode(both, where="x"), PHOTO[:, ::-1])  # the chunk comes first


@pytest.mark.parametrize("digits", ["", "4", "what", exif(6).hex()[:-3], "00" * 40, "\u00e9"])
def test_a_damaged_text_turns_nothing(digits: str) -> None:
    assert np.array_equal(decode(with_text(digits, True), where="x"), PHOTO)
