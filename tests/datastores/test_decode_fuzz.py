"""Whatever bytes a file holds: pixels or the package's own error, in little memory and in little time."""

import pickle
import struct
import subprocess
import sys
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encode, exif, photo, with_exif
from PIL import Image, features

from headrace.datastores.decode import Decoder, decode, decode_mask
from headrace.datastores.heif import load_heic_reader
from headrace.errors import DecodeError

PHOTO = photo(23, 31)
PICTURE = Image.fromarray(PHOTO)
PALETTE = Image.fromarray(PHOTO // 64 * 64).quantize(32)
LIMIT = 1_000_000


def files() -> dict[str, bytes]:
    """Return a small file of every kind that is read."""
    found = {f"JPEG {options}": encode(PHOTO, "JPEG", **options) for options in JPEGS}
    found["JPEG gray"] = encode(PHOTO[..., 0].copy(), "JPEG")
    found["JPEG cmyk"] = encode(PICTURE.convert("CMYK"), "JPEG")
    found["JPEG exif"] = with_exif(encode(PHOTO, "JPEG"), exif(6))
    found["MPO"] = encode(PHOTO, "MPO", save_all=True, append_images=[PICTURE])
    for mode in ("1", "L", "LA", "RGB", "RGBA"):
        found[f"PNG {mode}"] = encode(PICTURE.convert(mode), "PNG")
    for kind in ("PNG", "GIF", "BMP", "TIFF"):
        found[f"{kind} palette"] = encode(PALETTE, kind)
    found["PNG 16"] = encode(PHOTO[..., 0].astype(np.uint16) * 257, "PNG")
    found["PNG exif"] = encode(PALETTE, "PNG", exif=exif(6), transparency=3)
    found["PNG film"] = encode(PHOTO, "PNG", save_all=True, append_images=[PICTURE])
    found["GIF film"] = encode(PALETTE, "GIF", save_all=True, append_images=[PALETTE.rotate(9)], interlace=1)
    found["WEBP"] = encode(PHOTO, "WEBP")
    found["WEBP lossless"] = encode(PHOTO, "WEBP", lossless=True)
    found["WEBP alpha"] = encode(PICTURE.convert("RGBA"), "WEBP", exif=exif(3))
    found["WEBP film"] = encode(PHOTO, "WEBP", save_all=True, append_images=[PICTURE.rotate(9)])
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        found[f"TIFF {compression}"] = encode(PHOTO, "TIFF", compression=compression)
    found["TIFF fax"] = encode(PICTURE.convert("1"), "TIFF", compression="group4")
    found["TIFF 32"] = encode(PHOTO[..., 0].astype(np.int32), "TIFF")
    found["TIFF alpha"] = encode(PICTURE.convert("RGBA"), "TIFF")
    for mode in ("1", "L", "RGB"):
        found[f"BMP {mode}"] = encode(PICTURE.convert(mode), "BMP")
        found[f"PPM {mode}"] = encode(PICTURE.convert(mode), "PPM")
    found["PPM text"] = b"P3\n# six\n3 2\n255\n" + b"1 2 3 " * 6
    if "avif" in features.get_supported():
        found["AVIF"] = encode(PHOTO, "AVIF")
    if find_spec("pillow_heif"):
        load_heic_reader()
        found["HEIC"] = encode(PHOTO, "HEIF")
    return found


JPEGS = ({}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1})
FILES = files()

# -- damage ------------------------------------------------------------------------------------------------------------

PLACE = st.floats(0, 1) | st.floats(0, 0.1)  # headers are short, and most of what can go wrong is there
WIDE = st.sampled_from([0, 1, 255, 256, 32767, 32768, 60000, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1])
CHANGES = st.one_of(
    st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("cut"), PLACE, st.none()),
    st.tuples(st.just("remove"), PLACE, st.integers(1, 40)),
    st.tuples(st.just("insert"), PLACE, st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("write"), PLACE, st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("write"), PLACE, st.tuples(st.sampled_from(["<I", ">I"]), WIDE).map(lambda it: struct.pack(*it))),
    st.tuples(
        st.just("write"),
        PLACE,
        st.tuples(st.sampled_from(["<H", ">H"]), WIDE).map(lambda it: struct.pack(it[0], it[1] & 0xFFFF)),
    ),
    st.tuples(st.just("splice"), PLACE, st.sampled_from(sorted(FILES))),
)


