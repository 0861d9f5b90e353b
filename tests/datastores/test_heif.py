"""HEIC: read where its plug-in is installed, a clear error where it is not, and loaded for nothing else."""

import io
import struct
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode, exif, photo
from PIL import Image, features

from headrace.datastores import ImageDatastore
from headrace.datastores.decode import decode
from headrace.datastores.heif import codec_of
from headrace.errors import DecodeError

PHOTO = photo(48, 64)
HEADER = b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf"
TURNS = {1: 0, 2: "flip", 3: 180, 6: 270, 8: 90}
with_plugin = pytest.mark.skipif(not find_spec("pillow_heif"), reason="needs the extra heic")
with_avif = pytest.mark.skipif("avif" not in features.get_supported(), reason="this Pillow has no AVIF")


def heic(image: np.ndarray | Image.Image, **options: object) -> bytes:
    import pillow_heif

    file = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    pillow_heif.from_pillow(picture).save(file, quality=95, **options)
    return file.getvalue()


def distance(one: np.ndarray, other: np.ndarray) -> float:
    assert one.shape == other.shape
    return float(np.abs(one.astype(int) - other).mean())


def box(*brands: bytes) -> bytes:
    return struct.pack(">I", 12 + 4 * len(brands)) + b"ftyp" + brands[0] + bytes(4) + b"".join(brands[1:])


# --- which files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        (box(b"heic"), "HEIF"), (box(b"hevx", b"mif1"), "HEIF"), (box(b"mif1", b"mif1", b"miaf", b"heix"), "HEIF"),
        (box(b"avif"), "AVIF"), (box(b"avis", b"msf1"), "AVIF"), (box(b"mif1", b"avif", b"heic"), "AVIF"),
        (box(b"mif1", b"miaf"), None), (box(b"isom", b"mp41"), None), (box(b"mp42") + b"heic", None),
        (box(b"mif1", b"heic")[:18], None), (b"", None), (b"\xff\xff\xff\xffftyp" + bytes(5000) + b"heic", None),
    ],
)  # fmt: skip
def test_the_brands_of_a_file_name_its_codec(data, codec) -> None:
    assert codec_of(data) == codec


@given(st.binary(max_size=80))
def test_any_bytes_have_a_codec_or_none(data) -> None:
    assert codec_of(data) in (None, "AVIF", "HEIF")
    assert codec_of(data[:4] + b"ftyp" + data[8:]) in (None, "AVIF", "HEIF")


@with_avif
def test_avif_under_another_brand() -> None:
    data = encode(PHOTO, "AVIF", quality=95)
    assert data[8:12] == b"avif"
    assert np.array_equal(decode(data[:8] + b"mif1" + data[12:], where="picture"), decode(data, where="picture"))


# --- without the plug-in ---------------------------------------------------------------------------------------------


def test_without_the_plugin_the_error_names_the_extra(tmp_path) -> None:
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "pictures" / "cat" / "IMG_1.HEIC").write_bytes(HEADER + bytes(100))
    code = (
        "import sys; sys.modules['pillow_heif'] = None\n"
        "from headrace.datastores import ImageDatastore\n"
        "from headrace.errors import DecodeError\n"
        "from headrace.tools.cli import main\n"
        "images = ImageDatastore(sys.argv[1])\n"
        "try:\n    images[0]\n"
        "except DecodeError as error:\n    print(error)\n"
        "sys.exit(main(['build', sys.argv[1], sys.argv[2]]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "pictures"), str(tmp_path / "shards")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wanted = 'it is HEIC, which needs the extra "heic" (pip install pillow-heif)'
    assert "IMG_1.HEIC cannot be decoded: " + wanted in result.stdout
    assert result.returncode != 0
    assert wanted in result.stderr
    assert "Traceback" not in result.stderr


# --- with it ---------------------------------------------------------------------------------------------------------


@with_plugin
def test_it_is_loaded_for_heic_only(tmp_path) -> None:
    (tmp_path / "one.heic").write_bytes(heic(PHOTO))
    (tmp_path / "two.png").write_bytes(encode(PHOTO))
    code = (
        "import sys\n"
        "from headrace.datastores import ImageDatastore\n"
        "images = ImageDatastore(sys.argv[1])\n"
        "assert [images.key(i) for i in range(2)] == ['one.heic', 'two.png']\n"
        "images[1]\n"
        "print('pillow_heif' in sys.modules)\n"
        "images[0]\n"
        "print('pillow_heif' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert result.stdout == "False\nTrue\n"


@with_plugin
def test_pixels_colors_and_transparency() -> None:
    assert distance(decode(heic(PHOTO), where="photo"), PHOTO) < 4
    gray = Image.fromarray(PHOTO).convert("L")
    for color, channels in (("keep", 1), ("gray", 1), ("rgb", 3)):
        expected = np.repeat(np.asarray(gray)[..., np.newaxis], channels, axis=2)
        assert distance(decode(heic(gray), where="gray", color=color), expected) < 4
    clear = Image.fromarray(PHOTO).convert("RGBA")
    clear.putalpha(0)
    assert (decode(heic(clear), where="clear") == 255).all()


@with_plugin
@pytest.mark.parametrize("orientation", TURNS)
def test_it_is_turned_once(orientation) -> None:
    turn = TURNS[orientation]
    image = Image.fromarray(PHOTO)
    upright = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if turn == "flip" else image.rotate(turn, expand=True)
    data = heic(image, exif=b"Exif\0\0" + exif(orientation))
    for apply_orientation in (True, False):  # the container says it, not only the EXIF block
        found = decode(data, where="turned", apply_orientation=apply_orientation)
        assert distance(found, np.asarray(upright)) < 4


@with_plugin
def test_the_primary_image_of_several_is_taken() -> None:
    import pillow_heif

    several = pillow_heif.from_pillow(Image.fromarray(PHOTO))
    several.add_from_pillow(Image.fromarray(255 - PHOTO))
    for primary, expected in ((0, PHOTO), (1, 255 - PHOTO)):
        file = io.BytesIO()
        several.save(file, quality=95, primary_index=primary)
        assert distance(decode(file.getvalue(), where="several"), expected) < 4


@with_plugin
def test_limits_and_damage() -> None:
    data = heic(PHOTO)
    with pytest.raises(DecodeError, match=r"it has 64 x 48 pixels .* more than max_pixels=3071"):
        decode(data, where="photo", max_pixels=64 * 48 - 1)
    assert decode(data, where="photo", max_pixels=64 * 48).shape == (48, 64, 3)
    for length in (12, 40, len(data) // 2, len(data) - 200):
        with pytest.raises(DecodeError, match="photo cannot be decoded"):
            decode(data[:length], where="photo")


@with_plugin
def test_shards_are_built_of_heic(tmp_path) -> None:
    from headrace.datastores import ShardDatastore
    from headrace.tools.cli import main

    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "pictures" / "cat" / "IMG_1.HEIC").write_bytes(heic(PHOTO))
    assert main(["build", str(tmp_path / "pictures"), str(tmp_path / "shards"), "--quiet"]) == 0
    shards = ShardDatastore(str(tmp_path / "shards"))
    assert shards.raw(0)["heic"] == heic(PHOTO)
    assert np.array_equal(shards[0]["image"], ImageDatastore(str(tmp_path / "pictures"))[0]["image"])
