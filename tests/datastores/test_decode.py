"""One rule for every kind of image file, and one error for everything else."""

import contextlib
import copy
import io
import multiprocessing
import pickle
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encode, exif, photo, with_exif
from PIL import Image, ImageFile, ImageOps, PngImagePlugin, features

from headrace.datastores.decode import MAX_PIXELS, Decoder, decode, decode_mask
from headrace.datastores.headers import jpeg_header
from headrace.errors import ConfigError, DecodeError

PHOTO = photo(37, 53)
FEW = (PHOTO // 64) * 64  # few enough colors for a palette
LOSSLESS = {"PNG": {}, "WEBP": {"lossless": True}, "BMP": {}, "TIFF": {}, "PPM": {}}


def by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Return what Pillow alone makes of a plain file."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(ImageOps.exif_transpose(image).convert(mode))
    return pixels if mode == "RGB" else pixels[..., np.newaxis]


def packed(values: np.ndarray, depth: int) -> np.ndarray:
    """Return values (H, W) as rows of bytes, ``depth`` bits each, whole bytes per row."""
    bits = values[..., np.newaxis] >> np.arange(depth)[::-1] & 1
    return np.packbits(bits.astype(np.uint8).reshape(len(values), -1), axis=1)


def tiff(tags: dict[int, int], data: bytes) -> bytes:
    """Write a little-endian TIFF by hand; its pixels begin at byte 8."""
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    start = struct.pack("<I", 8 + len(data))
    return b"II*\0" + start + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def gray_tiff(values: np.ndarray, depth: int, photometric: int | None = 1, sample_format: int | None = None) -> bytes:
    data = values.astype(f"<i{depth // 8}").tobytes() if depth in (16, 32) else packed(values, depth).tobytes()
    height, width = values.shape
    tags = {256: width, 257: height, 258: depth, 259: 1, 273: 8, 277: 1, 278: height, 279: len(data)}
    optional = {262: photometric, 339: sample_format}
    return tiff(tags | {tag: value for tag, value in optional.items() if value is not None}, data)


def bmp(values: np.ndarray, depth: int, palette: list[tuple[int, int, int]], old: bool = False) -> bytes:
    """Write a BMP with a palette by hand, from the top down unless it is old, with the first kind of header."""
    rows = packed(values[::-1] if old else values, depth)
    height, width = values.shape
    data = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4))).tobytes()
    if old:
        header = struct.pack("<IHHHH", 12, width, height, 1, depth)
    else:
        header = struct.pack("<IiiHHIIiiII", 40, width, -height, 1, depth, 0, len(data), 0, 0, len(palette), 0)
    colors = b"".join(bytes(color[::-1]) + (b"" if old else b"\0") for color in palette)
    offset = 14 + len(header) + len(colors)
    return b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset) + header + colors + data


def png(depth: int, color_type: int, rows: np.ndarray, transparency: bytes = b"", width: int | None = None) -> bytes:
    """Write a PNG by hand, for what Pillow does not write; rows are big-endian samples, or packed bytes."""
    height, width = len(rows), width or rows.shape[1]
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0))]
    chunks += [(b"tRNS", transparency)] if transparency else []
    chunks += [(b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    body = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_formats_give_back_what_was_stored(kind) -> None:
    pixels = decode(encode(PHOTO, kind, **LOSSLESS[kind]), where="picture")
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert np.array_equal(pixels, PHOTO)


def test_gif_and_palette_png() -> None:
    few = Image.fromarray(FEW).quantize(64)
    expected = np.asarray(few.convert("RGB"))
    for kind in ("GIF", "PNG"):
        assert np.array_equal(decode(encode(few, kind), where="palette"), expected)


def test_avif_where_pillow_has_it() -> None:
    if "avif" not in features.get_supported():
        with pytest.raises(DecodeError, match="this Pillow was built without AVIF"):
            decode(b"\0\0\0\x1cftypavif" + bytes(50), where="picture")
        return
    pixels = decode(encode(PHOTO, "AVIF", quality=95), where="picture")
    assert pixels.shape == PHOTO.shape
    assert np.abs(pixels.astype(int) - PHOTO).mean() < 4


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_counts(kind) -> None:
    frames = [Image.new("RGB", (8, 6), color) for color in ((255, 0, 0), (0, 255, 0))]
    data = encode(
        frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {})
    )
    assert len(data) > len(encode(frames[0], kind))
    assert np.array_equal(decode(data, where="film"), np.broadcast_to(np.uint8((255, 0, 0)), (6, 8, 3)))


def test_mpo_is_its_first_picture() -> None:
    second = Image.fromarray(PHOTO[::-1].copy())
    data = encode(PHOTO, "MPO", save_all=True, append_images=[second], quality=90)
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "MPO"
        assert image.n_frames == 2
    assert np.array_equal(decode(data, where="stereo"), by_pillow(data))


# --- JPEG: simplejpeg and Pillow are equal ---------------------------------------------------------------------------


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (17, 33), (37, 53), (64, 127)])
def test_fast_jpeg_decoding_equals_pillows_bit_for_bit(subsampling, size) -> None:
    image = photo(*size)
    space = "GRAY" if subsampling == "Gray" else "RGB"
    source = image[..., :1].copy() if space == "GRAY" else image
    data = simplejpeg.encode_jpeg(source, 85, colorspace=space, colorsubsampling=subsampling)
    for color, mode in (("rgb", "RGB"), ("gray", "L"), ("keep", "L" if space == "GRAY" else "RGB")):
        assert Decoder(color)._usual_jpeg(data) is not None
        assert np.array_equal(decode(data, where="jpeg", color=color), by_pillow(data, mode))


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"optimize": True}, {"restart_marker_rows": 1}, {"quality": 100}]
)
def test_other_kinds_of_jpeg_too(options) -> None:
    for image in (PHOTO, PHOTO[..., 0]):
        data = encode(image, "JPEG", **options)
        assert Decoder()._usual_jpeg(data) is not None
        assert np.array_equal(decode(data, where="jpeg"), by_pillow(data))


