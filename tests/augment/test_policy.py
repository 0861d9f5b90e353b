"""TrivialAugment and RandAugment: which operations, how strong, and that each is what torchvision's policy does."""

from collections import Counter

import numpy as np
import pytest
import torch
from pictures import photo
from scipy import stats
from torchvision.transforms import v2

from headrace.augment import Draw, RandAugment, TrivialAugment
from headrace.augment.placement import Placement
from headrace.augment.policy import OPERATIONS, Policy
from headrace.errors import ConfigError, ShapeError

DRAW = Draw(seed=3, epoch=1)
SIZE = (96, 120)
THEIRS = {
    "identity": "Identity", "shear_x": "ShearX", "shear_y": "ShearY", "translate_x": "TranslateX",
    "translate_y": "TranslateY", "rotate": "Rotate", "brightness": "Brightness", "color": "Color",
    "contrast": "Contrast", "sharpness": "Sharpness", "posterize": "Posterize", "solarize": "Solarize",
    "auto_contrast": "AutoContrast", "equalize": "Equalize",
}  # fmt: skip
PAIRS = [(TrivialAugment, v2.TrivialAugmentWide), (RandAugment, v2.RandAugment)]

GOLDEN_TRIVIAL = [("color", 0.934), ("translate_x", 30.0), ("color", 1.0), ("rotate", -31.5)]
GOLDEN_RAND = [
    [("color", 0.73), ("brightness", 1.27)],
    [("translate_x", 30.0), ("translate_y", -30.0)],
    [("color", 0.73), ("brightness", 1.27)],
]


def samples_with(policy: Policy, name: str, count: int = 3) -> list[tuple[int, float]]:
    """Return samples whose first operation is this one, with its amount."""
    drawn = policy.sample_operations(np.arange(400), DRAW, SIZE)
    return [(i, operations[0][1]) for i, operations in enumerate(drawn) if operations[0][0] == name][:count]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_torchvisions(name) -> None:
    policy, theirs = TrivialAugment(), v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)
    image = photo(*SIZE)
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    found = samples_with(policy, name)
    assert len(found) == 3
    for sample, amount in found:
        ids = np.array([sample])
        after = policy.sample_movements(ids, DRAW, SIZE)[0]
        moved = Placement(SIZE, SIZE, (0, 0, SIZE[1], SIZE[0]), (False, False), after).apply(image)
        ours = policy.apply(torch.from_numpy(moved).permute(2, 0, 1)[None], ids, DRAW)[0]
        enhanced = name in ("brightness", "color", "contrast", "sharpness")
        magnitude = amount - 1 if enhanced else amount / 255 if name == "solarize" else amount
        magnitude *= -1 if name.startswith("shear") else 1  # theirs, and Pillow's, measure from output to input
        other = theirs._apply_image_or_video_transform(tensor, THEIRS[name], magnitude, theirs.interpolation, {})
        difference = (ours.int() - other.int()).abs().float()
        if name.startswith("translate") or name in ("identity", "posterize", "solarize", "equalize"):
            assert difference.max() == 0
        elif name in ("rotate", "shear_x", "shear_y"):
            assert difference.mean() < 2.5  # they sample without a filter, and cut off at the border
            assert difference.median() <= 1
        else:
            assert difference.max() <= 2


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_the_ranges_are_torchvisions(ours, theirs) -> None:
    for magnitude in (0, 9, 17, 30):
        for name in OPERATIONS:
            magnitudes, _ = theirs._AUGMENTATION_SPACE[THEIRS[name]]
            known = magnitudes(31, *SIZE)
            expected = 0.0 if known is None else float(known[magnitude])
            for strength in (magnitude / 30, -magnitude / 30):
                amount = ours._space.amount(name, strength, SIZE)
                if name.startswith("translate"):
                    expected = int(expected)
                if name in ("brightness", "color", "contrast", "sharpness"):
                    amount -= 1
                if name == "solarize":
                    amount /= 256  # theirs begins at 255
                if name not in ("posterize", "solarize"):
                    amount *= np.sign(strength)
                assert amount == pytest.approx(expected, abs=1e-6)


def test_operations_strengths_and_signs_are_drawn_uniformly_and_independently() -> None:
    ids = np.arange(14 * 600)
    drawn = [row[0] for row in TrivialAugment().sample_operations(ids, DRAW, SIZE)]
    counts = Counter(name for name, _ in drawn)
    assert set(counts) == set(OPERATIONS)
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    degrees = np.array([amount for name, amount in drawn if name == "rotate"])
    assert stats.chisquare(np.bincount(np.rint(np.abs(degrees) / 4.5).astype(int), minlength=31)).pvalue > 1e-4
    assert abs(np.sign(degrees).sum()) < 4 * np.sqrt(len(degrees))
    pairs = [(row[0][0], row[1][0]) for row in RandAugment().sample_operations(ids, DRAW, SIZE)]
    table = np.zeros((14, 14))
    for first, second in pairs:
        table[OPERATIONS.index(first), OPERATIONS.index(second)] += 1
    assert stats.chisquare(table.ravel()).pvalue > 1e-4
    other = [row[0][0] for row in TrivialAugment().sample_operations(ids, Draw(3, 2), SIZE)]
    same = sum(a == b for (a, _), b in zip(drawn, other, strict=True))
    assert same == pytest.approx(len(ids) / 14, abs=4 * np.sqrt(len(ids) / 14))