def damaged(data: bytes, changes: list[tuple[str, float, object]]) -> bytes:
    result = bytearray(data)
    for kind, place, what in changes:
        at = int(place * max(0, len(result) - 1))
        if kind == "flip" and result:
            result[at] ^= 1 << what
        elif kind == "cut":
            del result[at:]
        elif kind == "remove":
            del result[at : at + what]
        elif kind == "insert":
            result[at:at] = what
        elif kind == "write":
            result[at : at + len(what)] = what
        elif kind == "splice":
            other = FILES[what]
            result[at:] = other[int(place * len(other)) :]
    return bytes(result)


def with_checksums(data: bytes) -> bytes:
    """Let the damage of a PNG through to what lies behind the checksums."""
    result, at = data[:8], 8
    while at + 12 <= len(data) and at + 12 + (length := int.from_bytes(data[at : at + 4], "big")) <= len(data):
        body = data[at + 4 : at + 8 + length]
        result += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return result + data[at:]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.lists(CHANGES, min_size=1, max_size=4), st.booleans())
def test_damaged_files_give_pixels_or_the_error(
    name: str, changes: list[tuple[str, float, object]], refit: bool
) -> None:
    data = damaged(FILES[name], changes)
    if refit and data.startswith(b"\x89PNG\r\n\x1a\n"):
        data = with_checksums(data)
    for read, axes in ((decode, 3), (decode_mask, 2)):
        try:
            pixels = read(data, where="damaged", max_pixels=LIMIT)
        except DecodeError as error:
            message = str(error)
            assert message.startswith("damaged cannot be decoded: ")
            continue
        assert pixels.ndim == axes
        assert 0 < pixels.shape[0] * pixels.shape[1] <= LIMIT
        assert pixels.dtype in ((np.uint8,) if axes == 3 else (np.uint8, np.int32))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([name for name in FILES if name.startswith("JPEG")]), st.lists(CHANGES, min_size=1, max_size=3))
def test_what_one_decoder_reads_whole_the_other_reads_the_same(
    name: str, changes: list[tuple[str, float, object]]
) -> None:
    data = damaged(FILES[name], changes)
    try:
        fast = Decoder(max_pixels=LIMIT)._usual_jpeg(data)
    except DecodeError:
        fast = None
    if fast is not None:
        pixels, block = Decoder(max_pixels=LIMIT)._any(data)
        assert np.array_equal(fast[0], pixels)
        assert block.removeprefix(b"Exif\0\0") == fast[1]


# -- claims ------------------------------------------------------------------------------------------------------------

SQUARE = Image.new("RGB", (16, 16), "red")


def claims(side: int) -> dict[str, bytes]:
    """Return tiny files that claim to be ``side`` pixels wide and high."""
    big, little, long = (struct.pack(code, side, side) for code in (">HH", "<HH", "<II"))
    square = SQUARE.quantize(4)
    found = {
        f"JPEG {mode} {options}": encode(SQUARE.convert(mode), "JPEG", **options).replace(
            struct.pack(">HH", 16, 16), big, 1
        )
        for mode in ("L", "RGB", "CMYK")
        for options in ({}, {"progressive": True})
    }
    for mode, image in (("RGB", SQUARE), ("palette", square)):
        found[f"PNG {mode}"] = with_checksums(
            encode(image, "PNG").replace(struct.pack(">II", 16, 16), struct.pack(">II", side, side), 1)
        )
        found[f"BMP {mode}"] = encode(image, "BMP").replace(struct.pack("<II", 16, 16), long, 1)
    gif = encode(square, "GIF")
    frame = gif.index(b"\x2c") + 5
    found["GIF"] = gif.replace(struct.pack("<HH", 16, 16), little, 1)
    found["GIF frame"] = gif[:frame] + little + gif[frame + 4 :]
    found["TIFF"] = tiff(side, 1)
    found["TIFF lzw"] = tiff(side, 5)
    found["PPM"] = b"P6 %d %d 255\n" % (side, side) + bytes(99)
    found["PPM text"] = b"P3 %d %d 255\n" % (side, side) + b"1 2 3 " * 9
    side = min(side, 16383)
    canvas = encode(SQUARE.convert("RGBA"), "WEBP", lossless=True, exif=exif(1))
    at = canvas.index(b"VP8X") + 12
    found["WEBP canvas"] = canvas[:at] + (side - 1).to_bytes(3, "little") * 2 + canvas[at + 6 :]
    lossless = encode(SQUARE, "WEBP", lossless=True)
    at = lossless.index(b"VP8L") + 9
    found["WEBP lossless"] = lossless[:at] + struct.pack("<I", side - 1 | side - 1 << 14) + lossless[at + 4 :]
    lossy = encode(SQUARE, "WEBP")
    at = lossy.index(b"\x9d\x01\x2a") + 3
    found["WEBP"] = lossy[:at] + struct.pack("<HH", side, side) + lossy[at + 4 :]
    return found


