"""What functions that take one tensor with units do to the axis of the units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from overt.nn.compression.units import Carried, Ids
from overt.nn.recording.recorder import Operation
from overt.nn.recording.watching import Extent

Shape = tuple[int, ...]
Moved = tuple[int, Ids]
RESHAPES = ("view", "reshape", "flatten", "unflatten")


def moved(op: Operation, x: Carried, before: Shape) -> Carried | str | None:
    """Return the units after an operation, a reason to hold them, or None: not known.

    `before` is the shape of the tensor that it takes, its first argument.
    """
    if len(op.outputs) != 1:
        return None
    try:
        found = _moved(op, before, op.output.shape, x.axis, x.ids)
    except (TypeError, ValueError, IndexError):  # arguments given in a way that is not foreseen
        return None
    if not isinstance(found, tuple):
        return found
    axis, ids = found
    return replace(x, axis=axis, ids=ids) if op.output.shape[axis] == len(ids) else None


def _moved(op: Operation, before: Shape, after: Shape, axis: int, ids: Ids) -> Moved | str | None:
    ndim, kind = len(before), op.kind
    silent = kind.values == "random" and not op.random  # dropout in evaluation mode, and the like
    if kind.units in ("pass", "drop") or silent:
        return (axis, ids) if before == after else None
    if kind.units == "spatial":
        return (axis, ids) if axis == 1 and len(after) == ndim > 2 else None
    if kind.units == "normalize":
        dim = op.kwargs.get("dim", 1) if op.name == "normalize" else op.argument(1, "dim")
        return (axis, ids) if isinstance(dim, int) and dim % ndim != axis else None
    if kind.units == "reduce":
        return _reduce(op, ndim, len(after) == ndim, axis, ids)
    if op.name in RESHAPES:
        return _reshape(op, before, axis, ids, after)
    match op.name:
        case "permute":
            dims = [d % ndim for d in _sequence(op.args[1:]) or op.kwargs["dims"]]
            return dims.index(axis), ids
        case "transpose":
            a, b = (d % ndim for d in _sequence(op.args[1:]))
            return {a: b, b: a}.get(axis, axis), ids
        case "unsqueeze":
            return axis + (op.argument(1, "dim", 0) % (ndim + 1) <= axis), ids
        case "squeeze":
            return _squeeze(op, before, axis, ids)
        case "expand":
            return (axis, ids) if len(after) == ndim and after[axis] == before[axis] else None
        case "pad":  # pairs of sizes, for the last axes first
            padded = len(_sequence((op.argument(1, "pad"),))) // 2
            return (axis, ids) if axis < ndim - padded else None
        case "getitem":
            return _index(op.args[1], axis, ids, before)
    return None


def reshaped(before: Shape, axis: int, ids: Ids, after: Shape) -> Moved | None:
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


def _reshape(op: Operation, before: Shape, axis: int, ids: Ids, after: Shape) -> Moved | str | None:
    found = reshaped(before, axis, ids, after)
    if found is None:
        return f"{op.name} in the forward pass splits the axis of its units"
    sizes = _sequence(op.args[1:]) or _sequence((op.kwargs.get("shape", ()),))
    if op.name in ("view", "reshape") and len(sizes) == len(after):
        given = sizes[found[0]]
        if isinstance(given, int) and given != -1 and not isinstance(given, Extent):
            return f"{op.name} in the forward pass names the number of its units, {given}"
    return found


def _squeeze(op: Operation, before: Shape, axis: int, ids: Ids) -> Moved | None:
    dim = op.argument(1, "dim")
    if dim is None:
        if before[axis] == 1:
            return None
        return axis - sum(size == 1 for size in before[:axis]), ids
    dims = {d % len(before) for d in _sequence((dim,))}
    if axis in dims and before[axis] == 1:
        return None
    return axis - sum(before[d] == 1 for d in dims if d < axis), ids


def _reduce(op: Operation, ndim: int, kept: bool, axis: int, ids: Ids) -> Moved | str:
    """Follow a sum over some axes, which are `kept` with one entry or taken away."""
    dims = op.argument(2 if op.name == "norm" else 1, "dim", op.kwargs.get("axis"))
    all_axes = dims is None or isinstance(dims, bool)
    chosen = set(range(ndim)) if all_axes else {d % ndim for d in _sequence((dims,))}
    if axis in chosen:
        return f"{op.name} in the forward pass runs over its units"
    return (axis if kept else axis - sum(d < axis for d in chosen)), ids


def _index(index: Any, axis: int, ids: Ids, before: Shape) -> Moved | None:
    """Follow the units' axis through x[index] with whole numbers, slices, None and ..."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
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
