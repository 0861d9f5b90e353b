"""Images per second of shards behind a slow and faulty network, over those of the same shards on a disk.

    python benchmarks/remote.py [--megabytes 2000] [--latency 0.05] [--faults 0.02] [--workers 2] [--cache 0.25]

Photo-like JPEGs of about 110 kB (500x375) are packed into shards of some 22 MB. A web server on loopback serves them,
behind a proxy that adds ``--latency`` seconds to every request and spoils a part of them (``--faults``). Both run in a
process of their own, on the same cores. The loader makes random-resized-crop 224 and flip in batches of 64, shuffled in
windows of half of the cache: two epochs from an empty cache of ``--cache`` of the data; before and behind them one from
the disk. Printed are images/s, the time to the first batch, bytes that crossed the network over bytes of the shards,
the largest size of the cache, the memory (PSS) of the whole process family, and whether all batches were the same.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from loader import photos

from headrace.augment import ImageAugmenter
from headrace.datastores import AugmentedImageDatastore, Loader, ShardDatastore
from headrace.datastores.write import ShardWriter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--faults", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache", type=float, default=0.25)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        measure(options, Path(scratch))


def serve(options: argparse.Namespace) -> None:
    """Serve a folder until standard input ends; print the port, and at the end what was served."""
    from servers import fault_proxy, web_server

    draw = random.Random(0)

    def choose(number: int, line: str) -> str:
        return draw.choice(["503", "cut", "reset", "refuse"]) if draw.random() < options.faults else ""

    with web_server(options.serve) as site, fault_proxy(site.port, choose, options.latency) as proxy:
        print(proxy.port, flush=True)
        for _ in sys.stdin:
            served = {"bytes": proxy.body_bytes, "requests": len(proxy.lines), "faults": len(proxy.spoiled)}
            print(json.dumps(served), flush=True)


def measure(options: argparse.Namespace, scratch: Path) -> None:
    shards = scratch / "shards"
    total = write(shards, options.megabytes * 10**6)
    command = [sys.executable, __file__, "--serve", str(shards), "--latency", str(options.latency)]
    server = subprocess.Popen(
        [*command, "--faults", str(options.faults)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    limit = int(options.cache * total)
    before = run("disk", ShardDatastore(shards), options, 1)
    with Watch(scratch / "cache") as watch:
        remote = ShardDatastore(url, cache_dir=scratch / "cache", cache_bytes=limit)
        size = f"{total / 1e6:.0f} MB in {len(remote.index.entries)} shards"
        print(f"{len(remote)} images, {size}; cache {limit / 1e6:.0f} MB")
        far = run("network", remote, options, 2, lambda: served(server))
    after = run("disk", ShardDatastore(shards), options, 1)
    local = (before.rates[0] + after.rates[0]) / 2
    for number, (rate, sent) in enumerate(zip(far.rates, far.sent, strict=True), 1):
        share = f"{sent['bytes'] / total:.2f} of the bytes, {sent['requests']} requests, {sent['faults']} faults"
        print(f"epoch {number}: {rate:.0f} images/s, {rate / local:.2f} of the disk's {local:.0f}; fetched {share}")
    print(f"first batch: {far.first:.2f} s; from the disk {before.first:.2f} s")
    memory = f"{far.memory / 1e6:.0f} MB, from the disk {before.memory / 1e6:.0f}"
    print(f"cache at most {watch.bytes / 1e6:.0f} MB; memory {memory}")
    print("the first epoch's batches are", "the same" if before.digests[0] == far.digests[0] else "DIFFERENT")
    server.communicate()


def write(folder: Path, wanted: int) -> int:
    """Write shards of about so many bytes; return their size."""
    blobs, size, number = photos(64), 0, 0
    with ShardWriter(folder, shard_samples=300, classes=["photo"]) as writer:
        while size < wanted:
            data = blobs[number % len(blobs)]
            writer.write(f"photo/{number:07d}", {"jpg": data, "cls": b"0"})
            size, number = size + len(data), number + 1
    return sum(path.stat().st_size for path in folder.glob("*.tar"))


class Run:
    """What was measured of some epochs."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.sent: list[dict[str, int]] = []
        self.digests: list[str] = []
        self.first = 0.0
        self.memory = 0


def run(name, images, options, epochs, served=lambda: {"bytes": 0, "requests": 0, "faults": 0}) -> Run:
    data = AugmentedImageDatastore(
        (224, 224), images, mode="random_resized_crop", augment=ImageAugmenter(x_reflection=True)
    )
    found, sent = Run(), served()
    window = max(1, int(len(images.index.entries) * options.cache / 2))
    settings = {"shuffle": "window", "window": window, "workers": options.workers}
    with Loader(data, batch_size=64, seed=0, **settings) as loader:
        for epoch in range(epochs):
            sha256, count, started = hashlib.sha256(), 0, time.perf_counter()
            for number, batch in enumerate(loader):
                sha256.update(batch.images.numpy().tobytes())
                count += len(batch.ids)
                if epoch == number == 0:
                    found.first = time.perf_counter() - started
                    started, count = time.perf_counter(), 0  # workers start once, so they are left out
            found.rates.append(count / (time.perf_counter() - started))
            found.digests.append(sha256.hexdigest())
            now = served()
            found.sent.append({key: now[key] - sent[key] for key in now})
            sent = now
            found.memory = max(found.memory, family_memory())
    return found


def served(server: "subprocess.Popen[str]") -> dict[str, int]:
    server.stdin.write("\n")
    server.stdin.flush()
    answer: dict[str, int] = json.loads(server.stdout.readline())
    return answer


def family_memory() -> int:
    """PSS of this process and its children but the server."""
    me = psutil.Process(os.getpid())
    family = [one for one in [me, *me.children(recursive=True)] if "--serve" not in one.cmdline()]
    return sum(one.memory_full_info().pss for one in family)


class Watch:
    """The largest size of a folder while this is open."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bytes, self.ended = folder, 0, threading.Event()
        self.thread = threading.Thread(target=self.look)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()

    def look(self) -> None:
        """Look again and again."""
        while not self.ended.wait(0.05):
            size = 0
            for path in self.folder.glob("*/*"):
                try:
                    size += path.stat().st_size
                except FileNotFoundError:
                    continue
            self.bytes = max(self.bytes, size)


if __name__ == "__main__":
    main()