def test_jpegs_stored_as_rgb() -> None:
    data = encode(PHOTO, "JPEG", keep_rgb=True)
    assert np.array_equal(decode(data, where="jpeg"), by_pillow(data))


@pytest.mark.parametrize("transform", [0, 2])
def test_cmyk_and_ycck_jpegs_are_left_to_pillow(transform) -> None:
    data = bytearray(encode(Image.fromarray(PHOTO).convert("CMYK"), "JPEG", quality=95))
    data[data.index(b"Adobe") + 11] = transform  # 0: CMYK as it is, 2: YCCK
    assert Decoder()._usual_jpeg(bytes(data)) is None
    assert np.array_equal(decode(bytes(data), where="print"), by_pillow(bytes(data)))
    gray = decode(bytes(data), where="print", color="gray")
    assert np.array_equal(gray[..., 0], np.asarray(Image.fromarray(by_pillow(bytes(data))).convert("L")))


def test_white_paper_in_cmyk_is_white() -> None:
    data = encode(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), "JPEG")
    assert decode(data, where="print").min() >= 254


def test_without_simplejpeg_the_results_are_the_same(tmp_path) -> None:
    files = [encode(PHOTO, "JPEG", **options) for options in ({}, {"progressive": True}, {"subsampling": 0})]
    files += [with_exif(files[0], exif(6)), encode(PHOTO[..., 0], "JPEG"), encode(PHOTO, "PNG")]
    (tmp_path / "files").write_bytes(pickle.dumps(files))
    script = (
        "import sys, pickle; sys.modules['simplejpeg'] = None\n"
        "from headrace.datastores.decode import Decoder, decode\n"
        "files = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert Decoder()._usual_jpeg(files[0]) is None\n"
        "found = [decode(file, where='', color=color) for file in files for color in ('rgb', 'gray', 'keep')]\n"
        "pickle.dump(found, sys.stdout.buffer)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script, tmp_path / "files"], check=True, stdout=subprocess.PIPE)
    expected = [decode(file, where="", color=color) for file in files for color in ("rgb", "gray", "keep")]
    for ours, theirs in zip(expected, pickle.loads(answer.stdout), strict=True):
        assert np.array_equal(ours, theirs)


# --- orientation -----------------------------------------------------------------------------------------------------


def upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turn by the table of the EXIF standard: where row 0 and column 0 of the stored image are when it is seen."""
    return {
        1: image,  # top, left
        2: np.fliplr(image),  # top, right
        3: np.rot90(image, 2),  # bottom, right
        4: np.flipud(image),  # bottom, left
        5: np.transpose(image, (1, 0, 2)),  # left, top
        6: np.rot90(image, -1),  # right, top
        7: np.rot90(np.fliplr(image), -1),  # right, bottom
        8: np.rot90(image, 1),  # left, bottom
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("order", "kind"), [("<", 3), (">", 3), ("<", 4), (">", 4)])
def test_exif_orientation_is_applied(orientation, order, kind) -> None:
    block = exif(orientation, order, kind)
    for file in ("PNG", "WEBP"):
        data = encode(PHOTO, file, exif=block, **LOSSLESS[file])
        assert np.array_equal(decode(data, where="turned"), upright(PHOTO, orientation))
        assert np.array_equal(decode(data, where="turned", apply_orientation=False), PHOTO)
    plain = encode(PHOTO, "JPEG")
    data = with_exif(plain, block)
    assert Decoder()._usual_jpeg(data) is not None
    assert np.array_equal(decode(data, where="turned"), upright(by_pillow(plain), orientation))
    assert np.array_equal(decode(data, where="turned"), by_pillow(data))
    assert np.array_equal(decode(data, where="turned", apply_orientation=False), by_pillow(plain))
    assert decode(data, where="turned").flags.c_contiguous


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_counts_in_cmyk_and_tiff_too(orientation) -> None:
    plain = encode(Image.fromarray(PHOTO).convert("CMYK"), "JPEG")
    data = with_exif(plain, exif(orientation))
    assert np.array_equal(decode(data, where="turned"), upright(by_pillow(plain), orientation))
    tiff = encode(PHOTO, "TIFF", tiffinfo={274: orientation})
    assert np.array_equal(decode(tiff, where="turned"), upright(PHOTO, orientation))


@pytest.mark.parametrize("orientation", [0, 9, 255, 65535])
def test_orientations_that_do_not_exist_are_ignored(orientation) -> None:
    plain = encode(PHOTO, "JPEG")
    assert np.array_equal(decode(with_exif(plain, exif(orientation)), where="odd"), by_pillow(plain))


@given(st.sampled_from([b"", b"II*\0", b"MM\0*", b"II*\0\x08\0\0\0"]), st.binary(max_size=60))
def test_no_exif_block_breaks_decoding(start, rest) -> None:
    plain = encode(PHOTO[:9, :7], "JPEG")
    found = decode(with_exif(plain, start + rest), where="odd")
    assert any(np.array_equal(found, upright(by_pillow(plain), orientation)) for orientation in range(1, 9))


def test_a_text_that_is_called_exif_is_no_exif_block() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("exif", "II*")
    assert np.array_equal(decode(encode(PHOTO, "PNG", pnginfo=text), where="odd"), PHOTO)


# --- bits, palettes, transparency ------------------------------------------------------------------------------------

VALUES = np.array([[0, 255, 256, 0x7FFF], [0x8000, 0xABCD, 65280, 65535]], np.uint16)


def test_16_bits_are_scaled_and_not_clipped() -> None:
    upper = (VALUES >> 8).astype(np.uint8)[..., np.newaxis]
    gray_files = [
        encode(VALUES, "PNG"),
        encode(VALUES, "TIFF"),
        encode(Image.fromarray(VALUES.astype(np.int32)), "PPM"),
    ]
    gray_files.append(encode(Image.frombytes("I;16B", (4, 2), VALUES.astype(">u2").tobytes()), "TIFF"))
    for data in gray_files:
        assert np.array_equal(decode(data, where="deep", color="keep"), upper)
        assert np.array_equal(decode(data, where="deep"), np.repeat(upper, 3, axis=2))
    color = np.stack((VALUES, VALUES[::-1], VALUES.T.reshape(2, 4)), axis=2)
    assert np.array_equal(decode(png(16, 2, color.astype(">u2")), where="deep"), color >> 8)


def test_a_transparent_value_of_16_bits_is_white() -> None:
    found = decode(png(16, 0, VALUES.astype(">u2"), struct.pack(">H", 256)), where="deep", color="gray")
    assert found[..., 0].tolist() == [[0, 0, 255, 0x7F], [0x80, 0xAB, 255, 255]]


def test_one_bit_is_black_and_white() -> None:
    bits = Image.fromarray(PHOTO).convert("1")
    expected = np.asarray(bits.convert("L"))
    for kind in ("PNG", "TIFF", "BMP"):
        assert np.array_equal(decode(encode(bits, kind), where="fax", color="keep")[..., 0], expected)


def test_numbers_without_a_white_are_refused() -> None:
    files = [encode(values, "TIFF") for values in (VALUES.astype(np.float32), VALUES.astype(np.int32))]
    files += [gray_tiff(np.array([[0, -1]]), depth, sample_format=2) for depth in (8, 16)]
    for file in files:
        with pytest.raises(DecodeError, match="its pixels are 32-bit or signed numbers"):
            decode(file, where="science")


def test_12_bits_are_scaled_and_not_clipped() -> None:
    values = np.array([[0, 0x123, 0xFFF, 0x800]])
    assert decode(gray_tiff(values, 12), where="deep", color="keep")[..., 0].tolist() == [[0, 0x12, 255, 0x80]]


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_gray_tiffs_whose_white_is_zero(depth) -> None:
    values = np.array([[0, 2**depth - 1, 2**depth // 2, 0]])
    for photometric in (0, None):
        found = decode(gray_tiff(values, depth, photometric), where="fax", color="keep")
        assert np.array_equal(found, 255 - decode(gray_tiff(values, depth), where="fax", color="keep"))
        assert found[0, :2, 0].tolist() == [255, 0]


@pytest.mark.parametrize(
    ("depth", "colors", "old"),
    [
        *((depth, colors, False) for depth, colors in [(1, 2), (1, 16), (4, 2), (4, 16), (8, 2), (8, 16), (8, 256)]),
        *((depth, 2**depth, True) for depth in (1, 4, 8)),  # the old header does not say how many colors there are
    ],
)
def test_bmps_with_gray_palettes(depth, colors, old) -> None:
    """Pillow takes two colors for one bit each, and more for a byte each, whatever the file says."""
    indices = np.random.default_rng(depth).integers(0, min(colors, 2**depth), (5, 7))
    levels = [0, 255] if colors == 2 else list(range(colors))
    file = bmp(indices, depth, [(level,) * 3 for level in levels], old)
    assert np.array_equal(decode_mask(file, where=""), indices)
    assert np.array_equal(decode(file, where="", color="keep")[..., 0], np.array(levels)[indices])
    with pytest.raises(DecodeError):
        decode(file[:-4], where="")


def test_ppm_is_scaled_to_its_white() -> None:
    color = decode(b"P6 2 1 65535\n" + struct.pack(">6H", 0x01FF, 0x80FF, 65535, 0x0100, 0x7F80, 0xFEFF), where="")
    assert color.tolist() == [[[2, 128, 255], [1, 127, 254]]]
    assert decode(b"P5 2 1 1023\n" + struct.pack(">HH", 1023, 512), where="", color="keep").ravel().tolist() == [
        255,
        128,
    ]
    assert decode(b"P5 2 1 100\n" + bytes((100, 50)), where="", color="keep").ravel().tolist() == [255, 128]


def over_white(color: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., np.newaxis] / 255
    return color * share + 255 * (1 - share)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_composited_on_white(kind) -> None:
    alpha = photo(37, 53, 1)[..., 0].copy()
    alpha[:5], alpha[5:10] = 0, 255
    data = encode(np.dstack((PHOTO, alpha)), kind, **(LOSSLESS[kind] | ({"exact": True} if kind == "WEBP" else {})))
    found = decode(data, where="logo")
    assert np.abs(found - over_white(PHOTO.astype(float), alpha)).max() <= 1
    assert (found[:5] == 255).all()
    assert np.array_equal(found[5:10], PHOTO[5:10])


def test_gray_with_alpha_stays_gray() -> None:
    gray, alpha = PHOTO[..., :1], photo(37, 53, 1)[..., 1].copy()
    data = encode(np.dstack((gray, alpha)), "PNG")
    found = decode(data, where="logo", color="keep")
    assert found.shape == (37, 53, 1)
    assert np.abs(found - over_white(gray.astype(float), alpha)).max() <= 1
    assert np.array_equal(decode(data, where="logo"), np.repeat(found, 3, axis=2))


def test_gray_with_alpha_of_16_bits_stays_gray() -> None:
    rows = np.array([[[0x1234, 0xFFFF], [0x1234, 0], [0xFFFF, 0xFFFF]]])
    data = png(16, 4, rows.astype(">u2"))
    assert decode(data, where="logo", color="keep").tolist() == [[[0x12], [255], [255]]]
    assert decode(data, where="logo").tolist() == [[[0x12] * 3, [255] * 3, [255] * 3]]
    with pytest.raises(DecodeError, match="no labels"):
        decode_mask(data, where="logo")


def test_transparent_palette_entries_and_colors_are_white() -> None:
    picture = Image.new("P", (3, 1))
    picture.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    picture.putdata([0, 1, 2])
    one = decode(encode(picture, "PNG", transparency=1), where="icon")
    assert one.tolist() == [[[255, 0, 0], [255, 255, 255], [0, 0, 255]]]
    assert np.array_equal(decode(encode(picture, "GIF", transparency=1), where="icon"), one)
    several = decode(encode(picture, "PNG", transparency=bytes([255, 0, 51])), where="icon")
    assert several.tolist() == [[[255, 0, 0], [255, 255, 255], [204, 204, 255]]]
    color = encode(np.uint8([[[1, 2, 3], [4, 5, 6]]]), "PNG", transparency=(4, 5, 6))
    assert decode(color, where="icon").tolist() == [[[1, 2, 3], [255, 255, 255]]]
    gray = encode(np.uint8([[7, 8]]), "PNG", transparency=8)
    assert decode(gray, where="icon", color="keep").tolist() == [[[7], [255]]]


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_transparent_gray_of_any_depth_is_white(depth) -> None:
    values = np.array([[0, 1, 2, 3, 85, 170, 255, 257]]) % 2**depth
    rows = values.astype(">u2") if depth == 16 else packed(values, depth)
    plain = decode(png(depth, 0, rows, width=8), where="", color="keep")[..., 0]
    for key in set(values.ravel().tolist()):
        found = decode(png(depth, 0, rows, struct.pack(">H", key), width=8), where="", color="keep")[..., 0]
        assert np.array_equal(found, np.where(values == key, 255, plain))
        if depth != 16:
            mask = decode_mask(png(depth, 0, rows, struct.pack(">H", key), width=8), where="")
            assert np.array_equal(mask, values)


@pytest.mark.parametrize("depth", [8, 16])
def test_a_transparent_color_of_any_depth_is_white(depth) -> None:
    kind = f">u{depth // 8}"
    colors = np.array([[[1, 2, 3], [1, 2, 4], [0x101, 0x202, 0x303], [0x102, 0x202, 0x303], [0x101, 2, 3]]]) % 2**depth
    plain = decode(png(depth, 2, colors.astype(kind)), where="")
    for key in colors[0].tolist():
        found = decode(png(depth, 2, colors.astype(kind), struct.pack(">3H", *key)), where="")
        assert np.array_equal(found, np.where((colors == key).all(2, keepdims=True), 255, plain))


def test_colors() -> None:
    gray, color = encode(PHOTO[..., 0], "PNG"), encode(PHOTO, "PNG")
    assert decode(gray, where="").shape == decode(color, where="").shape == (37, 53, 3)
    assert decode(gray, where="", color="gray").shape == decode(color, where="", color="gray").shape == (37, 53, 1)
    assert decode(gray, where="", color="keep").shape == (37, 53, 1)
    assert decode(color, where="", color="keep").shape == (37, 53, 3)
    assert np.array_equal(decode(gray, where=""), np.repeat(PHOTO[..., :1], 3, axis=2))
    weighted = PHOTO @ (0.299, 0.587, 0.114)
    assert np.abs(decode(color, where="", color="gray")[..., 0] - weighted).max() <= 1


# --- what is no image ------------------------------------------------------------------------------------------------

FILES = {
    "JPEG": encode(PHOTO, "JPEG"),
    "progressive": encode(PHOTO, "JPEG", progressive=True),
    "CMYK": encode(Image.fromarray(PHOTO).convert("CMYK"), "JPEG"),
    "GIF": encode(Image.fromarray(FEW).quantize(64), "GIF"),
    "TIFF, compressed": encode(PHOTO, "TIFF", compression="tiff_lzw"),
    **{kind: encode(PHOTO, kind, **options) for kind, options in LOSSLESS.items()},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_files_are_errors(name, share) -> None:
    data = FILES[name][: int(len(FILES[name]) * share)]
    with pytest.raises(DecodeError) as caught:
        decode(data, where="shards/7.tar: cat")
    message = str(caught.value)
    assert message.startswith("shards/7.tar: cat cannot be decoded: ")
    assert f"({len(data)} bytes, beginning with {data[:12]!r})" in message
    assert "0x7f" not in message
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_the_end_of_a_file_may_be_missing_where_all_pixels_are_there() -> None:
    for kind, lost in (("PNG", 12), ("GIF", 2)):
        assert np.array_equal(decode(FILES[kind][:-lost], where=""), decode(FILES[kind], where=""))


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "it is empty (0 bytes"),
        (b"<!DOCTYPE html><html>404</html>", "it is HTML or XML"),
        (b"\n  <svg xmlns='http://www.w3.org/2000/svg'/>", "it is HTML or XML"),
        (b"hello", "no image format that is read here begins like this"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no image format that is read here"),  # Pillow would start Ghostscript
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "damaged"),
        (b"BM, said the cat", "its header is damaged"),
        (b"\xff\xd8\xff", "its header is damaged"),
    ],
)
def test_what_is_no_image_is_named(data, cause) -> None:
    with pytest.raises(DecodeError, match=r"^cat\.jpg cannot be decoded: ") as caught:
        decode(data, where="cat.jpg")
    assert cause in str(caught.value)


def decoded_or_none(data: bytes) -> np.ndarray | None:
    """Any other error than the package's own, and any warning, fails the test."""
    try:
        return decode(data, where="damaged", max_pixels=100_000)
    except DecodeError:
        return None


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(FILES)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_damaged_files_give_pixels_or_the_error(name, damage) -> None:
    data = bytearray(FILES[name])
    for place, value in damage:
        data[int(place * (len(data) - 1))] = value
    pixels = decoded_or_none(bytes(data))
    if pixels is not None:
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
        assert pixels.shape[0] * pixels.shape[1] <= 100_000


@given(st.sampled_from([b"", *(data[:20] for data in FILES.values())]), st.binary(max_size=200))
def test_any_bytes_give_pixels_or_the_error(start, rest) -> None:
    decoded_or_none(start + rest)


# --- bombs, and Pillow's own state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_the_limit_is_exact_and_read_from_the_header(name) -> None:
    data = FILES[name]
    assert decode(data, where="", max_pixels=37 * 53).shape[:2] == (37, 53)
    with pytest.raises(DecodeError, match=r"it has 53 x 37 pixels \(width x height\), more than max_pixels=1960"):
        decode(data, where="", max_pixels=37 * 53 - 1)


def test_bombs_are_refused_before_they_are_decoded() -> None:
    side = 11_600
    assert side**2 > MAX_PIXELS
    jpeg = bytearray(FILES["JPEG"])
    frame = jpeg.index(b"\xff\xc0\x00\x11\x08")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    small = png(8, 2, np.zeros((1, 1, 3), np.uint8))
    header = struct.pack(">II", side, side) + small[24:29]
    bomb = small[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + small[33:]
    for data in (bytes(jpeg), bomb):
        with pytest.raises(DecodeError, match="it has 11600 x 11600 pixels"):
            decode(data, where="bomb")
    gif = bytearray(FILES["GIF"])
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    with pytest.raises(DecodeError, match="limit"):
        decode(bytes(gif), where="bomb", max_pixels=2**40)  # Pillow has a limit of its own


@pytest.mark.parametrize("read", [decode, decode_mask])
def test_a_tile_beyond_the_limit_is_not_decoded(read) -> None:
    side = 1024
    data = zlib.compress(bytes(side * side))
    tags = {256: 1, 257: 1, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side, 324: 8, 325: len(data)}
    assert read(tiff(tags, data), where="tiles", max_pixels=side * side).shape[:2] == (1, 1)
    with pytest.raises(
        DecodeError, match=r"its tiles have 1024 x 1024 pixels \(width x height\), more than max_pixels="
    ):
        read(tiff(tags, data), where="tiles", max_pixels=side * side - 1)


def test_pillows_warnings_do_not_escape(monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 37 * 53 - 1)  # Pillow warns from here on
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with Image.open(io.BytesIO(FILES["PNG"])):
            assert len(seen) == 1
        decode(FILES["PNG"], where="large")
        decode(FILES["CMYK"], where="large")
        assert len(seen) == 1
        warnings.warn("mine", UserWarning, stacklevel=1)
        assert len(seen) == 2


def test_pillows_settings_and_warning_filters_stay_as_they_are() -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        for _ in range(20):
            barrier.wait()
            assert np.array_equal(decode(FILES["PNG"], where="", max_pixels=MAX_PIXELS - number), PHOTO)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)) == before


