"""Temporary folders that go with the process that made them, however it ends."""

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self

from .filelock import FileLock

__all__ = ["Scratch"]

_PREFIX = "headrace-tables-"
_LOCK = "lock"


class Scratch:
    """A private folder in the system's temporary folder, removed with this object or when the process ends.

    A process that is killed removes nothing; so each new folder removes those whose lock nobody holds any more. What is
    pickled is the folder's name: a copy neither keeps nor removes it.

    Args:
        folder: its path.

    Example:
        >>> scratch = Scratch.make()
        >>> path = scratch.write("a.txt", b"hello")
        >>> scratch.remove()
        >>> os.path.exists(path)
        False
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[type["Scratch"], tuple[str]]:
        return Scratch, (self.folder,)

    @classmethod
    def make(cls) -> Self:
        """Create a folder, having removed those that nobody owns.

        Raises:
            OSError: none can be created.
        """
        _remove_orphans(Path(tempfile.gettempdir()))
        while True:
            folder = tempfile.mkdtemp(prefix=_PREFIX)
            with suppress(FileNotFoundError):  # taken for an orphan before it could be locked
                lock = FileLock.acquire(Path(folder, _LOCK))
                if lock is not None:
                    scratch = cls(folder)
                    weakref.finalize(scratch, _remove, folder, lock, os.getpid())
                    return scratch

    def write(self, name: str, data: bytes) -> str:
        """Write a new file, and return its path.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(self.folder, name)
        path.write_bytes(data)
        return str(path)

    def remove(self) -> None:
        """Remove the folder now."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove_orphans(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # of another user, or another process removes it too
            found = {path.name for path in folder.iterdir()}
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            if not found:
                folder.rmdir()  # killed before it was locked
            elif _LOCK in found and FileLock.acquire(folder / _LOCK) is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: str, lock: FileLock, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked worker: the folder is still in use
        shutil.rmtree(folder, ignore_errors=True)
    lock.release()
