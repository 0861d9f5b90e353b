"""headrace export: every byte comes back, in folders of the classes, and nothing lands outside of them."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from archives import image_folder, jpeg, tar_bytes, write_shards
from hypothesis import given
from hypothesis import strategies as st

from headrace.datastores.filelock import FileLock
from headrace.datastores.keys import encode_key
from headrace.datastores.write import ShardWriter
from headrace.tools.cli import main
from headrace.tools.export import safe_path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def export(*arguments: object) -> int:
    return main(["export", *map(str, arguments), "--quiet"])


def test_a_folder_of_classes_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_folder(tmp_path / "src", {"my cats": 2, "a/dog": 2, "b/dog": 1, "50%": 1})
    (tmp_path / "src/50%/v1.2 ü.jpg").write_bytes(jpeg(9))
    assert main(["build", str(tmp_path / "src"), str(tmp_path / "set"), "--shuffle", "1", "--quiet"]) == 0
    capsys.readouterr()
    assert export(tmp_path / "set", tmp_path / "out") == 0
    assert files(tmp_path / "out") == files(tmp_path / "src")
    assert capsys.readouterr().out.startswith("7 samples in 7 files (")
    assert os.listdir(tmp_path).count("out") == 1
    assert not [name for name in os.listdir(tmp_path) if "export" in name]


def test_classes_become_folders_where_keys_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = {"1.jpg": jpeg(0), "1.cls": b"7", "1.json": b"{}", "a/2.JPG": jpeg(1), "a/2.cls": b"7", "3.jpg": jpeg(2)}
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    assert export(tmp_path / "a.tar", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "destination": str(tmp_path / "out"),
        "samples": 3,
        "files": 4,
        "bytes": sum(len(jpeg(n)) for n in range(3)) + 2,
        "classes": {"7": 2},
    }
    assert files(tmp_path / "out") == {"7/1.jpg": jpeg(0), "7/1.json": b"{}", "a/7/2.jpg": jpeg(1), "3.jpg": jpeg(2)}
    assert export(tmp_path / "a.tar", tmp_path / "some", "--fields", "json") == 0
    assert files(tmp_path / "some") == {"7/1.json": b"{}"}


def test_what_is_exported_builds_into_the_same_set(tmp_path: Path) -> None:
    images = write_shards(tmp_path / "set", samples=10)
    assert export(tmp_path / "set", tmp_path / "out") == 0
    assert {name.rpartition("/")[0].rpartition("/")[2] for name in files(tmp_path / "out")} == {"red", "green", "blue"}
    assert sorted(files(tmp_path / "out").values()) == sorted(images.values())
    assert main(["build", str(tmp_path / "out"), str(tmp_path / "again"), "--quiet"]) == 0
    built = json.loads((tmp_path / "again/build.json").read_text())
    assert built["classes"] == {"blue": 3, "green": 3, "red": 4}


def test_hostile_members_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in/a.tar", "w") as archive:
        names = ("../../up.txt", "/etc/absolute.txt", "a/../../b.txt", "%2e%2e/quoted.txt", "%2Froot.txt", "nul%00.txt")
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
        info = tarfile.TarInfo("link.txt")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    assert export(tmp_path / "in/a.tar", tmp_path / "deep/er/out") == 0
    assert set(files(tmp_path)) - {"in/a.tar"} == {
        f"deep/er/out/{name}.txt"
        for name in (
            "%2E%2E/%2E%2E/up", "%2Fetc/absolute", "a/%2E%2E/%2E%2E/b", "%2e%2e/quoted", "%2Froot", "nul%00",
        )
    }  # fmt: skip
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@given(st.text(min_size=1, max_size=30), st.none() | st.text(min_size=1, max_size=9))
def test_no_key_and_no_class_leads_out(key: str, label: str | None) -> None:
    try:
        encode_key(key)
        if label is not None:
            encode_key(label)
    except ValueError:
        return  # no text
    for one in (key, encode_key(key)):
        path = safe_path(one, label)
        assert not path.startswith("/")
        assert not {"", ".", ".."} & set(path.split("/"))
        assert "\0" not in path
        assert os.path.normpath(path) == path


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=9), min_size=1))
def test_safe_names_come_back_as_they_were(parts: list[str]) -> None:
    if not {".", ".."} & set(parts):
        assert safe_path(encode_key("/".join(parts)), None) == "/".join(parts)


def test_destinations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path / "set", samples=2)
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_bytes(b"precious")
    (tmp_path / "nowhere").symlink_to("absent")
    (tmp_path / "empty").mkdir()

    def says(name: str) -> str:
        assert export(tmp_path / "set", tmp_path / name) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        return shown.err

    assert "is a file" in says("file")
    assert "is not empty" in says("full")
    assert "is a link to nowhere" in says("nowhere")
    assert f"{tmp_path}/file: File exists" in says("file/out")
    assert "File name too long" in says("x" * 300)
    lock = FileLock.acquire(tmp_path / ".busy.headrace-export.lock")
    assert "is being written by another export" in says("busy")
    assert lock is not None
    lock.remove()
    assert export(tmp_path / "set", tmp_path / "set", tmp_path / "empty") == 1
    assert "another sample has the same path" in capsys.readouterr().err
    assert os.listdir(tmp_path / "empty") == []
    assert export(tmp_path / "set", tmp_path / "empty") == 0
    assert len(files(tmp_path / "empty")) == 2
    assert (tmp_path / "file").read_bytes() == (tmp_path / "full/x").read_bytes() == b"precious"
    assert main(["export", str(tmp_path / "set"), str(tmp_path / "new"), "--fields", "png"]) == 1
    assert "there is no field 'png'" in capsys.readouterr().err
    assert not [name for name in os.listdir(tmp_path) if "export" in name]


SLOW = """
import sys, time
from headrace.tools import cli, export
write = export._write
def slow(*arguments):
    time.sleep(0.02)
    write(*arguments)
export._write = slow
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_leaves_nothing_that_looks_whole(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with ShardWriter(tmp_path / "set") as writer:
        for sample in range(2000):
            writer.write(str(sample), {"txt": b"x"})
    command = [sys.executable, "-c", SLOW, "export", str(tmp_path / "set"), str(tmp_path / "out"), "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".out.headrace-export/*")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert not (tmp_path / "out").exists()
    assert export(tmp_path / "set", tmp_path / "out") == 0
    assert len(files(tmp_path / "out")) == 2000
    assert sorted(os.listdir(tmp_path)) == ["out", "set"]