# --- the decoder -----------------------------------------------------------------------------------------------------


def nowhere() -> str:
    raise AssertionError("only an error needs to know where")


def test_a_decoder_uses_its_memory_again_and_decode_does_not() -> None:
    decoder = Decoder()
    large, small = encode(photo(200, 200), "JPEG"), encode(photo(160, 170), "JPEG")
    first = decoder(large, nowhere)
    kept = first.copy()
    second = decoder(small, nowhere)
    assert np.shares_memory(first, second)
    assert np.array_equal(second, by_pillow(small))
    assert np.array_equal(decoder(large, nowhere), kept)
    assert not np.shares_memory(decode(large, where=""), decode(large, where=""))


def test_small_images_stay_valid() -> None:
    decoder = Decoder()
    files = [encode(photo(100, 218, number), "JPEG") for number in range(3)]
    for file, pixels in zip(files, [decoder(file, nowhere) for file in files], strict=True):
        assert np.array_equal(pixels, by_pillow(file))


def test_files_that_begin_alike_are_not_taken_for_each_other() -> None:
    decoder = Decoder()
    first, second = (encode(photo(20, 30, number), "JPEG") for number in range(2))
    wider, gray = encode(photo(20, 31), "JPEG"), encode(photo(20, 30)[..., 0], "JPEG")
    turned = with_exif(first, exif(6))
    start = jpeg_header(first).start
    assert second.startswith(start)
    for file in (first, second, wider, second, gray, first, turned, first):
        assert np.array_equal(decoder(file, nowhere), decode(file, where=""))
    for cut in (start, start[:-1], start[: len(start) // 2]):
        decoder(first, nowhere)
        with pytest.raises(DecodeError):
            decoder(cut, lambda: "x")


def test_very_large_memory_is_not_kept() -> None:
    decoder = Decoder(max_pixels=2**28)
    pixels = decoder(encode(Image.new("RGB", (5000, 4500), "blue"), "JPEG"), nowhere)
    assert pixels.nbytes > 2**26
    assert decoder._scratch.size < pixels.nbytes


def test_a_decoder_travels_without_its_memory() -> None:
    decoder = Decoder("gray", apply_orientation=False, max_pixels=5000)
    decoder(FILES["JPEG"], nowhere)
    assert len(pickle.dumps(decoder)) < 300
    for twin in (pickle.loads(pickle.dumps(decoder)), copy.deepcopy(decoder)):
        assert (twin.color, twin.apply_orientation, twin.max_pixels) == ("gray", False, 5000)
        assert np.array_equal(twin(FILES["JPEG"], nowhere), by_pillow(FILES["JPEG"], "L"))


def test_threads_share_a_decoder_but_no_memory() -> None:
    decoder = Decoder()
    files = [encode(photo(60, 80 + number), "JPEG") for number in range(4)]
    barrier = threading.Barrier(4)

    def work(number: int) -> bool:
        pixels = decoder(files[number], nowhere)
        barrier.wait()  # all four hold their pixels now
        return np.array_equal(pixels, by_pillow(files[number]))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_decodes_on_its_own() -> None:
    decoder = Decoder()
    kept = decoder(FILES["JPEG"], nowhere)
    before = kept.copy()
    process = multiprocessing.get_context("fork").Process(target=decoder, args=(encode(photo(20, 20), "JPEG"), nowhere))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert np.array_equal(kept, before)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="color must be one of 'rgb', 'gray', 'keep', got 'bgr'"):
        decode(FILES["PNG"], where="", color="bgr")
    with pytest.raises(ConfigError, match="max_pixels must be at least 1, got 0"):
        Decoder(max_pixels=0)


# --- label maps ------------------------------------------------------------------------------------------------------

INDICES = np.random.default_rng(0).integers(0, 16, (9, 14), np.uint8)


def palette_image(indices: np.ndarray, transparency: bool = False) -> Image.Image:
    image = Image.fromarray(indices).convert("P")
    image.putdata(indices.ravel().tolist())
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768).tolist())
    if transparency:
        image.info["transparency"] = bytes(range(16))
    return image


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF"])
@pytest.mark.parametrize("high", [2, 4, 16, 256])
def test_palette_masks_keep_their_indices(kind, high) -> None:
    indices = np.random.default_rng(high).integers(0, high, (9, 14), np.uint8)
    file = io.BytesIO()
    palette_image(indices).save(file, kind, **({"optimize": False} if kind == "GIF" else {}))
    mask = decode_mask(file.getvalue(), where="")
    assert (mask.dtype, mask.flags.carray) == (np.uint8, True)
    assert np.array_equal(mask, indices)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("color_type", [0, 3])
