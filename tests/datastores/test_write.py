"""The shard writer: the same bytes each time, whole or not at all, and it never touches what is not its own."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from archives import jpeg, write_shards

from headrace.datastores.index import INDEX_NAME, Index, scan_shard
from headrace.datastores.offsets import SUFFIX
from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.staging import STAGING_NAME
from headrace.datastores.storage import LocalStorage
from headrace.datastores.write import ShardWriter
from headrace.errors import ConfigError, DestinationError, DuplicateKeyError, MissingDataError, ShardError


def files_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sizes(index: Index) -> list[int]:
    return [entry.samples for entry in index.entries]


# -- what is written ---------------------------------------------------------------------------------------------------


def test_shards_hold_what_was_written(tmp_path: Path) -> None:
    images = write_shards(tmp_path / "out", samples=10, per_shard=4)
    found = {}
    for name in ("shard-000000.tar", "shard-000001.tar", "shard-000002.tar"):
        with tarfile.open(tmp_path / "out" / name) as archive:
            members = archive.getmembers()
            assert [member.name[-3:] for member in members] == ["cls", "jpg"] * (len(members) // 2)
            assert {(m.mtime, m.uid, m.gid, m.mode, m.uname, m.pax_headers.get("mtime")) for m in members} == {
                (0, 0, 0, 0o644, "", None)
            }
            found |= {member.name: archive.extractfile(member).read() for member in members}
    assert found == {
        **{f"{key}.jpg": data for key, data in images.items()},
        **{f"{key}.cls": b"%d" % (number % 3) for number, key in enumerate(images)},
    }


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    write_shards(tmp_path / "one")
    write_shards(tmp_path / "two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert len(files_of(tmp_path / "one")) == 7


def test_bytes_of_the_format_are_golden(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, classes=["a"]) as writer:
        writer.write("a/1", {"jpg": b"not a jpeg", "cls": b"0"})
    assert files_of(tmp_path)["shard-000000.tar"] == GOLDEN_TAR
    assert files_of(tmp_path)["shard-000000.tar" + SUFFIX] == GOLDEN_TABLE


@pytest.mark.parametrize("classes", [["a", "b", "a"], ["\ud800"], [1, 2], "aa"])
def test_class_names_that_no_index_could_hold_are_refused_before_anything_is_written(
    classes: list, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="classes of an index must be a list of different names, got"):
        ShardWriter(tmp_path / "set", classes=classes)
    assert not (tmp_path / "set").exists()


GOLDEN_TAR = "070780c468d17fdafa24f8a73d05e30c0fef44fb6ee0a3a6d17e2bed6c9eacbf"
GOLDEN_TABLE = "45b4d62f27200f6988ed9ed14dee9e256af536110e89b068eb8c70ffcf8ba30e"


def test_the_index_fits_the_shards_byte_by_byte(tmp_path: Path) -> None:
    write_shards(tmp_path)
    index = Index.unpack((tmp_path / INDEX_NAME).read_bytes(), "x")
    assert (index.classes, index.class_samples, index.fields) == (("red", "green", "blue"), (4, 3, 3), ("cls", "jpg"))
    for entry in index.entries:
        data = (tmp_path / entry.name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size, entry.sha256)
        scanned = scan_shard(LocalStorage(), str(tmp_path / entry.name))
        assert scanned.table.pack() == (tmp_path / (entry.name + SUFFIX)).read_bytes()
        assert scanned.entry(entry.sha256) == entry


def test_shards_are_cut_by_samples(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", samples=9, per_shard=3)
    write_shards(tmp_path / "b", samples=10, per_shard=3)
    assert [sizes(ShardDatastore(tmp_path / name).index) for name in "ab"] == [[3, 3, 3], [3, 3, 3, 1]]


def test_shards_are_cut_by_bytes_headers_included(tmp_path: Path) -> None:
    limit = 5 * (512 + 1024) + 1024  # five samples of two blocks, and the end
    for size, expected in ((1000, [5, 5, 2]), (1024, [5, 5, 2]), (1025, [3, 3, 3, 3]), (20_000, [1] * 12)):
        with ShardWriter(tmp_path / str(size), shard_bytes=limit) as writer:
            for number in range(12):
                writer.write(str(number), {"bin": bytes(size)})
        assert sizes(writer.index) == expected
        assert size > limit or all(entry.size <= limit for entry in writer.index.entries)


def test_large_samples_are_written_whole(tmp_path: Path) -> None:
    big = os.urandom(5_000_000)
    with ShardWriter(tmp_path) as writer:
        writer.write("a", {"bin": big, "txt": b""})
        for number in range(1000):  # more pieces than one system call takes
            writer.write(f"b/{number}", {"txt": b"%d" % number})
    shards = tmp_path / "shard-000000.tar"
    with tarfile.open(shards) as archive:
        assert archive.extractfile("a.bin").read() == big
        assert archive.extractfile("b/999.txt").read() == b"999"
    assert hashlib.sha256(shards.read_bytes()).hexdigest() == writer.index.entries[0].sha256


def test_keys_are_made_safe_and_counted(tmp_path: Path) -> None:
    long = "class/" + "x" * 300
    with ShardWriter(tmp_path) as writer:
        assert writer.write("a/plain", {"txt": b"1"}) == "a/plain"
        assert writer.write("a/no. 1", {"txt": b"1"}) == "a/no%2E%201"
        shortened = writer.write(long, {"txt": b"1"})
    assert writer.encoded_keys == 1
    assert writer.shortened_keys == {shortened: long}


def test_a_report_can_be_attached(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        writer.write("a", {"txt": b"1"})
        writer.attach("build.json", b"{}")
        assert not (tmp_path / "build.json").exists(), "published with the shards, not before"
    assert (tmp_path / "build.json").read_bytes() == b"{}"


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"shard_bytes": 0}, {"shard_samples": 0}, {"shard_bytes": -5}])
def test_absurd_shard_sizes(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        ShardWriter(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("field", ["", "JPG", "a/b", ".jpg", "-x", "x" * 49, "a b"])
def test_field_names_that_readers_would_misread(tmp_path: Path, field: str) -> None:
    writer = ShardWriter(tmp_path / "out")
    with pytest.raises(ConfigError, match="field name"):
        writer.write("a", {field: b""})
    writer.discard()


@pytest.mark.parametrize("label", [b"2", b"-1", b"x", b"", b"1.0", b"9" * 5000])
def test_labels_without_a_class_name(tmp_path: Path, label: bytes) -> None:
    with ShardWriter(tmp_path, classes=["a", "b"]) as writer:
        writer.write("good", {"cls": b"1"})
        with pytest.raises(ConfigError, match="there are classes 0 to 1"):
            writer.write("a", {"cls": label})
    assert writer.index.class_samples == (0, 1)


def test_keys_are_unique_over_all_shards(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "out", shard_samples=1) as writer:
        writer.write("a b", {"txt": b"1"})
        writer.write("c", {"txt": b"1"})
        with pytest.raises(DuplicateKeyError, match="'a b' was written before"):
            writer.write("a b", {"jpg": b"1"})
    assert sizes(writer.index) == [1, 1]


def test_a_sample_needs_fields_and_a_set_needs_samples(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "out")
    with pytest.raises(ConfigError, match="no fields"):
        writer.write("a", {})
    with pytest.raises(ConfigError, match="no samples were written"):
        writer.close()
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="not published"):
        writer.index  # noqa: B018


# -- destinations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["index.json", "other.txt", ".DS_Store", "shard-000000.tar"])
def test_a_destination_with_anything_in_it_is_refused_and_not_changed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(DestinationError, match=str(tmp_path)):
        ShardWriter(tmp_path)
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"precious"


def test_a_file_as_destination_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(DestinationError, match="is a file"):
        ShardWriter(tmp_path / "file")
    with pytest.raises(MissingDataError, match="Not a directory"):
        ShardWriter(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_nothing_is_published_before_the_end_and_an_error_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"

    def fail_in_the_middle() -> None:
        with ShardWriter(folder, shard_samples=1) as writer:
            for number in range(5):
                writer.write(str(number), {"txt": b"1"})
            assert os.listdir(folder) == [STAGING_NAME]
            with pytest.raises(MissingDataError, match="a build is writing into it, or was killed"):
                ShardDatastore(folder)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_the_middle()
    assert not folder.exists()


def _interrupted(folder: Path) -> None:
    with ShardWriter(folder) as writer:
        writer.write("a", {"txt": b"1"})
        raise KeyboardInterrupt


def test_an_error_leaves_an_existing_folder_empty(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(tmp_path)
    assert os.listdir(tmp_path) == []


def test_two_writers_never_share_a_destination(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        writer.write("a", {"txt": b"1"})
        with pytest.raises(DestinationError, match="another build"):
            ShardWriter(tmp_path)
        writer.write("b", {"txt": b"1"})
    assert sizes(writer.index) == [2]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises((ShardError, MissingDataError), match="creating /proc/headrace/out"):
        ShardWriter("/proc/headrace/out")


# -- kills and full disks ----------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from headrace.datastores.write import ShardWriter
moment = int(sys.argv[2])
rename = Path.rename
def counting_rename(self, target):
    global moment
    moment -= 1
    if moment < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
if moment >= 0:
    Path.rename = counting_rename  # the process dies between two renames
with ShardWriter(sys.argv[1], shard_samples=2) as writer:
    for number in range(5):
        writer.write(str(number), {"txt": b"%d" % number})
    if moment < 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("unbroken")
    _write_five(folder)
    return files_of(folder)


def _write_five(folder: Path) -> None:
    with ShardWriter(folder, shard_samples=2) as writer:
        for number in range(5):
            writer.write(str(number), {"txt": b"%d" % number})


@pytest.mark.parametrize("moment", [-1, 0, 1, 3, 5, 6])
def test_a_killed_writer_leaves_no_dataset_and_the_next_one_cleans_up(
    tmp_path: Path, moment: int, unbroken: dict[str, str]
) -> None:
    folder = tmp_path / "out"
    result = subprocess.run([sys.executable, "-c", KILLED, folder, str(moment)], check=False, capture_output=True)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    assert STAGING_NAME in os.listdir(folder)
    assert len(list(folder.glob("*.tar*"))) == max(0, moment)
    for location in (folder, f"{folder}/shard-00000*.tar"):
        with pytest.raises(MissingDataError):
            ShardDatastore(location)
    _write_five(folder)
    assert files_of(folder) == unbroken


def test_remains_beside_a_foreign_file_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    subprocess.run([sys.executable, "-c", KILLED, folder, "3"], check=False)
    (folder / "mine.txt").write_bytes(b"precious")
    before = files_of(folder)
    with pytest.raises(DestinationError, match=r"it holds mine\.txt"):
        ShardWriter(folder)
    assert files_of(folder) == before


def test_a_manifest_cannot_lead_out_of_the_destination(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"x")
    staging = tmp_path / "out" / STAGING_NAME
    staging.mkdir(parents=True)
    (staging / "publish.json").write_text(json.dumps(["../precious", str(tmp_path / "precious")]))
    _write_five(tmp_path / "out")
    assert (tmp_path / "precious").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def _write_noise(folder: Path, samples: int) -> None:
    with ShardWriter(folder, shard_bytes=300_000) as writer:
        for number in range(samples):
            writer.write(str(number), {"bin": os.urandom(50_000)})


def test_a_full_disk_is_an_error_and_leaves_nothing(small_disk: Path) -> None:
    folder = small_disk / "out"
    with pytest.raises(ShardError, match=r"writing .*shard-00000\d\.tar.*No space left on device"):
        _write_noise(folder, samples=100)
    assert not folder.exists()
    with ShardWriter(folder) as writer:
        writer.write("a", {"bin": bytes(600_000)})
    assert sizes(writer.index) == [1]


LIMITED = """
import resource, signal, sys
from headrace.datastores.write import ShardWriter
from headrace.errors import ShardError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
try:
    with ShardWriter(sys.argv[1]) as writer:
        for number in range(10):
            writer.write(str(number), {"bin": bytes(900_001)})
except ShardError as error:
    print(error)
"""


def test_a_disk_that_takes_a_part_of_a_write(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, tmp_path / "out"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "shard-000000.tar" in result.stdout
    assert "File too large" in result.stdout
    assert not (tmp_path / "out").exists()


def test_images_are_stored_bit_by_bit(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=3)
    assert ShardDatastore(tmp_path).raw(2) == {"cls": b"2", "jpg": jpeg(2)}
    assert io.BytesIO(jpeg(2)).read(2) == b"\xff\xd8"
