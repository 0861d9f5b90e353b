"""A parameter that is a number or a range: checked once, then drawn for many samples at once."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

__all__ = ["Range", "check_probability", "check_range", "draw_range"]

#: Always the same number, or uniform between two ends.
Range: TypeAlias = float | tuple[float, float]


def check_range(name: str, value: object, lowest: float, highest: float) -> None:
    """Accept a number, or a pair (lo, hi) with lo <= hi, within lowest .. highest.

    Raises:
        ConfigError: it is something else; the message calls it ``name``.
    """
    ends = value if isinstance(value, (tuple, list)) else (value, value)
    numbers = len(ends) == 2 and all(isinstance(end, (int, float, np.integer, np.floating)) for end in ends)
    if not numbers or not lowest <= ends[0] <= ends[1] <= highest:
        raise ConfigError(
            f"{name} must be a number in {lowest:g} .. {highest:g}, or a range (lo, hi) of such, got {value!r}"
        )


def check_probability(value: object) -> None:
    """Accept a number in 0 .. 1.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, (int, float, np.integer, np.floating)) or not 0 <= value <= 1:
        raise ConfigError(f"probability must be a number in 0 .. 1, got {value!r}")


def draw_range(value: Range, uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn numbers in [0, 1) into numbers of the range.

    Example:
        >>> draw_range((1, 3), np.array([0.0, 0.5])).tolist()
        [1.0, 2.0]
    """
    low, high = value if isinstance(value, (tuple, list)) else (value, value)
    return low + (high - low) * uniforms
