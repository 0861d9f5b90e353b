"""Pictures for tests: real photos in any size, their files, and an image source that holds files in memory."""

import io
import struct
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from headrace.datastores.datastore import EncodedImage, ImageSource

Pixels = NDArray[np.uint8]


@cache
def _photos() -> list[Image.Image]:
    return [Image.fromarray(image) for image in load_sample_images().images]


def photo(height: int, width: int, number: int = 0) -> Pixels:
    """Return one of two real photos in this size, uint8 (H, W, 3)."""
    return np.array(_photos()[number % 2].resize((width, height), Image.Resampling.LANCZOS))


def encode(image: Pixels | Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return an image file."""
    file = io.BytesIO()
    if isinstance(image, Image.Image):
        picture = image
    else:
        picture = Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image)
    picture.save(file, kind, **options)
    return file.getvalue()


def exif(orientation: int, order: str = "<", kind: int = 3) -> bytes:
    """Return an EXIF block that holds an orientation (and another tag before it), as SHORT (3) or LONG (4)."""
    value = struct.pack(order + ("HH" if kind == 3 else "I"), *((orientation, 0) if kind == 3 else (orientation,)))
    entries = [struct.pack(order + "HHII", 0x010F, 2, 4, 0), struct.pack(order + "HHI", 0x0112, kind, 1) + value]
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "IH", 8, len(entries)) + b"".join(entries) + struct.pack(order + "I", 0)


def with_exif(jpeg: bytes, block: bytes) -> bytes:
    """Return a JPEG with an EXIF block in front."""
    payload = b"Exif\0\0" + block
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


class MemorySource(ImageSource):
    """Image files in memory, labelled by position modulo 7."""

    def __init__(self, files: list[bytes], labels: bool = True) -> None:
        self.files = files
        self.labels = labels

    def __len__(self) -> int:
        return len(self.files)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple("abcdefg") if self.labels else ()

    @property
    def has_labels(self) -> bool:
        return self.labels

    @property
    def shard_sizes(self) -> NDArray[np.int64]:
        return np.array([1, len(self) - 1], np.int64)

    def encoded(self, ids: NDArray[np.int64]) -> list[EncodedImage]:
        return [EncodedImage(self.files[i], i % 7 if self.labels else None) for i in ids.tolist()]

    def key(self, index: int) -> str:
        return f"picture{index}"

    def locate(self, index: int) -> str:
        return f"memory/picture{index}"
