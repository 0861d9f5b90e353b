"""The tar reader: what others write is found where it lies, and nothing else ever happens than a clear error."""

import io
import shutil
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from archives import tar_bytes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.datastores.tar import (
    BLOCK,
    END,
    Member,
    TarReader,
    padding,
    skip_reason,
    split_name,
    ustar_header,
    ustar_name,
)
from headrace.errors import ConfigError, ShardError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}


def reader(data: bytes, where: str = "x.tar") -> TarReader:
    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(data), "read outside of the archive"
        return data[offset : offset + length]

    return TarReader(read, len(data), where)


def contents(data: bytes) -> dict[str, bytes]:
    return {member.name: data[member.offset : member.offset + member.size] for member in reader(data)}


def block_of(name: str, length: int, kind: bytes = b"0", *patches: tuple[int, bytes]) -> bytes:
    """Return a header with some bytes replaced, and the checksum made to fit."""
    block = bytearray(ustar_header(name, length))
    block[156:157] = kind
    for position, raw in patches:
        block[position : position + len(raw)] = raw
    return fit_checksum(bytes(block))


def fit_checksum(block: bytes) -> bytes:
    total = sum(block[:148]) + sum(block[156:]) + 8 * 32
    return block[:148] + b"%06o\0 " % total + block[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(padding(len(data)))


# -- what others write -------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200).map(
    lambda name: name.strip("/") or "x"
)


@pytest.mark.parametrize("kind", ["pax", "gnu"])
@given(st.dictionaries(NAMES, st.binary(max_size=1500), max_size=6))
@example({"a" * 300: b"1", "d/" * 120 + "b": b"22", "é/ü": b""})
def test_members_are_those_that_tarfile_wrote(kind: str, members: dict[str, bytes]) -> None:
    assert contents(tar_bytes(members, FORMATS[kind])) == members


def test_ustar_prefix_is_part_of_the_name() -> None:
    name = "folder/" * 20 + "x" * 90 + ".jpg"
    assert contents(tar_bytes({name: b"abc"})) == {name: b"abc"}


def test_float_times_of_webdataset_make_pax_headers_and_are_read() -> None:
    data = tar_bytes({"a.jpg": b"abc", "b.jpg": b"de"}, tarfile.PAX_FORMAT, mtime=1.5)
    assert contents(data) == {"a.jpg": b"abc", "b.jpg": b"de"}
    first, second = reader(data)
    assert (first.header, second.header) == (0, first.offset + BLOCK), "a member begins with its PAX header"


@pytest.mark.parametrize("kind", ["gnu", "pax", "ustar", "v7", "oldgnu"])
def test_gnu_tar(kind: str, tmp_path: Path) -> None:
    files = {"a.jpg": b"1" * 700, "sub/b.jpg": b"", "sub/" + "n" * 80 + ".txt": b"x" * 512, "sub/ä ö.jpg": b"abc"}
    if kind in ("gnu", "pax", "oldgnu"):
        files["sub/" + "l" * 180 + ".jpg"] = b"long"
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in/link.jpg").symlink_to("a.jpg")
    command = ["tar", "--format", kind, "-C", tmp_path / "in", "-cf", tmp_path / "x.tar", "."]
    subprocess.run(command, check=True, capture_output=True)
    data = (tmp_path / "x.tar").read_bytes()
    found = reader(data)
    assert {m.name: data[m.offset : m.offset + m.size] for m in found} == {f"./{n}": d for n, d in files.items()}
    assert found.skipped == {"folder": 2, "symbolic link": 1}


def test_hard_links_lead_to_their_targets_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"first")
    (tmp_path / "b.jpg").write_bytes(b"second")
    for name in ("c.jpg", "d.jpg"):
        (tmp_path / name).hardlink_to(tmp_path / "a.jpg")
    (tmp_path / "e.jpg").hardlink_to(tmp_path / "b.jpg")
    for kind in ("gnu", "pax", "ustar"):
        command = ["tar", "--format", kind, "--sort=name", "-C", tmp_path, "-cf", tmp_path / "x.tar"]
        subprocess.run([*command, "a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"], check=True)
        data = (tmp_path / "x.tar").read_bytes()
        assert data.count(b"first") == 1
        expected = {"a.jpg": b"first", "b.jpg": b"second", "c.jpg": b"first", "d.jpg": b"first", "e.jpg": b"second"}
        assert contents(data) == expected


