"""Copies of remote shards: whole or absent, within their bound, and never anybody else's files."""

import hashlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from archives import jpeg, tar_bytes, write_shards
from servers import fault_proxy, web_server

from headrace.datastores import AugmentedImageDatastore, Loader, Retry, ShardDatastore
from headrace.datastores.cache import Cache, CacheItem, Fetched, MismatchError
from headrace.errors import ConfigError, ShardError
from headrace.tools.cli import main

QUICK = Retry(attempts=12, timeout=5.0, pause=0.01, longest_pause=0.05)
MEBIBYTE = 1 << 20


def item_of(data: bytes, url: str = "s3://b/x.tar", version: str = "1") -> CacheItem:
    return CacheItem(url, version, len(data), hashlib.sha256(data).hexdigest())


def source(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.make(tmp_path / "cache", 10 * MEBIBYTE)


def names(cache: Cache) -> list[str]:
    return sorted(name for name in os.listdir(cache.folder) if name != "lock")


def test_what_was_fetched_is_read_and_nothing_else_is(cache: Cache) -> None:
    data = os.urandom(3 * MEBIBYTE)
    item = item_of(data)
    assert cache.read(item, 0, 1) is None
    assert cache.fetch(item, source(data)) is Fetched.STORED
    assert cache.read(item, 5, MEBIBYTE) == data[5 : 5 + MEBIBYTE]
    assert cache.read(item_of(data, version="2"), 0, 1) is None
    assert cache.read(item_of(data, url="s3://b/y.tar"), 0, 1) is None
    assert pickle.loads(pickle.dumps(cache)).read(item, 0, 4) == data[:4]
    assert names(cache) == [item.name]
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_bytes_that_do_not_fit_their_checksum_are_not_kept(cache: Cache) -> None:
    item = item_of(b"right")
    with pytest.raises(MismatchError):
        cache.fetch(item, source(b"wrong"))
    assert names(cache) == []
    assert cache.fetch(item, source(b"right")) is Fetched.STORED


def test_a_file_that_lost_its_end_is_fetched_again(cache: Cache) -> None:
    item = item_of(b"a" * 1000)
    cache.fetch(item, source(b"a" * 1000))
    os.truncate(cache.path(item), 500)
    assert cache.read(item, 0, 10) is None
    assert cache.fetch(item, source(b"a" * 1000)) is Fetched.STORED
    assert cache.read(item, 990, 10) == b"a" * 10


def test_it_stays_within_its_bound_and_forgets_what_was_not_used(tmp_path: Path) -> None:
    cache = Cache.make(tmp_path, 3 * MEBIBYTE, idle_seconds=0)
    items = [item_of(bytes([number]) * 900_000, url=f"s3://b/{number}.tar") for number in range(6)]
    for number, item in enumerate(items):
        if number >= 3:
            assert cache.has(items[0]), "what is used stays"
        assert cache.fetch(item, source(bytes([number]) * 900_000)) is Fetched.STORED
        os.utime(cache.path(item), (number, number) if number else None)
        assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= 3 * MEBIBYTE
    assert [cache.has(item) for item in items] == [True, False, False, False, True, True]
    large = item_of(bytes(4 * MEBIBYTE), url="s3://b/large.tar")
    assert cache.fetch(large, source(bytes(4 * MEBIBYTE))) is Fetched.NO_ROOM
    assert cache.has(items[0]), "nothing was removed in vain"


def test_what_is_in_use_stays_and_is_not_fetched_again_and_again(tmp_path: Path) -> None:
    cache = Cache.make(tmp_path, 2 * MEBIBYTE, idle_seconds=3600)
    items = [item_of(bytes([number]) * 900_000, url=f"s3://b/{number}.tar") for number in range(3)]
    done = [cache.fetch(item, source(bytes([number]) * 900_000)) for number, item in enumerate(items)]
    assert done == [Fetched.STORED, Fetched.STORED, Fetched.NO_ROOM]
    os.utime(cache.path(items[0]), (1, 1))
    assert cache.fetch(items[2], source(b"\2" * 900_000)) is Fetched.STORED
    assert [cache.has(item) for item in items] == [False, True, True]


def test_only_its_own_files_are_removed(cache: Cache) -> None:
    kept = ["mine", "0" * 63, "0" * 65, "A" * 64, f"{'0' * 64}.x.part", f"{'0' * 64}.tar"]
    for name in kept:
        (cache.folder / name).write_bytes(bytes(MEBIBYTE))
        os.utime(cache.folder / name, (1, 1))
    small = Cache(str(cache.folder), MEBIBYTE, idle_seconds=0)
    for number in range(3):
        data = bytes([number]) * 700_000
        assert small.fetch(item_of(data, url=f"s3://b/{number}"), source(data)) is Fetched.STORED
    assert small.clear()[0] == 1
    assert names(cache) == sorted(kept)


def test_two_fetch_one_object_once(cache: Cache) -> None:
    data, asked, go = os.urandom(MEBIBYTE), [], threading.Event()

    def slow(offset: int, length: int) -> bytes:
        asked.append(offset)
        go.wait(10)
        return data[offset : offset + length]

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cache.fetch, item_of(data), slow)
        while not asked:
            time.sleep(0.001)
        assert cache.fetch(item_of(data), slow) is Fetched.BUSY
        assert cache.clear() == (0, 0), "what is on its way stays"
        go.set()
        assert first.result() is Fetched.STORED
    assert cache.fetch(item_of(data), slow) is Fetched.STORED
    assert asked == [0]
    assert cache.read(item_of(data), 0, MEBIBYTE) == data


