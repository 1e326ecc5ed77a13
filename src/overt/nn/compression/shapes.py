"""What functions do to the axes of the units that a tensor carries."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from overt.nn.compression.units import Carried, Ids, Named, Wiring
from overt.nn.recording.recorder import Operation
from overt.nn.recording.watching import Extent

Shape = tuple[int, ...]
RESHAPES = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as")
Found = list[Carried | None] | str | None
"""What each result carries, a reason to hold the units, or None: not known."""


def moved(op: Operation, x: Carried, before: Shape, wiring: Wiring, model: nn.Module) -> Found:
    """Return the units after an operation; `before` is the shape of its first argument."""
    try:
        if op.name in ("unbind", "chunk"):
            return _parts(op, x, before)
        if len(op.outputs) != 1:
            return None
        if op.name == "glu":
            return _gated(op, x, before, wiring)
        if op.name in RESHAPES:
            return _reshaped(op, x, before, wiring, model)
        if op.name == "getitem":
            x = _picked(op.args[1], x, before)
        places = [_moved(op, before, op.output.shape, axis) for axis in x.axes]
    except (TypeError, ValueError, IndexError):  # arguments given in a way that is not foreseen
        return None
    kept = [axis for axis, place in zip(x.axes, places, strict=True) if isinstance(place, int)]
    if not kept:
        return next((place for place in places if isinstance(place, str)), None)
    after = tuple(place for place in places if isinstance(place, int))
    x = wiring.along(x, kept)
    fits = all(op.output.shape[a] == n for a, n in zip(after, x.ids.shape, strict=True))
    return [replace(x, axes=after)] if fits else None


def _moved(op: Operation, before: Shape, after: Shape, axis: int) -> int | str | None:
    """Return where an axis is after an operation."""
    ndim, kind = len(before), op.kind
    silent = kind.values == "random" and not op.random  # dropout in evaluation mode, and the like
    if kind.units in ("pass", "drop") or silent or op.name in ("tril", "triu"):
        return axis if before == after and not (op.name[:3] == "tri" and axis > ndim - 3) else None
    if kind.units == "spatial":
        return axis if axis == 1 and len(after) == ndim > 2 else None
    if kind.units == "normalize":
        dim = op.kwargs.get("dim", 1) if op.name == "normalize" else op.argument(1, "dim")
        return axis if isinstance(dim, int) and dim % ndim != axis else None
    if kind.units == "reduce":
        return _reduce(op, ndim, len(after) == ndim, axis)
    match op.name:
        case "permute":
            dims = [d % ndim for d in _sequence(op.args[1:]) or op.kwargs["dims"]]
            return dims.index(axis)
        case "transpose":
            a, b = (d % ndim for d in _sequence(op.args[1:]))
            return {a: b, b: a}.get(axis, axis)
        case "mT" | "T" | "t":
            return {ndim - 1: ndim - 2, ndim - 2: ndim - 1}.get(axis, axis) if ndim > 1 else axis
        case "unsqueeze":
            return axis + (op.argument(1, "dim", 0) % (ndim + 1) <= axis)
        case "squeeze":
            return _squeeze(op, before, axis)
        case "expand":
            place = axis + len(after) - ndim
            return place if after[place] == before[axis] else None
        case "pad":  # pairs of sizes, for the last axes first
            padded = len(_sequence((op.argument(1, "pad"),))) // 2
            return axis if axis < ndim - padded else None
        case "masked_fill":
            mask = op.argument(1, "mask").shape
            place = axis - ndim + len(mask)
            return axis if before == after and (place < 0 or mask[place] == 1) else None
        case "getitem":
            return _index(op.args[1], axis, before)
    return None


def _parts(op: Operation, x: Carried, before: Shape) -> Found:
    """Follow units through a tensor that is cut into equal parts along an axis."""
    dim = op.argument(2 if op.name == "chunk" else 1, "dim", 0) % len(before)
    count, gone = len(op.outputs), op.name == "unbind"
    axes = tuple(a - (gone and a > dim) for a in x.axes)
    if dim not in x.axes:
        return [replace(x, axes=axes)] * count
    at = x.axes.index(dim)
    if not gone:
        if before[dim] % count or len(x.axes) > 1:
            return None
        return [replace(x, ids=part, named=(None,)) for part in np.split(x.ids, count)]
    if len(x.axes) == 1:
        return "unbind in the forward pass takes its units apart"
    rest = axes[:at] + axes[at + 1 :]
    named = x.named[:at] + x.named[at + 1 :]
    return [
        replace(x, axes=rest, ids=np.take(x.ids, i, axis=at), named=named) for i in range(count)
    ]


def _gated(op: Operation, x: Carried, before: Shape, wiring: Wiring) -> Found:
    """Follow units through a gated linear unit: those of both halves are one."""
    if op.argument(1, "dim", -1) % len(before) not in x.axes:
        return [x]
    if len(x.axes) > 1:
        return None
    first, gate = np.split(x.ids, 2)
    wiring.units.tie(first, gate)
    return [replace(x, ids=first)]


def _picked(index: Any, x: Carried, before: Shape) -> Carried:
    """Take one entry of an axis of a table of units, as qkv[0] does."""
    for axis, part in enumerate(_indices(index, before)[0]):
        if isinstance(part, int) and axis in x.axes and len(x.axes) > 1:
            at = x.axes.index(axis)
            named = x.named[:at] + x.named[at + 1 :]
            axes = x.axes[:at] + x.axes[at + 1 :]
            x = replace(x, axes=axes, ids=np.take(x.ids, part, axis=at), named=named)
    return x


def blocks(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Return which axes of a shape become which of another: the finest parts of equal size."""
    found: list[tuple[list[int], list[int]]] = []
    old = [a for a, n in enumerate(before) if n != 1]
    new = [a for a, n in enumerate(after) if n != 1]
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        sizes = before[left[0]], after[right[0]]
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                left.append(old.pop(0))
            else:
                right.append(new.pop(0))
            sizes = math.prod(before[a] for a in left), math.prod(after[a] for a in right)
        found.append((left, right))
    return found


