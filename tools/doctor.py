"""``headrace doctor``: what is installed and usable on this machine, what does not work, and what would make it faster.

Everything is tried rather than looked up: images are decoded, memory is shared, a worker is started.
"""

import argparse
import importlib
import importlib.metadata
import io
import json
import os
import platform
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import HeadraceError
from .parallel import in_order
from .progress import show_bytes

__all__ = ["add_arguments", "run"]

_PACKAGES = (
    "torch", "torchvision", "numpy", "pillow", "simplejpeg", "pillow-heif", "webdataset", "fsspec", "aiohttp", "s3fs",
    "gcsfs", "adlfs",
)  # fmt: skip
_ENOUGH_FILES = 4096
_DECODE_SECONDS = 0.3
_GIB = 2**30


@dataclass(slots=True)
class _Findings:
    """What was found.

    Args:
        facts: name -> value, for people and ``--json``.
        problems: what does not work, each with a remedy.
        advice: what would make it faster.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if something does not work."""
    found = _Findings()
    for look in (_versions, _decoder, _cores, _memory, _files, _workers, _devices):
        look(found)
    if options.json:
        document = {"ok": not found.problems, **found.facts, "problems": found.problems, "advice": found.advice}
        print(json.dumps(document, indent=1))
        return 1 if found.problems else 0
    for name, value in found.facts.items():
        print(f"{name.replace('_', ' '):<16} {_show(name, value)}")
    for title, lines in (("does not work", found.problems), ("would be faster", found.advice)):
        for line in lines:
            print(f"{title:<16} {line}")
    if not found.problems and not found.advice:
        print(f"{'all well':<16} nothing to be done")
    return 1 if found.problems else 0


def _show(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("_bytes"):
        return show_bytes(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if type(value) is int else str(value)


def _versions(found: _Findings) -> None:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    found.facts |= {
        "headrace": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": versions,
    }
    if versions["torch"] == "not installed":
        found.problems.append("torch is not installed, so nothing can be trained: pip install torch")


def _decoder(found: _Findings) -> None:
    """Decode a photo-like JPEG for a moment, and say by what."""
    from PIL import features

    from ..datastores.decode import decode

    is_turbo = bool(features.check_feature("libjpeg_turbo"))
    has_simplejpeg = _can_import("simplejpeg")
    found.facts["jpeg_decoder"] = "simplejpeg" if has_simplejpeg else "Pillow"
    if not is_turbo:
        found.advice.append("this Pillow has no libjpeg-turbo: install it from its own wheels (pip install -U pillow)")
    data = _picture()
    try:
        decode(data, where="a test picture")
    except HeadraceError as error:
        found.problems.append(f"JPEGs cannot be decoded: {error}")
        return
    count, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < _DECODE_SECONDS:
        decode(data, where="a test picture")
        count += 1
    found.facts["jpegs_of_500_x_375_decoded_a_second_on_a_core"] = round(count / seconds)
    if not has_simplejpeg:
        found.advice.append("simplejpeg decodes JPEGs quicker, to the same pixels: pip install 'headrace[fast]'")


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _picture() -> bytes:
    """Return a JPEG with as much detail as a photo: smooth noise of several sizes."""
    import numpy as np
    from PIL import Image

    random, total = np.random.default_rng(0), np.zeros((375, 500, 3))
    for size in (4, 16, 64, 256):
        noise = random.integers(0, 256, (size, size, 3), np.uint8)
        total += np.asarray(Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC)) / 4
    file = io.BytesIO()
    Image.fromarray(total.astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def _cores(found: _Findings) -> None:
    from ..datastores.meter import usable_cores

    cores, quota = usable_cores(), _cpu_quota()
    found.facts["cores"] = cores
    if quota is not None and quota < cores:
        found.facts["cpu_quota"] = quota
        found.advice.append(
            f"this container may use {quota:g} cores' time and sees {cores}: ask for more, or use "
            f"workers={max(1, int(quota))}"
        )
    if cores == 1:
        found.advice.append("there is one core for the trainer and all workers: ask for more")


def _cpu_quota() -> float | None:
    """Return how many cores' time the control group may use; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None  # no such file, or of the older kind
    return None if quota == "max" else int(quota) / int(period)


def _memory(found: _Findings) -> None:
    """Share memory as batches are, and say how much there is."""
    found.facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        limit = found.facts["memory_bytes"]  # no limit: it reads "max"
    if limit < found.facts["memory_bytes"]:
        found.facts["memory_limit_bytes"] = limit
    if limit < 4 * _GIB:
        found.advice.append(f"{show_bytes(limit)} of memory are little for a trainer and its workers: ask for more")
    try:
        descriptor = os.memfd_create("headrace-doctor")
        try:
            os.posix_fallocate(descriptor, 0, 1 << 20)
        finally:
            os.close(descriptor)
    except (AttributeError, OSError) as error:
        found.problems.append(f"memory cannot be shared between processes (memfd_create): {error}: use workers=0")
    if Path("/dev/shm").is_dir():  # noqa: S108 - it is only measured
        found.facts["dev_shm_bytes"] = shutil.disk_usage("/dev/shm").free  # noqa: S108


def _files(found: _Findings) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found.facts["open_files"] = "no limit" if soft == resource.RLIM_INFINITY else soft
    if soft != resource.RLIM_INFINITY and soft < _ENOUGH_FILES:
        remedy = "ulimit -n 65536" if hard == resource.RLIM_INFINITY or hard > soft else "ask for a higher limit"
        found.advice.append(f"{soft} open files are few, so shards are closed and opened again and again: {remedy}")
    folder = tempfile.gettempdir()
    found.facts["temporary_bytes"] = shutil.disk_usage(folder).free
    if found.facts["temporary_bytes"] < _GIB:
        free = show_bytes(found.facts["temporary_bytes"])
        found.advice.append(f"{folder} has {free} left for the tables of shards without index: `headrace index` them")


def _workers(found: _Findings) -> None:
    """Start a process as workers are started, and take its answer."""
    started = time.perf_counter()
    try:
        answers = list(in_order(abs, [-7], workers=1))
    except (OSError, HeadraceError) as error:
        found.problems.append(f"no worker process can be started: {error}: use workers=0")
        return
    found.facts["worker_process"] = f"answers after {time.perf_counter() - started:.2f} s"
    if answers != [7]:
        found.problems.append(f"a worker process answered {answers}, expected [7]")


def _devices(found: _Findings) -> None:
    if found.facts["packages"]["torch"] == "not installed":
        return
    import torch

    found.facts["gpus"] = [
        f"{torch.cuda.get_device_name(number)} ({show_bytes(torch.cuda.get_device_properties(number).total_memory)})"
        for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    if found.facts["gpus"]:
        try:
            torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
            found.facts["pinned_memory"] = "works"
        except RuntimeError as error:
            found.advice.append(f"memory cannot be pinned, so copies to the GPU wait: {str(error).splitlines()[0]}")
    elif any(Path("/dev").glob("nvidia[0-9]*")):
        why = "this torch is built without CUDA" if torch.version.cuda is None else "its driver does not fit this torch"
        found.problems.append(f"there is an NVIDIA GPU and torch cannot use it: {why}: install a fitting torch")
