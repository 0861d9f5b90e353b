"""Image files in folders, as a datastore."""

import math
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np

from ..augment.random import philox4x32
from ..augment.ranges import shown
from ..errors import ConfigError, MissingDataError, SampleError, ShardError
from .counts import show_count
from .datastore import EncodedImage, ImageSource, fingerprint_of
from .listing import BROKEN_LINK, EMPTY_FILE, IMAGE_EXTENSIONS, ImageFiles, list_images, natural_key
from .schema import IntArray
from .storage import Location, as_locations, local_path, read_file

__all__ = ["ImageDatastore", "LabelSource"]

#: Where labels come from; see ``ImageDatastore``.
LabelSource = Literal["auto", "foldernames"] | None


class ImageDatastore(ImageSource):
    """Image files in folders; nothing but names and sizes is read before a sample is asked for.

    Sub-folders come in natural order ("2" before "10"), the files of a folder in plain order of their names. The class
    of an image is the name of the folder that it lies in; classes are numbered in natural order of their names. A
    sample is {"image": uint8 (H, W, 3), "label": int, where there are labels, "key": path relative to ``root``}.

    Args:
        location: a folder, a file, or a list of them; local paths or ``file://``.
        include_subfolders: search folders at any depth, or take their own files only.
        label_source: "foldernames" takes the name of the folder that an image lies in; None gives no labels; "auto"
            (default) is "foldernames" for one folder whose images all lie in sub-folders, and None otherwise.
        file_extensions: which files are images, with or without a dot, in any case; default: the formats that can be
            decoded (``listing.IMAGE_EXTENSIONS``). Hidden, empty and other files are passed over and counted in
            ``skipped``. A file that is named one by one may have any extension, if it begins as an image does.
        classes: the names of all classes, in the order of their numbers, such as ``train.classes`` for validation data:
            numbers then agree where a folder is missing. Default: the folders that hold images, in natural order.

    Raises:
        MissingDataError: a location is not there, or there is no image.
        ConfigError: an argument cannot work, "auto" finds images both in the folder itself and in sub-folders, or
            images lie in a folder that is none of ``classes``.

    Example:
        >>> import tempfile, pathlib
        >>> folder = tempfile.TemporaryDirectory()
        >>> for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        ...     path = pathlib.Path(folder.name, name)
        ...     path.parent.mkdir(exist_ok=True)
        ...     _ = path.write_bytes(b"not read yet")
        >>> images = ImageDatastore(folder.name)
        >>> len(images), images.classes, images.labels.tolist(), images.key(2)
        (3, ('cat', 'dog'), [0, 0, 1], 'dog/1.jpg')
        >>> folder.cleanup()
    """

    def __init__(
        self,
        location: Location,
        *,
        include_subfolders: bool = True,
        label_source: LabelSource = "auto",
        file_extensions: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        if label_source not in ("auto", "foldernames", None):
            raise ConfigError(f'label_source must be "auto", "foldernames" or None, got {label_source!r}')
        if classes is not None:
            _check_classes(classes, label_source)
            label_source = "foldernames"
        paths = [local_path(one) for one in as_locations(location)]
        extensions = IMAGE_EXTENSIONS if file_extensions is None else [e.lower().lstrip(".") for e in file_extensions]
        self._files = list_images(paths, include_subfolders=include_subfolders, extensions=extensions)
        if not len(self._files):
            raise _no_images(location, self._files)
        if label_source == "auto":
            label_source = _auto_labels(self._files) if len(paths) == 1 else None
        self._classes: tuple[str, ...] = ()
        self._folder_labels: IntArray | None = None
        if label_source == "foldernames":
            self._name_classes(classes)

    def _name_classes(self, classes: Sequence[str] | None) -> None:
        root_name = self._files.root.rpartition("/")[2]
        names = [folder.rpartition("/")[2] or root_name for folder in self._files.folders]
        self._classes = tuple(sorted(set(names), key=natural_key) if classes is None else classes)
        unknown = sorted(set(names) - set(self._classes), key=natural_key)
        if unknown:
            more = " and more" if len(self._classes) > 10 else ""
            raise ConfigError(
                f"{self._files.root} has images in folders that are no classes ({', '.join(unknown[:10])}): there are "
                f"{', '.join(self._classes[:10])}{more}; rename or remove the folders, or add them to the classes"
            )
        numbers = {name: number for number, name in enumerate(self._classes)}
        self._folder_labels = np.array([numbers[name] for name in names], np.int64)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        text, lost = super().__repr__(), self.skipped.get(EMPTY_FILE, 0) + self.skipped.get(BROKEN_LINK, 0)
        return f"{text[:-1]}; {show_count(lost, 'empty or broken file')} passed over>" if lost else text

    def encoded(self, ids: IntArray) -> list[EncodedImage]:
        """Read whole files.

        Raises:
            MissingDataError: a file is gone.
            SampleError: a file cannot be read.
        """
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"sample ids must be in 0 .. {len(self) - 1}, got {ids.min()} .. {ids.max()}")
        labels = [None] * len(ids) if self._folder_labels is None else self.labels_of(ids).tolist()
        return [
            EncodedImage(_read(self._files.path(index)), label)
            for index, label in zip(ids.tolist(), labels, strict=True)
        ]

    @property
    def root(self) -> str:
        """The folder that all images lie in; keys are relative to it."""
        return self._files.root

    @property
    def skipped(self) -> dict[str, int]:
        """Reason -> number of files and folders that were passed over."""
        return dict(self._files.skipped)

    @property
    def empty_files(self) -> tuple[str, ...]:
        """Image files of no bytes, which were passed over; paths relative to ``root``."""
        return self._files.empty

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the folders that hold images, in natural order, or as given; empty without labels."""
        return self._classes

    @property
    def has_labels(self) -> bool:
        """Whether the folders' names are the labels."""
        return self._folder_labels is not None

    @property
    def labels(self) -> IntArray:
        """The class number of every sample, int64 (n,).

        Raises:
            ConfigError: there are no labels.
        """
        return self.labels_of(np.arange(len(self)))

    def labels_of(self, ids: IntArray) -> IntArray:
        """Return the class numbers of the samples ``ids``, int64 (n,).

        Raises:
            ConfigError: there are no labels.
        """
        if self._folder_labels is None:
            raise ConfigError(f'the images in {self.root} have no labels: pass label_source="foldernames"')
        return self._folder_labels[self._files.folder_of[ids]]

    def class_folders(self) -> dict[str, tuple[str, ...]]:
        """Return class name -> the folders, relative to ``root``, that its images lie in; empty without labels."""
        found: dict[str, list[str]] = {name: [] for name in self._classes}
        if self._folder_labels is not None:
            for folder, label in zip(self._files.folders, self._folder_labels.tolist(), strict=True):
                found[self._classes[label]].append(folder)
        return {name: tuple(folders) for name, folders in found.items()}

    def key(self, index: int) -> str:
        """Return the path relative to ``root``, with ``/``."""
        return self._files.relative(index)

    def locate(self, index: int) -> str:
        """Return the absolute path of the file."""
        return self._files.path(index)

    def size(self, index: int) -> int:
        """Return the bytes of a file, as they were when it was listed."""
        return int(self._files.sizes[index])

    @property
    def fingerprint(self) -> str:
        """A digest of relative paths, sizes and classes.

        Contents are not read: a file that was changed without changing its size is not noticed.
        """
        return fingerprint_of("images", self._files.digest, self._classes, self.has_labels)

    def count_each_label(self) -> dict[str, int]:
        """Return class name -> number of images, in class order.

        Raises:
            ConfigError: there are no labels.
        """
        counts = np.bincount(self.labels, minlength=len(self._classes))
        return dict(zip(self._classes, counts.tolist(), strict=True))

    def split_each_label(
        self,
        *parts: float,
        randomized: bool = False,
        seed: int = 0,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
    ) -> list[Self]:
        """Divide the images of every class in the same way; the class numbers stay what they are.

        Args:
            parts: shares between 0 and 1 of each class, or whole numbers of images per class, for all parts but the
                last, which gets the rest. Boundaries are rounded to the nearest image.
            randomized: draw which images go where, or take them in stored order.
            seed: of that draw.
            include: use these classes only; default: all.
            exclude: leave these classes out.

        Returns:
            One datastore more than ``parts``, each in stored order; a part may be empty.

        Raises:
            ConfigError: the parts are more than there is or of mixed kinds, a class is unknown, or there are no labels.

        Example:
            ``train, validation, test = images.split_each_label(0.8, 0.1, randomized=True)``
        """
        _check_parts(parts)
        labels = self.labels
        members: list[list[IntArray]] = [[] for _ in range(len(parts) + 1)]
        for number in self._chosen(include, exclude):
            ids = np.flatnonzero(labels == number)
            if randomized:
                ids = ids[_random_order(ids, seed)]
            for part, chosen in zip(members, np.split(ids, self._boundaries(parts, len(ids), number)), strict=True):
                part.append(chosen)
        return [self._select(np.sort(np.concatenate(part))) for part in members]

    def _chosen(self, include: Sequence[str] | None, exclude: Sequence[str]) -> list[int]:
        wanted = set(self._classes if include is None else include)
        unknown = sorted((wanted | set(exclude)) - set(self._classes))
        if unknown or not wanted - set(exclude):
            raise ConfigError(f"no class is left, or some are unknown ({unknown}): there are {list(self._classes)}")
        return [number for number, name in enumerate(self._classes) if name in wanted - set(exclude)]

    def _boundaries(self, parts: tuple[float, ...], count: int, number: int) -> list[int]:
        ends = np.cumsum(parts)
        if parts[0] < 1:
            return [math.floor(end * count + 0.5) for end in ends.tolist()]
        if ends[-1] > count:
            raise ConfigError(f"{list(parts)} images per class asked for: {self._classes[number]!r} has only {count}")
        return [int(end) for end in ends]

    def _select(self, ids: IntArray) -> Self:
        part = type(self).__new__(type(self))
        part._files = self._files.select(ids)  # noqa: SLF001 - of the same class
        part._classes, part._folder_labels = self._classes, self._folder_labels  # noqa: SLF001
        return part


