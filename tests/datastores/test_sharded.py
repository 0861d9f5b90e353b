"""Shards as a datastore: found wherever they lie, read exactly, and never in doubt about which bytes they are."""

import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from archives import jpeg, tar_bytes, write_shards
from pictures import encode, photo

from headrace.datastores.datastore import EncodedImage
from headrace.datastores.index import INDEX_NAME
from headrace.datastores.offsets import SUFFIX
from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.shards import ShardReader
from headrace.datastores.write import ShardWriter
from headrace.errors import (
    ConfigError,
    DuplicateKeyError,
    FieldError,
    MissingDataError,
    SampleError,
    ShardError,
)


def everything(shards: ShardDatastore) -> list[EncodedImage]:
    return shards.encoded(np.arange(len(shards)))


def keys(shards: ShardDatastore) -> list[str]:
    return [shards.key(index) for index in range(len(shards))]


def foreign(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


def unindexed(folder: Path) -> Path:
    for path in (folder / INDEX_NAME, *folder.glob("*" + SUFFIX)):
        path.unlink()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "set", samples=10, per_shard=4)
    return tmp_path / "set"


EXPECTED = [EncodedImage(jpeg(number), number % 3) for number in range(10)]

# -- reading -----------------------------------------------------------------------------------------------------------


def test_samples_are_those_that_were_written(folder: Path) -> None:
    shards = ShardDatastore(folder)
    assert everything(shards) == EXPECTED
    assert keys(shards) == [f"c{number % 3}/{number:03d}" for number in range(10)]
    assert (shards.classes, shards.has_labels, shards.fields) == (("red", "green", "blue"), True, ("cls", "jpg"))
    assert shards.shard_sizes.tolist() == [4, 4, 2]
    assert shards.shard_sizes.dtype == np.int64
    assert shards.count_each_label() == {"red": 4, "green": 3, "blue": 3}
    assert shards.labels_of(np.array([5, 0])).tolist() == [2, 0]
    assert shards.raw(9) == {"cls": b"0", "jpg": jpeg(9)}
    assert shards.skipped == {}


@pytest.mark.parametrize("ids", [[], [9], [3, 3, 3], [9, 0, 4, 5, 1, 8], list(range(9, -1, -1))])
def test_samples_come_in_the_order_asked_for(folder: Path, ids: list[int]) -> None:
    assert ShardDatastore(folder).encoded(np.array(ids, np.int64)) == [EXPECTED[number] for number in ids]


def test_a_sample_is_pixels_label_and_key(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        writer.write("a/1", {"png": encode(photo(9, 12)), "cls": b"7"})
    sample = ShardDatastore(tmp_path)[0]
    assert (sample["label"], sample["key"], sorted(sample)) == (7, "a/1", ["image", "key", "label"])
    assert np.array_equal(sample["image"], photo(9, 12))


@pytest.mark.parametrize("index", [-1, 10, 10**15])
def test_numbers_out_of_range(folder: Path, index: int) -> None:
    shards = ShardDatastore(folder)
    for method in (shards.__getitem__, shards.key, shards.raw, shards.locate):
        with pytest.raises(IndexError, match=r"0 \.\. 9"):
            method(index)


def test_locate_names_shard_key_and_bytes(folder: Path) -> None:
    start = (folder / "shard-000001.tar").read_bytes().index(jpeg(5))
    expected = f"{folder}/shard-000001.tar, key 'c2/005', bytes {start - 1024} to {start + len(jpeg(5))}"
    assert ShardDatastore(folder).locate(5) == expected


def test_fields_side_by_side_are_read_at_once_and_far_ones_are_not(tmp_path: Path) -> None:
    near, far = [("a.cls", b"1"), ("a.jpg", b"JPEG")], [("b.jpg", b"jpeg"), ("z.bin", bytes(10**6)), ("b.cls", b"2")]
    path = foreign(tmp_path / "x.tar", near + far)
    shards = ShardDatastore(path)
    storage, asked = shards._reader.storage, []
    read = storage.read

    def noting(path: str, offset: int, length: int) -> bytes:
        asked.append(length)
        return read(path, offset, length)

    storage.read = noting
    assert shards.encoded(np.array([0])) == [EncodedImage(b"JPEG", 1)]
    assert asked == [1024 + 4]
    assert shards.encoded(np.array([1])) == [EncodedImage(b"jpeg", 2)]
    assert asked[1:] == [4, 1]


# -- fields ------------------------------------------------------------------------------------------------------------


def test_each_sample_may_have_another_image_field(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("b.png", b"2"), ("c.JPEG", b"3"), ("d.webp", b"4")])
    shards = ShardDatastore(path)
    assert [image.data for image in everything(shards)] == [b"1", b"2", b"3", b"4"]
    assert not shards.has_labels
    assert [image.label for image in everything(shards)] == [None] * 4


