"""The protocol between trainer and worker."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import UnpicklableError

from headrace.augment.random import Draw
from headrace.datastores.messages import Done, Failed, Ready, Task, unpack_reply
from headrace.errors import DecodeError, FieldError, HeadraceError, ShardError, WorkerError

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    numbers=st.tuples(*[st.integers(0, 2**62)] * 3),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
    ids=st.lists(INT64, max_size=40),
)
def test_tasks_travel_whole(numbers: tuple[int, int, int], seed: int, epoch: int, ids: list[int]) -> None:
    task = Task(*numbers, Draw(seed, epoch), np.array(ids, np.int64))
    copy = Task.unpack(task.pack())
    assert (copy.number, copy.slot, copy.first_row, copy.draw) == (*numbers, Draw(seed, epoch))
    assert copy.ids.tolist() == ids
    assert copy.ids.dtype == np.int64


@given(number=INT64, seconds=st.tuples(*[st.floats(0, 1e9)] * 3))
def test_replies_travel_whole(number: int, seconds: tuple[float, ...]) -> None:
    assert unpack_reply(Done(number, seconds).pack()) == Done(number, seconds)
    assert unpack_reply(Ready().pack()) == Ready()


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("k"), DecodeError("d"), FieldError("f"), ShardError("s"), OSError(5, "io")]
)
def test_errors_keep_type_text_and_notes(error: Exception) -> None:
    error.add_note("raised while making sample 3")
    copy = unpack_reply(Failed(4, 2, error).pack())
    assert isinstance(copy, Failed)
    assert (copy.number, copy.row, type(copy.error), str(copy.error)) == (4, 2, type(error), str(error))
    assert copy.error.__notes__[0] == "raised while making sample 3"
    assert copy.error.__notes__[1].startswith("in a background worker:")


def test_errors_that_cannot_be_pickled_still_speak() -> None:
    class LocalError(Exception):
        pass

    for error in (UnpicklableError("two", 2), LocalError("local")):
        copy = unpack_reply(Failed(0, 0, error).pack())
        assert isinstance(copy, Failed)
        assert type(copy.error) is WorkerError
        assert str(error) in str(copy.error)
        assert isinstance(copy.error, HeadraceError)
