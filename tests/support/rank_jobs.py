"""What the ranks of the tests do; importable, so that processes can be started with it."""

import dataclasses
import os
import signal
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from models import Model, Pairs
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

from headrace.datastores import Batch, Loader
from headrace.errors import ConfigError, ShapeError
from headrace.train import Accuracy, Chain, Cosine, Run, TrainConfig, Warmup, evaluate, fit, weights_sha256
from headrace.train.distributed import find_place, joined
from headrace.train.gradients import GradientSum
from headrace.train.loop import FitState

CONFIG = TrainConfig(
    max_epochs=3, batch_size=9, last_batch="keep", progress="none", device="cpu", log_every=2, ema_decay=0.5,
    clip=("norm", 0.5), rank_timeout=30,
)  # fmt: skip
SCHEDULE = Chain(Warmup(3), Cosine())


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def plain_model() -> nn.Module:
    """No batch norm and no dropout, in double precision: what it computes depends on ranks by rounding only."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def doubled(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.images.double() / 255, batch.labels


def numbers(model: nn.Module) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}


def train_plain(settings: dict[str, Any]) -> dict[str, Any]:
    """A whole ``fit`` with validation; every rank begins with other weights, and rank 0's count."""
    model = plain_model()
    if find_place().rank:
        nn.init.zeros_(model[1].weight)
    result = fit(model, Pairs(), cross_entropy, adam, dataclasses.replace(CONFIG, keep="best", **settings), Pairs(),
                 metrics={"accuracy": Accuracy()}, schedule=SCHEDULE, prepare=doubled)  # fmt: skip
    rows = [(row.step, row.epoch, row.loss, row.lr, *row.validation.values()) for row in result.history]
    return {"weights": numbers(model), "sha": weights_sha256(model), "rows": rows, "best": result.best_value,
            "step": result.step, "reason": result.stop_reason, "samples": result.report.samples,
            "group is left": not dist.is_initialized()}  # fmt: skip


def train_model(last_batch: str, batch_size: int) -> tuple[str, list[float]]:
    """Batch norm and dropout."""
    config = dataclasses.replace(CONFIG, last_batch=last_batch, batch_size=batch_size, ema_decay=None)
    model = Model()
    masks: list[float] = []

    def note(_: nn.Module, __: Any, outputs: torch.Tensor) -> None:
        masks.append(float((outputs == 0).float().mean()))

    model.drop.register_forward_hook(note)
    fit(model, Pairs(), cross_entropy, adam, config)
    return weights_sha256(model), masks


def own_loop() -> tuple[str, list[list[int]]]:
    """A loop over Run in which every step is taken whole, also where this rank has no rows."""
    model, ids = plain_model(), []
    with Run(model, Pairs(), adam, CONFIG, prepare=doubled) as run:
        for step in run:
            step.backward(cross_entropy(model(step.inputs), step.targets))
            step.update()
            ids.append(step.ids.tolist())
    return weights_sha256(model), ids


