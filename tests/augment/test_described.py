"""Settings as text: equal for equal settings, in any process, and different for different ones."""

import random
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from headrace.augment import ImageAugmenter
from headrace.augment.described import described


def scaled(factor):
    def scale(image):
        return image * factor

    return scale


def shifted(image, by=1, *, twice=False):
    return image + by * (2 if twice else 1)


class Silent:
    """Has no __repr__, and a generator of its own."""

    def __init__(self, table, mode="a") -> None:
        self.table, self.mode, self.rng, self.random = table, mode, np.random.default_rng(), random.Random()

    def __call__(self, image):
        return self.table[image]


class Slotted:
    __slots__ = ("unset", "value")

    def __init__(self, value) -> None:
        self.value = value


@dataclass
class Table:
    values: np.ndarray


class Written(Silent):
    def __repr__(self) -> str:
        return f"<Written {self.mode} at 0x7f00ab>"


LONG = [np.zeros(5000), np.zeros(5000)]
LONG[1][2500] = 9  # where NumPy's repr leaves numbers out
PAIRS = {
    "lambdas": (lambda x: x + 1, lambda x: x + 2),
    "operators": (lambda x: x + 1, lambda x: x - 1),
    "names": (lambda x: np.sin(x), lambda x: np.cos(x)),
    "inner lambdas": (lambda x: (lambda y: y + 1)(x), lambda x: (lambda y: y + 2)(x)),
    "defaults": (lambda x, by=1: x + by, lambda x, by=2: x + by),
    "keyword defaults": (lambda x, *, by=1: x + by, lambda x, *, by=2: x + by),
    "closures": (scaled(1), scaled(2)),
    "closures with arrays": tuple(map(scaled, LONG)),
    "partials": (partial(shifted, by=1), partial(shifted, by=2)),
    "partials with arrays": tuple(partial(np.add, array) for array in LONG),
    "functions": (np.flipud, np.fliplr),
    "ufuncs": (np.sin, np.cos),
    "objects": (Silent(1), Silent(2)),
    "objects with arrays": tuple(map(Silent, LONG)),
    "objects in objects": (Silent(Silent(1)), Silent(Silent(2))),
    "objects of other classes": (Silent(1), Slotted(1)),
    "slots": (Slotted(1), Slotted(2)),
    "dataclasses": tuple(map(Table, LONG)),
    "methods": (Silent(1).__call__, Silent(2).__call__),
    "builtin methods": ("x".join, "y".join),
    "what objects write": (Written(1), Written(1, "b")),
    "arrays of other types": (np.zeros(4, np.uint8), np.zeros(1, np.uint32)),
    "tensors": (torch.zeros(3000), torch.ones(3000)),
    "tensors of other shapes": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "containers": ([1, 2], (1, 2)),
    "sets": ({"a", "b", "c"}, {"a", "b", "d"}),
    "modules with functions": (v2.Lambda(scaled(1)), v2.Lambda(scaled(2))),
    "modules with tensors": tuple(v2.LinearTransformation(torch.eye(3) * n, torch.zeros(3)) for n in (1, 2)),
    "modules in modules": (v2.Compose([v2.RandomRotation(5, fill=[1])]), v2.Compose([v2.RandomRotation(5, fill=[2])])),
    "weights": (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_described_differently(name) -> None:
    one, other = PAIRS[name]
    assert described(one) != described(other)
    assert described(one) == described(one)


def test_what_is_equal_is_described_equally() -> None:
    for make in (scaled, Silent, Slotted, Written, partial(partial, shifted), lambda n: v2.Lambda(scaled(n))):
        assert described(make(3)) == described(make(3))
    assert described({"a", "b"}) == described({"b", "a"})
    assert "0x" not in described(Written(1))
    assert described(shifted) == f"{__name__}.shifted"
    assert described(Silent) == f"{__name__}.Silent"
    assert ImageAugmenter(rotation=shifted).settings[3] == f"{__name__}.shifted"
    assert ImageAugmenter(rotation=scaled(1)).settings != ImageAugmenter(rotation=scaled(2)).settings


def test_what_an_object_draws_is_no_setting() -> None:
    drawing = Silent(1)
    before = described(drawing)
    drawing.rng.random()
    drawing.random.gauss(0, 1)
    assert described(drawing) == before


def test_values_that_hold_themselves_end() -> None:
    own = Silent([])
    own.table.append(own)
    assert described(own) == described(own)

    def later():
        return unset

    assert "later" in described(later)
    unset = 1
    assert "1" in described(later)


def test_other_processes_say_the_same() -> None:
    program = (
        "from headrace.augment.described import described; import sys\n"
        "f = lambda x: x in {'a', 'b', 'c'} and (lambda y: y)(x)\n"
        "print(described([f, {'x', 'y', 'z'}, object()]), 'torch' in sys.modules)"
    )
    found = {subprocess.check_output([sys.executable, "-c", program], text=True) for _ in range(3)}
    assert len(found) == 1
    assert found.pop().endswith(" False\n")