def rearranged(
    before: Shape, axes: Shape, ids: Ids, after: Shape
) -> tuple[tuple[int, ...], Ids] | None:
    """Return the units' axes and table after a reshape, None where units are torn apart."""
    if any(before[a] == 1 for a in axes):
        return None
    places: list[int] = []
    order: list[int] = []
    shape: list[int] = []
    sizes: list[int] = []
    for left, right in blocks(before, after):
        inside = [a for a in left if a in axes]
        if not inside:
            continue
        if len(left) > 1 and len(right) > 1:
            return None
        order += left
        shape += [before[a] if a in axes else 1 for a in left]
        places += right
        sizes += [after[a] for a in right]
    table = np.transpose(ids, [axes.index(a) for a in order if a in axes]).reshape(shape)
    full = np.broadcast_to(table, [before[a] for a in order])
    return tuple(places), full.reshape(sizes)


def _reshaped(op: Operation, x: Carried, before: Shape, wiring: Wiring, model: nn.Module) -> Found:
    after = op.output.shape
    found = rearranged(before, x.axes, x.ids, after)
    if found is None:
        return f"{op.name} in the forward pass splits the axis of its units"
    axes, ids = found
    split = len(axes) > 1
    named = tuple(_named(op, axis, after, model, split) for axis in axes)
    return [wiring.settled(replace(x, axes=axes, ids=ids, named=named))]


def _named(op: Operation, axis: int, after: Shape, model: nn.Module, split: bool) -> Named | None:
    """Return what names the length of an axis in the code, None if nothing does."""
    if op.name not in ("view", "reshape"):
        return None
    sizes = _sequence(op.args[1:]) or _sequence((op.kwargs.get("shape", ()),))
    given = sizes[axis] if len(sizes) == len(after) else -1
    if not isinstance(given, int) or given == -1 or isinstance(given, Extent):
        return None
    own = vars(model.get_submodule(op.module)).items()
    known = [key for key, value in own if type(value) is int and value == given and key[0] != "_"]
    widths = [key for key in known if any(word in key for word in ("dim", "size", "features"))]
    counts = [key for key in known if key not in widths]
    chosen = (counts or widths) if split else (widths or counts)
    reason = f"{op.name} in the forward pass names the number of its units, {given}"
    return Named(op.module, tuple(chosen), reason)