def _check_classes(classes: Sequence[str], label_source: LabelSource) -> None:
    names = list(classes) if isinstance(classes, Sequence) and not isinstance(classes, str) else []
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(f'classes must be a list of different names, such as ["cat", "dog"], got {shown(classes)}')
    if label_source is None:
        raise ConfigError("classes are for labels, and label_source=None (--labels none) asks for none: leave one out")


def _check_parts(parts: tuple[float, ...]) -> None:
    shares = all(isinstance(part, float) and 0 < part < 1 for part in parts) and sum(parts) <= 1 + 1e-9
    counts = all(isinstance(part, int) and part > 0 for part in parts)
    if not parts or not (shares or counts):
        raise ConfigError(
            "parts must be shares between 0 and 1 that sum up to at most 1, or whole numbers of images, got "
            f"{list(parts)}"
        )


def _random_order(ids: IntArray, seed: int) -> IntArray:
    """Return a permutation that depends on the seed and on these ids only."""
    counter = np.zeros((len(ids), 4), np.uint32)
    counter[:, 0], counter[:, 1] = ids & 0xFFFFFFFF, ids >> 32
    words = philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    return np.lexsort((words[:, 1], words[:, 0]))


def _auto_labels(files: ImageFiles) -> LabelSource:
    flat = [folder == "" for folder in files.folders]
    if all(flat):
        return None
    if any(flat):
        raise ConfigError(
            f"{files.root} holds images itself ({files.name(0)}) and in sub-folders ({files.folders[-1]}), so it is "
            'not clear what the classes are: move them, or choose label_source="foldernames" or None (on the command '
            "line: --labels foldernames or none)"
        )
    return "foldernames"


def _no_images(location: Location, files: ImageFiles) -> MissingDataError:
    found = ", ".join(f"{reason}: {count}" for reason, count in sorted(files.skipped.items())) or "nothing"
    return MissingDataError(
        f"no images in {location} (looked for {', '.join(IMAGE_EXTENSIONS)}; found {found}): check the path, or pass "
        "file_extensions or include_subfolders=True"
    )


def _read(path: str) -> bytes:
    try:
        return read_file(path)
    except ShardError as error:
        raise SampleError(str(error)) from error
