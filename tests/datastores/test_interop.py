"""Others read our shards, and we read theirs: webdataset, GNU tar, bsdtar and Python's tarfile."""

import gc
import io
import json
import shutil
import subprocess
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from archives import image_folder, jpeg, tar_bytes, write_shards

from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.write import ShardWriter

with warnings.catch_warnings():  # of its dependencies, on import
    warnings.simplefilter("ignore")
    import webdataset as wds


def read_all(shards: ShardDatastore) -> dict[str, tuple[bytes, int | None]]:
    images = shards.encoded(np.arange(len(shards)))
    return {shards.key(index): (image.data, image.label) for index, image in enumerate(images)}


# -- ours, read by others ----------------------------------------------------------------------------------------------

leaves_files_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def read_by_webdataset(urls: str) -> list[dict[str, bytes]]:
    samples = list(wds.WebDataset(urls, shardshuffle=False))
    gc.collect()  # it leaves its files to the garbage collector, which shall complain here and not in a later test
    return samples


@leaves_files_open
def test_webdataset_reads_ours(tmp_path: Path) -> None:
    images = write_shards(tmp_path, samples=10, per_shard=4)
    urls = f"{tmp_path}/shard-{{000000..000002}}.tar"
    found = read_by_webdataset(urls)
    assert [sample["__key__"] for sample in found] == list(images)
    assert [sample["jpg"] for sample in found] == list(images.values())
    assert [sample["cls"] for sample in found] == [b"%d" % (number % 3) for number in range(10)]
    decoded = list(wds.WebDataset(urls, shardshuffle=False).decode("rgb8").to_tuple("jpg;png", "cls"))
    gc.collect()
    assert (decoded[0][0].shape, decoded[0][1]) == ((24, 32, 3), 0)


@leaves_files_open
def test_webdataset_sees_the_keys_that_we_see(tmp_path: Path) -> None:
    odd = [
        "a/plain",
        "a/no. 1",
        "../up",
        "a//b",
        "__meta__/x",
        "x/__MACOSX/y",
        ".hidden",
        "50%",
        "ü/ß",
        "x" * 300,
        "d/" * 99,
    ]
    with ShardWriter(tmp_path) as writer:
        stored = [writer.write(key, {"txt": key.encode(), "jpg": b"x"}) for key in odd]
    found = read_by_webdataset(f"{tmp_path}/shard-000000.tar")
    assert [sample["__key__"] for sample in found] == stored
    assert [sample["txt"].decode() for sample in found] == odd
    assert list(read_all(ShardDatastore(tmp_path))) == stored


@pytest.mark.parametrize("program", ["tar", "bsdtar"])
def test_tar_programs_list_and_unpack_ours(tmp_path: Path, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    images = write_shards(tmp_path / "set", samples=5, per_shard=9)
    with ShardWriter(tmp_path / "odd") as writer:
        odd = writer.write("deep/" * 30 + "x" * 90, {"jpg": b"abc"})
    out = tmp_path / "out"
    out.mkdir()
    for name in ("set", "odd"):
        shard = tmp_path / name / "shard-000000.tar"
        listed = subprocess.run([program, "-tf", shard], check=True, capture_output=True, text=True)
        assert listed.stderr == "", "no warnings"
        subprocess.run([program, "-xf", shard, "-C", out], check=True)
    for key, data in images.items():
        assert (out / f"{key}.jpg").read_bytes() == data
    assert (out / f"{odd}.jpg").read_bytes() == b"abc"
    assert len([path for path in out.rglob("*") if path.is_file()]) == 11


# -- theirs, read by us, with no index beside them ---------------------------------------------------------------------


@pytest.mark.parametrize("mtime", [None, 1.5])
def test_webdatasets_own_shards(tmp_path: Path, mtime: float | None) -> None:
    with wds.ShardWriter(f"{tmp_path}/x-%06d.tar", maxcount=4, verbose=0, mtime=mtime) as writer:
        for number in range(10):
            writer.write({"__key__": f"{number:04d}", "jpg": jpeg(number), "cls": number % 3, "json": {"n": number}})
    shards = ShardDatastore(tmp_path)
    assert shards.shard_sizes.tolist() == [4, 4, 2]
    assert read_all(shards) == {f"{number:04d}": (jpeg(number), number % 3) for number in range(10)}
    assert json.loads(shards.raw(7)["json"]) == {"n": 7}


@pytest.mark.parametrize("kind", ["ustar", "pax", "gnu"])
def test_pythons_tarfile(tmp_path: Path, kind: str) -> None:
    kinds = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}
    long = "folder/" * 20 + "n" * 90
    members = {"a/1.jpg": b"one", "a/1.cls": b"3", f"{long}.jpg": b"two", f"{long}.cls": b"4"}
    (tmp_path / "x.tar").write_bytes(tar_bytes(members, kinds[kind], mtime=1.25 if kind == "pax" else 0))
    assert read_all(ShardDatastore(tmp_path)) == {"a/1": (b"one", 3), long: (b"two", 4)}


