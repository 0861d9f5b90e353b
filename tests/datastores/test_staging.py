"""A destination is one build's alone, and what is there is whole or nothing, wherever a build is interrupted."""

import fcntl
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from headrace.datastores import staging
from headrace.datastores.filelock import FileLock
from headrace.datastores.index import INDEX_NAME
from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.staging import STAGING_NAME
from headrace.datastores.write import ShardWriter
from headrace.errors import ConfigError, DestinationError, MissingDataError, ShardError


def writer_of_three(folder: Path) -> ShardWriter:
    writer = ShardWriter(folder, shard_samples=2)
    for number in range(3):
        writer.write(str(number), {"jpg": b"%d" % number})
    return writer


def descriptors() -> list[str]:
    return [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]


def before_lock(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]) -> None:
    """Let something happen once, when a lock file was opened and is about to be locked."""
    pending, flock = [happen], fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if pending:
            pending.pop()()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)


def test_the_lock_of_a_build_that_has_just_ended_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, others = writer_of_three(tmp_path / "out"), []

    def end_and_begin() -> None:
        first.discard()
        others.append(writer_of_three(tmp_path / "out"))

    before_lock(monkeypatch, end_and_begin)
    with pytest.raises(DestinationError, match="being written by another build"):
        ShardWriter(tmp_path / "out")
    others[0].close()
    assert len(ShardDatastore(tmp_path / "out")) == 3
    assert STAGING_NAME not in os.listdir(tmp_path / "out")


@pytest.mark.parametrize("end", ["discard", "close"])
def test_a_build_may_begin_while_another_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    first = writer_of_three(tmp_path / "out")
    before_lock(monkeypatch, getattr(first, end))
    if end == "close":
        with pytest.raises(DestinationError, match="already holds a dataset"):
            ShardWriter(tmp_path / "out")
    else:
        writer_of_three(tmp_path / "out").close()
    assert len(ShardDatastore(tmp_path / "out")) == 3
    assert STAGING_NAME not in os.listdir(tmp_path / "out")


def test_a_build_may_end_while_another_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = writer_of_three(tmp_path / "out")
    lock, remove = tmp_path / "out" / STAGING_NAME / "lock", FileLock.remove

    def begin_behind_it(held: FileLock) -> None:
        remove(held)
        lock.touch()

    monkeypatch.setattr(FileLock, "remove", begin_behind_it)
    first.close()
    assert lock.exists()
    assert len(ShardDatastore(tmp_path / "out")) == 3


def test_a_writer_that_is_let_go_lets_the_destination_go(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "out")
    with pytest.raises(DestinationError, match="another build"):
        ShardWriter(tmp_path / "out")
    del writer
    assert str(tmp_path / "out" / STAGING_NAME / "lock") not in descriptors()
    writer_of_three(tmp_path / "out").close()
    assert len(ShardDatastore(tmp_path / "out")) == 3


def interrupted_at(moment: int, action: Callable[[], object]) -> bool:
    """Run something, with a Ctrl-C at the given line of ``staging.py``; return whether there was such a line."""
    left = [moment]

    def trace(frame: FrameType, event: str, argument: object) -> object:
        if not frame.f_code.co_filename.endswith("staging.py") or frame.f_code.co_name == "write_synced":
            return None  # an interrupted "with open" would leave a warning of an open file
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("is_new", [True, False])
def test_wherever_publishing_is_interrupted_there_is_a_whole_dataset_or_nothing(tmp_path: Path, is_new: bool) -> None:
    moment, outcomes = 0, set()
    while True:
        moment += 1
        folder = tmp_path / str(moment)
        if not is_new:
            folder.mkdir()
        if not interrupted_at(moment, writer_of_three(folder).close):
            break
        found = set(os.listdir(folder)) if folder.exists() else None
        outcomes.add("nothing" if not found else "whole")
        if found:
            assert len(found) == 5, f"line {moment}: {found}"
            assert [ShardDatastore(folder).raw(index) for index in range(3)] == [{"jpg": b"%d" % n} for n in range(3)]
        else:
            assert folder.exists() != is_new, f"line {moment}"
    assert moment > 20
    assert outcomes == {"nothing", "whole"}


def test_what_is_discarded_by_halves_is_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    writer = writer_of_three(folder)
    unlink, sync, removed = Path.unlink, staging.fsync_folder, []

    def failing_at_the_end(path: Path) -> None:
        if (folder / INDEX_NAME).exists():
            raise OSError(5, "Input/output error")
        sync(path)

    def unlink_once(self: Path, missing_ok: bool = False) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(self.name)
        unlink(self, missing_ok)

    monkeypatch.setattr(staging, "fsync_folder", failing_at_the_end)
    monkeypatch.setattr(Path, "unlink", unlink_once)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    monkeypatch.undo()
    assert removed == [INDEX_NAME]
    for location in (folder, f"{folder}/*.tar"):
        with pytest.raises(MissingDataError, match="was killed"):
            ShardDatastore(location)
    del writer
    gc.collect()
    writer_of_three(folder).close()
    assert len(ShardDatastore(folder)) == 3


def test_closing_and_discarding_again_change_nothing(tmp_path: Path) -> None:
    writer = writer_of_three(tmp_path / "out")
    writer.close()
    writer.close()
    writer.discard()
    assert len(ShardDatastore(tmp_path / "out")) == 3
    with writer_of_three(tmp_path / "other") as other:
        other.close()
    assert len(ShardDatastore(tmp_path / "other")) == 3


def test_destinations_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DestinationError, match="nowhere is a link to nowhere"):
        ShardWriter(tmp_path / "nowhere")
    with pytest.raises(MissingDataError, match="loop: Too many levels of symbolic links"):
        ShardWriter(tmp_path / "loop")
    with pytest.raises(MissingDataError, match="File name too long"):
        ShardWriter(tmp_path / ("x" * 300))
    for name in ("x.tar", ".tar"):
        with pytest.raises(ConfigError, match=r"\.tar would be opened as one tar"):
            ShardWriter(tmp_path / name)
    with pytest.raises(ConfigError, match="is not local"):
        ShardWriter("s3://bucket/x")
    with pytest.raises((ShardError, MissingDataError), match="creating /sys/headrace: "):
        ShardWriter("/sys/headrace")
    assert sorted(os.listdir(tmp_path)) == ["loop", "nowhere"]
