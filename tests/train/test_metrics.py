import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, ShapeError
from headrace.train import Accuracy


@given(st.data(), st.integers(1, 3), st.integers(3, 6))
def test_it_equals_a_count_by_hand_whatever_the_batches(data: st.DataObject, top: int, classes: int) -> None:
    accuracy, right, total = Accuracy(top), 0, 0
    for count in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)):
        outputs = np.array([data.draw(st.permutations(range(classes))) for _ in range(count)], np.float32)
        labels = np.array(data.draw(st.lists(st.integers(0, classes - 1), min_size=count, max_size=count)))
        accuracy.update(torch.from_numpy(outputs), torch.from_numpy(labels))
        right += sum(int(label) in np.argsort(-row)[:top] for row, label in zip(outputs, labels, strict=True))
        total += count
    assert accuracy.compute() == right / total


def test_of_equal_outputs_the_first_is_the_answer() -> None:
    accuracy = Accuracy()
    accuracy.update(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert accuracy.compute() == 0.5


def test_reset_forgets() -> None:
    accuracy = Accuracy()
    accuracy.update(torch.eye(2), torch.tensor([1, 0]))
    accuracy.reset()
    accuracy.update(torch.eye(2), torch.tensor([0, 1]))
    assert accuracy.compute() == 1.0


def test_bad_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="top must be at least 1"):
        Accuracy(0)
    with pytest.raises(ConfigError, match="no samples"):
        Accuracy().compute()
    for outputs, targets in [((4,), (4,)), ((4, 3), (4, 1)), ((4, 3), (3,))]:
        with pytest.raises(ShapeError, match=r"needs outputs \(N, classes\)"):
            Accuracy().update(torch.zeros(outputs), torch.zeros(targets, dtype=torch.int64))
    with pytest.raises(ShapeError, match="at least 5 classes"):
        Accuracy(5).update(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
