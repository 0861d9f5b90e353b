"""MixUp and CutMix: exact mixtures, honest labels, the same batch for any number of ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.nn.functional import cross_entropy

from headrace.augment import CutMix, Draw, MixUp
from headrace.augment.mix import Mixed, beta_quantiles
from headrace.errors import ConfigError, ShapeError

DRAW = Draw(seed=3, epoch=1)
KINDS = [MixUp(alpha=0.7, probability=0.8), CutMix(probability=0.8)]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
GOLDEN = {
    "MixUp": [[0.958647, 0.006636, 0.263984, 0.819152, 0.352636, 0.175723], [108, 107, 127, 133, 143, 198]],
    "CutMix": [[0.714286, 0.857143, 0.928571, 0.992063, 0.904762, 0.714286], [107, 129, 70, 147, 218, 102]],
}


def batch(count: int, height: int = 9, width: int = 14) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random images in channels-last memory, their labels and their ids."""
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 5, (count,), generator=generator)
    return images.permute(0, 3, 1, 2), labels, torch.randint(0, 10**6, (count,), generator=generator)


def swapped(count: int) -> torch.Tensor:
    return torch.tensor([i ^ 1 if i ^ 1 < count else i for i in range(count)], dtype=torch.int64)


def same(first: Mixed, second: Mixed) -> bool:
    names = ("images", "labels", "partner_labels", "weights")
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 40])
def test_mixup_blends_neighbours_by_the_weights(count) -> None:
    images, labels, ids = batch(count)
    mixed = KINDS[0].apply(images, labels, ids, DRAW)
    weights = mixed.weights.double().view(-1, 1, 1, 1)
    expected = weights * images.double() + (1 - weights) * images[swapped(count)].double()
    assert mixed.images.dtype == torch.uint8
    assert ((mixed.images.double() - expected).abs() <= 0.501).all()
    assert torch.equal(mixed.labels, labels)
    assert torch.equal(mixed.partner_labels, labels[swapped(count)])
    if count % 2:
        assert mixed.weights[-1] == 1
        assert torch.equal(mixed.images[-1], images[-1])


def test_cutmix_pastes_one_rectangle_and_weighs_by_its_pixels() -> None:
    count = 200
    labels, ids = torch.arange(count), torch.arange(count)
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 3, 20, 31)
    mixed = CutMix(probability=0.8).apply(images, labels, ids, DRAW)
    pasted = mixed.images == (labels ^ 1).view(-1, 1, 1, 1)
    assert (pasted | (mixed.images == images)).all()
    for mask, weight in zip(pasted[:, 0], mixed.weights.tolist(), strict=True):
        assert mask.sum() == mask.any(0).sum() * mask.any(1).sum()  # a full rectangle
        assert weight == pytest.approx(1 - mask.float().mean().item(), abs=1e-6)
    assert 20 < (mixed.weights == 1).sum() < 70
    reached = pasted[:, 0].any(0)
    assert reached.all()


@each_kind
@given(st.integers(0, 7), st.integers(1, 4), st.integers(0, 1000))
def test_a_batch_is_the_same_for_any_ranks_with_an_even_number_of_rows(kind, half, ranks, epoch) -> None:
    rows = 2 * half
    images, labels, ids = batch(rows * ranks)
    draw = Draw(1, epoch)
    whole = kind.apply(images, labels, ids, draw)
    for rank in range(ranks):
        part = slice(rank * rows, (rank + 1) * rows)
        found = kind.apply(images[part].contiguous(), labels[part], ids[part], draw)
        expected = Mixed(whole.images[part], whole.labels[part], whole.partner_labels[part], whole.weights[part])
        assert same(found, expected)


@each_kind
def test_rows_that_pad_are_mixed_with_nothing(kind) -> None:
    images, labels, ids = batch(8)
    valid = torch.tensor([True] * 5 + [False] * 3)
    mixed = kind.apply(images, labels, ids, DRAW, valid)
    assert torch.equal(mixed.images[4:], images[4:])
    assert mixed.weights[4:].tolist() == [1] * 4
    assert torch.equal(mixed.images[:4], kind.apply(images, labels, ids, DRAW).images[:4])
    shorter = kind.apply(images[:5], labels[:5], ids[:5], DRAW)
    assert same(shorter, Mixed(mixed.images[:5], labels[:5], mixed.partner_labels[:5], mixed.weights[:5]))


