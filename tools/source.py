"""What a command is given as URL: shards, or a folder of images."""

import os
import sys
from typing import TYPE_CHECKING

from ..errors import MissingDataError
from .cache import CACHE_VARIABLE
from .progress import show_count

if TYPE_CHECKING:
    from ..datastores import ImageDatastore, ShardDatastore

__all__ = ["open_images"]


def open_images(location: str) -> "ImageDatastore | ShardDatastore":
    """Return the datastore of shards, or of image files, at a place.

    A folder with an index is a folder of shards, whatever else it holds. Without one it is a folder of images if it
    holds any, at any depth; tars beside them are named on stderr, with the way to open them instead. Whatever is no
    folder is shards.

    Raises:
        MissingDataError: there is neither.
        ConfigError, ShardError: what is there cannot be used.
    """
    from ..datastores import ImageDatastore, ShardDatastore
    from ..datastores.index import INDEX_NAME
    from ..datastores.places import is_remote
    from ..datastores.staging import STAGING_NAME
    from ..datastores.storage import LocalStorage, local_path

    if is_remote(location):
        return ShardDatastore(location, cache_dir=os.environ.get(CACHE_VARIABLE))
    folder = local_path(location)
    try:
        names = LocalStorage().names(folder)
    except MissingDataError:
        return ShardDatastore(location)
    if INDEX_NAME in names or STAGING_NAME in names:
        return ShardDatastore(location)
    tars = sorted(name for name in names if name.endswith(".tar") and not name.startswith("."))
    try:
        images = ImageDatastore(location)
    except MissingDataError as error:
        if tars:
            return ShardDatastore(location)
        raise MissingDataError(f"{location} holds neither shards (*.tar) nor images: {error}") from error
    if tars:
        print(
            f"headrace: {location} has no {INDEX_NAME} and holds {show_count(len(images), 'image')} and "
            f"{show_count(len(tars), 'tar')} such as {tars[0]}: these are the images; name the shards "
            f"'{location.rstrip('/')}/*.tar', or make an index with `headrace index {location}`",
            file=sys.stderr,
        )
    return images
