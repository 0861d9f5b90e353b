"""``headrace demo``: the whole main job on real images, in under a minute.

scikit-learn's 1,797 scanned digits become PNG class folders, the folders become shards, background workers feed a
training run, and a model comes out; then the run is done again without background workers, and its weights are the same
to the bit.
"""

import argparse
import importlib.util
import shutil
import sys
import time
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from ..augment import Draw, ImageAugmenter
from ..datastores import AugmentedImageDatastore, ShardDatastore
from ..datastores.meter import usable_cores
from ..datastores.storage import local_path
from ..errors import ConfigError, DestinationError
from ..train import Accuracy, FitResult, TrainConfig, evaluate, fit, weights_sha256
from .contact_sheet import Column, contact_sheet
from .progress import show_count

__all__ = ["add_arguments", "run"]

_MARK = ".headrace-demo"  # only a folder with this file in it is ever cleared
_SIZE = (16, 16)
_HELD_OUT = 5  # every fifth scan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--out", default="demo", help="folder for all results (default: demo)")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training scans (default: 15)")
    parser.add_argument("--workers", type=int, default=2, help="background workers of the first run (default: 2)")


def run(options: argparse.Namespace) -> int:
    """Run the demo; return 0 if the second run's weights equal the first one's."""
    out = Path(local_path(options.out))
    _need_packages()
    _clear(out)
    torch.set_num_threads(max(1, usable_cores() - options.workers))  # the workers need cores too
    write_digits(out / "images")
    for part in ("train", "test"):
        build(out / "images" / part, out / "shards" / part)
    augment = ImageAugmenter(rotation=(-12, 12), scale=(0.9, 1.1), x_translation=(-0.8, 0.8), y_translation=(-0.8, 0.8))
    training = AugmentedImageDatastore(_SIZE, ShardDatastore(out / "shards/train"), augment=augment, color="gray")
    held_out = AugmentedImageDatastore(_SIZE, ShardDatastore(out / "shards/test"), color="gray")

    print(f"\ntraining on {len(training)} scans with {_background(options.workers)}", file=sys.stderr)
    started = time.perf_counter()
    result = train(training, held_out, options.epochs, options.workers)
    seconds = time.perf_counter() - started
    accuracy = evaluate(result.model, held_out, metrics={"accuracy": Accuracy()})["accuracy"]
    sheet, curves = draw_sheet(training, out), draw_curves(result, out)
    others = 0 if options.workers else 2
    print(f"\ntraining again, with {_background(others)}", file=sys.stderr)
    again = train(training, held_out, options.epochs, others)
    first, second = weights_sha256(result.model), weights_sha256(again.model)

    print(f"held-out accuracy    {accuracy:.4f}  ({len(held_out)} scans that training never saw)")
    print(f"images per second    {result.report.images_per_second:.0f}  ({seconds:.1f} s for the first training run)")
    print(result.report)
    same = "the same" if first == second else "DIFFERENT"
    print(f"weights, {show_count(options.workers, 'worker'):<9}   sha256 {first}")
    print(f"weights, {show_count(others, 'worker'):<9}   sha256 {second}  {same}")
    print(f"pictures             {sheet}, {curves}")
    return 0 if first == second else 1


def _background(workers: int) -> str:
    return show_count(workers, "background worker")


def _clear(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise DestinationError(f"{out} already holds something else: choose another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / _MARK).touch()


def _need_packages() -> None:
    missing = [name for name in ("sklearn", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {' and '.join(missing)}: install headrace with its extra, as in '.[demo]'")


def write_digits(folder: Path) -> None:
    """Write the scans as 8-bit PNG class folders, ``train/0 .. train/9`` and ``test/0 .. test/9``."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype("uint8")
    for number in tqdm(range(len(pixels)), desc="write", unit="scan"):
        part = "test" if number % _HELD_OUT == 0 else "train"
        target = folder / part / str(digits.target[number]) / f"scan{number:04d}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number]).save(target)


def build(source: Path, destination: Path) -> None:
    """Pack a folder of images into shards, as ``headrace build`` does."""
    from .cli import main

    code = main(["build", str(source), str(destination), "--shard-samples", "256"])
    if code:
        raise ConfigError(f"headrace build {source} {destination} ended with exit code {code}")


def train(training: AugmentedImageDatastore, held_out: AugmentedImageDatastore, epochs: int, workers: int) -> FitResult:
    """Train a small convolutional network from the same first weights each time."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 4 * 4, 10)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    config = TrainConfig(max_epochs=epochs, batch_size=64, workers=workers, device="cpu", log_every=11)
    loss = nn.functional.cross_entropy
    return fit(model, training, loss, optimizer, config, held_out, metrics={"accuracy": Accuracy()})


def draw_sheet(training: AugmentedImageDatastore, out: Path) -> Path:
    """Draw originals above what the model saw of them in its first epochs."""
    columns = []
    for index in range(0, len(training), len(training) // 10)[:10]:
        original = training.source[index]
        draws = [training.sample(index, Draw(seed=0, epoch=epoch))["image"] for epoch in range(4)]
        columns.append(Column(f"{original['key']}: {original['label']}", original["image"], draws))
    path = out / "contact_sheet.png"
    contact_sheet(columns, caption="scikit-learn digits: as stored, and as the model saw them in epochs 0 to 3").save(
        path
    )
    return path


def draw_curves(result: FitResult, out: Path) -> Path:
    """Plot loss, held-out accuracy and where the time went."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = result.history.rows
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, accuracy, time_axis = figure.subplots(1, 3, width_ratios=[2, 2, 1.2])
    loss.semilogy([row.step for row in rows], [row.loss for row in rows], color="#2a6f97")
    loss.set(title="training loss", xlabel="step")
    checks = [row for row in rows if row.validation]
    accuracy.plot([row.step for row in checks], [row.validation["accuracy"] for row in checks], "o-", color="#6a994e")
    accuracy.set(title="held-out accuracy", xlabel="step", ylim=(0.8, 1.0))
    shares = result.report.shares
    time_axis.barh(list(shares), [100 * share for share in shares.values()], color="#bc6c25")
    time_axis.set(title="time", xlabel="% of the run")
    path = out / "curves.png"
    figure.savefig(path, dpi=120)
    return path
