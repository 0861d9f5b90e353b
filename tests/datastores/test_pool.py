"""How a batch is cut into tasks; what the pool does with them is tested through the loader."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.datastores.pool import _rows_per_task


def test_tasks_are_large_where_rows_are_cheap_and_small_where_they_are_not() -> None:
    assert _rows_per_task(256, 2, 25e-6) == 256  # thumbnails
    assert _rows_per_task(256, 8, 25e-6) == 64
    assert _rows_per_task(256, 2, 1e-3) == 20  # photos
    assert _rows_per_task(64, 2, 50e-3) == 16
    assert _rows_per_task(256, 2, 0) == 16, "nothing is known"


@example(1, 1, 5e-324)
@given(st.integers(1, 10**6), st.integers(1, 1000), st.floats(0, 1e3))
def test_two_batches_have_a_task_for_each_worker_as_far_as_tasks_may_be_small(rows, workers, seconds) -> None:
    found = _rows_per_task(rows, workers, seconds)
    assert 16 <= found <= 256
    assert found == 16 or 2 * math.ceil(rows / found) >= workers
