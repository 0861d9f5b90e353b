import hashlib

import pytest
import torch
from torch import nn

from headrace.errors import ConfigError
from headrace.train import weights_sha256


class Holder(nn.Module):
    """A module with just these buffers."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def test_the_digest_is_over_sorted_names_dtypes_shapes_and_bytes() -> None:
    model = Holder(b=torch.tensor([[1.0], [2.0]]), a=torch.tensor(3))
    expected = hashlib.sha256(
        b"('a', 'torch.int64', ())" + (3).to_bytes(8, "little") + b"('b', 'torch.float32', (2, 1))"
        b"\x00\x00\x80\x3f\x00\x00\x00\x40"
    ).hexdigest()  # fmt: skip
    assert weights_sha256(model) == expected


@pytest.mark.parametrize(
    "other",
    [
        Holder(x=torch.tensor([[0.0, 1.0]])),
        Holder(y=torch.tensor([0.0, 1.0])),
        Holder(x=torch.tensor([0.0, 1.0], dtype=torch.float64)),
        Holder(x=torch.tensor([-0.0, 1.0])),
        Holder(x=torch.tensor([0.0, 1.0000001])),
        Holder(x=torch.tensor([1.0, 0.0])),
    ],
)
def test_any_difference_shows(other: nn.Module) -> None:
    assert weights_sha256(other) != weights_sha256(Holder(x=torch.tensor([0.0, 1.0])))


def test_memory_layout_and_gradients_play_no_part() -> None:
    plain = nn.Conv2d(3, 4, 3)
    twin = nn.Conv2d(3, 4, 3)
    twin.load_state_dict(plain.state_dict())
    twin.to(memory_format=torch.channels_last)
    twin.weight.grad = torch.ones_like(twin.weight)
    assert not twin.weight.is_contiguous()
    assert weights_sha256(plain) == weights_sha256(twin)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_every_dtype_has_bytes(dtype: torch.dtype) -> None:
    one, two = (Holder(x=torch.tensor([value, 1.0]).to(dtype)) for value in (0.0, 1.0))
    assert weights_sha256(one) != weights_sha256(two)
    assert len(weights_sha256(Holder(x=torch.empty(0, dtype=dtype)))) == 64


def test_what_has_no_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'x' of Holder is .*not a dense tensor"):
        weights_sha256(Holder(x=torch.eye(2).to_sparse()))
