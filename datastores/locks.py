"""Locks for what belongs to a whole process: its random generators, its main module, its number of threads."""

import os
import threading
from types import TracebackType

from ..errors import ConfigError

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock that one thread may take several times, and that is free again in a forked process.

    A fork copies a lock as it is. Were it held by another thread, which the fork leaves behind, the new process would
    wait for ever.

    Args:
        patience: seconds to wait for another thread; by then it is taken to wait for this one.
        what: what the lock is for; completes an error "another thread ...".

    Raises:
        ConfigError: at ``with``, after so many seconds.

    Example:
        >>> lock = ProcessLock()
        >>> with lock, lock:
        ...     print("mine")
        mine
    """

    def __init__(self, patience: float = 120.0, what: str = "has what this one needs") -> None:
        self._patience, self._what = patience, what
        self._lock, self._pid = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():  # just forked, so this thread is the only one
            self._lock, self._pid = threading.RLock(), os.getpid()
        if not self._lock.acquire(timeout=self._patience):
            raise ConfigError(f"waited for {self._patience:g} s, and another thread still {self._what}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
