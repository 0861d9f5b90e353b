"""What every ``Storage`` must do, as tests that anyone's storage can inherit.

They need no test framework, but are written for pytest::

    class TestMine(StorageContract):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path):
            self.storage, self.root = MyStorage(), "mine://place"

        def put(self, path, data):
            ...  # without the storage under test
"""

import pickle
from collections.abc import Callable
from typing import Any

from ..errors import HeadraceError, MissingDataError, ShardError
from .storage import Storage

__all__ = ["StorageContract"]

_DATA = bytes(range(256)) * 40


class StorageContract:
    """Inherit it, set ``storage`` and ``root`` before each test, and say how files come there.

    Args:
        storage: the storage under test.
        root: an empty folder in it.
        writable: whether ``write_atomic`` works there.
    """

    storage: Storage
    root: str
    writable = True

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file, not through the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} must say how a file comes to {path}")

    def again(self) -> Storage:
        """Return the storage as another process would get it."""
        storage: Storage = _copy(self.storage)
        return storage

    def test_reads_are_exact(self) -> None:
        """Ranges hold the bytes that were asked for, at both ends and in the middle."""
        path = f"{self.root}/data.bin"
        self.put(path, _DATA)
        assert self.storage.size(path) == len(_DATA)
        for offset, length in ((0, 1), (250, 10), (0, len(_DATA)), (len(_DATA) - 1, 1), (5, 0), (len(_DATA), 0)):
            assert self.storage.read(path, offset, length) == _DATA[offset : offset + length], (offset, length)
        ranges = [(path, 9, 3), (path, 0, 1), (path, 9, 3), (path, 700, 0)] * 20
        assert self.storage.read_many(ranges) == [_DATA[start : start + length] for _, start, length in ranges]
        assert self.storage.read_many([]) == []
        assert self.storage.open(path).read(7, 9) == _DATA[7:16]
        assert self.storage.open(path).size == len(_DATA)

    def test_it_says_how_many_reads_are_worth_making_at_a_time(self) -> None:
        """At least one."""
        assert self.storage.concurrency >= 1

    def test_a_file_may_be_empty(self) -> None:
        """An empty file is a file."""
        path = f"{self.root}/empty"
        self.put(path, b"")
        assert self.storage.size(path) == 0
        assert self.storage.read(path, 0, 0) == b""

    def test_names_may_hold_what_files_may_be_called(self) -> None:
        """Spaces, signs and letters of any script are part of a name."""
        path = f"{self.root}/a b+c,ü#1.bin"
        self.put(path, b"found")
        assert self.storage.read(path, 0, 5) == b"found"

    def test_nothing_is_read_behind_the_end(self) -> None:
        """A read behind the end is an error that names the file, never a short answer."""
        path = f"{self.root}/data.bin"
        self.put(path, _DATA)
        for offset, length in ((len(_DATA) - 1, 2), (len(_DATA) + 5, 1), (0, len(_DATA) + 1)):
            assert path in str(_raised(ShardError, self.storage.read, path, offset, length))
        assert path in str(_raised(ShardError, self.storage.open(path).read, len(_DATA) - 1, 2))

    def test_what_is_absent_is_named(self) -> None:
        """Absent files and folders are errors of one kind, with the path."""
        self.put(f"{self.root}/file", b"x")
        for path in (f"{self.root}/absent", f"{self.root}/absent/file"):
            for ask in (self.storage.size, self.storage.identity, self.storage.open, self.storage.names):
                assert path in str(_raised(MissingDataError, ask, path)), ask
            assert path in str(_raised(MissingDataError, self.storage.read, path, 0, 1))

    def test_errors_pickle(self) -> None:
        """An error reaches the trainer from a worker as it is."""
        error = _raised(MissingDataError, self.storage.size, f"{self.root}/absent")
        assert str(_copy(error)) == str(error)
        assert type(_copy(error)) is type(error)

    def test_names_are_those_of_one_folder(self) -> None:
        """Files and folders directly in it, once each, and nothing of what lies deeper or beside it."""
        for name in ("in/a.tar", "in/b.tar", "in/deep/c.tar", "in.tar", "inner/d.tar"):
            self.put(f"{self.root}/{name}", name.encode())
        assert sorted(self.storage.names(f"{self.root}/in")) == ["a.tar", "b.tar", "deep"]

    def test_another_file_has_another_identity(self) -> None:
        """A replaced file is told apart by whoever sees it first, and never mixed with the old one."""
        path = f"{self.root}/data.bin"
        self.put(path, _DATA)
        before = self.again().identity(path)
        assert self.again().identity(path) == before
        opened = self.storage.open(path)
        assert self.storage.read(path, 0, 4) == _DATA[:4]
        self.put(path, _DATA[::-1])
        assert self.again().identity(path) != before
        assert self.again().read(path, 0, 4) == _DATA[::-1][:4]
        try:
            found = self.storage.read(path, 0, 4), opened.read(4, 4)
        except ShardError as error:
            assert path in str(error)  # noqa: PT017 - an error is one of two right answers
            assert "replaced" in str(error)  # noqa: PT017
        else:
            assert found == (_DATA[:4], _DATA[4:8])

    def test_it_pickles_small(self) -> None:
        """A copy serves another process, and costs next to nothing to send."""
        path = f"{self.root}/data.bin"
        self.put(path, _DATA)
        self.storage.read(path, 0, 10)
        assert len(pickle.dumps(self.storage)) < 2000
        assert self.again().read(path, 3, 3) == _DATA[3:6]

    def test_writes_are_seen_whole(self) -> None:
        """What is written replaces the old file, and leaves nothing else behind."""
        path = f"{self.root}/out/x.json"
        self.put(path, b"old")
        if not self.writable:
            assert path in str(_raised(HeadraceError, self.storage.write_atomic, path, b"new!"))
            return
        self.storage.write_atomic(path, b"new!")
        assert (self.storage.size(path), self.storage.read(path, 0, 4)) == (4, b"new!")
        assert self.again().read(path, 0, 4) == b"new!"
        assert self.storage.names(f"{self.root}/out") == ["x.json"]


def _copy(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - made here


def _raised(kind: type[HeadraceError], call: Callable[..., object], *arguments: object) -> HeadraceError:
    """Return the error that a call raises."""
    try:
        answer = call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__} of {call}, got {answer!r}")
