"""Which image files there are: folders walked once, names kept in a few arrays instead of millions of strings."""

import hashlib
import os
import re
import stat
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .datastore import as_index
from .headers import kind_of
from .heif import codec_of
from .schema import IntArray
from .storage import os_failure

__all__ = ["BROKEN_LINK", "EMPTY_FILE", "IMAGE_EXTENSIONS", "ImageFiles", "extension", "list_images", "natural_key"]

#: Formats that ``decode`` reads, as file extensions in lower case.
IMAGE_EXTENSIONS = (
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "avif",
    "heic", "heif", "hif",
)  # fmt: skip

#: The reasons under which files are counted that are images by name and not in fact.
EMPTY_FILE, BROKEN_LINK = "empty file", "broken link, or no regular file"

_HEAD = 512  # bytes that tell what kind of image a file is

_DIGITS = re.compile(r"([0-9]+)")


def natural_key(text: str) -> tuple[list[str | int], str]:
    """Return a sort key under which "2" comes before "10", and equal texts only are equal.

    Example:
        >>> sorted(["10", "2", "b10", "b9", "a"], key=natural_key)
        ['2', '10', 'a', 'b9', 'b10']
    """
    parts = _DIGITS.split(text)
    return [int(part) if position % 2 else part for position, part in enumerate(parts)], text


