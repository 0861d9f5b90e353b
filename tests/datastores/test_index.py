"""The index: numbers to places, files to indexes and back."""

import contextlib
import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
from archives import tar_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datastores.index import Index, ShardEntry, scan_shard
from headrace.datastores.storage import LocalStorage
from headrace.errors import ConfigError, DuplicateKeyError, MissingDataError, ShardError

SHA = "0123456789abcdef" * 4


def index_of(*samples: int, **options: object) -> Index:
    entries = tuple(ShardEntry(f"s{n}.tar", 10240, count, SHA, SHA) for n, count in enumerate(samples))
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
    entries = (ShardEntry("a ü\udcff.tar", 1024, 2, SHA, SHA), ShardEntry("b.tar", 6, 0, SHA, None))
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
        Index((ShardEntry("s0.tar", 10240, 2, SHA, SHA[::-1]), first.entries[1]), first.fields),
        Index((ShardEntry("s0.tar", 10240, 2, SHA[::-1], SHA), first.entries[1]), first.fields),
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
        b'{"format": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_damaged_index_is_an_error_with_a_remedy(data: bytes) -> None:
    with pytest.raises(ShardError, match=r"d/index\.json is no index .*headrace index"):
        Index.unpack(data, "d/index.json")


@pytest.mark.parametrize("name", ["../x.tar", "/etc/passwd", "a/b.tar", "", ".", "..", "a\0b", "\ud800.tar", 3])
def test_an_index_cannot_lead_out_of_its_folder(name: str) -> None:
    with pytest.raises(ConfigError, match=r"name of a shard in an index must be the name of a file, without folder"):
        ShardEntry(name, 1, 1, SHA)


KNOWN = index_of(2, 3, classes=("a", "b"), class_samples=(4, 1)).pack()
HUGE = 2**62 - 1


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["version"], 1.0, "version must be 1, found 1.0"),
        (["version"], True, "version must be 1, found True"),
        (["samples"], 5.0, "samples must be a whole number"),
        (["samples"], 6, "samples must be the sum over all shards, 5, found 6"),
        (["bytes"], HUGE, "bytes must be the sum over all shards, 20480"),
        (["shards"], {}, "shards must be a list, found {}"),
        (["shards", 1], 7, r"shards\[1\] must be an object, found 7"),
        (["shards", 1, "bytes"], -1, r"shards\[1\]\.bytes must be a whole number"),
        (["shards", 1, "bytes"], 1.5, r"shards\[1\]\.bytes must be a whole number"),
        (["shards", 1, "samples"], True, r"shards\[1\]\.samples must be a whole number"),
        (["shards", 1, "samples"], 2**63, r"shards\[1\]\.samples must be a whole number"),
        (["shards", 1, "samples"], HUGE, r"shards\[1\]\.samples must be at most 20, for a tar of 10240 bytes"),
        (["shards", 1, "sha256"], "x", r"shards\[1\]\.sha256 must be a SHA-256"),
        (["shards", 1, "sha256"], SHA.upper(), r"shards\[1\]\.sha256 must be a SHA-256"),
        (["shards", 1, "offsets_sha256"], None, r"shards\[1\]\.offsets_sha256 must be a SHA-256"),
        (["shards", 1, "name"], "\ud800.tar", r"shards\[1\]\.name must be the name of a file"),
        (
            ["shards", 1, "name"],
            "s0.tar",
            r"shards\[1\]\.name must be a name that no shard before it has, found 's0\.tar'",
        ),
        (["fields"], "jpg", "fields must be a list of different names, found 'jpg'"),
        (["fields"], ["cls", "cls"], "fields must be a list of different names"),
        (["fields"], ["jpg"], 'class_samples must be empty, since fields has no "cls"'),
        (["classes"], ["a", "a"], "classes must be a list of different names"),
        (["classes"], ["\ud800", "b"], "classes must be a list of different names"),
        (["classes"], [], "class_samples must be one number for each of 0 classes"),
        (["class_samples"], [math.inf, 1], r"class_samples must be a list of whole numbers from 0, found \[inf, 1\]"),
        (["class_samples"], [math.nan, 1], "class_samples must be a list of whole numbers"),
        (["class_samples"], ["4", "1"], "class_samples must be a list of whole numbers"),
        (["class_samples"], [4.0, 1.0], "class_samples must be a list of whole numbers"),
        (["class_samples"], [6, -1], "class_samples must be a list of whole numbers"),
        (["class_samples"], {"4": 1, "1": 1}, "class_samples must be a list of whole numbers"),
        (["class_samples"], None, "class_samples must be a list of whole numbers"),
        (["class_samples"], [5], "class_samples must be one number for each of 2 classes"),
        (["class_samples"], [4, 2], "class_samples must be numbers that sum to the 5 samples"),
    ],
)
def test_the_value_that_is_wrong_is_named(path: list[str | int], value: object, says: str) -> None:
    with pytest.raises(ShardError, match=rf"d/index\.json is no index that can be used: {says}") as caught:
        Index.unpack(json.dumps(_replaced(json.loads(KNOWN), path, value)).encode(), "d/index.json")
    assert len(str(caught.value)) < 300


