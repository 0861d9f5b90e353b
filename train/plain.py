"""Plain Python values as JSON that gives back exactly what it was given: tuples, numbers as keys, NaN."""

from typing import Any

from ..errors import ConfigError

__all__ = ["as_json", "of_json"]

_TAG = "!"


def as_json(value: Any, what: str) -> Any:
    """Return ``value`` as what ``json.dumps`` writes and ``of_json`` reads.

    Args:
        value: None, bools, numbers, strings, and lists, tuples, sets and dicts of such.
        what: its name, for an error.

    Raises:
        ConfigError: something else is in it.

    Example:
        >>> as_json({"betas": (0.9, 0.99), 3: None}, "the state")
        {'!': 'dict', 'items': [['betas', {'!': 'tuple', 'items': [0.9, 0.99]}], [3, None]]}
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, list):
        return [as_json(part, f"{what}[{number}]") for number, part in enumerate(value)]
    if isinstance(value, (tuple, set, frozenset)):
        kind = "tuple" if isinstance(value, tuple) else "set"
        return {_TAG: kind, "items": [as_json(part, what) for part in value]}
    if isinstance(value, dict):
        items = [[as_json(key, what), as_json(part, f"{what}[{key!r}]")] for key, part in value.items()]
        is_plain = all(isinstance(key, str) and key != _TAG for key in value)
        return dict(items) if is_plain else {_TAG: "dict", "items": items}
    raise ConfigError(
        f"{what} is a {type(value).__name__}, and a checkpoint holds tensors and plain values only: numbers, strings, "
        "lists, tuples, dicts"
    )


def of_json(value: Any) -> Any:
    """Return what ``as_json`` was given.

    Example:
        >>> of_json(as_json({"betas": (0.9, 0.99), 3: None}, "the state"))
        {'betas': (0.9, 0.99), 3: None}
    """
    if isinstance(value, list):
        return [of_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: of_json(part) for key, part in value.items()}
    parts = [of_json(part) for part in value["items"]]
    kind = value[_TAG]
    return dict(parts) if kind == "dict" else tuple(parts) if kind == "tuple" else set(parts)
