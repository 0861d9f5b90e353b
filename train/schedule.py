"""How the learning rate changes during a run: factors that are pure functions of the step."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from ..errors import ConfigError

__all__ = [
    "Chain",
    "Cosine",
    "Cyclical",
    "Exponential",
    "Piecewise",
    "Polynomial",
    "Schedule",
    "Span",
    "Unit",
    "Warmup",
    "scaled_rate",
]

Unit: TypeAlias = Literal["epoch", "step"]


@dataclass(frozen=True, slots=True)
class Span:
    """What a schedule may know of the run.

    Args:
        steps: optimizer steps that the schedule has to fill; the whole run, or what earlier parts of a ``Chain`` left.
        steps_per_epoch: of the run.
    """

    steps: int
    steps_per_epoch: int


@runtime_checkable
class Schedule(Protocol):
    """Gives the factor by which the optimizer's own learning rates are multiplied."""

    def factor(self, step: int, span: Span) -> float:
        """Return the factor of the step that follows ``step`` earlier ones (0 <= step)."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """From a part of the rate up to all of it, in a straight line; then all of it.

    Args:
        steps: that the way up takes.
        first: factor of the first step, in 0 .. 1.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> [round(Warmup(4, first=0.2).factor(step, Span(100, 10)), 2) for step in range(6)]
        [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    """

    steps: int = 5
    first: float = 0.1

    def __post_init__(self) -> None:
        _check_whole("steps", self.steps)
        _check_between("first", self.first, 0, 1)

    @property
    def length(self) -> int:
        """Steps after which the next part of a ``Chain`` begins."""
        return self.steps

    def factor(self, step: int, span: Span) -> float:  # noqa: ARG002 - the same for any run
        """See ``Schedule``."""
        return self.first + (1 - self.first) * min(1.0, step / self.steps)


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Constant, and multiplied by ``drop`` after every ``every`` epochs or steps.

    Args:
        drop: the factor of each drop, above 0.
        every: epochs or steps between two drops.
        unit: what ``every`` counts.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> [round(Piecewise(0.1, every=2).factor(step, Span(60, 10)), 3) for step in (0, 19, 20, 59)]
        [1.0, 1.0, 0.1, 0.01]
    """

    drop: float = 0.1
    every: int = 10
    unit: Unit = "epoch"

    def __post_init__(self) -> None:
        _check_above("drop", self.drop)
        _check_whole("every", self.every)
        _check_unit(self.unit)

    def factor(self, step: int, span: Span) -> float:
        """See ``Schedule``."""
        return float(self.drop) ** (_in_unit(step, self.unit, span) // self.every)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Multiplied by ``gamma`` after every epoch or step.

    Args:
        gamma: above 0.
        unit: "epoch" or "step".

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> [Exponential(0.5).factor(step, Span(30, 10)) for step in (9, 10, 20)]
        [1.0, 0.5, 0.25]
    """

    gamma: float
    unit: Unit = "epoch"

    def __post_init__(self) -> None:
        _check_above("gamma", self.gamma)
        _check_unit(self.unit)

    def factor(self, step: int, span: Span) -> float:
        """See ``Schedule``."""
        return float(self.gamma) ** _in_unit(step, self.unit, span)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """last + (1 - last) * (1 - k / N) ** power, over the N steps of the run; a straight line for power 1.

    Args:
        power: above 0.
        last: factor at the end, at least 0.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> [Polynomial().factor(step, Span(10, 5)) for step in (0, 5, 10)]
        [1.0, 0.5, 0.0]
    """

    power: float = 1.0
    last: float = 0.0

    def __post_init__(self) -> None:
        _check_above("power", self.power)
        _check_between("last", self.last, 0, math.inf)

    def factor(self, step: int, span: Span) -> float:
        """See ``Schedule``."""
        left = max(0.0, 1 - step / span.steps)
        return self.last + (1 - self.last) * math.pow(left, self.power)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from 1 down to ``last``, over the whole run or again and again.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.

    Args:
        last: factor at the end, at least 0.
        period: epochs or steps of the first way down; None: the whole run, once.
        growth: by which each further period is longer, at least 1.
        unit: what ``period`` counts.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> [round(Cosine().factor(step, Span(100, 10)), 3) for step in (0, 50, 100)]
        [1.0, 0.5, 0.0]
        >>> [round(Cosine(period=2, growth=2).factor(step, Span(100, 10)), 3) for step in (0, 10, 20, 40)]
        [1.0, 0.5, 1.0, 0.5]
    """

    last: float = 0.0
    period: int | None = None
    growth: float = 1.0
    unit: Unit = "epoch"

    def __post_init__(self) -> None:
        _check_between("last", self.last, 0, math.inf)
        if self.period is not None:
            _check_whole("period", self.period)
        _check_between("growth", self.growth, 1, math.inf)
        _check_unit(self.unit)

    def factor(self, step: int, span: Span) -> float:
        """See ``Schedule``."""
        if self.period is None:
            share = min(1.0, step / span.steps)
        else:
            share = self._share_of_period(step, self.period * (span.steps_per_epoch if self.unit == "epoch" else 1))
        return self.last + (1 - self.last) * (1 + math.cos(math.pi * share)) / 2

    def _share_of_period(self, step: float, length: float) -> float:
        while step >= length:
            step -= length
            length *= self.growth
        return step / length


@dataclass(frozen=True, slots=True)
class Cyclical:
    """Up from 1 to ``highest`` and down again in straight lines, again and again.

    Source: Smith, "Cyclical Learning Rates for Training Neural Networks", 2017.

    Args:
        highest: factor at the top, above 0.
        period: epochs or steps of one cycle.
        up: share of a cycle that goes up, in 0 .. 1 (both excluded).
        unit: what ``period`` counts.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> [Cyclical(3.0, period=4, unit="step").factor(step, Span(100, 10)) for step in range(5)]
        [1.0, 2.0, 3.0, 2.0, 1.0]
    """

    highest: float
    period: int
    up: float = 0.5
    unit: Unit = "epoch"

    def __post_init__(self) -> None:
        _check_above("highest", self.highest)
        _check_whole("period", self.period)
        if not 0 < self.up < 1:
            raise ConfigError(f"up must be in 0 .. 1 (both excluded), got {self.up!r}")
        _check_unit(self.unit)

    def factor(self, step: int, span: Span) -> float:
        """See ``Schedule``."""
        length = self.period * (span.steps_per_epoch if self.unit == "epoch" else 1)
        share = step % length / length
        height = share / self.up if share < self.up else (1 - share) / (1 - self.up)
        return 1 + (self.highest - 1) * height


@dataclass(frozen=True, slots=True, init=False)
class Chain:
    """One schedule after the other; each counts its steps from its own start, and the last one fills the run.

    Args:
        parts: schedules; all but the last one are a ``Warmup``, or a pair (schedule, steps that it lasts).

    Raises:
        ConfigError: there are none, or a part but the last has no length.

    Example:
        >>> chain = Chain(Warmup(2, first=0.5), Cosine())
        >>> [round(chain.factor(step, Span(12, 6)), 3) for step in (0, 1, 2, 7, 12)]
        [0.5, 0.75, 1.0, 0.5, 0.0]
    """

    parts: tuple[tuple[Schedule, int], ...]

    def __init__(self, *parts: Schedule | tuple[Schedule, int]) -> None:
        if not parts:
            raise ConfigError("Chain needs at least one schedule")
        pairs = [_with_length(part, is_last=number == len(parts) - 1) for number, part in enumerate(parts)]
        object.__setattr__(self, "parts", tuple(pairs))

    def factor(self, step: int, span: Span) -> float:
        """See ``Schedule``."""
        start = 0
        for schedule, length in self.parts[:-1]:
            if step < start + length:
                return schedule.factor(step - start, Span(length, span.steps_per_epoch))
            start += length
        return self.parts[-1][0].factor(step - start, Span(max(1, span.steps - start), span.steps_per_epoch))


def _with_length(part: Schedule | tuple[Schedule, int], *, is_last: bool) -> tuple[Schedule, int]:
    schedule, length = part if isinstance(part, tuple) else (part, getattr(part, "length", 0))
    if isinstance(schedule, type) or not isinstance(schedule, Schedule):
        raise ConfigError(f"Chain is made of schedules, and {schedule!r} is none")
    if not is_last:
        if not length:
            raise ConfigError(f"how long does {schedule!r} last in this Chain? Write ({schedule!r}, steps)")
        _check_whole("the length of a part of a Chain", length)
    return schedule, length


def scaled_rate(
    rate: float, batch_size: int, *, reference: int = 256, rule: Literal["linear", "sqrt"] = "linear"
) -> float:
    """Return a learning rate for another batch size; headrace never does this by itself.

    Sources: "linear", Goyal et al., "Accurate, Large Minibatch SGD", 2017 (with a warm-up); "sqrt", Krizhevsky, "One
    weird trick", 2014 (usual for Adam).

    Args:
        rate: the rate that is right for ``reference``.
        batch_size: the global batch size that is used.
        reference: the global batch size that ``rate`` is for.
        rule: "linear" or "sqrt", in the ratio of the two sizes.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> scaled_rate(0.1, 1024), scaled_rate(0.1, 1024, rule="sqrt")
        (0.4, 0.2)
    """
    _check_whole("batch_size", batch_size)
    _check_whole("reference", reference)
    if rule not in ("linear", "sqrt"):
        raise ConfigError(f'rule must be "linear" or "sqrt", got {rule!r}')
    ratio = batch_size / reference
    return rate * (ratio if rule == "linear" else math.sqrt(ratio))


def _in_unit(step: int, unit: Unit, span: Span) -> int:
    return step // span.steps_per_epoch if unit == "epoch" else step


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")


def _check_above(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, got {value!r}")


def _check_between(name: str, value: Any, least: float, most: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not least <= value <= most
        or value == math.inf
    ):
        above = f"of at least {least}" if most == math.inf else f"in {least} .. {most}"
        raise ConfigError(f"{name} must be a number {above}, got {value!r}")


def _check_unit(unit: object) -> None:
    if unit not in get_args(Unit):
        raise ConfigError(f'unit must be "epoch" or "step", got {unit!r}')
