"""headrace verify: sound sets pass, and each kind of damage is named with its place; only tables are ever written."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from archives import jpeg, tar_bytes, write_shards
from pictures import encode
from servers import Manners, web_server

from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.write import ShardWriter
from headrace.tools.cli import main

Answer = tuple[int, dict[str, object], list[tuple[str, str, str | None]]]


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> Answer:
    code = main(["verify", *map(str, arguments), "--json", "--quiet", "--workers", "0"])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    answer = json.loads(shown.out)
    assert answer["ok"] == (code == 0) == (not answer["problems"])
    return code, answer, [(one["kind"], Path(one["shard"]).name, one["key"]) for one in answer["problems"]]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shards(tmp_path / "set", samples=10, per_shard=4)
    return tmp_path / "set"


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x41
    path.write_bytes(data)


def test_a_sound_set(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, _ = verify(capsys, shards, "--deep")
    assert code == 0
    assert (answer["shards"], answer["samples"], answer["images"]) == (3, 10, 10)
    assert answer["labels"] == {"red": 4, "green": 3, "blue": 3}
    assert answer["fields"] == {"cls": 10, "jpg": 10}
    assert (answer["without_checksum"], answer["without_index"]) == (0, 0)
    assert main(["verify", str(shards)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("10 samples in 3 shards (")
    assert "): sound\n" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_answer_does_not_depend_on_the_workers(
    shards: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    flip(shards / "shard-000001.tar", 1700)
    flip(shards / "shard-000002.tar", 1700)
    assert main(["verify", str(shards), "--deep", "--json", "--workers", str(workers)]) == 1
    shown = capsys.readouterr()
    kinds = [one["kind"] for one in json.loads(shown.out)["problems"]]
    assert kinds[:2] == ["checksum", "checksum"]
    assert shown.err.startswith(f"headrace verify: {len(kinds)} problem")


def test_a_missing_and_a_truncated_tar_and_one_too_many(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shards / "shard-000000.tar").unlink()
    os.truncate(shards / "shard-000001.tar", 3000)
    shutil.copy(shards / "shard-000002.tar", shards / "stray.tar")
    code, answer, problems = verify(capsys, shards)
    assert code == 1
    assert problems == [
        ("index", "stray.tar", None),
        ("missing", "shard-000000.tar", None),
        ("size", "shard-000001.tar", None),
        ("tar", "shard-000001.tar", None),
        ("checksum", "shard-000001.tar", None),
    ]
    assert answer["samples"] == 2
    assert main(["verify", str(shards)]) == 1
    shown = capsys.readouterr()
    assert "tar: " in shown.out
    assert "is truncated" in shown.out
    assert shown.err == "headrace verify: 5 problems in 3 of 3 shards\n"


def test_one_named_tar_does_not_complain_about_its_neighbours(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, _ = verify(capsys, shards / "shard-000001.tar")
    assert (code, answer["samples"], answer["without_index"]) == (0, 4, 0)


def test_an_image_that_does_not_decode_is_named_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = encode(np.full((9, 9), 40_000, np.uint16))
    with ShardWriter(tmp_path / "set", shard_samples=2) as writer:
        writer.write("a", {"jpg": jpeg(0), "seg.png": deep})
        writer.write("b", {"jpg": jpeg(1)[:300], "txt": b"no image"})
        writer.write("c", {"png": b"<html>"})
    assert verify(capsys, tmp_path / "set")[0] == 0, "only --deep looks at pixels"
    code, answer, problems = verify(capsys, tmp_path / "set", "--deep")
    assert (code, answer["images"]) == (1, 4)
    assert problems == [("image", "shard-000000.tar", "b"), ("image", "shard-000001.tar", "c")]
    first = answer["problems"][0]
    data = (tmp_path / "set/shard-000000.tar").read_bytes()
    assert data[first["offset"] :].startswith(jpeg(1)[:300])
    assert first["reason"].startswith("jpg: ")
    assert main(["verify", str(tmp_path / "set"), "--deep"]) == 1
    assert f"key 'b', byte {first['offset']}: jpg: " in capsys.readouterr().out


def test_keys_that_several_shards_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, keys in (("a", "xy"), ("b", "zx"), ("c", "x")):
        (tmp_path / f"{name}.tar").write_bytes(tar_bytes({f"{key}.txt": key.encode() for key in keys}))
    code, answer, problems = verify(capsys, tmp_path)
    assert (code, answer["without_index"], answer["without_checksum"]) == (1, 3, 3)
    assert problems == [("duplicate key", "b.tar", "x"), ("duplicate key", "c.tar", "x")]
    assert answer["problems"][0]["offset"] == 1536
    assert answer["problems"][0]["reason"] == f"{tmp_path}/a.tar has this key too"


def test_a_field_that_stands_twice_in_one_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes([("x.txt", b"1"), ("x.txt", b"2")]))
    (tmp_path / "b.tar").write_bytes(tar_bytes({"y.txt": b"1", "._y.txt": b"1"}))
    code, answer, problems = verify(capsys, tmp_path)
    assert (code, problems) == (1, [("duplicate key", "a.tar", None)])
    assert answer["passed_over"] == {"hidden file": 1}


@pytest.mark.parametrize("label", [b"", b"7", b"-1", b"cat", b"1" * 40, b"0" + b" " * 90])
def test_labels_that_are_no_class(tmp_path: Path, capsys: pytest.CaptureFixture[str], label: bytes) -> None:
    with ShardWriter(tmp_path) as writer:
        writer.write("a", {"txt": b"x", "cls": b"1"})
        writer.write("b", {"txt": b"x", "cls": label})
        writer.write("c", {"txt": b"x"})
    code, answer, problems = verify(capsys, tmp_path)
    fits = label in (b"7", b"-1")  # without class names any whole number is one, and a sample may have none
    assert problems == ([] if fits else [("label", "shard-000000.tar", "b")])
    assert answer["labels"] == ({"-1": 1, "1": 1} if label == b"-1" else {"1": 1, "7": 1} if fits else {"1": 1})
    assert code == (0 if fits else 1)
    document = json.loads((tmp_path / "index.json").read_text())
    document["classes"] = ["red", "green"]
    (tmp_path / "index.json").write_text(json.dumps(document))
    assert verify(capsys, tmp_path)[2] == [("label", "shard-000000.tar", key) for key in "bc"]


def test_label_counts_are_compared_with_the_index(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((shards / "index.json").read_text())
    document["class_samples"] = [3, 4, 3]
    (shards / "index.json").write_text(json.dumps(document))
    code, answer, _ = verify(capsys, shards)
    reasons = [problem["reason"] for problem in answer["problems"]]
    assert code == 1
    assert reasons == ["class 'red' has 4 samples, the index says 3", "class 'green' has 3 samples, the index says 4"]


def _cut_table(table: Path) -> None:
    os.truncate(table, 100)


def _move_row(table: Path) -> None:
    spans = bytes(ShardDatastore(table.parent)._reader.shard(0).table.spans)
    data = table.read_bytes()
    start = data.index(spans)
    table.write_bytes(data[: start + 32] + bytes([data[start + 32] ^ 1]) + data[start + 33 :])


@pytest.mark.parametrize("damage", [Path.unlink, _cut_table, _move_row], ids=["missing", "cut", "moved"])
def test_tables_are_made_again_and_nothing_else_is_touched(
    shards: Path, capsys: pytest.CaptureFixture[str], damage: object
) -> None:
    before = digests(shards)
    damage(shards / "shard-000000.tar.offsets")
    damaged = digests(shards)
    code, answer, problems = verify(capsys, shards)
    assert (code, problems[0][:2]) == (1, ("table", "shard-000000.tar"))
    assert len(problems) == 1
    assert digests(shards) == damaged, "nothing is written without being asked"
    code, answer, _ = verify(capsys, shards, "--repair")
    assert (code, answer["repaired"]) == (0, [f"{shards}/shard-000000.tar"])
    assert digests(shards) == before


def test_the_moved_row_is_named(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ShardDatastore(shards).locate(1)
    _move_row(shards / "shard-000000.tar.offsets")
    problem = verify(capsys, shards)[1]["problems"][0]
    assert problem["key"] == "c1/001"
    assert f"bytes {problem['offset']} to" in place


def test_no_table_is_made_from_a_tar_that_was_changed(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shards / "shard-000000.tar.offsets").unlink()
    flip(shards / "shard-000000.tar", 1700)
    (shards / "shard-000001.tar").write_bytes(tar_bytes({"other.jpg": b"x"}))
    before = digests(shards)
    code, answer, problems = verify(capsys, shards, "--repair")
    assert (code, answer["repaired"], digests(shards)) == (1, [], before)
    assert {(kind, name) for kind, name, _ in problems} >= {
        ("table", "shard-000000.tar"),
        ("checksum", "shard-000000.tar"),
        ("index", "shard-000001.tar"),
    }


@pytest.mark.parametrize("listing", [True, False])
def test_shards_of_a_web_server(shards: Path, capsys: pytest.CaptureFixture[str], listing: bool) -> None:
    flip(shards / "shard-000001.tar", 1700)
    (shards / "stray.tar").write_bytes(tar_bytes({"x.txt": b"1"}))
    with web_server(shards.parent, Manners(listing=listing)) as site:
        code, answer, problems = verify(capsys, f"{site.url}/set")
    stray = [("index", "stray.tar", None)] if listing else []  # who cannot look into the folder cannot miss it there
    assert (code, problems) == (1, [*stray, ("checksum", "shard-000001.tar", None)])
    assert answer["samples"] == 10


def test_what_is_no_set_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "no shards in" in capsys.readouterr().err
    (tmp_path / "index.json").write_text("{}")
    assert main(["verify", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "is no index that can be used" in shown.err


SLOW = """
import pathlib, sys, time
from headrace.datastores import check
from headrace.tools import cli
def slow(field, data, where):
    pathlib.Path(__file__ + ".begun").touch()
    time.sleep(600)
check._cannot_decode = slow
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_the_command_and_its_workers(
    shards: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, str(tmp_path / "slow.py"), "verify", str(shards), "--deep", "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "slow.py.begun").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)  # the workers hold this pipe as well: it closes with the last of them
    assert process.returncode == code
    assert "Traceback" not in errors


DYING = SLOW.replace("time.sleep(600)", "import os; os._exit(9)")


def test_a_worker_that_dies_is_one_line(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(DYING)
    command = [sys.executable, str(tmp_path / "slow.py"), "verify", str(shards), "--deep", "--workers", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("headrace verify: a worker process died, at or before (")
    assert result.stderr.count("\n") == 1
