"""Where workers come from, and what is said of one that died."""

import os
from pathlib import Path

import pytest
from toys import Parentage

from headrace.datastores import Loader
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


def test_one_server_imports_torch_once_and_starts_the_workers_of_every_pool() -> None:
    processes, parents = set[int](), set[int]()
    for _ in range(2):
        with Loader(Parentage(), 10, workers=2, start_method="forkserver") as loader:
            for batch in loader:
                processes |= set(batch.fields["process"].tolist())
                parents |= set(batch.fields["parent"].tolist())
    assert len(processes) >= 2, "each pool has workers of its own"
    (server,) = parents
    assert server != os.getpid()
    if Path("/proc/self/maps").exists():
        assert "libtorch" in Path(f"/proc/{server}/maps").read_text()