class Collector:
    """A metric that keeps what it is given."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.outputs: list[torch.Tensor] = []
        self.targets: list[torch.Tensor] = []

    def update(self, outputs: Any, targets: Any) -> None:
        self.outputs.append(outputs["twice"][0])
        self.targets.append(targets)

    def compute(self) -> float:
        return float(sum(map(len, self.targets)))


class Twice(nn.Module):
    def forward(self, inputs: torch.Tensor) -> dict[str, Any]:
        return {"twice": [2 * inputs], "name": "twice"}


def measure_numbers(count: int, batch_size: int) -> tuple[dict[str, float], list[float], list[float]]:
    """Data 0 .. count - 1: which of them does an evaluation see?"""
    data = [{"x": np.array([number], np.float32), "label": number} for number in range(count)]
    collector = Collector()
    scores = evaluate(
        Twice(), data, lambda outputs, targets: mse_loss(outputs["twice"][0][:, 0], targets.float()),
        {"count": collector}, batch_size=batch_size, device="cpu",
        prepare=lambda batch: (batch.fields["x"], batch.labels),
    )  # fmt: skip
    return scores, torch.cat(collector.outputs)[:, 0].tolist(), torch.cat(collector.targets).tolist()


def merge() -> tuple[list[bool], list[int], str]:
    """Rows of several dtypes; rank r has r of them. Then rows that do not fit."""
    place = find_place()
    dtypes = (torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64)
    ones = torch.full((place.rank, 2, 3), place.rank)
    whole = torch.tensor([1, 2, 2])[:, None, None].expand(3, 2, 3)
    error = ""
    with joined(place, torch.device("cpu"), 30) as ranks:
        merged = ranks.merged((*map(ones.to, dtypes), {"none": None, "flat": ones[:, 0, 0]}))
        try:
            ranks.merged(torch.zeros(1, 1 + place.rank))
        except ShapeError as caught:
            error = str(caught)
    same = [
        bool((part == whole.to(dtype)).all()) and part.dtype == dtype
        for part, dtype in zip(merged[:5], dtypes, strict=True)
    ]
    return same, merged[-1]["flat"].tolist(), error


def sum_gradients() -> dict[str, Any]:
    """Parameters that no rank, one rank or every rank uses; two dtypes; more than one bucket."""
    place = find_place()
    values = (torch.zeros(3, 2), torch.zeros(4, dtype=torch.float64), *map(torch.zeros, (2, 7 << 20, 5)))
    parameters = [nn.Parameter(value) for value in values]
    parameters[0].grad = torch.full((2, 3), 1.0 + place.rank).T
    if place.rank == 1:
        parameters[1].grad = torch.arange(4, dtype=torch.float64)
    parameters[3].grad = torch.full_like(parameters[3], 2.0)
    parameters[4].grad = torch.full_like(parameters[4], 10.0**place.rank)
    with joined(place, torch.device("cpu"), 30) as ranks:
        loss = GradientSum(parameters, ranks).add_up(torch.tensor(0.5 + place.rank))
    return {"loss": float(loss),
            "gradients": [None if p.grad is None else sorted(set(p.grad.flatten().tolist())) for p in parameters],
            "strides": parameters[0].grad.stride()}  # fmt: skip


def overlapped(use_reentrant: bool) -> tuple[int, bool, str]:
    """Three layers, a bucket each: the last one is used twice, the one in between never."""
    torch.manual_seed(3)
    model = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).double()
    inputs = (torch.randn(4, 8, dtype=torch.float64) + find_place().rank).requires_grad_()
    parameters, found, early, error = list(model.parameters()), [], 0, ""

    def loss() -> torch.Tensor:
        hidden = checkpoint(model[2], inputs, use_reentrant=use_reentrant)
        return checkpoint(model[2], model[0](hidden), use_reentrant=use_reentrant).square().sum()

    with joined(find_place(), torch.device("cpu"), 30) as ranks:
        gradients = GradientSum(parameters, ranks, bucket_bytes=600)
        for overlap in (nullcontext(), gradients.during_backward()):
            model.zero_grad()
            try:
                with overlap:
                    loss().backward()
            except ConfigError as caught:
                error = str(caught)
            early = len(gradients._waits)
            gradients.add_up(torch.tensor(1.0))
            found.append([None if each.grad is None else each.grad.flatten().tolist() for each in parameters])
    return early, found[0] == found[1], error


def with_own_group() -> tuple[bool, float]:
    dist.init_process_group("gloo")
    before = train_plain({})["rows"][-1][2]
    still_there = dist.is_initialized()
    dist.destroy_process_group()
    return still_there, before


def twice_and_evaluate() -> list[Any]:
    first, second = train_plain({}), train_plain({"rank_timeout": 20.0})
    model = plain_model()
    return [first["sha"] == second["sha"], evaluate(model, Pairs(), cross_entropy, prepare=doubled, device="cpu")]


def stop_by_one(event: str, step: int, who: int) -> tuple[int, str, str]:
    def tell(now: str, state: FitState) -> str | None:
        return "stop" if (now, state.step, state.rank) == (event, step, who) else None

    result = fit(plain_model(), Pairs(), cross_entropy, adam, dataclasses.replace(CONFIG, validate_every=2), Pairs(),
                 prepare=doubled, on_event=tell)  # fmt: skip
    return result.step, result.stop_reason, weights_sha256(result.model)


def interrupted_run(folder: str | None, number: int, moment: str, who: int) -> tuple[int, str, str]:
    """Signals itself in a step, or in a validation."""
    counter = {"validated": 0}

    class Pressing(Accuracy):
        def update(self, outputs: Any, targets: Any) -> None:
            super().update(outputs, targets)
            counter["validated"] += 1
            if moment == "validation" and counter["validated"] == 7 and find_place().rank == who:
                os.kill(os.getpid(), number)

    def tell(event: str, state: FitState) -> None:
        if event == moment == "step" and state.step == 4 and state.rank == who:
            os.kill(os.getpid(), number)

    config = dataclasses.replace(CONFIG, checkpoints=folder, batch_size=8)
    result = fit(plain_model(), Pairs(), cross_entropy, adam, config, Pairs(), prepare=doubled, on_event=tell,
                 metrics={"accuracy": Pressing()})  # fmt: skip
    return result.step, result.stop_reason, weights_sha256(result.model)


def with_a_csv_file(path: str) -> str:
    config = TrainConfig(batch_size=8, progress="none", device="cpu", csv=path, rank_timeout=30)
    return str(fit(plain_model(), Pairs(), cross_entropy, adam, config, prepare=doubled))


def bad_loss(who: int) -> tuple[int, str, list[str]]:
    calls = {"loss": 0}

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls["loss"] += 1
        return cross_entropy(outputs, targets) * (
            float("nan") if find_place().rank == who and calls["loss"] == 3 else 1
        )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fit(plain_model(), Pairs(), loss, adam, CONFIG, prepare=doubled)
    return result.step, result.stop_reason, [str(warning.message) for warning in caught]


def failing(how: str, who: int) -> float:
    """One rank goes away in its third step; returns how long the others took to notice."""
    since = [0.0]

    def tell(event: str, state: FitState) -> None:
        if event == "step" and state.step == 3:
            since[0] = time.monotonic()
            if state.rank == who:
                if how == "error":
                    raise ZeroDivisionError("third step")
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)

    config = dataclasses.replace(CONFIG, rank_timeout=2.0 if how == "hang" else 30.0)
    fit(plain_model(), Pairs(), cross_entropy, adam, config, prepare=doubled, on_event=tell)
    return time.monotonic() - since[0]


def differing(what: str) -> tuple[str]:
    rank = find_place().rank
    settings = {"seed": rank} if what == "seed" else {"max_epochs": 1 + rank} if what == "end" else {}
    data = [Pairs()[i] for i in range(40 - rank)] if what == "data" else Pairs()
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2 + rank)).double() if what == "model" else plain_model()
    config = TrainConfig(batch_size=9, progress="none", device="cpu", rank_timeout=20, **settings)
    return _refusal(model, data, config)


def with_a_loader_for_one() -> tuple[str]:
    return _refusal(plain_model(), Loader(Pairs(), 8), TrainConfig(progress="none", device="cpu"))


def _refusal(model: nn.Module, data: Any, config: TrainConfig) -> tuple[str]:
    try:
        fit(model, data, cross_entropy, adam, config, prepare=doubled)
    except ConfigError as error:
        return (str(error),)
    return ("",)


def killed_run(folder: str, fleet: int, epochs: int, workers: int, pause: float) -> tuple[str, dict[str, list[float]]]:
    """Writes down which samples each step had; whoever starts it kills it."""
    log = Path(folder) / f"fleet{fleet}-rank{find_place().rank}"
    log.parent.mkdir(exist_ok=True)
    model = plain_model()
    config = dataclasses.replace(CONFIG, max_epochs=epochs, checkpoints=f"{folder}/run", checkpoint_every=2,
                                 workers=workers, resume="auto", csv=f"{folder}/history.csv")  # fmt: skip
    with Run(model, Pairs(), adam, config, prepare=doubled, schedule=SCHEDULE) as run, log.open("w") as file:
        for step in run:
            for part in step.parts():
                step.backward(cross_entropy(model(part.inputs), part.targets), part.samples)
            step.update()
            file.write(f"{step.number} {' '.join(map(str, step.ids.tolist()))}\n")
            file.flush()
            time.sleep(pause)
    return weights_sha256(model), numbers(model)


class _BrokenError(Exception):
    pass


def broken_at(folder: str, step: int) -> tuple[str, ...]:
    """Batch norm, dropout, parts and an average; ends without a word after a step."""

    def tell(event: str, state: FitState) -> None:
        if event == "step" and state.step == step:
            raise _BrokenError

    config = dataclasses.replace(CONFIG, checkpoints=folder, checkpoint_every=3, resume="auto", micro_batch=2)
    model = Model()
    try:
        fit(model, Pairs(), cross_entropy, adam, config, schedule=SCHEDULE, on_event=tell)
    except _BrokenError:
        return ()
    return (weights_sha256(model),)
