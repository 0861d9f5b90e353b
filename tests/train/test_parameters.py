import pytest
import torch
from torch import nn

from headrace.errors import ConfigError
from headrace.train import decay_groups


def test_weights_are_decayed_and_nothing_else() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2), nn.Embedding(3, 2))
    model[0].weight.requires_grad_(False)
    groups = decay_groups(model, 0.1, without=["4.weight"])
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [id(p) for p in groups[0]["params"]] == [id(model[3].weight)]
    every = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for group in groups for p in group["params"]} == every
    torch.optim.AdamW(groups, lr=0.1)


def test_groups_are_never_empty() -> None:
    assert len(decay_groups(nn.BatchNorm2d(3), 0.1)) == 1
    assert len(decay_groups(nn.Linear(2, 2, bias=False), 0.1)) == 1


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="weight_decay must be at least 0"):
        decay_groups(nn.Linear(1, 1), -1)
    with pytest.raises(ConfigError, match=r"Linear has no trainable parameters named \['wait'\]"):
        decay_groups(nn.Linear(1, 1), 0.1, without=["wait"])
