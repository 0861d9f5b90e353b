"""Images per second of headrace beside torchvision's and webdataset's loaders, interleaved in one run.

    python benchmarks/loader.py [FOLDER] [--workers 2] [--rounds 5] [--small]

FOLDER holds JPEG photos (class folders or flat); without one, photo-like JPEGs of about 110 KB are made from
scikit-learn's two sample photos. Every loader reads the same bytes and gives the same thing: uint8 batches of
random-resized-crop 224 and flip, channels last. Two yardsticks run beside them: "one kernel" is a plain loop in one
process that only decodes (simplejpeg, into the same memory again and again) and resamples (torch's uint8 antialiased
resize); "kernels" is as many of those at once as there are workers. The table shows medians over the rounds, ratios to
the kernels, CPU seconds per 1,000 images, the time from starting the first epoch to its first batch, and the
proportional memory (PSS) of the whole process family, each loader then alone in a fresh process.

``--small`` does the same with scikit-learn's digits as 28x28 JPEGs, random-resized-crop 28 and flip, batches of 256.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import torch

KINDS = {False: (224, 64, 1216), True: (28, 256, 12_800)}  # size, batch, images per round; by --small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    options.size, options.batch, options.images = KINDS[options.small]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        images, shards = prepare(options, Path(scratch))
        sizes = [path.stat().st_size for path in images.glob("*/*")]
        mean = f"{np.mean(sizes) / 1000:.{1 if options.small else 0}f} kB"
        print(f"{len(sizes)} JPEGs, mean {mean}, {options.workers} workers, batches of {options.batch}")
        loaders = {name: lambda make=make: make(images, shards, options) for name, make in LOADERS.items()}
        arms = {name: make() for name, make in loaders.items()}
        arms["one kernel"] = kernel_arm(images, 1, options.size)
        arms["kernels"] = kernel_arm(images, options.workers, options.size)
        results = measure(arms, options.rounds)
        for name in LOADERS:
            results[name]["memory"] = [memory(name, images, shards, options)]
        report(results, options.workers)


# --- data --------------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace, scratch: Path) -> tuple[Path, Path]:
    """Return a class folder of JPEGs, and shards of the same files."""
    images = scratch / "images"
    (images / "photo").mkdir(parents=True)
    folder = options.folder
    sources = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")) if folder else []
    blobs = [path.read_bytes() for path in sources] or (digits() if options.small else photos(152))
    for number in range(options.images):
        (images / "photo" / f"{number:06d}.jpg").write_bytes(blobs[number % len(blobs)])
    command = [sys.executable, "-m", "headrace.tools.cli", "build", str(images), str(scratch / "shards")]
    subprocess.run([*command, "--shard-samples", str(options.images // 16), "--quiet"], check=True)
    return images, scratch / "shards"


def digits() -> list[bytes]:
    """Make 28x28 JPEGs of scikit-learn's digits."""
    import io

    from PIL import Image
    from sklearn.datasets import load_digits

    result = []
    for pixels in load_digits().images:
        file = io.BytesIO()
        Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((28, 28)).convert("RGB").save(file, "JPEG", quality=90)
        result.append(file.getvalue())
    return result


def photos(count: int) -> list[bytes]:
    """Make photo-like JPEGs, 500x375 and about 110 kB."""
    import io

    from PIL import Image
    from sklearn.datasets import load_sample_images

    random, result = np.random.default_rng(0), []
    pictures = [Image.fromarray(image) for image in load_sample_images().images]
    for number in range(count):
        zoom, left, top = random.uniform(0.6, 0.8), random.uniform(0, 0.2), random.uniform(0, 0.2)
        width, height = pictures[number % 2].size
        box = (left * width, top * height, (left + zoom) * width, (top + zoom) * height)
        crop = np.asarray(pictures[number % 2].resize((500, 375), box=box)).astype(np.float32)
        grainy = crop + random.normal(0, 6, crop.shape)  # a camera's noise: without it the files are too small
        file = io.BytesIO()
        Image.fromarray(grainy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
        result.append(file.getvalue())
    return result


# --- arms: each returns a function that runs one epoch and yields the number of images of each batch ---------------


Epoch = Callable[[], Iterator[int]]


def headrace_arm(images: Path, shards: Path, options: argparse.Namespace) -> Epoch:
    from headrace.augment import ImageAugmenter
    from headrace.datastores import AugmentedImageDatastore, Loader, ShardDatastore

    size, flip = (options.size, options.size), ImageAugmenter(x_reflection=True)
    data = AugmentedImageDatastore(size, ShardDatastore(shards), mode="random_resized_crop", augment=flip)
    loader = Loader(data, options.batch, workers=options.workers, last_batch="keep")
    return lambda: (touch(batch.images, options.size) for batch in loader)


def torchvision_arm(images: Path, shards: Path, options: argparse.Namespace) -> Epoch:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    data = ImageFolder(str(images), transform=torchvision_recipe(options.size), loader=read_with_torchvision)
    workers = {"num_workers": options.workers, "persistent_workers": options.workers > 0}
    loader = DataLoader(data, options.batch, shuffle=True, **workers)
    return lambda: (touch(images, options.size) for images, _ in loader)


def read_with_torchvision(path: str) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def torchvision_recipe(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])


