"""What a build has finished, written down shard by shard, so that whoever comes after a kill goes on from there.

``journal.jsonl`` lies among the files of an unfinished build (``staging.py``). Its first line says what is being built,
as a digest; each further one names a shard that is complete and flushed to the disk, with its size and checksums, how
many samples of each label it has, and what the builder wants to know again. A line counts if it ends in a line end and
has its own checksum; a shard counts if its bytes, and those of its offset table, still have the checksums of its line.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError, DestinationError
from .index import ShardEntry
from .offsets import SUFFIX
from .storage import LocalStorage, fsync_folder, os_failure, sha256_of

__all__ = ["JOURNAL_NAME", "FinishedShard", "Journal", "read_journal"]

JOURNAL_NAME = "journal.jsonl"
_FORMAT = "headrace-journal"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A line of the journal.

    Args:
        entry: the shard.
        labels: class number -> samples; empty without classes.
        encoded_keys: number of keys in it with percent-encoded characters.
        shortened_keys: stored key -> original, where that was too long.
        note: what the builder wrote down with it; JSON.
    """

    entry: ShardEntry
    labels: Counter[int]
    encoded_keys: int
    shortened_keys: dict[str, str]
    note: Any

    def pack(self) -> bytes:
        """Return the line."""
        document = {
            "shard": asdict(self.entry),
            "labels": {str(label): count for label, count in sorted(self.labels.items())},
            "encoded_keys": self.encoded_keys,
            "shortened_keys": self.shortened_keys,
            "note": self.note,
        }
        return json.dumps(document | {"line": _digest(document)}).encode("ascii") + b"\n"

    @classmethod
    def unpack(cls, line: bytes) -> Self:
        """Read a line.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is none, or its checksum does not fit.
        """
        document = json.loads(line)
        if document.pop("line") != _digest(document):
            raise ValueError("the checksum does not fit")
        labels = Counter({int(label): int(count) for label, count in document["labels"].items()})
        entry = ShardEntry(**document["shard"])
        return cls(entry, labels, int(document["encoded_keys"]), dict(document["shortened_keys"]), document["note"])

    def is_intact(self, folder: Path) -> bool:
        """Whether the shard and its table lie in ``folder``, byte for byte as they were finished."""
        storage, path = LocalStorage(2), str(folder / self.entry.name)
        try:
            tar, table = storage.open(path), storage.open(path + SUFFIX)
            return (
                tar.size == self.entry.size
                and sha256_of(table) == self.entry.offsets_sha256
                and sha256_of(tar) == self.entry.sha256
            )
        except OSError:  # missing, or cut meanwhile: then it is made again
            return False


class Journal:
    """A journal that is being written; each line is on the disk before ``add`` returns.

    Args:
        folder: of the unfinished build.
        plan: digest of all that decides about its bytes.
        known: shards that are finished already.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, plan: str, known: Sequence[FinishedShard] = ()) -> None:
        self.path = folder / JOURNAL_NAME
        head = json.dumps({"format": _FORMAT, "version": _VERSION, "plan": plan}).encode("ascii") + b"\n"
        fresh = folder / f"{JOURNAL_NAME}.new"
        fresh.write_bytes(head + b"".join(shard.pack() for shard in known))
        self._flush(fresh)
        fresh.replace(self.path)
        fsync_folder(folder)

    def add(self, shard: FinishedShard) -> None:
        """Note a finished shard.

        Raises:
            ShardError: it cannot be written.
        """
        try:
            fsync_folder(self.path.parent)  # the shard's name comes to the disk before the line that trusts it
            with self.path.open("ab") as file:
                file.write(shard.pack())
            self._flush(self.path)
        except OSError as error:
            raise os_failure(error, f"writing {self.path}") from error

    def _flush(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_journal(folder: Path, plan: str) -> list[FinishedShard]:
    """Return the shards that the journal of a folder names, in order, up to the first line that is damaged.

    Args:
        folder: of an unfinished build.
        plan: what is to be built.

    Returns:
        The shards; none without a journal. Whether they are intact is not looked at.

    Raises:
        DestinationError: the journal is of another plan.
        ShardError: it cannot be read.
    """
    try:
        lines = (folder / JOURNAL_NAME).read_bytes().split(b"\n")[:-1]  # behind the last line end nothing counts
    except FileNotFoundError:
        return []
    except OSError as error:
        raise os_failure(error, f"reading {folder / JOURNAL_NAME}") from error
    if not lines or _head(lines[0]) != {"format": _FORMAT, "version": _VERSION, "plan": plan}:
        raise DestinationError(
            f"{folder.parent} holds the unfinished shards of another build (other images, options or version): go on "
            "with the same command as before, or leave --resume out to start anew"
        )
    found: list[FinishedShard] = []
    for line in lines[1:]:
        try:
            found.append(FinishedShard.unpack(line))
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError):
            break
    return found


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document).encode("ascii")).hexdigest()


def _head(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