def test_hard_links_to_long_names_and_to_links() -> None:
    file = io.BytesIO()
    long = "folder/" * 30 + "target.jpg"
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo(long)
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
        for name, target in (("one.jpg", long), ("two.jpg", "one.jpg"), ("three.jpg", "absent.jpg")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.LNKTYPE, target
            archive.addfile(link)
    found = reader(file.getvalue())
    members = list(found)
    assert [member.name for member in members] == [long, "one.jpg", "two.jpg"]
    assert len({(member.offset, member.size) for member in members}) == 1
    assert found.skipped == {"hard link without target": 1}


def test_a_link_before_any_file_has_no_target() -> None:
    data = block_of("a.jpg", 0, b"1", (157, b"b.jpg")) + block_of("b.jpg", 3) + padded(b"abc") + END
    assert contents(data) == {"b.jpg": b"abc"}


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    for kind in ("gnu", "pax"):
        command = ["tar", "--format", kind, "-S", "-C", tmp_path, "-cf", tmp_path / "x.tar", "a.bin"]
        subprocess.run(command, check=True)
        with pytest.raises(ShardError, match="sparse"):
            list(reader((tmp_path / "x.tar").read_bytes()))


def test_devices_and_pipes_are_counted() -> None:
    data = b"".join(block_of("x", 0, kind) for kind in (b"3", b"4", b"6", b"5", b"2")) + block_of("a.jpg", 0) + END
    found = reader(data)
    assert [member.name for member in found] == ["a.jpg"]
    assert found.skipped == {"device": 2, "named pipe": 1, "folder": 1, "symbolic link": 1}


def test_unknown_types_are_passed_over_with_their_payload() -> None:
    data = block_of("v.txt", 3, b"V") + padded(b"abc") + block_of("a.jpg", 2) + padded(b"de") + END
    found = reader(data)
    assert [member.name for member in found] == ["a.jpg"]
    assert found.skipped == {"other type": 1}


def test_base_256_sizes_beyond_8_gib() -> None:
    size = 9 << 30
    header = block_of("big.bin", 0, b"0", (124, b"\x80" + size.to_bytes(11, "big")))
    after = block_of("small.jpg", 2) + padded(b"ab") + END

    def read(offset: int, length: int) -> bytes:
        if offset < BLOCK:
            return (header + bytes(length))[offset : offset + length]
        assert offset >= BLOCK + size, "a payload was read"
        return after[offset - BLOCK - size :][:length]

    members = list(TarReader(read, BLOCK + size + len(after), "x.tar"))
    assert members == [
        Member("big.bin", 0, BLOCK, size),
        Member("small.jpg", BLOCK + size, 2 * BLOCK + size, 2),
    ]


def pax(kind: bytes, **values: str) -> bytes:
    """Return an extended header for one member (x) or for all that follow (g)."""
    records = b""
    for key, value in values.items():
        body = f" {key}={value}\n".encode()
        length = len(body) + len(str(len(body) + 2))
        records += f"{length}".encode() + body
    return block_of("pax", len(records), kind) + padded(records) if values else b""


def test_pax_size_and_global_headers_count() -> None:
    data = pax(b"g", comment="made by hand") + pax(b"x", path="real/näme.jpg", size="3")
    data += block_of("short", 0) + padded(b"abc") + block_of("b.jpg", 2) + padded(b"de") + END
    assert contents(data) == {"real/näme.jpg": b"abc", "b.jpg": b"de"}


def by_tarfile(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive}


SHORT = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/."), min_size=1, max_size=12)
LOCAL = st.fixed_dictionaries({"name": SHORT, "data": st.binary(max_size=700), "own": st.booleans()})
GLOBAL = st.sampled_from(["", "path", "size", "path size"])


@given(
    st.sampled_from(["", "path", "size", "path size"]),
    SHORT,
    st.binary(max_size=9),
    st.lists(LOCAL, min_size=1, max_size=5),
)
@example("size", "g", b"ab", [{"name": "a", "data": b"abc", "own": True}])
@example("path", "g", b"ab", [{"name": "a", "data": b"abc", "own": True}])
def test_what_a_pax_header_says_of_one_member_is_nearer_than_what_another_says_of_all(
    keys, name, data, members
) -> None:
    values = {"path": f"all/{name}", "size": str(len(data))}
    archive = pax(b"g", **{key: values[key] for key in keys.split()})
    for number, member in enumerate(members):
        if member["own"]:
            archive += pax(b"x", path=f"{number}/{member['name']}", size=str(len(member["data"])))
            archive += block_of("other", 7) + padded(member["data"])
        else:
            archive += block_of(f"{number}.txt", len(data)) + padded(data)
    archive += END
    assert contents(archive) == by_tarfile(archive)
    own = {f"{number}/{member['name']}": member["data"] for number, member in enumerate(members) if member["own"]}
    assert own.items() <= contents(archive).items()


@pytest.mark.parametrize("everywhere", [{}, {"linkpath": "a.jpg"}])
@pytest.mark.parametrize("here", [{}, {"linkpath": "b.jpg"}])
def test_the_nearest_link_path_counts(everywhere: dict[str, str], here: dict[str, str]) -> None:
    archive = block_of("a.jpg", 1) + padded(b"A") + block_of("b.jpg", 1) + padded(b"B") + block_of("c.jpg", 1)
    archive += padded(b"C") + pax(b"g", **everywhere) + pax(b"x", **here)
    archive += block_of("link.jpg", 0, b"1", (157, b"c.jpg")) + END
    expected = {"linkpath": "c.jpg", **everywhere, **here}["linkpath"][0].upper().encode()
    assert contents(archive)["link.jpg"] == expected
    assert contents(archive) == by_tarfile(archive)


def test_an_empty_path_of_one_member_hides_that_of_all() -> None:
    archive = pax(b"g", path="all.jpg") + pax(b"x", path="") + block_of("a.jpg", 1) + padded(b"A") + END
    assert contents(archive) == by_tarfile(archive) == {"": b"A"}


def test_names_that_are_no_utf8_come_back_unchanged() -> None:
    raw = b"caf\xe9/\xff\xfe.jpg"
    (member,) = reader(block_of("x", 0, b"0", (0, raw)) + END)
    assert member.name.encode("utf-8", "surrogateescape") == raw


def test_old_signed_checksums_are_accepted() -> None:
    block = bytearray(block_of("x", 0, b"0", (0, b"\xe9\xe9.jpg")))
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:]) + 8 * 32 - 2 * 256)
    (member,) = reader(bytes(block) + END)
    assert member.size == 0


