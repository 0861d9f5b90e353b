"""A folder that is filled out of sight and published as a whole, or not at all.

Files are written into ``DEST/.headrace-build`` and moved into DEST when all are complete, the one that makes DEST a
dataset last. Whoever finds that folder, but no ``index.json``, knows that a build is running or was killed::

    .headrace-build/lock           held with flock by the running build, so a killed one lets it go
    .headrace-build/publish.json   written before the first file is moved: the names that will be; removed when all are
    .headrace-build/journal.jsonl  which of the files are finished, for builds that can be continued (``journal.py``)
    .headrace-build/...            the files

A new build removes what a killed one left, or goes on with it, and touches nothing else.
"""

import errno
import json
import os
from pathlib import Path

from ..errors import DestinationError
from .filelock import FileLock
from .index import INDEX_NAME
from .journal import JOURNAL_NAME
from .storage import fsync_folder, os_failure

__all__ = ["STAGING_NAME", "Staging", "write_synced"]

STAGING_NAME = ".headrace-build"
_LOCK = "lock"
_MANIFEST = "publish.json"
_ATTEMPTS = 100  # each one lost means that another build has just ended


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
        keep: leave these remains in the staging folder, also those that the killed build had begun to publish.

    Raises:
        DestinationError: it holds anything else, or another build is writing into it; nothing was changed.
        ShardError: it cannot be created.
    """

    def __init__(self, destination: Path, *, keep: bool = False) -> None:
        self.destination = destination
        self.folder = destination / STAGING_NAME
        self._is_new = False
        self._check()
        self._lock = self._acquire()
        try:
            self._check()  # again, now that nobody else can be at it
            if keep:
                self._take_back()
            else:
                self._clear()
        except BaseException:
            if keep:
                self._lock.release()
            else:
                self._leave()
            raise

    def _acquire(self) -> FileLock:
        try:
            for _ in range(_ATTEMPTS):
                self._is_new |= _make_folder(self.destination)
                try:
                    self.folder.mkdir(exist_ok=True)
                    lock = FileLock.acquire(self.folder / _LOCK)
                except FileNotFoundError:
                    continue  # another build has just removed the folder
                if lock is not None:
                    return lock
                break
        except OSError as error:
            raise os_failure(error, f"creating {self.destination}") from error
        raise DestinationError(
            f"{self.destination} is being written by another build: wait for it, or name another folder"
        )

    def _check(self) -> None:
        """Refuse a destination that holds what is not ours."""
        found = self._names()
        if INDEX_NAME in found:
            raise DestinationError(f"{self.destination} already holds a dataset ({INDEX_NAME}): name a new folder")
        foreign = sorted(found - {STAGING_NAME} - self._moved())
        if foreign:
            names = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
            raise DestinationError(f"{self.destination} is not empty (it holds {names}): name a new or empty folder")

    def _names(self) -> set[str]:
        """Return what the destination holds, nothing if it does not exist."""
        try:
            return {path.name for path in self.destination.iterdir()}
        except FileNotFoundError as error:
            if self.destination.is_symlink():
                raise DestinationError(f"{self.destination} is a link to nowhere: name a new folder") from error
            return set()
        except OSError as error:
            if os.path.isfile(self.destination):  # noqa: PTH113 - Path.is_file may raise the same error again
                raise DestinationError(f"{self.destination} is a file: name a new folder") from error
            raise os_failure(error, f"looking for {self.destination}") from error

    def _moved(self) -> set[str]:
        """Return the names that a killed build was publishing."""
        try:
            names = json.loads((self.folder / _MANIFEST).read_bytes())
        except (OSError, ValueError):
            return set()  # it had not begun to publish
        return {name for name in names if Path(name).name == name}

    def _clear(self) -> None:
        """Remove all that a build has written here, so far; the index first, so that no part looks like a whole."""
        try:
            for name in sorted(self._moved(), key=lambda name: name != INDEX_NAME):
                (self.destination / name).unlink(missing_ok=True)
            for path in self.folder.iterdir():
                if path.name not in (_LOCK, _MANIFEST):
                    path.unlink()
            (self.folder / _MANIFEST).unlink(missing_ok=True)
        except OSError as error:
            raise os_failure(error, f"removing the remains of a build from {self.destination}") from error

    def _take_back(self) -> None:
        """Bring back what a killed build had begun to publish."""
        try:
            for name in self._moved():
                if (self.destination / name).exists():
                    (self.destination / name).rename(self.folder / name)
            fsync_folder(self.folder)
            (self.folder / _MANIFEST).unlink(missing_ok=True)
        except OSError as error:
            raise os_failure(error, f"taking back what a build has published in {self.destination}") from error

    def keep_only(self, names: set[str]) -> None:
        """Remove all files that are not among ``names``."""
        try:
            for path in self.folder.iterdir():
                if path.name not in {_LOCK, *names}:
                    path.unlink()
        except OSError as error:
            raise os_failure(error, f"removing the remains of a build from {self.destination}") from error

    def path(self, name: str) -> Path:
        """Return where to write the file that will be published as ``name``."""
        return self.folder / name

    def publish(self) -> None:
        """Move all files to the destination; the index makes it a dataset, so it goes last.

        Raises:
            ShardError: the operating system failed; call ``discard``.
        """
        try:
            names = sorted({path.name for path in self.folder.iterdir()} - {_LOCK, INDEX_NAME, JOURNAL_NAME})
            write_synced(self.folder / _MANIFEST, json.dumps([*names, INDEX_NAME]).encode("ascii"))
            fsync_folder(self.folder)
            for name in names:
                (self.folder / name).rename(self.destination / name)
            fsync_folder(self.destination)
            (self.folder / INDEX_NAME).rename(self.destination / INDEX_NAME)
            fsync_folder(self.destination)
        except OSError as error:
            raise os_failure(error, f"publishing {self.destination}") from error
        self._leave()

    def suspend(self) -> None:
        """Leave all that was written for whoever goes on, and let the destination go."""
        if (self.destination / INDEX_NAME).exists():
            self._leave()  # the last step was done
        else:
            self._lock.release()

    def discard(self) -> None:
        """Remove all that was written, and the destination if it did not exist before.

        What was published as a whole stays, even if ``publish`` was interrupted after that.
        """
        is_published = (self.destination / INDEX_NAME).exists() and not (self.folder / _MANIFEST).exists()
        if self._lock.is_held() and not is_published:
            self._clear()
        self._leave()

    def _leave(self) -> None:
        """Remove the staging folder, and a new destination that is empty; may be called again if it is interrupted."""
        try:
            if self._lock.is_held():
                (self.folder / _MANIFEST).unlink(missing_ok=True)
                (self.folder / JOURNAL_NAME).unlink(missing_ok=True)
            self._lock.remove()
            _remove_if_empty(self.folder)
            if self._is_new:
                _remove_if_empty(self.destination)
        except OSError as error:
            raise os_failure(error, f"removing {self.folder}") from error


def _make_folder(path: Path) -> bool:
    """Make a folder; return whether it was not there before."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder, unless another build has begun in it or has removed it."""
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
