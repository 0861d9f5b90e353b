"""What is derived from __len__ and __getitem__."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from archives import image_folder, write_shards
from torch.utils.data import DataLoader
from toys import Failing, Noise

from headrace.augment.random import Draw
from headrace.datastores import AugmentedImageDatastore, Datastore, ImageDatastore, Loader, ShardDatastore
from headrace.datastores.clock import Clock, Stage
from headrace.datastores.datastore import as_datastore, fingerprint_of
from headrace.datastores.schema import Field, Schema
from headrace.errors import ConfigError, FieldError, ShapeError


class Numbers(Datastore):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < 4:
            raise IndexError(index)
        return {"x": np.array([index, index + 0.5], np.float32), "label": index, "key": f"n{index}"}


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"x": 1.0}, {"x": 2.0, "label": 3}], "sample 1 .* has a field 'label', which the first sample does not have"),
        ([{"x": 1.0, "label": "cat"}, {"x": 2.0, "label": 3}], "has a field 'label'"),
        (
            [{"x": np.float32(1)}, {"x": np.float64(1e300)}],
            "field 'x' of sample 1 .* 1e.300, too much for float32",
        ),
        ([{"x": np.float16(1)}, {"x": np.float32(70000)}], "too much for float16"),
        ([{"x": np.longdouble(1)}], "is float128, which torch does not know"),
        ([{"x": torch.zeros(2, requires_grad=True)}], "field 'x' of sample 0 .* cannot become an array"),
        ([{"x": [[1], [1, 2]]}], "field 'x' of sample 0 .* cannot become an array"),
    ],
)
def test_nothing_is_lost_or_changed_silently(samples: list[dict[str, Any]], message: str) -> None:
    with pytest.raises((FieldError, ShapeError), match=message):
        list(Loader(samples, 1, shuffle="never"))


def test_infinity_may_be_what_is_meant() -> None:
    samples = [{"x": np.float32(1)}, {"x": np.float64(np.inf)}, {"x": np.float64(0.1)}]
    rows = [batch["x"].item() for batch in Loader(samples, 1, shuffle="never")]
    assert rows == [1.0, np.inf, np.float32(0.1)]


def test_schema_of_a_sample() -> None:
    expected = (Field("x", (2,), "float32"), Field("label", (), "int64"))
    assert Numbers().schema() == Schema(expected, texts=("key",))
    assert Noise().schema().fields[0] == Field("image", (6, 5, 3), "uint8", is_image=True)
    assert Noise().schema().row_bytes == 6 * 5 * 3 + 8
    with pytest.raises(ShapeError, match="field 'when' of here is date, which cannot become a tensor"):
        Schema.of({"when": dt.date(2026, 1, 1)}, "here")


def test_fill_writes_rows_and_tells_the_time() -> None:
    rows = {"x": np.zeros((2, 2), np.float32), "label": np.zeros(2, np.int64)}
    clock = Clock()
    Numbers().fill(np.array([3, 1]), Draw(), rows, clock)
    assert rows["x"].tolist() == [[3.0, 3.5], [1.0, 1.5]]
    assert rows["label"].tolist() == [3, 1]
    assert clock.seconds[Stage.READ] > 0 == clock.seconds[Stage.DECODE]


def test_a_datastore_is_a_map_style_dataset() -> None:
    batches = list(DataLoader(Numbers(), batch_size=2))
    assert [b["label"].tolist() for b in batches] == [[0, 1], [2, 3]]
    assert [sample["label"] for sample in Numbers()] == [0, 1, 2, 3]


def test_an_empty_datastore_has_no_schema() -> None:
    with pytest.raises(ConfigError, match="Noise is empty"):
        Noise(samples=0).schema()


def test_pairs_and_tensors_are_accepted() -> None:
    store = as_datastore([(torch.ones(2, 2, 1, dtype=torch.uint8), torch.tensor(3))])
    assert [(f.name, f.shape, f.dtype) for f in store.schema().fields] == [
        ("image", (2, 2, 1), "uint8"),
        ("label", (), "int64"),
    ]
    with pytest.raises(ShapeError, match="sample 0 of list is str"):
        as_datastore(["text"])[0]


def test_narrowing_is_refused_and_same_kind_is_cast() -> None:
    rows = {"x": np.zeros((1, 2), np.int64), "label": np.zeros(1, np.int64)}
    with pytest.raises(ShapeError, match="is float32"):
        Numbers().fill(np.array([0]), Draw(), rows, Clock())


def test_fingerprints() -> None:
    assert fingerprint_of("a", 1) == fingerprint_of("a", 1) != fingerprint_of("a", 2)
    assert Noise(5).fingerprint != Noise(6).fingerprint
    assert len(Noise().fingerprint) == 64


@pytest.mark.parametrize(
    ("first", "later"),
    [(np.int8(1), np.int16(300)), (np.uint8(1), np.uint16(40000)), (1, 2**63), (np.uint8(3), np.int16(-1))],
)
def test_whole_numbers_never_wrap(first: Any, later: Any) -> None:
    data = [{"x": np.array([first])}, {"x": np.array([later])}]
    with pytest.raises(ShapeError, match="field 'x' of sample 1 of list"):
        list(Loader(data, 2, shuffle="never"))


def test_whole_numbers_that_fit_are_taken() -> None:
    data = [{"x": np.array([1], np.uint8)}, {"x": np.array([255], np.int64)}]
    assert next(iter(Loader(data, 2, shuffle="never")))["x"].tolist() == [[1], [255]]


def test_shard_sizes_must_add_up() -> None:
    class Short(Noise):
        @property
        def shard_sizes(self) -> np.ndarray:
            return np.array([10, 10])

    with pytest.raises(ConfigError, match="has 100 samples, but its shard_sizes add up to 20"):
        Loader(Short(), 10)


def test_a_bad_first_sample_does_not_hide_the_schema() -> None:
    assert Failing({0, 1}).schema() == Noise().schema()
    with pytest.raises(ZeroDivisionError):
        Failing(range(100)).schema()
    assert sum(len(batch) for batch in Loader(Failing({0}), 10, on_error="substitute")) == 100


class Anything(Datastore):
    """Takes what it is given, as a careless ``__getitem__`` does."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": int(index)}


@pytest.mark.parametrize("kind", ["images", "shards", "augmented", "at", "own"])
def test_the_number_of_a_sample_is_never_rounded(tmp_path: Path, kind: str) -> None:
    image_folder(tmp_path / "images", {"cat": 3})
    write_shards(tmp_path / "shards", samples=3)
    images, shards = ImageDatastore(tmp_path / "images"), ShardDatastore(tmp_path / "shards")
    augmented = AugmentedImageDatastore((8, 8), shards)
    take: dict[str, list[Callable[[Any], object]]] = {
        "images": [images.__getitem__, images.key, images.locate, lambda index: images.at(Draw())[index]],
        "shards": [shards.__getitem__, shards.key, shards.locate, shards.raw],
        "augmented": [augmented.__getitem__, lambda index: augmented.sample(index, Draw())],
        "at": [augmented.at(Draw()).__getitem__, Anything().at(Draw()).__getitem__],
        "own": [lambda index: Anything().sample(index, Draw())],
    }
    for function in take[kind]:
        for wrong in (1.5, 1.0, np.float32(1), "1", None, slice(0, 2)):
            with pytest.raises(TypeError, match="the number of a sample must be a whole number, got"):
                function(wrong)
        assert str(function(1)) == str(function(np.int64(1))) == str(function(torch.tensor(1)))
