"""Which samples are built into which set, and in what order: arithmetic on their positions and a seed.

Orders are keyed permutations (``datastores/permute.py``), so nothing is held but 8 bytes a sample, and the same seed
gives the same order on every machine.
"""

import argparse
import re
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..datastores.schema import IntArray

__all__ = ["Shares", "divide", "parse_shares", "shuffled"]

#: Name of each part and its share of the samples.
Shares = tuple[tuple[str, Fraction], ...]

_SPLIT, _SHUFFLE = 0x53504C49, 0x53485546  # what a permutation is for; part of every result
_HALF = Fraction(1, 2)


def parse_shares(text: str) -> Shares:
    """Read ``train=0.9,val=0.1``.

    Raises:
        argparse.ArgumentTypeError: a name or a number is none, or they do not sum up to 1.

    Example:
        >>> parse_shares("train=0.9,val=0.1")
        (('train', Fraction(9, 10)), ('val', Fraction(1, 10)))
    """
    parts = [part.partition("=") for part in text.split(",")]
    for name, _, share in parts:
        if not re.fullmatch(r"[A-Za-z0-9][\w-]{0,99}", name, re.ASCII) or not re.fullmatch(
            r"0?\.[0-9]{1,9}|[1-9][0-9]{0,5}/[1-9][0-9]{0,5}", share
        ):
            raise argparse.ArgumentTypeError(f"{text!r} is no split: write train=0.9,val=0.1 or train=2/3,val=1/3")
    shares = tuple((name, Fraction(share)) for name, _, share in parts)
    total = sum(share for _, share in shares)
    if total != 1 or any(share <= 0 for _, share in shares) or len({name.lower() for name, _ in shares}) < len(shares):
        raise argparse.ArgumentTypeError(f"{text!r}: names must differ, shares be above 0 and sum up to 1")
    return shares


def divide(ids: "IntArray", shares: Shares, seed: int, labels: "IntArray | None" = None) -> "list[IntArray]":
    """Return the ids of each part, in ascending order.

    Args:
        ids: int64 (n,), ascending.
        shares: of the parts; boundaries are rounded to the nearest sample.
        seed: 0 .. 2**64 - 1.
        labels: int64, by id; each label's samples are divided on their own.

    Example:
        >>> import numpy as np
        >>> shares = parse_shares("train=0.75,val=0.25")
        >>> [len(part) for part in divide(np.arange(8), shares, seed=0, labels=np.array([0] * 4 + [1] * 4))]
        [6, 2]
    """
    import numpy as np

    from ..datastores.permute import derive_key

    known = np.zeros(len(ids), np.int64) if labels is None else labels[ids]
    parts: list[list[IntArray]] = [[] for _ in shares]
    for label in np.unique(known).tolist():
        group = _permuted(ids[known == label], derive_key(seed, _SPLIT, label % 2**64))
        ends = [int(end * len(group) + _HALF) for end in accumulate((share for _, share in shares), initial=Fraction())]
        for part, (start, end) in zip(parts, pairwise(ends), strict=True):
            part.append(group[start:end])
    return [np.sort(np.concatenate([ids[:0], *part])) for part in parts]


def shuffled(ids: "IntArray", seed: int) -> "IntArray":
    """Return ids in an order that depends on the seed and on their number."""
    from ..datastores.permute import derive_key

    return _permuted(ids, derive_key(seed, _SHUFFLE))


def _permuted(ids: "IntArray", key: int) -> "IntArray":
    import numpy as np

    from ..datastores.permute import permute

    if not len(ids):
        return ids
    return ids[permute(np.arange(len(ids)), np.array([len(ids)]), np.array([key], np.uint64))]
