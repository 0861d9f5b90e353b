"""The dispatcher under pressure: killed, starved, crowded, and for a long time."""

import errno
import gc
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from toys import Cramped, Failing, Noise, Slow, Torn, digest

from headrace.augment import Draw
from headrace.datastores import Loader
from headrace.datastores.incidents import OnError
from headrace.datastores.meter import Meter
from headrace.datastores.pool import ProcessPool
from headrace.datastores.schema import Sample
from headrace.datastores.slots import SlotLayout
from headrace.errors import ConfigError, UnreachableError, WorkerError

SUPPORT = str(Path(__file__).parents[1] / "support")


class Killer(threading.Thread):
    """Kills a random worker every few milliseconds, until it has killed enough."""

    def __init__(self, folder: Path, kills: int, pause: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.kills, self.pause = folder, kills, pause
        self.killed = 0
        self.random = random.Random(1)

    def run(self) -> None:
        while self.killed < self.kills:
            time.sleep(self.random.uniform(0, 2 * self.pause))
            alive = [pid for path in self.folder.iterdir() if (pid := int(path.name)) != os.getpid()]
            victim = self.random.choice(alive or [0])
            try:
                if victim and psutil.Process(victim).ppid() == os.getpid():
                    os.kill(victim, signal.SIGKILL)
                    self.killed += 1
            except (psutil.Error, ProcessLookupError):
                pass
            (self.folder / str(victim)).unlink(missing_ok=True)


def test_a_hundred_random_kills_change_no_bit(tmp_path: Path) -> None:
    data = Slow(tmp_path, seconds=0.002, samples=2400)
    expected = digest(Loader(Noise(2400), 48, seed=3))
    killer = Killer(tmp_path, kills=100, pause=0.05)
    with Loader(data, 48, seed=3, workers=3, start_method="fork") as loader:
        batches = iter(loader)
        first = digest([next(batches)])
        killer.start()
        rest = digest(batches)
        more = 0
        while killer.is_alive():  # a fast machine gets through the epoch before the last kill
            more += 1
            loader.set_epoch(0)
            assert digest(loader) == expected
    assert first + rest == expected
    assert killer.killed == 100
    assert _workers() == []
    assert more < 60


def _workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE and _maps(p)]


def _maps(process: psutil.Process) -> bool:
    try:
        return any("headrace-slots" in region.path for region in process.memory_maps(grouped=False))
    except psutil.Error:
        return False


LIMITED = """
import resource, sys
sys.path.insert(0, {support!r})
{limit}
from toys import Noise, digest
from headrace.augment import Draw
from headrace.datastores import Loader
with Loader(Noise({samples}), 32, workers={workers}, start_method={method!r}) as loader:
    found = digest(loader)
assert found == digest(Loader(Noise({samples}), 32))
print("ok")
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize(
    ("workers", "limit"),
    [
        (2, "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"),
        (64, ""),
        (3, "import os; os.sched_setaffinity(0, {0})"),
    ],
    ids=["64 descriptors", "64 workers", "one core"],
)
def test_small_machines(workers: int, limit: str, method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LIMITED.format(support=SUPPORT, limit=limit, workers=workers, method=method, samples=640))
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert (result.stdout, result.stderr) == ("ok\n", "")


def test_too_few_descriptors_say_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    limit = "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    script.write_text(LIMITED.format(support=SUPPORT, limit=limit, workers=64, method="fork", samples=64))
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 1
    assert "workers need about" in result.stderr
    assert "ulimit -n" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small /dev/shm")
def test_a_small_dev_shm_does_not_matter(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        LIMITED.format(support=SUPPORT, limit="", workers=2, method="fork", samples=640).replace(
            "Noise(640)", "Noise(640, shape=(100, 100, 3))"
        )
    )
    mount = f"mount -t tmpfs -o size=8m tmpfs /dev/shm && exec {sys.executable} {script}"
    command = ["unshare", "-m", "sh", "-c", mount]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if "mount" in result.stderr or "unshare" in result.stderr:
        pytest.skip(f"no namespaces here: {result.stderr}")
    assert (result.stdout, result.stderr) == ("ok\n", "")


def test_many_cycles_leak_nothing() -> None:
    for _ in range(5):
        list(Loader(Noise(20), 10, workers=1, start_method="fork"))
    gc.collect()
    before = (len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), _maps_of_self())
    for _ in range(100):
        with Loader(Noise(20), 10, workers=1, start_method="fork") as loader:
            next(iter(loader))
    gc.collect()
    assert (len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), _maps_of_self()) == before


def _maps_of_self() -> int:
    return Path("/proc/self/maps").read_text().count("headrace-slots")


def test_the_fork_server_may_die() -> None:
    with Loader(Noise(), 16, workers=2, start_method="forkserver") as loader:
        expected = digest(loader)
    from multiprocessing import forkserver

    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with Loader(Noise(), 16, workers=2, start_method="forkserver") as loader:
        assert digest(loader) == expected


def test_loaders_in_threads(tmp_path: Path) -> None:
    expected, found = digest(Loader(Noise(), 16)), []

    def run() -> None:
        with Loader(Noise(), 16, workers=2, start_method="forkserver") as loader:
            found.append(digest(loader))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 3


class Nested(Noise):
    """Has a loader of its own inside of each sample."""

    def sample(self, index: int, draw: Draw) -> dict[str, object]:
        with Loader(Noise(), 10, workers=1) as loader:
            return {"image": next(iter(loader)).images[0].permute(1, 2, 0).numpy(), "label": index}


def test_a_loader_inside_of_a_worker_says_what_to_do() -> None:
    with (
        Loader(Nested(4), 4, workers=1, start_method="fork") as loader,
        pytest.raises(ConfigError, match=r"itself a background worker, .* use workers=0"),
    ):
        list(loader)


def _count_in_child(queue: "multiprocessing.Queue[int]") -> None:
    with Loader(Noise(), 10, workers=1) as loader:
        queue.put(sum(len(batch) for batch in loader))


def test_a_forked_child_may_have_loaders_of_its_own() -> None:
    list(Loader(Noise(), 10, workers=1, start_method="forkserver"))  # its server belongs to this process
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_count_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 100
    child.join(10)
    assert child.exitcode == 0


def _in_child(work: Callable[[], object]) -> object:
    """What ``work`` returns, or raises, in a fork of this process."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = os.fork()
    if not child:
        try:
            theirs.send(work())
        except Exception as error:
            theirs.send(error)
        os._exit(0)
    theirs.close()
    try:
        assert ours.poll(60), "it hangs"
        return ours.recv()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_forked_child_gets_workers_of_its_own_for_a_loader_that_is_open(method: Any) -> None:
    expected = digest(Loader(Noise(), 10, seed=3))
    with Loader(Noise(), 10, seed=3, workers=2, start_method=method) as loader:
        list(loader)
        loader.set_epoch(0)
        assert _in_child(lambda: digest(loader)) == expected
        assert digest(loader) == expected


