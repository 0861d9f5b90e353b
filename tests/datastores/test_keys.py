"""Keys: every reader cuts them where we meant, and the original comes back."""

import os
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.datastores.keys import encode_key, fit_key
from headrace.datastores.tar import skip_reason, split_name, ustar_header, ustar_name
from headrace.errors import ConfigError

PARTS = st.sampled_from(
    ["a", ".", "..", "__x__", "__MACOSX", "", ".hid", "v1.0", "x y", "a%20b", "ü", "\\", "\x07", "_"]
)
KEYS = st.one_of(
    st.lists(PARTS, min_size=1, max_size=5).map("/".join),
    st.binary(min_size=1, max_size=20).map(os.fsdecode),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
).filter(bool)


@given(KEYS, st.sampled_from(["jpg", "cls", "seg.png"]))
@example("__MACOSX/__MACOSX/a", "jpg")
@example("/", "jpg")
@example("./__x__/a", "jpg")
def test_a_stored_key_is_read_as_it_was_meant_and_can_be_decoded(key: str, field: str) -> None:
    stored = encode_key(key)
    name = f"{stored}.{field}"
    assert skip_reason(name) is None
    assert split_name(name) == (stored, field)
    assert unquote(stored, errors="surrogateescape") == key
    assert stored.encode("utf-8").decode() == stored
    assert not set(stored) & set(" \\\n\t\x07")
    assert not {"", ".", ".."} & set(stored.split("/")), "safe to unpack"


@given(st.sets(KEYS, min_size=2, max_size=5))
def test_different_keys_stay_different(keys: set[str]) -> None:
    assert len({encode_key(key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("cat/0001", "cat/0001"),
        ("train.v2/cat/0001", "train.v2/cat/0001"),
        ("my cats/no.1", "my%20cats/no%2E1"),
        ("../x", "%2E%2E/x"),
        ("/abs", "%2Fabs"),
        ("50%", "50%25"),
        ("übung/ß", "übung/ß"),
        (os.fsdecode(b"caf\xe9"), "caf%E9"),
    ],
)
def test_what_keys_look_like(key: str, stored: str) -> None:
    assert encode_key(key) == stored


@pytest.mark.parametrize("key", ["", "\ud800", None, 7, b"bytes", ["a"]])
def test_what_cannot_be_a_key(key: object) -> None:
    with pytest.raises(ConfigError, match="key"):
        encode_key(key)


@given(
    st.lists(st.text("abü/", min_size=1, max_size=120), min_size=1, max_size=4).map("/".join).map(encode_key),
    st.sampled_from(["jpg", "x" * 48]),
)
def test_a_long_key_is_shortened_until_it_fits(key: str, field: str) -> None:
    short = fit_key(key, field)
    assert ustar_name(f"{short}.{field}") is not None
    assert ustar_header(f"{short}.{field}", 1)
    assert (short == key) == (ustar_name(f"{key}.{field}") is not None)
    assert split_name(f"{short}.{field}") == (short, field)


def test_long_keys_that_differ_at_their_end_stay_different() -> None:
    one, two = (fit_key("class/" + "x" * 200 + end, "jpg") for end in "ab")
    assert one != two
    assert one.startswith("class/xxxx")
    deep = fit_key("/".join(["folder"] * 40) + "/x", "jpg")
    assert deep.startswith("x-")
    assert "/" not in deep