def test_payloads_are_never_read() -> None:
    payload = bytes(range(256)) * 4000
    data = tar_bytes([(f"{number}.jpg", payload) for number in range(20)])
    asked = []

    def read(offset: int, length: int) -> bytes:
        asked.append(length)
        return data[offset : offset + length]

    assert len(list(TarReader(read, len(data), "x.tar"))) == 20
    assert sum(asked) <= 22 * 4096 + 21 * BLOCK, "more than a page per member was read"


@pytest.mark.parametrize("cut", [0, 512, 1024])
def test_end_blocks_may_be_missing(cut: int) -> None:
    data = block_of("a.jpg", 3) + padded(b"abc") + END
    assert contents(data[: len(data) - 1024 + cut]) == {"a.jpg": b"abc"}


def test_padding_of_the_last_member_may_be_missing() -> None:
    assert contents(block_of("a.jpg", 3) + b"abc") == {"a.jpg": b"abc"}


# -- what is broken ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 20_000))
def test_a_cut_archive_is_an_error_or_ends_at_a_member(cut: int) -> None:
    members = {f"{number}.jpg": bytes([number]) * 900 for number in range(9)}
    data = tar_bytes(members)[:cut]
    ends = [0, *(member.offset + member.size for member in reader(tar_bytes(members)))]
    whole = [end for end in ends if end <= len(data)]
    at_an_end = len(whole) > 1 and (whole[-1] + padding(whole[-1]) >= len(data) or len(whole) == len(ends))
    if at_an_end:
        assert list(contents(data).items()) == list(members.items())[: len(whole) - 1]
    else:
        with pytest.raises(ShardError, match=r"x\.tar is (truncated|no tar)"):
            contents(data)


def test_a_truncated_payload_names_member_place_and_bytes() -> None:
    data = tar_bytes({"a.jpg": b"x" * 5000})[: BLOCK + 2000]
    with pytest.raises(ShardError) as caught:
        list(reader(data, "train/7.tar"))
    message = str(caught.value)
    assert "train/7.tar is truncated: member 'a.jpg' needs 5000 bytes at byte 512, found 2000" in message


@pytest.mark.parametrize("joined", [lambda one, two: one + two, lambda one, two: one[:1024] + bytes(512) + two])
def test_joined_archives_are_an_error_instead_of_a_loss(joined: object) -> None:
    one, two = (block_of(name, 3) + padded(b"abc") + END for name in ("a.jpg", "b.jpg"))
    with pytest.raises(ShardError, match=r"goes on behind its end blocks.*ignore-zeros"):
        list(reader(joined(one, two)))


