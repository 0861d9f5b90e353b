"""How a training run is done: every choice in one frozen value that is checked before anything runs."""

import math
import os
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ..datastores.plan import LastBatch, Shuffle
from ..errors import ConfigError
from .clipping import Clip, check_clip

__all__ = ["DEFAULTS", "Keep", "OnNonfinite", "ProgressStyle", "Resume", "TrainConfig"]

Keep: TypeAlias = Literal["last", "best"]
Resume: TypeAlias = Literal["never", "auto"]
ProgressStyle: TypeAlias = Literal["bar", "lines", "none"]
OnNonfinite: TypeAlias = Literal["stop"]

_CHOICES = {"shuffle": Shuffle, "last_batch": LastBatch, "keep": Keep, "progress": ProgressStyle, "resume": Resume}
_LEAST = {"max_epochs": 1, "batch_size": 1, "seed": 0, "prefetch": 1, "log_every": 1}
_LEAST_OR_NONE = {"max_steps": 1, "patience": 1, "micro_batch": 1, "keep_checkpoints": 1}
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """The settings of a run. All counts are optimizer steps, epochs or samples; only ``rank_timeout`` is in seconds.

    Args:
        max_epochs: passes over the data, at least 1; counted from the start of the loader's epoch 0.
        max_steps: optimizer steps after which the run ends even inside an epoch; None: no such limit.
        batch_size: rows of a global batch: of all ranks together, where several train one model.
        seed: 0 <= seed < 2**64, of the order of samples, of augmentation, and of what the model draws (dropout).
        workers: background processes that make batches; 0: this process does; "auto": as many as it takes.
        prefetch: batches that are made ahead of the one in use.
        micro_batch: rows that go through the model together on one rank; a step then takes several passes, and its
            gradient is that of the whole batch. None: the whole batch.
        clip: gradients that are too long are shortened before each update: ("norm", 1.0) all together, ("each", 1.0)
            each parameter's alone, ("value", 1.0) number by number. None: never.
        ema_decay: in 0 .. 1: an exponential moving average of the weights is kept with this decay, validated instead of
            the weights, and what the model has at the end. None: no average.
        shuffle: order of samples: "global", "window", "once" or "never" (see ``Plan``).
        last_batch: of an epoch, when the samples do not fill it: "drop", "pad" or "keep". Rows that only pad a batch
            count neither in the loss nor in metrics.
        device: "auto" (the first NVIDIA GPU if there is one, else the CPU), "cpu", "cuda" or "cuda:1". Of several ranks
            on one machine, each takes the GPU of its local rank under "auto" and "cuda".
        validate_every: "epoch", or a number of steps. The last step is always followed by a validation.
        patience: the run ends after this many validations in a row whose loss is not below the best one so far; None:
            it never ends for that.
        keep: the weights that the model has at the end: those of the "last" step, or those of the "best" validation
            (the lowest loss). "best" keeps one copy of the weights in CPU memory.
        log_every: steps between two rows of the history. On a GPU the loss is read from the device only then.
        checkpoints: a folder for checkpoints, from which a run can be continued; None: none. With it, SIGTERM (which a
            scheduler sends before it takes a machine away) ends the run after the step it came in, saves, and exits
            with status 143.
        checkpoint_every: "epoch", or a number of steps. The last step is always saved.
        keep_checkpoints: the newest ones that stay; None: all.
        resume: "never": the folder must have no checkpoints yet. "auto": the run continues from the newest one if there
            is any, and says so.
        csv: a file that receives the history row by row; it must not exist yet, unless the run
            is continued. None: none.
        progress: "bar" (where stderr is no terminal: "lines"), "lines" (one for each row of the history) or "none".
        overlap: several ranks add up gradients while the backward pass goes on, not after it. That pays where the
            network between them is slow, and costs the host some time for each parameter.
        rank_timeout: seconds that a rank waits for the others before it ends with an error.
        on_nonfinite: what happens when a loss is NaN or infinite. "stop": the run ends and says which step and samples.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> TrainConfig(max_epochs=90, batch_size=256).last_batch
        'drop'
    """

    max_epochs: int = 1
    max_steps: int | None = None
    batch_size: int = 128
    seed: int = 0
    micro_batch: int | None = None
    clip: Clip | None = None
    ema_decay: float | None = None
    workers: int | Literal["auto"] = 0
    prefetch: int = 4
    shuffle: Shuffle = "global"
    last_batch: LastBatch = "drop"
    device: str = "auto"
    validate_every: int | Literal["epoch"] = "epoch"
    patience: int | None = None
    keep: Keep = "last"
    log_every: int = 50
    checkpoints: str | os.PathLike[str] | None = None
    checkpoint_every: int | Literal["epoch"] = "epoch"
    keep_checkpoints: int | None = 3
    resume: Resume = "never"
    csv: str | os.PathLike[str] | None = None
    progress: ProgressStyle = "bar"
    overlap: bool = False
    rank_timeout: float = 600.0
    on_nonfinite: OnNonfinite = "stop"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _check_count(name, getattr(self, name), least)
        for name, least in _LEAST_OR_NONE.items():
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), least)
        for name, choices in (*_CHOICES.items(), ("on_nonfinite", OnNonfinite)):
            _check_choice(name, getattr(self, name), get_args(choices))
        check_clip(self.clip)
        _check_decay(self.ema_decay)
        _check_seconds("rank_timeout", self.rank_timeout)
        _check_choice("overlap", self.overlap, (True, False))
        if self.seed >= 2**64:
            raise ConfigError(f"seed must be below 2**64, got {self.seed}")
        if self.workers != "auto":
            _check_count("workers", self.workers, 0, 'or "auto"')
        for name in ("validate_every", "checkpoint_every"):
            if getattr(self, name) != "epoch":
                _check_count(name, getattr(self, name), 1, 'or "epoch"')
        if not (isinstance(self.device, str) and _DEVICE.fullmatch(self.device)):
            raise ConfigError(f'device must be "auto", "cpu", "cuda" or "cuda:<number>", got {self.device!r}')
        _check_path("csv", self.csv)
        _check_path("checkpoints", self.checkpoints)


def _check_count(name: str, value: Any, least: int, alternative: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        wanted = f"a whole number >= {least} {alternative}".strip()
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")


def _check_path(name: str, value: Any) -> None:
    if not (value is None or isinstance(value, (str, os.PathLike))):
        raise ConfigError(f"{name} must be a path or None, got {value!r}")


def _check_decay(decay: Any) -> None:
    if decay is not None and not (isinstance(decay, float) and 0 <= decay < 1):
        raise ConfigError(f"ema_decay must be a float of at least 0 and below 1, or None, got {decay!r}")


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number of seconds above 0, got {value!r}")


def _check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


#: What a run does unless it is told otherwise.
DEFAULTS = TrainConfig()