def test_the_image_field_can_be_chosen(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.seg.png", b"2"), ("b.seg.png", b"3"), ("b.jpg", b"4")])
    assert [image.data for image in everything(ShardDatastore(path))] == [b"1", b"4"]
    assert [image.data for image in everything(ShardDatastore(path, image_field="seg.png"))] == [b"2", b"3"]
    assert [image.data for image in everything(ShardDatastore(path, image_field="png; seg.png;jpg"))] == [b"2", b"3"]
    with pytest.raises(ConfigError, match=r"no sample has an image field \(png\): the fields are \['jpg', 'seg.png'\]"):
        ShardDatastore(path, image_field="png")


def test_dots_in_keys_make_other_fields_and_the_error_says_which(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.v1.0.jpg", b"1"), ("a.cls", b"0")])
    with pytest.raises(ConfigError, match=r"the fields are \['cls', 'v1\.0\.jpg'\]"):
        ShardDatastore(path)


def test_a_sample_without_an_image_is_named_with_what_it_has(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.cls", b"1"), ("b.cls", b"0"), ("b.txt", b"x")])
    shards = ShardDatastore(path)
    assert shards.encoded(np.array([0])) == [EncodedImage(b"1", 1)]
    with pytest.raises(FieldError, match=r"x\.tar, key 'b' has no image field \(jpg\): it has \['cls', 'txt'\]"):
        everything(shards)


def test_a_sample_without_a_label_is_named(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.cls", b"1"), ("b.jpg", b"0")])
    with pytest.raises(FieldError, match=r"x\.tar, key 'b' has no field 'cls' .*it has \['jpg'\]"):
        everything(ShardDatastore(path))
    assert [image.label for image in everything(ShardDatastore(path, label_field=None))] == [None, None]


def test_label_fields(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.grade", b" -3\n"), ("b.jpg", b"1"), ("b.grade", b"+12")])
    shards = ShardDatastore(path, label_field="grade")
    assert [image.label for image in everything(shards)] == [-3, 12]
    assert shards.count_each_label() == {"-3": 1, "12": 1}
    with pytest.raises(ConfigError, match="no sample has the label field 'score'"):
        ShardDatastore(path, label_field="score")
    with pytest.raises(ConfigError, match="these shards have no labels"):
        ShardDatastore(path).labels_of(np.array([0]))


@pytest.mark.parametrize(
    "text", [b"", b"cat", b"1.5", b"0x1", b"1 2", b"1_0", b"\xef\xbc\x91", b"9" * 30, b"\x80\x04K\x01."]
)
def test_labels_that_are_no_numbers(tmp_path: Path, text: bytes) -> None:
    path = foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.cls", text)])
    with pytest.raises(SampleError) as caught:
        everything(ShardDatastore(path))
    assert f"x.tar, key 'a': field 'cls' holds {text!r}: expected a class number" in str(caught.value)


def test_labels_beyond_the_class_names(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=3)
    index = (tmp_path / INDEX_NAME).read_bytes().replace(b', "blue"', b"").replace(b"[1, 1, 1]", b"[1, 2]")
    (tmp_path / INDEX_NAME).write_bytes(index)
    with pytest.raises(SampleError, match=r"key 'c2/002': field 'cls' holds b'2': expected a number below 2"):
        everything(ShardDatastore(tmp_path))


# -- locations ---------------------------------------------------------------------------------------------------------


def test_every_way_to_name_shards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    part = f"{folder}/shard-00000"
    for location in (
        folder,
        f"{folder}/",
        "set",
        f"file://{folder}",
        f"{part}{{0..2}}.tar",
        f"{folder}/shard-{{000000..000002}}.tar",
        f"{folder}/*.tar",
        f"{part}?.tar",
        f"{folder.parent}/s*/shard-00000[0-2].tar",
        [f"{part}0.tar", Path(f"{part}1.tar"), f"{part}2.tar"],
    ):
        shards = ShardDatastore(location)
        assert everything(shards) == EXPECTED
        assert shards.classes == ("red", "green", "blue"), "the index beside the shards is used"
        assert shards.fingerprint == ShardDatastore(folder).fingerprint
    assert everything(ShardDatastore(f"{part}1.tar")) == EXPECTED[4:8]
    assert everything(ShardDatastore([f"{part}2.tar", f"{part}0.tar"])) == EXPECTED[8:] + EXPECTED[:4]


def test_a_folder_without_index_is_scanned_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        foreign(tmp_path / f"x-{number}.tar", [(f"{number}.jpg", b"%d" % number)])
    (tmp_path / "._x-1.tar").write_bytes(b"AppleDouble")
    (tmp_path / "notes.txt").write_bytes(b"x")
    assert keys(ShardDatastore(tmp_path)) == ["1", "9", "10"]
    assert keys(ShardDatastore(f"{tmp_path}/*.tar")) == ["1", "9", "10"]


def test_several_sets_follow_one_another(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", samples=3)
    write_shards(tmp_path / "b", samples=2)
    foreign(tmp_path / "c" / "shard-000000.tar", [("x.jpg", b"1"), ("x.cls", b"2")])
    shards = ShardDatastore([tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "a/shard-000000.tar"])
    assert [image.label for image in everything(shards)] == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert shards.count_each_label() == {"red": 3, "green": 3, "blue": 3}
    assert shards.key(5) == "x"
    assert shards._reader.find("x") == 5
    assert shards._reader.find("nobody") is None
    with ShardWriter(tmp_path / "d", classes=["other"]) as writer:
        writer.write("y", {"jpg": b"1", "cls": b"0"})
    with pytest.raises(ConfigError, match="different classes"):
        ShardDatastore([tmp_path / "a", tmp_path / "d"])


def test_odd_names_are_literal_if_they_exist(tmp_path: Path) -> None:
    path = foreign(tmp_path / "a[1]{2..3}*.tar", [("x.jpg", b"1")])
    assert keys(ShardDatastore(path)) == ["x"]
    bytes_name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    Path(bytes_name).mkdir()
    shutil.copy(path, f"{bytes_name}/\udcff.tar")
    assert keys(ShardDatastore(bytes_name)) == ["x"]


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("absent", "absent"),
        ("absent.tar", r"absent\.tar"),
        ("*.tar", r"nothing matches .*\*\.tar"),
        ("no/*/such.tar", "nothing matches"),
        ("x-{0..3}.tar", r"x-0\.tar"),
        (".", r"no shards in .*it has no index\.json and no \*\.tar"),
    ],
)
def test_what_is_not_there(tmp_path: Path, location: str, says: str) -> None:
    with pytest.raises(MissingDataError, match=says):
        ShardDatastore(f"{tmp_path}/{location}")


def test_slips_of_the_hand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="braces are not balanced"):
        ShardDatastore(f"{tmp_path}/x-{{0..3.tar")
    with pytest.raises(ConfigError, match="more than 10000000 shards"):
        ShardDatastore(f"{tmp_path}/x-{{0..99999999999}}.tar")
    with pytest.raises(ConfigError, match="index must be"):
        ShardDatastore(tmp_path, index="never")
    (tmp_path / "x.tar.gz").write_bytes(b"x")
    with pytest.raises(MissingDataError, match=r"unpack x\.tar\.gz"):
        ShardDatastore(tmp_path)


def test_shards_without_samples(tmp_path: Path) -> None:
    foreign(tmp_path / "x.tar", [("README", b"x"), ("._a.jpg", b"x")])
    with pytest.raises(MissingDataError, match=r"no samples in .*hidden file: 1, no extension: 1"):
        ShardDatastore(tmp_path)


def test_broken_shards_are_found_when_they_are_opened(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"<html>403</html>")
    with pytest.raises(ShardError, match=r"x\.tar is no tar: it looks like HTML"):
        ShardDatastore(tmp_path)
    foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.jpg", b"2")])
    with pytest.raises(DuplicateKeyError, match=r"x\.tar"):
        ShardDatastore(tmp_path)


# -- with and without an index -----------------------------------------------------------------------------------------


def test_without_an_index_the_samples_are_the_same(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "copy")
    shards = ShardDatastore(unindexed(folder.parent / "copy"))
    assert everything(shards) == EXPECTED
    assert keys(shards) == keys(ShardDatastore(folder))
    assert shards.classes == ()
    assert shards.count_each_label() == {"0": 4, "1": 3, "2": 3}
    assert ShardDatastore(folder, index="scan").fingerprint == shards.fingerprint
    assert ShardDatastore(folder).fingerprint != shards.fingerprint, "the index knows checksums"
    with pytest.raises(ConfigError, match="headrace index"):
        ShardDatastore(folder.parent / "copy", index="require")
    assert len(ShardDatastore(folder, index="require")) == 10


def test_what_was_scanned_is_kept_in_a_temporary_folder_that_goes_with_the_datastore(folder: Path) -> None:
    shards = ShardDatastore(folder, index="scan")
    scratch = Path(shards._reader.catalog.scratch.folder)
    assert len(list(scratch.glob("*.offsets"))) == 3
    assert scratch.stat().st_mode & 0o777 == 0o700
    copy = pickle.loads(pickle.dumps(shards))
    del shards
    assert not scratch.exists(), "no garbage collection is needed"
    assert everything(copy) == EXPECTED, "a copy that outlives it scans again"


def test_the_temporary_folder_goes_at_exit_and_when_opening_fails(folder: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = (
        "from headrace.datastores import ShardDatastore; import sys; keep = ShardDatastore(sys.argv[1], index='scan')"
    )
    environment = {**os.environ, "TMPDIR": str(scratch)}
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=environment)
    assert list(scratch.iterdir()) == []
    (folder / "shard-000002.tar").write_bytes(b"broken")
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=False, env=environment, capture_output=True
    )
    assert b"ShardError" in result.stderr
    assert list(scratch.iterdir()) == []


def test_a_forked_child_leaves_the_temporary_folder_alone(folder: Path) -> None:
    shards = ShardDatastore(folder, index="scan")
    child = os.fork()
    if child == 0:
        del shards
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Path(shards._reader.catalog.scratch.folder).exists()
    assert everything(shards) == EXPECTED


def test_a_missing_offset_table_is_made_again(folder: Path) -> None:
    (folder / f"shard-000001.tar{SUFFIX}").unlink()
    assert everything(ShardDatastore(folder)) == EXPECTED


def test_changed_keys_of_equal_size_do_not_pass_for_a_missing_table(folder: Path) -> None:
    (folder / f"shard-000001.tar{SUFFIX}").unlink()
    path = folder / "shard-000001.tar"
    other = tar_bytes([(f"d{number}.jpg", b"x") for number in range(4)])[:-8192]
    path.write_bytes(other.ljust(path.stat().st_size, b"\0"))
    with pytest.raises(ShardError, match=r"shard-000001\.tar does not fit its index: .* offset table with SHA-256"):
        everything(ShardDatastore(folder))


# -- an index that does not fit ----------------------------------------------------------------------------------------


def test_a_shard_of_another_size_is_refused(folder: Path) -> None:
    path = folder / "shard-000001.tar"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(512))
    shards = ShardDatastore(folder)
    assert shards.encoded(np.array([0])) == EXPECTED[:1]
    with pytest.raises(ShardError, match=rf"shard-000001\.tar .* bytes: {size}, found {size + 512}: .*headrace index"):
        shards.encoded(np.array([4]))


def test_a_changed_offset_table_is_refused(folder: Path) -> None:
    path = folder / f"shard-000000.tar{SUFFIX}"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError, match=r"shard-000000\.tar"):
        ShardDatastore(folder).encoded(np.arange(1))


