"""Slots that a GPU copies from directly."""

import gc

import pytest
import torch
from toys import Noise, digest

from headrace.datastores import Loader
from headrace.errors import ConfigError

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine can pin")
@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_gpu_it_is_a_clear_error(workers: int) -> None:
    with pytest.raises(ConfigError, match="pin_memory needs an NVIDIA GPU"):
        list(Loader(Noise(), 10, workers=workers, start_method="fork", pin_memory=True))


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned_and_have_the_same_bits(workers: int) -> None:
    torch.cuda.init()
    with Loader(Noise(), 10, workers=workers, pin_memory=True) as loader:
        batches = list(loader)  # kept, so the ring grows: new extents are pinned too
        assert all(batch.images.is_pinned() for batch in batches)
        on_gpu = [batch.to("cuda", non_blocking=True) for batch in batches]
    assert all(batch.images.is_contiguous(memory_format=torch.channels_last) for batch in on_gpu)
    assert digest([batch.to("cpu") for batch in on_gpu]) == digest(Loader(Noise(), 10))


@pytest.mark.cuda
@needs_gpu
def test_pinned_memory_is_given_back() -> None:
    torch.cuda.init()
    for _ in range(20):  # an address that is still registered cannot be registered again
        with Loader(Noise(8, (2048, 2048, 3)), 4, prefetch=8, pin_memory=True) as loader:
            batch = next(iter(loader))
        assert batch.images.is_pinned()
        del batch, loader
        gc.collect()
    assert torch.ones(3, device="cuda").sum().item() == 3, "no error of an earlier call surfaces"
