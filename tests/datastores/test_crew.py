"""What is said of a worker that died."""

import pytest

from headrace.datastores.crew import _cause


@pytest.mark.parametrize(
    ("exitcode", "text"),
    [
        (3, "with exit code 3"),
        (-9, "by SIGKILL (out of memory?)"),
        (-11, "by SIGSEGV"),
        (-40, "by signal 40"),  # a real-time signal has no name
        (None, "with exit code None"),
    ],
)
def test_every_end_has_words(exitcode: int | None, text: str) -> None:
    assert _cause(exitcode) == text