def rewrite_index(folder: Path, shard: dict[str, object], **values: object) -> None:
    index = json.loads((folder / INDEX_NAME).read_bytes())
    index["shards"][0].update(shard)
    totals = {name: sum(entry[name] for entry in index["shards"]) for name in ("samples", "bytes")}
    (folder / INDEX_NAME).write_text(json.dumps({**index, **totals, **values}))


def test_an_index_that_lacks_a_field_of_its_shards_is_refused(folder: Path) -> None:
    rewrite_index(folder, {}, fields=["jpg"], class_samples=[])
    with pytest.raises(ShardError, match=r"the index states the fields \['jpg'\], found \['cls', 'jpg'\]"):
        ShardDatastore(folder).raw(0)


def test_an_index_that_invents_samples_costs_no_memory(folder: Path) -> None:
    rewrite_index(folder, {"samples": 2**50, "bytes": 2**60}, class_samples=[])
    with pytest.raises(ShardError, match="the index states bytes: 1152921504606846976"):
        ShardDatastore(folder).count_each_label()


def test_an_offset_table_of_another_shard_is_refused(folder: Path) -> None:
    shutil.copy(folder / f"shard-000000.tar{SUFFIX}", folder / f"shard-000001.tar{SUFFIX}")
    with pytest.raises(ShardError, match=r"shard-000001\.tar\.offsets does not fit its index.*shard-000000\.tar"):
        everything(ShardDatastore(folder))


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"HEADRACE\1\0\0\0\xff\xff\xff\xff"])
def test_a_damaged_offset_table_is_refused(folder: Path, data: bytes) -> None:
    (folder / f"shard-000001.tar{SUFFIX}").write_bytes(data)
    shards = ShardDatastore(folder)
    assert shards.encoded(np.array([0])) == EXPECTED[:1]
    with pytest.raises(ShardError, match=r"shard-000001\.tar\.offsets is no offset table"):
        shards.encoded(np.array([4]))


