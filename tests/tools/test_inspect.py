"""headrace inspect: what is in a set, and in one of its samples."""

import json
from pathlib import Path

import pytest
from archives import jpeg, tar_bytes, write_shards

from headrace.datastores.sharded import ShardDatastore
from headrace.tools.cli import main


def inspect_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert main(["inspect", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path, samples=10, per_shard=4)
    sizes = sorted(path.stat().st_size for path in tmp_path.glob("*.tar"))
    assert inspect_json(capsys, tmp_path) == {
        "shards": 3,
        "samples": 10,
        "bytes": sum(sizes),
        "shard_bytes": {"smallest": sizes[0], "largest": sizes[-1]},
        "shard_samples": {"smallest": 2, "largest": 4},
        "fields": {"cls": 10, "jpg": 10},
        "classes": {"red": 4, "green": 3, "blue": 3},
        "index": "beside the shards",
        "fingerprint": ShardDatastore(tmp_path).index.fingerprint,
    }
    assert main(["inspect", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["samples", "10"]
    assert "classes        red: 4, green: 3, blue: 3" in lines


def test_foreign_shards_of_any_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tar").write_bytes(tar_bytes({f"{name}.txt": b"hello", "._x.txt": b"x"}))
    found = inspect_json(capsys, tmp_path / "a.tar", tmp_path / "b.tar")
    assert (found["fields"], found["index"], found["passed_over"]) == ({"txt": 2}, "none", {"hidden file": 2})
    assert "classes" not in found


@pytest.mark.parametrize("name", ["4", "c1/004"])
def test_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    write_shards(tmp_path, samples=10, per_shard=4)
    found = inspect_json(capsys, tmp_path, "--sample", name)
    start = (tmp_path / "shard-000001.tar").read_bytes().index(jpeg(4))
    assert found == {
        "sample": 4,
        "key": "c1/004",
        "shard": f"{tmp_path}/shard-000001.tar",
        "place": f"bytes {start - 1024} to {start + len(jpeg(4))}",
        "fields": {"cls": 1, "jpg": len(jpeg(4))},
        "text": {"cls": "1"},
    }
    assert main(["inspect", str(tmp_path), "--sample", name]) == 0
    assert "key            c1/004\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["10", "nobody", "-1", "9" * 30, "²"])
def test_a_sample_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    write_shards(tmp_path, samples=10)
    assert main(["inspect", str(tmp_path), f"--sample={name}"]) == 1
    assert f"no sample {name!r}: there are keys, and the numbers 0 to 9" in capsys.readouterr().err


def test_many_classes_are_cut_short_for_people_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.datastores.write import ShardWriter

    with ShardWriter(tmp_path, classes=[f"class{n}" for n in range(100)]) as writer:
        writer.write("a", {"jpg": b"1", "cls": b"99"})
    assert len(inspect_json(capsys, tmp_path)["classes"]) == 100
    assert main(["inspect", str(tmp_path)]) == 0
    assert "class19: 0, and 80 more" in capsys.readouterr().out


def test_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path)
    assert main(["inspect", str(tmp_path), "--checksums"]) == 0
    path = tmp_path / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    assert main(["inspect", str(tmp_path)]) == 0
    assert main(["inspect", str(tmp_path), "--checksums"]) == 1
    assert "shard-000000.tar does not fit its index" in capsys.readouterr().err
