"""Mean, variance and distribution function of the numbers that a call draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from overt.nn.recording.watching import Call

Drawn = tuple[Tensor, Tensor, Callable[[float], float] | None]


def _number(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(float(value))


def _coins(call: Call) -> Drawn:
    q = call.argument(1, "p")
    q = _number(call.args[0] if q is None and not call.inplace else 0.5 if q is None else q)
    return q, q * (1 - q), None


def _uniform(low: Any, high: Any) -> Drawn:
    low, high = float(low), float(high)

    def cdf(x: float) -> float:
        return min(max((x - low) / (high - low), 0.0), 1.0)

    return _number((low + high) / 2), _number((high - low) ** 2 / 12), cdf


def _normal(mean: Any, sd: Any) -> Drawn:
    m, s = _number(mean), _number(sd)

    def cdf(x: float) -> float:
        return 0.5 * math.erfc((float(m) - x) / (float(s) * math.sqrt(2)))

    return m, s * s, cdf if m.numel() == s.numel() == 1 else None


def _exponential(rate: float) -> Drawn:
    return _number(1 / rate), _number(rate**-2), lambda x: -math.expm1(-rate * max(x, 0.0))


MOMENTS: dict[str, Callable[[Call], Drawn]] = {
    "bernoulli": _coins,
    "rand": lambda call: _uniform(0, 1),
    "rand_like": lambda call: _uniform(0, 1),
    "randn": lambda call: _normal(0, 1),
    "randn_like": lambda call: _normal(0, 1),
    "uniform": lambda call: _uniform(call.argument(1, "from", 0), call.argument(2, "to", 1)),
    "normal": lambda call: _normal(
        call.argument(int(call.inplace), "mean", 0), call.argument(1 + call.inplace, "std", 1)
    ),
    "exponential": lambda call: _exponential(float(call.argument(1, "lambd", 1.0))),
}
