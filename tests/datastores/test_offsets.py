"""The packed offset table: what goes in comes out, and a damaged file never leads outside of its shard."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datastores.offsets import OffsetTable, TableBuilder
from headrace.datastores.storage import LocalStorage
from headrace.errors import ShardError

SIZE = 10**6
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SPANS = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).filter(lambda span: sum(span) <= SIZE)
SAMPLES = st.dictionaries(
    KEYS, st.dictionaries(st.sampled_from(["jpg", "cls", "x.json"]), SPANS, min_size=1), max_size=8
)


def table_of(samples: dict[str, dict[str, tuple[int, int]]]) -> OffsetTable:
    builder = TableBuilder("s.tar")
    for key, fields in samples.items():
        for field, (offset, length) in fields.items():
            assert builder.put(key, field, offset, length) is None
    return builder.table(SIZE)


def as_dict(table: OffsetTable) -> dict[str, dict[str, tuple[int, int]]]:
    rows = table.spans_of(range(len(table)))
    return {
        table.key(row): {name: span for name, span in zip(table.fields, spans, strict=True) if span is not None}
        for row, spans in enumerate(rows)
    }


@given(SAMPLES)
def test_what_goes_in_comes_out(samples: dict[str, dict[str, tuple[int, int]]]) -> None:
    table = table_of(samples)
    packed = table.pack()
    again = OffsetTable.unpack(packed, "s.tar.offsets")
    assert as_dict(table) == as_dict(again) == samples
    assert list(as_dict(again)) == list(samples), "samples keep their order"
    assert (again.shard, again.shard_bytes, again.pack()) == ("s.tar", SIZE, packed)


def test_members_of_a_key_may_stand_apart_and_duplicates_are_told() -> None:
    builder = TableBuilder("s.tar")
    builder.put("a", "jpg", 512, 10)
    builder.put("b", "jpg", 1536, 10)
    builder.put("a", "cls", 2560, 1)
    assert builder.put("b", "jpg", 9999, 1) == (1536, 10)
    assert as_dict(builder.table(SIZE)) == {"a": {"jpg": (512, 10), "cls": (2560, 1)}, "b": {"jpg": (1536, 10)}}


def test_keys_that_are_no_utf8_come_back() -> None:
    key = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert OffsetTable.unpack(table_of({key: {"jpg": (0, 1)}}).pack(), "x").key(0) == key


def test_find() -> None:
    table = table_of({"a": {"jpg": (0, 1)}, "b": {"jpg": (1, 1)}})
    assert (table.find("b"), table.find("c")) == (1, None)


def test_a_file_is_read_row_by_row(tmp_path: Path) -> None:
    samples = {f"key{number}": {"jpg": (number, 1)} for number in range(1000)}
    path = tmp_path / "s.tar.offsets"
    path.write_bytes(table_of(samples).pack())
    table = OffsetTable.open(LocalStorage().open(str(path)), "x")
    assert as_dict(table) == samples
    for rows in ([7], [0, 999], [3, 5, 4, 3], [], list(range(0, 1000, 7)), np.array([10, 500])):
        assert table.spans_of(rows) == [[(row, 1)] for row in rows]


def test_a_file_that_is_cut_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    samples = {f"key{number}": {"jpg": (number, 1)} for number in range(1000)}
    path = tmp_path / "s.tar.offsets"
    path.write_bytes(table_of(samples).pack())
    table = OffsetTable.open(LocalStorage().open(str(path)), "x")
    os.truncate(path, 4096)
    assert table.spans_of([3]) == [[(3, 1)]]
    for use in (lambda: table.spans_of([999]), lambda: table.key(3), lambda: table.find("key3"), table.pack):
        with pytest.raises(ShardError, match=r"s\.tar\.offsets ends too early: .*the file was cut"):
            use()


def test_thousands_of_fields_are_a_misread_set_of_names() -> None:
    builder = TableBuilder("s.tar")
    for number in range(256):
        builder.put("img", f"{number:04d}.jpg", 0, 1)
    with pytest.raises(ShardError, match=r"more than 256 different fields in s\.tar, .*cut at its first dot"):
        builder.put("img", "0256.jpg", 0, 1)


PACKED = table_of({f"k{number}": {"jpg": (number, 7), "cls": (number, 1)} for number in range(5)}).pack()


@given(st.integers(0, len(PACKED) - 1))
def test_a_cut_table_is_an_error(length: int) -> None:
    with pytest.raises(ShardError, match=r"x\.offsets is no offset table .*headrace index"):
        OffsetTable.unpack(PACKED[:length], "x.offsets")


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error(data: bytes) -> None:
    for start in (b"", PACKED[:12], PACKED[:16]):
        with pytest.raises(ShardError):
            OffsetTable.unpack(start + data, "x")


@given(st.lists(st.tuples(st.integers(0, len(PACKED) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_a_damaged_table_gives_places_inside_the_shard_or_an_error(changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(PACKED)
    for position, raw in changes:
        data[position : position + len(raw)] = raw[: len(data) - position]
    try:
        table = OffsetTable.unpack(bytes(data), "x")
        found = as_dict(table)
    except ShardError:
        return
    limit = table.shard_bytes
    assert all(0 <= start <= start + size <= limit for spans in found.values() for start, size in spans.values())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([4, 5, 6, 2**62, 2**63])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
NAMES = ["shard", "bytes", "samples", "fields", "key_bytes"]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3), st.sets(st.sampled_from(NAMES), max_size=1))
def test_any_header_gives_places_inside_the_shard_or_an_error(values: dict[str, object], missing: set[str]) -> None:
    length = int.from_bytes(PACKED[12:16], "little")
    header = {**json.loads(PACKED[16 : 16 + length]), **values}
    text = json.dumps({name: value for name, value in header.items() if name not in missing}).encode()
    start, body = 16 + len(text), PACKED[16 + length + -(16 + length) % 64 :]
    data = PACKED[:12] + len(text).to_bytes(4, "little") + text + bytes(-start % 64) + body
    try:
        table = OffsetTable.unpack(data, "x.offsets")
        found = as_dict(table)
    except ShardError:
        return
    assert len(table) == header["samples"]
    assert all(sum(span) <= table.shard_bytes for spans in found.values() for span in spans.values())


@pytest.mark.parametrize(
    ("span", "says"),
    [((SIZE, 1), "offset 1000000, length 1"), ((-5, 3), "offset -5"), ((2**62, 2**62), "offset 46116")],
)
def test_a_span_outside_of_the_shard_is_an_error_when_it_is_used(span: tuple[int, int], says: str) -> None:
    good = table_of({"a": {"jpg": (0, 1)}, "b": {"jpg": (0, 1)}})
    table = OffsetTable.unpack(changed(good, good.layout.spans + 16, *span), "x")
    assert table.spans_of([0]) == [[(0, 1)]]
    with pytest.raises(ShardError, match=f"shard s.tar is damaged at sample 1: {says}"):
        table.spans_of([1])


def test_a_key_outside_of_the_table_is_an_error() -> None:
    good = table_of({"a": {"jpg": (0, 1)}})
    for starts in ((0, 99), (5, 1), (-3, 1)):
        with pytest.raises(ShardError, match="damaged at sample 0"):
            OffsetTable.unpack(changed(good, good.layout.starts, *starts), "x").key(0)


def changed(table: OffsetTable, position: int, *numbers: int) -> bytes:
    packed = bytearray(table.pack())
    struct.pack_into(f"<{len(numbers)}q", packed, position, *numbers)
    return bytes(packed)
