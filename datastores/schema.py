"""What one row of a batch looks like: the agreement between a datastore, its workers and the batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ShapeError

__all__ = ["Field", "IntArray", "Rows", "Sample", "Schema", "check_sample"]

IntArray: TypeAlias = NDArray[np.int64]

#: One sample: field name -> value. "image" is uint8 (H, W, C), "label" an int, "key" a str.
Sample: TypeAlias = dict[str, Any]

#: The rows of a batch, or of a part of it: field name -> array (n, *field.shape), to be written in place.
Rows: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a batch.

    Args:
        name: for example "image" or "label".
        shape: of one row, without the batch axis; () for a number. An image is (H, W, C).
        dtype: NumPy's name of the element type, for example "uint8".
        is_image: rows are (H, W, C) and the batch shows them as (N, C, H, W), channels last in memory. In a datastore
            that does not say it, these are the fields that are uint8 (H, W, C) with C = 1, 3 or 4.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_image: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Schema:
    """The tensors of a batch, in order.

    Args:
        fields: what they are.
        texts: names of fields that a sample has and a batch has not: keys, file names.
    """

    fields: tuple[Field, ...]
    texts: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all fields."""
        return sum(field.row_bytes for field in self.fields)

    @classmethod
    def of(cls, sample: Sample, where: str) -> "Schema":
        """Describe a sample; strings (keys, file names) are left out, since they are not tensors.

        Args:
            sample: field name -> array or number.
            where: the sample's place, for the error.

        Raises:
            ShapeError: it is no mapping, or has a field that cannot become a row of a tensor.
        """
        check_sample(sample, where)
        texts = tuple(name for name, value in sample.items() if isinstance(value, (str, bytes)))
        return cls(tuple(_field(n, v, where) for n, v in sample.items() if n not in texts), texts)


def check_sample(sample: object, where: str) -> None:
    """Raise ShapeError if a sample is no mapping; ``where`` says which one it is."""
    if not isinstance(sample, Mapping):
        raise ShapeError(f'{where} is {type(sample).__name__}: return a mapping such as {{"image": ..., "label": ...}}')


def _field(name: str, value: object, where: str) -> Field:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"field {name!r} of {where} cannot become an array: {error}") from error
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise ShapeError(f"field {name!r} of {where} is {array.dtype}, which torch does not know: make it float64")
    if array.dtype.kind not in "biuf":
        raise ShapeError(
            f"field {name!r} of {where} is {type(value).__name__}, which cannot become a tensor: "
            "return arrays, numbers or strings"
        )
    dtype = "int64" if array.ndim == 0 and array.dtype.kind in "iu" else array.dtype.name
    is_image = array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] in (1, 3, 4)
    return Field(name, array.shape, dtype, is_image)