def extension(name: str) -> str:
    """Return what follows the last dot of a file name, in lower case; "" without one.

    Example:
        >>> extension("my.photo.JPG"), extension("README")
        ('jpg', '')
    """
    return name.rpartition(".")[2].lower() if "." in name else ""


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """A list of files, about 30 bytes and the name for each.

    Args:
        root: folder that all of them lie in, an absolute path.
        folders: relative to ``root``, with ``/``; "" is ``root`` itself.
        folder_of: int32 (n,), position in ``folders`` of each file.
        names: file names one after the other, as the file system spells them.
        starts: int64 (n + 1), positions in ``names``.
        sizes: int64 (n,), bytes of each file.
        skipped: reason -> number of files and folders that were passed over.
        empty: relative paths of the files that were passed over because they hold nothing.
    """

    root: str
    folders: tuple[str, ...]
    folder_of: NDArray[np.int32]
    names: bytes
    starts: IntArray
    sizes: IntArray
    skipped: Counter[str]
    empty: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, index: int) -> str:
        """Return the name of file ``index``, without its folder."""
        return os.fsdecode(self.names[self.starts[index] : self.starts[index + 1]])

    def relative(self, index: int) -> str:
        """Return the path of file ``index`` relative to the root, with ``/``."""
        index = as_index(index)
        folder = self.folders[self.folder_of[index]]
        return f"{folder}/{self.name(index)}" if folder else self.name(index)

    def path(self, index: int) -> str:
        """Return the absolute path of file ``index``."""
        return f"{self.root}/{self.relative(index)}"

    def select(self, ids: IntArray) -> Self:
        """Return the files ``ids`` only, in this order."""
        pieces = [self.names[self.starts[i] : self.starts[i + 1]] for i in ids.tolist()]
        return type(self)(
            self.root,
            self.folders,
            self.folder_of[ids],
            b"".join(pieces),
            _starts(np.array([len(piece) for piece in pieces], np.int64)),
            self.sizes[ids],
            Counter(),
            (),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all relative paths and sizes, in order."""
        sha256 = hashlib.sha256(repr(self.folders).encode("utf-8", "surrogateescape"))
        for part in (self.folder_of, self.starts, self.sizes):
            sha256.update(part.tobytes())
        sha256.update(self.names)
        return sha256.hexdigest()


def _starts(lengths: IntArray) -> IntArray:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def list_images(paths: Sequence[str], *, include_subfolders: bool, extensions: Collection[str]) -> ImageFiles:
    """Find the image files in folders, and take files that are named one by one.

    Sub-folders come in natural order ("2" before "10"), the files of a folder in plain order of their names and before
    its sub-folders. Passed over and counted: hidden files and folders, ``__MACOSX``, files with other extensions, empty
    files, broken links. Symbolic links are followed; a folder that is met a second time is passed over, so loops end.

    Args:
        paths: absolute paths of folders and files.
        include_subfolders: whether folders are searched at any depth, or their own files are taken only.
        extensions: in lower case, without the dot; files that are named one by one may have any, if they begin as
            images do.

    Raises:
        MissingDataError: a path is not there.
        ConfigError: a path is neither a file nor a folder, or a file that is no image by name or content.
        ShardError: a folder cannot be read.
    """
    tops = [Path(path) if Path(path).is_dir() else Path(path).parent for path in paths]
    walk = _Walk(os.path.commonpath(tops), include_subfolders, extensions)
    for path, top in zip(map(Path, paths), tops, strict=True):
        if path == top:
            walk.add_folder(str(path))
        else:
            walk.add_file(path)
    return walk.files()


class _Folder:
    """The files that were found in one folder, packed."""

    def __init__(self, path: str, files: Iterable[tuple[str, int]] = ()) -> None:
        self.path = path
        self.names = bytearray()
        self.lengths: array[int] = array("q")
        self.sizes: array[int] = array("q")
        for name, size in files:
            self.put(name, size)

    def put(self, name: str, size: int) -> None:
        raw = os.fsencode(name)
        self.names += raw
        self.lengths.append(len(raw))
        self.sizes.append(size)


class _Walk:
    """Collects files; what it has found in a folder is packed before it goes on to the next one."""

    def __init__(self, root: str, include_subfolders: bool, extensions: Collection[str]) -> None:
        self.root = root
        self.include_subfolders = include_subfolders
        self.extensions = frozenset(extensions)
        self.folders: list[_Folder] = []
        self.skipped: Counter[str] = Counter()
        self.empty: list[str] = []
        self._seen: set[tuple[int, int]] = set()
        self._pending: list[str] = []
        self._pending_links: list[str] = []

    def add_folder(self, top: str) -> None:
        found = []
        self._pending = [top]
        while self._pending or self._pending_links:  # links last: a real folder keeps its own name
            self._pending_links.sort(reverse=True)  # in an order that no file system decides
            path = self._pending.pop() if self._pending else self._pending_links.pop()
            files = self._files_of(path)
            if files:
                found.append(_Folder(self._relative(path), files))
        self.folders += sorted(found, key=lambda folder: [natural_key(part) for part in folder.path.split("/")])

    def add_file(self, path: Path) -> None:
        try:
            state = path.stat()
        except OSError as error:
            raise os_failure(error, f"looking for images at {path}") from error
        if not stat.S_ISREG(state.st_mode):
            raise ConfigError(f"{path} is neither a file nor a folder: name image files or folders")
        if extension(path.name) not in self.extensions:
            _check_image(path)
        if not state.st_size:
            self.skipped[EMPTY_FILE] += 1
            self.empty.append(self._relative(str(path)))
            return
        folder = self._relative(str(path.parent))
        if not self.folders or self.folders[-1].path != folder:
            self.folders.append(_Folder(folder))
        self.folders[-1].put(path.name, state.st_size)

    def _relative(self, path: str) -> str:
        return path[len(self.root) :].strip("/")

    def _files_of(self, folder: str) -> list[tuple[str, int]]:
        """Return (name, bytes) of the images in one folder, sorted; note its sub-folders for later."""
        try:
            state = os.stat(folder)  # noqa: PTH116 - a Path per folder and file would double the time
            if (state.st_dev, state.st_ino) in self._seen:
                self.skipped["folder that is met again"] += 1
                return []
            self._seen.add((state.st_dev, state.st_ino))
            with os.scandir(folder) as entries:
                return sorted(file for entry in entries if (file := self._examine(entry)) is not None)
        except OSError as error:
            raise os_failure(error, f"listing {folder}") from error

    def _examine(self, entry: os.DirEntry[str]) -> tuple[str, int] | None:
        """Return (name, bytes) of an image file; note a folder; count what is passed over."""
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            self.skipped["hidden file or folder"] += 1
        elif _is_folder(entry):
            if self.include_subfolders:
                (self._pending_links if entry.is_symlink() else self._pending).append(entry.path)
            else:
                self.skipped["sub-folder"] += 1
        elif extension(entry.name) not in self.extensions:
            self.skipped["other extension"] += 1
        elif (size := _size(entry)) is None:
            self.skipped[BROKEN_LINK] += 1
        elif size == 0:
            self.skipped[EMPTY_FILE] += 1
            self.empty.append(self._relative(entry.path))
        else:
            return entry.name, size
        return None

    def files(self) -> ImageFiles:
        counts = [len(folder.sizes) for folder in self.folders]
        return ImageFiles(
            self.root,
            tuple(folder.path for folder in self.folders),
            np.repeat(np.arange(len(counts), dtype=np.int32), counts),
            b"".join(folder.names for folder in self.folders),
            _starts(_joined([folder.lengths for folder in self.folders])),
            _joined([folder.sizes for folder in self.folders]),
            self.skipped,
            tuple(self.empty),
        )


def _check_image(path: Path) -> None:
    """Raise ConfigError if a file does not begin as an image does."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise os_failure(error, f"reading {path}") from error
    if head and kind_of(head) is None and codec_of(head) is None:
        raise ConfigError(
            f"{path} is no image: it begins with {head[:12]!r}, and its name ends in none of "
            f"{', '.join(IMAGE_EXTENSIONS)}"
        )


def _joined(columns: "Sequence[array[int]]") -> IntArray:
    return np.concatenate([np.frombuffer(column, np.int64) for column in columns] or [np.zeros(0, np.int64)])


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link to itself


def _size(entry: os.DirEntry[str]) -> int | None:
    """Return the bytes of a regular file, or None if it is none."""
    try:
        state = entry.stat()
    except OSError:
        return None  # a link to nowhere or to itself
    return state.st_size if stat.S_ISREG(state.st_mode) else None
