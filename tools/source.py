"""What a command is given as URL: shards, or a folder of images."""

from typing import TYPE_CHECKING

from ..errors import MissingDataError

if TYPE_CHECKING:
    from ..datastores import ImageDatastore, ShardDatastore

__all__ = ["open_images"]


def open_images(location: str) -> "ImageDatastore | ShardDatastore":
    """Return the datastore of shards, or else of image files, at a place.

    Raises:
        MissingDataError: there is neither.
    """
    from ..datastores import ImageDatastore, ShardDatastore

    try:
        return ShardDatastore(location)
    except MissingDataError:
        return ImageDatastore(location)  # which says what is missing if it finds nothing either
