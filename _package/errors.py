"""Every error that headrace raises on purpose.

A message says what was asked, what was found, where (dataset, shard, key, bytes) and what to do. Each error is
built from that one sentence, so it survives pickling between processes, and each has a built-in ancestor, so
``except FileNotFoundError`` works too::

    HeadraceError
     +-- ConfigError(ValueError)              an argument that cannot work, found before anything runs
     +-- MissingDataError(FileNotFoundError)  a dataset, shard or image that is not there
     +-- DestinationError(FileExistsError)    a destination that already holds something else
     +-- ShardError(OSError)                  a shard that is truncated, not a tar, or does not fit its index
     |    +-- UnreachableError(ConnectionError)  a remote place that does not answer, refuses, or answers nonsense
     +-- DuplicateKeyError(ValueError)        two samples or files that claim one key
     +-- SampleError(ValueError)              one sample that cannot be made
     |    +-- DecodeError                     its bytes are no image that can be read
     |    +-- FieldError(KeyError)            it lacks a field that was asked for
     |    +-- ShapeError                      its shape or dtype does not fit the others, or it is too small
     +-- StateError(ValueError)               a saved position that does not fit this dataset or these settings
     +-- WorkerError(RuntimeError)            a background worker died, or raised what cannot be sent back
     +-- RankError(RuntimeError)              another process of a run on several ranks died, or does not answer
"""

__all__ = [
    "ConfigError",
    "DecodeError",
    "DestinationError",
    "DuplicateKeyError",
    "FieldError",
    "HeadraceError",
    "MissingDataError",
    "RankError",
    "SampleError",
    "ShapeError",
    "ShardError",
    "StateError",
    "UnreachableError",
    "WorkerError",
]


class HeadraceError(Exception):
    """Root of all errors of this package; ``str(error)`` is one readable sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0])  # OSError and KeyError would format it in their own way


class ConfigError(HeadraceError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class MissingDataError(HeadraceError, FileNotFoundError):
    """A dataset, shard, index or image that was asked for and is not there."""


class DestinationError(HeadraceError, FileExistsError):
    """A destination that already holds something else; nothing was changed there."""


class ShardError(HeadraceError, OSError):
    """A shard that is truncated, is no tar file, or does not fit its index."""


class UnreachableError(ShardError, ConnectionError):
    """A remote place that does not answer, refuses, or answers what was not asked; no sample is to blame."""


class DuplicateKeyError(HeadraceError, ValueError):
    """Two samples, or two files, that claim the same key."""


class SampleError(HeadraceError, ValueError):
    """One sample that cannot be made; the message names its dataset, shard and key."""


class DecodeError(SampleError):
    """Bytes that are no image which can be read."""


class FieldError(SampleError, KeyError):
    """A sample or batch that lacks a field which was asked for."""


class ShapeError(SampleError):
    """A sample whose shape or dtype does not fit the batch, or which is too small for what was asked."""


class StateError(HeadraceError, ValueError):
    """A saved position that does not fit this dataset or these settings."""


class WorkerError(HeadraceError, RuntimeError):
    """A background worker that died, or whose own error cannot be carried to this process."""


class RankError(HeadraceError, RuntimeError):
    """Another process of a run on several ranks that died, left, or does not answer."""
