"""Apply the rule of an operation, and decide which operations are recorded in parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.draws import decompose_draw
from overt.nn.graph.record import Call, LayerNoise, aten, core_decomposition, op_info
from overt.nn.moments import linear_rules, norm_rules  # noqa: F401 (they register their rules)
from overt.nn.moments.noise_rules import draw
from overt.nn.moments.pointwise_rules import is_pointwise, pointwise
from overt.nn.moments.registry import EXACT_OPERATIONS, RULES, find_values
from overt.nn.moments.unknown_ops import unknown_operation
from overt.nn.moments.values import Propagation

HALF_PRECISION = (torch.float16, torch.bfloat16)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


@cache
def decompose(func: Any) -> Callable[..., Any] | None:
    """Return an operation's parts, None where there is a rule for the whole."""
    if func is aten.glu.default:
        return _glu
    parts = decompose_draw(func)
    if parts is not None:
        return parts
    if func.overloadpacket in RULES or op_info(func).draws or is_pointwise(func):
        return None
    return core_decomposition(func)


IDENTITY = {aten.alias, aten.clone, aten.detach, aten.lift_fresh, aten.lift_fresh_copy}
"""Operations whose result is a function of the same root: the argument itself."""


def apply_rule(run: Propagation, call: Call, args: Any, kwargs: Any) -> Any:
    """Return what comes out of a call: a value, a tensor, or a list of them."""
    func = call.func
    name = op_info(func).name
    if not isinstance(func, LayerNoise) and func.overloadpacket in IDENTITY:
        return args[0]
    if isinstance(func, LayerNoise) or op_info(func).draws:
        out: Any = draw(run, call, args)
    elif is_pointwise(func):
        if kwargs.get("dtype") in HALF_PRECISION:
            kwargs = {**kwargs, "dtype": torch.float32}
        out = pointwise(run, func, args, kwargs)
    else:
        out = RULES.get(func.overloadpacket, unknown_operation)(run, func, args, kwargs)
    given = find_values((args, kwargs))
    if name not in EXACT_OPERATIONS or not all(value.enumerated for value in given):
        for value in find_values(out if isinstance(out, (list, tuple)) else (out,)):
            value.enumerated = False
    return out
