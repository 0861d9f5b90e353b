"""Settings as text, for fingerprints: the same text in every process, and another one where a value is another one."""

import hashlib
import random
import re
import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

__all__ = ["described"]

_DEPTH = 20  # of values in values; what lies deeper counts by its type


def described(value: object) -> str:
    """Return what a value is, without addresses in memory and without the state of random generators.

    * Functions that can be imported count by module and name; lambdas and functions inside of functions by their code
      (as this version of Python compiles it), their defaults and the values that they have from around.
    * Arrays and tensors count by all that they hold.
    * Objects count by their ``repr`` if their class writes one, else by their attributes, as torch modules do.

    Args:
        value: anything; a function, an object that can be called, a dataclass.

    Example:
        >>> described(np.sin), described(lambda x: x + 1) == described(lambda x: x + 2)
        ('numpy.sin', False)
    """
    return _described(value, ())


def _described(value: Any, above: tuple[object, ...]) -> str:
    if any(value is one for one in above) or len(above) > _DEPTH:
        return _name(type(value))
    inside = partial(_described, above=(*above, value))
    data = _bytes(value)
    if data is not None:
        return f"{value.dtype}{tuple(value.shape)}:{hashlib.sha256(data).hexdigest()}"
    if isinstance(value, (list, tuple)):
        return f"{_name(type(value))}[{', '.join(map(inside, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(inside, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{inside(key)}: {inside(part)}' for key, part in value.items())}}}"
    made_of = _made_of(value)
    if made_of is not None:
        return f"{_name(type(value))}{inside(made_of)}"
    return _named(value) or f"{_name(type(value))}{inside(_attributes(value))}"


def _made_of(value: Any) -> tuple[object, ...] | dict[str, object] | None:
    """Return the parts by which a function without a name of its own counts, or a dataclass; None for other things."""
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type(None))):
        return value.__self__, value.__name__
    if isinstance(value, FunctionType) and "<" in value.__qualname__:
        return _name(value), value.__code__, value.__defaults__, value.__kwdefaults__, tuple(_around(value))
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, value.co_consts
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    return None


def _named(value: Any) -> str:
    """Return the text of what has a name, or of what writes one; "" for other things."""
    if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)):
        return _name(type(value))
    if hasattr(value, "__qualname__"):
        return _name(value)
    writes = "__repr__" in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}
    if _is_module(value) or not writes:
        return ""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _bytes(value: Any) -> bytes | None:
    """Return all that an array or a tensor holds, and None for other things."""
    torch = sys.modules.get("torch")  # what is not loaded has made no tensor
    if torch and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        value = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return value.tobytes() if isinstance(value, np.ndarray) and not value.dtype.hasobject else None


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return bool(torch and isinstance(value, torch.nn.Module))


def _around(function: FunctionType) -> list[object]:
    found = list[object]()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not yet assigned
            found.append(cell.cell_contents)
    return found


def _attributes(value: Any) -> dict[str, object]:
    """Return the attributes of an object; of a torch module those that torch itself has not made, and its parts."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    found |= getattr(value, "__dict__", {})
    if _is_module(value):
        own = vars(sys.modules["torch"].nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
        found = {name: part for name, part in found.items() if name not in own}
    return found
