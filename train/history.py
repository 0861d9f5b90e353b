"""What a run was like, row by row: in memory, and in a CSV file that can be read while the run goes on."""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ..errors import ConfigError, DestinationError, MissingDataError

__all__ = ["History", "Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The steps since the row before this one.

    Args:
        step: optimizer steps done, from 1.
        epoch: the epoch of the last of them, from 0.
        loss: mean over the samples of these steps, each sample counting once.
        images_per_second: without validation.
        wait_share: share of that time spent waiting for data, in [0, 1].
        lr: learning rate of the first parameter group at the last of these steps.
        validation: name -> value, if a validation followed the last of them; else empty.
    """

    step: int
    epoch: int
    loss: float
    images_per_second: float
    wait_share: float
    lr: float
    validation: dict[str, float] = field(default_factory=dict)


_COLUMNS = ("step", "epoch", "loss", "images_per_second", "wait_share", "lr")


class History:
    """The rows of a run; the file is open inside ``with``.

    It is appended to and flushed row by row, so that whole rows are there for ``tail -f``, and after a crash of the
    process. A run that ends before its first row leaves no file. Columns: those of ``Row``, then ``val_<name>`` for
    each validation value, empty where none was made. Numbers are written so that they read back as the same double.

    Args:
        path: the CSV file, which must not exist yet; None: rows are kept in memory only.
        validation_names: of the values that validations make.

    Raises:
        DestinationError: the file exists; nothing was changed.
        MissingDataError: its folder does not exist.
        ConfigError: it cannot be written.

    Example:
        >>> with History() as history:
        ...     history.append(Row(step=1, epoch=0, loss=0.5, images_per_second=9.0, wait_share=0.0, lr=0.1))
        >>> history[-1].loss
        0.5
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, validation_names: Sequence[str] = ()) -> None:
        self.rows: list[Row] = []
        self._names = tuple(validation_names)
        self._path = None if path is None else Path(path)
        self._file: IO[str] | None = None

    def append(self, row: Row) -> None:
        """Add a row, and write it if there is a file.

        Raises:
            ConfigError: the row has a validation value that was not announced.
        """
        unknown = set(row.validation) - set(self._names)
        if unknown:
            raise ConfigError(f"the history has columns for {list(self._names)}, not for {sorted(unknown)}")
        self.rows.append(row)
        cells = [getattr(row, column) for column in _COLUMNS]
        self._write([*cells, *(row.validation.get(name, "") for name in self._names)])

    def _write(self, cells: Sequence[object]) -> None:
        if self._file is not None:
            csv.writer(self._file, lineterminator="\n").writerow(cells)
            self._file.flush()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = _create(self._path)
            self._write([*_COLUMNS, *(f"val_{name}" for name in self._names)])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            self._file = None
            if not self.rows:  # a file with a header only would stand in the way of the next attempt
                self._path.unlink(missing_ok=True)


def _create(path: Path) -> IO[str]:
    try:
        return path.open("x", newline="", encoding="utf-8")
    except FileExistsError:
        raise DestinationError(
            f"{path} exists already and may be another run's history: give csv another name, or remove it first"
        ) from None
    except FileNotFoundError:
        raise MissingDataError(f"the folder of {path} does not exist: make it first") from None
    except OSError as error:
        raise ConfigError(f"the history cannot be written to {path}: {error.strerror}") from error
