"""What functions and methods that only move entries do to the axis of units."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from overt.nn.compression.units import Ids

PASSING = frozenset((
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "celu",
    "gelu", "silu", "mish", "sigmoid", "logsigmoid", "tanh", "softplus", "softsign",
    "tanhshrink", "hardtanh", "hardswish", "hardsigmoid", "threshold", "abs", "exp", "log",
    "sqrt", "rsqrt", "square", "neg", "sin", "cos", "erf", "clamp", "clip", "contiguous",
    "clone", "detach", "to", "float", "double", "half", "bfloat16", "type_as", "type", "cpu",
    "cuda", "nan_to_num", "pow",
))  # fmt: skip
SPATIAL = frozenset((
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "interpolate",
))  # fmt: skip
BINARY = frozenset((
    "add", "sub", "mul", "truediv", "div", "true_divide", "iadd", "isub", "imul", "itruediv",
    "add_", "sub_", "mul_", "div_", "maximum", "minimum", "rsub",
))  # fmt: skip
DROPOUTS = frozenset((
    "dropout", "dropout1d", "dropout2d", "dropout3d",
))  # fmt: skip
QUESTIONS = frozenset((
    "size", "dim", "getattr", "getitem", "numel", "_assert", "eq", "ne", "lt", "gt", "le", "ge",
    "mul", "add", "sub", "floordiv", "truediv", "mod", "int", "is_floating_point",
))  # fmt: skip
"""Operations whose answer is not a tensor and needs no unit in particular."""
REDUCING = frozenset((
    "mean", "sum", "amax", "amin", "std", "var", "norm",
))  # fmt: skip

Moved = tuple[int, Ids]


def argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    """Return an argument of a call, given by place or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def functional_dropout(node: fx.Node) -> bool:
    """Whether a call of a dropout function drops anything in training."""
    p = argument(node, 1, "p", 0.5)
    return isinstance(p, (int, float)) and p > 0


def moved(
    node: fx.Node,
    name: str,
    before: tuple[int, ...],
    axis: int,
    ids: Ids,
    after: tuple[int, ...],
) -> Moved | str | None:
    """Return the axis of the units after an operation, a reason to hold them, or None: unknown."""
    try:
        found = _moved(node, name, before, axis, ids, after)
    except (TypeError, ValueError, IndexError):  # arguments given in a way that is not foreseen
        return None
    if isinstance(found, tuple) and after[found[0]] != len(found[1]):
        return None
    return found


def _moved(
    node: fx.Node,
    name: str,
    before: tuple[int, ...],
    axis: int,
    ids: Ids,
    after: tuple[int, ...],
) -> Moved | str | None:
    ndim = len(before)
    if name in PASSING or name in DROPOUTS:
        return (axis, ids) if before == after else None
    if name in SPATIAL:
        return (axis, ids) if axis == 1 and len(after) == ndim > 2 else None
    if name in ("softmax", "log_softmax", "normalize"):
        dim = argument(node, 1, "dim", None) if name != "normalize" else node.kwargs.get("dim", 1)
        ok = isinstance(dim, int) and dim % ndim != axis
        return (axis, ids) if ok else None
    if name in ("view", "reshape", "flatten"):
        return _reshape(node, name, before, axis, ids, after)
    if name == "permute":
        dims = [d % ndim for d in _sequence(node.args[1:])]
        return dims.index(axis), ids
    if name in ("transpose", "swapaxes"):
        a, b = (d % ndim for d in _sequence(node.args[1:]))
        return {a: b, b: a}.get(axis, axis), ids
    if name == "unsqueeze":
        dim = argument(node, 1, "dim", 0) % (ndim + 1)
        return axis + (dim <= axis), ids
    if name == "squeeze":
        return _squeeze(node, before, axis, ids, after)
    if name in REDUCING:
        return _reduce(node, name, before, axis, ids)
    if name == "expand":
        return (axis, ids) if len(after) == ndim and after[axis] == before[axis] else None
    if name == "getitem":
        return _index(node.args[1], axis, ids, before)
    return None


def reshaped(before: tuple[int, ...], axis: int, ids: Ids, after: tuple[int, ...]) -> Moved | None:
    """Return the units' axis after a reshape, None if no single axis of the result tells them."""
    if len(ids) == 1:
        return None
    if axis > 0 and len(after) > 1 and before[0] == after[0]:
        found = reshaped(before[1:], axis - 1, ids, after[1:])
        return None if found is None else (found[0] + 1, found[1])
    line = np.arange(len(ids)).reshape([-1 if i == axis else 1 for i in range(len(before))])
    places = np.broadcast_to(line, before).reshape(after)
    for new, size in enumerate(after):
        along = np.moveaxis(places, new, -1).reshape(-1, size)
        if (along == along[0]).all():
            return new, ids[along[0]]
    return None


def _reshape(
    node: fx.Node, name: str, before: tuple[int, ...], axis: int, ids: Ids, after: tuple[int, ...]
) -> Moved | str | None:
    found = reshaped(before, axis, ids, after)
    if found is None:
        return f"{name} in the forward pass splits the axis of its units"
    if name == "flatten":
        return found
    sizes = _sequence(node.args[1:]) or _sequence((node.kwargs.get("shape", ()),))
    given = sizes[found[0]] if len(sizes) == len(after) else None
    if isinstance(given, int) and given != -1:
        return f"{name} in the forward pass names the number of its units, {given}"
    return found


def _squeeze(
    node: fx.Node, before: tuple[int, ...], axis: int, ids: Ids, after: tuple[int, ...]
) -> Moved | None:
    dim = argument(node, 1, "dim", None)
    if dim is None:
        if before[axis] == 1:
            return None
        return axis - sum(size == 1 for size in before[:axis]), ids
    dims = {d % len(before) for d in _sequence((dim,))}
    if axis in dims and before[axis] == 1:
        return None
    return axis - sum(before[d] == 1 for d in dims if d < axis), ids


def _reduce(
    node: fx.Node, name: str, before: tuple[int, ...], axis: int, ids: Ids
) -> Moved | str | None:
    place = 2 if name == "norm" else 1
    dims = argument(node, place, "dim", node.kwargs.get("axis"))
    if dims is None or (name in ("std", "var") and isinstance(dims, bool)):
        return f"{name} in the forward pass runs over its units"
    chosen = {d % len(before) for d in _sequence((dims,))}
    if axis in chosen:
        return f"{name} in the forward pass runs over its units"
    if node.kwargs.get("keepdim", False) or (len(node.args) > 2 and node.args[2] is True):
        return axis, ids
    return axis - sum(d < axis for d in chosen), ids


def _index(index: Any, axis: int, ids: Ids, before: tuple[int, ...]) -> Moved | None:
    """Follow the units' axis through x[index] with whole numbers, slices, None and ..."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        missing = len(before) - sum(part is not None for part in parts) + 1
        parts[at : at + 1] = [slice(None)] * missing
    old, new = 0, 0
    for part in parts:
        if part is None:
            new += 1
            continue
        if not isinstance(part, (int, slice)):
            return None
        if old == axis:
            return (new, ids) if part == slice(None) else None
        old += 1
        new += isinstance(part, slice)
    return new + axis - old, ids


def _sequence(args: Any) -> list[Any]:
    """Return arguments that may be given one by one or as one list."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return list(args[0])
    return [a for a in args if a is not None and a != ()]
