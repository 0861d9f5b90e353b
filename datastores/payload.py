"""A datastore on its way to another process."""

import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .datastore import Datastore
from .locks import ProcessLock

__all__ = ["Payload", "check_sendable", "without_main"]

#: How objects say that they cannot be pickled; RuntimeError is torch's way, for its scripted modules.
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError)

_MAIN = ProcessLock()  # the main module belongs to the whole process


@dataclass(frozen=True, slots=True)
class Payload:
    """A pickled datastore.

    Args:
        data: the pickle.
        needs_main: whether it names something that the user's script defines, so that a worker must import the script.
    """

    data: bytes
    needs_main: bool

    @classmethod
    def of(cls, source: Datastore) -> "Payload":
        """Pickle a datastore.

        Raises:
            ConfigError: something in it cannot be pickled, or is defined where no other process can import it.
        """
        buffer = io.BytesIO()
        needs_main = _pickle(source, _MainSpotter(buffer, protocol=pickle.HIGHEST_PROTOCOL))
        return cls(buffer.getvalue(), needs_main)

    def open(self) -> Datastore:
        """Return the datastore, in the process that received it."""
        source = pickle.loads(self.data)  # noqa: S301 - pickled by the parent process
        assert isinstance(source, Datastore)  # noqa: S101 - nothing else is ever packed
        return source


def check_sendable(source: Datastore) -> None:
    """Find out whether a datastore can be sent to another process, without keeping anything or copying its arrays.

    Raises:
        ConfigError: as ``Payload.of``.
    """
    _pickle(source, _MainSpotter(_Nowhere(), protocol=5, buffer_callback=lambda _: None))


def _pickle(source: Datastore, pickler: "_MainSpotter") -> bool:
    """Pickle a datastore and return whether it names something that the user's script defines."""
    try:
        pickler.dump(source)
    except _REFUSALS as error:
        raise ConfigError(
            f"{_culprit(source, type(source).__name__)} cannot be sent to a background worker ({error}): define it "
            'at the top level of a module, or use a Loader with start_method="fork", or workers=0'
        ) from error
    if pickler.main_names:
        with _MAIN:
            _check_main(", ".join(sorted(set(pickler.main_names))))
    return bool(pickler.main_names)


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: bytes) -> int:
        return len(data)


def _check_main(names: str) -> None:
    """Refuse a main module that workers cannot import, before they try and fill the terminal with their tracebacks."""
    main = sys.modules["__main__"]
    path = Path(getattr(main, "__file__", None) or "<stdin>")
    remedy = 'define it in a module of its own, or use a Loader with start_method="fork", or workers=0'
    if not path.is_file():
        raise ConfigError(
            f"{names} is defined in an interactive session, where background workers cannot import it: {remedy}"
        )
    if getattr(main, "__spec__", None) is None and "__main__" not in path.read_text(errors="replace"):
        raise ConfigError(
            f"{names} is defined in {path}, which background workers import for it, and so would start it again: put "
            f'its start under `if __name__ == "__main__":`, or {remedy}'
        )


class _MainSpotter(pickle.Pickler):
    """Notes which functions and classes of the user's script are pickled (by name)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.main_names: list[str] = []

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            self.main_names.append(value.__qualname__)
        return NotImplemented


def _culprit(value: object, path: str, above: tuple[object, ...] = ()) -> str:
    """Name the innermost part of a value that does not pickle, for example ``AugmentedImageDatastore.augment``."""
    above = (*above, value)
    for name, part in _parts(value):
        if any(part is one for one in above):
            continue
        try:
            pickle.dumps(part)
        except _REFUSALS:
            return _culprit(part, f"{path}.{name}", above)
    return f"{path} ({getattr(value, '__qualname__', type(value).__name__)})"


def _parts(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(str(name), part) for name, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(position), part) for position, part in enumerate(value)]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(value, "__dict__", ()), *(name for name in slots if hasattr(value, name))]
    return [] if isinstance(value, type) else [(name, getattr(value, name)) for name in names]


@contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not run the user's script again, inside this context.

    multiprocessing lets each spawned process import the parent's main module: seconds for each worker, and an error
    where the script has no ``if __name__ == "__main__"``. Workers need that only for what the script itself defines
    (``Payload.needs_main``), so the module's origin is hidden meanwhile.
    """
    with _MAIN:  # others must not look at the module meanwhile, nor hide it twice
        main = sys.modules["__main__"]
        names = [name for name in ("__file__", "__spec__") if name in main.__dict__]
        hidden: dict[str, Any] = {name: main.__dict__.pop(name) for name in names}
        main.__spec__ = None
        try:
            yield
        finally:
            main.__dict__.update(hidden)
