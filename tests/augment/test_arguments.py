"""What every value of headrace.augment takes and refuses, in one table."""

import copy
import math
import pickle
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.augment import (
    AutoContrast,
    ColorAugmenter,
    CutMix,
    Draw,
    Equalize,
    GaussianBlur,
    GaussianNoise,
    ImageAugmenter,
    MixUp,
    Posterize,
    RandAugment,
    RandomErasing,
    RandomResizedCrop,
    SaltAndPepperNoise,
    Sharpness,
    Solarize,
    TrivialAugment,
)
from headrace.augment.crop import CenterCrop, Letterbox, RandomCrop, Resize, ResizedCenterCrop
from headrace.augment.ranges import Bounds, as_levels, as_number, as_pair, as_probability, as_range, as_whole
from headrace.errors import ConfigError, HeadraceError

INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Argument:
    """An argument: what it is, and numbers that lie just inside and just outside."""

    owner: type
    name: str
    kind: str  # range, whole range, pair, number, probability, levels, whole
    inside: tuple[float, float]
    outside: tuple[float, ...]
    others: tuple[tuple[str, object], ...] = ()

    def build(self, value: object) -> object:
        return self.owner(**dict(self.others) | {self.name: value})


def _ranges(owner: type, inside: tuple[float, float], outside: tuple[float, ...], *names: str) -> list[Argument]:
    return [Argument(owner, name, "range", inside, outside) for name in names]


SIGMA = (("sigma", 1.0),)
ARGUMENTS = [
    *_ranges(ImageAugmenter, (-1e9, 1e9), (-1.1e9, 1e300), "rotation", "x_translation", "y_translation"),
    *_ranges(ImageAugmenter, (0.001, 1e6), (0, 0.0009, -1, 1e300), "scale", "x_scale", "y_scale"),
    *_ranges(ImageAugmenter, (-89.9, 89.9), (-90, 90), "x_shear", "y_shear"),
    *_ranges(ColorAugmenter, (0.0, 1000.0), (-0.1, 1001), "brightness", "contrast", "saturation"),
    *_ranges(ColorAugmenter, (-0.5, 0.5), (-0.6, 0.6), "hue"),
    *_ranges(ColorAugmenter, (0.01, 100.0), (0, 101), "gamma"),
    *_ranges(GaussianBlur, (0.0, 100.0), (-1, 101), "sigma"),
    *_ranges(GaussianNoise, (0.0, 10.0), (-1, 11), "sigma"),
    *_ranges(Sharpness, (0.0, 1000.0), (-1, 1001), "factor"),
    *_ranges(Solarize, (0.0, 256.0), (-1, 257), "threshold"),
    *_ranges(SaltAndPepperNoise, (0.0, 1.0), (-0.1, 1.1), "amount"),
    *_ranges(RandomErasing, (0.0, 1.0), (-0.1, 1.1), "area"),
    *_ranges(RandomErasing, (0.01, 100.0), (0, 101), "ratio"),
    Argument(Posterize, "bits", "whole range", (1, 8), (0, 9, 1.5)),
    Argument(RandomResizedCrop, "scale", "pair", (0.01, 1.0), (0, 1.1)),
    Argument(RandomResizedCrop, "ratio", "pair", (1e-6, 1e6), (0, 1e308)),
    Argument(ResizedCenterCrop, "fraction", "number", (0.01, 1.0), (0, 1.1)),
    Argument(MixUp, "alpha", "number", (0.01, 100.0), (0, 101)),
    Argument(CutMix, "alpha", "number", (0.01, 100.0), (0, 101)),
    Argument(ImageAugmenter, "x_reflection", "probability", (0.0, 1.0), (-0.1, 1.1)),
    Argument(ImageAugmenter, "y_reflection", "probability", (0.0, 1.0), (-0.1, 1.1)),
    Argument(GaussianBlur, "probability", "probability", (0.0, 1.0), (-0.1, 1.1), SIGMA),
    Argument(RandomErasing, "probability", "probability", (0.0, 1.0), (-0.1, 1.1)),
    Argument(MixUp, "probability", "probability", (0.0, 1.0), (-0.1, 1.1)),
    Argument(CutMix, "probability", "probability", (0.0, 1.0), (-0.1, 1.1)),
    Argument(ImageAugmenter, "fill_value", "levels", (0, 255), (-1, 256)),
    Argument(RandomErasing, "fill", "levels", (0, 255), (-1, 256)),
    *(Argument(owner, "probability", "probability", (0.0, 1.0), (-0.1, 1.1)) for owner in (AutoContrast, Equalize)),
    *(
        Argument(owner, "probability", "probability", (0.0, 1.0), (-0.1, 1.1), ((name, 1),))
        for owner, name in ((Posterize, "bits"), (Solarize, "threshold"), (Sharpness, "factor"))
    ),
    Argument(RandAugment, "num_ops", "whole", (1, 14), (0, 15)),
    Argument(RandAugment, "magnitude", "whole", (0, 30), (-1, 31)),
    Argument(Draw, "seed", "whole", (0, 2**64 - 1), (-1, 2**64)),
    Argument(Draw, "epoch", "whole", (0, 2**32 - 1), (-1, 2**32)),
]
NAMED = pytest.mark.parametrize(
    "argument", [pytest.param(argument, id=f"{argument.owner.__name__}.{argument.name}") for argument in ARGUMENTS]
)

