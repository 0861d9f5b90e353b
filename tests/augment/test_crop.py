"""Which rectangle is cut."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import v2

from headrace.augment.crop import CenterCrop, Letterbox, RandomCrop, RandomResizedCrop, Resize, ResizedCenterCrop
from headrace.augment.random import Draw, Purpose
from headrace.errors import ConfigError, ShapeError

SIZES = st.integers(1, 2000)


def boxes(crop, size, output=(32, 32), count=4000) -> np.ndarray:
    draws = Draw(0, 0).uniforms(np.arange(count), Purpose.CROP, crop.num_draws).tolist()
    return np.array([crop.box(size, output, numbers) for numbers in draws])


def test_resize_takes_the_whole_image() -> None:
    assert Resize().box((20, 30), (7, 8), []) == (0, 0, 30, 20)


@pytest.mark.parametrize(
    ("size", "output", "box"),
    [((10, 10), (4, 4), (3, 3, 7, 7)), ((10, 11), (4, 4), (3, 3, 7, 7)), ((5, 6), (5, 6), (0, 0, 6, 5))],
)
def test_center_crop(size, output, box) -> None:
    assert CenterCrop().box(size, output, []) == box


@given(SIZES, SIZES, st.integers(1, 500), st.integers(1, 500))
def test_letterbox_shows_the_whole_image_in_its_own_shape_in_the_middle(height, width, out_height, out_width) -> None:
    left, top, right, bottom = Letterbox().box((height, width), (out_height, out_width), [])
    x_unit, y_unit = (right - left) / out_width, (bottom - top) / out_height
    inner = np.array([height / y_unit, width / x_unit])
    assert np.allclose(inner, inner.round(), atol=1e-6), "edges lie between pixels"
    assert (inner.round() <= (out_height, out_width)).all()
    assert out_height - inner[0] < 0.501 or out_width - inner[1] < 0.501, "as large as fits"
    scale = min(out_height / height, out_width / width)
    assert (np.abs(inner - np.maximum(1, (scale * height, scale * width))) < 0.501).all(), "in its own shape"
    before, after = (
        np.array([-top / y_unit, -left / x_unit]),
        np.array([(bottom - height) / y_unit, (right - width) / x_unit]),
    )
    assert ((after - before > -1e-6) & (after - before < 1 + 1e-6)).all(), "in the middle"


def test_random_crop_takes_every_place_equally_often() -> None:
    found = boxes(RandomCrop(), (12, 14), (10, 11))
    assert (found[:, 2] - found[:, 0] == 11).all()
    assert (found[:, 3] - found[:, 1] == 10).all()
    places, counts = np.unique(found[:, :2], axis=0, return_counts=True)
    assert len(places) == 4 * 3
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("crop", [CenterCrop(), RandomCrop()])
@pytest.mark.parametrize("size", [(31, 100), (100, 31)])
def test_a_crop_larger_than_the_image_is_an_error(crop, size) -> None:
    with pytest.raises(ShapeError, match=rf"32 x 32 .* does not fit into an image of {size[0]} x {size[1]}"):
        crop.box(size, (32, 32), [0.0, 0.0])


@given(SIZES, SIZES, st.data())
def test_random_resized_crop_cuts_between_pixels_inside_the_image(height, width, data) -> None:
    crop = RandomResizedCrop()
    draws = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=crop.num_draws, max_size=crop.num_draws))
    left, top, right, bottom = box = crop.box((height, width), (32, 32), draws)
    assert all(isinstance(edge, int) for edge in box)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_resized_crop_has_the_areas_and_ratios_asked_for() -> None:
    crop = RandomResizedCrop(scale=(0.1, 0.5), ratio=(0.5, 2.0))
    left, top, right, bottom = boxes(crop, (1000, 1000)).T
    area, ratio = (right - left) * (bottom - top) / 1e6, (right - left) / (bottom - top)
    assert area.min() > 0.099
    assert area.max() < 0.501
    assert ratio.min() > 0.495
    assert ratio.max() < 2.02
    inside = area < 0.2  # all of these fit whatever their ratio, so none was rejected
    assert stats.kstest(np.log(ratio[inside]), "uniform", (-math.log(2), 2 * math.log(2))).pvalue > 1e-4


def test_golden_boxes_never_change() -> None:
    assert boxes(RandomResizedCrop(), (375, 500), count=3).tolist() == [
        [318, 147, 465, 300],
        [202, 30, 453, 328],
        [100, 83, 348, 372],
    ]
    assert boxes(RandomCrop(), (375, 500), count=3).tolist() == [
        [421, 227, 453, 259],
        [379, 136, 411, 168],
        [186, 331, 218, 363],
    ]


@pytest.mark.parametrize("size", [(375, 500), (500, 100)])
def test_random_resized_crop_is_distributed_as_torchvisions(size) -> None:
    left, top, right, bottom = boxes(RandomResizedCrop(), size).T
    torch.manual_seed(0)
    theirs = v2.RandomResizedCrop(32)
    image = torch.empty(1, *size)
    params = [theirs.make_params([image]) for _ in range(4000)]
    for ours, name in ((left, "left"), (top, "top"), (right - left, "width"), (bottom - top, "height")):
        assert stats.ks_2samp(ours, [p[name] for p in params]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((10, 1000), (493, 0, 506, 10)),
        ((1000, 9), (0, 494, 9, 506)),
        ((1, 500), (249, 0, 250, 1)),
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_where_nothing_fits_the_largest_allowed_part_in_the_middle_is_taken(size, box) -> None:
    crop = RandomResizedCrop(scale=(1, 1))
    assert crop.box(size, (32, 32), [0.9, 0.9] + [0.5] * 20) == box


def test_a_later_attempt_is_taken_if_the_first_does_not_fit() -> None:
    crop = RandomResizedCrop(scale=(0.04, 1.0), ratio=(1, 4))
    draws = [0.0, 0.0] + [0.999, 0.999] + [0.0, 0.0] + [0.5] * 16
    assert crop.box((100, 100), (32, 32), draws) == (0, 0, 20, 20)


@pytest.mark.parametrize(
    "settings",
    [{"scale": (0, 1)}, {"scale": (0.5, 0.4)}, {"scale": (0.5, 1.1)}, {"ratio": (0, 1)}, {"ratio": (2, 1)},
     {"ratio": (1, math.inf)}, {"scale": (math.nan, 1)}, {"ratio": (1, 2, 3)}],
)  # fmt: skip
def test_ranges_that_cannot_work_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} of a random resized crop must be"):
        RandomResizedCrop(**settings)


@given(
    size=st.tuples(st.integers(1, 900), st.integers(1, 900)), output=st.tuples(st.integers(1, 300), st.integers(1, 300))
)
def test_the_resized_middle_keeps_the_outputs_shape(size, output):
    left, top, right, bottom = ResizedCenterCrop(1.0).box(size, output, [])
    assert 0 <= left < right <= size[1]
    assert 0 <= top < bottom <= size[0]
    assert abs(left - (size[1] - right)) <= 1
    assert abs(top - (size[0] - bottom)) <= 1
    scale = min(size[0] / output[0], size[1] / output[1])
    assert abs((bottom - top) - max(1, output[0] * scale)) <= 0.5
    assert abs((right - left) - max(1, output[1] * scale)) <= 0.5


def test_the_usual_evaluation_crop():
    assert ResizedCenterCrop().box((500, 375), (224, 224), []) == (23, 86, 351, 414)
    for fraction in (0, -1, 1.1):
        with pytest.raises(ConfigError, match="fraction of a resized center crop"):
            ResizedCenterCrop(fraction)