def test_shards_that_sum_to_more_than_can_be_counted_are_refused() -> None:
    entries = tuple(ShardEntry(f"{number}.tar", HUGE, HUGE, SHA) for number in range(4))  # 2**64 - 4: a wrapped sum
    with pytest.raises(ConfigError, match=r"at most 2\*\*62 - 1 samples, these shards have 18446744073709551612"):
        Index(entries, ("jpg",))
    shard = {"name": "a", "bytes": HUGE, "samples": 2**53 - 1, "sha256": None, "offsets_sha256": SHA}
    shards = [{**shard, "name": str(number)} for number in range(1000)]
    data = _changed(shards=shards, samples=1000 * (2**53 - 1), bytes=1000 * HUGE)
    with pytest.raises(ShardError, match="samples must be a whole number"):
        Index.unpack(data, "x")


def _replaced(document: object, path: list[str | int], value: object) -> object:
    """Return a document with one value replaced; an empty path means all of it."""
    if not path:
        return value
    changed = copy.copy(document)
    changed[path[0]] = _replaced(document[path[0]], path[1:], value)
    return changed


def _paths(document: object) -> list[list[str | int]]:
    inside = document.items() if isinstance(document, dict) else enumerate(document) if type(document) is list else ()
    return [[], *([key, *path] for key, value in inside for path in _paths(value))]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2, 3, 5, 2**62 - 1, 2**62, 2**63, 2**64, -1, 10240, SHA, "cls", "s1.tar"])
    | st.floats()
    | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, 99), JSON), min_size=1, max_size=3))
def test_any_json_at_any_place_is_read_as_it_stands_or_refused(changes: list[tuple[int, object]]) -> None:
    document = json.loads(KNOWN)
    for place, value in changes:
        paths = _paths(document)
        document = _replaced(document, paths[place % len(paths)], value)
    try:
        found = Index.unpack(json.dumps(document).encode(), "d/index.json")
    except ShardError as error:
        said = str(error)
        assert said.startswith("d/index.json is no index that can be used: ")
        return
    known = {**document, "shards": [{name: shard[name] for name in SHARD_KEYS} for shard in document["shards"]]}
    again = json.loads(found.pack())
    assert json.dumps(again, sort_keys=True) == json.dumps({name: known[name] for name in again}, sort_keys=True)


SHARD_KEYS = ("name", "bytes", "samples", "sha256", "offsets_sha256")


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(KNOWN) - 1), st.binary(min_size=1, max_size=6)), max_size=4))
def test_any_bytes_are_an_index_or_refused(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(KNOWN)
    for position, raw in changes:
        data[position : position + len(raw)] = raw
    with contextlib.suppress(ShardError):
        assert Index.unpack(bytes(data), "x").pack()


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
