import pytest
import torch
from torch import nn
from toys import Noise

from headrace.datastores import Loader
from headrace.errors import ConfigError
from headrace.train.device import DeviceFeed, choose_device, mode, restored_generators, seed_step

CPU = torch.device("cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    assert choose_device("cpu") == CPU
    found = torch.cuda.device_count()
    assert choose_device("auto").type == ("cuda" if found else "cpu")
    with pytest.raises(ConfigError, match=rf"'cuda:{found}' is not there: this machine has {found} NVIDIA GPU"):
        choose_device(f"cuda:{found}")
    with pytest.raises(ConfigError, match=rf"'cuda' of local rank {found} is not there"):
        choose_device("cuda", found)


def test_each_module_gets_its_own_mode_back_also_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[1].eval()
    with mode(model, training=True):
        assert all(module.training for module in model.modules())
    with pytest.raises(RuntimeError), mode(model, training=False):
        model(torch.zeros(1, 3))
    assert [module.training for module in model.modules()] == [True, True, False, False]


def test_the_generator_is_given_back_as_it_was() -> None:
    before = torch.get_rng_state()
    with restored_generators(CPU):
        seed_step(CPU, 1, 2, 3)
        torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_depend_on_seed_epoch_step_and_part_only() -> None:
    draws = {}
    with restored_generators(CPU):
        for key in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (2**64 - 1, 9, 9, 0)]:
            seed_step(CPU, *key)
            draws[key] = torch.rand(2).tolist()
        seed_step(CPU, 0, 0, 0)
        assert torch.rand(2).tolist() == draws[0, 0, 0, 0]
    assert len({tuple(draw) for draw in draws.values()}) == len(draws)


def test_on_the_cpu_a_batch_stays_what_it_is() -> None:
    feed = DeviceFeed(CPU)
    batch = next(iter(Loader(Noise(), batch_size=4)))
    assert feed.move(batch) is batch
    feed.mark()
    assert not feed.is_busy()
