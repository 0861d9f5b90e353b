"""Checkpoints: a folder with one whole, published folder per saved step."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..datastores.storage import fsync_folder
from ..errors import ConfigError, StateError
from .tensors import load_tensors, save_tensors

__all__ = ["CheckpointFolder", "Snapshot"]

_VERSION = 1
_DOCUMENT = "run.json"
_COMMIT = "complete.json"
_STEP = re.compile(r"step-(\d{10})")
_TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a run is at one step.

    Args:
        step: optimizer steps done.
        tensors: name -> tensor.
        document: everything else, as JSON values.
    """

    step: int
    tensors: Mapping[str, torch.Tensor]
    document: Mapping[str, Any]

    def detached(self) -> "Snapshot":
        """Return a copy in host memory that shares nothing with the run."""
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}
        return Snapshot(self.step, copies, self.document)


class CheckpointFolder:
    """Where the checkpoints of one run lie, ``step-0000000120`` and so on.

    A checkpoint is written under a temporary name, flushed to the disk and renamed, so a folder of that name is whole:
    whatever happens while it is written, those before it are still there. A commit file lists the size and
    SHA-256 of every other file.

    Args:
        path: the folder; made when the first checkpoint is written.
        keep: newest checkpoints that stay when a new one is published, at least 1; None: all of them.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int | None = None) -> None:
        self.path = Path(path)
        self._keep = keep

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, oldest first."""
        if not self.path.is_dir():
            return []
        found = (_STEP.fullmatch(entry.name) for entry in self.path.iterdir() if entry.is_dir())
        return sorted(int(match[1]) for match in found if match)

    def of_step(self, step: int) -> Path:
        """Return the folder of a step."""
        return self.path / f"step-{step:010d}"

    def write(self, snapshot: Snapshot) -> Path:
        """Publish a checkpoint, and remove those that are not to be kept; one of the same step is left as it is.

        Raises:
            ConfigError: it cannot be written; earlier checkpoints are untouched, and nothing half-written is left.
        """
        target = self.of_step(snapshot.step)
        if target.exists():
            return target
        temporary = self.path / f"{_TEMPORARY}{target.name}-{secrets.token_hex(4)}"
        try:
            temporary.mkdir(parents=True)
            save_tensors(snapshot.tensors, temporary)
            _write_json(temporary / _DOCUMENT, {"version": _VERSION, "step": snapshot.step, **snapshot.document})
            _write_json(temporary / _COMMIT, {entry.name: _describe(entry) for entry in sorted(temporary.iterdir())})
            fsync_folder(temporary)
            temporary.rename(target)
            fsync_folder(self.path)
        except (OSError, RuntimeError) as error:  # torch's writer has no type of its own for a full disk
            shutil.rmtree(temporary, ignore_errors=True)
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"the checkpoint of step {snapshot.step} cannot be written to {self.path} ({reason}): "
                "the earlier ones are as they were; make room, or correct the path"
            ) from error
        self._clean_up()
        return target

    def read(self, step: int) -> Snapshot:
        """Return the checkpoint of a step.

        Raises:
            StateError: it is not there, or not whole.
        """
        folder = self.of_step(step)
        _check_whole(folder)
        document = _read_json(folder / _DOCUMENT)
        if document.pop("version", None) != _VERSION or document.pop("step", None) != step:
            raise StateError(f"{folder / _DOCUMENT} is of another version of headrace, or of another step")
        return Snapshot(step, load_tensors(folder), document)

    def _clean_up(self) -> None:
        """Remove old checkpoints, newest first to keep, and what killed runs left half-written."""
        old = self.steps()[: -self._keep] if self._keep else []
        for folder in (*map(self.of_step, old), *self.path.glob(f"{_TEMPORARY}*")):
            doomed = folder if folder.name.startswith(_TEMPORARY) else self.path / f"{_TEMPORARY}old-{folder.name}"
            if doomed != folder:  # a folder that is half removed must not look whole
                folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _check_whole(folder: Path) -> None:
    listed = _read_json(folder / _COMMIT)
    for name, expected in listed.items():
        path = folder / str(name)
        found = _describe(path) if path.is_file() and path.parent == folder else None
        if found != expected:
            raise StateError(f"{path} is not what was saved (its size or checksum differs): use another checkpoint")
    missing = {_DOCUMENT} - set(listed)
    if missing:
        raise StateError(f"{folder} is no checkpoint: {_COMMIT} does not list {_DOCUMENT}")


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _write_json(path: Path, value: Any) -> None:
    with path.open("x", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path} cannot be read ({error}): this is no whole checkpoint") from error
    if not isinstance(value, dict):
        raise StateError(f"{path} does not hold what a checkpoint holds")
    return value
