import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.datastores import Loader
from headrace.errors import FieldError, ShapeError
from headrace.train.prepare import describe, images_and_labels, select_rows


def test_all_256_values_become_their_share_of_255_in_channels_last_memory() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16).repeat(3, 0).transpose(1, 2, 0)
    loader = Loader([(pixels, 4)], batch_size=1)
    batch = next(iter(loader))
    images, labels = images_and_labels(batch)
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images[0, 1].flatten(), torch.arange(256) / 255)
    assert labels.tolist() == [4]
    assert torch.equal(batch.images[0, 1].flatten(), torch.arange(256, dtype=torch.uint8))


def test_images_that_are_float_keep_their_values() -> None:
    batch = next(iter(Loader([{"image": np.array([[2.5]], np.float64), "label": 0}], batch_size=1)))
    images, _ = images_and_labels(batch)
    assert images.dtype == torch.float32
    assert images.item() == 2.5


def test_a_missing_label_is_named() -> None:
    batch = next(iter(Loader([{"image": np.zeros((2, 2, 1), np.uint8)}], batch_size=1)))
    with pytest.raises(FieldError, match="no field 'label'"):
        images_and_labels(batch)


@given(st.sets(st.integers(0, 5)))
def test_rows_are_selected_in_every_nested_tensor(kept: set[int]) -> None:
    rows = torch.tensor(sorted(kept), dtype=torch.int64)
    a, b = torch.arange(6), torch.arange(12).reshape(6, 2)
    got = select_rows({"a": a, "rest": (b, [a, "text"])}, rows, 6)
    assert got["a"].tolist() == sorted(kept)
    assert isinstance(got["rest"], tuple)
    assert torch.equal(got["rest"][0], b[rows])
    assert got["rest"][1][0].tolist() == sorted(kept)
    assert got["rest"][1][1] == "text"


def test_without_padding_nothing_is_touched() -> None:
    value = (torch.zeros(3), torch.zeros(4))
    assert select_rows(value, None, 6) is value


@pytest.mark.parametrize("shape", [(), (5,), (7, 2)])
def test_a_tensor_without_a_row_for_each_sample_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="no row for each of the 6 rows"):
        select_rows(torch.zeros(shape), torch.tensor([0]), 6)


def test_describe_names_dtypes_shapes_and_devices() -> None:
    value = {"x": (torch.zeros(2, 3), [torch.zeros(1, dtype=torch.int64)]), "y": "text"}
    assert describe(value) == "{'x': (float32 (2, 3) on cpu, (int64 (1,) on cpu)), 'y': str}"
