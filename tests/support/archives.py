"""Tars, image folders and shards for tests."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pictures import encode, photo

from headrace.datastores.write import ShardWriter


def tar_bytes(
    members: Mapping[str, bytes] | Sequence[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT, mtime: float = 0
) -> bytes:
    """Return an archive that Python's tarfile has written."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@cache
def jpeg(number: int) -> bytes:
    """Return a small real JPEG, another one for each number."""
    return encode(photo(24 + number % 5, 32 + number % 7, number), "JPEG", quality=60 + number % 35)


def image_folder(root: Path, counts: Mapping[str, int]) -> dict[str, bytes]:
    """Write JPEGs into folders, "" being the root; return relative path -> bytes, in the order of writing."""
    files = {}
    for folder, count in counts.items():
        for number in range(count):
            path = root / folder / f"{number:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(len(files)))
            files[path.relative_to(root).as_posix()] = jpeg(len(files))
    return files


def write_shards(folder: Path, samples: int = 10, per_shard: int = 4) -> dict[str, bytes]:
    """Write labelled JPEGs into shards with an index; return key -> image bytes. Sample i has the class i % 3."""
    images = {f"c{number % 3}/{number:03d}": jpeg(number) for number in range(samples)}
    with ShardWriter(folder, shard_samples=per_shard, classes=["red", "green", "blue"]) as writer:
        for number, (key, data) in enumerate(images.items()):
            writer.write(key, {"jpg": data, "cls": b"%d" % (number % 3)})
    return images
