"""A keyed permutation of 0 .. n-1 whose k-th element costs O(1) time and memory.

A Feistel network permutes pairs (left, right) of a grid of at least n cells by adding to each half in turn a keyed
hash of the other one; a result outside 0 .. n-1 is permuted again until it falls inside ("cycle walking": Black and
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The grid is a x b with a, b close to sqrt(n), so hardly
any result falls outside. The hash is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
number generators", OOPSLA 2014). All arithmetic is on integers, so the order is the same on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from .schema import IntArray

__all__ = ["derive_key", "hash64", "permute"]

# With fewer rounds the permutations of 3 to 6 elements are visibly not uniform (tests/datastores/test_permute.py).
_ROUNDS = 20
_GOLDEN = 0x9E3779B97F4A7C15


def hash64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a bijective 64-bit hash of each element of a uint64 array."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def derive_key(*parts: int) -> int:
    """Return a 64-bit key that depends on every part and on their order.

    Args:
        parts: integers in 0 .. 2**64 - 1, for example seed, purpose and epoch.

    Example:
        >>> derive_key(1, 2) == derive_key(2, 1)
        False
    """
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = hash64((key ^ np.uint64(part)) + np.uint64(_GOLDEN))
    return int(key[0])


def permute(positions: IntArray, sizes: IntArray, keys: NDArray[np.uint64]) -> IntArray:
    """Return element ``positions[i]`` of permutation ``keys[i]`` of 0 .. ``sizes[i]`` - 1, for every i.

    Args:
        positions: int64 (n,), each in 0 .. size - 1.
        sizes: int64 (n,) or (1,), each in 1 .. 2**62.
        keys: uint64 (n,) or (1,).

    Returns:
        int64 (n,).
    """
    limit = sizes.astype(np.uint64)
    rows = np.sqrt(sizes.astype(np.float64)).astype(np.uint64) + np.uint64(1)
    columns = (limit + rows - np.uint64(1)) // rows
    walked = _feistel(positions.astype(np.uint64), rows, columns, keys)
    outside = np.flatnonzero(walked >= limit)
    while outside.size:
        grid = (_pick(rows, outside), _pick(columns, outside), _pick(keys, outside))
        walked[outside] = _feistel(walked[outside], *grid)
        outside = outside[walked[outside] >= _pick(limit, outside)]
    return walked.astype(np.int64)


def _pick(values: NDArray[np.uint64], where: NDArray[np.intp]) -> NDArray[np.uint64]:
    return values if len(values) == 1 else values[where]


def _feistel(
    values: NDArray[np.uint64], rows: NDArray[np.uint64], columns: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    left, right = np.divmod(values, columns)
    numbers = np.arange(1, _ROUNDS + 1, dtype=np.uint64)
    round_keys = hash64(keys + (numbers * np.uint64(_GOLDEN))[:, None])  # (rounds, n) or (rounds, 1)
    for key_of_left, key_of_right in zip(round_keys[0::2], round_keys[1::2], strict=True):
        left = (left + hash64(right + key_of_left) % rows) % rows
        right = (right + hash64(left + key_of_right) % columns) % columns
    return left * columns + right
