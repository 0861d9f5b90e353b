"""Posterize, solarize, autocontrast, equalize and sharpness: what torchvision and Pillow make, and how often."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision.transforms.v2 import functional

from headrace.augment import AutoContrast, Draw, Equalize, Posterize, Sharpness, Solarize
from headrace.augment.tone import autocontrasted, equalized, posterized, solarized
from headrace.errors import ConfigError

DRAW = Draw(seed=3, epoch=1)
IDS = np.arange(600)


def pictures(count: int, height: int = 40, width: int = 50, channels: int = 3, low: int = 0, high: int = 256):
    """Random pixels, more of them dark, in channels-last memory as batches are."""
    random = np.random.default_rng(count + low)
    values = low + (high - low) * random.beta(1, 3, (count, height, width, channels))
    return torch.from_numpy(values.astype(np.uint8)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_is_torchvisions(bits) -> None:
    images = pictures(3)
    assert torch.equal(Posterize(bits=bits).apply(images, IDS[:3], DRAW), functional.posterize(images, bits))


@pytest.mark.parametrize("threshold", [0, 0.5, 1, 127.5, 128, 255, 256])
def test_solarize_is_torchvisions(threshold) -> None:
    images = pictures(3)
    images[0, 0, 0, :3] = torch.tensor([0, 255, 254])
    expected = torch.where(images.double() >= threshold, 255 - images, images)
    assert torch.equal(Solarize(threshold=threshold).apply(images, IDS[:3], DRAW), expected)
    if threshold <= 255:
        assert torch.equal(functional.solarize(images, threshold), expected)


images_of_any_spread = st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(1, 40), st.integers(1, 40))


@settings(deadline=None, max_examples=60)
@given(images_of_any_spread, st.integers(0, 2**32 - 1))
def test_equalize_is_pillows_and_torchvisions_to_the_bit(shape, seed) -> None:
    low, high, height, width = shape
    low, high = min(low, high), max(low, high)
    values = np.random.default_rng(seed).integers(low, high + 1, (2, height, width, 3), np.uint8)
    images = torch.from_numpy(values).permute(0, 3, 1, 2)
    found = equalized(images)
    assert torch.equal(found, functional.equalize(images.contiguous()))
    for image, pixels in zip(values, found.permute(0, 2, 3, 1).numpy(), strict=True):
        assert np.array_equal(np.asarray(ImageOps.equalize(Image.fromarray(image))), pixels)


@settings(deadline=None, max_examples=60)
@given(images_of_any_spread, st.integers(0, 2**32 - 1))
def test_autocontrast_is_rounded_where_torchvision_cuts_off(shape, seed) -> None:
    low, high, height, width = shape
    low, high = min(low, high), max(low, high)
    values = np.random.default_rng(seed).integers(low, high + 1, (2, height, width, 3), np.uint8)
    images = torch.from_numpy(values).permute(0, 3, 1, 2)
    found, theirs = autocontrasted(images), functional.autocontrast(images.contiguous())
    assert (found.int() - theirs.int()).abs().max() <= 1
    least, most = values.min((1, 2), keepdims=True), values.max((1, 2), keepdims=True)
    spread = (most - least).astype(np.float64)
    exact = np.where(spread > 0, (values - least) * 255.0 / np.maximum(spread, 1), values)
    assert np.abs(found.permute(0, 2, 3, 1).numpy() - exact).max() <= 0.5


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.99, 5.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_sharpness_is_torchvisions_within_one_level(factor, channels) -> None:
    images = pictures(3, channels=channels)
    found = Sharpness(factor=factor).apply(images, IDS[:3], DRAW)
    theirs = functional.adjust_sharpness(images.contiguous(), factor)
    assert (found.int() - theirs.int()).abs().max() <= 1
    assert torch.equal(found[..., 0], images[..., 0])
    assert torch.equal(found, images) == (factor == 1)


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (9, 2), (3, 3)])
def test_small_and_flat_images(size) -> None:
    images = pictures(2, *size)
    flat = torch.full_like(images, 77)
    for operation in (AutoContrast(), Equalize(), Sharpness(factor=2)):
        assert torch.equal(operation.apply(flat, IDS[:2], DRAW), flat)
    if min(size) < 3:
        assert torch.equal(Sharpness(factor=2).apply(images, IDS[:2], DRAW), images)


@pytest.mark.parametrize(
    "operation",
    [
        Posterize(bits=1, probability=0.3),
        Solarize(threshold=0, probability=0.3),
        AutoContrast(probability=0.3),
        Equalize(probability=0.3),
        Sharpness(factor=0, probability=0.3),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_as_many_images_change_as_the_probability_says(operation) -> None:
    images = pictures(1, 24, 24, low=60, high=200).expand(600, -1, -1, -1)
    changed = (operation.apply(images, IDS, DRAW) != images).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / 600))
    never = type(operation)(**{name: getattr(operation, name) for name in operation.__slots__} | {"probability": 0})
    assert torch.equal(never.apply(images, IDS, DRAW), images)


def test_bits_and_thresholds_are_drawn_uniformly() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(600, -1, -1, -1)
    values = [len(row.unique()) for row in Posterize(bits=(2, 5)).apply(ramp, IDS, DRAW)]
    assert set(values) == {4, 8, 16, 32}
    assert min(values.count(value) for value in set(values)) > 110
    inverted = (Solarize(threshold=(64, 192)).apply(ramp, IDS, DRAW) != ramp).flatten(1).sum(1)
    assert inverted.min() >= 64
    assert inverted.max() <= 192
    assert inverted.double().mean().item() == pytest.approx(128, abs=4 * 128 / np.sqrt(12 * 600))


def test_rows_have_their_own_amounts() -> None:
    images = pictures(4)
    bits, thresholds = np.array([8.0, 3, 1, 0]), np.array([0.0, 256, 99.5, 255])
    for row in range(4):
        alone = slice(row, row + 1)
        assert torch.equal(posterized(images, bits)[alone], posterized(images[alone], bits[alone]))
        assert torch.equal(solarized(images, thresholds)[alone], solarized(images[alone], thresholds[alone]))
    assert not posterized(images, bits)[3].any()


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (Posterize, {"bits": 0}, "bits must be"),
        (Posterize, {"bits": 2.5}, "bits must be whole numbers"),
        (Posterize, {"bits": (2, 9)}, "bits must be"),
        (Solarize, {"threshold": 257}, "threshold must be"),
        (AutoContrast, {"probability": 2}, "probability must be"),
        (Equalize, {"probability": "yes"}, "probability must be"),
        (Sharpness, {"factor": -0.1}, "factor must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind, wrong, message) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**wrong)
