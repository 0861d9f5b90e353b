"""headrace build: image bytes stay what they are, equal folders give equal bytes, and trouble leaves nothing behind."""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from archives import image_folder, jpeg
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode, photo

from headrace.datastores.image import ImageDatastore
from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.staging import STAGING_NAME
from headrace.tools.build_options import _bytes, _count
from headrace.tools.cli import main


def build(*arguments: object) -> int:
    return main(["build", *map(str, arguments), "--quiet"])


def tree(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def report(folder: Path) -> dict[str, object]:
    return json.loads((folder / "build.json").read_text())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    image_folder(tmp_path / "src", {"cat": 4, "dog": 3, "10": 1, "9": 2})
    return tmp_path / "src"


def test_every_image_arrives_unchanged_with_its_class(source: Path, tmp_path: Path) -> None:
    assert build(source, tmp_path / "out", "--shard-samples", 4) == 0
    images, shards = ImageDatastore(source), ShardDatastore(tmp_path / "out")
    every = np.arange(10)
    assert shards.encoded(every) == images.encoded(every)
    assert [shards.key(i) + ".jpg" for i in range(10)] == [images.key(i) for i in range(10)]
    assert shards.classes == images.classes == ("9", "10", "cat", "dog")
    assert shards.count_each_label() == {"9": 2, "10": 1, "cat": 4, "dog": 3}
    assert shards.shard_sizes.tolist() == [4, 4, 2]
    shards.verify()


def test_building_twice_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert build(source, tmp_path / name, "--shard-bytes", "4kB") == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert len(ShardDatastore(tmp_path / "one").shard_sizes) > 2


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    image_folder(tmp_path / "src", {"": 3})
    assert build(tmp_path / "src", tmp_path / "out") == 0
    shards = ShardDatastore(tmp_path / "out")
    assert (shards.fields, shards.has_labels) == (("jpg",), False)


def test_labels_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_folder(tmp_path / "src", {"": 1, "cat": 2})
    assert build(tmp_path / "src", tmp_path / "out") == 1
    assert "--labels foldernames or none" in capsys.readouterr().err
    assert build(tmp_path / "src", tmp_path / "out", "--labels", "foldernames") == 0
    assert ShardDatastore(tmp_path / "out").classes == ("cat", "src")
    assert build(tmp_path / "src", tmp_path / "none", "--labels", "none") == 0
    assert not ShardDatastore(tmp_path / "none").has_labels


def test_formats_become_fields_and_odd_names_safe_keys(tmp_path: Path) -> None:
    source = tmp_path / "src"
    names = {"a/no. 1.PNG": "PNG", "a/b.v2.jpeg": "JPEG", "a/ü.webp": "WEBP", "a/x.gif": "GIF", "a/y.TIF": "TIFF"}
    names |= {"a/z.bmp": "BMP", "a/" + "n" * 200 + ".ppm": "PPM"}
    for name, kind in names.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(encode(photo(8, 9), kind))
    assert build(source, tmp_path / "out") == 0
    shards = ShardDatastore(tmp_path / "out")
    assert shards.fields == ("bmp", "cls", "gif", "jpeg", "png", "ppm", "tif", "webp")
    keys = {shards.key(index): shards[index]["image"].shape for index in range(len(shards))}
    assert set(keys.values()) == {(8, 9, 3)}
    assert {"a/no%2E%201", "a/b%2Ev2", "a/ü"} <= set(keys)
    found = report(tmp_path / "out")
    assert found["encoded_keys"] == 2
    assert list(found["shortened_keys"].values()) == ["a/" + "n" * 200]


def test_the_report_says_what_was_done(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "cat/notes.txt").write_bytes(b"x")
    (source / "cat/.hidden.jpg").write_bytes(b"x")
    assert main(["build", str(source), str(tmp_path / "out"), "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["shards"], printed["samples"], printed["destination"]) == (1, 10, str(tmp_path / "out"))
    assert printed["bytes"] == (tmp_path / "out/shard-000000.tar").stat().st_size
    found = report(tmp_path / "out")
    assert printed == {name: found[name] for name in found if name in printed} | {
        name: printed[name] for name in ("shards", "bytes", "destination")
    }
    assert found["classes"] == {"9": 2, "10": 1, "cat": 4, "dog": 3}
    assert found["passed_over"] == {"hidden file or folder": 1, "other extension": 1}
    assert found["image_bytes"] == sum(len(jpeg(number)) for number in range(10))
    assert main(["build", str(source), str(tmp_path / "again")]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("10 images in 1 shard (")
    assert shown.out.endswith(f"4 classes): {tmp_path}/again\n")
    assert "passed over (hidden file or folder: 1, other extension: 1)" in shown.err


# -- bad input ---------------------------------------------------------------------------------------------------------


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert build(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


BAD = {
    "html.jpg": b"<html>404</html>",
    "text.png": b"hello",
    "cut.jpg": jpeg(0)[:3],
    "zeros.gif": bytes(100),
    "empty.jpg": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_image_stops_the_build(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (source / "cat" / name).write_bytes(BAD[name])
    message = fails(capsys, source, tmp_path / "out")
    assert f"{source}/cat/{name} is " in message
    assert "--skip-bad" in message
    assert not (tmp_path / "out").exists()


def test_bad_files_can_be_left_out_and_are_listed(source: Path, tmp_path: Path) -> None:
    for name, data in BAD.items():
        (source / "cat" / name).write_bytes(data)
    (source / "onlybad").mkdir()
    (source / "onlybad/x.jpg").write_bytes(b"x")
    assert build(source, tmp_path / "out", "--skip-bad") == 0
    shards = ShardDatastore(tmp_path / "out")
    assert len(shards) == 10
    assert shards.count_each_label()["onlybad"] == 0, "classes do not depend on what can be read"
    bad = {entry["file"]: entry["reason"] for entry in report(tmp_path / "out")["bad"]}
    assert set(bad) == {f"cat/{name}" for name in BAD} | {"onlybad/x.jpg"}
    assert "is empty" in bad["cat/empty.jpg"]
    assert "it begins with b'hello'" in bad["cat/text.png"]
    assert "empty file" not in report(tmp_path / "out")["passed_over"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_stops_the_build(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "cat/000.jpg").chmod(0)
    assert "cat/000.jpg: Permission denied" in fails(capsys, source, tmp_path / "out")


def test_a_sparse_file_is_named_and_can_be_left_out(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(source / "dog/000.jpg", 2**42)
    assert "dog/000.jpg has 4398046511104 bytes" in fails(capsys, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert build(source, tmp_path / "out", "--skip-bad") == 0
    assert [bad["file"] for bad in report(tmp_path / "out")["bad"]] == ["dog/000.jpg"]


@pytest.mark.timeout(30)
def test_a_pipe_in_the_place_of_an_image_is_no_image(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ImageDatastore.key

    def swapping(self: ImageDatastore, index: int) -> str:
        pipe = source / "dog/000.jpg"
        if not pipe.is_fifo():
            pipe.unlink()
            os.mkfifo(pipe)
        return listed(self, index)

    monkeypatch.setattr(ImageDatastore, "key", swapping)
    assert build(source, tmp_path / "out", "--skip-bad") == 0
    assert [bad["file"] for bad in report(tmp_path / "out")["bad"]] == ["dog/000.jpg"]


def test_only_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/x.jpg").write_bytes(b"x")
    assert "no samples were written" in fails(capsys, tmp_path / "src", tmp_path / "out", "--skip-bad")
    (tmp_path / "src/x.jpg").write_bytes(b"")
    assert "no images in" in fails(capsys, tmp_path / "src", tmp_path / "out", "--skip-bad")
    assert not (tmp_path / "out").exists()


def test_a_huge_image_is_an_image(tmp_path: Path) -> None:
    header = encode(photo(8, 8))
    huge = header[:16] + (40_000).to_bytes(4, "big") * 2 + header[24:]
    huge = huge[:29] + zlib.crc32(huge[12:29]).to_bytes(4, "big") + huge[33:]
    (tmp_path / "src").mkdir()
    (tmp_path / "src/huge.png").write_bytes(huge)
    assert build(tmp_path / "src", tmp_path / "out") == 0
    assert ShardDatastore(tmp_path / "out").raw(0) == {"png": huge}


@pytest.mark.parametrize(("first", "second"), [("a.jpg", "a.png"), ("a.JPG", "a.jpg"), ("a.jpg", "a.jpeg")])
def test_two_files_with_one_key(tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, second: str) -> None:
    image_folder(tmp_path / "src", {"cat": 1})
    for name in (first, "a-b.jpg", "a.k.jpg", second):
        (tmp_path / "src/cat" / name).write_bytes(jpeg(1))
    message = fails(capsys, tmp_path / "src", tmp_path / "out")
    assert f"would get one key: cat/{min(first, second)} and cat/{max(first, second)}: rename them" in message
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(source)
    out = tmp_path / "out"
    assert "is not there" in fails(capsys, tmp_path / "absent", out)
    assert "is a file" in fails(capsys, source / "cat/000.jpg", out)
    assert "no images in" in fails(capsys, tmp_path / "empty", out)
    assert "lies inside" in fails(capsys, source, source / "shards")
    assert "lies inside" in fails(capsys, source, source)
    assert "lies inside" in fails(capsys, source, tmp_path / "link" / "shards")
    assert "is a file" in fails(capsys, source, tmp_path / "file")
    assert "Not a directory" in fails(capsys, source, tmp_path / "file/out")
    assert "is not empty (it holds" in fails(capsys, source, tmp_path)
    assert not out.exists()
    assert sorted(path.name for path in source.iterdir()) == ["10", "9", "cat", "dog"]
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_destinations_that_no_path_leads_to(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    assert "loop: Too many levels of symbolic links" in fails(capsys, source, tmp_path / "loop")
    assert "loop: Too many levels of symbolic links" in fails(capsys, tmp_path / "loop", tmp_path / "out")
    assert "File name too long" in fails(capsys, source, tmp_path / ("x" * 300))
    assert "x.tar would be opened as one tar" in fails(capsys, source, tmp_path / "x.tar")
    assert "is not local" in fails(capsys, source, "s3://bucket/out")
    assert sorted(tmp_path.rglob("*")) == before


def test_home_is_the_same_in_what_is_checked_and_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    image_folder(home / "set", {"a": 2})
    image_folder(here / "~" / "set", {"a": 3})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert build("~/set", "~/out") == 0
    assert (len(ShardDatastore("~/out")), len(ShardDatastore(home / "out"))) == (2, 2)
    assert build("./~/set", "./~/out") == 0
    assert (len(ShardDatastore("./~/out")), len(ShardDatastore(here / "~" / "out"))) == (3, 3)
    capsys.readouterr()
    assert "lies inside" in fails(capsys, "~", home / "new")
    assert sorted(os.listdir(home)) == ["out", "set"]


def test_a_dataset_is_never_overwritten(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build(source, tmp_path / "out") == 0
    before = tree(tmp_path / "out")
    capsys.readouterr()
    (source / "cat/new.jpg").write_bytes(jpeg(50))
    assert "already holds a dataset" in fails(capsys, source, tmp_path / "out")
    assert tree(tmp_path / "out") == before


# -- signals -----------------------------------------------------------------------------------------------------------


WAITING = """
import sys
from headrace.tools import cli, samples
read = samples._read
def waiting(storage, part):
    return open(part.path[:-11] + "pipe").read() if part.path.endswith("cat/zzz.jpg") else read(storage, part)
samples._read = waiting
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGKILL, -9, "")],
)
def test_a_signal_leaves_no_dataset(tmp_path: Path, number: signal.Signals, code: int, says: str) -> None:
    source, out = tmp_path / "src", tmp_path / "out"
    image_folder(source, {"cat": 2})
    os.mkfifo(source / "pipe")
    slow = source / "cat/zzz.jpg"  # the build waits here for a writer who never comes
    slow.write_bytes(b"x")
    command = [sys.executable, "-c", WAITING, "build", str(source), str(out), "--shard-samples", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (out / STAGING_NAME / "shard-000001.tar").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    left = "headrace build: 1 sample finished; the same command with --resume goes on there\n"
    assert errors == (f"{left}headrace build: {says}\n" if says else "")
    assert os.listdir(out) == [STAGING_NAME], "nothing that looks like a dataset"
    slow.write_bytes(jpeg(9))
    assert build(source, out, "--shard-samples", 1) == 0
    assert len(ShardDatastore(out)) == 3


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("500000", 500_000),
        ("4kB", 4000),
        ("256MiB", 256 << 20),
        ("1 gb", 10**9),
        ("2Ti", 2 << 40),
        ("3m", 3 * 10**6),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert _bytes(text) == size


@given(st.text("0123456789kmgtib.-+ ", max_size=8))
def test_any_text_is_a_size_or_wrong_usage(text: str) -> None:
    for read in (_bytes, _count):
        with contextlib.suppress(argparse.ArgumentTypeError):
            assert read(text) >= 1


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(photo(8, 8), "JPEG" if path.suffix == ".jpg" else "PNG"))


def run_build(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "build", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_keys_may_keep_their_extensions(tmp_path: Path) -> None:
    picture(tmp_path / "src/a.png")
    picture(tmp_path / "src/a.jpg")
    refused = run_build(tmp_path / "src", tmp_path / "out")
    assert refused.returncode == 1
    assert "1 pair of samples" in refused.stderr
    assert "a.jpg and a.png" in refused.stderr
    assert "--keep-extensions" in refused.stderr
    built = run_build(tmp_path / "src", tmp_path / "out", "--keep-extensions")
    assert built.returncode == 0, built.stderr
    store = ShardDatastore(tmp_path / "out")
    assert [store.key(i) for i in range(2)] == ["a%2Ejpg", "a%2Epng"]


def test_parts_that_would_merge_are_named(tmp_path: Path) -> None:
    for part in ("train", "test"):
        picture(tmp_path / "src" / part / "cat" / f"{part}.png")
    built = run_build(tmp_path / "src", tmp_path / "out")
    assert built.returncode == 0
    assert "1 class is made of several folders, such as cat of test/cat and train/cat" in built.stderr
    assert json.loads((tmp_path / "out/build.json").read_text())["merged_classes"] == {"cat": ["test/cat", "train/cat"]}


def test_reports_of_bad_files_repeat(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    picture(tmp_path / "src/a.png")
    (tmp_path / "src/b.png").write_bytes(b"no image at all")
    for name in ("one", "two"):
        assert run_build(tmp_path / "src", tmp_path / name, "--skip-bad").returncode == 0
    reports = [(tmp_path / name / "build.json").read_text() for name in ("one", "two")]
    assert reports[0] == reports[1]
    assert "object at 0x" not in reports[0]