def test_png_masks_of_any_depth_keep_their_values(depth, color_type) -> None:
    values = (np.arange(64) * 5 % 2**depth).astype(np.uint8).reshape(4, 16)
    bits = np.unpackbits(values[..., np.newaxis], axis=2)[..., 8 - depth :]
    rows = np.packbits(bits.reshape(4, -1), axis=1)
    header = struct.pack(">IIBBBBB", 16, 4, depth, color_type, 0, 0, 0)
    palette = [(b"PLTE", bytes(range(3 * 2**depth))) if depth < 8 else (b"PLTE", bytes(768))] if color_type else []
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    chunks = [(b"IHDR", header), *palette, (b"IDAT", data), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    assert np.array_equal(decode_mask(file, where=""), values)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_wide_masks_keep_all_bits(kind) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (5, 6), np.uint16)
    mask = decode_mask(encode(Image.fromarray(values), kind), where="")
    assert mask.dtype == np.int32
    assert np.array_equal(mask, values)
    wide = np.array([[0, -1, 2**31 - 1]], np.int32)
    assert np.array_equal(decode_mask(encode(Image.fromarray(wide), "TIFF"), where=""), wide)


@pytest.mark.parametrize(
    ("depth", "photometric"), [(12, 1), *((depth, number) for depth in (1, 2, 4, 8, 16) for number in (0, 1, None))]
)
def test_tiff_masks_of_any_depth_keep_their_values(depth, photometric) -> None:
    values = np.random.default_rng(depth).integers(0, 2**depth, (5, 8))
    mask = decode_mask(gray_tiff(values, depth, photometric), where="")
    assert mask.dtype == (np.int32 if depth > 8 else np.uint8)
    assert np.array_equal(mask, values)