@pytest.mark.parametrize("order", ["name", "none"])
@pytest.mark.parametrize("kind", ["gnu", "pax", "ustar"])
def test_gnu_tar_of_a_folder(tmp_path: Path, kind: str, order: str) -> None:
    files = image_folder(tmp_path / "in", {"cat": 3, "dog/" + "d" * 90: 2})
    for name in files:
        (tmp_path / "in" / name).with_suffix(".cls").write_bytes(b"1")
    (tmp_path / "in/cat/._000.jpg").write_bytes(b"AppleDouble")
    (tmp_path / "x.tar").touch()
    command = ["tar", "--format", kind, f"--sort={order}", "-C", tmp_path / "in", "-cf", tmp_path / "x.tar", "."]
    subprocess.run(command, check=True)
    shards = ShardDatastore(tmp_path / "x.tar")
    assert read_all(shards) == {name.removesuffix(".jpg"): (data, 1) for name, data in files.items()}
    assert shards.skipped == {"folder": 4, "hidden file": 1}


def test_gnu_tar_with_hard_links_and_images_far_from_their_labels(tmp_path: Path) -> None:
    image_folder(tmp_path, {"in": 2})
    (tmp_path / "in/copy.jpg").hardlink_to(tmp_path / "in/000.jpg")
    for name, label in (("000", b"0"), ("001", b"1"), ("copy", b"2")):
        (tmp_path / f"in/{name}.cls").write_bytes(label)
    names = ["in/000.jpg", "in/001.jpg", "in/copy.jpg", "in/copy.cls", "in/001.cls", "in/000.cls"]
    subprocess.run(["tar", "-C", tmp_path, "-cf", tmp_path / "x.tar", *names], check=True)
    expected = {"in/000": (jpeg(0), 0), "in/001": (jpeg(1), 1), "in/copy": (jpeg(0), 2)}
    assert read_all(ShardDatastore(tmp_path)) == expected


def test_an_img2dataset_layout(tmp_path: Path) -> None:
    members = [
        (f"00000000{number}.{field}", data)
        for number in (2, 0, 1)  # in the order in which downloads ended
        for field, data in (("jpg", jpeg(number)), ("json", b'{"width": 9}'), ("txt", "a captiön".encode()))
    ]
    (tmp_path / "00000.tar").write_bytes(tar_bytes(members, tarfile.PAX_FORMAT, mtime=0.5))
    (tmp_path / "00000.parquet").write_bytes(b"PAR1")
    (tmp_path / "00000_stats.json").write_bytes(b"{}")
    shards = ShardDatastore(tmp_path)
    assert read_all(shards) == {f"00000000{number}": (jpeg(number), None) for number in (2, 0, 1)}
    assert shards.raw(0)["txt"].decode() == "a captiön"


def test_an_unfinished_shard_of_webdataset_is_an_error(tmp_path: Path) -> None:
    file = io.BytesIO()
    writer = wds.TarWriter(file)
    for number in range(30):
        writer.write({"__key__": f"{number}", "jpg": jpeg(number)})
    writer.close()
    data = file.getvalue()
    (tmp_path / "x.tar").write_bytes(data[: data.index(jpeg(7)) + 100])
    with pytest.raises(OSError, match=r"x\.tar is truncated: member '7\.jpg' needs .* found 100"):
        ShardDatastore(tmp_path)