#: What no argument takes.
NONSENSE = [
    None,
    "1",
    b"1",
    "",
    (),
    [],
    {},
    {1, 2},
    1j,
    INF,
    -INF,
    NAN,
    10**400,
    -(10**5000),
    Decimal(1),
    object,
    object(),
]
NONSENSE += [
    "x" * 10_000,
    (1, "2"),
    ("1", "2"),
    (None, 1),
    (NAN, 1),
    (1, NAN),
    (1, INF),
    (-INF, 1),
    ((1, 2), 3),
    slice(1),
]
NONSENSE += [
    np.float64(NAN),
    np.float32(INF),
    np.array(NAN),
    np.array("1"),
    np.str_("1"),
    np.complex128(1),
    np.array([[1, 2]]),
]
NONSENSE += [
    np.array([]),
    np.array([NAN, 1]),
    np.datetime64("2026-01-01"),
    np.array([None, 1]),
    torch.tensor([1.0, 2.0]),
]
#: What some arguments do not take.
PAIRS = [(1, 2, 3), [1], (1.5,), np.array([1.0, 2.0, 3.0])]
TRUTHS = [True, False, np.True_, np.array(False), (True, True), (False, 1), [np.True_, 1]]


def refused(argument: Argument, value: object) -> None:
    if argument.kind == "range" and argument.owner is ImageAugmenter and callable(value):
        return  # a function is one of the things that are allowed there
    with pytest.raises(ConfigError, match=rf"^{argument.name} .*must be .*, got ") as caught:
        argument.build(value)
    assert isinstance(caught.value, HeadraceError)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 420


@NAMED
def test_what_is_no_number_is_refused_by_name(argument: Argument) -> None:
    for value in NONSENSE:
        refused(argument, value)
    for value in argument.outside:
        refused(argument, value)
        refused(argument, np.float64(value))
        refused(argument, (value, argument.inside[1]))
        refused(argument, [argument.inside[0], np.array(value)])
    if argument.kind != "levels":
        for value in PAIRS:
            refused(argument, value)
    for value in TRUTHS:
        if argument.kind != "probability" or isinstance(value, (tuple, list)):
            refused(argument, value)


@NAMED
def test_ranges_are_in_order_and_are_pairs_where_pairs_are_asked_for(argument: Argument) -> None:
    low, high = argument.inside
    if argument.kind in ("range", "whole range", "pair"):
        refused(argument, (high, low))
        refused(argument, np.array([high, low]))
    elif argument.kind != "levels":
        refused(argument, (low, high))
    if argument.kind == "pair":
        refused(argument, high)
        refused(argument, np.float64(high))


@NAMED
def test_numpys_numbers_are_numbers_and_are_kept_as_pythons(argument: Argument) -> None:
    low, high = argument.inside
    whole = argument.kind in ("levels", "whole", "whole range")
    kinds = (np.int64, np.uint64, np.array) if whole else (np.float64, np.longdouble, np.array)
    values = [(kind(end), end) for end in (low, high) for kind in kinds if not (kind is np.int64 and end > 2**63)]
    if argument.kind in ("range", "whole range", "pair", "levels"):
        several = [(low, high), [low, high], (np.float64(low), high), [np.array(low), np.array(high)]]
        if whole:
            several = [(low, high), [low, high], (np.uint8(low), high), np.array([low, high], np.uint8)]
        values = [(value, (low, high)) for value in [*several, np.array([low, high])]] + (
            [] if argument.kind == "pair" else values
        )
    for value, plain in values:
        made, expected = argument.build(value), argument.build(plain)
        kept = getattr(made, argument.name)
        assert kept == plain
        assert {type(one) for one in (kept if isinstance(kept, tuple) else (kept,))} <= {int, float}
        assert made == expected
        assert hash(made) == hash(expected)
        assert repr(made) == repr(expected)


def test_what_is_given_is_what_is_kept() -> None:
    assert ImageAugmenter(scale=2).scale == 2
    assert repr(GaussianBlur(sigma=np.int64(2), probability=1)) == "GaussianBlur(sigma=2, probability=1)"
    assert repr(RandomResizedCrop(scale=[0.5, 1])).startswith("RandomResizedCrop(scale=(0.5, 1), ")
    assert ImageAugmenter(x_reflection=np.True_).x_reflection is True, "a half, and not a probability of 1"
    assert ImageAugmenter(x_reflection=np.array(True)) == ImageAugmenter(x_reflection=True)
    assert ImageAugmenter(x_reflection=np.int64(1)).x_reflection == 1
    assert ImageAugmenter(x_reflection=np.int64(1)).x_reflection is not True
    assert ImageAugmenter(scale=np.float64(1), x_scale=2) == ImageAugmenter(x_scale=2)
    assert ImageAugmenter(scale=np.array([1, 1]), x_scale=np.float32(2)) == ImageAugmenter(scale=(1, 1), x_scale=2)