def tiff(side: int, compression: int) -> bytes:
    tags = [
        (256, side),
        (257, side),
        (258, 8),
        (259, compression),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, side),
        (279, 99),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(4 + 99)


@pytest.mark.parametrize("name", sorted(claims(60_000)))
def test_a_claim_is_refused_by_its_header(name: str) -> None:
    for read in (decode, decode_mask):
        with pytest.raises(
            DecodeError, match=r"it has 5000 x 5000 pixels \(width x height\), more than max_pixels=10000"
        ):
            read(claims(5000)[name], where="x", max_pixels=10_000)
        with pytest.raises(DecodeError, match="pixels"):
            read(claims(60_000)[name], where="x")


SCRIPT = """
import pickle, resource, sys
from PIL import Image
from headrace.datastores.decode import decode, decode_mask
from headrace.errors import DecodeError
Image.MAX_IMAGE_PIXELS = None  # as many scripts have it, so that Pillow refuses nothing
files = pickle.load(sys.stdin.buffer)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
for name, data in files.items():
    for read in (decode, decode_mask):
        try:
            read(data, where=name)
        except DecodeError as error:
            print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of memory")
def test_a_claim_is_refused_before_memory_is_asked_for() -> None:
    files = claims(60_000)
    answer = subprocess.run([sys.executable, "-c", SCRIPT], input=pickle.dumps(files), check=True, capture_output=True)
    lines = answer.stdout.decode().splitlines()
    assert len(lines) == 2 * len(files)
    assert all("more than max_pixels=134217728" in line for line in lines), lines


# -- scans -------------------------------------------------------------------------------------------------------------


def scan_bomb(side: int, scans: int, progressive: bool) -> bytes:
    """Return a JPEG that goes over all its pixels many times, for a dozen bytes each time."""
    data = encode(Image.new("RGB", (side, side)), "JPEG", progressive=progressive, subsampling=0)
    if progressive:
        last = data[data.rindex(b"\xff\xda") : -2]
        return data[:-2] + last * scans + data[-2:]
    scan = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 63, 0)
    return data[: data.index(b"\xff\xda")] + scan * scans + data[-2:]


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_of_too_many_scans_is_refused_before_it_is_decoded(progressive: bool) -> None:
    data = scan_bomb(2000, 2000, progressive)
    assert len(data) < 100_000
    for read in (Decoder()._usual_jpeg, Decoder()._any):
        with pytest.raises(DecodeError, match=r"it goes 20\d\d times over its 2000 x 2000 pixels"):
            read(data)


def test_scans_hidden_behind_markers_without_a_length_count() -> None:
    data = scan_bomb(2000, 2000, progressive=True)
    first = data.index(b"\xff\xda") + 2
    data = data[:first] + data[first:].replace(b"\xff\xda", b"\xff\x01\xff\xda")
    with pytest.raises(DecodeError, match="times over its 2000 x 2000 pixels"):
        decode(data, where="x")


def test_what_follows_an_image_or_hides_in_its_metadata_is_no_scan() -> None:
    data = encode(photo(2000, 2000), "JPEG", progressive=True)
    comment = b"\xff\xfe" + struct.pack(">H", 60_002) + b"\xff\xda" * 30_000
    found = decode(data[:2] + comment + data[2:] + b"\xff\xda" * 30_000, where="film")
    assert np.array_equal(found, decode(data, where="film"))