def test_garbage_behind_the_end_is_no_member() -> None:
    assert contents(block_of("a.jpg", 3) + padded(b"abc") + END + b"\xff" * 2048) == {"a.jpg": b"abc"}


def test_a_damaged_header_is_named_by_its_byte() -> None:
    data = bytearray(tar_bytes({"a.jpg": b"abc", "b.jpg": b"abc"}))
    data[1024 + 5] ^= 1
    with pytest.raises(ShardError, match="no tar header at byte 1024"):
        list(reader(bytes(data)))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<!DOCTYPE html><html>403 Forbidden</html>", "HTML"),
        (b'\xef\xbb\xbf  <?xml version="1.0"?><Error>' + b"x" * 600, "XML"),
        (b'{"error": "not found"}', "JSON"),
        (b"\x1f\x8b\x08" + b"x" * 600, "gunzip"),
        (b"\xfd7zXZ\0" + b"x" * 600, "unxz"),
        (b"BZh9" + b"x" * 600, "bunzip2"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 600, "unzstd"),
        (b"PK\x03\x04" + b"x" * 600, "zip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 600, r"begins with b'\x89PNG"),
        (b"", "it has 0 bytes"),
        (b"\0" * 100, "it has 100 bytes"),
    ],
)
def test_what_is_no_tar_is_said(data: bytes, says: str) -> None:
    with pytest.raises(ShardError) as caught:
        list(reader(data, "x.tar"))
    assert "x.tar is no tar" in str(caught.value)
    assert says in str(caught.value)


def test_an_archive_of_nothing_has_no_members() -> None:
    assert list(reader(END)) == []
    assert list(reader(bytes(10240))) == []


@pytest.mark.parametrize(
    "size",
    [
        b"\xff" * 12,
        b"\xc0" + bytes(11),
        b"-0000000001\0",
        b"00000000009\0",
        b"0x000000001\0",
        b"0o000000001\0",
        b"1_000000000\0",
    ],
)
def test_absurd_sizes_are_refused(size: bytes) -> None:
    with pytest.raises(ShardError, match="size"):
        list(reader(block_of("a.jpg", 0, b"0", (124, size)) + END))


@pytest.mark.parametrize("size", [b"\x80" + b"\x3f" * 11, b"\xbf" + b"\xff" * 11, b"77777777777\0"])
def test_sizes_beyond_the_file_are_truncations(size: bytes) -> None:
    with pytest.raises(ShardError, match="truncated"):
        list(reader(block_of("a.jpg", 0, b"0", (124, size)) + END))


def test_header_bombs_are_refused_before_they_are_read() -> None:
    for kind in (b"x", b"g", b"L", b"K"):
        data = block_of("bomb", 2 << 20, kind) + bytes(3 << 20)
        with pytest.raises(ShardError, match="claims 2097152 bytes"):
            list(reader(data))


@pytest.mark.parametrize(
    "records",
    [b"x", b"0 a=b\n", b"99 path=a\n", b"8 path=a\n", b"10 path=a\n1", b"-5 a=b\n", b"7 size\n", b"11 size=-12\n"],
)
def test_damaged_pax_records_are_refused(records: bytes) -> None:
    data = block_of("pax", len(records), b"x") + padded(records) + block_of("a.jpg", 0) + END
    with pytest.raises(ShardError, match="PAX"):
        list(reader(data))


def _check_any_bytes(data: bytes) -> None:
    try:
        members = list(reader(data))
    except ShardError:
        return
    assert len(members) <= len(data) // BLOCK + 1
    assert all(0 <= m.header < m.offset <= m.offset + m.size <= len(data) or m.size == 0 for m in members)


@given(st.binary(max_size=3000))
def test_any_bytes_give_members_or_an_error(data: bytes) -> None:
    _check_any_bytes(data)


BASE = tar_bytes({"a/1.jpg": b"x" * 600, "p" * 150 + ".cls": b"1"}, tarfile.PAX_FORMAT)[:-9000] + tar_bytes(
    {"q" * 150 + ".cls": b"1"}, tarfile.GNU_FORMAT
)