def _squeeze(op: Operation, before: Shape, axis: int) -> int | None:
    dim = op.argument(1, "dim")
    if dim is None:
        return None if before[axis] == 1 else axis - sum(size == 1 for size in before[:axis])
    dims = {d % len(before) for d in _sequence((dim,))}
    if axis in dims and before[axis] == 1:
        return None
    return axis - sum(before[d] == 1 for d in dims if d < axis)


def _reduce(op: Operation, ndim: int, kept: bool, axis: int) -> int | str:
    """Follow a sum over some axes, which are `kept` with one entry or taken away."""
    dims = op.argument(2 if op.name == "norm" else 1, "dim", op.kwargs.get("axis"))
    all_axes = dims is None or isinstance(dims, bool)
    chosen = set(range(ndim)) if all_axes else {d % ndim for d in _sequence((dims,))}
    if axis in chosen:
        return f"{op.name} in the forward pass runs over its units"
    return axis if kept else axis - sum(d < axis for d in chosen)


def _indices(index: Any, before: Shape) -> tuple[list[Any], list[Any]]:
    """Return the part of x[index] for each axis, and all parts with None for new axes."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        missing = len(before) - sum(part is not None for part in parts) + 1
        parts[at : at + 1] = [slice(None)] * missing
    return [part for part in parts if part is not None], parts


def _index(index: Any, axis: int, before: Shape) -> int | None:
    """Follow an axis through x[index] with whole numbers, slices, None and ..."""
    old, new = 0, 0
    for part in _indices(index, before)[1]:
        if part is None:
            new += 1
            continue
        if not isinstance(part, (int, slice)):
            return None
        if old == axis:
            return new if part == slice(None) else None
        old += 1
        new += isinstance(part, slice)
    return new + axis - old


def _sequence(args: Any) -> list[Any]:
    """Return arguments that may be given one by one or as one list."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return list(args[0])
    return [a for a in args if a is not None and a != ()]


def letters_of(op: Operation) -> list[str] | None:
    """Return letters for the axes of each tensor that is multiplied, and of the result last."""
    shapes = [v.shape for v in op.inputs]
    if op.name == "einsum":
        equation = op.args[0].replace(" ", "") if isinstance(op.args[0], str) else ""
        words = equation.replace("->", ",").split(",")
        fits = [len(w) for w in words] == [len(s) for s in (*shapes, op.output.shape)]
        return words if "->" in equation and fits else None
    alphabet = "abcdefghijklmnop"
    result = alphabet[: len(op.output.shape)]
    if len(shapes) < 2 or any(len(s) < 2 for s in shapes):
        return None
    batch, rows, columns = result[:-2], result[-2], result[-1]
    if op.name in ("matmul", "bmm"):
        ends = [rows + "y", "y" + columns]
    elif op.name == "scaled_dot_product_attention":
        ends = [rows + "y", "zy", "z" + columns, rows + "z"][: len(shapes)]
    else:
        return None
    return [
        *(batch[len(batch) + 2 - len(s) :] + e for s, e in zip(shapes, ends, strict=True)),
        result,
    ]


def product_cost(op: Operation, letters: list[str]) -> int:
    """Return the multiply-adds of products of tensors: one for each choice of all indices."""
    sizes: dict[str, int] = {}
    for value, word in zip((*op.inputs, op.output), letters, strict=True):
        for letter, n in zip(word, value.shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), n)
    if op.kind.values != "attention":
        return math.prod(sizes.values())
    values = math.prod(n for letter, n in sizes.items() if letter != "y")
    return values + math.prod(n for letter, n in sizes.items() if letter != letters[-1][-1])
