"""Class names from a command line, a file, or the index of other shards."""

from pathlib import Path

import pytest
from archives import write_shards

from headrace.errors import ConfigError, MissingDataError, ShardError
from headrace.tools.class_list import read_classes


def test_names_with_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat").mkdir()
    assert read_classes("cat") == ("cat",)
    assert read_classes("cat, a dog,10") == ("cat", "a dog", "10")


@pytest.mark.parametrize("text", [b"cat\ndog, the big one\n", b"\xef\xbb\xbfcat\r\n\r\n  dog, the big one"])
def test_a_file_has_one_name_a_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "names").write_bytes(text)
    assert read_classes(str(tmp_path / "names")) == ("cat", "dog, the big one")


def test_shards_have_names(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards")
    for name in ("shards", "shards/", "shards/index.json"):
        assert read_classes(f"{tmp_path}/{name}") == ("red", "green", "blue")


def test_what_names_no_classes(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="is not there: name a file of class names"):
        read_classes(str(tmp_path / "names.txt"))
    (tmp_path / "names.txt").write_text("\n \n")
    with pytest.raises(ConfigError, match="names no classes: write one name a line"):
        read_classes(str(tmp_path / "names.txt"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ShardError, match=r"broken\.json"):
        read_classes(str(tmp_path / "broken.json"))
