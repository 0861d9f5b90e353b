"""Normalising: torchvision's numbers, in any layout, and the same bits everywhere."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

from headrace.augment import Normalize
from headrace.errors import ConfigError, ShapeError

IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

GOLDEN = [
    "-0x1.0f177a0000000p+1",
    "-0x1.0ce6560000000p+1",
    "0x1.2f5e400000000p-4",
    "0x1.1fdc3a0000000p+1",
    "-0x1.04924a0000000p+1",
    "-0x1.02549e0000000p+1",
    "0x1.a436800000000p-3",
    "0x1.36db6e0000000p+1",
    "-0x1.cdf0120000000p+0",
    "-0x1.c979d40000000p+0",
    "0x1.b4ba680000000p-2",
    "0x1.51eb840000000p+1",
]

GOLDEN = [
    "-0x1.0f177a0000000p+1",
    "-0x1.0ce6560000000p+1",
    "0x1.2f5e400000000p-4",
    "0x1.1fdc3a0000000p+1",
    "-0x1.04924a0000000p+1",
    "-0x1.02549e0000000p+1",
    "0x1.a436800000000p-3",
    "0x1.36db6e0000000p+1",
    "-0x1.cdf0120000000p+0",
    "-0x1.c979d40000000p+0",
    "0x1.b4ba680000000p-2",
    "0x1.51eb840000000p+1",
]


def pictures(count: int, height: int, width: int, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(0, 256, (count, height, width, channels), generator=generator, dtype=torch.uint8)
    return images.permute(0, 3, 1, 2)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 4), st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3, 4]),
    st.floats(-1, 2), st.floats(0.01, 3),
)  # fmt: skip
def test_it_is_torchvisions_in_any_layout(count, height, width, channels, mean, std) -> None:
    images = pictures(count, height, width, channels)
    means, stds = [mean + 0.1 * c for c in range(channels)], [std + 0.2 * c for c in range(channels)]
    normalize = Normalize(mean=means, std=stds)
    found = normalize.apply(images)
    theirs = v2.Normalize(means, stds)(v2.functional.to_dtype(images, torch.float32, scale=True))
    assert found.dtype == torch.float32
    assert torch.allclose(found, theirs, rtol=2e-6, atol=2e-6 * (1 + abs(mean)) / std)
    assert torch.equal(normalize.apply(images.contiguous()), found)
    assert torch.equal(normalize.apply(images[:, :, ::2]), found[:, :, ::2])
    assert images.is_contiguous(memory_format=torch.channels_last) <= found.is_contiguous(
        memory_format=torch.channels_last
    )
    out = torch.full(images.shape, torch.nan).to(memory_format=torch.channels_last)
    assert normalize.apply(images, out) is out
    assert torch.equal(out, found)


def test_known_values_never_change() -> None:
    images = torch.tensor([0, 1, 128, 255], dtype=torch.uint8).view(1, 1, 2, 2).expand(1, 3, 2, 2)
    found = IMAGENET.apply(images).flatten().tolist()
    assert [value.hex() for value in found] == GOLDEN
    exact = [(v / 255 - m) / s for m, s in zip(IMAGENET.mean, IMAGENET.std, strict=True) for v in (0, 1, 128, 255)]
    assert found == pytest.approx(exact, rel=1e-6)


def test_one_number_serves_all_channels_and_settings_have_one_form() -> None:
    images = pictures(2, 5, 6)
    one = Normalize(mean=0.5, std=0.25)
    assert torch.equal(one.apply(images), Normalize(mean=[0.5] * 3, std=[0.25] * 3).apply(images))
    assert repr(Normalize(mean=[0, 1], std=np.array([1, 2]))) == "Normalize(mean=(0.0, 1.0), std=(1.0, 2.0))"


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (0.5, 0, "std must be above 0"),
        (0.5, -1, "std must be above 0"),
        ((0.5, 0.5), 1, "as many channels"),
        (float("nan"), 1, "mean must be a finite number"),
        (0, float("inf"), "std must be a finite number"),
        ("imagenet", 1, "mean must be a finite number"),
        ((), (), "mean must be a finite number"),
        (None, 1, "mean must be a finite number"),
    ],
)
def test_settings_that_cannot_work_are_refused(mean, std, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Normalize(mean=mean, std=std)


@pytest.mark.parametrize(
    "images", [torch.zeros(1, 3, 2, 2), torch.zeros(3, 2, 2, dtype=torch.uint8), pictures(1, 2, 2, 4)]
)
def test_what_are_no_such_images_is_refused(images) -> None:
    with pytest.raises(ShapeError, match=r"need uint8 images \(N, C, H, W\), got"):
        IMAGENET.apply(images)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_gives_the_same_bits() -> None:
    images = pictures(9, 37, 53)
    for layout in (images, images.contiguous()):
        found = IMAGENET.apply(layout.cuda())
        assert found.is_cuda
        assert torch.equal(found.cpu(), IMAGENET.apply(images))


@pytest.mark.parametrize(("mean", "std"), [(0.5, 1e-320), (0, 1e-39), (1e38, 0.1), ((0, 0, 1e300), (1, 1, 1))])
def test_results_that_float32_cannot_hold_are_refused(mean, std) -> None:
    with pytest.raises(ConfigError, match="too large for float32"):
        Normalize(mean=mean, std=std)


@given(st.floats(0, 1), st.floats(1e-6, 10))
def test_the_difference_to_torchvision_is_rounding(mean, std) -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    theirs = v2.functional.normalize(levels.float() / 255, [mean], [std])
    assert float((Normalize(mean=mean, std=std).apply(levels) - theirs).abs().max()) < 3e-7 / std
