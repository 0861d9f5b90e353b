"""How fast a folder of JPEGs becomes shards, beside ``webdataset.ShardWriter``; with ``--resize`` beside bare kernels.

``python benchmarks/build.py FOLDER`` takes about a minute for 300 MB. The ways are taken in turns, each in a process of
its own that has imported what it needs before the clock starts; the files were read once before, so a disk that is
slower than memory counts for writing only. headrace flushes what it writes to the disk, checks every image's header and
notes checksums; ``webdataset`` does none of these.
"""

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    size = sum(path.stat().st_size for path in _paths(folder))
    count = len(_paths(folder))
    for path in _paths(folder):
        path.read_bytes()
    ways: dict[str, Callable[[Path, Path], float]] = {
        "headrace build": pass_through,
        "webdataset.ShardWriter": shard_writer,
        "headrace build --resize 256, 2 workers": resize,
        "bare kernels in 2 processes": kernels,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            seconds[name].append(_timed(way, folder))
    print(f"{count:,} JPEGs, {size / 1e6:.0f} MB, medians of {ROUNDS} rounds")
    for name, found in seconds.items():
        median = statistics.median(found)
        print(f"{name:<40}{count / median:>10,.0f} images/s{size / median / 1e6:>10.0f} MB/s of input")


def _timed(way: Callable[[Path, Path], float], folder: Path) -> float:
    out = Path(tempfile.mkdtemp(prefix="headrace-benchmark-"))
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(way, folder, out).result()
    finally:
        shutil.rmtree(out)


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))


def pass_through(folder: Path, out: Path) -> float:
    return _headrace(folder, out)


def resize(folder: Path, out: Path) -> float:
    return _headrace(folder, out, "--resize", "256", "--workers", "2")


def _headrace(folder: Path, out: Path, *words: str) -> float:
    from headrace.datastores import image, shards, write  # noqa: F401 - before the clock starts
    from headrace.tools.cli import main as headrace

    started = time.perf_counter()
    assert headrace(["build", str(folder), str(out / "set"), "--labels", "none", "--quiet", "--json", *words]) == 0
    return time.perf_counter() - started


def shard_writer(folder: Path, out: Path) -> float:
    import webdataset

    paths, started = _paths(folder), time.perf_counter()
    with webdataset.ShardWriter(f"{out}/shard-%06d.tar", maxsize=256 * 2**20, verbose=0) as writer:
        for path in paths:
            writer.write({"__key__": path.relative_to(folder).with_suffix("").as_posix(), "jpg": path.read_bytes()})
    return time.perf_counter() - started


def kernels(folder: Path, out: Path) -> float:
    """Read, decode, resample and encode, and drop the result; the processes are started before the clock."""
    del out
    paths = _paths(folder)
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as pool:
        list(pool.map(_kernel, [paths[:1]] * 4))
        started = time.perf_counter()
        list(pool.map(_kernel, [paths[start : start + 16] for start in range(0, len(paths), 16)]))
        return time.perf_counter() - started


def _kernel(paths: list[Path]) -> int:
    import io

    import simplejpeg
    from PIL import Image

    total = 0
    for path in paths:
        image = Image.fromarray(simplejpeg.decode_jpeg(path.read_bytes(), "RGB", False, False))
        scale = min(1.0, 256 / min(image.size))
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        total += len(file.getvalue())
    return total


if __name__ == "__main__":
    main()
