"""Silence while a library works that warns about data which are none of its caller's business."""

import warnings

from .locks import ProcessLock

__all__ = ["QUIET"]


class _Quiet:
    """Keeps warnings (Pillow's: large images, odd metadata) from the user, and from being errors under ``-W error``.

    Warning filters belong to the process. Threads that saved and restored them each on its own would restore them in
    the wrong order and leave them changed, so the first thread to come saves them and the last to leave restores them.

    What a C library writes to stderr itself, as libtiff does about damaged files, is not kept away: that would take the
    stream from the whole process.
    """

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._threads = 0
        self._filters = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._threads == 0:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")
            self._threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                self._filters.__exit__(None, None, None)


#: To be used in ``with``, by any number of threads, also one inside of the other.
QUIET = _Quiet()
