"""The keyed permutation: a bijection, uniform even on tiny domains, independent of batching."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.datastores.permute import derive_key, hash64, permute


def _one(size: int, key: int) -> np.ndarray:
    return permute(np.arange(size), np.array([size]), np.array([key], np.uint64))


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_is_a_bijection(size: int, key: int) -> None:
    assert sorted(_one(size, key).tolist()) == list(range(size))


@given(size=st.integers(1, 2**62), key=st.integers(0, 2**64 - 1), position=st.integers(0, 2**62))
def test_stays_inside_any_domain(size: int, key: int, position: int) -> None:
    result = permute(np.array([position % size]), np.array([size]), np.array([key], np.uint64))
    assert 0 <= result[0] < size


def test_elements_do_not_depend_on_what_is_computed_beside_them() -> None:
    sizes = np.array([7, 1000, 12, 5_000_000_000])
    keys = np.array([1, 2, 3, 4], np.uint64)
    together = permute(np.array([3, 999, 0, 4_999_999_999]), sizes, keys)
    alone = [
        permute(np.array([p]), sizes[i : i + 1], keys[i : i + 1])[0] for i, p in enumerate([3, 999, 0, 4_999_999_999])
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_tiny_domain_is_equally_likely(size: int) -> None:
    keys = hash64(np.arange(30_000, dtype=np.uint64))
    columns = [permute(np.full(len(keys), i), np.array([size]), keys) for i in range(size)]
    orders, counts = np.unique(np.stack(columns, 1), axis=0, return_counts=True)
    assert len(orders) == math.factorial(size) == len(list(itertools.permutations(range(size))))
    expected = len(keys) / len(orders)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(orders) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4


def test_a_large_order_looks_random() -> None:
    order = _one(100_000, derive_key(1, 2))
    correlation = np.corrcoef(np.arange(order.size), order)[0, 1]
    assert abs(correlation) < 0.02
    neighbours = np.abs(np.diff(order)) == 1  # about 2 of them in a random order
    assert neighbours.sum() < 15


def test_keys_depend_on_every_part_and_their_order() -> None:
    parts = [(), (0,), (0, 0), (1, 0), (0, 1), (2**64 - 1,)]
    assert len({derive_key(*p) for p in parts}) == len(parts)
