"""headrace index: foreign tars get an index that changes nothing but the time to open them."""

import json
from pathlib import Path

import numpy as np
import pytest
from archives import jpeg, tar_bytes, write_shards

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
