"""Draws of torch in terms of the three that are recorded: bernoulli, rand and randn.

`torch.func.vmap` gives each sample its own numbers for these three. It silently shares the numbers
of others (uniform, exponential), which are therefore recorded in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

aten = torch.ops.aten

BASIC_DRAWS = {"bernoulli", "rand", "rand_like", "randn", "randn_like"}
"""Draws that are different in each sample under vmap; a test shows it for each."""


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = aten.bernoulli(torch.empty_like(x), 1 - p)
    return x * (mask / (1 - p)), mask


def _rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    if not training:
        return functional.leaky_relu(x, (lower + upper) / 2), noise
    slope = lower + (upper - lower) * torch.rand_like(x)
    return torch.relu(x) - slope * torch.relu(-x), noise


def _uniform(x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return low + (high - low) * torch.rand_like(x)


def _exponential(x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    return -torch.log(torch.rand_like(x)) / rate


def _normal(x: Tensor, mean: Any = 0.0, sd: Any = 1.0, **_: Any) -> Tensor:
    return mean + sd * torch.randn_like(x)


def _normal_of(mean: Any, sd: Any = 1.0, **_: Any) -> Tensor:
    like = mean if isinstance(mean, Tensor) else sd
    return mean + sd * torch.randn_like(like)


def _normal_of_size(mean: float, sd: float, size: Any, **options: Any) -> Tensor:
    options.pop("generator", None)
    return mean + sd * torch.randn(size, **options)


_PARTS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten.uniform.default: _uniform,
    aten.exponential.default: _exponential,
    aten.normal_functional.default: _normal,
    aten.normal.Tensor_float: _normal_of,
    aten.normal.Tensor_Tensor: _normal_of,
    aten.normal.float_Tensor: _normal_of,
    aten.normal.float_float: _normal_of_size,
}


@cache
def decompose_draw(func: Any) -> Callable[..., Any] | None:
    """Return a draw in terms of the basic ones, None where it is basic or no draw."""
    return _PARTS.get(func)
