"""What images a set of shards holds, by their headers, and how well its classes are mixed in stored order."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError
from .parallel import default_workers, in_order
from .progress import Progress
from .samples import read_header

if TYPE_CHECKING:
    from ..datastores.check import ShardSource
    from ..datastores.shards import ShardReader

__all__ = ["mixing", "survey"]

_CHUNK = 512  # samples of a task
_HEAD = 1 << 16  # bytes that hold the header of nearly every image
_SIDES = (32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(slots=True)
class _Seen:
    """What was seen of some samples.

    Args:
        formats: Pillow's name -> images.
        sizes: (width, height) as stored -> images.
        unreadable: number of image fields that hold no image.
        labels: of the samples in stored order; -1 for none.
    """

    formats: Counter[str]
    sizes: Counter[tuple[int, int]]
    unreadable: int
    labels: list[int]


def survey(shards: "ShardReader", workers: int | None, *, quiet: bool) -> dict[str, Any]:
    """Read the header of the first image of every sample, and its label.

    Args:
        shards: the set.
        workers: processes; None for one for each core.
        quiet: show no progress.

    Returns:
        What ``headrace inspect --deep`` adds: "formats", "short_side" (a histogram, pixels as stored), "width" and
        "height" (smallest, median, largest), "unreadable" and, with labels, "class_mixing".
    """
    tasks = list(_tasks(shards))
    workers = min(default_workers() if workers is None else workers, len(tasks))
    total = _Seen(Counter(), Counter(), 0, [])
    with Progress("headrace inspect", len(shards), "samples", quiet=quiet) as progress:
        for (_, start, stop), seen in zip(tasks, in_order(_look, tasks, workers), strict=True):
            total.formats += seen.formats
            total.sizes += seen.sizes
            total.unreadable += seen.unreadable
            total.labels += seen.labels
            progress.advance(stop - start)
    answer: dict[str, Any] = {"formats": dict(sorted(total.formats.items()))}
    if total.sizes:
        answer["short_side"] = _histogram(total.sizes)
        for axis, name in enumerate(("width", "height")):
            answer[name] = _spread(total.sizes, axis)
    if total.unreadable:
        answer["unreadable"] = total.unreadable
    mixed = mixing(total.labels)
    return answer | ({"class_mixing": mixed} if mixed else {})


def _tasks(shards: "ShardReader") -> "Iterator[tuple[ShardSource, int, int]]":
    from ..datastores.check import ShardSource

    for entry, file in zip(shards.index.entries, shards.catalog.files, strict=True):
        source = ShardSource(shards.storage, file.path, entry)
        for start in range(0, entry.samples, _CHUNK):
            yield source, start, min(start + _CHUNK, entry.samples)


def _look(task: "tuple[ShardSource, int, int]") -> _Seen:
    from ..datastores.check import is_image_field, scanned

    source, start, stop = task
    table, seen = scanned(source.storage, source.path), _Seen(Counter(), Counter(), 0, [])
    for spans in table.spans_of(range(start, stop)):
        present = {name: span for name, span in zip(table.fields, spans, strict=True) if span is not None}
        text = source.storage.read(source.path, *present["cls"]).strip() if "cls" in present else b""
        seen.labels.append(int(text) if text.isdigit() and len(text) < 10 else -1)
        image = next((span for name, span in present.items() if is_image_field(name) and "." not in name), None)
        if image is None:
            continue
        found = _header_at(source, *image)
        if found is None:
            seen.unreadable += 1
        else:
            kind, size = found
            seen.formats[kind or "too large"] += 1
            seen.sizes[size] += 1
    return seen


def _header_at(source: "ShardSource", offset: int, length: int) -> tuple[str, tuple[int, int]] | None:
    for size in sorted({min(length, _HEAD), length}):  # some headers hold a whole thumbnail, or a profile
        try:
            return read_header(source.storage.read(source.path, offset, size), source.path)
        except DecodeError:
            continue
    return None


def _histogram(sizes: Counter[tuple[int, int]]) -> dict[str, int]:
    counts = Counter[int]()
    for size, count in sizes.items():
        counts[sum(min(size) >= side for side in _SIDES)] += count
    between = [f"{low}-{high - 1}" for low, high in pairwise(_SIDES)]
    names = [f"below {_SIDES[0]}", *between, f"{_SIDES[-1]}+"]
    return {names[number]: counts[number] for number in sorted(counts)}


def _spread(sizes: Counter[tuple[int, int]], axis: int) -> dict[str, int]:
    lengths = Counter[int]()
    for size, count in sizes.items():
        lengths[size[axis]] += count
    below, half = 0, lengths.total() / 2
    ordered = sorted(lengths)
    median = next(length for length in ordered if (below := below + lengths[length]) >= half)
    return {"smallest": ordered[0], "median": median, "largest": ordered[-1]}


def mixing(labels: list[int]) -> dict[str, float]:
    """Return which share of neighbours in stored order has one class, and which share a random order would give.

    Samples without a label are left out; nothing is returned for fewer than two with one.

    Example:
        >>> mixing([0, 0, 1, 1])
        {'same_neighbours': 0.667, 'if_shuffled': 0.333}
    """
    known = [label for label in labels if label >= 0]
    if len(known) < 2:
        return {}
    same = sum(a == b for a, b in pairwise(known))
    pairs = sum(count * (count - 1) for count in Counter(known).values())
    share = pairs / (len(known) * (len(known) - 1))
    return {"same_neighbours": round(same / (len(known) - 1), 3), "if_shuffled": round(share, 3)}
