"""headrace build --classes: another set's numbers; and what it says of files that are no images."""

import json
from pathlib import Path

import numpy as np
import pytest
from archives import image_folder

from headrace.datastores import ShardDatastore
from headrace.tools.cli import main


def build(*words: object) -> int:
    return main(["build", *map(str, words), "--quiet"])


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    image_folder(tmp_path / "train", {"ant": 1, "bee": 1, "cow": 1})
    image_folder(tmp_path / "validation", {"cow": 2, "ant": 1})
    assert build(tmp_path / "train", tmp_path / "shards") == 0
    (tmp_path / "names.txt").write_text("ant\nbee\ncow\n")
    return tmp_path


@pytest.mark.parametrize("classes", ["ant,bee,cow", "{}/names.txt", "{}/shards", "{}/shards/index.json"])
def test_a_set_that_lacks_a_class_gets_the_numbers_of_another_one(sets: Path, classes: str) -> None:
    assert build(sets / "validation", sets / "out", "--classes", classes.format(sets)) == 0
    train, validation = ShardDatastore(sets / "shards"), ShardDatastore(sets / "out")
    assert validation.classes == train.classes
    labels = [file.label for file in validation.encoded(np.arange(3))]
    assert [(validation.key(i)[:3], labels[i]) for i in range(3)] == [("ant", 0), ("cow", 2), ("cow", 2)]
    report = json.loads((sets / "out/build.json").read_text())
    assert report["classes"] == {"ant": 1, "bee": 0, "cow": 2}


@pytest.mark.parametrize(
    ("source", "words", "message"),
    [
        ("train", ["--classes", "ant,cow"], "has images in folders that are no classes (bee): there are ant, cow"),
        ("train", ["--classes", "ant,,bee,cow"], "classes must be a list of different names"),
        ("train", ["--classes", "ant,bee,cow", "--labels", "none"], "(--labels none) asks for none"),
        ("train", ["--classes", "./names"], "./names is not there"),
        ("shards", ["--classes", "ant,bee,cow"], "--classes is for images, and"),
    ],
)
def test_classes_that_do_not_fit(
    sets: Path, source: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(sets / source, sets / "out", *words) == 1
    assert message in capsys.readouterr().err
    assert not (sets / "out/index.json").exists()


def test_a_text_that_is_called_an_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_folder(tmp_path / "in", {"cat": 1})
    (tmp_path / "in/cat/zzz.jpg").write_text("a list of things to buy")
    assert build(tmp_path / "in", tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert "zzz.jpg is no image that can be read: it begins with b'a list of things' (nothing reads it)" in said
    assert "--skip-bad" in said
