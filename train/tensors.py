"""Named tensors in a folder: torch's distributed checkpoint, with an index that is JSON instead of a pickle.

The tensors' own files are read by ``torch.load(weights_only=True)``, which builds tensors and nothing else.
"""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict

from ..errors import StateError

__all__ = ["INDEX", "load_tensors", "save_tensors"]

#: The file that says where in the folder each tensor lies.
INDEX = "tensors.json"


def save_tensors(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write tensors into a folder that exists; each file is flushed to the disk.

    Args:
        tensors: name -> tensor, of any device.
        folder: where files are made.

    Raises:
        OSError: they cannot be written; what was written so far is left there.
    """
    writer = _Writer(folder, sync_files=True)
    try:
        # what ``save`` calls once it has warned that there is one process; this may run in a thread of its own, and
        # filters of warnings belong to the whole process
        _save_state_dict(dict(tensors), writer, no_dist=True)
    except CheckpointException as error:
        raise _cause(error) from None


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return what ``save_tensors`` wrote, name -> tensor in host memory.

    Raises:
        StateError: files are missing, cut, or no such files.
    """
    reader = _Reader(folder)
    try:
        tensors = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in reader.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(tensors, storage_reader=reader, no_dist=True)
    except (Exception, CheckpointException) as error:  # noqa: BLE001 - a damaged file makes torch raise nearly anything
        cause = _cause(error) if isinstance(error, CheckpointException) else error
        raise StateError(f"the tensors in {folder} cannot be read ({cause}): the checkpoint is damaged") from cause
    return tensors


def _cause(error: CheckpointException) -> BaseException:
    """What one of the processes raised (here there is one)."""
    failure: BaseException = next(iter(error.failures.values()))[0]
    return failure


class _Writer(FileSystemWriter):
    """Writes the index as JSON."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        places = {(one.index.fqn, tuple(one.index.offset or ())): one.storage_data for per in results for one in per}
        entries = {}
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise TypeError(f"{name} is no tensor")  # whatever else a run has goes into its document
            chunks = [_chunk(chunk, places[name, tuple(chunk.offsets)]) for chunk in entry.chunks]
            dtype = str(entry.properties.dtype).removeprefix("torch.")
            entries[name] = {"dtype": dtype, "shape": list(entry.size), "chunks": chunks}
        with Path(self.path, INDEX).open("x", encoding="utf-8") as file:
            json.dump(entries, file)
            file.flush()
            os.fsync(file.fileno())


class _Reader(FileSystemReader):
    """Reads the index that ``_Writer`` writes."""

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:  # noqa: ARG002 - the signature of torch's
        entries = json.loads(Path(self.path, INDEX).read_text(encoding="utf-8"))
        described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        places = {}
        for name, entry in entries.items():
            dtype = getattr(torch, entry["dtype"])
            if not isinstance(dtype, torch.dtype):
                raise TypeError(f"{name} has the dtype {entry['dtype']!r}")
            chunks = []
            for chunk in entry["chunks"]:
                offsets = torch.Size(chunk["offsets"])
                if Path(chunk["file"]).name != chunk["file"]:
                    raise ValueError(f"{name} lies in {chunk['file']!r}, which is not in this folder")
                chunks.append(ChunkStorageMetadata(offsets, torch.Size(chunk["sizes"])))
                places[MetadataIndex(name, offsets)] = _StorageInfo(chunk["file"], chunk["start"], chunk["bytes"])
            size = torch.Size(entry["shape"])
            described[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)
        return Metadata(described, storage_data=places)


def _chunk(chunk: ChunkStorageMetadata, place: _StorageInfo) -> dict[str, Any]:
    return {
        "offsets": list(chunk.offsets),
        "sizes": list(chunk.sizes),
        "file": place.relative_path,
        "start": place.offset,
        "bytes": place.length,
    }
