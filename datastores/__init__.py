"""What exists, in which order it is read, and the background workers that read it."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .augmented import AugmentedImageDatastore
    from .batch import Batch
    from .datastore import Datastore
    from .decode import decode_mask
    from .image import ImageDatastore
    from .incidents import OnError
    from .loader import Loader
    from .normalized import normalize
    from .plan import Plan
    from .remote import Retry
    from .sharded import ShardDatastore
    from .transformed import transform

__all__ = [
    "AugmentedImageDatastore",
    "Batch",
    "Datastore",
    "ImageDatastore",
    "Loader",
    "OnError",
    "Plan",
    "Retry",
    "ShardDatastore",
    "decode_mask",
    "normalize",
    "transform",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AugmentedImageDatastore": "augmented",
        "Batch": "batch",
        "Datastore": "datastore",
        "ImageDatastore": "image",
        "Loader": "loader",
        "OnError": "incidents",
        "Plan": "plan",
        "Retry": "remote",
        "ShardDatastore": "sharded",
        "decode_mask": "decode",
        "normalize": "normalized",
        "transform": "transformed",
    },
)
