"""Nearest sampling, for label maps: each pixel takes the one that its centre lies in, and nothing is ever mixed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.augment.geometry import about_centre, reflections, rotations, scalings, shears, translations, window
from headrace.augment.resample import cut, resample
from headrace.errors import ConfigError, ShapeError

TYPES = [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.uint32, np.int64, np.bool_]


def labels(height, width, channels=1, dtype=np.uint8, seed=0):
    high = 2 if dtype == np.bool_ else 100
    return np.random.default_rng(seed).integers(0, high, (height, width, channels)).astype(dtype)


def one(*numbers):
    return [np.array([float(number)]) for number in numbers]


def reference(image, matrix, size, fill):
    """Ask for every pixel of the output, one by one, in which square its centre lies."""
    inverse = np.linalg.inv(matrix)
    out = np.empty((*size, image.shape[2]), image.dtype)
    for y in range(size[0]):
        for x in range(size[1]):
            column, row = np.floor((inverse @ (x, y, 1))[:2] + 0.5 + 1e-6).astype(int)
            inside = 0 <= column < image.shape[1] and 0 <= row < image.shape[0]
            out[y, x] = image[row, column] if inside else fill
    return out


@given(
    st.floats(-180, 180) | st.sampled_from([0, 0, 90, 180, 270, 45]),
    st.tuples(st.floats(0.2, 4), st.floats(0.2, 4)) | st.sampled_from([(1, 1), (0.5, 0.5), (2, 2), (-1, 3)]),
    st.floats(-60, 60) | st.just(0),
    st.tuples(st.floats(-5, 5), st.floats(-5, 5)) | st.sampled_from([(0, 0), (3, -2), (0.5, 0.5)]),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.sampled_from([1, 3]),
    st.sampled_from(TYPES),
)
def test_every_pixel_is_the_one_that_its_centre_lies_in(angle, scales, shear, move, size, output, channels, dtype):
    image = labels(*size, channels, dtype)
    movement = rotations(*one(angle))[0] @ shears(*one(shear, 0))[0] @ scalings(*one(*scales))[0]
    matrix = translations(*one(*move))[0] @ about_centre(movement, size)
    found = resample(image, matrix, output, 1, interpolation="nearest")
    assert found.dtype == dtype
    assert np.array_equal(found, reference(image, matrix, output, 1))


@given(
    edges=st.tuples(*[st.integers(-12, 24)] * 4),
    mirrors=st.tuples(st.booleans(), st.booleans()),
    size=st.tuples(st.integers(1, 15), st.integers(1, 15)),
    same=st.booleans(),
    dtype=st.sampled_from(TYPES),
    channels=st.sampled_from([1, 2]),
)
def test_cutting_is_resampling_without_a_matrix(edges, mirrors, size, same, dtype, channels):
    left, top = edges[:2]
    height, width = size if same else (max(1, abs(edges[3])), max(1, abs(edges[2])))
    box = (left, top, left + width, top + height)
    image = labels(17, 13, channels, dtype)
    mirror = reflections(np.array([mirrors[1]]), np.array([mirrors[0]]))[0]
    expected = reference(image, window(box, size) @ about_centre(mirror, (17, 13)), size, 1)
    assert np.array_equal(cut(image, box, mirrors, size, 1, interpolation="nearest"), expected)


def test_enlarging_repeats_and_shrinking_picks():
    image = labels(4, 6)
    large = resample(image, window((0, 0, 6, 4), (12, 18)), (12, 18), interpolation="nearest")
    assert np.array_equal(large, image.repeat(3, 0).repeat(3, 1))
    small = resample(large, window((0, 0, 18, 12), (4, 6)), (4, 6), interpolation="nearest")
    assert np.array_equal(small, image)
    # A centre that lies on an edge belongs to the pixel on its right, also in the mirror.
    row = np.arange(4, dtype=np.uint8).reshape(1, 4, 1)
    assert cut(row, (0, 0, 4, 1), (False, False), (1, 2), interpolation="nearest").ravel().tolist() == [1, 3]
    assert cut(row, (0, 0, 4, 1), (False, True), (1, 2), interpolation="nearest").ravel().tolist() == [3, 1]


def test_it_writes_into_the_row_that_is_given_and_leaves_the_image_alone():
    image = labels(20, 30, 1, np.int32)
    before, rows = image.copy(), np.full((3, 8, 9, 1), -5, np.int32)
    matrix = about_centre(rotations(*one(30))[0], (20, 30))
    found = resample(image, matrix, (8, 9), 255, rows[1], "nearest")
    assert found.base is rows
    assert (rows[[0, 2]] == -5).all()
    assert np.array_equal(rows[1], reference(image, matrix, (8, 9), 255))
    assert np.array_equal(image, before)


@pytest.mark.parametrize("matrix", [np.eye(3), about_centre(rotations(*one(90))[0], (20, 20)),
                                    about_centre(rotations(*one(33))[0], (20, 20))])  # fmt: skip
def test_strides_write_protection_and_threads_make_no_difference(matrix):
    image = labels(20, 20, 3)
    expected = reference(image, matrix, (20, 20), 9)
    protected = image.copy()
    protected.setflags(write=False)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    wider = np.concatenate((image, image), axis=1)[:, :20]
    threads = torch.get_num_threads()
    try:
        for number, pixels in enumerate((protected, planes, wider, np.ascontiguousarray(image[::-1])[::-1])):
            torch.set_num_threads(1 + number)
            assert np.array_equal(resample(pixels, matrix, (20, 20), 9, interpolation="nearest"), expected)
    finally:
        torch.set_num_threads(threads)


def test_an_image_far_outside_is_only_fill():
    for dx in (30, 1e7, -1e12):
        matrix = translations(*one(dx, 0))[0] @ rotations(*one(3))[0]
        assert (resample(labels(9, 9), matrix, (9, 9), 7, interpolation="nearest") == 7).all()


@pytest.mark.parametrize(
    ("image", "fill", "interpolation", "error", "message"),
    [
        (labels(4, 4).astype(np.float32), 0, "nearest", ShapeError, "must be whole numbers or booleans"),
        (labels(4, 4, 1, np.int32), 0, "bilinear", ShapeError, r"must be uint8 \(H, W, C\)"),
        (labels(4, 4, 1, np.bool_), 255, "nearest", ShapeError, r"fill 255 does not fit into bool: .* 0 \.\. 1"),
        (labels(4, 4, 1, np.int8), 255, "nearest", ShapeError, r"fill 255 does not fit into int8: .* -128 \.\. 127"),
        (labels(4, 4), 256, "nearest", ShapeError, "fill 256 does not fit into uint8"),
        (labels(4, 4), 0, "cubic", ConfigError, "interpolation must be one of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(image, fill, interpolation, error, message):
    with pytest.raises(error, match=message):
        resample(image, np.eye(3), (4, 4), fill, interpolation=interpolation)
