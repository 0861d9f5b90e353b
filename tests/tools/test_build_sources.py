"""headrace build from manifests and tars, in parts and orders, with and without new pixels."""

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from archives import image_folder, jpeg, tar_bytes, write_shards
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode, exif, photo, with_exif
from PIL import Image
from servers import web_server

from headrace.datastores.decode import decode
from headrace.datastores.sharded import ShardDatastore
from headrace.datastores.shards import ShardReader
from headrace.tools.cli import main
from headrace.tools.division import divide, parse_shares, shuffled
from headrace.tools.manifest import ManifestInput


def build(*arguments: object) -> int:
    return main(["build", *map(str, arguments), "--quiet"])


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert build(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def tree(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def contents(folder: Path) -> dict[str, dict[str, bytes]]:
    shards = ShardReader(str(folder))
    return {shards.key(index): shards.raw(index) for index in range(len(shards))}


def report(folder: Path) -> dict[str, object]:
    return json.loads((folder / "build.json").read_text())


# -- manifests ---------------------------------------------------------------------------------------------------------

ROWS = [
    {"path": "a/1.jpg", "label": "dog", "note": 'says "hi",\nthere'},
    {"path": "./b/no. 2.JPG", "label": "10", "note": ""},
    {"path": "a/3.png", "label": "cat", "note": "ü"},
]


def manifest(folder: Path, kind: str, rows: list[dict[str, object]], name: str = "list") -> Path:
    path = folder / f"{name}.{kind}"
    if kind == "jsonl":
        path.write_text("\n\n".join(json.dumps(row) for row in rows))
        return path
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for number, row in enumerate(ROWS):
        path = root / row["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number) if path.suffix != ".png" else encode(photo(9, 8)))
    return root


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_a_manifest_gives_images_classes_and_the_rest_as_json(images: Path, tmp_path: Path, kind: str) -> None:
    assert build(manifest(images, kind, ROWS), tmp_path / "out") == 0
    shards = ShardDatastore(tmp_path / "out")
    assert shards.classes == ("10", "cat", "dog")
    assert contents(tmp_path / "out") == {
        "a/1": {"jpg": jpeg(0), "cls": b"2", "json": json.dumps({"note": 'says "hi",\nthere'}).encode()},
        "b/no%2E%202": {"jpg": jpeg(1), "cls": b"0", "json": b'{"note": ""}'},
        "a/3": {"png": encode(photo(9, 8)), "cls": b"1", "json": b'{"note": "\\u00fc"}'},
    }
    assert report(tmp_path / "out")["classes"] == {"10": 1, "cat": 1, "dog": 1}
    assert build(images / f"list.{kind}", tmp_path / "again") == 0
    assert tree(tmp_path / "again") == tree(tmp_path / "out")


def test_columns_can_be_chosen_and_json_keeps_its_types(images: Path, tmp_path: Path) -> None:
    rows = [
        {"img": str(images / "a/1.jpg"), "kind": 3, "key": "x/y", "box": [1, 2.5], "label": "no"},
        {"img": "a/3.png", "kind": 3, "key": "z", "box": None, "label": "no"},
    ]
    listing = manifest(images, "jsonl", rows)
    assert build(listing, tmp_path / "out", "--path-column", "img", "--label-column", "kind") == 0
    assert ShardDatastore(tmp_path / "out").classes == ("3",)
    found = contents(tmp_path / "out")
    assert set(found) == {"x/y", "z"}
    assert json.loads(found["x/y"]["json"]) == {"box": [1, 2.5], "label": "no"}
    assert build(listing, tmp_path / "none", "--path-column", "img", "--labels", "none") == 0
    assert not ShardDatastore(tmp_path / "none").has_labels
    assert json.loads(contents(tmp_path / "none")["z"]["json"]) == {"kind": 3, "box": None, "label": "no"}


def test_an_unnamed_first_column_is_a_column(images: Path, tmp_path: Path) -> None:
    (images / "list.csv").write_text(",path\r\n0,a/1.jpg\r\n\r\n1,a/3.png\r\n")
    assert build(images / "list.csv", tmp_path / "out") == 0
    assert json.loads(contents(tmp_path / "out")["a/3"]["json"]) == {"": "1"}


def test_rows_that_are_no_images_stop_the_build_or_are_listed(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "path,label",
        "a/1.jpg,dog",
        "a/1.jpg",
        "absent.jpg,dog",
        ",dog",
        "a/3.png,",
        "notes.txt,dog",
        "html.jpg,cat",
    ]
    listing = images / "list.csv"
    listing.write_text("\n".join([*lines, "a/3.png,cat"]))
    (images / "html.jpg").write_bytes(b"<html>")
    assert f"{listing}, line 3: it does not have 2 values" in fails(capsys, listing, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert build(listing, tmp_path / "out", "--skip-bad") == 0
    assert set(contents(tmp_path / "out")) == {"a/1", "a/3"}
    bad = [bad["file"] for bad in report(tmp_path / "out")["bad"]]
    assert bad == ["line 3", "line 5", "line 6", "line 7", "absent.jpg", "html.jpg"]


def test_manifests_that_are_none(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def says(text: str | bytes, *options: str, kind: str = "csv") -> str:
        (images / f"list.{kind}").write_bytes(text if isinstance(text, bytes) else text.encode())
        message = fails(capsys, images / f"list.{kind}", tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()
        return message

    assert "no column path, file_name" in says("url,label\nx,y\n")
    assert "it has url, label: name the column with --path-column" in says("url,label\nx,y\n")
    assert "no column nothing" in says("path\na/1.jpg\n", "--label-column", "nothing")
    assert "two columns of one name" in says("path,path\na/1.jpg,x\n")
    assert "no images in" in says("path,label\n")
    assert "no column" in says("")
    assert "line 2 is no UTF-8" in says(b"path\ncaf\xe9.jpg\n")
    assert "line 2 cannot be read" in says('path\n"a/1.jpg\n')
    assert "line 1: it is no JSON object" in says("[1]\n", kind="jsonl")
    assert "line 2: it is no JSON object" in says('{"path": "a/1.jpg"}\n{"path"\n', kind="jsonl")
    assert "its path is None, no path" in says('{"path": "a/1.jpg"}\n{"label": 1}\n', kind="jsonl")
    assert "its path is 7, no path" in says('{"path": 7}\n', kind="jsonl")
    assert "would get one key: a/1.jpg and ./a/1.jpg" in says("path\na/1.jpg\n./a/1.jpg\n")
    assert "is built on its own" in fails(capsys, images / "list.csv", images, tmp_path / "out")
    assert "--path-column is for manifest, and" in fails(capsys, images, tmp_path / "out", "--path-column", "x")


def test_names_that_lead_out_of_the_folder_become_keys_that_do_not(images: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.jpg").write_bytes(jpeg(5))
    rows = [{"path": "../outside.jpg"}, {"path": str(tmp_path / "outside.jpg")}]
    assert build(manifest(images, "csv", rows), tmp_path / "out") == 0
    assert list(contents(tmp_path / "out")) == ["%2E%2E/outside", f"{tmp_path}/outside".lstrip("/")]


values = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=9)


@given(st.lists(st.tuples(values, values), max_size=9), st.sampled_from([",", "\t"]))
def test_rows_are_found_again_whatever_they_hold(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], by: str
) -> None:
    path = tmp_path_factory.getbasetemp() / ("list.csv" if by == "," else "list.tsv")
    text = io.StringIO()
    writer = csv.writer(text, delimiter=by, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([("x", "path", "y"), *((x, f"{n}.jpg", y) for n, (x, y) in enumerate(rows))])
    path.write_bytes(text.getvalue().encode())
    found = ManifestInput(str(path))
    stored = [json.loads(dict(found.item(index).fields)["json"]) for index in range(len(found))]
    assert stored == [{"x": x, "y": y} for x, y in rows]
    assert [found.key(index) for index in range(len(found))] == [str(n) for n in range(len(rows))]


# -- tars --------------------------------------------------------------------------------------------------------------


def test_shards_are_cut_anew_and_nothing_in_them_changes(tmp_path: Path) -> None:
    write_shards(tmp_path / "set", samples=10, per_shard=4)
    assert build(tmp_path / "set", tmp_path / "out", "--shard-samples", 3) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "set")
    out = ShardDatastore(tmp_path / "out")
    assert (out.classes, out.shard_sizes.tolist()) == (("red", "green", "blue"), [3, 3, 3, 1])
    assert report(tmp_path / "out")["classes"] == {"red": 4, "green": 3, "blue": 3}
    out.verify()


def test_shards_of_a_web_server(tmp_path: Path) -> None:
    write_shards(tmp_path / "set", samples=10, per_shard=4)
    with web_server(tmp_path) as site:
        assert build(f"{site.url}/set", tmp_path / "out", "--shuffle", 1, "--workers", 0) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "set")


def test_keys_that_were_encoded_stay_what_they_are(tmp_path: Path) -> None:
    image_folder(tmp_path / "src", {"my cats": 1, "50%": 1})
    (tmp_path / "src/50%" / ("n" * 200 + ".jpg")).write_bytes(jpeg(1))
    assert build(tmp_path / "src", tmp_path / "one") == 0
    assert build(tmp_path / "one", tmp_path / "two") == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert (tmp_path / "one/shard-000000.tar").read_bytes() == (tmp_path / "two/shard-000000.tar").read_bytes()


def test_several_sets_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, keys in (("a", "xy"), ("b", "z")):
        (tmp_path / f"{name}.tar").write_bytes(tar_bytes({f"{key}.txt": key.encode() for key in keys}))
    assert build(tmp_path / "a.tar", tmp_path / "b.tar", tmp_path / "out") == 0
    assert list(contents(tmp_path / "out")) == ["x", "y", "z"]
    assert build(tmp_path / "*.tar", tmp_path / "glob") == 0
    assert contents(tmp_path / "glob") == contents(tmp_path / "out")
    message = fails(capsys, tmp_path / "out", tmp_path / "b.tar", tmp_path / "twice")
    assert "1 pair of samples would get one key" in message
    assert "--rekey" in message
    assert not (tmp_path / "twice").exists()
    assert build(tmp_path / "out", tmp_path / "b.tar", tmp_path / "twice", "--rekey") == 0
    found = contents(tmp_path / "twice")
    assert [fields["txt"] for fields in found.values()] == [b"x", b"y", b"z", b"z"]
    assert list(found) == ["000000000", "000000001", "000000002", "000000003"]


def test_a_folder_of_tars_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tar").write_bytes(tar_bytes({"x.jpg": jpeg(0), "._x.jpg": b"x"}))
    assert build(tmp_path / "in", tmp_path / "out") == 0
    assert contents(tmp_path / "out") == {"x": {"jpg": jpeg(0)}}
    assert report(tmp_path / "out")["passed_over"] == {"hidden file": 1}


def test_samples_and_fields_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path / "set", samples=10)
    assert build(tmp_path / "set", tmp_path / "some", "--keys", "c1/*", "--fields", "jpg") == 0
    found = contents(tmp_path / "some")
    assert list(found) == ["c1/001", "c1/004", "c1/007"]
    assert all(set(fields) == {"jpg"} for fields in found.values())
    assert ShardDatastore(tmp_path / "some").classes == ()
    assert report(tmp_path / "some")["passed_over"] == {"key does not match --keys": 7}
    assert build(tmp_path / "set", tmp_path / "plain", "--labels", "none") == 0
    assert not ShardDatastore(tmp_path / "plain").has_labels
    assert "there is no field 'png'" in fails(capsys, tmp_path / "set", tmp_path / "x", "--fields", "png")
    assert "no key matches --keys 'q*'" in fails(capsys, tmp_path / "set", tmp_path / "x", "--keys", "q*")
    assert "is for tars" in fails(capsys, _images(tmp_path), tmp_path / "x", "--fields", "jpg")
    assert "is for images or manifest" in fails(capsys, tmp_path / "set", tmp_path / "x", "--keep-extensions")
    assert "--labels foldernames" in fails(capsys, tmp_path / "set", tmp_path / "x", "--labels", "foldernames")


def _images(tmp_path: Path) -> Path:
    image_folder(tmp_path / "src", {"cat": 8, "dog": 4})
    return tmp_path / "src"


def test_sets_with_other_classes_do_not_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path / "set")
    assert build(_images(tmp_path), tmp_path / "other") == 0
    assert "different classes" in fails(capsys, tmp_path / "set", tmp_path / "other", tmp_path / "out")


def test_what_cannot_be_stored_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes({"x.txt": b"1", "y.my field": b"1", "z.txt": b"1"}))
    assert "has the field name 'my field'" in fails(capsys, tmp_path / "a.tar", tmp_path / "out")
    assert build(tmp_path / "a.tar", tmp_path / "out", "--skip-bad") == 0
    assert list(contents(tmp_path / "out")) == ["x", "z"]
    assert [bad["file"] for bad in report(tmp_path / "out")["bad"]] == ["y"]


def hostile(path: Path) -> None:
    """Write a tar of members that lead out of it, link out of it, or are no files."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:

        def put(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(data)
            archive.addfile(info, io.BytesIO(data))

        put("../../escape.txt", data=b"1")
        put("/etc/absolute.txt", data=b"2")
        put("a/../../b.txt", data=b"3")
        put("link.txt", tarfile.SYMTYPE, "/etc/passwd")
        put("hard.txt", tarfile.LNKTYPE, "/etc/passwd")
        put("hard2.txt", tarfile.LNKTYPE, "../../escape.txt")
        put("null.txt", tarfile.CHRTYPE)
        put("disk.txt", tarfile.BLKTYPE)
        put("pipe.txt", tarfile.FIFOTYPE)
        put("folder.txt", tarfile.DIRTYPE)
        put("back\\slash\x01.txt", data=b"4")
        put("fine.txt", data=b"5")


def test_hostile_members_are_passed_over_or_become_harmless_keys(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    hostile(tmp_path / "in/a.tar")
    assert build(tmp_path / "in/a.tar", tmp_path / "deep/er/out") == 0
    assert contents(tmp_path / "deep/er/out") == {
        "%2E%2E/%2E%2E/escape": {"txt": b"1"},
        "%2Fetc/absolute": {"txt": b"2"},
        "a/%2E%2E/%2E%2E/b": {"txt": b"3"},
        "hard2": {"txt": b"1"},
        "back%5Cslash%01": {"txt": b"4"},
        "fine": {"txt": b"5"},
    }
    assert report(tmp_path / "deep/er/out")["passed_over"] == {
        "symbolic link": 1, "hard link without target": 1, "device": 2, "named pipe": 1, "folder": 1
    }  # fmt: skip
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    names = ("build.json", "index.json", "shard-000000.tar", "shard-000000.tar.offsets")
    assert files == {"in/a.tar", *(f"deep/er/out/{name}" for name in names)}
    listed = subprocess.run(["tar", "-tf", tmp_path / "deep/er/out/shard-000000.tar"], capture_output=True, text=True)
    assert not any(name.startswith("/") or ".." in name.split("/") for name in listed.stdout.splitlines())


def _oversized(size: int, kind: int) -> bytes:
    info = tarfile.TarInfo("x.txt")
    info.size = size
    return info.tobuf(kind) + bytes(1024)


@pytest.mark.parametrize("size", [2**33, 2**62, 10**30])
def test_huge_declared_sizes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int) -> None:
    kind = tarfile.PAX_FORMAT if size > 2**70 else tarfile.GNU_FORMAT
    (tmp_path / "a.tar").write_bytes(_oversized(size, kind))
    message = fails(capsys, tmp_path / "a.tar", tmp_path / "out")
    assert "is truncated" in message or "damaged" in message
    assert not (tmp_path / "out").exists()


def test_a_member_that_a_sparse_file_backs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tar").write_bytes(_oversized(2**33, tarfile.GNU_FORMAT)[:512])
    os.truncate(tmp_path / "a.tar", 2**33 + 2048)
    assert "one sample may have 1073741824" in fails(capsys, tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_header_bomb_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2**31
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT))
    os.truncate(tmp_path / "a.tar", 2**32)
    assert "claims 2147483648 bytes" in fails(capsys, tmp_path / "a.tar", tmp_path / "out")


# -- orders and parts --------------------------------------------------------------------------------------------------


def test_a_shuffled_set_holds_the_same_in_an_order_of_its_seed(tmp_path: Path) -> None:
    source = _images(tmp_path)
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        assert build(source, tmp_path / name, "--shuffle", seed, "--shard-samples", 5) == 0
    assert build(source, tmp_path / "plain") == 0
    assert tree(tmp_path / "one") == tree(tmp_path / "again")
    orders = [list(contents(tmp_path / name)) for name in ("one", "two", "plain")]
    assert len(set(map(tuple, orders))) == 3
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "plain")


def test_parts_share_one_class_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _images(tmp_path)
    assert main(["build", str(source), f"{tmp_path}/out", "--split", "train=3/4,val=.25", "--stratify", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(f"2 classes): {tmp_path}/out/val")
    train, val = (ShardDatastore(tmp_path / "out" / name) for name in ("train", "val"))
    assert train.classes == val.classes == ("cat", "dog")
    assert (train.count_each_label(), val.count_each_label()) == ({"cat": 6, "dog": 3}, {"cat": 2, "dog": 1})
    keys = [set(contents(tmp_path / "out" / name)) for name in ("train", "val")]
    assert len(keys[0] | keys[1]) == 12
    assert build(source, tmp_path / "again", "--split", "train=3/4,val=.25", "--stratify", "--shuffle", 9) == 0
    assert set(contents(tmp_path / "again/val")) == keys[1], "who goes where does not depend on the order"
    assert build(source, tmp_path / "other", "--split", "train=3/4,val=.25", "--split-seed", 5) == 0
    assert set(contents(tmp_path / "other/val")) != keys[1]
    assert report(tmp_path / "out/val")["options"]["part"] == "val"
    capsys.readouterr()
    assert main(["build", str(source), f"{tmp_path}/json", "--split", "a=.5,b=.5", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"]["b"]["destination"] == f"{tmp_path}/json/b"


def test_tars_and_manifests_are_stratified_by_their_labels(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = {f"{n:02d}.{kind}": data for n in range(12) for kind, data in (("txt", b"x"), ("cls", b"%d" % (n % 2)))}
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    assert build(tmp_path / "a.tar", tmp_path / "out", "--split", "a=1/3,b=2/3", "--stratify") == 0
    labels = Counter(fields["cls"] for fields in contents(tmp_path / "out/a").values())
    assert labels == {b"0": 2, b"1": 2}
    (tmp_path / "b.tar").write_bytes(tar_bytes({"x.txt": b"x", "x.cls": b"1", "y.txt": b"x"}))
    message = fails(capsys, tmp_path / "b.tar", tmp_path / "x", "--split", "a=.5,b=.5", "--stratify")
    assert "key 'y' has no label" in message
    listing = manifest(images, "csv", [{"path": "a/1.jpg"}, {"path": "a/3.png"}])
    assert "has no labels" in fails(capsys, listing, tmp_path / "x", "--split", "a=.5,b=.5", "--stratify")


def test_what_belongs_to_no_part_is_listed_once(tmp_path: Path) -> None:
    source = _images(tmp_path)
    (source / "dog/empty.jpg").write_bytes(b"")
    assert build(source, tmp_path / "out", "--split", "a=.5,b=.5", "--skip-bad") == 0
    bad = [[bad["file"] for bad in report(tmp_path / "out" / name)["bad"]] for name in "ab"]
    assert bad == [["dog/empty.jpg"], []]


def test_a_part_that_fails_leaves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _images(tmp_path)
    (source / "dog/zz.jpg").write_bytes(b"no image")
    assert "is no image" in fails(capsys, source, tmp_path / "out", "--split", "a=.5,b=.5")
    assert not any(path.is_file() for path in tmp_path.glob("out/**/*"))
    assert "would be empty" in fails(capsys, source, tmp_path / "out", "--split", "a=.99,b=.01")
    assert "--stratify is for --split" in fails(capsys, source, tmp_path / "out", "--stratify")


@given(st.integers(0, 60), st.integers(0, 2**64 - 1), st.sampled_from(["a=.5,b=.5", "a=1/3,b=1/3,c=1/3", "a=.9,b=.1"]))
def test_parts_are_a_partition_of_the_wanted_sizes(count: int, seed: int, text: str) -> None:
    shares = parse_shares(text)
    ids = np.arange(count) * 3
    labels = np.repeat(np.arange(count) % 4, 3)
    for known in (None, labels):
        parts = divide(ids, shares, seed, known)
        assert np.sort(np.concatenate(parts)).tolist() == ids.tolist()
        groups = [ids] if known is None else [ids[labels[ids] == label] for label in range(4)]
        for group in groups:
            for part, (_, share) in zip(parts, shares, strict=True):
                assert abs(np.isin(part, group).sum() - share * len(group)) <= 1
    assert sorted(shuffled(ids, seed).tolist()) == ids.tolist()


@pytest.mark.parametrize(
    "text", ["", "train", "a=.5", "a=.5,b=.6", "a=.5,A=.5", "a=0.0,b=1", "../a=.5,b=.5", "a=x,b=y"]
)
def test_splits_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["build", "a", "b", "--split", text])
    assert end.value.code == 2


# -- pixels ------------------------------------------------------------------------------------------------------------


def pixels(folder: Path) -> dict[str, tuple[str, bytes, tuple[int, int]]]:
    found = {}
    for key, fields in contents(folder).items():
        name = next(name for name in fields if name != "cls")
        found[key] = (name, fields[name], decode(fields[name], where=key).shape[:2])
    return found


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "wide.jpg").write_bytes(encode(photo(60, 90), "JPEG", quality=95))
    (folder / "tall.png").write_bytes(encode(photo(90, 60)))
    (folder / "small.jpeg").write_bytes(encode(photo(20, 30), "JPEG", quality=95))
    (folder / "turned.jpg").write_bytes(with_exif(encode(photo(60, 90), "JPEG"), exif(6)))
    (folder / "gray.gif").write_bytes(encode(photo(50, 50)[:, :, :1], "GIF"))
    return folder


def test_large_images_are_shrunk_and_small_ones_pass(pictures: Path, tmp_path: Path) -> None:
    assert build(pictures, tmp_path / "out", "--resize", "30") == 0
    found = pixels(tmp_path / "out")
    assert {key: (name, size) for key, (name, _, size) in found.items()} == {
        "wide": ("jpg", (30, 45)),
        "tall": ("png", (45, 30)),
        "small": ("jpeg", (20, 30)),
        "turned": ("jpg", (45, 30)),
        "gray": ("png", (30, 30)),
    }
    assert found["small"][1] == (pictures / "small.jpeg").read_bytes()
    expected = Image.fromarray(photo(90, 60)).resize((30, 45), Image.Resampling.LANCZOS)
    assert np.array_equal(decode(found["tall"][1], where=""), np.asarray(expected))
    assert not Image.open(io.BytesIO(found["turned"][1])).getexif(), "turned once and for all"


@pytest.mark.parametrize(("size", "wide"), [("30:short", (30, 45)), ("30:long", (20, 30)), ("31:long", (21, 31))])
def test_sides(pictures: Path, tmp_path: Path, size: str, wide: tuple[int, int]) -> None:
    assert build(pictures, tmp_path / "out", "--resize", size) == 0
    assert pixels(tmp_path / "out")["wide"][2] == wide


@pytest.mark.parametrize("name", ["jpeg", "png", "webp"])
def test_formats(pictures: Path, tmp_path: Path, name: str) -> None:
    assert build(pictures, tmp_path / "out", "--format", name, "--quality", "50") == 0
    for field, data, _ in pixels(tmp_path / "out").values():
        assert Image.open(io.BytesIO(data)).format == name.upper()
        assert field in ({"jpg", "jpeg"} if name == "jpeg" else {name})
    same = {"jpeg": "small", "png": "tall", "webp": None}[name]
    if same:
        assert pixels(tmp_path / "out")[same][1] == next(pictures.glob(f"{same}.*")).read_bytes()


def test_quality_counts(pictures: Path, tmp_path: Path) -> None:
    sizes = []
    for quality in (20, 95):
        assert build(pictures, tmp_path / str(quality), "--resize", "50", "--quality", quality) == 0
        sizes.append(len(pixels(tmp_path / str(quality))["wide"][1]))
    assert sizes[0] < sizes[1] / 2


def test_the_bytes_do_not_depend_on_the_workers(pictures: Path, tmp_path: Path) -> None:
    for number in range(40):
        (pictures / f"more{number}.jpg").write_bytes(jpeg(number))
    (pictures / "more7.jpg").write_bytes(jpeg(7)[:200])
    for workers in (0, 1, 3):
        words = ["--resize", "20", "--workers", workers, "--skip-bad", "--shuffle", "3", "--shard-samples", "7"]
        assert build(pictures, tmp_path / str(workers), *words) == 0
    assert tree(tmp_path / "0") == tree(tmp_path / "1") == tree(tmp_path / "3")
    assert [bad["file"] for bad in report(tmp_path / "0")["bad"]] == ["more7.jpg"]


def test_a_tar_keeps_its_other_fields_and_second_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = encode(photo(60, 90))
    members = {"a.jpg": encode(photo(60, 90), "JPEG"), "a.seg.png": mask, "a.json": b"{}", "b.txt": b"no image"}
    (tmp_path / "a.tar").write_bytes(tar_bytes(members))
    assert build(tmp_path / "a.tar", tmp_path / "out", "--resize", "30", "--format", "webp") == 0
    found = contents(tmp_path / "out")
    assert set(found["a"]) == {"webp", "seg.png", "json"}
    assert (found["a"]["seg.png"], found["b"]) == (mask, {"txt": b"no image"})
    (tmp_path / "b.tar").write_bytes(tar_bytes({"a.jpg": jpeg(0), "a.png": encode(photo(9, 9))}))
    assert "has a field 'png' already" in fails(capsys, tmp_path / "b.tar", tmp_path / "x", "--format", "png")


@pytest.mark.parametrize("words", [["--resize", "0"], ["--resize", "9:wide"], ["--quality", "0"], ["--quality", "101"]])
def test_wrong_pixels(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["build", "a", "b", *words])
    assert end.value.code == 2


# -- dry runs ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_a_build_then_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _images(tmp_path)
    (source / "cat/notes.txt").write_bytes(b"x")
    words = ["--shard-samples", "5", "--split", "a=.5,b=.5", "--resize", "20"]
    assert build(source, tmp_path / "out", *words, "--dry-run", "--json") == 0
    dry = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "out").exists()
    assert build(source, tmp_path / "out", *words, "--json") == 0
    assert dry == {"dry_run": True} | json.loads(capsys.readouterr().out)
    assert build(source, tmp_path / "x", *words, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("would build 6 images in 2 shards (")
    assert "passed over: other extension: 1\n" in shown


def test_a_dry_run_lists_everything_that_would_stop_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _images(tmp_path)
    (source / "cat/empty.jpg").write_bytes(b"")
    (source / "dog/html.jpg").write_bytes(b"<html>")
    assert build(source, tmp_path / "out", "--dry-run") == 1
    shown = capsys.readouterr()
    assert "bad: cat/empty.jpg: " in shown.out
    assert "bad: dog/html.jpg: " in shown.out
    assert shown.err.startswith("headrace build: 2 files would stop the build, the first is cat/empty.jpg")
    assert build(source, tmp_path / "out", "--dry-run", "--skip-bad") == 0
    assert not (tmp_path / "out").exists()


def test_a_dry_run_needs_no_torch(tmp_path: Path) -> None:
    words = ["build", str(_images(tmp_path)), str(tmp_path / "out"), "--dry-run", "--resize", "9", "--workers", "0"]
    code = (
        f"import sys\nfrom headrace.tools.cli import main\nassert main({words!r}) == 0\n"
        "assert not {'torch', 'webdataset', 'tqdm', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
