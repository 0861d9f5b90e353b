"""One short text that two models share exactly when all their weights are the same, bit for bit."""

import hashlib

import torch
from torch import nn

from ..errors import ConfigError

__all__ = ["weights_sha256"]


def weights_sha256(model: nn.Module) -> str:
    """Return a SHA-256 over all parameters and buffers: their names, dtypes, shapes and bytes, sorted by name.

    The device plays no part. Two zeros of different sign, or two NaNs of different payload, are different.

    Args:
        model: any module whose ``state_dict()`` holds dense tensors only.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigError: an entry of the state is not a dense tensor.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = weights_sha256(layer)
        >>> _ = nn.init.zeros_(layer.bias)
        >>> before == weights_sha256(layer)
        False
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise ConfigError(
                f"{name!r} of {type(model).__name__} is {type(value).__name__}, not a dense tensor: only dense "
                "parameters and buffers have bytes that can be compared"
            )
        # repr ends a name unambiguously, and the shape fixes the number of bytes that follow
        digest.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()
