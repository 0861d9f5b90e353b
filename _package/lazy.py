"""Packages whose public names are imported on first use, so that ``headrace build --help`` never loads torch."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` (PEP 562) of a package whose names are imported on first use.

    Args:
        package: the package's ``__name__``.
        homes: public name -> name of the module inside the package that defines it.
    """

    def module_getattr(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home}"), name)

    def module_dir() -> list[str]:
        return sorted({*homes, *vars(sys.modules[package])})

    return module_getattr, module_dir