def test_many_fetch_at_a_time_and_nobody_is_turned_away(cache: Cache) -> None:
    items = [item_of(b"%d" % number, url=f"s3://b/{number}") for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(cache.fetch, items, [source(b"%d" % number) for number in range(200)]))
    assert set(done) == {Fetched.STORED}


def test_what_is_on_its_way_counts(cache: Cache) -> None:
    seen = []

    def read(offset: int, length: int) -> bytes:
        other = item_of(bytes(3 * MEBIBYTE), url="s3://b/other.tar")
        seen.append(cache.fetch(other, source(bytes(3 * MEBIBYTE))))
        return bytes(length)

    assert cache.fetch(item_of(bytes(8 * MEBIBYTE)), read) is Fetched.STORED
    assert seen == [Fetched.NO_ROOM]


KILLED = """
import os, signal, sys
from headrace.datastores.cache import Cache, CacheItem
cache, data = Cache.make(sys.argv[1], 1 << 30), open(sys.argv[2], "rb").read()
def read(offset, length):
    if offset >= 1 << 24:
        os.kill(os.getpid(), signal.SIGKILL)
    return data[offset:offset + length]
cache.fetch(CacheItem("s3://b/x.tar", "1", len(data), sys.argv[3] or None), read)
"""


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_killed_fetch_leaves_no_bad_file_and_goes_on(tmp_path: Path, has_checksum: bool) -> None:
    data, asked = os.urandom(20 * MEBIBYTE), []
    (tmp_path / "data").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest() if has_checksum else ""
    script = [sys.executable, "-c", KILLED, tmp_path / "cache", tmp_path / "data", digest]
    assert subprocess.run(script, check=False).returncode == -signal.SIGKILL
    cache, item = Cache.make(tmp_path / "cache", 1 << 30), CacheItem("s3://b/x.tar", "1", len(data), digest or None)
    assert cache.read(item, 0, 1) is None
    assert names(cache) == [f"{item.name}.{item.stored_bytes}.part"]

    def read(offset: int, length: int) -> bytes:
        asked.append(offset)
        return data[offset : offset + length]

    assert cache.fetch(item, read) is Fetched.STORED
    assert cache.read(item, 0, len(data)) == data
    assert asked[0] == (1 << 24 if has_checksum else 0), "only what a checksum vouches for is used again"
    assert names(cache) == [item.name]


def test_what_a_killed_fetch_left_makes_room(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(20 * MEBIBYTE))
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "cache", tmp_path / "data", ""], check=False)
    cache = Cache.make(tmp_path / "cache", 20 * MEBIBYTE)
    assert len(names(cache)) == 1
    other = item_of(bytes(10 * MEBIBYTE), url="s3://b/other.tar")
    assert cache.fetch(other, source(bytes(10 * MEBIBYTE))) is Fetched.STORED
    assert names(cache) == [other.name]


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = Cache.make(tmp_path).folder
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="mode 0700"):
        Cache.make(tmp_path)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="mode 0700"):
        Cache.make(tmp_path)
    for limit in (-1, 0):
        with pytest.raises(ConfigError, match="cache_bytes must be above 0"):
            Cache.make(tmp_path, limit)
    with pytest.raises(ConfigError, match="no home folder"):
        Cache.make("~no-such-user/x")
    (tmp_path / "file").touch()
    with pytest.raises((ShardError, FileNotFoundError), match="cache_bytes=0"):
        Cache.make(tmp_path / "file" / "below")


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def cached(url: str, place: Path, limit: int | None = None) -> ShardDatastore:
    return ShardDatastore(url, retry=QUICK, cache_dir=place / "cache", cache_bytes=limit)


