"""Blur, noise and erasing: what each does, and that all photometric operations keep the promises of their protocol."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms.v2 import functional

from headrace.augment import (
    AutoContrast,
    ColorAugmenter,
    Draw,
    Equalize,
    GaussianBlur,
    GaussianNoise,
    Posterize,
    RandAugment,
    RandomErasing,
    SaltAndPepperNoise,
    Sharpness,
    Solarize,
    TrivialAugment,
    apply_all,
)
from headrace.augment.noise import noise_bits
from headrace.errors import ConfigError, ShapeError

DRAW = Draw(seed=3, epoch=1)
CPU = torch.device("cpu")
OPERATIONS = [
    ColorAugmenter(brightness=(0.5, 1.5), contrast=(0.5, 1.5), saturation=(0.2, 2), hue=(-0.5, 0.5), gamma=(0.5, 2)),
    GaussianBlur(sigma=(0.1, 2), probability=0.7),
    GaussianNoise(sigma=(0, 0.3)),
    SaltAndPepperNoise(amount=(0, 0.5)),
    RandomErasing(probability=0.7),
    Posterize(bits=(1, 4), probability=0.9),
    Solarize(threshold=(0, 256), probability=0.9),
    AutoContrast(probability=0.5),
    Equalize(probability=0.5),
    Sharpness(factor=(0, 3), probability=0.9),
    TrivialAugment(),
    RandAugment(num_ops=3, magnitude=17),
]
GOLDEN = {
    "GaussianBlur": "59b38db78aeb",
    "GaussianNoise": "60e156dc14b1",
    "SaltAndPepperNoise": "f5b97d3eed26",
    "RandomErasing": "cb42213e5c9e",
    "Posterize": "5335678aee93",
    "Solarize": "f70d29d5f17e",
    "AutoContrast": "46bfa0a7c8c2",
    "Equalize": "60c3bd82ea2f",
    "Sharpness": "a1dd0791f010",
    "TrivialAugment": "965488213d71",
    "RandAugment": "d39b127e86a5",
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)


def pictures(count: int, height: int = 13, width: int = 17, channels: int = 3) -> torch.Tensor:
    """Random pixels in channels-last memory, as batches are."""
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(0, 256, (count, height, width, channels), generator=generator, dtype=torch.uint8)
    return images.permute(0, 3, 1, 2)


# --- the protocol ----------------------------------------------------------------------------------------------------


@each_operation
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 1000), st.integers(1, 9),
    st.sampled_from([(13, 17), (1, 1), (3, 64), (150, 160)]), st.booleans(),
)  # fmt: skip
def test_an_image_does_not_depend_on_its_company_or_its_layout(operation, ids, epoch, size, shape, planar) -> None:
    images = pictures(10, *shape)[ids]
    draw = Draw(1, epoch)
    together = operation.apply(images, np.array(ids), draw)
    other = images.contiguous() if planar else images
    for start in range(0, len(ids), size):
        rows = slice(start, start + size)
        assert torch.equal(operation.apply(other[rows], np.array(ids[rows]), draw), together[rows])


@each_operation
def test_seeds_epochs_and_ids_count_and_the_input_stays(operation) -> None:
    images = pictures(1, 30, 30).expand(12, 3, 30, 30)
    before = images.clone()
    worlds = [Draw(0, 0), Draw(0, 1), Draw(1, 0)]
    found = [operation.apply(images, torch.arange(12), draw) for draw in worlds]
    assert torch.equal(images, before)
    assert len({tensor.numpy().tobytes() for tensor in found}) == 3
    few = isinstance(operation, (AutoContrast, Equalize, Posterize))  # do one thing, or one of four
    assert len({image.numpy().tobytes() for image in found[0]}) >= (2 if few else 6)  # some are left as they are
    assert torch.equal(operation.apply(images, np.arange(12), worlds[0]), found[0])
    assert operation.apply(pictures(0), np.arange(0), DRAW).shape == (0, 3, 13, 17)
    assert operation.apply(pictures(2, channels=1), np.arange(2), DRAW).shape == (2, 1, 13, 17)
    with pytest.raises(ShapeError, match="one id for each image"):
        operation.apply(images, np.arange(3), DRAW)


@pytest.mark.parametrize("operation", OPERATIONS[1:], ids=lambda operation: type(operation).__name__)
def test_golden_pixels_never_change(operation) -> None:
    found = operation.apply(pictures(4), np.array([0, 7, 2**40, 9]), Draw(seed=5, epoch=2))
    digest = hashlib.sha256(found.contiguous().numpy().tobytes()).hexdigest()
    assert digest.startswith(GOLDEN[type(operation).__name__])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@each_operation
def test_a_gpu_gives_the_same_bits(operation) -> None:
    images, ids = pictures(40, 97, 131), torch.arange(40)
    expected = operation.apply(images, ids, DRAW)
    for layout in (images, images.contiguous()):
        found = operation.apply(layout.cuda(), ids, DRAW)
        assert found.is_cuda
        assert torch.equal(found.cpu(), expected)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@each_operation
def test_nothing_waits_for_a_gpu(operation) -> None:
    images, ids = pictures(40, 97, 131).cuda(), torch.arange(40)
    operation.apply(images, ids, DRAW)  # tables are made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        operation.apply(images, ids, DRAW)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- blur ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.7])
def test_blur_is_torchvisions(sigma) -> None:
    images = pictures(3, 40, 50)
    size = 2 * int(np.ceil(3 * sigma)) + 1
    expected = functional.gaussian_blur(images, [size, size], [sigma, sigma])
    found = GaussianBlur(sigma=sigma).apply(images, np.arange(3), DRAW)
    assert (found.int() - expected.int()).abs().max() <= 1  # a tie is rounded the other way
    assert torch.equal(found, expected) or (found != expected).float().mean() < 1e-3


def test_blur_keeps_flat_images_of_any_size_and_may_be_off() -> None:
    for height, width in [(1, 1), (1, 9), (2, 3), (50, 4)]:
        flat = torch.full((2, 3, height, width), 137, dtype=torch.uint8)
        assert torch.equal(GaussianBlur(sigma=3).apply(flat, np.arange(2), DRAW), flat)
    images = pictures(400, 5, 5)
    assert torch.equal(GaussianBlur(sigma=0).apply(images, np.arange(400), DRAW), images)
    blurred = GaussianBlur(sigma=1, probability=0.3).apply(images, np.arange(400), DRAW)
    assert 80 < (blurred != images).flatten(1).any(1).sum() < 160
    sure = GaussianBlur(sigma=1).apply(images, np.arange(400), DRAW)
    unchanged = (blurred == images).flatten(1).all(1)
    assert torch.equal(blurred[~unchanged], sure[~unchanged])


# --- noise -----------------------------------------------------------------------------------------------------------


def test_gaussian_noise_is_normal_and_independent() -> None:
    gray = torch.full((2, 3, 150, 150), 128, dtype=torch.uint8)
    noise = GaussianNoise(sigma=0.1).apply(gray, np.array([4, 5]), DRAW).double() - 128
    assert noise.mean().item() == pytest.approx(0, abs=4 * 25.5 / np.sqrt(noise.numel()))
    assert noise.std().item() == pytest.approx(25.5, rel=4 / np.sqrt(2 * noise.numel()))
    edges = np.arange(-60.5, 61, 11)
    counts = np.histogram(noise.numpy(), np.concatenate(([-np.inf], edges, [np.inf])))[0]
    shares = np.diff(stats.norm(0, 25.5).cdf(np.concatenate(([-np.inf], edges, [np.inf]))))
    assert stats.chisquare(counts, shares * noise.numel()).pvalue > 1e-4
    planes = noise.reshape(6, -1).numpy()
    limit = 4.5 / np.sqrt(planes.shape[1])
    assert np.abs(np.corrcoef(planes) - np.eye(6)).max() < limit  # between samples and channels
    for step in (1, 2, 150):  # between neighbours
        assert abs(np.corrcoef(planes[:, step:].ravel(), planes[:, :-step].ravel())[0, 1]) < limit


def test_noise_bits_are_uniform_and_known() -> None:
    keys = np.array([[1, 2], [1, 3], [-5, 2**31 - 1]], np.int32)
    bits = noise_bits(keys, 50_000, CPU).numpy().view(np.uint32)
    share = [((bits >> np.uint32(bit)) & np.uint32(1)).mean(axis=1) for bit in range(32)]
    assert np.abs(np.array(share) - 0.5).max() < 4.5 * 0.5 / np.sqrt(50_000)
    for row in bits:
        assert stats.kstest(row / 2.0**32, "uniform").pvalue > 1e-4
        pairs = np.histogram2d(row[1:] / 2.0**32, row[:-1] / 2.0**32, bins=16, range=((0, 1), (0, 1)))[0]
        assert stats.chisquare(pairs.ravel()).pvalue > 1e-4
    assert np.abs(np.corrcoef(bits) - np.eye(3)).max() < 4.5 / np.sqrt(50_000)

    def mixed(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    for row, (first, second) in enumerate(keys.tolist()):
        known = [mixed((mixed(i ^ (first % 2**32)) + second) % 2**32) for i in range(50)]
        assert bits[row, :50].tolist() == known


def test_salt_and_pepper_change_as_many_pixels_as_they_say_in_all_channels() -> None:
    images = pictures(3, 100, 100).clamp(1, 254)
    found = SaltAndPepperNoise(amount=0.2).apply(images, np.arange(3), DRAW)
    changed = (found != images).any(1)
    for value in (0, 255):
        mask = (found == value).all(1)
        assert mask.float().mean().item() == pytest.approx(0.1, abs=4.5 * np.sqrt(0.1 * 0.9 / 30_000))
        assert not (mask & ~changed).any()
    assert torch.equal(changed, (found == 0).all(1) | (found == 255).all(1))
    assert torch.equal(SaltAndPepperNoise(amount=0).apply(images, np.arange(3), DRAW), images)
    everything = SaltAndPepperNoise(amount=1).apply(images, np.arange(3), DRAW)
    assert everything.unique().tolist() == [0, 255]


# --- erasing ---------------------------------------------------------------------------------------------------------


def test_erasing_paints_one_rectangle_of_the_wanted_area_and_shape() -> None:
    images = pictures(300, 60, 80).clamp(1)
    found = RandomErasing(probability=0.6, area=(0.1, 0.3), ratio=(0.5, 2)).apply(images, np.arange(300), DRAW)
    erased = (found == 0).all(1)
    hit = erased.flatten(1).any(1)
    assert 140 < hit.sum() < 220
    for mask in erased[hit]:
        height, width = mask.any(1).sum().item(), mask.any(0).sum().item()
        assert mask.sum() == height * width  # a full rectangle
        assert 0.09 < height * width / 4800 < 0.31
        assert 0.45 < width / height < 2.2
    assert torch.equal(found[~hit], images[~hit])
    where = erased.float().mean(0)
    for border in (where[0], where[-1], where[:, 0], where[:, -1]):
        assert border.any()
    assert (found == images).all(1)[~erased].all()


def test_erasing_fills_and_cuts_off() -> None:
    images = pictures(5, 10, 40)
    found = RandomErasing(probability=1, area=1, ratio=1, fill=(1, 2, 3)).apply(images, np.arange(5), DRAW)
    for image in found:
        columns = (image == torch.tensor([1, 2, 3]).view(3, 1, 1)).all(0).all(0)
        assert columns.sum() >= 20
    with pytest.raises(ShapeError, match=r"fill=\(1, 2, 3\) has 3 values, but the images have 1 channels"):
        RandomErasing(fill=(1, 2, 3)).apply(pictures(1, channels=1), np.arange(1), DRAW)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (GaussianBlur, {"sigma": -1}, "sigma must be"),
        (GaussianBlur, {"sigma": 1, "probability": 1.1}, "probability must be"),
        (GaussianNoise, {"sigma": (0.2, 0.1)}, "sigma must be"),
        (SaltAndPepperNoise, {"amount": 1.5}, "amount must be"),
        (RandomErasing, {"area": (0.5, 2)}, "area must be"),
        (RandomErasing, {"ratio": 0}, "ratio must be"),
        (RandomErasing, {"probability": None}, "probability must be"),
        (RandomErasing, {"fill": 256}, "fill must be"),
        (RandomErasing, {"fill": (1, 2.5)}, "fill must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind, wrong, message) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**wrong)


# -- several of them ---------------------------------------------------------------------------------------------------


@each_operation
def test_an_operation_that_occurs_again_draws_again(operation) -> None:
    images, ids, other = pictures(40, 20, 21), np.arange(40), GaussianBlur(sigma=1)
    first = operation.apply(images, ids, DRAW)
    assert torch.equal(apply_all([operation], images, ids, DRAW), first)
    twice = apply_all([operation, operation], images, ids, DRAW)
    assert torch.equal(twice, operation.apply(first, ids, DRAW.fork(1)))
    assert not torch.equal(twice, operation.apply(first, ids, DRAW))
    if not isinstance(operation, GaussianBlur):
        later = other.apply(first, ids, DRAW)
        assert torch.equal(apply_all([operation, other], images, ids, DRAW), later)
        assert torch.equal(
            apply_all([operation, other, operation], images, ids, DRAW), operation.apply(later, ids, DRAW.fork(1))
        )
    assert apply_all([], images, ids, DRAW) is images


def test_kinds_that_share_their_numbers_are_one_kind() -> None:
    class Mine(RandomErasing):
        pass

    images, ids = pictures(30), np.arange(30)
    erased = RandomErasing(probability=1).apply(images, ids, DRAW)
    both = apply_all([RandomErasing(probability=1), Mine(probability=1)], images, ids, DRAW)
    assert torch.equal(both, RandomErasing(probability=1).apply(erased, ids, DRAW.fork(1)))
    policies = apply_all([TrivialAugment(), RandAugment()], images, ids, DRAW)
    assert torch.equal(policies, RandAugment().apply(TrivialAugment().apply(images, ids, DRAW), ids, DRAW.fork(1)))
