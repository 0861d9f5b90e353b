"""A build that is killed anywhere and continued gives the bytes of an unbroken one; nothing unsound is trusted."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datastores.index import ShardEntry
from headrace.datastores.journal import JOURNAL_NAME, FinishedShard, Journal, read_journal
from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.staging import STAGING_NAME
from headrace.datastores.write import ShardWriter
from headrace.errors import ConfigError, DestinationError, DuplicateKeyError, ShardError

SAMPLES = [(f"a b/{number}" if number % 2 else "x" * 300 + str(number), number % 3) for number in range(7)]
FILES = ("write.py", "shardfile.py", "journal.py", "staging.py", "storage.py")


def write_all(folder: Path, *, resume: bool = False, plan: str = "p", stop: int | None = None) -> ShardWriter:
    """Write seven samples into shards of two, going on behind those that are finished."""
    position = [0]
    with ShardWriter(
        folder, shard_samples=2, classes="abc", plan=plan, note=lambda: {"next": position[0]}, resume=resume
    ) as writer:
        if writer.notes:
            position[0] = writer.notes[-1]["next"]
        for key, label in SAMPLES[position[0] :]:
            if position[0] == stop:
                raise KeyboardInterrupt
            writer.write(key, {"jpg": key.encode(), "cls": b"%d" % label})
            position[0] += 1
        writer.finish()
        report = json.dumps([writer.encoded_keys, writer.shortened_keys, writer.class_samples])
        writer.attach("report.json", report.encode())
    return writer


def tree(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture
def unbroken(tmp_path: Path) -> dict[str, str]:
    write_all(tmp_path / "unbroken")
    return tree(tmp_path / "unbroken")


def interrupted(folder: Path, stop: int = 5) -> Path:
    with pytest.raises(KeyboardInterrupt):
        write_all(folder, stop=stop)
    return folder / STAGING_NAME


def killed_at(moment: int, action: Callable[[], object]) -> bool:
    """Run something in a process of its own that ends, without a word, at the given line of the files that write."""
    child = os.fork()
    if child == 0:
        left = [moment]

        def trace(frame: FrameType, event: str, argument: object) -> object:
            if frame.f_code.co_filename.rpartition("/")[2] not in FILES:
                return None
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
            return trace

        sys.settrace(trace)
        try:
            action()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


def test_wherever_a_build_is_killed_the_next_one_goes_on(tmp_path: Path, unbroken: dict[str, str]) -> None:
    moment, kills, folder = 3, 0, tmp_path / "out0"
    while True:
        folder = tmp_path / f"out{moment}"
        if not killed_at(moment, lambda: write_all(folder)):  # noqa: B023 - called at once
            break
        kills += 1
        if (folder / "index.json").exists():
            assert tree_of_files(folder) == unbroken
        else:
            write_all(folder, resume=True)
            assert tree(folder) == unbroken, f"line {moment}"
        moment += 23
    assert kills > 40
    assert tree(folder) == unbroken


def tree_of_files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def test_a_build_that_is_killed_again_and_again_ends(tmp_path: Path, unbroken: dict[str, str]) -> None:
    folder, kills, moment = tmp_path / "out", 0, 200
    while killed_at(moment, lambda: write_all(folder, resume=True)):
        kills += 1
        moment += 40  # a little more luck each time, as it takes longer to get to where the last one was
        assert kills < 60
    assert kills > 5
    assert tree(folder) == unbroken


def test_an_interrupted_build_keeps_what_is_finished(tmp_path: Path, unbroken: dict[str, str]) -> None:
    staging = interrupted(tmp_path / "out")
    names = {path.name for path in staging.iterdir()}
    assert {"shard-000000.tar", "shard-000001.tar", JOURNAL_NAME} <= names
    before = (staging / "shard-000000.tar").stat().st_mtime_ns
    write_all(tmp_path / "out", resume=True)
    assert tree(tmp_path / "out") == unbroken
    assert (tmp_path / "out/shard-000000.tar").stat().st_mtime_ns == before, "it is not written again"
    assert ShardDatastore(tmp_path / "out").index.class_samples == (3, 2, 2)


def test_without_resume_a_build_begins_anew(tmp_path: Path, unbroken: dict[str, str]) -> None:
    interrupted(tmp_path / "out")
    assert write_all(tmp_path / "out", plan="another").notes == []
    assert tree(tmp_path / "out") == unbroken


def test_a_build_that_finished_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_all(tmp_path / "out", stop=1)
    assert not (tmp_path / "out").exists()
    write_all(tmp_path / "out", resume=True)
    assert len(ShardDatastore(tmp_path / "out")) == 7


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: os.truncate(path, 100)], ids=["bit", "gone", "cut"])
@pytest.mark.parametrize("name", ["shard-000000.tar", "shard-000001.tar", "shard-000001.tar.offsets"])
def test_a_finished_shard_that_was_changed_is_made_again(
    tmp_path: Path, unbroken: dict[str, str], damage: Callable[[Path], object], name: str
) -> None:
    damage(interrupted(tmp_path / "out") / name)
    writer = write_all(tmp_path / "out", resume=True)
    assert len(writer.notes) == int(name[6:12]), "those before it are trusted, those behind it are not"
    assert tree(tmp_path / "out") == unbroken


def test_a_torn_or_damaged_line_counts_for_nothing(tmp_path: Path, unbroken: dict[str, str]) -> None:
    for number, tail in enumerate((b'{"shard": {"na', b"{}\n", b"[1]\n", b"\xff\n", b'{"shard": {"name": 1}}\n')):
        folder = tmp_path / str(number)
        with (interrupted(folder) / JOURNAL_NAME).open("ab") as file:
            file.write(tail)
        assert len(write_all(folder, resume=True).notes) == 2
        assert tree(folder) == unbroken


def test_what_another_plan_left_is_not_touched(tmp_path: Path) -> None:
    staging = interrupted(tmp_path / "out")
    before = tree(staging)
    with pytest.raises(DestinationError, match="unfinished shards of another build"):
        write_all(tmp_path / "out", resume=True, plan="other")
    assert tree(staging) == before
    write_all(tmp_path / "out", resume=True)


def test_keys_of_finished_shards_count(tmp_path: Path) -> None:
    interrupted(tmp_path / "out")
    with (
        pytest.raises(DuplicateKeyError),
        ShardWriter(tmp_path / "out", shard_samples=2, classes="abc", plan="p", resume=True) as writer,
    ):
        writer.write(SAMPLES[0][0], {"jpg": b"1", "cls": b"0"})


def test_wrong_input_leaves_nothing_to_go_on_with(tmp_path: Path) -> None:
    with (  # noqa: PT012 - what is tested is how the inner block ends
        pytest.raises(ConfigError),
        ShardWriter(tmp_path / "out", shard_samples=1, plan="p") as writer,
    ):
        for key in "abc":
            writer.write(key, {"jpg": b"1"})
        writer.write("d", {"no name!": b"1"})
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_leaves_what_is_finished(tmp_path: Path, unbroken: dict[str, str]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=36k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with pytest.raises(ShardError, match="No space left on device"):
            write_all(disk / "out")
        assert JOURNAL_NAME in os.listdir(disk / "out" / STAGING_NAME)
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        assert len(write_all(disk / "out", resume=True).notes) > 0
        assert tree(disk / "out") == unbroken
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_plan_is_needed_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plan="):
        ShardWriter(tmp_path, resume=True)


def test_a_line_that_still_is_one_but_was_changed_counts_for_nothing(tmp_path: Path, unbroken: dict[str, str]) -> None:
    journal = interrupted(tmp_path / "out") / JOURNAL_NAME
    lines = journal.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"xxx", b"Xxx", 1)
    journal.write_bytes(b"\n".join(lines))
    assert len(write_all(tmp_path / "out", resume=True).notes) == 1
    assert tree(tmp_path / "out") == unbroken


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_happens_to_what_is_left_the_bytes_are_right(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    base = tmp_path_factory.mktemp("damage")
    write_all(base / "unbroken")
    staging = interrupted(base / "out")
    path = staging / data.draw(st.sampled_from([JOURNAL_NAME, "shard-000000.tar", "shard-000001.tar.offsets"]))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    try:
        write_all(base / "out", resume=True)
    except DestinationError:
        assert path.name == JOURNAL_NAME  # its first line is no longer of this plan
    else:
        assert tree(base / "out") == tree(base / "unbroken")


texts = st.text(st.characters(codec="utf-8"), max_size=9)


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 9)), st.dictionaries(texts, texts), st.integers(0, 9), st.binary()
)
def test_lines_come_back(labels: dict[int, int], keys: dict[str, str], count: int, tail: bytes) -> None:
    entry = ShardEntry("shard-000000.tar", 10240, 3, "0" * 64, "f" * 64)
    shard = FinishedShard(entry, Counter(labels), count, keys, {"next": count})
    assert FinishedShard.unpack(shard.pack()) == shard
    assert shard.pack().count(b"\n") == 1


def test_a_journal_that_is_none(tmp_path: Path) -> None:
    assert read_journal(tmp_path, "p") == []
    for data in (b"", b"\n", b"{}\n", b"\xff\n"):
        (tmp_path / JOURNAL_NAME).write_bytes(data)
        with pytest.raises(DestinationError):
            read_journal(tmp_path, "p")
    Journal(tmp_path, "p")
    assert read_journal(tmp_path, "p") == []
