"""Checkpoints on disk: whole or not there."""

import json
import os
import pickle
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, StateError
from headrace.train.checkpoint import CheckpointFolder, Snapshot
from headrace.train.plain import as_json, of_json
from headrace.train.saver import Saver
from headrace.train.tensors import INDEX, load_tensors, save_tensors


def _snapshot(step: int) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model/a": torch.randn(3, 4, generator=generator),
        "model/b.c": torch.arange(step + 1),
        "half": torch.randn(2, 2, generator=generator).to(torch.bfloat16),
        "one": torch.tensor(float(step)),
        "none": torch.zeros(0, 3),
        "image": torch.randn(2, 3, 4, 4, generator=generator).to(memory_format=torch.channels_last),
    }
    return Snapshot(step, tensors, {"history": [step, None], "pi": 3.14})


def _equal(one: Snapshot, other: Snapshot) -> bool:
    return (
        (one.step, dict(one.document)) == (other.step, dict(other.document))
        and one.tensors.keys() == other.tensors.keys()
        and all(
            tensor.dtype == other.tensors[name].dtype and torch.equal(tensor, other.tensors[name])
            for name, tensor in one.tensors.items()
        )
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "runs" / "a")
    assert folder.steps() == []
    for step in (3, 12, 100):
        assert folder.write(_snapshot(step)) == folder.of_step(step)
    assert folder.steps() == [3, 12, 100]
    for step in folder.steps():
        assert _equal(folder.read(step), _snapshot(step))
    assert sorted(entry.name for entry in folder.path.iterdir()) == [folder.of_step(s).name for s in (3, 12, 100)]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    (tmp_path / "mine.txt").write_text("a user's own")
    for step in range(5):
        folder.write(_snapshot(step))
    assert folder.steps() == [3, 4]
    assert len(list(tmp_path.iterdir())) == 3


def test_nothing_is_ever_pickled(tmp_path: Path) -> None:
    """But by torch, whose ``weights_only`` builds tensors and nothing else."""
    folder = CheckpointFolder(tmp_path)
    path = folder.write(_snapshot(1))
    assert not (path / ".metadata").exists()
    for entry in path.iterdir():
        assert entry.suffix in (".json", ".distcp")


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["HEADRACE_TEST_EVIL"],)


def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when whoever made it has listed the right sums."""
    trace = tmp_path / "executed"
    monkeypatch.setenv("HEADRACE_TEST_EVIL", str(trace))
    folder = tmp_path / "folder"
    folder.mkdir()
    save_tensors({"a": torch.zeros(3)}, folder)
    index = json.loads((folder / INDEX).read_text())
    chunk = index["a"]["chunks"][0]
    for payload in (pickle.dumps(_Evil()), _torch_saved(tmp_path)):
        (folder / chunk["file"]).write_bytes(payload)
        chunk |= {"start": 0, "bytes": len(payload)}
        (folder / INDEX).write_text(json.dumps(index))
        with pytest.raises(StateError, match="damaged"):
            load_tensors(folder)
    (folder / ".metadata").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(StateError):
        load_tensors(folder)
    assert not trace.exists()


def _torch_saved(folder: Path) -> bytes:
    torch.save(_Evil(), folder / "evil.pt")
    return (folder / "evil.pt").read_bytes()


@pytest.mark.parametrize(
    "entry",
    [{"dtype": "load"}, {"dtype": "nothing"}, {"shape": [-1]}, {"shape": "x"}, {"chunks": None}, {"shape": [10**15]},
     {"chunks": [{"offsets": [0], "sizes": [3], "file": "../x.distcp", "start": 0, "bytes": 9}]}],
)  # fmt: skip
def test_a_nonsensical_index_is_an_error(tmp_path: Path, entry: dict[str, Any]) -> None:
    save_tensors({"a": torch.zeros(3)}, tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps({"a": index["a"] | entry}))
    with pytest.raises(StateError, match="cannot be read"):
        load_tensors(tmp_path)


@pytest.mark.parametrize("victim", ["run.json", "complete.json", INDEX, "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_damage_is_noticed(tmp_path: Path, victim: str, damage: str) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.write(_snapshot(7)) / victim
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    with pytest.raises(StateError, match="checkpoint"):
        folder.read(7)


def test_a_full_disk_leaves_the_earlier_ones(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.write(_snapshot(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"checkpoint of step 2 cannot be written .*: the earlier ones"):
            folder.write(_snapshot(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [entry.name for entry in tmp_path.iterdir()] == [folder.of_step(1).name]
    assert _equal(folder.read(1), _snapshot(1))


def test_what_a_killed_run_left_is_removed_and_never_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    shutil.copytree(folder.write(_snapshot(1)), tmp_path / ".tmp-step-0000000009-abc")
    assert folder.steps() == [1]
    folder.write(_snapshot(2))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-0000000001", "step-0000000002"]


def test_a_snapshot_is_taken_at_once(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    snapshot = _snapshot(4)
    with Saver(folder) as saver:
        saver.save(snapshot)
        for tensor in snapshot.tensors.values():
            tensor.zero_()
        assert saver.saved_step == 4
    assert _equal(folder.read(4), _snapshot(4))


def test_two_runs_never_write_into_one_folder(tmp_path: Path) -> None:
    with Saver(CheckpointFolder(tmp_path)), pytest.raises(ConfigError, match="another run writes its checkpoints"):
        Saver(CheckpointFolder(tmp_path)).__enter__()
    with Saver(CheckpointFolder(tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_fails_is_a_warning(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Saver(folder) as saver:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
            saver.save(_snapshot(1))
            with pytest.warns(RuntimeWarning, match="step 1 cannot be written"):
                saver.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        saver.save(_snapshot(2))
    assert folder.steps() == [2]


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
        | st.sets(st.integers())
    ),
    max_leaves=20,
)


@given(_PLAIN)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = of_json(json.loads(json.dumps(as_json(value, "it"))))
    assert back == value
    assert repr(back) == repr(value) or isinstance(value, (set, dict, list, tuple))


def test_what_is_not_plain_is_named() -> None:
    with pytest.raises(ConfigError, match=r"rates\['lambdas'\]\[1\] is a function"):
        as_json({"lambdas": [1, lambda: 0]}, "rates")