def test_a_range_that_changes_later_changes_nothing() -> None:
    limits = [0.5, 1.5]
    color, augment = ColorAugmenter(brightness=limits), ImageAugmenter(scale=limits, fill_value=[1, 2])
    limits[0] = 99
    assert color.brightness == augment.scale == (0.5, 1.5)
    assert augment.fill_value == (1, 2)


# -- copies ------------------------------------------------------------------------------------------------------------

IDS, DRAW = np.arange(6), Draw(3, 4)
IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 9, 8), np.uint8))
VALUES = [
    ImageAugmenter(),
    ImageAugmenter(fill_value=(1, 2, 3), x_reflection=True, rotation=[-5, 5], scale=np.float64(2), x_shear=math.sin),
    ColorAugmenter(brightness=[0.5, 1.5], hue=np.float32(0.25), gamma=(0.5, 2)),
    GaussianBlur(sigma=(0.5, np.int64(2)), probability=0.5),
    GaussianNoise(sigma=0.1),
    SaltAndPepperNoise(amount=(0, 0.5)),
    RandomErasing(probability=1, fill=np.array([1, 2, 3])),
    Posterize(bits=[np.int64(1), 3]),
    Solarize(threshold=np.float64(99), probability=0.5),
    Sharpness(factor=(0, 2)),
    AutoContrast(probability=np.float32(0.5)),
    Equalize(),
    TrivialAugment(),
    RandAugment(num_ops=np.int64(2), magnitude=np.array(7)),
    MixUp(alpha=np.float64(0.5)),
    CutMix(probability=np.array(0.5)),
    RandomResizedCrop(scale=[0.5, 1], ratio=np.array([0.5, 2])),
    ResizedCenterCrop(np.float64(0.5)),
    Resize(),
    Letterbox(),
    CenterCrop(),
    RandomCrop(),
    Draw(np.uint64(2**64 - 1), np.int32(7)),
]


def results(value: object) -> list[np.ndarray]:
    """Return what a value does."""
    if isinstance(value, Draw):
        return [value.uniforms(IDS, 1, 4), value.generator(3).random(4)]
    if isinstance(value, (MixUp, CutMix)):
        mixed = value.apply(IMAGES, torch.arange(6), IDS, DRAW)
        return [part.numpy() for part in (mixed.images, mixed.labels, mixed.partner_labels, mixed.weights)]
    if isinstance(value, ImageAugmenter):
        plain = replace(value, x_shear=0) if callable(value.x_shear) else value
        return [plain.sample_matrices(IDS, DRAW)]
    if hasattr(value, "apply"):
        return [value.apply(IMAGES, IDS, DRAW).numpy()]
    return [np.array(value.box((90, 120), (32, 32), [0.3] * value.num_draws))]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, replace, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_is_equal_and_does_the_same(value, again) -> None:
    twin = again(value)
    assert twin == value
    assert repr(twin) == repr(value)
    assert hash(twin) == hash(value)
    assert all(map(np.array_equal, results(twin), results(value)))


@pytest.mark.parametrize("value", [value for value in VALUES if not callable(getattr(value, "x_shear", 0))], ids=repr)
def test_its_text_is_what_makes_it(value) -> None:
    assert eval(repr(value), {kind.__name__: kind for kind in map(type, VALUES)}) == value


# -- the rules themselves ----------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.complex_numbers()
    | st.floats(width=32).map(np.float32)
    | st.integers(0, 300).map(np.int64)
    | st.floats().map(np.array),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
BOUNDS = st.builds(Bounds, st.floats(-10, 1), st.floats(1, 1e300), st.sampled_from(["", "lowest", "both"]))


@given(ANYTHING, BOUNDS)
def test_anything_is_a_number_within_bounds_or_refused(value, bounds: Bounds) -> None:
    checks = [
        lambda: as_number("x", value, bounds),
        lambda: as_range("x", value, bounds),
        lambda: as_pair("x", value, bounds),
        lambda: as_probability("x", value),
        lambda: as_levels("x", value),
        lambda: as_whole("x", value, 0, 9, "0 .. 9"),
    ]
    for check in checks:
        try:
            found = check()
        except ConfigError as error:
            refusal = str(error)
            assert refusal.startswith("x must be ")
            continue
        numbers = found if isinstance(found, tuple) else (found,)
        assert {type(number) for number in numbers} <= {int, float, bool}
        assert all(math.isfinite(number) for number in numbers)
        if check in checks[:3]:
            assert all(number in bounds for number in numbers)
            assert list(numbers) == sorted(numbers)