def test_golden_operations_never_change() -> None:
    ids = np.array([0, 7, 2**40, 9])
    found = TrivialAugment().sample_operations(ids, Draw(seed=5, epoch=2), (224, 224))
    assert [(name, round(amount, 6)) for ((name, amount),) in found] == GOLDEN_TRIVIAL
    found = RandAugment().sample_operations(ids[:3], Draw(seed=5, epoch=2), (224, 224))
    assert [[(name, round(amount, 6)) for name, amount in row] for row in found] == GOLDEN_RAND


def test_a_sample_does_not_depend_on_its_company() -> None:
    policy = RandAugment(num_ops=3)
    together = policy.sample_operations(np.arange(50), DRAW, SIZE)
    assert [policy.sample_operations(np.array([i]), DRAW, SIZE)[0] for i in range(50)] == together
    assert [row[:2] for row in together] == RandAugment().sample_operations(np.arange(50), DRAW, SIZE)


def test_operations_follow_in_their_order_and_movements_compose() -> None:
    policy = RandAugment(num_ops=2, magnitude=20)
    images = torch.from_numpy(np.stack([photo(*SIZE)] * 60)).permute(0, 3, 1, 2)
    ids = np.arange(60)
    singles = {
        name: sample for name in OPERATIONS for sample, _ in samples_with(RandAugment(num_ops=1, magnitude=20), name, 1)
    }
    results = policy.apply(images, ids, DRAW)
    orders = 0
    for i, operations in enumerate(policy.sample_operations(ids, DRAW, SIZE)):
        (first, _), (second, _) = operations
        if first not in ("posterize", "solarize", "equalize") or second not in ("posterize", "solarize", "equalize"):
            continue  # these have no sign, so any sample with one of them is like any other
        one = RandAugment(num_ops=1, magnitude=20)
        expected = one.apply(images[:1], np.array([singles[first]]), DRAW)
        expected = one.apply(expected, np.array([singles[second]]), DRAW)
        assert torch.equal(results[i], expected[0])
        orders += first != second
    assert orders >= 1


def test_movements_compose_in_their_order() -> None:
    policy = RandAugment(num_ops=2, magnitude=20)
    ids = np.arange(400)
    both = 0
    for (first, second), movement in zip(
        policy.sample_operations(ids, DRAW, SIZE), policy.sample_movements(ids, DRAW, SIZE), strict=True
    ):
        if movement is None or first[0] == "rotate" or second[0] == "rotate":
            continue
        point, moved = np.array([10.0, 20.0]), [False, False]
        for step, (name, amount) in enumerate((first, second)):
            axis = 0 if name.endswith("x") else 1
            if name.startswith("shear"):
                point[axis] += amount * (point[1 - axis] + 0.5)
            elif name.startswith("translate"):
                point[axis] += amount
            moved[step] = name.startswith(("shear", "translate"))
        assert (movement @ [10, 20, 1])[:2] == pytest.approx(point)
        both += all(moved)
    assert both > 10


def test_magnitude_zero_changes_nothing_but_tones_made_from_the_image() -> None:
    policy = RandAugment(num_ops=1, magnitude=0)
    images = torch.from_numpy(np.stack([photo(*SIZE)] * 80)).permute(0, 3, 1, 2)
    drawn = policy.sample_operations(np.arange(80), DRAW, SIZE)
    assert policy.sample_movements(np.arange(80), DRAW, SIZE) == [None] * 80
    for image, changed, ((name, _),) in zip(images, policy.apply(images, np.arange(80), DRAW), drawn, strict=True):
        assert torch.equal(image, changed) or name in ("auto_contrast", "equalize")


def test_gray_images_have_no_color_and_other_ones_are_refused() -> None:
    policy = TrivialAugment()
    gray = torch.from_numpy(np.stack([photo(*SIZE)[..., :1]] * 50)).permute(0, 3, 1, 2)
    names = [row[0][0] for row in policy.sample_operations(np.arange(50), DRAW, SIZE)]
    changed = policy.apply(gray, np.arange(50), DRAW)
    assert all(torch.equal(a, b) for a, b, name in zip(gray, changed, names, strict=True) if name == "color")
    with pytest.raises(ShapeError, match="1 or 3 channels"):
        policy.apply(torch.zeros(1, 4, 8, 8, dtype=torch.uint8), np.arange(1), DRAW)


@pytest.mark.parametrize(
    "wrong", [{"num_ops": 0}, {"num_ops": 2.0}, {"num_ops": True}, {"magnitude": 31}, {"magnitude": None}]
)
def test_settings_that_cannot_work_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be a whole number"):
        RandAugment(**wrong)
