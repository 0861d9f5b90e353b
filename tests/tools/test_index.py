"""headrace index: foreign tars get an index that changes nothing but the time to open them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from archives import image_folder, jpeg, tar_bytes, write_shards

from headrace.datastores.index import INDEX_NAME
from headrace.datastores.offsets import SUFFIX
from headrace.datastores.sharded import ShardDatastore
from headrace.tools.cli import main


def index(*arguments: object) -> int:
    return main(["index", *map(str, arguments), "--quiet"])


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    folder.mkdir()
    for shard in range(3):
        members = [
            (f"{shard}/{n}.{field}", data) for n in range(2) for field, data in (("jpg", jpeg(n)), ("cls", b"1"))
        ]
        (folder / f"x-{shard}.tar").write_bytes(tar_bytes([*members, ("README", b"x")]))
    return folder


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_an_index_changes_nothing_but_the_way_to_the_samples(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scanned = ShardDatastore(foreign)
    assert main(["index", str(foreign)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("6 samples in 3 shards (")
    assert shown.out.endswith(f" indexed: {foreign}\nfields: cls, jpg\n")
    assert "passed over (no extension: 3)" in shown.err
    shards = ShardDatastore(foreign, index="require")
    assert shards._reader.catalog.scratch is None
    assert shards.fingerprint == scanned.fingerprint
    assert shards.encoded(np.arange(6)) == scanned.encoded(np.arange(6))
    shards.verify()


def test_a_second_time_nothing_is_written(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert index(foreign) == 0
    before = state(foreign)
    capsys.readouterr()
    assert index(foreign, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("bytes") == sum((foreign / f"x-{n}.tar").stat().st_size for n in range(3))
    assert printed == {
        "folder": str(foreign),
        "shards": 3,
        "samples": 6,
        "fields": ["cls", "jpg"],
        "passed_over": {"no extension": 3},
        "changed": False,
    }
    assert state(foreign) == before


def test_the_index_of_a_build_is_kept_with_its_checksums_and_classes(tmp_path: Path) -> None:
    write_shards(tmp_path)
    before = state(tmp_path)
    assert index(tmp_path) == 0
    assert index(tmp_path, "--checksums") == 0
    assert state(tmp_path) == before


def test_checksums_are_added_to_an_index(foreign: Path) -> None:
    assert index(foreign) == 0
    assert index(foreign, "--checksums") == 0
    entries = json.loads((foreign / INDEX_NAME).read_text())["shards"]
    assert all(entry["sha256"] for entry in entries)
    path = foreign / "x-1.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match=r"x-1\.tar does not fit its index"):
        ShardDatastore(foreign).verify()


def test_missing_tables_are_made_again(foreign: Path) -> None:
    assert index(foreign) == 0
    before = state(foreign)
    (foreign / f"x-1.tar{SUFFIX}").write_bytes(b"damaged")
    (foreign / f"x-2.tar{SUFFIX}").unlink()
    assert index(foreign) == 0
    assert {name: data for name, (_, data) in state(foreign).items()} == {n: data for n, (_, data) in before.items()}


def test_other_contents_are_indexed_again_by_force_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path, samples=6, per_shard=3)
    (tmp_path / "shard-000001.tar").write_bytes(tar_bytes({"new.jpg": jpeg(0), "new.cls": b"2"}))
    before = state(tmp_path)
    assert index(tmp_path) == 1
    assert "index of other contents (6 samples in 2 shards; the tars have 4 in 2)" in capsys.readouterr().err
    assert state(tmp_path) == before
    assert index(tmp_path, "--force") == 0
    shards = ShardDatastore(tmp_path)
    assert shards.classes == ("red", "green", "blue"), "class names stand nowhere else"
    assert [image.label for image in shards.encoded(np.arange(4))] == [0, 1, 2, 2]


def test_a_damaged_index_is_replaced_by_force_only(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (foreign / INDEX_NAME).write_bytes(b"{")
    assert index(foreign) == 1
    assert "headrace index --force" in capsys.readouterr().err
    assert index(foreign, "--force") == 0
    assert len(ShardDatastore(foreign)) == 6


def test_an_index_is_for_one_whole_folder(foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert index(foreign / "x-0.tar") == 1
    assert "holds more shards (x-1.tar)" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other/y.tar").write_bytes((foreign / "x-0.tar").read_bytes())
    assert index(f"{tmp_path}/*/*.tar") == 1
    assert "2 folders" in capsys.readouterr().err
    assert index(foreign / "*.tar") == 0
    assert len(ShardDatastore(foreign, index="require")) == 6


def test_a_broken_shard_leaves_no_index(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign / "x-2.tar"
    data = path.read_bytes()
    path.write_bytes(data[: data.index(jpeg(1)) + 10])
    before = state(foreign)
    assert index(foreign) == 1
    assert "x-2.tar is truncated" in capsys.readouterr().err
    assert state(foreign) == before


POWERLESS = """
import ctypes, os, sys
for capability in (1, 2):  # a superuser too shall heed permissions (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH)
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "headrace.tools.cli", *sys.argv[1:]])
"""


@pytest.fixture
def locked(foreign: Path) -> Iterator[Path]:
    foreign.chmod(0o555)
    yield foreign
    foreign.chmod(0o755)


def test_a_folder_that_cannot_be_written_is_one_line_with_a_way_out(locked: Path) -> None:
    before = state(locked)
    command = [sys.executable, "-c", POWERLESS]
    found = subprocess.run([*command, "index", str(locked)], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr == (
        f"headrace index: writing {locked}/x-0.tar.offsets: Permission denied: change the permissions, or choose "
        f"another place; the shards open without an index too, or copy {locked} and index that\n"
    )
    source = locked.parent / "images"
    image_folder(source, {"a": 1})
    found = subprocess.run([*command, "build", source, locked / "new"], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr == (
        f"headrace build: creating {locked}/new: Permission denied: change the permissions, or choose another place\n"
    )
    assert state(locked) == before


@pytest.fixture
def read_only(foreign: Path) -> Iterator[Path]:
    if subprocess.run(["mount", "--bind", foreign, foreign], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", foreign], check=True)
        yield foreign
    finally:
        subprocess.run(["umount", foreign], check=True)


def test_a_read_only_file_system_is_one_line(read_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert index(read_only) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        f"headrace index: writing {read_only}/x-0.tar.offsets: Read-only file system: choose a place"
    )
    assert said.count("\n") == 1


def test_what_a_killed_run_left_is_gone_after_the_next_one(foreign: Path) -> None:
    code = (
        "import os, signal, sys\nfrom headrace.tools import cli\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\ncli.main(sys.argv[1:])"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, "index", str(foreign)], check=False, capture_output=True)
    assert len([name for name in os.listdir(foreign) if name.endswith(".tmp")]) == 1
    assert index(foreign) == 0
    assert not [name for name in os.listdir(foreign) if name.endswith(".tmp")]
