from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.train import TrainConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_epochs", 0),
        ("max_epochs", 1.5),
        ("max_epochs", True),
        ("max_steps", 0),
        ("batch_size", 0),
        ("batch_size", "128"),
        ("seed", -1),
        ("seed", 2**64),
        ("workers", -1),
        ("prefetch", 0),
        ("shuffle", "every-epoch"),
        ("last_batch", "wrap"),
        ("device", "gpu"),
        ("device", "cuda:"),
        ("device", 0),
        ("validate_every", 0),
        ("validate_every", "step"),
        ("patience", 0),
        ("keep", "first"),
        ("log_every", 0),
        ("csv", 3),
        ("progress", True),
        ("overlap", "yes"),
        ("rank_timeout", 0),
        ("rank_timeout", float("inf")),
        ("rank_timeout", True),
        ("on_nonfinite", "skip"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**{name: value})
    assert str(caught.value).startswith(f"{name} must be")


def test_good_values_are_kept_as_they_are() -> None:
    given = {"max_epochs": 3, "max_steps": 7, "device": "cuda:11", "validate_every": 5, "patience": 2, "csv": Path("a")}
    config = TrainConfig(**given, keep="best", seed=2**64 - 1)
    assert given.items() <= asdict(config).items()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TrainConfig().seed = 1
