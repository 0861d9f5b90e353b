"""The index: numbers to places, files to indexes and back."""

import json
from pathlib import Path

import numpy as np
import pytest
from archives import tar_bytes
from hypothesis import given
from hypothesis import strategies as st

from headrace.datastores.index import Index, ShardEntry, scan_shard
from headrace.datastores.storage import LocalStorage
from headrace.errors import ConfigError, DuplicateKeyError, MissingDataError, ShardError

SHA = "0123456789abcdef" * 4


def index_of(*samples: int, **options: object) -> Index:
    entries = tuple(ShardEntry(f"s{n}.tar", 10, count, SHA, SHA) for n, count in enumerate(samples))
    return Index(entries, ("cls", "jpg"), **options)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_locate_counts_through_the_shards(samples: list[int]) -> None:
    index = index_of(*samples)
    places = [(shard, row) for shard, count in enumerate(samples) for row in range(count)]
    shards, rows = index.locate(np.arange(len(index)))
    assert len(index) == sum(samples)
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == places
    backwards, _ = index.locate(np.arange(len(index))[::-1])
    assert backwards.tolist() == shards.tolist()[::-1]


@pytest.mark.parametrize("ids", [[5], [-1], [0, 4, 5]])
def test_ids_out_of_range_are_an_error(ids: list[int]) -> None:
    with pytest.raises(IndexError, match=r"0 \.\. 4"):
        index_of(2, 3).locate(np.array(ids))


def test_a_billion_samples_are_located_without_a_list_of_them() -> None:
    index = Index(tuple(ShardEntry(f"{n}.tar", 1, 10**6, SHA) for n in range(1000)), ("jpg",))
    shards, rows = index.locate(np.array([0, 999_999, 10**6, 10**9 - 1]))
    assert (shards.tolist(), rows.tolist()) == ([0, 0, 1, 999], [0, 999_999, 0, 999_999])


def test_what_is_packed_is_unpacked() -> None:
    entries = (ShardEntry("a ü.tar", 5, 2, SHA, SHA), ShardEntry("b.tar", 6, 0, SHA, None))
    index = Index(entries, ("cls", "jpg"), ("cat", "dög"), (1, 1))
    again = Index.unpack(index.pack(), "index.json")
    assert again == index
    assert again.fingerprint == index.fingerprint
    assert again.pack() == index.pack()


def test_the_fingerprint_follows_the_data_and_not_their_class_names() -> None:
    first = index_of(2, 3)
    assert first.fingerprint == index_of(2, 3, classes=("a",)).fingerprint
    changed = [
        index_of(3, 2),
        Index(first.entries[::-1], first.fields),
        Index((ShardEntry("s0.tar", 11, 2, SHA, SHA), first.entries[1]), first.fields),
        Index((ShardEntry("s0.tar", 10, 2, SHA, SHA[::-1]), first.entries[1]), first.fields),
        Index((ShardEntry("s0.tar", 10, 2, SHA[::-1], SHA), first.entries[1]), first.fields),
    ]
    assert len({index.fingerprint for index in [first, *changed]}) == 6


def test_select_and_concat() -> None:
    index = index_of(2, 3, 4, classes=("a", "b"), class_samples=(4, 5))
    part = index.select(["s2.tar", "s0.tar"])
    assert part is not None
    assert (len(part), part.classes, part.class_samples) == (6, ("a", "b"), ())
    assert index.select(["s2.tar", "other.tar"]) is None
    joined = Index.concat([index, index_of(1), index])
    assert (len(joined), joined.classes, joined.class_samples) == (19, ("a", "b"), ())
    assert Index.concat([index, index]).class_samples == (8, 10)
    with pytest.raises(ConfigError, match=r"\['a', 'b'\] and \['b', 'a'\]"):
        Index.concat([index, index_of(1, classes=("b", "a"))])


def _changed(**values: object) -> bytes:
    return json.dumps(json.loads(index_of(2, 3).pack()) | values).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        index_of(2, 3).pack()[:-20],
        _changed(format="other"),
        _changed(version=2),
        _changed(samples=6),
        _changed(bytes=1),
        _changed(fields="jpg"),
        _changed(classes=[1]),
        _changed(shards=[{}]),
        _changed(shards=None),
        _changed(shards=json.loads(index_of(2, 3).pack())["shards"][:1] * 2, samples=4),
    ],
)
def test_a_damaged_index_is_an_error_with_a_remedy(data: bytes) -> None:
    with pytest.raises(ShardError, match=r"d/index\.json is no index .*headrace index"):
        Index.unpack(data, "d/index.json")


@pytest.mark.parametrize("name", ["../x.tar", "/etc/passwd", "a/b.tar", "", ".", "..", "a\0b"])
def test_an_index_cannot_lead_out_of_its_folder(name: str) -> None:
    with pytest.raises(ConfigError):
        ShardEntry(name, 1, 1, SHA)


@pytest.mark.parametrize(
    "values", [{"bytes": -1}, {"samples": 2**63}, {"samples": True}, {"sha256": "x"}, {"bytes": 1.5}]
)
def test_absurd_numbers_in_an_index_are_refused(values: dict[str, object]) -> None:
    shards = json.loads(index_of(2).pack())["shards"]
    with pytest.raises(ShardError, match="damaged"):
        Index.unpack(_changed(shards=[shards[0] | values]), "x")


def scan(tmp_path: Path, members: list[tuple[str, bytes]]) -> dict[str, dict[str, bytes]]:
    path = tmp_path / "s.tar"
    path.write_bytes(tar_bytes(members))
    table = scan_shard(LocalStorage(), str(path)).table
    data = path.read_bytes()
    return {
        table.key(row): {
            name: data[span[0] : sum(span)] for name, span in zip(table.fields, spans, strict=True) if span is not None
        }
        for row, spans in enumerate(table.spans_of(range(len(table))))
    }


def test_scan_joins_the_members_of_a_key_wherever_they_stand(tmp_path: Path) -> None:
    members = [("./d/a.jpg", b"A"), ("d/b.JPG", b"B"), ("d/a.cls", b"0"), ("d/b.seg.png", b"S"), ("d/b.cls", b"1")]
    assert scan(tmp_path, members) == {
        "d/a": {"jpg": b"A", "cls": b"0"},
        "d/b": {"jpg": b"B", "seg.png": b"S", "cls": b"1"},
    }


def test_scan_counts_what_it_passes_over(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    names = ["a.jpg", "._a.jpg", "__MACOSX/x.jpg", "README", "d/.DS_Store", "__meta__/x.json"]
    path.write_bytes(tar_bytes([(name, b"x") for name in names]))
    scanned = scan_shard(LocalStorage(), str(path))
    assert len(scanned.table) == 1
    assert scanned.skipped == {"hidden file": 2, "metadata": 2, "no extension": 1}
    assert scanned.entry().samples == 1


@pytest.mark.parametrize("second", ["d/a.jpg", "./d/a.jpg", "d/a.JPG"])
def test_the_same_field_of_a_key_twice_is_an_error(tmp_path: Path, second: str) -> None:
    with pytest.raises(DuplicateKeyError, match=r"s\.tar: key 'd/a' .* 'jpg' twice, at byte 512 and at byte 2560"):
        scan(tmp_path, [("d/a.jpg", b"1"), ("d/a.cls", b"0"), (second, b"2")])


def test_scan_says_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"absent\.tar"):
        scan_shard(LocalStorage(), str(tmp_path / "absent.tar"))
