"""A lock on a file, which the operating system takes back from whoever dies with it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

__all__ = ["FileLock"]


class FileLock:
    """An exclusive lock (``flock``) on a file that whoever takes it creates.

    It is held as long as this object, or a copy of its descriptor in a forked process, is there. So a file whose lock
    can be taken belongs to nobody who lives.

    Args:
        path: of the file.
        descriptor: open, locked, and of the file that lies at ``path``.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> first = FileLock.acquire(Path(folder.name, "lock"))
        >>> FileLock.acquire(Path(folder.name, "lock")) is None
        True
        >>> first.remove()
        >>> folder.cleanup()
    """

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path, *, wait: bool = False) -> Self | None:
        """Lock a file, creating it if it is not there.

        Args:
            path: of the file; not a link.
            wait: until nobody else holds it.

        Returns:
            The lock, or None if somebody else holds it.

        Raises:
            OSError: the file cannot be opened for writing, or its file system knows no locks.
        """
        how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        while True:
            lock = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))
            try:
                fcntl.flock(lock.descriptor, how)
            except BlockingIOError:
                return None
            if lock.is_held():
                return lock
            # Who held it has removed or renamed the file meanwhile: this lock is on a file that nobody finds any more.

    def is_held(self) -> bool:
        """Whether the file at ``path`` is still the one that is locked."""
        if self.descriptor < 0:
            return False
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self.descriptor)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def remove(self) -> None:
        """Remove the file, if it is still this one, and let the lock go."""
        if self.is_held():
            self.path.unlink()
        self.release()

    def release(self) -> None:
        """Let the lock go; the file stays."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        with suppress(OSError):
            self.release()
