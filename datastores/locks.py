"""Locks for what belongs to a whole process: its random generators, its main module, its number of threads."""

import os
import threading
from types import TracebackType

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock that one thread may take several times, and that is free again in a forked process.

    A fork copies a lock as it is. Were it held by another thread, which the fork leaves behind, the new process would
    wait for ever.

    Example:
        >>> lock = ProcessLock()
        >>> with lock, lock:
        ...     print("mine")
        mine
    """

    def __init__(self) -> None:
        self._lock, self._pid = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():  # just forked, so this thread is the only one
            self._lock, self._pid = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