def test_compressed_tiff_masks() -> None:
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits", "zstd", "lzma"):
        assert np.array_equal(decode_mask(encode(INDICES, "TIFF", compression=compression), where=""), INDICES)
    bits = INDICES > 7
    for compression in ("group3", "group4", "tiff_ccitt"):
        assert np.array_equal(decode_mask(encode(bits, "TIFF", compression=compression), where=""), bits)


@pytest.mark.parametrize("depth", [8, 16, 32])
def test_signed_masks_keep_their_sign(depth) -> None:
    values = np.array([[-1, 0, 5, -(2 ** (depth - 1)), 2 ** (depth - 1) - 1]])
    mask = decode_mask(gray_tiff(values, depth, sample_format=2), where="")
    assert mask.dtype == np.int32
    assert np.array_equal(mask, values)


def test_labels_that_do_not_fit_are_an_error() -> None:
    assert decode_mask(gray_tiff(np.array([[2**31 - 1]]), 32, sample_format=1), where="").tolist() == [[2**31 - 1]]
    with pytest.raises(DecodeError, match=r"labels of 2\*\*31 and more"):
        decode_mask(gray_tiff(np.array([[0, -1]]), 32, sample_format=1), where="")


def test_transparency_changes_no_label_and_orientation_is_applied() -> None:
    assert np.array_equal(decode_mask(encode(palette_image(INDICES, transparency=True)), where=""), INDICES)
    turned = encode(palette_image(INDICES), exif=exif(6))
    assert np.array_equal(decode_mask(turned, where=""), np.rot90(INDICES, -1))
    assert np.array_equal(decode_mask(turned, where="", apply_orientation=False), INDICES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode(PHOTO), "no labels: a label map is gray or has a palette"),
        (encode(np.dstack((INDICES, INDICES))), "no labels"),
        (encode(INDICES, "JPEG"), "a JPEG file, which need not keep label values: store label maps as PNG"),
        (encode(INDICES, "WEBP"), "a WEBP file, which need not"),
        (encode(INDICES, "PPM"), "a PPM file, which need not"),
        (encode(INDICES, "TIFF", compression="jpeg"), "a TIFF with the compression 'jpeg', which need not"),
        (encode(Image.fromarray(INDICES.astype(np.float32)), "TIFF"), "no labels"),
        (encode(INDICES)[:60], "bytes, beginning with"),
        (b"", "it is empty"),
        (b"<html>", "it is HTML or XML"),
    ],
)
def test_what_is_no_label_map_is_named(data, message) -> None:
    with pytest.raises(DecodeError, match=f"mask 7 cannot be decoded: .*{message}"):
        decode_mask(data, where="mask 7")


