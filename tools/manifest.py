"""A list of image files with labels and further columns: CSV, TSV or JSON lines, read once and never held in memory.

CSV (RFC 4180) and TSV begin with a line of column names; JSON lines hold one object a line. All are UTF-8. Kept are 8
bytes a row for where it begins, and 8 for its label; a row is read again when its turn comes.

One column names the image ("path", "file_name", "filename", "file" or "image"), relative to the manifest's folder
unless it is absolute. One may name the class ("label" or "class"); classes are numbered in natural order of their
names. "key" may name the key, which otherwise is the path without its extension. All other columns become the field
"json".
"""

import csv
import hashlib
import io
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .samples import FilePart, Item

if TYPE_CHECKING:
    from ..datastores.schema import IntArray
    from ..datastores.storage import Readable

__all__ = ["SUFFIXES", "ManifestInput"]

#: How files end that are manifests.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")

_PATHS = ("path", "file_name", "filename", "file", "image")
_LABELS = ("label", "class")
_KEYS = ("key",)
_PIECE = 1 << 20
_MAX_ROW = 1 << 24  # bytes; a manifest that is none may hold no line end at all


class ManifestInput:
    """The rows of a manifest as items.

    Args:
        location: of the manifest.
        keep_extensions: let keys keep the files' extensions.
        with_labels: use the label column.
        path_column: name of the column with paths; None for the first of the usual names.
        label_column: name of the column with classes; None for the first of the usual names, if there is one.

    Raises:
        MissingDataError: there is no such file.
        ConfigError: it is no such list, or lacks a column.
    """

    def __init__(
        self,
        location: str,
        *,
        keep_extensions: bool = False,
        with_labels: bool = True,
        path_column: str | None = None,
        label_column: str | None = None,
    ) -> None:
        import numpy as np

        from ..datastores.listing import natural_key
        from ..datastores.places import open_storage

        self.storage, (self.path,) = open_storage([location])
        self.keep_extensions = keep_extensions
        self._is_json = location.endswith((".jsonl", ".ndjson"))
        self._delimiter = "\t" if location.endswith(".tsv") else ","
        self._file: Readable = self.storage.open(self.path)
        self._columns: list[str] = []
        self._path_column, self._label_column = path_column, label_column
        self._key_column: str | None = None
        self._with_labels = with_labels
        self._starts, self._ends, labels = array("q"), array("q"), array("q")
        self.passed_over: dict[str, int] = {}
        self.bad: list[tuple[str, str]] = []
        numbers: dict[str, int] = {}
        sha256 = hashlib.sha256()
        for line, start, end, values in self._rows(sha256):
            reason = self._reason_against(values)
            if reason:
                self.bad.append((f"line {line}", f"{self.path}, line {line}: {reason}"))
                continue
            self._starts.append(start)
            self._ends.append(end)
            if self._label_column:
                labels.append(numbers.setdefault(_text(values[self._label_column]), len(numbers)))
        self.classes = tuple(sorted(numbers, key=natural_key))
        order = {name: number for number, name in enumerate(self.classes)}
        places = np.array([order[name] for name in numbers], np.int64)
        self._labels = places[np.frombuffer(labels, np.int64)] if labels else None
        options = (keep_extensions, self._path_column, self._label_column)
        self.fingerprint = hashlib.sha256(repr((sha256.hexdigest(), options)).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._starts)

    def _rows(self, sha256: Any) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
        """Go through the manifest once: (number of its first line, first byte, byte behind the last, values)."""
        reader = _Lines(self._file, self.path, sha256)
        if not self._is_json:
            self._columns = next(self._records(reader), []) or []  # None: an empty line
            self._choose(self._columns)
        start, line = reader.position, reader.line + 1
        for record in self._records(reader):
            if record is not None:
                values = self._named(record)
                if not self._columns and values:
                    self._choose(list(values))
                yield line, start, reader.position, values
            start, line = reader.position, reader.line + 1

    def _records(self, lines: "_Lines") -> Iterator[Any]:
        try:
            if self._is_json:
                yield from map(_object, lines)
            else:
                yield from (row or None for row in csv.reader(lines, delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise ConfigError(f"{self.path}, line {lines.line} cannot be read: {error}: repair it") from error

    def _named(self, record: Any) -> dict[str, Any]:
        """Return the values of a row by column; none if it does not have the form of a row."""
        if self._is_json:
            return dict(record) if isinstance(record, dict) else {}
        return dict(zip(self._columns, record, strict=True)) if len(record) == len(self._columns) else {}

    def _choose(self, columns: Sequence[str]) -> None:
        """Find out which columns are what."""
        if len(set(columns)) < len(columns):
            raise ConfigError(f"{self.path} has two columns of one name: {', '.join(columns)}: rename one")
        self._path_column = _chosen(self.path, columns, self._path_column, _PATHS, "--path-column")
        self._key_column = next((name for name in _KEYS if name in columns), None)
        if not self._with_labels:
            self._label_column = None
        elif self._label_column or set(columns) & set(_LABELS):
            self._label_column = _chosen(self.path, columns, self._label_column, _LABELS, "--label-column")
        self._columns = list(columns)

    def _reason_against(self, values: dict[str, Any]) -> str | None:
        """Say why a row is no sample, or return None."""
        from ..datastores.listing import IMAGE_EXTENSIONS, extension

        if not values:
            return "it is no JSON object" if self._is_json else f"it does not have {len(self._columns)} values"
        path = values.get(str(self._path_column))
        if not isinstance(path, str) or not path or "\0" in path:
            return f"its {self._path_column} is {path!r:.60}, no path"
        if extension(path.rpartition("/")[2]) not in IMAGE_EXTENSIONS:
            return f"{path!r:.60} has no extension of an image format"
        if self._label_column and not _is_label(values.get(self._label_column)):
            return f"its {self._label_column} is {values.get(self._label_column)!r:.60}, no class"
        if self._key_column and not (isinstance(values.get(self._key_column), str) and values[self._key_column]):
            return f"its {self._key_column} is {values.get(self._key_column)!r:.60}, no key"
        return None

    def _values(self, index: int) -> dict[str, Any]:
        start, end = self._starts[index], self._ends[index]
        text = self._file.read(start, end - start).decode("utf-8-sig" if start == 0 else "utf-8")
        if self._is_json:
            return self._named(json.loads(text))
        return self._named(next(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter, strict=True)))

    def key(self, index: int) -> str:
        """Return the key that the row names, or its path without the extension."""
        return self._key_of(self._values(index))

    def _key_of(self, values: dict[str, Any]) -> str:
        if self._key_column:
            return str(values[self._key_column])
        path = str(os.path.normpath(values[str(self._path_column)])).lstrip("/")
        return path if self.keep_extensions else path.rpartition(".")[0]

    def item(self, index: int) -> Item:
        """Return a row: its image, its class, and what else it holds as JSON."""
        values = self._values(index)
        path = str(values[str(self._path_column)])
        file = path if "://" in path or path.startswith("/") else f"{os.path.dirname(self.path)}/{path}"  # noqa: PTH120
        fields: list[tuple[str, bytes | FilePart]] = [(path.rpartition(".")[2].lower(), FilePart(file))]
        if self._labels is not None:
            fields.append(("cls", b"%d" % self._labels[index]))
        known = {self._path_column, self._label_column, self._key_column}
        others = {name: value for name, value in values.items() if name not in known}
        if others:
            fields.append(("json", json.dumps(others).encode("ascii")))
        return Item(self._key_of(values), path, file, tuple(fields))

    def labels(self) -> "IntArray":
        """Return the class number of every row.

        Raises:
            ConfigError: there is no label column.
        """
        if self._labels is None:
            raise ConfigError(f"{self.path} has no labels: name their column with --label-column")
        return self._labels


class _Lines:
    """The lines of a file as text, with the byte that the next one begins at, and the number of the last one."""

    def __init__(self, file: "Readable", where: str, sha256: Any) -> None:
        self.position = 0
        self.line = 0
        self._file = file
        self._where = where
        self._sha256 = sha256
        self._lines = self._read()

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def _read(self) -> Iterator[str]:
        rest = b""
        for offset in range(0, self._file.size, _PIECE):
            piece = self._file.read(offset, min(_PIECE, self._file.size - offset))
            self._sha256.update(piece)
            *whole, rest = (rest + piece).split(b"\n")
            for raw in whole:
                yield self._text(raw + b"\n")
            if len(rest) > _MAX_ROW:
                raise ConfigError(f"{self._where} has a line of more than {_MAX_ROW} bytes: it is no list of images")
        if rest:
            yield self._text(rest)

    def _text(self, raw: bytes) -> str:
        encoding = "utf-8" if self.position else "utf-8-sig"
        self.position += len(raw)
        self.line += 1
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self._where}, line {self.line} is no UTF-8 ({error}): convert the file") from error


def _chosen(where: str, columns: Sequence[str], wanted: str | None, usual: tuple[str, ...], option: str) -> str:
    found = [name for name in ([wanted] if wanted else usual) if name in columns]
    if not found:
        raise ConfigError(
            f"{where} has no column {wanted or ', '.join(usual)}: it has {', '.join(columns) or 'none'}: name the "
            f"column with {option}"
        )
    return found[0]


def _object(line: str) -> Any:
    """Return what a line of JSON holds, None for an empty one."""
    try:
        return json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        return line


def _is_label(value: Any) -> bool:
    return (isinstance(value, str) and value != "") or type(value) is int


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
