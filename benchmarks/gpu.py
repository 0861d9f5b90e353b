"""How far a GPU is kept busy by batches that CPU workers make of JPEG shards, beside batches that are already there.

    python benchmarks/gpu.py [--models resnet50 resnet18] [--workers 1 2 4 8 16] [--images 8192] [--rounds 3] [--out F]

Photo-like JPEGs of about 110 kB (500x375) are packed into shards, and streamed by a ``Loader`` (random-resized-crop
224 and flip, batches of 256, pinned slots). A model trains on them in bfloat16, channels last, by ``Run``: its images
are normalised on the GPU. "Synthetic" is the same loop on one random batch that lies on the GPU. Arms are interleaved;
the tables show medians over the rounds, and the spread (largest less smallest, over the median).
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from loader import photos
from torch import nn

from headrace.augment import ImageAugmenter, Normalize
from headrace.datastores import AugmentedImageDatastore, Batch, Loader, ShardDatastore
from headrace.train import Run, TrainConfig, normalized_images

BATCH = 256
NORMALIZE = Normalize(mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet18"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    lines = [f"{device}, {options.images} JPEGs, batches of {BATCH}: {' '.join(sys.argv)}", ""]
    with tempfile.TemporaryDirectory() as scratch:
        shards = build(Path(scratch), options.images)
        lines += [*scaling(shards, options.workers, options.rounds), ""]
        for name in options.models:
            lines += [*fed(name, shards, max(options.workers), options.rounds), ""]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines))


def build(folder: Path, images: int) -> Path:
    """Return shards of ``images`` photos, of which 512 differ."""
    files = photos(min(images, 512))
    (folder / "images" / "photo").mkdir(parents=True)
    for number in range(images):
        (folder / "images" / "photo" / f"{number:06d}.jpg").write_bytes(files[number % len(files)])
    command = [sys.executable, "-m", "headrace.tools.cli", "build", str(folder / "images"), str(folder / "shards")]
    subprocess.run([*command, "--shard-samples", "512", "--quiet"], check=True)
    return folder / "shards"


def loader_of(shards: Path, workers: int, *, pin: bool) -> Loader:
    flip = ImageAugmenter(x_reflection=True)
    data = AugmentedImageDatastore((224, 224), ShardDatastore(shards), mode="random_resized_crop", augment=flip)
    return Loader(data, BATCH, workers=workers, prefetch=6, pin_memory=pin)


def scaling(shards: Path, counts: list[int], rounds: int) -> list[str]:
    """Images per second of the loader alone, by its number of workers."""
    rates: dict[int, list[float]] = {count: [] for count in counts}
    loaders = {count: loader_of(shards, count, pin=False) for count in counts}
    for _ in range(rounds):
        for count, loader in loaders.items():
            rates[count].append(_rate(loader))
            loader.close()
    one = statistics.median(rates[counts[0]]) / counts[0]
    rows = [
        f"| {count} | {_shown(rates[count])} | {statistics.median(rates[count]) / one / count:.2f} |"
        for count in counts
    ]
    return ["| workers | images/s (spread) | of that many times the first row |", "|---|---|---|", *rows]


def _rate(loader: Loader) -> float:
    batches = iter(loader)
    next(batches)
    start, rows = time.perf_counter(), 0
    for batch in batches:
        rows += len(batch)
    return rows / (time.perf_counter() - start)


def fed(name: str, shards: Path, workers: int, rounds: int) -> list[str]:
    """Training speed of a model on real and on synthetic batches."""
    rates: dict[str, list[float]] = {"synthetic": [], "JPEG shards": []}
    waits: list[float] = []
    with loader_of(shards, workers, pin=True) as loader:
        for _ in range(rounds):
            rates["synthetic"].append(synthetic(name, steps=60))
            rate, wait = real(name, loader)
            rates["JPEG shards"].append(rate)
            waits.append(wait)
        syncs = synchronisations(name, loader)
    whole = statistics.median(rates["synthetic"])
    rows = [
        f"| {name} | {arm} | {_shown(found)} | {statistics.median(found) / whole:.3f} |" for arm, found in rates.items()
    ]
    wait = f"data wait {100 * statistics.median(waits):.1f} % of the training time, {workers} workers; {syncs}"
    return ["| model | data | images/s (spread) | of synthetic |", "|---|---|---|---|", *rows, "", wait]


def _model(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = torchvision.models.get_model(name).to("cuda", memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)


def _loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        return nn.functional.cross_entropy(model(inputs), targets)


def synthetic(name: str, steps: int) -> float:
    model, optimizer = _model(name)
    images = torch.randint(0, 256, (BATCH, 224, 224, 3), dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    labels, ids = torch.zeros(BATCH, dtype=torch.int64, device="cuda"), torch.arange(BATCH, device="cuda")
    batch = Batch({"image": images, "label": labels}, ids, ids >= 0, epoch=0, step=0)
    prepare = normalized_images(NORMALIZE)

    def step() -> None:
        inputs, targets = prepare(batch)
        _loss(model, inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return _timed(step, steps)


def _timed(step: Callable[[], None], steps: int) -> float:
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return steps * BATCH / (time.perf_counter() - start)


def real(name: str, loader: Loader) -> tuple[float, float]:
    """Two epochs by ``Run``; the first one warms up, and the second one counts."""
    model, optimizer = _model(name)
    loader.set_epoch(0)
    steps = len(loader)
    config = TrainConfig(max_epochs=3, progress="none", device="cuda", log_every=10**6)
    marks: dict[int, tuple[float, float]] = {}
    with Run(model, loader, optimizer, config, prepare=normalized_images(NORMALIZE)) as run:
        for step in run:
            step.backward(_loss(model, step.inputs, step.targets))
            step.update()
            if step.number in (steps // 2, 3 * steps):
                torch.cuda.synchronize()
                marks[step.number] = (time.perf_counter(), run.report.wait_share)
    (start, _), (end, wait) = marks[steps // 2], marks[3 * steps]
    return (3 * steps - steps // 2) * BATCH / (end - start), wait


def synchronisations(name: str, loader: Loader, steps: int = 8) -> str:
    """Count how often the host waits for the GPU in some steps, as torch's profiler sees it."""
    model, optimizer = _model(name)
    loader.set_epoch(0)
    config = TrainConfig(max_steps=10 + steps, progress="none", device="cuda", log_every=10**6)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with Run(model, loader, optimizer, config, prepare=normalized_images(NORMALIZE)) as run:
        for step in run:
            step.backward(_loss(model, step.inputs, step.targets))
            step.update()
            if step.number == 10:
                profiler.start()
            if step.number == 9 + steps:
                profiler.stop()
    waits = [event for event in profiler.key_averages() if "Synchronize" in event.key or event.key == "aten::item"]
    found = ", ".join(f"{event.count} x {event.key}" for event in waits) or "none"
    return f"waits of the host for the GPU in {steps - 1} steps: {found}"


def _shown(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:,.0f} ({100 * (max(values) - min(values)) / middle:.0f} %)"


if __name__ == "__main__":
    main()