@each_kind
def test_golden_mixtures_never_change(kind) -> None:
    images, labels, ids = batch(6)
    mixed = kind.apply(images, labels, ids, Draw(seed=5, epoch=2))
    found = [round(weight, 6) for weight in mixed.weights.tolist()], mixed.images[:, 0, 4, 6].tolist()
    assert list(found) == GOLDEN[type(kind).__name__]


@each_kind
def test_epochs_and_seeds_mix_anew_and_the_input_stays(kind) -> None:
    images, labels, ids = batch(30)
    before = images.clone()
    worlds = [kind.apply(images, labels, ids, draw).weights for draw in (Draw(0, 0), Draw(0, 1), Draw(1, 0))]
    assert torch.equal(images, before)
    assert not torch.equal(worlds[0], worlds[1])
    assert not torch.equal(worlds[0], worlds[2])


def test_targets_are_what_two_weighted_losses_say() -> None:
    mixed = KINDS[0].apply(*batch(10), DRAW)
    outputs = torch.randn(10, 5, generator=torch.Generator().manual_seed(0))
    first = cross_entropy(outputs, mixed.labels, reduction="none")
    second = cross_entropy(outputs, mixed.partner_labels, reduction="none")
    expected = (mixed.weights * first + (1 - mixed.weights) * second).mean()
    assert cross_entropy(outputs, mixed.targets(5)).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0, 100.0])
def test_shares_follow_the_beta_distribution(alpha) -> None:
    uniforms = np.concatenate((np.linspace(0, 1, 1001), DRAW.uniforms(np.arange(2000), 6, 1)[:, 0]))
    assert np.abs(beta_quantiles(uniforms, alpha) - stats.beta(alpha, alpha).ppf(uniforms)).max() < 1e-4
    images = torch.zeros(4000, 1, 1, 1, dtype=torch.uint8)
    weights = MixUp(alpha=alpha).apply(images, torch.zeros(4000, dtype=torch.int64), np.arange(4000), DRAW).weights
    if alpha >= 0.2:  # else float32 and quantiles near 1 make ties
        assert stats.kstest(weights.double().numpy(), stats.beta(alpha, alpha).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(weights[1:], weights[:-1])[0, 1]) < 4.5 / np.sqrt(4000)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@each_kind
def test_a_gpu_gives_the_same_bits(kind) -> None:
    images, labels, ids = batch(41, 60, 70)
    expected = kind.apply(images, labels, ids, DRAW)
    found = kind.apply(images.cuda(), labels.cuda(), ids, DRAW)
    assert found.images.is_cuda
    assert same(
        Mixed(found.images.cpu(), found.labels.cpu(), found.partner_labels.cpu(), found.weights.cpu()), expected
    )


@each_kind
def test_what_does_not_belong_together_is_refused(kind) -> None:
    images, labels, ids = batch(4)
    with pytest.raises(ShapeError, match="one id for each image"):
        kind.apply(images, labels, ids[:3], DRAW)
    with pytest.raises(ShapeError, match=r"got labels \(3,\), valid None for 4 images"):
        kind.apply(images, labels[:3], ids, DRAW)
    with pytest.raises(ShapeError, match=r"valid \(3,\) for 4 images"):
        kind.apply(images, labels, ids, DRAW, torch.ones(3, dtype=torch.bool))
    for wrong in ({"alpha": 0}, {"alpha": 200}, {"probability": 2}):
        with pytest.raises(ConfigError, match="must be a number"):
            type(kind)(**wrong)


@pytest.mark.parametrize("labels", [([0, 3], [1, 0]), ([0, 1], [3, 0]), ([-1, 1], [0, 0])])
def test_labels_that_are_no_classes_are_refused(labels) -> None:
    own, partner = map(torch.tensor, labels)
    mixed = Mixed(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), own, partner, torch.tensor([0.5, 0.5]))
    with pytest.raises(ConfigError, match=r"classes=3 needs labels in 0 .. 2, got -?\d .. \d"):
        mixed.targets(3)
    assert Mixed(mixed.images[:0], own[:0], partner[:0], own[:0].float()).targets(3).shape == (0, 3)
