"""Samples that cannot be made: what takes their place, and where that is written down."""

import errno
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from ..augment.random import Draw
from ..errors import ConfigError, SampleError, UnreachableError
from .counts import show_count
from .permute import derive_key
from .plan import BatchRows
from .schema import IntArray, Rows

__all__ = [
    "SKIPPED",
    "Action",
    "Incident",
    "IncidentLog",
    "OnError",
    "annotate",
    "is_exhaustion",
    "settle",
    "substitutes",
    "text_of",
]

Action: TypeAlias = Literal["raise", "substitute", "skip"]

#: Stands for the substitute of a sample that has none.
SKIPPED = -1

_EXHAUSTION = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_TRIES = 16  # substitutes from the same shard, and as many from the whole dataset
_REASON = 500  # characters of an error that are kept


@dataclass(frozen=True, slots=True)
class OnError:
    """What a loader does about samples that cannot be read, decoded or prepared.

    Args:
        action: "raise": the error arrives in the loop. "substitute": another sample takes the row; which one is
            arithmetic on (seed, epoch, sample id), so it is the same for any workers and ranks, and lengths hold.
            "skip": the row is left out and the batch is shorter; for predictions, never for training.
        log: a file to which one line of JSON is added for each such sample; None: none.
        limit: such samples that are accepted, over all epochs of a loader; one more is an error.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> OnError("substitute", limit=10).action
        'substitute'
    """

    action: Action = "raise"
    log: Path | str | None = None
    limit: int = 1000

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise ConfigError(f"on_error must be one of {', '.join(map(repr, get_args(Action)))}, got {self.action!r}")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 0:
            raise ConfigError(
                f"the limit of samples that cannot be made must be a whole number of at least 0, got {self.limit!r}"
            )
        if self.log is not None and not Path(self.log).absolute().parent.is_dir():
            raise ConfigError(f"the folder of on_error's log, {self.log}, does not exist: make it first")


@dataclass(frozen=True, slots=True)
class Incident:
    """A sample that could not be made.

    Args:
        row: of the slot, later of the batch.
        sample: its id.
        substitute: id of the sample in its place; ``SKIPPED`` if its row is left out.
        where: where it comes from: key, shard, bytes.
        reason: the error's type and text.
    """

    row: int
    sample: int
    substitute: int
    where: str
    reason: str

    @classmethod
    def of(cls, row: int, sample: int, substitute: int, where: str, error: BaseException) -> "Incident":
        """Describe what ``error`` did to a sample."""
        return cls(row, sample, substitute, where, f"{type(error).__name__}: {text_of(error)}"[:_REASON])


def text_of(error: BaseException) -> str:
    """Return the text of a user's error, even if its own ``__str__`` fails."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - whatever a user's exception class does, it must not hide the error
        return f"(its text cannot be had: {type(failure).__name__})"


def annotate(error: BaseException, note: str) -> None:
    """Add a note to a user's error, whatever its class has made of notes."""
    try:
        error.add_note(note)
    except TypeError:
        error.__notes__ = [note]


def is_exhaustion(error: BaseException | None) -> bool:
    """Whether ``error``, or what caused it, says that the machine lacks descriptors, memory, buffers or its network.

    No sample is to blame for that, and none may take another's place because of it: a batch would depend on the
    machine, or on the network.
    """
    seen = set[int]()  # an error object that is raised again and again can be among its own causes
    while error is not None and id(error) not in seen:
        if _says_exhaustion(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _says_exhaustion(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_exhaustion, error.exceptions))
    if isinstance(error, RuntimeError):  # torch's allocator has no type of its own
        return "can't allocate memory" in text_of(error)
    return isinstance(error, (MemoryError, UnreachableError)) or (
        isinstance(error, OSError) and error.errno in _EXHAUSTION
    )


def substitutes(sample: int, draw: Draw, shard_sizes: IntArray) -> Iterator[int]:
    """Return the ids that may stand in for a sample, best first; finite.

    The first ones come from the same shard, which is open or near; if that shard is bad as a whole, others follow.

    Args:
        sample: the id of the sample that cannot be made.
        draw: the random world it was wanted in.
        shard_sizes: int64 (shards,), samples per shard.
    """
    ends = np.cumsum(shard_sizes)
    shard = int(np.searchsorted(ends, sample, "right"))
    first = int(ends[shard] - shard_sizes[shard])
    places = [(first, int(shard_sizes[shard]))] * _TRIES + [(0, int(ends[-1]))] * _TRIES
    for number, (start, size) in enumerate(places):
        candidate = start + derive_key(draw.seed, draw.epoch, sample, number) % size
        if candidate != sample:
            yield candidate


class IncidentLog:
    """Counts incidents, writes them down, and stops the run when there are too many.

    Args:
        policy: the file and the limit.
        rank: of this process; it is written into each line.
    """

    def __init__(self, policy: OnError, rank: int) -> None:
        self._policy = policy
        self._rank = rank
        self.count = 0

    @property
    def note(self) -> str | None:
        """What a report says of them; None: there were none."""
        if not self.count:
            return None
        samples = show_count(self.count, "sample")
        what = "left out" if self._policy.action == "skip" else "replaced by others"
        log = f'OnError("{self._policy.action}", log=...) writes down which'
        if self._policy.log is not None:
            log = f"{self._policy.log} says which and why"
        return f"{samples} could not be made and {'was' if self.count == 1 else 'were'} {what}: {log}"

    def add(self, incidents: list[Incident], epoch: int, step: int) -> None:
        """Note the incidents of one batch.

        Raises:
            SampleError: there were more than the limit, over all.
            ConfigError: the file cannot be written.
        """
        for incident in sorted(incidents, key=lambda one: one.row):
            self.count += 1
            self._write({"epoch": epoch, "step": step, "rank": self._rank, **asdict(incident)})
            if self.count > self._policy.limit:
                samples = show_count(self.count, "sample")
                raise SampleError(
                    f"{samples} could not be made, and on_error accepts {self._policy.limit}; the last one: "
                    f"{incident.where}: {incident.reason}"
                )

    def _write(self, line: dict[str, Any]) -> None:
        if self._policy.log is None:
            return
        try:
            with Path(self._policy.log).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")  # one write: lines of several ranks do not mix
        except OSError as error:
            raise ConfigError(f"the log of on_error, {self._policy.log}, cannot be written: {error}") from error


def settle(planned: BatchRows, rows: Rows, incidents: Sequence[Incident]) -> tuple[BatchRows, Rows]:
    """Return what a batch really holds: ids of substitutes instead of those planned, and no skipped rows."""
    if not incidents:
        return planned, rows
    ids, kept = planned.ids.copy(), np.ones(len(planned.ids), np.bool_)
    for incident in incidents:
        ids[incident.row] = incident.substitute
        kept[incident.row] = incident.substitute != SKIPPED
    if kept.all():
        return BatchRows(ids, planned.valid), rows
    return BatchRows(ids[kept], planned.valid[kept]), {name: column[kept] for name, column in rows.items()}
