"""What a run was like, row by row: in memory, and in a CSV file that can be read while the run goes on."""

import csv
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

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

    It is appended to row by row, so that whole rows are there for ``tail -f``, and after a crash of the process. Where
    the disk is full, training goes on: there is a warning, the file keeps whole rows only, and those that are missing
    are written with the next one that can be. A run that ends before its first row leaves no file. Columns: those of
    ``Row``, then ``val_<name>`` for each validation value, empty where none was made. Numbers are written so that they
    read back as the same double.

    Args:
        path: the CSV file, which must not exist yet; None: rows are kept in memory only.
        validation_names: of the values that validations make.

    Raises:
        DestinationError: the file exists; nothing was changed.
        MissingDataError: its folder does not exist.
        ConfigError: it cannot be written from the start.

    Warns:
        RuntimeWarning: rows could not be written; says why, and how many.

    Example:
        >>> with History() as history:
        ...     history.append(Row(step=1, epoch=0, loss=0.5, images_per_second=9.0, wait_share=0.0, lr=0.1))
        >>> history[-1].loss
        0.5
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, validation_names: Sequence[str] = ()) -> None:
        self.rows: list[Row] = []
        self._names = tuple(validation_names)
        self._path = None if path is None else Path(path).absolute()  # the program may change its folder
        self._file: FileIO | None = None
        self._unwritten: list[bytes] = []
        self._is_continued = False
        self._size = 0  # bytes of whole rows in the file

    def take_up(self, rows: Sequence[Row]) -> None:
        """Begin with the rows of a run that is continued; a file that exists is replaced by one that has these."""
        self.rows[:] = rows
        self._is_continued = True

    def append(self, row: Row) -> None:
        """Add a row, and write it if there is a file.

        Raises:
            ConfigError: the row has a validation value that was not announced.
        """
        unknown = set(row.validation) - set(self._names)
        if unknown:
            raise ConfigError(f"the history has columns for {list(self._names)}, not for {sorted(unknown)}")
        self.rows.append(row)
        if self._file is None:
            return
        self._unwritten.append(self._cells(row))
        try:
            self._write(self._file)
        except OSError as error:
            if len(self._unwritten) == 1:  # said once for each time that the disk is full
                warnings.warn(f"{self._complaint(error)}; training goes on", RuntimeWarning, stacklevel=2)

    def _cells(self, row: Row) -> bytes:
        cells = [getattr(row, column) for column in _COLUMNS]
        return _line([*cells, *(row.validation.get(name, "") for name in self._names)])

    def _write(self, file: FileIO) -> None:
        """Write what is not written yet, or nothing of it."""
        text = b"".join(self._unwritten)
        try:
            written = 0
            while written < len(text):
                written += file.write(text[written:]) or 0
        except OSError:
            file.truncate(self._size)
            file.seek(self._size)
            raise
        self._size += len(text)
        self._unwritten.clear()

    def _complaint(self, error: OSError) -> str:
        return f"{len(self._unwritten)} rows of the history cannot be written to {self._path} ({error.strerror})"

    def __repr__(self) -> str:
        last = f", the last one of step {self.rows[-1].step}: loss {self.rows[-1].loss:.4g}" if self.rows else ""
        return f"<History of {len(self)} rows{last}>"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = _create(self._path, replace=self._is_continued)
            self._unwritten.append(_line([*_COLUMNS, *(f"val_{name}" for name in self._names)]))
            self._unwritten.extend(map(self._cells, self.rows))
            try:
                self._write(self._file)
            except OSError as error:
                self._file.close()
                self._path.unlink()
                raise ConfigError(self._complaint(error)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self._path is not None:
            try:
                with self._file as file:
                    if self.rows:
                        self._write(file)
                    elif _is_at(file, self._path):  # a header alone would stand in the way of the next attempt
                        self._path.unlink()
            except OSError as failure:
                warnings.warn(f"{self._complaint(failure)}; they are lost", RuntimeWarning, stacklevel=2)
            self._file = None


def _line(cells: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _is_at(file: FileIO, path: Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _create(path: Path, *, replace: bool) -> FileIO:
    try:
        return path.open("wb" if replace else "xb", buffering=0)
    except FileExistsError:
        raise DestinationError(
            f"{path} exists already and may be another run's history: give csv another name, or remove it first"
        ) from None
    except FileNotFoundError:
        raise MissingDataError(f"the folder of {path} does not exist: make it first") from None
    except (OSError, ValueError) as error:  # a path may hold a zero byte
        raise ConfigError(f"the history cannot be written to {path!s:.200}: {error}") from error
