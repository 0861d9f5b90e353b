"""A folder that is filled out of sight and published as a whole, or not at all.

Files are written into ``DEST/.headrace-build`` and moved into DEST when all are complete, the one that makes DEST a
dataset last. Whoever finds that folder, but no ``index.json``, knows that a build is running or was killed::

    .headrace-build/lock           held with flock by the running build, so a killed one lets it go
    .headrace-build/publish.json   written before the first file is moved: the names that will be
    .headrace-build/...            the files

A new build removes what a killed one left, and nothing else.
"""

import fcntl
import json
import os
from pathlib import Path

from ..errors import DestinationError
from .index import INDEX_NAME
from .storage import fsync_folder, os_failure

__all__ = ["STAGING_NAME", "Staging", "write_synced"]

STAGING_NAME = ".headrace-build"
_LOCK = "lock"
_MANIFEST = "publish.json"


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Staging:
    """A destination, locked and empty, until ``publish`` or ``discard``.

    Args:
        destination: a folder that does not exist, is empty, or holds the remains of a killed build.

    Raises:
        DestinationError: it holds anything else, or another build is writing into it; nothing was changed.
        ShardError: it cannot be created.
    """

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self.folder = destination / STAGING_NAME
        self._is_new = not destination.exists()
        self._check()
        self._lock = self._acquire()
        try:
            self._check()  # again, now that nobody else can be at it
        except DestinationError:
            self._leave()
            raise
        self._clear()

    def _acquire(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise os_failure(error, f"creating {self.destination}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                raise DestinationError(
                    f"{self.destination} is being written by another build: wait for it, or name another folder"
                ) from error
            raise os_failure(error, f"locking {self.destination}") from error
        return lock

    def _check(self) -> None:
        """Refuse a destination that holds what is not ours."""
        if not self.destination.exists():
            return
        if not self.destination.is_dir():
            raise DestinationError(f"{self.destination} is a file: name a new folder")
        found = {path.name for path in self.destination.iterdir()}
        if INDEX_NAME in found:
            raise DestinationError(f"{self.destination} already holds a dataset ({INDEX_NAME}): name a new folder")
        foreign = sorted(found - {STAGING_NAME} - self._moved())
        if foreign:
            names = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
            raise DestinationError(f"{self.destination} is not empty (it holds {names}): name a new or empty folder")

    def _moved(self) -> set[str]:
        """Return the names that a killed build was publishing."""
        try:
            names = json.loads((self.folder / _MANIFEST).read_bytes())
        except (OSError, ValueError):
            return set()  # it had not begun to publish
        return {name for name in names if Path(name).name == name}

    def _clear(self) -> None:
        """Remove all that a build has written here, so far."""
        try:
            for name in self._moved():
                (self.destination / name).unlink(missing_ok=True)
            for path in self.folder.iterdir():
                if path.name not in (_LOCK, _MANIFEST):
                    path.unlink()
            (self.folder / _MANIFEST).unlink(missing_ok=True)
        except OSError as error:
            raise os_failure(error, f"removing the remains of a build from {self.destination}") from error

    def path(self, name: str) -> Path:
        """Return where to write the file that will be published as ``name``."""
        return self.folder / name

    def publish(self, last: str) -> None:
        """Move all files to the destination; ``last`` makes it a dataset, so it goes last.

        Raises:
            ShardError: the operating system failed; call ``discard``.
        """
        names = sorted({path.name for path in self.folder.iterdir()} - {_LOCK, last})
        try:
            write_synced(self.folder / _MANIFEST, json.dumps([*names, last]).encode("ascii"))
            fsync_folder(self.folder)
            for name in names:
                (self.folder / name).rename(self.destination / name)
            fsync_folder(self.destination)
            (self.folder / last).rename(self.destination / last)
            fsync_folder(self.destination)
        except OSError as error:
            raise os_failure(error, f"publishing {self.destination}") from error
        self._leave()

    def discard(self) -> None:
        """Remove all that was written, and the destination if it did not exist before."""
        self._clear()
        self._leave()
        if self._is_new:
            self.destination.rmdir()

    def _leave(self) -> None:
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        (self.folder / _LOCK).unlink(missing_ok=True)
        self.folder.rmdir()
        os.close(self._lock)
