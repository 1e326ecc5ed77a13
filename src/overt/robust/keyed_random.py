"""Random numbers that belong to a point, not to its place in a batch.

Each row's numbers are a function of the seed and of the row's own content, so that a perturbation
does not depend on the batch size, on the order of the points, or on which of them were left out.
The generator is splitmix64 in counter mode; int64 arithmetic wraps around, which is what it needs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def keys_of(x: Tensor, seed: int) -> Tensor:
    """Return one key (points,) for each row of x from its content and the seed."""
    bits = x.flatten(1).to(torch.float64).contiguous().view(torch.int64)
    place = torch.arange(1, bits.shape[1] + 1, device=x.device) * _GOLDEN
    return _mix(
        _mix(bits ^ place).sum(1)
        + _mix(torch.tensor(seed % (1 << 63), device=x.device))
    )


def uniform(keys: Tensor, width: int, like: Tensor, *, stream: int = 0) -> Tensor:
    """Return numbers in (0, 1), (keys, width), with the type and device of `like`."""
    counter = torch.arange(1, width + 1, device=keys.device) + (stream << 40)
    bits = _mix(keys[:, None] + counter * _GOLDEN)
    top = (bits >> 11) & ((1 << 53) - 1)
    value = (top.to(torch.float64) + 0.5) * 2.0**-53
    return value.to(like.dtype).clamp_(max=1 - torch.finfo(like.dtype).eps / 2)


def normal(keys: Tensor, width: int, like: Tensor) -> Tensor:
    """Return standard normal numbers, (keys, width), by the Box-Muller transform."""
    half = (width + 1) // 2
    length = (-2 * uniform(keys, half, like).log_()).sqrt_()
    angle = 2 * math.pi * uniform(keys, half, like, stream=1)
    return torch.cat([length * angle.cos(), length * angle.sin()], 1)[:, :width]


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, by: int) -> Tensor:
    """Return the logical (unsigned) right shift."""
    return (z >> by) & ((1 << (64 - by)) - 1)
