"""What ``headrace build`` says about a set of shards that it made: ``build.json`` and the lines on the terminal."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from .. import __version__
from ..errors import DestinationError, MissingDataError
from .progress import show_bytes, show_count

if TYPE_CHECKING:
    from ..datastores.index import Index
    from ..datastores.schema import IntArray

__all__ = ["REPORT_NAME", "Built", "Part", "Report", "print_dry_run", "print_summary", "published"]

#: The file beside the shards.
REPORT_NAME = "build.json"

_SHOWN = 20


@dataclass(slots=True)
class Report:
    """What ``build.json`` says.

    Args:
        source: as it was typed.
        options: those that the result depends on.
        plan: digest of all that decides about the bytes of the set.
        samples: written.
        image_bytes: of the images, without labels and headers.
        classes: class name -> samples.
        merged_classes: class name -> its folders, where they are several, as in train/cat and test/cat.
        passed_over: reason -> files, folders and members that are no samples.
        bad: what was left out by ``--skip-bad``, with reasons.
        encoded_keys: number of keys with percent-encoded characters.
        shortened_keys: stored key -> original, where that was too long.
    """

    source: str | list[str]
    options: dict[str, Any]
    plan: str = ""
    samples: int = 0
    image_bytes: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    merged_classes: dict[str, list[str]] = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    bad: list[dict[str, str]] = field(default_factory=list)
    encoded_keys: int = 0
    shortened_keys: dict[str, str] = field(default_factory=dict)

    def leave_out(self, name: str, reason: str) -> None:
        """Note what is left out."""
        self.bad.append({"file": name, "reason": reason})

    def pack(self) -> bytes:
        """Return the bytes of ``build.json``."""
        head = {"format": "headrace-build", "version": 1, "headrace": __version__}
        return (json.dumps(head | asdict(self), indent=1) + "\n").encode("ascii")


@dataclass(frozen=True, slots=True)
class Part:
    """A set that is to be built.

    Args:
        name: in a split, or "".
        destination: its folder, as typed.
        ids: int64, the numbers of its items in order.
    """

    name: str
    destination: str
    ids: "IntArray"


@dataclass(frozen=True, slots=True)
class Built:
    """A set of shards that was made, or would be.

    Args:
        part: its name in a split, or "".
        destination: its folder, as it was typed.
        shards: number of tars.
        bytes: of them.
        report: what ``build.json`` says.
    """

    part: str
    destination: str
    shards: int
    bytes: int
    report: Report

    @classmethod
    def of(cls, part: Part, index: "Index", report: Report) -> Self:
        """Describe shards that were published."""
        total = sum(entry.size for entry in index.entries)
        return cls(part.name, part.destination, len(index.entries), total, report)

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        head = {"destination": self.destination, "shards": self.shards, "bytes": self.bytes}
        return head | asdict(self.report)

    def line(self) -> str:
        """Return what is printed of it."""
        images, shards = show_count(self.report.samples, "image"), show_count(self.shards, "shard")
        count = len(self.report.classes)
        classes = f", {show_count(count, 'class', 'classes')}" if count else ""
        return f"{images} in {shards} ({show_bytes(self.bytes)}{classes}): {self.destination}"


def published(part: Part, report: Report) -> Built | None:
    """Return the set in the part's folder if it is published and of the same plan, None if there is none.

    Raises:
        DestinationError: there is one of another plan.
        ShardError: there is one that cannot be read.
    """
    from ..datastores.catalog import load_index
    from ..datastores.storage import LocalStorage, local_path

    storage, folder = LocalStorage(2), local_path(part.destination)
    index = load_index(storage, folder)
    if index is None:
        return None
    try:
        file = storage.open(f"{folder}/{REPORT_NAME}")
        found = json.loads(file.read(0, file.size))
        if found["plan"] == report.plan:
            known = {one.name: found[one.name] for one in fields(Report)}
            return Built.of(part, index, Report(**known))
    except (MissingDataError, ValueError, KeyError, TypeError):
        pass  # of somebody else, or of an earlier version
    raise DestinationError(f"{part.destination} already holds another dataset (index.json): name a new folder")


def _document(built: Sequence[Built]) -> dict[str, Any]:
    if not built[0].part:
        return built[0].document()
    return {"parts": {one.part: one.document() for one in built}}


def print_summary(built: Sequence[Built], *, as_json: bool, quiet: bool) -> None:
    """Print what was made: results on stdout, remarks on stderr."""
    if as_json:
        print(json.dumps(_document(built), indent=1))
        return
    for one in built:
        print(one.line())
    report = built[0].report
    if report.merged_classes and not quiet:
        name, folders = next(iter(report.merged_classes.items()))
        merged = show_count(len(report.merged_classes), "class is", "classes are")
        print(
            f"headrace build: {merged} made of several folders, such as {name} of {' and '.join(folders[:2])}; if "
            "these are parts like train and test, build each on its own",
            file=sys.stderr,
        )
    bad = sum(len(one.report.bad) for one in built)
    left_out = {**report.passed_over, **({"no images": bad} if bad else {})}
    if left_out and not quiet:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(left_out.items()))
        print(f"headrace build: passed over ({reasons}), see build.json", file=sys.stderr)


def print_dry_run(built: Sequence[Built], *, as_json: bool) -> None:
    """Print what would be made, and everything that would be left out."""
    if as_json:
        print(json.dumps({"dry_run": True} | _document(built), indent=1))
        return
    for one in built:
        print(f"would build {one.line()}")
        shown = [f"{name}: {count:,}" for name, count in list(one.report.classes.items())[:_SHOWN]]
        more = [f"and {len(one.report.classes) - _SHOWN} more"] if len(one.report.classes) > _SHOWN else []
        if shown:
            print(f"classes: {', '.join(shown + more)}")
    for reason, count in sorted(built[0].report.passed_over.items()):
        print(f"passed over: {reason}: {count:,}")
    for one in built:
        for bad in one.report.bad:
            print(f"bad: {bad['file']}: {bad['reason']}")
