"""JPEGs read at a part of their size: the same by both decoders, and every crop where it would be otherwise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import MemorySource, encode, exif, photo, with_exif
from PIL import Image

from headrace.augment import Draw, ImageAugmenter, TrivialAugment
from headrace.augment.placement import Placement
from headrace.datastores import AugmentedImageDatastore, Loader
from headrace.datastores.decode import Decoder, decode
from headrace.errors import ConfigError, DecodeError

DRAW = Draw(seed=3, epoch=1)
LARGE = encode(photo(1003, 1301), "JPEG", quality=92)
GRAY = encode(photo(1000, 1300)[..., :1], "JPEG")


def where() -> str:
    return "here"


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return 10 * np.log10(255**2 / np.mean((one.astype(np.float64) - other) ** 2))


# --- the decoder ------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.integers(16, 90), st.integers(16, 90), st.sampled_from([2, 4, 8]), st.integers(0, 2), st.booleans(),
    st.sampled_from(["rgb", "gray", "keep"]), st.booleans(),
)  # fmt: skip
def test_simplejpeg_and_pillow_are_equal_bit_for_bit(
    height, width, reduced, subsampling, progressive, color, gray
) -> None:
    image = photo(height, width)[..., : 1 if gray else 3]
    options = {} if gray else {"subsampling": subsampling}
    data = encode(image, "JPEG", progressive=progressive, **options)
    fast, slow = Decoder(color)._usual_jpeg(data, reduced), Decoder(color)._any(data, reduced)
    assert fast is not None
    assert fast[0].shape[:2] == (-(-height // reduced), -(-width // reduced))
    assert np.array_equal(fast[0], slow[0])
    assert np.array_equal(Decoder(color)(data, where, reduced), slow[0])


@pytest.mark.parametrize("reduced", [2, 4, 8])
def test_a_reduced_image_is_the_image_made_smaller(reduced) -> None:
    found = Decoder()(LARGE, where, reduced)
    whole = Image.fromarray(decode(LARGE, where="here"))
    box = (0, 0, found.shape[1] * reduced, found.shape[0] * reduced)
    padded = np.pad(np.asarray(whole), ((0, box[3] - whole.height), (0, box[2] - whole.width), (0, 0)), "edge")
    expected = padded.reshape(found.shape[0], reduced, found.shape[1], reduced, 3).mean((1, 3))
    assert psnr(found[:-1, :-1], expected[:-1, :-1]) > 32


def test_only_large_jpegs_of_the_usual_kind_can_be_reduced() -> None:
    decoder = Decoder()
    assert decoder.reductions(LARGE) == ((1003, 1301), (2, 4, 8))
    assert decoder.reductions(GRAY) == ((1000, 1300), (2, 4, 8))
    cmyk = encode(Image.fromarray(photo(1003, 1301)).convert("CMYK"), "JPEG")
    for other in (
        encode(photo(1000, 1048), "JPEG"),
        encode(photo(1003, 1301), "PNG"),
        encode(photo(1003, 1301), "JPEG", progressive=True),
        cmyk,
        LARGE[:300],
        b"",
        b"<html>",
    ):
        assert decoder.reductions(other) is None
    assert decoder.reductions(encode(photo(1024, 1024), "JPEG")) == ((1024, 1024), (2, 4, 8))


def test_what_is_turned_is_reduced_only_without_a_rest() -> None:
    turned = with_exif(LARGE, exif(6))
    assert Decoder().reductions(turned) == ((1301, 1003), ())
    assert Decoder(apply_orientation=False).reductions(turned) == ((1003, 1301), (2, 4, 8))
    assert Decoder().reductions(with_exif(GRAY, exif(3))) == ((1000, 1300), (2, 4))
    assert Decoder().reductions(with_exif(GRAY, exif(5))) == ((1300, 1000), (2, 4))


def test_limits_are_about_the_size_that_is_read() -> None:
    decoder = Decoder(max_pixels=350_000)
    assert decoder(GRAY, where, 2).shape == (500, 650, 3)
    for data, reduced, found in ((GRAY, 1, "1300 x 1000"), (LARGE, 1, "1301 x 1003")):
        with pytest.raises(DecodeError, match=f"here cannot be decoded: it has {found} pixels"):
            decoder(data, where, reduced)
    with pytest.raises(DecodeError, match=r"it has 650 x 500 pixels .* more than max_pixels=324999"):
        Decoder(max_pixels=324_999)(GRAY, where, 2)
    for read in (decoder._usual_jpeg, decoder._any):
        assert read(GRAY, 2) is not None
        with pytest.raises(DecodeError, match="it has 1300 x 1000 pixels"):
            read(GRAY, 1)


def test_pillows_own_limit_is_about_the_full_size_and_does_not_count(monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500_000)
    assert Decoder()._any(GRAY, 2)[0].shape == (500, 650, 3)
    with pytest.raises(Image.DecompressionBombError):
        Decoder()._any(GRAY)


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_damage_is_an_error_by_both(cut) -> None:
    data = LARGE[: int(len(LARGE) * cut)]
    assert Decoder()._usual_jpeg(data, 2) is None
    with pytest.raises(DecodeError, match="here cannot be decoded"):
        Decoder()(data, where, 2)


# --- where things go --------------------------------------------------------------------------------------------------


def test_a_placement_leaves_sqrt_2_times_the_resolution() -> None:
    def at(scale: float, degrees: float = 0.0, stretch: float = 1.0) -> int:
        size = (8 * round(100 * scale), 8 * round(100 * scale * stretch))
        movement = ImageAugmenter(rotation=degrees).sample_matrices(np.array([0]), Draw())[0]
        return Placement(size, (800, 800), (0, 0, size[1], size[0]), movement).reduction((2, 4, 8))

    assert [at(scale) for scale in (0.5, 2.82, 2.84, 5.65, 5.67, 11.3, 11.4, 100)] == [1, 1, 2, 2, 4, 4, 8, 8]
    assert [at(scale, 30) for scale in (2.82, 2.84, 11.3, 11.4)] == [1, 2, 4, 8]
    assert at(2.84, stretch=9) == 2
    assert Placement((1000, 1000), (100, 100), (0, 0, 1000, 1000), (False, False)).reduction((2,)) == 2
    assert Placement((1000, 1000), (100, 100), (0, 0, 1000, 1000), (False, False)).reduction(()) == 1
    assert Placement((1000, 1000), (100, 100), (0, 0, 1000, 1000), np.zeros((3, 3))).reduction((2,)) == 1


def test_a_last_pixel_that_reaches_beyond_the_image_is_never_seen() -> None:
    def at(box: tuple[int, int, int, int], size: tuple[int, int], mirrored: bool = False) -> int:
        return Placement(size, (100, 100), box, (False, mirrored)).reduction((2, 4, 8))

    assert at((0, 0, 1584, 1584), (1603, 1601)) == 8  # an output pixel is 15.84 wide, and its filter reaches as far
    assert at((0, 0, 1584, 1585), (1603, 1601)) == 2  # 1602 rows are whole halves, 1600 are whole quarters
    assert at((0, 0, 1584, 1587), (1603, 1601)) == 1
    assert at((0, 0, 1585, 1584), (1603, 1601)) == 1
    assert at((0, 0, 1604, 1608), (1608, 1604)) == 4
    assert at((17, 0, 1601, 1600), (1600, 1601)) == 1
    assert at((17, 0, 1601, 1600), (1600, 1601), mirrored=True) == 8
    assert at((-99, -99, 1700, 1700), (1600, 1600)) == 8


def padded(height: int, width: int) -> bytes:
    """Return a white JPEG whose blocks are black beyond its edges, as the standard allows."""
    pixels = np.zeros((-(-height // 16) * 16, -(-width // 16) * 16, 3), np.uint8)
    pixels[:height, :width] = 255
    data = bytearray(encode(pixels, "JPEG", quality=95))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


@pytest.mark.parametrize(
    "moves",
    [
        {},
        {"mode": "letterbox"},
        {"mode": "resized_center_crop"},
        {"augment": ImageAugmenter(rotation=90)},
        {"augment": ImageAugmenter(rotation=(-40, 40), scale=(0.5, 1), x_reflection=True, y_reflection=True)},
        {"mode": "random_resized_crop", "crop_scale": (0.9, 1)},
        {"policy": TrivialAugment().geometry},
    ],
)
def test_an_edge_looks_as_it_does_in_full(moves) -> None:
    sizes = [(1205, 1601), (1201, 1606), (1004, 1307), (1208, 1604), (1603, 1005)]
    source = MemorySource([padded(*size) for size in sizes] + [encode(np.full((1205, 1601), 255, np.uint8), "JPEG")])
    plain = AugmentedImageDatastore((224, 224), source, **moves)
    reduced = AugmentedImageDatastore((224, 224), source, reduced_decode=True, **moves)
    for index in range(len(source)):
        one, other = (data.sample(index, DRAW)["image"].astype(np.int64) for data in (plain, reduced))
        assert np.abs(one - other).max() <= 32  # what a step rings by, and not half of it


MOVES = {
    "resize": {},
    "letterbox": {"mode": "letterbox"},
    "part": {"mode": "random_resized_crop", "crop_scale": (0.6, 1), "augment": ImageAugmenter(x_reflection=True)},
    "turned": {"augment": ImageAugmenter(rotation=(-30, 30), scale=(0.9, 1.1), x_reflection=True)},
    "policy": {"policy": TrivialAugment().geometry},
}


@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("side", [40, 110, 220])
def test_what_is_seen_stays_where_it_is(moves, side) -> None:
    """A spot's centre is found to a hundredth of a pixel: nothing moves by a part of one."""
    y, x = np.mgrid[:1008, :1304]
    files = []
    for number in range(3):
        spot = np.exp(-((x - 400 - 100 * number) ** 2 + (y - 450) ** 2) / 2 / 60**2)
        files.append(encode((spot * 255).astype(np.uint8)[..., np.newaxis], "JPEG", quality=95))
    source = MemorySource([*files, with_exif(encode(photo(1008, 1304), "JPEG"), exif(6))])
    settings = {"color": "gray", **MOVES[moves]}
    plain = AugmentedImageDatastore((side, side), source, **settings)
    reduced = AugmentedImageDatastore((side, side), source, reduced_decode=True, **settings)
    different = 0
    for index in range(3):
        one, other = (data.sample(index, DRAW)["image"][..., 0].astype(np.float64) for data in (plain, reduced))
        different += not np.array_equal(one, other)
        for axis in (0, 1):
            profiles = one.sum(axis), other.sum(axis)
            centres = [np.average(np.arange(side), weights=np.maximum(profile, 1e-9)) for profile in profiles]
            assert centres[0] == pytest.approx(centres[1], abs=0.03)
        assert psnr(one, other) > 44
    assert different == 3
    assert psnr(plain.sample(3, DRAW)["image"], reduced.sample(3, DRAW)["image"]) > 34


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_photos_are_reduced_as_they_are_seen(orientation) -> None:
    file = with_exif(encode(photo(1008, 1304), "JPEG", quality=95), exif(orientation))
    plain = AugmentedImageDatastore((90, 120), MemorySource([file]))[0]["image"]
    found = AugmentedImageDatastore((90, 120), MemorySource([file]), reduced_decode=True)[0]["image"]
    assert not np.array_equal(plain, found)
    assert psnr(plain, found) > 38


