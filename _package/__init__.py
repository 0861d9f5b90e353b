"""headrace: train vision models on image collections that do not fit in memory.

The data flow, one stage after the other (``docs/architecture.md`` draws it)::

    index -> plan -> read -> decode -> augment -> batch -> dispatch -> train

* ``headrace.datastores``: what exists, in which order it is read, and the background workers that read it;
* ``headrace.augment``: keyed randomness and the geometry of an image;
* ``headrace.train``: a thin trainer over batches;
* ``headrace.tools``: the ``headrace`` command.

Importing this package loads nothing else.
"""

import importlib
from types import ModuleType

__all__ = ["__version__"]

__version__ = "0.1.0"

_PARTS = ("augment", "datastores", "errors", "tools", "train")


def __getattr__(name: str) -> ModuleType:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_PARTS, *globals()})
