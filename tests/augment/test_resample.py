"""One matrix, one interpolation: exact where pixels are only moved, close to the ideal where they are not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pictures import photo
from torchvision.transforms import v2

from headrace.augment.geometry import (
    about_centre,
    reflections,
    rotations,
    scalings,
    shears,
    translations,
    window,
)
from headrace.augment.resample import cut, resample
from headrace.errors import ConfigError, ShapeError

PHOTO = photo(375, 500)
OUTPUT = (224, 224)
WHOLE = window((0, 0, 500, 375), OUTPUT)


def one(*numbers):
    return [np.array([float(number)]) for number in numbers]


def turn(degrees):
    return rotations(*one(degrees))[0]


def mirror(x, y):
    return reflections(np.array([x]), np.array([y]))[0]


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def bilinear(image, x, y):
    """Sample a float64 image at places that are measured between pixel centres; it goes on as its outermost pixels."""
    height, width = image.shape[:2]
    x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
    left, top = np.minimum(x.astype(int), width - 2), np.minimum(y.astype(int), height - 2)
    a, b = (x - left)[..., None], (y - top)[..., None]
    upper = image[top, left] * (1 - a) + image[top, left + 1] * a
    lower = image[top + 1, left] * (1 - a) + image[top + 1, left + 1] * a
    return upper * (1 - b) + lower * b


def supersampled(image, matrix, size, fill=0.0, fineness=8):
    """Average 8 x 8 samples per pixel of the output in float64: what a camera with square pixels would see."""
    (a, b, c), (d, e, f), _ = np.linalg.inv(matrix)
    height, width = image.shape[:2]
    rows, columns = np.mgrid[: size[0], : size[1]].astype(np.float64)
    total = np.zeros((*size, image.shape[2]))
    offsets = (np.arange(fineness) + 0.5) / fineness - 0.5
    for dy in offsets:
        for dx in offsets:
            x, y = columns + dx, rows + dy
            x, y = a * x + b * y + c, d * x + e * y + f
            inside = (x >= -0.5) & (x < width - 0.5) & (y >= -0.5) & (y < height - 0.5)
            total += np.where(inside[..., None], bilinear(image.astype(np.float64), x, y), fill)
    return total / fineness**2


def psnr(first, second):
    error = np.mean((first.astype(np.float64) - second.astype(np.float64)) ** 2)
    return 10 * np.log10(255**2 / max(error, 1e-9))


# --- way 1: pixels are only moved ------------------------------------------------------------------------------------


@given(
    st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 3, 4]), st.integers(0, 3), st.booleans(), st.booleans()
)
def test_mirrors_and_quarter_turns_copy_pixels(height, width, channels, turns, x, y) -> None:
    image = noise(height, width, channels)
    matrix = turn(90 * turns) @ mirror(x, y)
    expected = np.rot90(image[:: -1 if y else 1, :: -1 if x else 1], turns)
    size = expected.shape[:2]
    # About the centre of the input and, where width and height are exchanged, on to the centre of the output.
    to_centre = translations(*one((size[1] - width) / 2, (size[0] - height) / 2))[0]
    assert np.array_equal(resample(image, to_centre @ about_centre(matrix, (height, width)), size), expected)


@given(st.integers(-12, 12), st.integers(-12, 12), st.booleans(), st.booleans(), st.sampled_from([1, 3]))
def test_moves_by_whole_pixels_copy_and_fill(dx, dy, x, y, channels) -> None:
    image = noise(8, 10, channels)
    fill = tuple(range(5, 5 + channels))
    padded = np.empty((8 + 24, 10 + 24, channels), np.uint8)
    padded[...] = fill
    padded[12 + dy : 20 + dy, 12 + dx : 22 + dx] = image[:: -1 if y else 1, :: -1 if x else 1]
    matrix = translations(*one(dx, dy))[0] @ about_centre(mirror(x, y), (8, 10))
    assert np.array_equal(resample(image, matrix, (8, 10), fill), padded[12:20, 12:22])


def test_a_crop_copies_and_leaves_the_image_alone() -> None:
    before = PHOTO.copy()
    found = resample(PHOTO, window((100, 50, 324, 274), OUTPUT), OUTPUT)
    assert np.array_equal(found, PHOTO[50:274, 100:324])
    assert not np.shares_memory(found, PHOTO)
    assert np.array_equal(PHOTO, before)


# --- way 2: a rectangle is scaled ------------------------------------------------------------------------------------


def torch_resize(image, size):
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    scaled = torch.nn.functional.interpolate(pixels, size=size, mode="bilinear", antialias=True)
    return scaled[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("box", [(0, 0, 500, 375), (13, 7, 400, 300), (100, 100, 150, 101), (499, 0, 500, 375)])
@pytest.mark.parametrize("size", [(224, 224), (31, 500), (1, 1)])
def test_scaling_a_rectangle_equals_torchs_public_kernel(channels, box, size) -> None:
    image = noise(375, 500, channels)
    left, top, right, bottom = box
    expected = torch_resize(image[top:bottom, left:right], size)
    out = np.full((3, *size, channels), 77, np.uint8)
    found = resample(image, window(box, size), size, out=out[1])
    assert found.base is out
    assert np.array_equal(out[1], expected)
    assert (out[[0, 2]] == 77).all()


def test_scaling_equals_torchvisions_resized_crop() -> None:
    pixels = torch.from_numpy(PHOTO).permute(2, 0, 1)
    expected = v2.functional.resized_crop(pixels, 20, 30, 200, 310, list(OUTPUT), antialias=True)
    found = resample(PHOTO, window((30, 20, 340, 220), OUTPUT), OUTPUT)
    assert np.array_equal(found, expected.permute(1, 2, 0).numpy())


@given(st.booleans(), st.booleans(), st.integers(0, 3))
def test_scaled_mirrors_and_turns_are_those_of_the_scaled_image(x, y, turns) -> None:
    image = photo(60, 80)
    movement = mirror(x, y) @ turn(90 * turns)
    upright = np.rot90(image, turns)
    height, width = upright.shape[:2]
    to_centre = translations(*one((width - 80) / 2, (height - 60) / 2))[0]
    matrix = window((0, 0, width, height), (24, 32)) @ to_centre @ about_centre(movement, (60, 80))
    expected = torch_resize(upright, (24, 32))[:: -1 if y else 1, :: -1 if x else 1]
    assert np.array_equal(resample(image, matrix, (24, 32)), expected)


# --- way 3: all other maps -------------------------------------------------------------------------------------------

CASES = {
    "rotation": about_centre(turn(15), (375, 500)),
    "rotation, enlarged": about_centre(scalings(*one(2.5, 2.5))[0] @ turn(30), (375, 500)),
    "shear and shrinking": about_centre(turn(-10) @ shears(*one(10, 0))[0] @ scalings(*one(0.8, 0.8))[0], (375, 500)),
    "half size": about_centre(turn(45) @ scalings(*one(0.5, 0.5))[0], (375, 500)),
    "shrunk more in x, then turned": about_centre(turn(40) @ scalings(*one(0.4, 1.2))[0], (375, 500)),
    "strong shear": about_centre(shears(*one(40, 0))[0], (375, 500)),
    "a fraction of a pixel": translations(*one(3.7, -2.2))[0],
    "a tenth": about_centre(turn(20) @ scalings(*one(0.1, 0.1))[0], (375, 500)),
}


@pytest.mark.parametrize("name", CASES)
def test_affine_maps_are_close_to_the_supersampled_reference(name) -> None:
    matrix = WHOLE @ CASES[name]
    reference = supersampled(PHOTO, matrix, OUTPUT, fill=90.0)
    found = resample(PHOTO, matrix, OUTPUT, 90)
    assert psnr(found, reference) > 37.5  # measured: 38.2 to 42.2 (a tenth: 54.9); without antialiasing 30 to 32
    assert abs(found.mean() - reference.mean()) < 0.3  # rounded, not cut


def test_an_enlarged_image_is_sampled_bilinearly_to_the_last_bit_but_one() -> None:
    matrix = window((100, 100, 180, 180), OUTPUT) @ about_centre(turn(20), (375, 500))
    (a, b, c), (d, e, f), _ = np.linalg.inv(matrix)
    rows, columns = np.mgrid[:224, :224]
    exact = bilinear(PHOTO.astype(np.float64), a * columns + b * rows + c, d * columns + e * rows + f)
    assert np.abs(resample(PHOTO, matrix, OUTPUT) - exact).max() < 0.51


def test_rotation_agrees_with_torchvision() -> None:
    pixels = torch.from_numpy(PHOTO).permute(2, 0, 1)
    bilinearly = v2.InterpolationMode.BILINEAR
    theirs = v2.functional.affine(pixels, -15.0, [6, 4], 1.6, [0.0, 0.0], interpolation=bilinearly)
    ours = resample(
        PHOTO,
        about_centre(translations(*one(6, 4))[0] @ turn(15) @ scalings(*one(1.6, 1.6))[0], (375, 500)),
        (375, 500),
    )
    difference = np.abs(ours.astype(int) - theirs.permute(1, 2, 0).numpy().astype(int))[3:-3, 3:-3]
    assert difference.max() <= 1


@pytest.mark.parametrize("size", [(224, 224), (375, 500), (700, 600)])
def test_a_tiny_rotation_is_no_jump(size) -> None:
    still = resample(PHOTO, window((0, 0, 500, 375), size), size)
    nearly = resample(PHOTO, window((0, 0, 500, 375), size) @ about_centre(turn(1e-4), (375, 500)), size)
    assert psnr(still, nearly) > 39
    border = np.abs(still[0].astype(int) - nearly[0].astype(int))
    assert border.mean() < 1  # no line of fill along the edges


def test_pixels_on_the_edge_are_mixed_by_what_is_covered() -> None:
    image = np.full((6, 8, 3), 200, np.uint8)
    moved = resample(image, translations(*one(0.25, 0))[0], (6, 8), 100)
    assert moved[3, :, 0].tolist() == [175, *[200] * 7]
    moved = resample(image, translations(*one(-2.5, 0.5))[0], (6, 8), (100, 0, 200))
    assert moved[3, :, 0].tolist() == [*[200] * 5, 150, 100, 100]
    assert moved[0, :, 1].tolist() == [*[100] * 5, 50, 0, 0]  # the corner is covered by a quarter
    assert (moved[..., 2] == 200).all()
    large = resample(image, window((-1, -1, 7, 5), (60, 80)) @ translations(*one(0.05, 0.05))[0], (60, 80), 0)
    assert large[30, 9:13, 0].tolist() == [0, 100, 200, 200]  # one pixel of the output, however much it is enlarged


@given(
    st.floats(-180, 180), st.floats(0.2, 4), st.floats(0.2, 4), st.floats(-60, 60),
    st.integers(0, 255), st.integers(1, 40), st.integers(1, 40),
)  # fmt: skip
def test_a_plain_image_on_its_own_color_stays_plain(angle, x_scale, y_scale, shear, value, height, width) -> None:
    image = np.full((height, width, 1), value, np.uint8)
    movement = turn(angle) @ shears(*one(shear, 0))[0] @ scalings(*one(x_scale, y_scale))[0]
    found = resample(image, about_centre(movement, (height, width)), (17, 23), value)
    assert (found == value).all()


@pytest.mark.parametrize("scale", [0.05, 0.1, 0.3, 0.8, 1.5])
def test_the_filter_sees_beyond_the_part_that_is_shown(scale) -> None:
    rows, columns = np.mgrid[:1000, :1000]
    ramp = np.stack((columns / 4, rows / 4), axis=2).round().astype(np.uint8)
    size = (20, 30)
    matrix = about_centre(turn(25) @ scalings(*one(scale, scale))[0], (1000, 1000))
    matrix = translations(*one(15 - 499.5, 10 - 499.5))[0] @ matrix  # the middle of the image, far from its edges
    (a, b, c), (d, e, f), _ = np.linalg.inv(matrix)
    rows, columns = np.mgrid[: size[0], : size[1]]
    expected = np.stack((a * columns + b * rows + c, d * columns + e * rows + f), axis=2) / 4
    # Symmetric filters keep a ramp; cut short at the edges of the output, they would bend it there.
    assert np.abs(resample(ramp, matrix, size) - expected).max() < 1.1


@pytest.mark.parametrize("dx", [30, 30.5, -1e7, 1e12])
def test_an_image_that_lies_wholly_outside_is_only_fill(dx) -> None:
    assert (resample(noise(9, 9), translations(*one(dx, 0))[0] @ turn(3), (9, 9), 7) == 7).all()


def test_only_the_part_that_is_seen_is_touched() -> None:
    endless = np.broadcast_to(np.array([10, 20, 30], np.uint8), (200_000, 200_000, 3))  # 120 GB, if it were touched
    middle = about_centre(turn(30), endless.shape[:2])
    for matrix in (middle, np.eye(3), about_centre(turn(90), endless.shape[:2])):
        seen = translations(*one(-100_000, -100_000))[0] @ matrix
        assert np.array_equal(resample(endless, seen, (40, 50)), np.broadcast_to(endless[0, 0], (40, 50, 3)))


# --- for all ---------------------------------------------------------------------------------------------------------

MATRICES = {
    "crop": window((10, 20, 234, 244), OUTPUT),
    "mirrored crop": about_centre(mirror(True, False), OUTPUT) @ window((10, 20, 234, 244), OUTPUT),
    "scaled": window((13, 7, 400, 300), OUTPUT),
    "mirrored and scaled": about_centre(mirror(True, True), OUTPUT) @ window((13, 7, 300, 300), OUTPUT),
    "turned and scaled": window((13, 7, 300, 300), OUTPUT) @ about_centre(turn(90), (375, 500)),
    "half outside": window((-100, -100, 124, 124), OUTPUT),
    "warped": WHOLE @ CASES["shear and shrinking"],
}


@pytest.mark.parametrize("name", MATRICES)
def test_strides_and_write_protection_make_no_difference(name) -> None:
    matrix = MATRICES[name]
    expected = resample(PHOTO, matrix, OUTPUT, 3)
    protected = PHOTO.copy()
    protected.setflags(write=False)
    planes = np.ascontiguousarray(PHOTO.transpose(2, 0, 1)).transpose(1, 2, 0)
    reversed_rows = np.ascontiguousarray(PHOTO[::-1])[::-1]
    turned = np.ascontiguousarray(PHOTO.transpose(1, 0, 2)[:, ::-1])[:, ::-1].transpose(1, 0, 2)
    wider = np.concatenate((PHOTO, PHOTO), axis=1)[:, :500]
    for image in (protected, planes, reversed_rows, turned, wider):
        assert np.array_equal(image, PHOTO)
        assert np.array_equal(resample(image, matrix, OUTPUT, 3), expected)


@pytest.mark.parametrize("name", MATRICES)
def test_the_number_of_threads_makes_no_difference(name) -> None:
    large = photo(1500, 2000)
    matrix = MATRICES[name] @ window((0, 0, 2000, 1500), (375, 500))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = resample(large, matrix, OUTPUT)
        torch.set_num_threads(4)
        assert np.array_equal(resample(large, matrix, OUTPUT), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 40, 3), (40, 1, 4)])
def test_thin_images_work(name, shape) -> None:
    image = np.full(shape, 50, np.uint8)
    assert set(np.unique(resample(image, MATRICES[name], OUTPUT, 50))) == {50}


def test_gray_gives_what_three_equal_channels_give() -> None:
    gray = np.ascontiguousarray(PHOTO[:, :, :1])
    for matrix in MATRICES.values():
        triple = resample(np.repeat(gray, 3, axis=2), matrix, OUTPUT, 9)
        assert np.array_equal(resample(gray, matrix, OUTPUT, 9)[..., 0], triple[..., 1])


@pytest.mark.parametrize(
    ("image", "matrix", "fill", "out", "error", "message"),
    [
        (noise(4, 4)[..., 0], np.eye(3), 0, None, ShapeError, r"must be uint8 \(H, W, C\)"),
        (noise(4, 4).astype(np.float32), np.eye(3), 0, None, ShapeError, r"must be uint8 \(H, W, C\)"),
        (noise(0, 4), np.eye(3), 0, None, ShapeError, "at least one pixel"),
        (noise(4, 4), np.eye(3), (1, 2), None, ShapeError, "fill .* has 2 values, but the image has 3 channels"),
        (noise(4, 4), np.zeros((3, 3)), 0, None, ConfigError, "cannot be inverted"),
        (noise(4, 4), np.full((3, 3), np.nan), 0, None, ConfigError, "cannot be inverted"),
        (noise(4, 4), np.eye(3), 0, np.zeros((5, 5, 1), np.uint8), ShapeError, r"must be uint8 \(5, 5, 3\)"),
        (noise(4, 4), np.eye(3), 0, np.zeros((5, 5, 3), np.int8), ShapeError, r"must be uint8 \(5, 5, 3\)"),
        (noise(4, 4), np.eye(3), 0, np.zeros((5, 9, 3), np.uint8)[:, :5], ShapeError, "C-contiguous"),
    ],
)
def test_what_does_not_fit_is_an_error(image, matrix, fill, out, error, message) -> None:
    with pytest.raises(error, match=message):
        resample(image, matrix, (5, 5), fill, out)


@given(
    edges=st.tuples(*[st.integers(-12, 24)] * 4),
    mirrors=st.tuples(st.booleans(), st.booleans()),
    size=st.tuples(st.integers(1, 15), st.integers(1, 15)),
    shift=st.sampled_from([0, 0, 0, 0.25]),
    turned=st.booleans(),
)
def test_cutting_is_resampling_without_a_matrix(edges, mirrors, size, shift, turned):
    left, top = edges[0] + shift, edges[1]
    box = (left, top, left + max(1, abs(edges[2])), top + max(1, abs(edges[3])))
    image = noise(17, 13)
    image = image.transpose(1, 0, 2) if turned else image
    matrix = window(box, size) @ about_centre(mirror(mirrors[1], mirrors[0]), image.shape[:2])
    expected = resample(image, matrix, size, (9, 8, 7))
    assert np.array_equal(cut(image, box, mirrors, size, (9, 8, 7)), expected)


def test_a_cut_says_what_does_not_fit():
    with pytest.raises(ShapeError, match="an image must be uint8"):
        cut(np.zeros((4, 4, 3)), (0, 0, 2, 2), (False, False), (2, 2))


@pytest.mark.parametrize("channels", [1, 3])
def test_axes_of_length_one_may_have_any_stride(channels):
    tall = noise(40, 1, channels)
    for image in (tall[::-1], tall.transpose(1, 0, 2), np.asfortranarray(noise(30, 20, channels))[:1], tall[:1][::-1]):
        assert np.array_equal(
            resample(image, window((0, 0, image.shape[1], image.shape[0]), (7, 5)), (7, 5)),
            cut(np.ascontiguousarray(image).copy(), (0, 0, image.shape[1], image.shape[0]), (False, False), (7, 5)),
        )
        matrix = about_centre(turn(10), image.shape[:2])
        assert np.array_equal(
            resample(image, matrix, (6, 6)), resample(np.array(image, order="C", copy=True), matrix, (6, 6))
        )