def test_verify_finds_a_single_changed_byte(folder: Path) -> None:
    ShardDatastore(folder).verify()
    path = folder / "shard-000002.tar"
    data = bytearray(path.read_bytes())
    good = hashlib.sha256(data).hexdigest()
    data[data.index(jpeg(8)) + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError) as caught:
        ShardDatastore(folder).verify()
    assert "shard-000002.tar does not fit its index: the index states SHA-256 " + good in str(caught.value)
    assert hashlib.sha256(data).hexdigest() in str(caught.value)


def test_verify_finds_a_changed_offset_table(folder: Path) -> None:
    path = folder / f"shard-000000.tar{SUFFIX}"
    path.write_bytes(path.read_bytes().replace(b"c0/000", b"c0/999"))
    with pytest.raises(ShardError, match="offset table with SHA-256"):
        ShardDatastore(folder).verify()


def test_a_shard_that_is_replaced_while_it_is_in_use_is_noticed(folder: Path, tmp_path: Path) -> None:
    shards = ShardDatastore(folder)
    shards._reader.storage = type(shards._reader.storage)(max_open=1)
    shards._reader.shard = shards._reader._opener()
    assert everything(shards) == EXPECTED
    other = tmp_path / "other.tar"
    other.write_bytes((folder / "shard-000000.tar").read_bytes())
    other.replace(folder / "shard-000000.tar")
    with pytest.raises(ShardError, match=r"shard-000000\.tar was replaced while it was in use"):
        everything(shards)


