"""headrace inspect: what is in a set, and in one of its samples."""

import json
from pathlib import Path

import pytest
from archives import jpeg, tar_bytes, write_shards
from pictures import encode, photo

from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.write import ShardWriter
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
        "images": {"jpg": "JPEG 36 x 28"},
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


@pytest.mark.parametrize("workers", [0, 2])
def test_what_images_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int) -> None:
    large = encode(photo(40, 200), "JPEG")
    padded = large[:2] + 5 * (b"\xff\xe2\xff\xff" + bytes(65533)) + large[2:]  # its header is longer than what is read
    with ShardWriter(tmp_path, shard_samples=3) as writer:
        for number, data in enumerate((jpeg(0), padded, encode(photo(64, 64)), b"<html>")):
            writer.write(str(number), {"png": data, "cls": b"%d" % (number // 2), "seg.png": encode(photo(9, 9))})
        writer.write("text", {"txt": b"no image"})
    found = inspect_json(capsys, tmp_path, "--deep", "--workers", workers)
    assert found["formats"] == {"JPEG": 2, "PNG": 1}
    assert found["short_side"] == {"below 32": 1, "32-63": 1, "64-127": 1}
    assert found["width"] == {"smallest": 32, "median": 64, "largest": 200}
    assert found["height"] == {"smallest": 24, "median": 40, "largest": 64}
    assert found["unreadable"] == 1
    assert found["class_mixing"] == {"same_neighbours": 0.667, "if_shuffled": 0.333}
    assert main(["inspect", str(tmp_path), "--deep", "--quiet"]) == 0
    assert "short side     below 32: 1, 32-63: 1, 64-127: 1\n" in capsys.readouterr().out


def test_a_set_without_images_or_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes({"x.txt": b"1", "y.cls": b"cat"}))
    found = inspect_json(capsys, tmp_path, "--deep", "--workers", 0)
    assert found["formats"] == {}
    assert not {"short_side", "class_mixing", "unreadable"} & set(found)


def test_a_sample_that_is_no_image_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes({"x.jpg": b"<html>"}))
    found = inspect_json(capsys, tmp_path, "--sample", "x")
    assert found["images"]["jpg"].startswith("is no image that can be read")
