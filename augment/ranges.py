"""Arguments that are numbers or ranges: checked once and kept as Python's own, then drawn for many samples at once."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

__all__ = [
    "Bounds",
    "Range",
    "as_levels",
    "as_number",
    "as_pair",
    "as_probability",
    "as_range",
    "as_whole",
    "draw_range",
    "shown",
]

#: Always the same number, or uniform between two ends.
Range: TypeAlias = float | tuple[float, float]

_EXACT = 2**53  # whole numbers below are floats as well


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a number may lie.

    Args:
        lowest: the lower end, finite.
        highest: the upper end, finite.
        excluded: which of the ends do not belong to it: "", "lowest" or "both".

    Example:
        >>> str(Bounds(0, 1, "lowest")), 0 in Bounds(0, 1), 0 in Bounds(0, 1, "lowest")
        ('in 0 .. 1 (0 excluded)', True, False)
    """

    lowest: float
    highest: float
    excluded: str = ""

    def __contains__(self, number: float) -> bool:
        above = number > self.lowest if self.excluded else number >= self.lowest
        below = number < self.highest if self.excluded == "both" else number <= self.highest
        return above and below

    def __str__(self) -> str:
        ends = {"": "", "lowest": f" ({self.lowest:g} excluded)", "both": " (both excluded)"}
        return f"in {self.lowest:g} .. {self.highest:g}{ends[self.excluded]}"


_SHARE = Bounds(0, 1)


def as_number(name: str, value: object, bounds: Bounds) -> float:
    """Return a number within bounds as an int or float of Python.

    Args:
        name: what an error shall call it.
        value: what was given: a number of Python or NumPy, also an array without axes. True and False are none.
        bounds: where it may lie.

    Raises:
        ConfigError: it is something else.

    Example:
        >>> as_number("alpha", np.float32(0.5), Bounds(0, 1))
        0.5
    """
    number = _plain(value)
    if _is_number(number) and number in bounds:
        return int(number) if isinstance(number, int) and abs(number) < _EXACT else float(number)
    raise ConfigError(f"{name} must be a number {bounds}, got {shown(value)}")


def as_range(name: str, value: object, bounds: Bounds, also: str = "") -> Range:
    """Return a number, or a range (lo, hi) with lo <= hi, within bounds; arguments as for ``as_number``.

    Args:
        name: what an error shall call it.
        value: what was given; a range may be a tuple, a list or an array.
        bounds: where both ends may lie.
        also: what else is allowed, for the error.

    Raises:
        ConfigError: it is something else.

    Example:
        >>> as_range("rotation", [np.int64(-5), 5], Bounds(-90, 90))
        (-5, 5)
    """
    plain = _plain(value)
    if _is_number(plain) and plain in bounds:
        return as_number(name, plain, bounds)
    if _is_pair(plain, bounds):
        return as_number(name, plain[0], bounds), as_number(name, plain[1], bounds)
    raise ConfigError(f"{name} must be a number {bounds}, or a range (lo, hi) of such{also}, got {shown(value)}")


def as_pair(name: str, value: object, bounds: Bounds) -> tuple[float, float]:
    """Return two numbers (lo, hi) with lo <= hi within bounds; arguments and errors as for ``as_range``."""
    plain = _plain(value)
    if not _is_pair(plain, bounds):
        raise ConfigError(f"{name} must be a range (lo, hi) of numbers {bounds}, got {shown(value)}")
    return as_number(name, plain[0], bounds), as_number(name, plain[1], bounds)


def as_probability(name: str, value: object) -> float:
    """Return a number in 0 .. 1 as Python's own; True and False stay what they are.

    Raises:
        ConfigError: it is something else.
    """
    plain = _plain(value)
    return plain if isinstance(plain, bool) else as_number(name, plain, _SHARE)


def as_whole(name: str, value: object, lowest: int, highest: int, wanted: str) -> int:
    """Return a whole number of Python or NumPy in lowest .. highest; ``wanted`` says so in an error.

    Raises:
        ConfigError: it is something else, or True or False.
    """
    plain = _plain(value)
    if isinstance(plain, int) and not isinstance(plain, bool) and lowest <= plain <= highest:
        return int(plain)
    raise ConfigError(f"{name} must be a whole number in {wanted}, got {shown(value)}")


def as_levels(name: str, value: object) -> int | tuple[int, ...]:
    """Return a level of brightness, or one per channel.

    Args:
        name: what an error shall call it.
        value: a whole number in 0 .. 255, or several in a tuple, a list or an array.

    Raises:
        ConfigError: it is something else.

    Example:
        >>> as_levels("fill", np.array([1, 2, 3]))
        (1, 2, 3)
    """
    plain = _plain(value)
    several = plain if isinstance(plain, (tuple, list)) else [plain]
    levels = [_plain(level) for level in several]
    if not levels or not all(isinstance(level, int) and _is_number(level) and 0 <= level <= 255 for level in levels):
        raise ConfigError(
            f"{name} must be a whole number in 0 .. 255, or a tuple of one per channel, got {shown(value)}"
        )
    return tuple(map(int, levels)) if isinstance(plain, (tuple, list)) else int(levels[0])


def draw_range(value: Range, uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn numbers in [0, 1) into numbers of the range.

    Example:
        >>> draw_range((1, 3), np.array([0.0, 0.5])).tolist()
        [1.0, 2.0]
    """
    low, high = value if isinstance(value, tuple) else (value, value)
    return low + (high - low) * uniforms


def shown(value: object) -> str:
    """Return what an error says of a value, however large it is."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of more than 4300 digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _plain(value: object) -> Any:
    """Return NumPy's numbers and arrays as Python's numbers and lists, and all else as it is."""
    if isinstance(value, np.floating):
        return float(value)  # tolist would leave a longdouble as it is
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_pair(value: object, bounds: Bounds) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    low, high = map(_plain, value)
    return _is_number(low) and _is_number(high) and low in bounds and high in bounds and low <= high