def test_a_mask_has_a_limit_too() -> None:
    with pytest.raises(DecodeError, match="more than max_pixels=125"):
        decode_mask(encode(INDICES), where="", max_pixels=125)


@given(st.binary(max_size=80), st.sampled_from([b"", encode(palette_image(INDICES)), encode(INDICES, "TIFF")]))
def test_any_bytes_give_labels_or_the_packages_own_error(tail, head) -> None:
    with contextlib.suppress(DecodeError):
        assert decode_mask(head[: len(head) // 2] + tail, where="x").ndim == 2


GRAYS = {
    "BMP": bmp(INDICES, 4, [(level,) * 3 for level in range(16)]),
    "PNG, 4 bits": png(4, 0, packed(INDICES, 4), b"\0\7", width=INDICES.shape[1]),
    "PNG, 16 bits": png(16, 2, np.dstack([INDICES] * 3).astype(">u2"), bytes(6)),
    **{f"TIFF, {depth} bits": gray_tiff(INDICES, depth, 1, 1) for depth in (8, 12, 32)},
}


@settings(max_examples=300)
@given(st.sampled_from(sorted(GRAYS)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4))
def test_damaged_gray_files_give_values_or_the_error(name, damage) -> None:
    data = bytearray(GRAYS[name])
    for place, value in damage:
        data[int(place * (len(data) - 1))] = value
    decoded_or_none(bytes(data))
    with contextlib.suppress(DecodeError):
        assert decode_mask(bytes(data), where="damaged", max_pixels=100_000).ndim == 2