@given(
    st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.binary(min_size=1, max_size=12)), max_size=6), st.booleans()
)
def test_damaged_archives_give_members_or_an_error(changes: list[tuple[int, bytes]], refit: bool) -> None:
    data = bytearray(BASE)
    for position, raw in changes:
        data[position : position + len(raw)] = raw
        if refit:  # let the damage through to what lies behind the checksum
            start = position // BLOCK * BLOCK
            data[start : start + BLOCK] = fit_checksum(bytes(data[start : start + BLOCK]).ljust(BLOCK, b"\0"))
    _check_any_bytes(bytes(data))


def linked() -> bytes:
    """Return an archive of every kind of header."""
    big = block_of("big.bin", 0, b"0", (124, b"\x80" + (700).to_bytes(11, "big"))) + padded(b"b" * 700)
    link = block_of("link.jpg", 0, b"1", (157, b"a.jpg"))
    gnu_link = block_of("././@LongLink", 6, b"K") + padded(b"a.jpg\0") + block_of("other.jpg", 0, b"1", (157, b"x"))
    gnu_name = block_of("././@LongLink", 181, b"L") + padded(b"l" * 176 + b".jpg\0") + block_of("x", 3) + padded(b"abc")
    parts = [
        block_of("a.jpg", 3),
        padded(b"one"),
        pax(b"g", comment="all", path="global.jpg"),
        big,
        link,
        gnu_link,
        gnu_name,
    ]
    parts += [pax(b"x", path="p" * 150 + ".cls", size="2"), block_of("short", 0), padded(b"22")]
    parts += [
        block_of("dir/", 0, b"5"),
        block_of("sym", 0, b"2", (157, b"a.jpg")),
        block_of("v", 3, b"V"),
        padded(b"vvv"),
    ]
    return b"".join(parts) + END


ARCHIVES = {
    **{
        kind: tar_bytes({"a/1.jpg": b"x" * 600, "p" * 90 + "/" + "q" * 90 + ".cls": b"1", "é.txt": b""}, number)
        for kind, number in FORMATS.items()
    },
    "links": linked(),
}
BLOCKS = st.integers(0, 40)
MUTATIONS = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 20_000), st.integers(0, 7)),
    st.tuples(st.just("write"), st.integers(0, 20_000), st.binary(min_size=1, max_size=16)),
    st.tuples(st.just("size"), BLOCKS, st.sampled_from([0, 1, 511, 512, 513, 8**11 - 1, 2**63, 2**88 - 1])),
    st.tuples(st.just("kind"), BLOCKS, st.sampled_from(list(b"01234567LKxgXSMNDV\0 \xff"))),
    st.tuples(st.just("cut"), st.integers(0, 20_000), st.none()),
    st.tuples(st.just("move"), BLOCKS, BLOCKS),
    st.tuples(st.just("splice"), BLOCKS, st.sampled_from(sorted(ARCHIVES))),
)


def mutated(data: bytes, mutations: list[tuple[str, int, object]]) -> bytes:
    result = bytearray(data)
    for kind, place, what in mutations:
        at = (
            place % max(1, len(result)) if kind in ("flip", "write", "cut") else place * BLOCK % max(BLOCK, len(result))
        )
        if kind == "flip" and result:
            result[at] ^= 1 << what
        elif kind == "write":
            result[at : at + len(what)] = what
        elif kind == "size" and len(result) >= at + BLOCK:
            number = b"%011o\0" % what if what < 8**11 else b"\x80" + what.to_bytes(11, "big")
            result[at + 124 : at + 136] = number
        elif kind == "kind" and len(result) >= at + BLOCK:
            result[at + 156] = what
        elif kind == "cut":
            del result[at:]
        elif kind == "move":
            result[at:at] = result[what * BLOCK : (what + 1) * BLOCK]
        elif kind == "splice":
            result[at:] = ARCHIVES[what][at:]
    return bytes(result)


