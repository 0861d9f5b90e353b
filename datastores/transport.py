"""One request to a place that fsspec knows; each scheme that deserves better than fsspec's common calls has its own.

A transport belongs to one process. It asks once, checks the answer against what was asked, and raises whatever its
library raises: ``remote.py`` asks again and explains.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import ConfigError
from .failures import BadAnswerError

__all__ = ["Answer", "CommonTransport", "Stat", "Transport", "check_answer", "load_filesystem", "name_in"]

_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "http": "http",
    "https": "http",
}

#: What tells two objects of one name apart, by the names that fsspec's implementations give it, best first.
_MARKS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "updated",
          "modified", "created")  # fmt: skip

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of an object before it is read.

    Args:
        size: bytes.
        mark: text that changes with the object: an ETag or a time; "" if the server gives neither.
    """

    size: int
    mark: str

    @property
    def identity(self) -> str:
        """Size and mark as one text."""
        return f"{self.size}-{self.mark}"


class Transport(Protocol):
    """How one process talks to one kind of place. Addresses are whole URLs."""

    def stat(self, url: str) -> Stat:
        """Ask for size and mark of an object."""

    def read(self, url: str, offset: int, length: int, stat: Stat) -> bytes:
        """Return exactly these bytes (at least one) of the object that ``stat`` describes, or raise."""

    def names(self, url: str) -> list[str]:
        """Return the names of what lies in a folder."""

    def write(self, url: str, data: bytes) -> None:
        """Create or replace an object at once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer to a request for a range.

    Args:
        status: 206 if it is one.
        content_range: header of this name, "" without.
        mark: see ``Stat``.
        encoding: header Content-Encoding, "" without.
        kind: header Content-Type, "" without.
    """

    status: int
    content_range: str
    mark: str
    encoding: str = ""
    kind: str = ""

    def range(self) -> tuple[int, int, int]:
        """Return first byte, byte behind the last, and size of the whole object.

        Raises:
            BadAnswerError: the answer is no range of the object as it is stored.
        """
        if self.encoding not in ("", "identity"):
            raise BadAnswerError(
                f"the server packs it on the way (Content-Encoding {self.encoding[:20]}), so that byte ranges mean "
                "nothing: switch that off for this place"
            )
        if self.kind.startswith("text/html"):
            raise BadAnswerError("the server answered with a web page, perhaps of an error or a log-in: check the URL")
        if self.status != 206:
            raise BadAnswerError(
                f"the server ignores Range (it answered {self.status}): use one that serves ranges, such as nginx, "
                "or copy the shards to a disk"
            )
        match = _CONTENT_RANGE.fullmatch(self.content_range)
        if match is None:
            raise BadAnswerError(f"the server answered with Content-Range {self.content_range[:60]!r}", again=True)
        return int(match[1]), int(match[2]) + 1, int(match[3])


def check_answer(answer: Answer, offset: int, length: int, stat: Stat) -> None:
    """Make sure that an answer is the range that was asked for, of the object that was asked for.

    Raises:
        BadAnswerError: it is not; the reason says why.
    """
    first, end, size = answer.range()
    if (size, answer.mark) != (stat.size, stat.mark):
        found = Stat(size, answer.mark).identity
        raise BadAnswerError(
            f"it was replaced since it was first seen (it was {stat.identity}, now {found}): start anew",
            replaced=True,
        )
    if (first, end) != (offset, offset + length):
        raise BadAnswerError(
            f"asked for bytes {offset} to {offset + length}, the server answered with {first} to {end}", again=True
        )


def load_filesystem(scheme: str) -> Callable[..., Any]:
    """Return fsspec's class for a scheme.

    Raises:
        ConfigError: fsspec does not know it, or what it needs is not installed.
    """
    import fsspec

    try:
        found: Callable[..., Any] = fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise ConfigError(
            f"{scheme}:// is no place that can be read: use a local path or a scheme of fsspec"
        ) from error
    except ImportError as error:
        what = f"pip install 'headrace[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else str(error)
        raise ConfigError(f"{scheme}:// needs a package that is not installed: {what}") from error
    return found


def name_in(folder: str, path: str) -> str | None:
    """Return the name under which a path lies directly in a folder, or None if it does not.

    Example:
        >>> name_in("b/train", "b/train/x.tar"), name_in("b/train", "b/train"), name_in("b", "b/train/x.tar")
        ('x.tar', None, None)
    """
    inside = path.strip("/").removeprefix(f"{folder.strip('/')}/" if folder.strip("/") else "")
    return inside if inside and "/" not in inside and inside != folder.strip("/") else None


class CommonTransport:
    """What fsspec's common calls can do. They cannot ask for one version of an object, so it is looked at again.

    Args:
        filesystem: fsspec's class.
        options: its arguments.
    """

    def __init__(self, filesystem: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._files = filesystem(skip_instance_cache=True, **options)

    def stat(self, url: str) -> Stat:
        """Ask for size and mark of an object."""
        self._files.invalidate_cache()
        found = self._files.info(url)
        if found.get("type") == "directory" or not isinstance(found.get("size"), int):
            raise FileNotFoundError
        return Stat(found["size"], next((str(found[mark]) for mark in _MARKS if found.get(mark)), ""))

    def read(self, url: str, offset: int, length: int, stat: Stat) -> bytes:
        """Return exactly these bytes of the object that ``stat`` describes."""
        data: bytes = self._files.cat_file(url, start=offset, end=offset + length)
        found = self.stat(url)
        check_answer(
            Answer(206, f"bytes {offset}-{offset + len(data) - 1}/{found.size}", found.mark), offset, length, stat
        )
        return data

    def names(self, url: str) -> list[str]:
        """Return the names of what lies in a folder."""
        self._files.invalidate_cache()
        folder = self._files._strip_protocol(url)  # noqa: SLF001 - fsspec has no public name for it
        found = self._files.ls(folder, detail=False)
        names = [name for path in found if (name := name_in(folder, path)) is not None]
        if found and not names:
            raise FileNotFoundError  # it is a file
        return names

    def write(self, url: str, data: bytes) -> None:
        """Create or replace an object at once."""
        self._files.pipe_file(url, data)