# --- the datastore ----------------------------------------------------------------------------------------------------


def test_workers_change_nothing_and_the_fingerprint_tells() -> None:
    source = MemorySource([LARGE, GRAY, encode(photo(60, 80)), encode(photo(90, 80), "JPEG")] * 4)
    data = AugmentedImageDatastore((64, 64), source, mode="random_resized_crop", reduced_decode=True)
    found = {}
    for workers in (0, 2):
        with Loader(data, 8, seed=2, workers=workers) as loader:
            found[workers] = torch.cat([batch.images for batch in loader])
    assert torch.equal(found[0], found[2])
    plain = AugmentedImageDatastore((64, 64), source, mode="random_resized_crop")
    assert plain.fingerprint != data.fingerprint
    for index in (2, 3):  # small ones, and other kinds of files
        assert np.array_equal(plain[index]["image"], data[index]["image"])


def test_what_is_not_shrunk_is_not_reduced() -> None:
    source = MemorySource([LARGE, GRAY])
    for mode in ("center_crop", "random_crop"):
        plain = AugmentedImageDatastore((500, 500), source, mode=mode)
        assert np.array_equal(AugmentedImageDatastore((500, 500), source, mode=mode, reduced_decode=True)[0]["image"],
                              plain[0]["image"])  # fmt: skip


def test_arrays_cannot_be_reduced() -> None:
    with pytest.raises(ConfigError, match="reduced_decode is about image files"):
        AugmentedImageDatastore((8, 8), [{"image": photo(9, 9)}], reduced_decode=True)
