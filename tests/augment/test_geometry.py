"""Matrices, checked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.augment.geometry import (
    about_centre,
    mapped_boxes,
    mapped_points,
    reflections,
    rotations,
    scalings,
    shears,
    translations,
    window,
)

ANGLES = st.floats(-1000, 1000)


def moved(matrix, x, y) -> tuple[float, float]:
    point = matrix @ (x, y, 1)
    assert point[2] == 1
    return tuple(np.round(point[:2], 9).tolist())


def one(*numbers):
    return [np.array([number]) for number in numbers]


def test_reflections() -> None:
    left_right, top_bottom = reflections(np.array([True, False]), np.array([False, True]))
    assert moved(left_right, 2, 3) == (-2, 3)
    assert moved(top_bottom, 2, 3) == (2, -3)


def test_scalings_and_translations() -> None:
    assert moved(scalings(*one(2.0, 0.5))[0], 3, 4) == (6, 2)
    assert moved(translations(*one(10.0, -1.5))[0], 3, 4) == (13, 2.5)


def test_rotation_is_counter_clockwise_as_seen() -> None:
    quarter = rotations(np.array([90.0]))[0]
    assert moved(quarter, 1, 0) == (0, -1)  # from the right to the top, where y is negative
    assert moved(quarter, 0, -1) == (-1, 0)  # from the top to the left
    thirty = rotations(np.array([30.0]))[0]
    assert thirty[:2, :2] == pytest.approx(np.array([[3**0.5 / 2, 0.5], [-0.5, 3**0.5 / 2]]))


@pytest.mark.parametrize("turns", range(-9, 10))
def test_quarter_turns_are_exact(turns) -> None:
    matrix = rotations(np.array([90.0 * turns]))[0]
    assert set(np.abs(matrix).ravel().tolist()) == {0.0, 1.0}
    assert np.array_equal(matrix, np.linalg.matrix_power(rotations(np.array([90.0]))[0].astype(int), turns % 4))


@given(ANGLES, ANGLES)
def test_rotations_add_up(first, second) -> None:
    together = rotations(np.array([first + second]))[0]
    after_each_other = rotations(np.array([second]))[0] @ rotations(np.array([first]))[0]
    assert together == pytest.approx(after_each_other, abs=1e-9)
    assert np.linalg.det(together) == pytest.approx(1)


def test_shears() -> None:
    along_x, along_y = shears(np.array([45.0, 0.0]), np.array([0.0, 45.0]))
    assert moved(along_x, 0, 10) == (10, 10)  # lower rows move to the right
    assert moved(along_y, 10, 0) == (10, 10)  # columns on the right move down
    both = shears(*one(45.0, 45.0))[0]
    assert moved(both, 0, 1) == (1, 2)  # along x first
    assert np.linalg.det(both) == pytest.approx(1)


@given(st.floats(-80, 80), st.floats(-80, 80))
def test_shears_keep_areas(x, y) -> None:
    assert np.linalg.det(shears(*one(x, y))[0]) == pytest.approx(1, abs=1e-9)


def test_about_centre_keeps_the_centre() -> None:
    turn = about_centre(rotations(np.array([90.0]))[0], (3, 3))
    assert moved(turn, 1, 1) == (1, 1)
    assert moved(turn, 0, 0) == (0, 2)  # the first pixel goes to the lower left corner
    mirror = about_centre(reflections(np.array([True]), np.array([False]))[0], (10, 4))
    assert moved(mirror, 0, 7) == (3, 7)


@given(st.integers(1, 50), st.integers(1, 50), ANGLES, st.floats(0.1, 10))
def test_about_centre_is_a_conjugation(height, width, angle, scale) -> None:
    matrix = scalings(*one(scale, 1.0))[0] @ rotations(np.array([angle]))[0] @ translations(*one(3.0, 4.0))[0]
    x, y = (width - 1) / 2, (height - 1) / 2
    expected = translations(*one(x, y))[0] @ matrix @ translations(*one(-x, -y))[0]
    assert about_centre(matrix, (height, width)) == pytest.approx(expected, abs=1e-9)


@given(
    st.floats(-100, 100), st.floats(-100, 100), st.floats(0.5, 100), st.floats(0.5, 100),
    st.integers(1, 300), st.integers(1, 300),
)  # fmt: skip
def test_window_maps_edges_to_edges(left, top, wide, high, width, height) -> None:
    matrix = window((left, top, left + wide, top + high), (height, width))
    # The corner of a box lies half a pixel before the centre of its first pixel.
    assert moved(matrix, left - 0.5, top - 0.5) == pytest.approx((-0.5, -0.5), abs=1e-6)
    assert moved(matrix, left + wide - 0.5, top + high - 0.5) == pytest.approx((width - 0.5, height - 0.5), abs=1e-6)


def test_window_of_a_whole_image_by_hand() -> None:
    assert window((0, 0, 4, 2), (1, 2)).tolist() == [[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1]]
    assert np.array_equal(window((0, 0, 7, 5), (5, 7)), np.eye(3))


def test_points_and_boxes_are_measured_between_edges() -> None:
    mirrored = about_centre(reflections(np.array([True]), np.array([False]))[0], (10, 20))
    assert mapped_points(mirrored, np.array([[0.0, 0.0], [20.0, 10.0], [0.5, 3.0]])).tolist() == [
        [20.0, 0.0],
        [0.0, 10.0],
        [19.5, 3.0],
    ]
    turned = about_centre(rotations(np.array([90.0]))[0], (20, 20))
    boxes = np.array([[1.0, 2.0, 4.0, 8.0], [4.0, 8.0, 1.0, 2.0], [-9.0, 2.0, -4.0, 8.0], [0.0, 0.0, 99.0, 99.0]])
    found = mapped_boxes(turned, boxes, (20, 20))
    assert found.tolist() == [[2, 16, 8, 19], [2, 16, 8, 19], [2, 20, 8, 20], [0, 0, 20, 20]]


def test_padding_stays_padding_and_nothing_stays_nothing() -> None:
    assert np.isnan(mapped_boxes(np.eye(3), np.full((2, 4), np.nan), (5, 5))).all()
    assert np.isnan(mapped_points(np.eye(3), np.full((2, 2), np.nan))).all()
    assert mapped_boxes(np.eye(3), np.zeros((0, 4)), (5, 5)).shape == (0, 4)
    assert mapped_points(np.eye(3), np.zeros((3, 0, 2))).shape == (3, 0, 2)
