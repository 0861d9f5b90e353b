"""Shards or images: an index decides, or what the folder holds, and what is left out is said."""

from pathlib import Path

import pytest
from archives import image_folder, jpeg, tar_bytes, write_shards

from headrace.datastores import ImageDatastore, ShardDatastore
from headrace.errors import MissingDataError
from headrace.tools.source import open_images


@pytest.fixture
def images(tmp_path: Path) -> Path:
    image_folder(tmp_path / "set", {"cat": 3, "dog": 2})
    return tmp_path / "set"


def test_a_tar_among_images_is_named_and_left_out(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (images / "backup.tar").write_bytes(tar_bytes({"a.jpg": jpeg(0)}))
    found = open_images(str(images))
    assert isinstance(found, ImageDatastore)
    assert len(found) == 5
    said = capsys.readouterr().err
    assert "holds 5 images and 1 tar such as backup.tar: these are the images" in said
    shards = open_images(f"{images}/*.tar")
    assert isinstance(shards, ShardDatastore)
    assert f"'{images}/*.tar'" in said


def test_an_index_decides(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(images.parent / "shards")
    image_folder(images.parent / "shards", {"samples": 2})
    assert len(open_images(str(images.parent / "shards"))) == 10
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["shards", "shards.tar"])
def test_tars_alone_and_images_alone_need_no_word(images: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = images.parent / name
    folder.mkdir()
    (folder / "a.tar").write_bytes(tar_bytes({"a.jpg": jpeg(0)}))
    assert isinstance(open_images(str(images)), ImageDatastore)
    assert isinstance(open_images(str(folder / "a.tar")), ShardDatastore)
    if name == "shards":
        assert isinstance(open_images(str(folder)), ShardDatastore)
    assert capsys.readouterr().err == ""


def test_neither_is_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"holds neither shards \(\*\.tar\) nor images"):
        open_images(str(tmp_path))
    with pytest.raises(MissingDataError, match="absent"):
        open_images(str(tmp_path / "absent"))
    (tmp_path / ".headrace-build").mkdir()
    with pytest.raises(MissingDataError, match="is no dataset: a build is writing into it, or was killed"):
        open_images(str(tmp_path))
