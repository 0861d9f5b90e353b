"""Local storage: exact reads, few descriptors, whole files."""

import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.datastores.places import open_storage
from headrace.datastores.storage import (
    LocalStorage,
    affordable_descriptors,
    as_locations,
    local_path,
    sha256_of,
)
from headrace.errors import ConfigError, MissingDataError, ShardError


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)) * 40)
    return str(path)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_reads_are_exact(file: str) -> None:
    storage = LocalStorage()
    assert storage.size(file) == 10240
    assert storage.read(file, 250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
    assert storage.read(file, 10240, 0) == b""
    assert storage.open(file).read(0, 10240) == Path(file).read_bytes()
    with pytest.raises(ShardError, match=r"data\.bin ends too early: asked for bytes 10000 to 10300, found 240 of 300"):
        storage.read(file, 10000, 300)


def test_an_open_file_stays_what_it_was_when_another_takes_its_place(file: str) -> None:
    storage = LocalStorage(max_open=1)
    opened = storage.open(file)
    storage.write_atomic(file, b"another")
    assert (opened.size, opened.read(0, 3)) == (10240, b"\0\1\2")
    assert storage.open(file).read(0, 7) == b"another"


def test_few_files_stay_open_and_all_are_closed(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(50)]
    for path in paths:
        path.write_bytes(path.name.encode())
    before = open_descriptors()
    storage = LocalStorage(max_open=4)
    for _ in range(3):
        for path in paths:
            assert storage.read(str(path), 0, len(path.name)) == path.name.encode()
    assert open_descriptors() == before + 4
    del storage
    assert open_descriptors() == before


def test_threads_share_few_descriptors_without_mixing_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:02d}" for number in range(20)]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    storage, wrong = LocalStorage(max_open=2), []

    def read_all(start: int) -> None:
        for step in range(300):
            path = paths[(start + 7 * step) % 20]
            if storage.read(str(path), 0, 200) != path.name.encode() * 100:
                wrong.append(path)

    threads = [threading.Thread(target=read_all, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_pickles_small_and_without_descriptors(file: str) -> None:
    storage = LocalStorage(max_open=3)
    storage.size(file)
    data = pickle.dumps(storage)
    assert len(data) < 200
    assert pickle.loads(data).max_open == 3
    assert pickle.loads(data).size(file) == 10240


def _read_in_child(storage: LocalStorage, path: str, queue: "multiprocessing.queues.Queue[bytes]") -> None:
    queue.put(storage.read(path, 5, 3))


def test_a_fork_shares_it_safely(file: str) -> None:
    storage = LocalStorage()
    assert storage.read(file, 0, 3) == b"\0\1\2"
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_read_in_child, args=(storage, file, queue))
    child.start()
    assert queue.get(timeout=10) == b"\5\6\7"
    child.join(10)
    assert storage.read(file, 3, 3) == b"\3\4\5"


def test_missing_files_and_folders_are_named(tmp_path: Path, file: str) -> None:
    storage = LocalStorage()
    for path in (str(tmp_path / "absent"), f"{file}/below"):
        with pytest.raises(MissingDataError, match=path):
            storage.size(path)
        with pytest.raises(MissingDataError, match=path):
            storage.names(path)
    with pytest.raises(MissingDataError, match="found a folder or a device"):
        storage.size(str(tmp_path))
    assert storage.names(str(tmp_path)) == ["data.bin"]


@pytest.mark.timeout(10)
def test_a_named_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MissingDataError, match="found a folder or a device"):
        LocalStorage().size(str(tmp_path / "pipe"))


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    storage, path = LocalStorage(), str(tmp_path / "x.json")
    storage.write_atomic(path, b"old")
    assert storage.read(path, 0, 3) == b"old"
    identity = storage.identity(path)
    storage.write_atomic(path, b"new!")
    assert (storage.size(path), storage.read(path, 0, 4)) == (4, b"new!")
    assert storage.identity(path) != identity
    assert os.listdir(tmp_path) == ["x.json"]
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"old")
    child = os.fork()
    if child == 0:  # a limit on file sizes cannot be raised again
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            LocalStorage().write_atomic(str(path), bytes(5000))
        except ShardError as error:
            os._exit(0 if "x.json" in str(error) and "File too large" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.json"]


def test_descriptors_follow_the_limit_of_the_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        assert affordable_descriptors(64) == 16
        assert LocalStorage().max_open == 16
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
        assert affordable_descriptors(64) == 64
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_locations() -> None:
    assert as_locations("a") == as_locations(Path("a")) == ["a"]
    assert as_locations(["a", Path("b")]) == ["a", "b"]
    for nothing in ([], "", [""]):
        with pytest.raises(ConfigError, match="location must be"):
            as_locations(nothing)


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    _, paths = open_storage(["x/y.tar", "/a/b", "file:///c/d", "~/e"])
    assert paths == [f"{tmp_path}/x/y.tar", "/a/b", "/c/d", "/home/me/e"]


@pytest.mark.parametrize(
    "url", ["s3://b/x.tar", "gs://b", "https://h/x.tar", "pipe:curl x", "file://host/x", "http://me:word@h/x?y=word"]
)
def test_what_is_not_local_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not local") as found:
        local_path(url)
    assert "word" not in str(found.value)


def test_sha256(file: str) -> None:
    import hashlib

    assert sha256_of(LocalStorage().open(file)) == hashlib.sha256(Path(file).read_bytes()).hexdigest()


WRITES = """
import os, signal, sys
from headrace.datastores.storage import LocalStorage
fsync = os.fsync
def dying(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = dying
LocalStorage().write_atomic(sys.argv[1], bytes(5000))
"""


def test_what_a_killed_writer_left_is_gone_after_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"old")
    for _ in range(3):
        subprocess.run([sys.executable, "-c", WRITES, path], check=False)
        assert len(os.listdir(tmp_path)) == 2, "its temporary file, and never a second one"
    assert path.read_bytes() == b"old"
    LocalStorage().write_atomic(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x.json"]


def test_two_writers_of_one_file_write_one_after_the_other(tmp_path: Path) -> None:
    path, pieces = str(tmp_path / "x.json"), [bytes([number]) * 200_000 for number in range(4)]

    def write(data: bytes) -> None:
        for _ in range(20):
            LocalStorage().write_atomic(path, data)
            assert Path(path).read_bytes() in pieces

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, pieces))
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize(("folder", "says"), [("/sys", "writing /sys/x.json: "), ("/proc/self", "writing /proc/self/")])
def test_where_nobody_may_write_the_error_says_so(folder: str, says: str) -> None:
    with pytest.raises((ShardError, MissingDataError), match=says) as found:
        LocalStorage().write_atomic(f"{folder}/x.json", b"x")
    assert str(found.value).count(":") == 2, "the reason, and what to do"


def test_one_rule_for_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert local_path("~") == "/home/me"
    assert local_path(Path("~/x")) == "/home/me/x"
    assert local_path("./~") == f"{tmp_path}/~"
    assert local_path("~no-such-user/x") == f"{tmp_path}/~no-such-user/x"
    assert local_path("a/~/b") == f"{tmp_path}/a/~/b"
    with pytest.raises(ConfigError, match="zero byte"):
        local_path("a\0b")


def test_a_current_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    (tmp_path / "x").rmdir()
    with pytest.raises(MissingDataError, match=r"the current folder, which a\.tar is relative to"):
        local_path("a.tar")
    assert local_path("/a.tar") == "/a.tar"
