"""Random movements of images: which ones, how far, and the matrix that a sample gets."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .described import described
from .geometry import FloatArray, about_centre, reflections, rotations, scalings, shears, translations
from .random import Draw, Purpose
from .ranges import Bounds, as_levels, as_number, as_probability, as_range, draw_range

__all__ = ["ImageAugmenter", "Parameter"]

#: How a parameter is chosen for each sample: always the same, uniform between two ends, or by a function that gets
#: a generator of its own for that sample.
Parameter: TypeAlias = float | tuple[float, float] | Callable[[np.random.Generator], float]

#: The column of its uniform number, and the number of its generator, for each parameter: part of every result, so
#: never reordered. Switching one parameter on leaves the draws of the others as they were.
_COLUMNS = (
    "x_reflection", "y_reflection", "rotation", "scale", "x_scale", "y_scale", "x_shear", "y_shear",
    "x_translation", "y_translation",
)  # fmt: skip

_ANY, _FACTOR, _ANGLE = Bounds(-1e9, 1e9), Bounds(1e-3, 1e6), Bounds(-90, 90, "both")

#: Numbers that lie outside of these make a map that cannot be undone, or no sense.
_BOUNDS = {"scale": _FACTOR, "x_scale": _FACTOR, "y_scale": _FACTOR, "x_shear": _ANGLE, "y_shear": _ANGLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAugmenter:
    """Moves each image at random about its centre; nothing moves by default.

    The movements are composed in the order reflection, scale, shear, rotation, translation into one matrix, so an
    image is interpolated once, however many are switched on. A number means "always this much", a pair (lo, hi) is
    drawn uniformly, and a function ``f(rng) -> float`` may do what it likes with the ``numpy.random.Generator`` it
    gets (for background workers it must be picklable: a function of a module, no lambda). What sample i gets in epoch
    e depends on the seed, e and i only.

    Args:
        fill_value: 0 .. 255, for what lies outside of the image: one number, or one per channel.
        x_reflection: probability of a mirror image, left to right; True stands for 1/2.
        y_reflection: the same, top to bottom.
        rotation: degrees, counter-clockwise, -1e9 .. 1e9.
        scale: factor for both axes, 0.001 .. 1e6; more than 1 enlarges. Not together with ``x_scale`` or
            ``y_scale``.
        x_scale: factor along x, 0.001 .. 1e6.
        y_scale: factor along y, 0.001 .. 1e6.
        x_shear: *degrees* in (-90, 90), not a ratio; positive moves lower rows to the right.
        y_shear: degrees in (-90, 90); positive moves columns on the right downwards.
        x_translation: pixels of the input image to the right, -1e9 .. 1e9.
        y_translation: pixels of the input image downwards, -1e9 .. 1e9.

    Raises:
        ConfigError: a value that is out of range, or ``scale`` together with ``x_scale`` or ``y_scale``.

    Example:
        >>> augment = ImageAugmenter(x_reflection=True, rotation=(-10, 10))
        >>> augment.sample_matrix(7, Draw(seed=1), size=(28, 28)).shape
        (3, 3)
    """

    fill_value: int | tuple[int, ...] = 0
    x_reflection: float = False
    y_reflection: float = False
    rotation: Parameter = 0.0
    scale: Parameter = 1.0
    x_scale: Parameter = 1.0
    y_scale: Parameter = 1.0
    x_shear: Parameter = 0.0
    y_shear: Parameter = 0.0
    x_translation: Parameter = 0.0
    y_translation: Parameter = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill_value", as_levels("fill_value", self.fill_value))
        for name in _COLUMNS[:2]:
            object.__setattr__(self, name, as_probability(name, getattr(self, name)))
        for name in _COLUMNS[2:]:
            parameter, bounds = getattr(self, name), _BOUNDS.get(name, _ANY)
            if not callable(parameter):
                object.__setattr__(self, name, as_range(name, parameter, bounds, ", or a function of a generator"))
        if not _is_one(self.scale) and not (_is_one(self.x_scale) and _is_one(self.y_scale)):
            raise ConfigError(
                f"scale={self.scale!r} sets both axes: leave it at 1, or leave x_scale={self.x_scale!r} and "
                f"y_scale={self.y_scale!r} at 1"
            )

    def sample_matrices(self, ids: NDArray[np.int64], draw: Draw) -> FloatArray:
        """Return the movement of each sample about the centre of its image, whatever its size.

        Args:
            ids: int64 (n,), sample ids; what one gets does not depend on the others.
            draw: the random world.

        Returns:
            float64 (n, 3, 3), forward maps of coordinates that are measured from the image's centre.

        Raises:
            ConfigError: a function returned a number that is out of range.
        """
        uniforms = draw.uniforms(ids, Purpose.GEOMETRY, len(_COLUMNS))
        mirrors = np.array(self.sample_mirrors(ids, draw), np.bool_).reshape(-1, 2)
        matrices = reflections(mirrors[:, 1], mirrors[:, 0])
        for build, names, neutral in _STEPS:
            if any(getattr(self, name) != neutral for name in names):
                matrices = build(*(self._values(name, uniforms, ids, draw) for name in names)) @ matrices
        return matrices

    @property
    def only_mirrors(self) -> bool:
        """Whether reflections are all that it does, so that no pixel has to be interpolated."""
        return all(getattr(self, name) == neutral for _, names, neutral in _STEPS for name in names)

    def sample_mirrors(self, ids: NDArray[np.int64], draw: Draw) -> list[tuple[bool, bool]]:
        """Return, for each sample, whether it is reflected top to bottom, and left to right."""
        uniforms = draw.uniforms(ids, Purpose.GEOMETRY, 2)
        x_mirrors, y_mirrors = [[_probability(self.x_reflection)], [_probability(self.y_reflection)]] > uniforms.T
        return list(zip(y_mirrors.tolist(), x_mirrors.tolist(), strict=True))

    def sample_matrix(self, sample_id: int, draw: Draw, size: tuple[int, int]) -> FloatArray:
        """Return what happens to one sample, in pixel coordinates: float64 (3, 3), input to output of the same size.

        Args:
            sample_id: which sample.
            draw: the random world.
            size: height and width of its image.
        """
        return about_centre(self.sample_matrices(np.array([sample_id], np.int64), draw)[0], size)

    @property
    def settings(self) -> tuple[object, ...]:
        """All settings as plain values, for a fingerprint; ``described`` says by what a function counts."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(described(value) if callable(value) else value for value in values)

    def _values(self, name: str, uniforms: FloatArray, ids: NDArray[np.int64], draw: Draw) -> FloatArray:
        parameter: Parameter = getattr(self, name)
        column = _COLUMNS.index(name)
        if callable(parameter):
            generators = (draw.generator(i, Purpose.PARAMETER, column) for i in ids.tolist())
            returned, bounds = f"what the function for {name} returns", _BOUNDS.get(name, _ANY)
            return np.array([as_number(returned, parameter(rng), bounds) for rng in generators], np.float64)
        return draw_range(parameter, uniforms[:, column])


def _equal_scalings(factors: FloatArray) -> FloatArray:
    return scalings(factors, factors)


#: What follows the reflections, in this order: a family of maps, its parameters, and the value that moves nothing.
_STEPS: tuple[tuple[Callable[..., FloatArray], tuple[str, ...], float], ...] = (
    (_equal_scalings, ("scale",), 1.0),
    (scalings, ("x_scale", "y_scale"), 1.0),
    (shears, ("x_shear", "y_shear"), 0.0),
    (rotations, ("rotation",), 0.0),
    (translations, ("x_translation", "y_translation"), 0.0),
)


def _probability(reflection: float) -> float:
    return 0.5 if reflection is True else float(reflection)


def _is_one(parameter: Parameter) -> bool:
    return parameter in (1, (1, 1))
