"""What a batch says of fields that it has not."""

from typing import Any

import numpy as np
import pytest

from headrace.augment import Normalize
from headrace.datastores import AugmentedImageDatastore, Datastore, Loader, normalize, transform
from headrace.errors import FieldError, ShapeError

IMAGE = np.zeros((4, 4, 3), np.uint8)


class Always(Datastore):
    """Four times the same."""

    def __init__(self, sample: Any) -> None:
        self.always = sample

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.always


DERIVED = [
    lambda data: data,
    lambda data: AugmentedImageDatastore((4, 4), data),
    lambda data: transform(data, np.copy),
    lambda data: normalize(data, Normalize(mean=0, std=1)),
]
each_kind = pytest.mark.parametrize("derive", DERIVED, ids=["plain", "augmented", "transformed", "normalized"])


@each_kind
def test_a_label_that_is_text_is_said_to_be_text(derive) -> None:
    with pytest.raises(FieldError, match=r"the label of sample 0 of list is the text 'cat': it must be a number"):
        Loader(derive([(IMAGE, "cat")] * 4), 2)
    for data in (Always({"image": IMAGE, "label": "cat"}), [{"image": IMAGE, "label": "cat"}] * 4):
        batch = next(iter(Loader(derive(data), 2)))
        for part in (batch, batch.rows(0, 1), batch.to("cpu")):
            with pytest.raises(FieldError, match=r"a field 'label', but it is text, .* a label must be a number"):
                part.labels  # noqa: B018


@each_kind
def test_other_texts_are_named_as_such_and_what_is_not_there_is_not(derive) -> None:
    batch = next(iter(Loader(derive([{"image": IMAGE, "key": "a", "label": 3}] * 4), 2)))
    with pytest.raises(FieldError, match=r"a field 'key', but it is text, which no tensor can hold; this batch has"):
        batch["key"]
    with pytest.raises(FieldError, match=r"this batch has no field 'mask': it has \['image', 'label'\]"):
        batch["mask"]


@each_kind
def test_a_sample_that_is_no_mapping_is_refused(derive) -> None:
    with pytest.raises(ShapeError, match="sample 0 of Always is tuple: return a mapping"):
        Loader(derive(Always((IMAGE, 3))), 2)
