"""What functions do to the axes of the units that a tensor carries."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.compression.units import Carried, Ids, Named, Wiring
from overt.nn.recording.recorder import Operation
from overt.nn.recording.watching import Extent

Shape = tuple[int, ...]
RESHAPES = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as")
MOVES = frozenset(
    (*RESHAPES, "permute", "transpose", "movedim", "mT", "T", "t", "unsqueeze", "squeeze",
     "expand", "getitem", "select", "unbind", "chunk", "split")
)  # fmt: skip
"""Operations that are followed by running them on numbers of units."""
Found = list[Carried | None] | str | None
"""What each result carries, a reason to hold the units, or None: not known."""


def moved(op: Operation, x: Carried, before: Shape, wiring: Wiring, model: nn.Module) -> Found:
    """Return the units after an operation; `before` is the shape of its first argument."""
    try:
        if op.name in MOVES:
            return _carried_over(op, x, before, wiring, model)
        if len(op.outputs) != 1:
            return None
        if op.name == "glu":
            return _gated(op, x, before, wiring)
        places = [_kept(op, before, op.output.shape, axis) for axis in x.axes]
    except (TypeError, ValueError, IndexError, RuntimeError):  # as is not foreseen
        return None
    kept = [axis for axis, place in zip(x.axes, places, strict=True) if isinstance(place, int)]
    if not kept:
        return next((place for place in places if isinstance(place, str)), None)
    after = tuple(place for place in places if isinstance(place, int))
    x = wiring.along(x, kept)
    fits = all(op.output.shape[a] == n for a, n in zip(after, x.ids.shape, strict=True))
    return [replace(x, axes=after)] if fits else None


def _carried_over(
    op: Operation, x: Carried, before: Shape, wiring: Wiring, model: nn.Module
) -> Found:
    """Run an operation that moves entries on the places of units along each of their axes."""
    carried: list[Carried | None] = []
    for places in coordinates(op, x.axes, before):
        along = [tuple(a for a in range(k.ndim) if _varies(k, a)) for k in places]
        if op.name == "chunk" and not any(along):  # into single units
            along = [x.axes]
        reason = _torn(op, x, places, along)
        if reason is not None:
            return reason
        axes = tuple(sorted({a for own in along for a in own}))
        part = tuple(slice(None) if a in axes else 0 for a in range(places[0].ndim))
        if op.name in RESHAPES:
            split = len(axes) > 1
            named = tuple(_named(op, a, op.output.shape, model, split) for a in axes)
        else:
            named = tuple(x.named[along.index((a,))] if op.name != "chunk" else None for a in axes)
        ids = x.ids[tuple(k[part] for k in places)]
        carried.append(wiring.settled(replace(x, axes=axes, ids=ids, named=named)))
    return carried


def _torn(op: Operation, x: Carried, places: list[Ids], along: list[Shape]) -> str | None:
    """Return why units cannot be followed to where their places lie after an operation."""
    for k, own, n in zip(places, along, x.ids.shape, strict=True):
        met = len(np.unique(k[tuple(slice(None) if a in own else 0 for a in range(k.ndim))]))
        if met < n and (met > 1 or len(x.axes) == 1):  # one entry of a table may be picked
            halves = op.name == "chunk" and len(x.axes) == 1 and n % met == 0
            if not halves:
                return f"{op.name} in the forward pass takes its units apart"
        if len(own) > 1 and math.prod(k.shape[a] for a in own) != n:
            return f"{op.name} in the forward pass splits the axis of its units"
    if not any(along):
        return f"{op.name} in the forward pass needs all its units"
    return None


def coordinates(op: Operation, axes: Shape, before: Shape) -> list[list[Ids]]:
    """Return for each result what it holds of the place along each of these axes."""
    runs = []
    for axis in axes:
        shape = [before[axis] if a == axis else 1 for a in range(len(before))]
        numbers = torch.arange(before[axis]).reshape(shape).expand(before)
        made = _replayed(op, numbers)
        runs.append([made] if isinstance(made, Tensor) else list(made))
    return [[run[i].numpy() for run in runs] for i in range(len(runs[0]))]


def _replayed(op: Operation, first: Tensor) -> Any:
    """Run an operation on another first argument; of others no more than shapes is known."""
    values = {id(v): torch.empty(v.shape, device="meta") for v in op.inputs[1:]}
    values[id(op.inputs[0])] = first

    def filled(part: Any) -> Any:
        if isinstance(part, (tuple, list)):
            return type(part)(map(filled, part))
        return values.get(id(part), part)

    function = Tensor.reshape if op.name == "view" else op.function
    return function(*filled(op.args), **{k: filled(v) for k, v in op.kwargs.items()})


def _varies(numbers: Ids, axis: int) -> bool:
    if numbers.shape[axis] == 1 or numbers.strides[axis] == 0:
        return False
    return bool((numbers != numbers.take([0], axis)).any())


def _kept(op: Operation, before: Shape, after: Shape, axis: int) -> int | str | None:
    """Return where an axis is after an operation that leaves units as they are."""
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
        case "pad":  # pairs of sizes, for the last axes first
            padded = len(_sequence((op.argument(1, "pad"),))) // 2
            return axis if axis < ndim - padded else None
        case "masked_fill":
            mask = op.argument(1, "mask").shape
            place = axis - ndim + len(mask)
            return axis if before == after and (place < 0 or mask[place] == 1) else None
    return None


def _gated(op: Operation, x: Carried, before: Shape, wiring: Wiring) -> Found:
    """Follow units through a gated linear unit: those of both halves are one."""
    if op.argument(1, "dim", -1) % len(before) not in x.axes:
        return [x]
    if len(x.axes) > 1:
        return None
    first, gate = np.split(x.ids, 2)
    wiring.units.tie(first, gate)
    return [replace(x, ids=first)]


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


def _reduce(op: Operation, ndim: int, kept: bool, axis: int) -> int | str:
    """Follow a sum over some axes, which are `kept` with one entry or taken away."""
    dims = op.argument(2 if op.name == "norm" else 1, "dim", op.kwargs.get("axis"))
    all_axes = dims is None or isinstance(dims, bool)
    chosen = set(range(ndim)) if all_axes else {d % ndim for d in _sequence((dims,))}
    if axis in chosen:
        return f"{op.name} in the forward pass runs over its units"
    return axis if kept else axis - sum(d < axis for d in chosen)


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