def with_sums(data: bytes) -> bytes:
    """Let the damage through to what lies behind the checksums."""
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    return b"".join(
        fit_checksum(block) if len(block) == BLOCK and block[148:156].strip(b"\0 ").isdigit() else block
        for block in blocks
    )


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ARCHIVES)), st.lists(MUTATIONS, min_size=1, max_size=5), st.booleans())
def test_mutated_archives_give_members_or_an_error_in_bounded_time(name, mutations, refit) -> None:
    data = mutated(ARCHIVES[name], mutations)
    data = with_sums(data) if refit else data
    read = Counter[str]()

    def counted(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(data)
        read["calls"] += 1
        read["bytes"] += length
        return data[offset : offset + length]

    try:
        members = list(TarReader(counted, len(data), "x.tar"))
    except ShardError as error:
        message = str(error)
        assert message.startswith("x.tar")
        members = []
    blocks = len(data) // BLOCK + 1
    assert all(0 < m.offset <= m.offset + m.size <= len(data) and 0 <= m.header < len(data) for m in members)
    assert len(members) <= blocks
    assert read["calls"] <= 4 * blocks + 4, "links are looked up once"
    assert read["bytes"] <= 4 * blocks * 8192


def test_the_archive_of_all_kinds_is_read_as_it_stands() -> None:
    found = reader(linked())
    sizes = [(member.name[:12], member.size) for member in found]
    everywhere = [("global.jpg", size) for size in (700, 3, 3)]
    assert sizes == [("a.jpg", 3), *everywhere, ("llllllllllll", 3), ("pppppppppppp", 2)]
    assert found.skipped == {"folder": 1, "symbolic link": 1, "other type": 1}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "field"),
    [
        ("a/b.c/d.jpg", "a/b.c/d", "jpg"),
        ("img.v2.jpg", "img", "v2.jpg"),
        ("a.b/c.d.e", "a.b/c", "d.e"),
        ("./train/1.JPG", "train/1", "jpg"),
        ("././1.seg.PNG", "1", "seg.png"),
        ("a.", "a", ""),
        ("../x/ä ö.jpg", "../x/ä ö", "jpg"),
        ("/abs/x.cls", "/abs/x", "cls"),
    ],
)
def test_names_are_cut_at_the_first_dot_of_the_last_part(name: str, key: str, field: str) -> None:
    assert skip_reason(name) is None
    assert split_name(name) == (key, field)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".hidden.jpg", "hidden file"),
        ("._a.jpg", "hidden file"),
        ("a/._x.jpg", "hidden file"),
        ("a/.jpg", "hidden file"),
        (".DS_Store", "hidden file"),
        ("__MACOSX/a.jpg", "metadata"),
        ("x/__MACOSX/a.jpg", "metadata"),
        ("./__MACOSX/a.jpg", "metadata"),
        ("__meta__/info.json", "metadata"),
        ("__index__", "metadata"),
        ("README", "no extension"),
        ("a.b/c", "no extension"),
    ],
)
def test_what_is_no_part_of_a_sample(name: str, reason: str) -> None:
    assert skip_reason(name) == reason


# -- headers that we write ---------------------------------------------------------------------------------------------


@given(NAMES, st.integers(0, 3000))
def test_our_headers_are_read_by_tarfile_and_by_us(name: str, size: int) -> None:
    if ustar_name(name) is None:
        with pytest.raises(ConfigError, match="does not fit"):
            ustar_header(name, size)
        return
    data = ustar_header(name, size) + padded(b"x" * size) + END
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (info,) = archive.getmembers()
    assert (info.name, info.size, info.mtime, info.uid, info.gid, info.mode) == (name, size, 0, 0, 0, 0o644)
    assert contents(data) == {name: b"x" * size}


@given(st.lists(st.integers(1, 160), min_size=1, max_size=4))
def test_a_name_is_split_wherever_that_is_possible(lengths: list[int]) -> None:
    name = "/".join("x" * length for length in lengths)
    slashes = [i for i, letter in enumerate(name) if letter == "/"]
    possible = len(name) <= 100 or any(slash <= 155 and len(name) - slash - 1 <= 100 for slash in slashes)
    parts = ustar_name(name)
    assert (parts is not None) == possible
    if parts is not None:
        prefix, base = parts
        assert len(prefix) <= 155
        assert 0 < len(base) <= 100
        assert (prefix + b"/" + base if prefix else base) == name.encode()


def test_sizes_from_8_gib_on_are_refused() -> None:
    assert ustar_header("a.jpg", 8 * 2**30 - 1)[124:136] == b"77777777777\0"
    with pytest.raises(ConfigError, match="8 GiB"):
        ustar_header("a.jpg", 8 * 2**30)


@pytest.mark.skipif(shutil.which("bsdtar") is None, reason="bsdtar is not installed")
def test_bsdtar(tmp_path: Path) -> None:
    (tmp_path / ("n" * 150 + ".jpg")).write_bytes(b"abc")
    subprocess.run(["bsdtar", "-C", tmp_path, "-cf", tmp_path / "x.tar", "n" * 150 + ".jpg"], check=True)
    assert contents((tmp_path / "x.tar").read_bytes()) == {"n" * 150 + ".jpg": b"abc"}
