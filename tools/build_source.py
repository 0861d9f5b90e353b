"""From what a user names as SRC to what ``headrace build`` reads: images, a manifest or tars."""

import argparse
import os
import stat
from pathlib import Path

from ..errors import ConfigError, MissingDataError
from .class_list import read_classes
from .inputs import FolderInput, Input, ShardInput
from .manifest import SUFFIXES, ManifestInput
from .progress import Progress

__all__ = ["open_source"]


def open_source(options: argparse.Namespace) -> Input:
    """Find out what SRC is, and list it.

    A folder with an index is tars. Without one it is images if there are any, at any depth, and else tars.

    Raises:
        MissingDataError, ShardError: something is not there, or cannot be read.
        ConfigError: SRC, or an option, cannot work.
    """
    manifests = [name for name in options.source if name.lower().endswith(SUFFIXES)]
    if len(options.source) > 1 and manifests:
        raise ConfigError(f"{manifests[0]} is a manifest, which is built on its own: name one SRC")
    for name in options.source:
        _check_folders(name, options.destination)
    source: Input | None = None
    if manifests:
        source = ManifestInput(
            manifests[0],
            keep_extensions=options.keep_extensions,
            with_labels=options.labels != "none",
            path_column=options.path_column,
            label_column=options.label_column,
        )
        if not len(source):
            first = f": {source.bad[0][1]}" if source.bad else ""
            raise MissingDataError(f"no images in {manifests[0]}{first}: check the file")
    elif len(options.source) > 1 or _names_tars(options.source[0]):
        source = _open_shards(options)
    else:
        source = _open_folder(options)
    _check_options(source, options)
    return source


def _check_folders(source: str, destination: str) -> None:
    from ..datastores.storage import local_path, os_failure

    if _is_remote(source):
        return
    # realpath, since Path.resolve fails for links that lead to themselves
    from_folder, to_folder = (Path(os.path.realpath(local_path(name))) for name in (source, destination))
    try:
        is_folder = stat.S_ISDIR(from_folder.stat().st_mode)
    except FileNotFoundError as error:
        if set(source) & set("*?[{"):
            return
        raise MissingDataError(f"{source} is not there: check the path") from error
    except OSError as error:
        raise os_failure(error, f"looking for {source}") from error
    if not is_folder and not source.lower().endswith((".tar", *SUFFIXES)):
        raise ConfigError(f"{source} is a file: name a folder of images, a manifest ({', '.join(SUFFIXES)}) or tars")
    if is_folder and to_folder.is_relative_to(from_folder):
        raise ConfigError(f"{destination} lies inside {source}: name a folder outside of it for the shards")


def _is_remote(location: str) -> bool:
    from ..datastores.remote import scheme_of

    return scheme_of(location) not in ("", "file")


def _names_tars(location: str) -> bool:
    """Whether a location is tars: by its name, or since an index, or a build, lies there."""
    from ..datastores.index import INDEX_NAME
    from ..datastores.places import open_storage
    from ..datastores.staging import STAGING_NAME

    if location.endswith(".tar") or set(location) & set("*?[{") or _is_remote(location):
        return True
    storage, (folder,) = open_storage([location])
    return bool({INDEX_NAME, STAGING_NAME} & set(storage.names(folder)))


def _open_folder(options: argparse.Namespace) -> Input:
    from ..datastores.image import ImageDatastore
    from ..datastores.places import open_storage

    location = options.source[0]
    try:
        images = ImageDatastore(
            location,
            label_source=None if options.labels == "none" else options.labels,
            classes=None if options.classes is None else read_classes(options.classes),
        )
    except MissingDataError:
        storage, (folder,) = open_storage([location])
        if any(name.endswith(".tar") and not name.startswith(".") for name in storage.names(folder)):
            return _open_shards(options)
        raise
    return FolderInput(images, keep_extensions=options.keep_extensions)


def _open_shards(options: argparse.Namespace) -> Input:
    from ..datastores.shards import ShardReader

    with Progress("headrace build: scanning", None, "shards", quiet=options.quiet) as progress:
        shards = ShardReader(options.source, on_scan=progress.advance)
    fields: tuple[str, ...] | None = options.fields
    if options.labels == "none":
        fields = tuple(name for name in fields or shards.index.fields if name != "cls")
    return ShardInput(shards, fields)


def _check_options(source: Input, options: argparse.Namespace) -> None:
    """Refuse options that would silently do nothing."""
    kinds = {FolderInput: "images", ManifestInput: "manifest", ShardInput: "tars"}
    kind = kinds[type(source)]
    for name, serves in (
        ("fields", ("tars",)),
        ("path_column", ("manifest",)),
        ("label_column", ("manifest",)),
        ("keep_extensions", ("images", "manifest")),
        ("classes", ("images",)),
    ):
        if getattr(options, name) and kind not in serves:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is for {' or '.join(serves)}, and {options.source[0]} is {kind}: leave it out")
    if options.labels == "foldernames" and kind != "images":
        raise ConfigError(f"--labels foldernames is for folders of images, and {options.source[0]} is {kind}")