def test_a_forked_child_cannot_go_on_with_an_iteration_of_its_parent() -> None:
    expected = digest(Loader(Noise(), 10, seed=3))
    with Loader(Noise(), 10, seed=3, workers=2, prefetch=2, start_method="fork") as loader:
        batches = iter(loader)
        first = digest([next(batches)])
        error = _in_child(lambda: digest(batches))
        assert isinstance(error, WorkerError)
        assert "this process was forked" in str(error)
        assert first + digest(batches) == expected


def test_a_forked_child_has_its_own_copy_of_what_was_made_in_this_process() -> None:
    batches = iter(Loader(Noise(), 10))
    batch = next(batches)
    before = digest([batch])
    _in_child(lambda: bool(batch.images.zero_().any()))
    assert digest([batch]) == before


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_the_trainer_even_if_a_fork_of_it_lives_on(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    (tmp_path / "pids").mkdir()
    script.write_text(
        f"import os, sys, time\nsys.path.insert(0, {SUPPORT!r})\nfrom pathlib import Path\nfrom toys import Slow\n"
        f"from headrace.datastores import Loader\nloader = Loader(Slow(Path({str(tmp_path / 'pids')!r}), 0.01), 16, "
        f"workers=2, start_method={method!r})\nfor batch in loader:\n    if not batch.step:\n"
        "        child = os.fork() or time.sleep(1000)\n        print(child, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        workers = {int(path.name) for path in (tmp_path / "pids").iterdir()} - {process.pid}
        process.kill()
        process.wait()
        try:
            assert workers
            assert psutil.Process(child).is_running()
            _, alive = psutil.wait_procs([psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)], timeout=5)
            assert alive == []
        finally:
            os.kill(child, signal.SIGKILL)


_ALARM_SCRIPT = """
import random, signal, sys
from toys import Noise, digest
from headrace.datastores import Loader

class Alarm(Exception):
    pass

def ring(*_):
    raise Alarm

def in_epoch(loader, epoch):
    loader.set_epoch(epoch)
    return digest(loader)

signal.signal(signal.SIGALRM, ring)
rng, interrupted, wrong = random.Random(2), 0, []
expected = {epoch: in_epoch(Loader(Noise(400), 8, seed=3), epoch) for epoch in range(60)}
with Loader(Noise(400), 8, seed=3, workers=2, start_method=sys.argv[1]) as loader:
    for _ in range(50):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.03))
            for batch in loader:
                if expected[batch.epoch][batch.step] != digest([batch])[0]:
                    wrong.append((batch.epoch, batch.step))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(interrupted > 20, wrong, in_epoch(loader, 0) == expected[0])
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_exception_anywhere_in_the_loader_costs_no_bit(tmp_path: Path, method: str) -> None:
    """Whatever a signal's handler raises in the middle of, the next iteration is right again."""
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {SUPPORT!r})\n" + _ALARM_SCRIPT)
    done = subprocess.run([sys.executable, script, method], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "True [] True\n", done.stderr


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_that_dies_in_the_middle_of_a_message(tmp_path: Path, method: Any) -> None:
    expected = digest(Loader(Noise(), 10, seed=3))
    data = Torn(40, 1, tmp_path / "tally")
    with Loader(data, 10, seed=3, workers=2, start_method=method) as loader:
        assert digest(loader) == expected
    assert (tmp_path / "tally").stat().st_size == 1


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        UnreachableError("no answer"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
        ExceptionGroup("both", [ValueError(), OSError(errno.ENFILE, "")]),
    ],
)
@pytest.mark.parametrize("action", ["substitute", "skip"])
def test_a_machine_that_is_short_of_something_is_no_samples_fault(action: Any, error: Exception) -> None:
    loader = Loader(Failing({3, 7}, error), 10, shuffle="never", on_error=action)
    with pytest.raises(type(error)) as raised:
        list(loader)
    assert any("sample 3" in note and "on_error is for samples" in note for note in raised.value.__notes__)
    assert loader.incidents == 0