def read_all(images: ShardDatastore) -> list[bytes]:
    return [images.raw(number)["jpg"] for number in range(len(images))]


def test_the_second_epoch_needs_no_network(tmp_path: Path) -> None:
    write_shards(tmp_path / "with", samples=10, per_shard=4)
    cache = Cache.make(tmp_path / "cache")
    with web_server(tmp_path) as site:
        images = cached(f"{site.url}/with", tmp_path)
        assert read_all(images) == [jpeg(number) for number in range(10)]
        until(lambda: len(names(cache)) == 6)
        site.requests.clear()
        assert read_all(images) == [jpeg(number) for number in range(10)]
        assert site.requests == []
        again = cached(f"{site.url}/with", tmp_path)
        assert read_all(again) == [jpeg(number) for number in range(10)]
        assert set(site.requests) <= {f"/with/{name} bytes=0-0" for name in os.listdir(tmp_path / "with")} | {
            f"/with/index.json bytes=0-{(tmp_path / 'with' / 'index.json').stat().st_size - 1}",
            "/with/",
        }
    assert {entry.url.rpartition("/")[2] for entry in cache.entries()} == {
        path.name for path in (tmp_path / "with").iterdir() if path.name != "index.json"
    }


def test_tables_that_made_room_are_read_once_more(tmp_path: Path) -> None:
    write_shards(tmp_path / "with", samples=20, per_shard=10)
    with web_server(tmp_path) as site:
        images = cached(f"{site.url}/with", tmp_path)
        assert images.key(0) == "c0/000"
        Cache.make(tmp_path / "cache").clear()
        site.requests.clear()
        assert [images.key(number) for number in range(10)] == [f"c{number % 3}/{number:03d}" for number in range(10)]
        assert len(site.requests) == 1


def test_workers_share_the_cache_and_its_state_changes_no_bit(tmp_path: Path) -> None:
    write_shards(tmp_path / "with", samples=24, per_shard=4)

    def digest(images: ShardDatastore, workers: int) -> str:
        data = AugmentedImageDatastore((16, 16), images, mode="random_resized_crop")
        with Loader(data, batch_size=4, seed=3, workers=workers) as loader:
            return hashlib.sha256(b"".join(b.images.numpy().tobytes() for _ in range(3) for b in loader)).hexdigest()

    wanted = digest(ShardDatastore(str(tmp_path / "with")), 0)
    shard = max(path.stat().st_size for path in (tmp_path / "with").glob("*.tar"))
    with web_server(tmp_path) as site, fault_proxy(site.port, lambda n, line: "cut" if n % 9 == 0 else "") as proxy:
        for place, limit in (("large", None), ("small", 2 * shard + 8192), ("large", None), ("tiny", 1000)):
            images = cached(f"{proxy.url}/with", tmp_path / place, limit)
            assert digest(images, workers=2) == wanted, (place, limit)
            assert sum(entry.size for entry in Cache.make(tmp_path / place / "cache").entries()) <= (limit or 1 << 30)


