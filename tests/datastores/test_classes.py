"""Whatever is made of a datastore has the classes of its source."""

from pathlib import Path

import numpy as np
import pytest
from archives import image_folder

from headrace.augment import Draw, Normalize
from headrace.datastores import AugmentedImageDatastore, ImageDatastore, normalize, transform
from headrace.datastores.datastore import as_datastore
from headrace.datastores.repeated import RepeatedDatastore


def derived(source):
    data = AugmentedImageDatastore((8, 8), source)
    bytes_to_floats = Normalize(mean=0, std=1)
    yield from (data, data.at(Draw()), transform(data, np.copy), normalize(data, bytes_to_floats))
    yield normalize(transform(RepeatedDatastore(data, 2), np.copy), bytes_to_floats)


def test_classes_are_those_of_the_source(tmp_path: Path) -> None:
    image_folder(tmp_path, {"cat": 2, "dog": 1})
    images = ImageDatastore(tmp_path)
    assert [data.classes for data in derived(images)] == [("cat", "dog")] * 5


@pytest.mark.parametrize(("names", "expected"), [(["b", "a"], ("b", "a")), (("x",), ("x",)), (None, ()), (7, ())])
def test_datasets_of_others_may_have_some(names, expected) -> None:
    class Others(list):
        classes = names

    source = Others([(np.zeros((9, 9, 3), np.uint8), 0)])
    assert as_datastore(source).classes == expected
    assert [data.classes for data in derived(source)] == [expected] * 5
    assert [data.classes for data in derived(list(source))] == [()] * 5
