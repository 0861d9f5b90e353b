"""Which movement a sample gets."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.augment import Draw, ImageAugmenter
from headrace.augment.geometry import about_centre
from headrace.errors import ConfigError

IDS = np.arange(2000)
DRAW = Draw(seed=5, epoch=2)
GOLDEN = [
    [
        -0.43049068898267967,
        0.9025950181001543,
        1.5774360985861584,
        -0.9025950181001543,
        -0.43049068898267967,
        0.428699668163528,
    ],
    [
        0.964125080153779,
        0.2654483562173052,
        3.5472775187880874,
        -0.2654483562173052,
        0.964125080153779,
        0.5787669252656539,
    ],
    [
        -0.24064642344545412,
        0.9706128470625717,
        8.551776747641984,
        -0.9706128470625717,
        -0.24064642344545412,
        0.46722330698961145,
    ],
]


def either_end(rng: np.random.Generator) -> float:
    return rng.uniform(-30, -20) if rng.random() < 0.5 else rng.uniform(20, 30)


def first_number(rng: np.random.Generator) -> float:
    return rng.random()


def angles(matrices) -> np.ndarray:
    return np.degrees(np.arctan2(matrices[:, 0, 1], matrices[:, 0, 0]))


def test_nothing_moves_by_default() -> None:
    assert np.array_equal(ImageAugmenter().sample_matrices(IDS, DRAW), np.broadcast_to(np.eye(3), (2000, 3, 3)))
    assert np.array_equal(ImageAugmenter().sample_matrix(3, DRAW, (7, 9)), np.eye(3))


def test_all_movements_are_composed_in_the_order_that_is_promised() -> None:
    augment = ImageAugmenter(
        x_reflection=1.0, x_scale=2, y_scale=3, x_shear=45, rotation=90, x_translation=10, y_translation=-20
    )
    matrix = augment.sample_matrix(0, DRAW, (5, 5))
    # The point right of the centre by 1 and below it by 1, step by step, from the centre (2, 2):
    #   reflection (-1, 1); scale (-2, 3); shear (1, 3); rotation (3, -1); translation (13, -21).
    assert (matrix @ (3, 3, 1)).tolist() == pytest.approx([2 + 13, 2 - 21, 1])
    y_shear = ImageAugmenter(y_reflection=1.0, y_shear=-45).sample_matrix(0, DRAW, (5, 5))
    assert (y_shear @ (3, 3, 1)).tolist() == pytest.approx([2 + 1, 2 - 2, 1])  # (1, -1), then down by -1


def test_sample_matrix_is_the_row_of_sample_matrices_about_the_centre() -> None:
    augment = ImageAugmenter(rotation=(-30, 30), scale=(0.5, 2), x_translation=(-9, 9), x_shear=first_number)
    together = augment.sample_matrices(np.array([4, 9, 1]), DRAW)
    assert np.array_equal(augment.sample_matrix(9, DRAW, (30, 40)), about_centre(together[1], (30, 40)))


@pytest.mark.parametrize(("reflection", "share"), [(True, 0.5), (0.25, 0.25), (1, 1.0), (1.0, 1.0), (False, 0), (0, 0)])
def test_reflection_has_the_probability_asked_for(reflection, share) -> None:
    for name, axis in (("x_reflection", 0), ("y_reflection", 1)):
        matrices = ImageAugmenter(**{name: reflection}).sample_matrices(IDS, DRAW)
        assert abs((matrices[:, axis, axis] == -1).mean() - share) <= 4 * math.sqrt(share * (1 - share) / len(IDS))
        assert (matrices[:, 1 - axis, 1 - axis] == 1).all()


def test_ranges_are_drawn_uniformly() -> None:
    found = angles(ImageAugmenter(rotation=(-10, 30)).sample_matrices(IDS, DRAW))
    assert -10 <= found.min() < -9.8
    assert 29.8 < found.max() <= 30
    assert found.mean() == pytest.approx(10, abs=4 * 40 / math.sqrt(12 * len(IDS)))
    scales = ImageAugmenter(scale=(0.5, 2.0)).sample_matrices(IDS, DRAW)
    assert np.array_equal(scales[:, 0, 0], scales[:, 1, 1])
    assert scales[:, 0, 0].mean() == pytest.approx(1.25, abs=0.04)


def test_x_and_y_are_drawn_each_on_its_own() -> None:
    matrices = ImageAugmenter(x_translation=(-1, 1), y_translation=(-1, 1)).sample_matrices(IDS, DRAW)
    assert abs(np.corrcoef(matrices[:, 0, 2], matrices[:, 1, 2])[0, 1]) < 4 / math.sqrt(len(IDS))


def test_switching_one_movement_on_leaves_the_others_as_they_were() -> None:
    rotation = ImageAugmenter(rotation=(-10, 30)).sample_matrices(IDS, DRAW)
    more = ImageAugmenter(
        rotation=(-10, 30), scale=(0.5, 2.0), x_translation=(-5, 5), y_translation=first_number
    ).sample_matrices(IDS, DRAW)
    assert angles(more) == pytest.approx(angles(rotation), abs=1e-9)


def test_functions_get_a_generator_of_their_own_for_each_sample_and_parameter() -> None:
    turned = angles(ImageAugmenter(rotation=either_end).sample_matrices(IDS, DRAW))
    assert ((np.abs(turned) >= 20) & (np.abs(turned) <= 30)).all()
    assert 0.4 < (turned > 0).mean() < 0.6
    both = ImageAugmenter(x_translation=first_number, y_translation=first_number).sample_matrices(IDS, DRAW)
    assert len(np.unique(both[:, :2, 2])) == 2 * len(IDS)
    one = ImageAugmenter(y_translation=first_number).sample_matrices(IDS[7:8], DRAW)
    assert one[0, 1, 2] == both[7, 1, 2]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_a_sample_moves_the_same_way_in_any_company(ids, epoch) -> None:
    augment = ImageAugmenter(x_reflection=True, rotation=(-10, 30), scale=(0.5, 2.0), x_shear=(-5, 5))
    together = augment.sample_matrices(np.array(ids), Draw(1, epoch))
    alone = np.concatenate([augment.sample_matrices(np.array([index]), Draw(1, epoch)) for index in ids])
    assert np.array_equal(together, alone)


def test_golden_movements_never_change() -> None:
    augment = ImageAugmenter(
        x_reflection=True, rotation=(-180, 180), x_translation=(-10, 10), y_translation=first_number
    )
    matrices = augment.sample_matrices(np.array([0, 1, 2**40]), DRAW)
    assert matrices[:, :2].reshape(3, 6) == pytest.approx(np.array(GOLDEN), abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rotation": (10, -10)}, "rotation must be a number in -1e\\+09 .. 1e\\+09, or a range"),
        ({"rotation": (1, 2, 3)}, "rotation must be a number in -1e\\+09 .. 1e\\+09, or a range"),
        ({"rotation": "ten"}, "rotation must be a number in -1e\\+09 .. 1e\\+09, or a range"),
        ({"rotation": math.nan}, "rotation must be a number in -1e\\+09 .. 1e\\+09, or a range"),
        (
            {"rotation": math.inf},
            "rotation must be a number in -1e\\+09 .. 1e\\+09, or a range .*, or a function of a generator, got inf",
        ),
        ({"scale": 0}, "scale must be a number in 0.001 .. 1e\\+06"),
        ({"scale": (-1, 1)}, "scale must be a number in 0.001 .. 1e\\+06"),
        ({"x_shear": 90}, r"x_shear must be a number in -90 .. 90 \(both excluded\)"),
        ({"y_shear": (-90, 0)}, r"y_shear must be a number in -90 .. 90 \(both excluded\)"),
        ({"x_reflection": 1.5}, "x_reflection must be a number in 0 .. 1"),
        ({"y_reflection": (0, 1)}, "y_reflection must be a number in 0 .. 1"),
        ({"fill_value": 256}, "fill_value must be a whole number"),
        ({"fill_value": 0.5}, "fill_value must be a whole number"),
        ({"fill_value": (0, -1, 0)}, "fill_value must be a whole number"),
        ({"fill_value": ()}, "fill_value must be a whole number"),
        ({"scale": (0.5, 1), "x_scale": 2}, "scale=.* sets both axes"),
        ({"scale": first_number, "y_scale": first_number}, "scale=.* sets both axes"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ImageAugmenter(**settings)


def test_scale_may_be_named_as_long_as_it_does_nothing() -> None:
    ImageAugmenter(scale=(1, 1), x_scale=(0.5, 2))
    ImageAugmenter(scale=(0.5, 2), x_scale=1, y_scale=(1.0, 1.0))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, "two", None])
def test_a_function_that_returns_nonsense_is_an_error(wrong) -> None:
    augment = ImageAugmenter(scale=lambda rng: wrong)
    with pytest.raises(ConfigError, match=r"what the function for scale returns must be a number in 0.001 .. 1e\+06"):
        augment.sample_matrices(IDS[:2], DRAW)


def test_settings_name_functions_and_survive_pickling() -> None:
    augment = ImageAugmenter(rotation=either_end, scale=[0.5, 2.0], fill_value=(1, 2, 3))
    assert f"{__name__}.either_end" in augment.settings
    assert (0.5, 2.0) in augment.settings
    again = pickle.loads(pickle.dumps(ImageAugmenter(scale=(0.5, 2.0), fill_value=9)))
    assert again == ImageAugmenter(scale=(0.5, 2.0), fill_value=9)
    assert again.settings == ImageAugmenter(scale=(0.5, 2.0), fill_value=9).settings
    assert again.settings != ImageAugmenter(scale=(0.5, 2.1), fill_value=9).settings