def test_a_shard_that_is_not_what_its_index_states_is_fetched_twice_and_then_an_error(tmp_path: Path) -> None:
    write_shards(tmp_path / "with", samples=4, per_shard=4)
    (shard,) = (tmp_path / "with").glob("*.tar")
    right = shard.read_bytes()
    shard.write_bytes(right[:-1] + b"\1")
    with web_server(tmp_path) as site:
        images = cached(f"{site.url}/with", tmp_path)

        def fails() -> bool:
            try:
                images.raw(0)
            except ShardError as error:
                return "found" in str(error) and "twice" in str(error) and shard.name in str(error)
            return False

        until(fails)
        assert site.requests.count(f"/with/{shard.name} bytes=0-{len(right) - 1}") == 2
        assert not [entry for entry in Cache.make(tmp_path / "cache").entries() if entry.url.endswith(".tar")]
        shard.write_bytes(right)
        assert read_all(cached(f"{site.url}/with", tmp_path)) == [jpeg(number) for number in range(4)]


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path / "with", samples=10, per_shard=4)
    with web_server(tmp_path) as site:
        child = os.fork()
        if child == 0:  # a limit on file sizes cannot be raised again
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
            images = cached(f"{site.url}/with", tmp_path)
            right = [read_all(images) == [jpeg(number) for number in range(10)] for _ in range(3)]
            os._exit(0 if all(right) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    said = capfd.readouterr().err
    assert said.count("nothing more is put into the cache") == 1
    assert "File too large" in said
    assert not [name for name in names(Cache.make(tmp_path / "cache")) if name.endswith(".part")]


def test_no_cache_is_made_for_local_shards_or_when_nobody_wants_one(tmp_path: Path) -> None:
    write_shards(tmp_path / "with", samples=4, per_shard=4)
    ShardDatastore(str(tmp_path / "with"), cache_dir=tmp_path / "cache").raw(0)
    with web_server(tmp_path) as site:
        cached(f"{site.url}/with", tmp_path, 0).raw(0)
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Forty tars without an index."""
    for number in range(40):
        members = [(f"{number}-{row}.jpg", jpeg(number)) for row in range(2)] + [("__MACOSX/x", b"")]
        (tmp_path / "tars").mkdir(exist_ok=True)
        (tmp_path / "tars" / f"{number}.tar").write_bytes(tar_bytes(members))
    return tmp_path


def test_headers_are_walked_once_for_each_version_of_a_tar(foreign: Path) -> None:
    with web_server(foreign) as site:
        first = cached(f"{site.url}/tars", foreign)
        assert [first.key(number) for number in range(80)] == [f"{number // 2}-{number % 2}" for number in range(80)]
        assert first.skipped == {"metadata": 40}
        site.requests.clear()
        second = cached(f"{site.url}/tars", foreign)
        assert not [request for request in site.requests if ".tar" in request and not request.endswith("bytes=0-0")]
        assert (second.fingerprint, second.skipped) == (first.fingerprint, first.skipped)
        (foreign / "tars" / "7.tar").write_bytes(tar_bytes({"new.jpg": jpeg(1), "newer.jpg": jpeg(2)}))
        third = cached(f"{site.url}/tars", foreign)
        assert [third.key(number) for number in (13, 14, 15, 16)] == ["6-1", "new", "newer", "8-0"]


def test_what_is_remembered_of_headers_may_be_damaged(foreign: Path) -> None:
    cache = Cache.make(foreign / "cache")
    with web_server(foreign) as site:
        wanted = cached(f"{site.url}/tars", foreign).fingerprint
        for number, entry in enumerate(cache.entries()):
            data = bytearray(entry.path.read_bytes())
            data[number * (len(data) - 200) // 40] ^= 255  # somewhere in the first line, or in the table behind it
            entry.path.write_bytes(data[: len(data) - number % 3])
        assert cached(f"{site.url}/tars", foreign).fingerprint == wanted


def test_a_tar_that_cannot_be_scanned_is_named_whatever_is_scanned_beside_it(foreign: Path) -> None:
    (foreign / "tars" / "5.tar").write_bytes(b"no tar")
    (foreign / "tars" / "6.tar").write_bytes(b"no tar either")
    with web_server(foreign) as site, pytest.raises(ShardError, match=r"/5\.tar is no tar"):
        cached(f"{site.url}/tars", foreign)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 12345])
def test_an_object_of_unknown_size_is_recalled(cache: Cache, size: int) -> None:
    data = b"\n" * size
    assert cache.recall("s3://b/x", "1") is None
    cache.fetch(CacheItem("s3://b/x", "1", size), source(data))
    assert cache.recall("s3://b/x", "1") == data
    cache.forget("s3://b/x", "1")
    assert cache.recall("s3://b/x", "1") is None


def test_the_command_shows_and_clears(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache.make(tmp_path)
    cache.fetch(item_of(bytes(2000)), source(bytes(2000)))
    cache.fetch(item_of(b"x", url="https://h/ü.tar"), source(b"x"))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert main(["cache", "ls"]) == 0
    out = capsys.readouterr().out
    assert "s3://b/x.tar" in out
    assert "https://h/ü.tar" in out
    assert f"2 files (2.1 kB): {cache.folder}" in out
    assert main(["cache", "ls", "--json", "--dir", str(tmp_path)]) == 0
    assert '"url": "s3://b/x.tar"' in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "2 files" in capsys.readouterr().out
    assert names(cache) == []
