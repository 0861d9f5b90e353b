"""What a run is at one step, taken apart into tensors and plain values, and put together again."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..errors import StateError
from .checkpoint import Snapshot
from .history import Row
from .plain import as_json, of_json

if TYPE_CHECKING:
    from .run import Run

__all__ = ["Companion", "description", "put_back", "take"]

#: Settings of a ``TrainConfig`` that decide which numbers come out; the others may change when a run is continued.
_DECISIVE = ("batch_size", "micro_batch", "clip", "ema_decay", "seed", "shuffle", "last_batch")


class Companion(Protocol):
    """Something that goes along with a run and is saved with it."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values by name."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` returned."""


def take(run: "Run") -> Snapshot:
    """Return what ``run`` is now, at the end of a step; the tensors are the run's own.

    Raises:
        ConfigError: the optimizer, a scheduler or a companion holds something that no checkpoint can.
    """
    tensors: dict[str, torch.Tensor] = {}
    epoch, step = divmod(run.step, len(run.loader))
    parts = {
        "loader": run.loader.state_dict() | {"epoch": epoch, "step": step},
        "model": _split("model", dict(run.model.state_dict()), tensors),
        "optimizer": _split("optimizer", _flat_optimizer(run.optimizer), tensors),
        "rates": _split("rates", run.rates.state_dict(), tensors),
        "companion": _split("companion", run.companion.state_dict() if run.companion else {}, tensors),
        "losses": run.recorder.unwritten,
        "history": [dataclasses.asdict(row) for row in run.history],
        "description": description(run),
        "config": {name: _plain_or_text(value) for name, value in dataclasses.asdict(run.config).items()},
    }
    if run.average is not None:
        parts["average"] = _split("average", run.average.state_dict(), tensors)
    return Snapshot(run.step, tensors, {name: as_json(part, name) for name, part in parts.items()})


def put_back(run: "Run", snapshot: Snapshot) -> None:
    """Let ``run``, which has not begun, be what it was when ``snapshot`` was taken.

    Raises:
        StateError: the snapshot is of another model, optimizer, dataset or of other settings; says which, and how they
            differ. The run is not changed then.
    """
    parts = {name: of_json(part) for name, part in snapshot.document.items()}
    _check(run, parts, snapshot.tensors)
    run.loader.load_state_dict(parts["loader"])
    run.model.load_state_dict(_joined("model", parts, snapshot.tensors))
    run.optimizer.load_state_dict(_nested_optimizer(run.optimizer, _joined("optimizer", parts, snapshot.tensors)))
    run.rates.load_state_dict(_joined("rates", parts, snapshot.tensors))
    if run.average is not None:
        run.average.load_state_dict(_joined("average", parts, snapshot.tensors))
    if run.companion is not None:
        run.companion.load_state_dict(_joined("companion", parts, snapshot.tensors))
    run.recorder.take_up(parts["losses"])
    run.history.take_up([Row(**row) for row in parts["history"]])


def description(run: "Run") -> dict[str, Any]:
    """Return the settings that must be the same when the run is continued, and on all of its ranks."""
    plan, config = run.loader.plan, run.config
    settings = {name: getattr(plan if hasattr(plan, name) else config, name) for name in _DECISIVE}
    total = {"total steps": run.total_steps} if run.rates.schedule else {}  # rates depend on where the run ends
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    groups = [[names.get(id(each), "?") for each in group["params"]] for group in run.optimizer.param_groups]
    return {
        **settings,
        **total,
        "schedule": run.rates.schedule,
        "optimizer": type(run.optimizer).__name__,
        "parameters of the optimizer": groups,
    }


def _check(run: "Run", parts: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    needed = {"loader", "model", "optimizer", "rates", "companion", "losses", "history", "description"}
    needed |= {"average"} if run.average is not None else set()
    if needed - set(parts):
        raise StateError(f"the checkpoint of step {run.step} lacks {', '.join(sorted(needed - set(parts)))}")
    saved, now = parts["description"], of_json(as_json(description(run), "the run"))
    differences = [f"{name}: saved {saved.get(name)!r}, now {now.get(name)!r}" for name in {**saved, **now}
                   if saved.get(name) != now.get(name)]  # fmt: skip
    own = run.model.state_dict()
    found = _joined("model", parts, tensors)
    differences += [f"the model's {name}: saved {_shape(found.get(name))}, now {_shape(own.get(name))}"
                    for name in {**own, **found} if _shape(found.get(name)) != _shape(own.get(name))]  # fmt: skip
    if differences:
        shown = "; ".join(differences[:5]) + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
        raise StateError(
            f"the checkpoint belongs to another run ({shown}): make this run the same, or use another folder, or "
            'resume="never"'
        )


def _plain_or_text(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str, tuple)) else str(value)


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return "nothing" if value is None else type(value).__name__


def _split(prefix: str, state: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Move the tensors of ``state`` into ``tensors``, under names that begin with ``prefix``; return the rest."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            tensors[f"{prefix}/{name}"] = value
    return {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}


def _joined(prefix: str, parts: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    start = f"{prefix}/"
    ours = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
    return {**parts[prefix], **ours}


def _flat_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state with one name per value: ``state/<parameter>/<key>`` and ``group/<group>/<key>``."""
    state = optimizer.state_dict()
    flat = {f"state/{index}/{key}": value for index, entry in state["state"].items() for key, value in entry.items()}
    for number, group in enumerate(state["param_groups"]):
        flat |= {f"group/{number}/{key}": value for key, value in group.items()}
    return flat


def _nested_optimizer(optimizer: torch.optim.Optimizer, flat: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = [{} for _ in optimizer.param_groups]
    for name, value in flat.items():
        kind, index, key = name.split("/", 2)
        target = state.setdefault(int(index), {}) if kind == "state" else groups[int(index)]
        target[key] = value
    return {"state": state, "param_groups": groups}