class _Outage(Failing):
    """Sample 3 is bad; the first substitute that is tried meets a network that is gone."""

    def sample(self, index: int, draw: Draw) -> Sample:
        if self.tried == 2:  # together with the others, and alone
            self.tried += 1
            raise UnreachableError("no answer")
        self.tried += index == 3
        return super().sample(index, draw)


def test_no_substitute_is_passed_over_because_the_network_fails() -> None:
    data = _Outage({3}, ValueError())
    data.tried = 0
    with pytest.raises(UnreachableError) as raised:
        list(Loader(data, 10, shuffle="never", on_error="substitute"))
    assert any("substitute of sample 3" in note for note in raised.value.__notes__)


def test_a_worker_that_cannot_map_a_batch_says_so() -> None:
    with Loader(Cramped(100, (512, 512, 3)), 16, workers=1, prefetch=1, start_method="fork") as loader:
        with pytest.raises((OSError, MemoryError)) as raised:
            list(loader)  # keeps all batches, so that more memory is mapped
        assert "mapping the memory of a batch" in "".join(raised.value.__notes__)


def test_idle_workers_are_sent_home() -> None:
    source, meter = Noise(), Meter()
    pool = ProcessPool(source, SlotLayout(source.schema(), 10), workers=3, slots=2, method="fork",
                       on_error=OnError(), timeout=60, pin=False, meter=meter)  # fmt: skip
    try:
        pool.get(pool.put(np.arange(10), Draw()))
        pool.resize(1)
        _, alive = psutil.wait_procs(_workers(), timeout=2)
        assert pool.workers == 1 == len(alive)
        pool.get(pool.put(np.arange(10), Draw()))
    finally:
        pool.close()


_MAIN_SCRIPT = """
import sys, threading
from toys import Noise
from headrace.datastores.payload import Payload, without_main

class Mine(Noise):
    pass

def hide():
    while not done.is_set():
        with without_main():
            pass

if __name__ == "__main__":
    done = threading.Event()
    thread = threading.Thread(target=hide)
    thread.start()
    try:
        print({Payload.of(Mine()).needs_main for _ in range(2000)})
    finally:
        done.set()
"""


def test_nobody_looks_at_the_main_module_while_it_is_hidden(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {SUPPORT!r})\n" + _MAIN_SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("{True}\n", "")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_cycles() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        with Loader(Noise(20), 10, workers=1, start_method="fork") as loader:
            next(iter(loader))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before * 1.05
    assert len(list(Path("/proc/self/fd").iterdir())) < 40


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_thirty_epochs(tmp_path: Path) -> None:
    """Proportional memory (PSS) of the whole process family, on JPEG photos, after each of 30 epochs."""
    from pictures import encode, photo

    from headrace.augment import ImageAugmenter
    from headrace.datastores import AugmentedImageDatastore, ImageDatastore

    for number in range(300):
        path = tmp_path / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(photo(375, 500, number), "JPEG", quality=90))
    augment = ImageAugmenter(x_reflection=True, rotation=(-10, 10))
    data = AugmentedImageDatastore((224, 224), ImageDatastore(tmp_path), mode="random_resized_crop", augment=augment)
    used = []
    with Loader(data, 32, workers=2) as loader:
        for _ in range(30):
            for batch in loader:
                batch.images.sum()
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            used.append(sum(process.memory_full_info().pss for process in family))
    assert max(used[5:]) < 1.02 * used[4], [round(pss / 2**20) for pss in used]
