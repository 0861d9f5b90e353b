"""Writes checkpoints in the background, one at a time, while the run goes on."""

import threading
import warnings
from types import TracebackType
from typing import Self

from ..datastores.filelock import FileLock
from ..errors import ConfigError
from .checkpoint import CheckpointFolder, Snapshot

__all__ = ["Saver"]


class Saver:
    """Owns a checkpoint folder while it is open: two runs never write into one.

    Args:
        folder: where checkpoints go.

    Attributes:
        saved_step: of the newest checkpoint that was ordered; None before the first.

    Warns:
        RuntimeWarning: a checkpoint could not be written. The run goes on, and the earlier ones are untouched.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self.saved_step: int | None = None
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._failure: ConfigError | None = None
        self._lock: FileLock | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Copy ``snapshot`` and write it in the background; waits for the one before it."""
        self.wait()
        self.saved_step = snapshot.step
        self._thread = threading.Thread(target=self._write, args=(snapshot.detached(),), name="headrace-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is written, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            warnings.warn(str(failure), RuntimeWarning, stacklevel=2)

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self._folder.write(snapshot)
        except ConfigError as error:
            self._failure = error

    def __enter__(self) -> Self:
        try:
            self._folder.path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock.acquire(self._folder.path / ".lock")
        except OSError as error:
            raise ConfigError(f"checkpoints cannot be written to {self._folder.path}: {error.strerror}") from error
        if self._lock is None:
            raise ConfigError(f"another run writes its checkpoints to {self._folder.path}: choose another folder")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        finally:
            if self._lock is not None:
                self._lock.remove()
                self._lock = None
