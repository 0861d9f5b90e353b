"""Colors: torchvision's formulas, the same bits in any company, and numbers that are drawn as they should be."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms.v2 import functional

from headrace.augment import ColorAugmenter, Draw
from headrace.augment.random import Purpose
from headrace.errors import ConfigError, ShapeError

DRAW = Draw(seed=3, epoch=1)
ALL = ColorAugmenter(brightness=(0.5, 1.5), contrast=(0.5, 1.5), saturation=(0.2, 2), hue=(-0.5, 0.5), gamma=(0.5, 2))
NAMES = ("brightness", "contrast", "saturation", "hue", "gamma")
GOLDEN = [[172, 232, 150], [149, 139, 177], [205, 82, 16], [140, 116, 138]]


def pictures(count: int, height: int = 13, width: int = 17, channels: int = 3) -> torch.Tensor:
    """Random pixels, among them gray, black and white ones, in channels-last memory as batches are."""
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(0, 256, (count, height, width, channels), generator=generator, dtype=torch.uint8)
    images[:, 0] = images[:, 0, :, :1]
    images[:, -1, :5], images[:, -1, 5:9] = 0, 255
    return images.permute(0, 3, 1, 2)


# --- what is done ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brightness", 0.0), ("brightness", 0.7), ("brightness", 1.6), ("contrast", 0.0), ("contrast", 0.4),
        ("contrast", 1.8), ("saturation", 0.0), ("saturation", 0.4), ("saturation", 1.8), ("hue", 0.1), ("hue", -0.3),
        ("hue", 0.5), ("gamma", 0.5), ("gamma", 2.2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_each_step_is_torchvisions_within_two_levels(name, value, channels) -> None:
    """It cuts off where we round (one level), and cuts off its gray before (another one, weighted by 1 - factor)."""
    images = pictures(4, 40, 50, channels)
    found = ColorAugmenter(**{name: value}).apply(images, np.arange(4), DRAW).int()
    expected = getattr(functional, f"adjust_{name}")(images.contiguous(), value).int()
    assert (found - expected).abs().max() <= 2
    assert abs(found.float().mean() - expected.float().mean()) < 1.5


def test_the_hue_of_hsv_turns_and_nothing_else_does() -> None:
    images = pictures(2)
    found = ColorAugmenter(hue=0.2).apply(images, np.arange(2), DRAW)
    for before, after in zip(images.permute(0, 2, 3, 1).reshape(-1, 3).tolist(),
                             found.permute(0, 2, 3, 1).reshape(-1, 3).tolist(), strict=True):  # fmt: skip
        hue, saturation, value = colorsys.rgb_to_hsv(*(v / 255 for v in before))
        expected = [255 * v for v in colorsys.hsv_to_rgb((hue + 0.2) % 1, saturation, value)]
        assert after == pytest.approx(expected, abs=0.501)


def test_steps_follow_one_another_unrounded() -> None:
    images = pictures(3)
    numbers = {"gamma": 0.8, "brightness": 1.1, "contrast": 0.9, "saturation": 1.2, "hue": 0.05}
    found = ColorAugmenter(**numbers).apply(images, np.arange(3), DRAW)
    expected = images.double() / 255
    for name, value in numbers.items():  # in float64, where torchvision rounds nothing
        expected = getattr(functional, f"adjust_{name}")(expected, value)
    assert (found.double() - expected * 255).abs().max() < 0.51
    other = ColorAugmenter(hue=0.05).apply(images, np.arange(3), DRAW)
    assert not torch.equal(found, other)


def test_nothing_changes_by_default_and_at_the_neutral_values() -> None:
    images = pictures(3)
    assert torch.equal(ColorAugmenter().apply(images, np.arange(3), DRAW), images)
    still = ColorAugmenter(brightness=(1, 1), contrast=[1, 1], gamma=(1, 1 + 1e-12), hue=(0, 1e-12), saturation=1)
    assert torch.equal(still.apply(images, np.arange(3), DRAW), images)


def test_gray_images_have_no_saturation_and_no_hue() -> None:
    gray = pictures(3, channels=1)
    assert torch.equal(ColorAugmenter(saturation=0.1, hue=0.4).apply(gray, np.arange(3), DRAW), gray)
    assert not torch.equal(ColorAugmenter(contrast=0.5).apply(gray, np.arange(3), DRAW), gray)


def test_the_input_stays_and_the_layout_is_kept() -> None:
    for images in (pictures(2), pictures(2).contiguous()):
        before = images.clone()
        found = ALL.apply(images, torch.arange(2), DRAW)
        assert torch.equal(images, before)
        assert found.stride() == images.stride()
    assert ALL.apply(pictures(0), np.arange(0), DRAW).shape == (0, 3, 13, 17)


# --- whose numbers ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 1000), st.integers(1, 9),
    st.sampled_from([(13, 17), (1, 1), (3, 64), (180, 190)]), st.booleans(),
)  # fmt: skip
def test_an_image_does_not_depend_on_its_company_or_its_layout(ids, epoch, size, shape, planar) -> None:
    images = pictures(10, *shape)[ids]
    draw = Draw(1, epoch)
    together = ALL.apply(images, np.array(ids), draw)
    other = images.contiguous() if planar else images
    for start in range(0, len(ids), size):
        rows = slice(start, start + size)
        assert torch.equal(ALL.apply(other[rows], np.array(ids[rows]), draw), together[rows])


def test_the_bits_do_not_depend_on_threads() -> None:
    images = pictures(4, 200, 300)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(ALL.apply(images, np.arange(4), DRAW))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_golden_pixels_never_change() -> None:
    found = ALL.apply(pictures(4), np.array([0, 7, 2**40, 9]), Draw(seed=5, epoch=2))
    assert found[:, :, 5, 5].tolist() == GOLDEN


@pytest.mark.parametrize("name", NAMES)
def test_switching_one_parameter_on_leaves_the_others_draws(name) -> None:
    ids = np.arange(50)
    alone = ColorAugmenter(**{name: getattr(ALL, name)}).sample_values(ids, DRAW)[name]
    assert np.array_equal(alone, ALL.sample_values(ids, DRAW)[name])


def test_values_are_uniform_and_independent() -> None:
    values = ALL.sample_values(np.arange(10_000), DRAW)
    later = ALL.sample_values(np.arange(10_000), Draw(DRAW.seed, DRAW.epoch + 1))
    limit = 4 / np.sqrt(10_000)  # four standard deviations
    for name in NAMES:
        low, high = getattr(ALL, name)
        assert stats.kstest(values[name], stats.uniform(low, high - low).cdf).pvalue > 1e-4
        assert abs(np.corrcoef(values[name][1:], values[name][:-1])[0, 1]) < limit  # between samples
        assert abs(np.corrcoef(values[name], later[name])[0, 1]) < limit  # between epochs
    off_diagonal = np.corrcoef([values[name] for name in NAMES]) - np.eye(5)
    assert np.abs(off_diagonal).max() < limit  # between parameters
    for purpose in (Purpose.CROP, Purpose.GEOMETRY):
        numbers = DRAW.uniforms(np.arange(10_000), purpose, 5)
        for name in NAMES:
            assert max(abs(np.corrcoef(values[name], column)[0, 1]) for column in numbers.T) < limit


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("channels", [1, 3])
def test_a_gpu_gives_the_same_bits(channels) -> None:
    images, ids = pictures(64, 97, 131, channels), torch.arange(64)
    expected = ALL.apply(images, ids, DRAW)
    for layout in (images, images.contiguous()):
        found = ALL.apply(layout.cuda(), ids, DRAW)
        assert found.is_cuda
        assert torch.equal(found.cpu(), expected)
    assert torch.equal(ALL.apply(images.cuda(), ids.cuda(), DRAW).cpu(), expected)


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"brightness": -0.1}, r"brightness must be a number in 0 \.\. 1000, or a range"),
        ({"contrast": (1.2, 0.8)}, "contrast must be"),
        ({"saturation": (0.5, 1, 2)}, "saturation must be"),
        ({"hue": 0.6}, r"hue must be a number in -0.5 \.\. 0.5, .* got 0.6"),
        ({"gamma": 0}, "gamma must be"),
        ({"gamma": "2"}, "gamma must be"),
        ({"brightness": float("nan")}, "brightness must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ColorAugmenter(**settings)


@pytest.mark.parametrize(
    ("images", "count", "message"),
    [
        (torch.zeros(2, 3, 4, 4), 2, r"must be uint8 \(N, C, H, W\), got float32 \(2, 3, 4, 4\)"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8), 3, "must be uint8"),
        (torch.zeros(2, 4, 4, 4, dtype=torch.uint8), 2, "must have 1 or 3 channels"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), 3, "one id for each image"),
    ],
)
def test_what_are_no_images_is_refused(images, count, message) -> None:
    with pytest.raises(ShapeError, match=message):
        ALL.apply(images, np.arange(count), DRAW)