def test_a_shard_that_is_cut_while_it_is_in_use_is_noticed(folder: Path) -> None:
    shards = ShardDatastore(folder)
    assert everything(shards) == EXPECTED
    os.truncate(folder / "shard-000000.tar", 1000)
    with pytest.raises(ShardError, match=r"shard-000000\.tar ends too early"):
        everything(shards)


# -- processes and resources -------------------------------------------------------------------------------------------


def _digest(shards: ShardDatastore) -> str:
    return hashlib.sha256(b"".join(image.data for image in everything(shards))).hexdigest()


def _send_digest(shards: ShardDatastore, connection: "multiprocessing.connection.Connection") -> None:
    connection.send(_digest(shards))


@pytest.mark.parametrize("index", ["auto", "scan"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(folder: Path, method: str, index: str) -> None:
    shards = ShardDatastore(folder, index=index)
    expected = _digest(shards)
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_digest, args=(shards, sender))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == expected
    child.join(10)
    assert child.exitcode == 0
    assert _digest(shards) == expected


def test_its_pickle_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    lengths = []
    for samples in (10, 2000):
        with ShardWriter(tmp_path / str(samples)) as writer:
            for number in range(samples):
                writer.write(f"{number:06d}", {"jpg": b"x"})
        shards = ShardDatastore(tmp_path / str(samples))
        everything(shards)
        lengths.append(len(pickle.dumps(shards)))
    assert abs(lengths[1] - lengths[0]) < 20
    assert lengths[0] < 3000


def test_few_descriptors_stay_open(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=300, per_shard=1)
    before = len(os.listdir("/proc/self/fd"))
    shards = ShardDatastore(tmp_path)
    for _ in range(2):
        assert len(everything(shards)) == 300
    assert len(os.listdir("/proc/self/fd")) - before <= 64 + 128 + 2
    del shards
    assert len(os.listdir("/proc/self/fd")) == before


LOW_LIMIT = """
import resource, sys
import numpy as np
from headrace.datastores import ShardDatastore
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
shards = ShardDatastore(sys.argv[1])
print(len(shards.encoded(np.arange(len(shards)))))
"""


def test_forty_descriptors_are_enough(tmp_path: Path) -> None:
    write_shards(tmp_path, samples=100, per_shard=1)
    result = subprocess.run([sys.executable, "-c", LOW_LIMIT, tmp_path], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "100"


def test_reader_counts_fields(tmp_path: Path) -> None:
    foreign(tmp_path / "1.tar", [("a.jpg", b"1"), ("a.cls", b"1"), ("b.jpg", b"0")])
    foreign(tmp_path / "2.tar", [("c.txt", b"1"), ("c.jpg", b"1")])
    scanned = []
    reader = ShardReader(tmp_path, on_scan=lambda: scanned.append(1))
    assert reader.count_each_field() == {"cls": 1, "jpg": 3, "txt": 1}
    assert len(scanned) == 2


def test_labels_without_names_are_said(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.cls", b"7"), ("b.jpg", b"1"), ("b.cls", b"3")])
    shards = ShardDatastore(path)
    assert (shards.classes, shards.has_labels, shards.count_each_label()) == ((), True, {"3": 1, "7": 1})
    assert repr(shards) == "<ShardDatastore of 2 images, labels without names>"
    assert repr(ShardDatastore(path, label_field=None)) == "<ShardDatastore of 2 images>"
