"""The loaders of a run: made from data and settings, or given ready-made."""

from typing import Any, Literal, TypeAlias

from ..datastores.datastore import Datastore, SupportsIndex, as_datastore
from ..datastores.loader import Loader
from ..errors import ConfigError
from .config import DEFAULTS, TrainConfig
from .distributed import ALONE, Place

__all__ = ["Data", "check_same_classes", "class_names", "evaluation_loader", "training_loader"]

#: What can be trained on: a datastore, any object with ``__len__`` and ``__getitem__``, or a ready Loader.
Data: TypeAlias = Datastore | SupportsIndex | Loader


def training_loader(data: Data, config: TrainConfig, place: Place, *, pin_memory: bool = False) -> Loader:
    """Return ``data`` itself if it is a loader, or one that is made as ``config`` says.

    Args:
        data: what is trained on.
        config: the run's settings.
        place: of this process; a loader that is given must be made for it.
        pin_memory: let a GPU copy from the batches directly.

    Raises:
        ConfigError: a setting was given to both and differs, the data cannot fill a batch, or a loader skips samples.
    """
    if not isinstance(data, Loader):
        return Loader(
            data,
            config.batch_size,
            seed=config.seed,
            workers=config.workers,
            prefetch=config.prefetch,
            shuffle=config.shuffle,
            last_batch=config.last_batch,
            rank=place.rank,
            world_size=place.world_size,
            pin_memory=pin_memory,
        )
    _check_place(data, place, "training")
    if data.on_error.action == "skip":
        raise ConfigError(
            "the Loader skips samples that cannot be made, so its batches may be short, and training would weigh them "
            'wrongly: make it with on_error="substitute"'
        )
    plan = data.plan
    settings = {
        "batch_size": plan.batch_size,
        "seed": plan.seed,
        "workers": data.workers,
        "prefetch": data.prefetch,
        "shuffle": plan.shuffle,
        "last_batch": plan.last_batch,
    }
    for name, found in settings.items():
        asked = getattr(config, name)
        if asked not in (found, getattr(DEFAULTS, name)):
            raise ConfigError(
                f"TrainConfig says {name}={asked!r}, but the Loader was made with {found!r}: a ready Loader brings its "
                "own settings, so leave this one out of the TrainConfig"
            )
    return data


def class_names(data: Data) -> tuple[str, ...]:
    """Return the names that the data, or what they are made from, give to class numbers; empty: none."""
    source: Any = data.data if isinstance(data, Loader) else data
    while not hasattr(source, "classes") and hasattr(source, "source"):
        source = source.source
    return tuple(getattr(source, "classes", ()))


def check_same_classes(data: Data, validation: Data) -> None:
    """Raise ConfigError if both have names for their classes, and number them differently."""
    ours, theirs = class_names(data), class_names(validation)
    if not ours or not theirs or ours == theirs:
        return
    wrong = next(number for number in range(max(len(ours), len(theirs))) if ours[number:][:1] != theirs[number:][:1])
    shown = [f"{names[wrong]!r}" if wrong < len(names) else "none" for names in (ours, theirs)]
    raise ConfigError(
        f"the training data have {len(ours)} classes and the validation data {len(theirs)}, and they number them "
        f"differently: class {wrong} is {shown[0]} in one and {shown[1]} in the other; make both with one list of "
        "classes"
    )


def evaluation_loader(
    data: Data,
    what: str,
    *,
    batch_size: int,
    workers: int | Literal["auto"],
    place: Place = ALONE,
    prefetch: int = DEFAULTS.prefetch,
    seed: int = 0,
) -> Loader:
    """Return a loader that gives every sample exactly once: ``data`` itself, or one that is made here.

    Args:
        data: what is evaluated.
        what: its name in errors, for example "validation".
        batch_size: rows of a batch, if there are as many samples.
        workers: background processes.
        place: of this process among those that evaluate together.
        prefetch: batches made ahead.
        seed: of augmentation, if the data are augmented.

    Raises:
        ConfigError: there are no samples, or a ready loader would leave some out, of any rank.
    """
    if isinstance(data, Loader):
        if data.plan.last_batch == "drop":
            raise ConfigError(
                f'the Loader for {what} drops the samples that do not fill a batch: make it with last_batch="keep"'
            )
        _check_place(data, place, what)
        may_be_empty = data.on_error.action == "skip" or data.plan.last_batch == "keep"
        if may_be_empty and place.world_size > 1:
            raise ConfigError(
                f"the Loader for {what} may leave a rank without rows, and what a model makes of none is not known: "
                'make it with last_batch="pad" and on_error="substitute" or "raise"'
            )
        return data
    source = as_datastore(data)
    if not len(source):
        raise ConfigError(f"{what} has no samples: give some, or leave it out")
    return Loader(
        source,
        max(min(batch_size, len(source)), place.world_size),
        seed=seed,
        workers=workers,
        prefetch=prefetch,
        shuffle="never",
        # padded, so that no rank is without rows: what a model makes of none is not known
        last_batch="keep" if place.world_size == 1 else "pad",
        rank=place.rank,
        world_size=place.world_size,
    )


def _check_place(loader: Loader, place: Place, what: str) -> None:
    if (loader.rank, loader.world_size) != (place.rank, place.world_size):
        raise ConfigError(
            f"the Loader for {what} was made with rank={loader.rank} and world_size={loader.world_size}, but this "
            f"process is {place}: make it with rank={place.rank}, world_size={place.world_size}"
        )
