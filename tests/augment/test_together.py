"""Many small rectangles at once: the bits of each alone, whatever its company."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.augment import RandomResizedCrop
from headrace.augment.geometry import rotations
from headrace.augment.placement import Placement
from headrace.augment.random import Draw, Purpose
from headrace.augment.together import cut_together

SIZES = [(9, 12), (12, 9), (10, 10), (31, 7)]


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


@st.composite
def rectangles(draw, size):
    height, width = size
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return left, top, draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height))


@st.composite
def tasks(draw):
    """A few images and ways for them, each of which comes several times, so that many have a side in common."""
    channels, output = draw(st.sampled_from([1, 2, 3, 4, 5])), draw(st.tuples(st.integers(1, 14), st.integers(1, 14)))
    kinds = []
    for seed in range(draw(st.integers(1, 4))):
        size = draw(st.sampled_from(SIZES))
        mirrors = draw(st.tuples(st.booleans(), st.booleans()))
        kinds.append((noise(*size, channels, seed), Placement(size, output, draw(rectangles(size)), mirrors)))
    return [kinds[number] for number in draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=40))]


def alone(image, placement):
    return placement.apply(image, 7)


def rows_for(task):
    return np.full((len(task), *task[0][1].output, task[0][0].shape[2]), 99, np.uint8)


@settings(deadline=None)
@given(tasks())
def test_each_row_has_the_bits_that_it_has_alone(task) -> None:
    images, placements = zip(*task, strict=True)
    rows = rows_for(task)
    left = cut_together(images, placements, rows)
    assert left in ([], list(range(len(task))))
    for position, (image, placement) in enumerate(task):
        expected = 99 if left else alone(image, placement)
        assert np.array_equal(rows[position], np.broadcast_to(expected, rows[position].shape))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("output", [(28, 28), (20, 33), (5, 40)])
def test_a_task_of_random_crops_is_done_at_once(channels, output) -> None:
    count, crop = 200, RandomResizedCrop()
    numbers = Draw(4).uniforms(np.arange(count), Purpose.CROP, crop.num_draws).tolist()
    images = [noise(28, 28, channels, seed) for seed in range(count)]
    placements = [
        Placement((28, 28), output, crop.box((28, 28), output, drawn), (position % 3 == 0, position % 2 == 0))
        for position, drawn in enumerate(numbers)
    ]
    rows = np.empty((count, *output, channels), np.uint8)
    before = [image.copy() for image in images]
    assert cut_together(images, placements, rows) == []
    assert all(np.array_equal(*pair) for pair in zip(rows, map(alone, images, placements), strict=True))
    assert all(np.array_equal(*pair) for pair in zip(images, before, strict=True))


def test_what_is_no_scaled_rectangle_is_left_to_the_caller() -> None:
    usual = (noise(9, 12), Placement((9, 12), (8, 8), (1, 2, 10, 9), (False, True)))
    others = [
        (noise(9, 12), Placement((9, 12), (8, 8), (0, 0, 12, 9), rotations(np.array([10.0]))[0])),
        (noise(9, 12), Placement((9, 12), (8, 8), (0, 0, 12, 9), (True, False), rotations(np.array([10.0]))[0])),
        (noise(9, 12), Placement((9, 12), (8, 8), (-1, 0, 12, 9), (False, False))),
        (noise(9, 12), Placement((9, 12), (8, 8), (0.5, 0, 12, 9), (False, False))),
        (noise(9, 12, 1), usual[1]),
        (noise(9, 13), usual[1]),
        (noise(9, 12).astype(np.int16), usual[1]),
    ]
    task = [usual] * 10 + others + [usual] * 10
    rows = rows_for(task)
    assert cut_together(*zip(*task, strict=True), rows) == list(range(10, 10 + len(others)))
    assert (rows[10 : 10 + len(others)] == 99).all()
    assert (rows[:10] == alone(*usual)).all()
    assert (rows[-10:] == alone(*usual)).all()


def test_views_of_any_strides_and_read_only_ones_are_taken() -> None:
    image = noise(12, 9)
    image.flags.writeable = False
    views = [image, image.transpose(1, 0, 2), image[::-1], image[:, ::-1]]
    task = [(view, Placement(view.shape[:2], (6, 5), (1, 1, 8, 8), (True, False))) for view in views] * 5
    rows = rows_for(task)
    assert cut_together(*zip(*task, strict=True), rows) == []
    for position, pair in enumerate(task):
        assert np.array_equal(rows[position], alone(*pair))