def webdataset_arm(images: Path, shards: Path, options: argparse.Namespace) -> Epoch:
    import webdataset
    from torch.utils.data import DataLoader

    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    data = (
        webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0)
        .shuffle(200)
        .map(decode_webdataset)
        .map(torchvision_recipe(options.size))
        .batched(options.batch, collation_fn=torch.stack)
    )
    workers = {"num_workers": options.workers, "persistent_workers": options.workers > 0}
    loader = DataLoader(data, batch_size=None, **workers)
    return lambda: (touch(images, options.size) for images in loader)


def decode_webdataset(sample: dict[str, bytes]) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    data = torch.frombuffer(bytearray(sample["jpg"]), dtype=torch.uint8)
    return decode_jpeg(data, mode=ImageReadMode.RGB)


LOADERS = {"headrace": headrace_arm, "torchvision": torchvision_arm, "webdataset": webdataset_arm}


def kernel_arm(images: Path, processes: int, size: int) -> Epoch:
    paths = sorted(images.glob("*/*"))

    def run() -> Iterator[int]:
        context = multiprocessing.get_context("fork")
        barrier, queue = context.Barrier(processes + 1), context.Queue()
        parts = [paths[i::processes] for i in range(processes)]
        children = [context.Process(target=kernel, args=(part, barrier, queue, size)) for part in parts]
        for child in children:
            child.start()
        barrier.wait()
        yield 0  # the clock starts here: the yardstick is the steady rate
        for _ in children:
            yield queue.get()
        for child in children:
            child.join()

    return run


def kernel(paths: list[Path], barrier: object, queue: object, size: int) -> None:
    import simplejpeg

    torch.set_num_threads(1)
    blobs = [path.read_bytes() for path in paths]
    scratch = np.empty(64 * 2**20, np.uint8)
    row = torch.empty(1, size, size, 3, dtype=torch.uint8)
    random = np.random.default_rng(1)
    barrier.wait()  # type: ignore[attr-defined]
    for blob in blobs:
        image = torch.from_numpy(simplejpeg.decode_jpeg(blob, buffer=scratch))
        height, width = image.shape[:2]
        area = height * width * random.uniform(0.08, 1)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = min(round((area * ratio) ** 0.5), width), min(round((area / ratio) ** 0.5), height)
        top, left = random.integers(0, height - h + 1), random.integers(0, width - w + 1)
        crop = image[top : top + h, left : left + w].permute(2, 0, 1)[None]
        out = row.permute(0, 3, 1, 2)
        torch._C._nn._upsample_bilinear2d_aa(crop, (size, size), False, None, out=out)
        if random.random() < 0.5:
            out.copy_(out.flip(3))
    queue.put(len(blobs))  # type: ignore[attr-defined]


def touch(images: torch.Tensor, size: int) -> int:
    """Look at every page of a batch, so that a lazy loader pays too."""
    assert images.dtype == torch.uint8
    assert images.shape[1:] == (3, size, size)
    images.permute(0, 2, 3, 1).reshape(-1)[:: 4096 // 3].sum()
    return len(images)


# --- measuring ---------------------------------------------------------------------------------------------------


def measure(arms: dict[str, Epoch], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Run all arms in turn, ``rounds`` times after a warm-up."""
    results: dict[str, dict[str, list[float]]] = {name: {"rate": [], "cpu": []} for name in arms}
    for number in range(rounds + 1):
        for name, epoch in arms.items():
            started, cpu, batches = time.perf_counter(), cpu_seconds(), epoch()
            images = next(batches)
            first = time.perf_counter()
            if number == 0:
                results[name]["first"] = [first - started]
            if images == 0:
                started = first
            images += sum(batches)
            if number:
                results[name]["rate"].append(images / (time.perf_counter() - started))
                results[name]["cpu"].append(1000 * (cpu_seconds() - cpu) / images)
    return results


def cpu_seconds() -> float:
    """CPU time of this process, its children that ended, and those that live."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        spent = child.cpu_times()
        total += spent.user + spent.system
    return total


def memory(name: str, images: Path, shards: Path, options: argparse.Namespace) -> float:
    """Return the MB of a loader, its workers and the process that uses it, in the middle of its second epoch."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_memory, args=(name, images, shards, options, theirs))
    process.start()
    result: float = ours.recv()
    process.join()
    return result


def _memory(name: str, images: Path, shards: Path, options: argparse.Namespace, answer: object) -> None:
    epoch = LOADERS[name](images, shards, options)
    sum(epoch())
    batches = epoch()
    for _ in range(4):
        next(batches)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    answer.send(sum(process.memory_full_info().pss for process in family) / 1e6)  # type: ignore[attr-defined]


def report(results: dict[str, dict[str, list[float]]], workers: int) -> None:
    kernels = results["kernels"]["rate"]
    print(f"{'':14}{'img/s':>8}{'spread':>16}{'of kernels':>12}{'CPU s/1000':>12}{'first batch s':>15}{'PSS MB':>8}")
    for name, result in results.items():
        rates = result["rate"]
        share = statistics.median(rate / kernel for rate, kernel in zip(rates, kernels, strict=True))
        spread = f"{min(rates):.0f} .. {max(rates):.0f}"
        line = (
            f"{name:14}{statistics.median(rates):8.0f}{spread:>16}{share:12.2f}{statistics.median(result['cpu']):12.3f}"
        )
        print(line + ("" if "kernel" in name else f"{result['first'][0]:15.2f}{result['memory'][0]:8.0f}"))
    for other in ("torchvision", "webdataset"):
        pairs = zip(results["headrace"]["rate"], results[other]["rate"], strict=True)
        print(f"headrace / {other}: {statistics.median(a / b for a, b in pairs):.2f}  ({workers} workers)")


if __name__ == "__main__":
    main()
