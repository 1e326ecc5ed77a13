"""What functions do to the axes along which a tensor has units."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.compression.dependencies import Dependencies, Ids, UnitAxes, WrittenSize
from overt.nn.compression.record import Extent, Operation

Shape = tuple[int, ...]
RESHAPES = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as")
TRANSPOSES = ("permute", "transpose", "movedim", "mT", "T", "t", "unsqueeze", "squeeze", "expand")
SELECTIONS = ("getitem", "select", "unbind", "chunk", "split")
MOVES = frozenset((*RESHAPES, *TRANSPOSES, *SELECTIONS))
"""Operations that are followed by running them on numbers of units."""

Found = list[UnitAxes | None] | str | None
"""The units of each result, a reason to keep them, or None: not known."""


def follow_function(
    op: Operation, x: UnitAxes, before: Shape, found: Dependencies, model: nn.Module
) -> Found:
    """Return the units after an operation; `before` is the shape of its first argument."""
    try:
        if op.name in MOVES:
            return _follow_move(op, x, before, found, model)
        if len(op.outputs) != 1:
            return None
        if op.name == "glu":
            return _follow_gate(op, x, before, found)
        places = [_axis_after(op, before, op.output.shape, axis) for axis in x.axes]
    except (TypeError, ValueError, IndexError, RuntimeError):  # arguments that are not foreseen
        return None
    kept = [axis for axis, place in zip(x.axes, places, strict=True) if isinstance(place, int)]
    if not kept:
        return next((place for place in places if isinstance(place, str)), None)
    after = tuple(place for place in places if isinstance(place, int))
    x = found.reduce_to(x, kept)
    fits = all(op.output.shape[a] == n for a, n in zip(after, x.ids.shape, strict=True))
    return [replace(x, axes=after)] if fits else None


def _follow_move(
    op: Operation, x: UnitAxes, before: Shape, found: Dependencies, model: nn.Module
) -> Found:
    """Run an operation that moves entries on the places of units along each of their axes."""
    results: list[UnitAxes | None] = []
    for places in coordinates(op, x.axes, before):
        varying = [tuple(a for a in range(k.ndim) if _varies(k, a)) for k in places]
        if op.name == "chunk" and not any(varying):  # into single units
            varying = [x.axes]
        split = _split_axes(op, x, places, varying)
        whole = [axis for axis in x.axes if axis not in split]
        if split and whole:
            # As in rotary embeddings, which rotate halves of a head: whole heads are units.
            return _follow_move(op, found.reduce_to(x, whole), before, found, model)
        if split:
            return next(iter(split.values()))
        if not any(varying):
            return f"{op.name} in the forward pass needs all its units"
        axes = tuple(sorted({a for own in varying for a in own}))
        written: tuple[WrittenSize | None, ...]
        if op.name in RESHAPES:
            written = tuple(_written_size(op, a, model, several=len(axes) > 1) for a in axes)
        elif op.name == "chunk":
            written = tuple(None for _ in axes)
        else:
            written = tuple(x.written[varying.index((a,))] for a in axes)
        part = tuple(slice(None) if a in axes else 0 for a in range(places[0].ndim))
        ids = x.ids[tuple(k[part] for k in places)]
        moved = replace(x, axes=axes, ids=ids, written=written)
        results.append(found.follow_written_size(moved))
    return results


def _split_axes(
    op: Operation, x: UnitAxes, places: list[Ids], varying: list[Shape]
) -> dict[int, str]:
    """Return the axes whose units an operation takes apart, with the reason."""
    split: dict[int, str] = {}
    for axis, k, own, n in zip(x.axes, places, varying, x.ids.shape, strict=True):
        met = len(np.unique(k[tuple(slice(None) if a in own else 0 for a in range(k.ndim))]))
        one_entry = met == 1 and len(x.axes) > 1  # of a table
        halves = op.name == "chunk" and len(x.axes) == 1 and n % met == 0
        if met < n and not one_entry and not halves:
            split[axis] = f"{op.name} in the forward pass takes its units apart"
        elif len(own) > 1 and math.prod(k.shape[a] for a in own) != n:
            split[axis] = f"{op.name} in the forward pass splits the axis of its units"
    return split


def coordinates(op: Operation, axes: Shape, before: Shape) -> list[list[Ids]]:
    """Return for each result the places along each of these axes that its entries come from."""
    runs = []
    for axis in axes:
        shape = [before[axis] if a == axis else 1 for a in range(len(before))]
        numbers = torch.arange(before[axis]).reshape(shape).expand(before)
        made = _run_on(op, numbers)
        runs.append([made] if isinstance(made, Tensor) else list(made))
    return [[run[i].numpy() for run in runs] for i in range(len(runs[0]))]


def _run_on(op: Operation, first: Tensor) -> Any:
    """Run an operation on another first argument; of the others only shapes are known."""
    values = {id(v): torch.empty(v.shape, device="meta") for v in op.inputs[1:]}
    values[id(op.inputs[0])] = first

    def fill(part: Any) -> Any:
        if isinstance(part, (tuple, list)):
            return type(part)(map(fill, part))
        return values.get(id(part), part)

    function = Tensor.reshape if op.name == "view" else op.function
    return function(*fill(op.args), **{k: fill(v) for k, v in op.kwargs.items()})


def _varies(numbers: Ids, axis: int) -> bool:
    if numbers.shape[axis] == 1 or numbers.strides[axis] == 0:
        return False
    return bool((numbers != numbers.take([0], axis)).any())


def _axis_after(op: Operation, before: Shape, after: Shape, axis: int) -> int | str | None:
    """Return where an axis is after an operation that leaves units as they are."""
    ndim = len(before)
    kind = op.kind
    silent = kind == "random" and not op.random  # dropout in evaluation mode, and the like
    if kind in ("pass", "drop") or silent:
        return axis if before == after else None
    if op.name in ("tril", "triu"):
        return axis if axis <= ndim - 3 else None
    if kind == "spatial":
        return axis if axis == 1 and len(after) == ndim > 2 else None
    if kind == "normalize":
        dim = op.kwargs.get("dim", 1) if op.name == "normalize" else op.argument(1, "dim")
        return axis if isinstance(dim, int) and dim % ndim != axis else None
    if kind == "reduce":
        return _axis_after_sum(op, ndim, axis, kept=len(after) == ndim)
    if op.name == "pad":  # pairs of sizes, for the last axes first
        padded = len(_sequence((op.argument(1, "pad"),))) // 2
        return axis if axis < ndim - padded else None
    if op.name == "masked_fill":
        mask = op.argument(1, "mask").shape
        place = axis - ndim + len(mask)
        return axis if before == after and (place < 0 or mask[place] == 1) else None
    return None


def _follow_gate(op: Operation, x: UnitAxes, before: Shape, found: Dependencies) -> Found:
    """Follow units through a gated linear unit: those of both halves are one."""
    if op.argument(1, "dim", -1) % len(before) not in x.axes:
        return [x]
    if len(x.axes) > 1:
        return None
    first, gate = np.split(x.ids, 2)
    found.units.tie(first, gate)
    return [replace(x, ids=first)]


def _written_size(
    op: Operation, axis: int, model: nn.Module, *, several: bool
) -> WrittenSize | None:
    """Return where the code has the length of an axis as a number, None if it has not."""
    if op.name not in ("view", "reshape"):
        return None
    sizes = _sequence(op.args[1:]) or _sequence((op.kwargs.get("shape", ()),))
    size = sizes[axis] if len(sizes) == len(op.output.shape) else -1
    if not isinstance(size, int) or size == -1 or isinstance(size, Extent):
        return None
    attributes = vars(model.get_submodule(op.module)).items()
    equal = [key for key, n in attributes if type(n) is int and n == size and key[0] != "_"]
    widths = [key for key in equal if any(word in key for word in ("dim", "size", "features"))]
    counts = [key for key in equal if key not in widths]
    chosen = (counts or widths) if several else (widths or counts)
    reason = f"{op.name} in the forward pass names the number of its units, {size}"
    return WrittenSize(op.module, tuple(chosen), reason)


def _axis_after_sum(op: Operation, ndim: int, axis: int, *, kept: bool) -> int | str:
    """Follow a sum over some axes, which are `kept` with one entry or removed."""
    dims = op.argument(2 if op.name == "norm" else 1, "dim", op.kwargs.get("axis"))
    all_axes = dims is None or isinstance(dims, bool)
    summed = set(range(ndim)) if all_axes else {d % ndim for d in _sequence((dims,))}
    if axis in summed:
        return f"{op.name} in the forward pass runs over its units"
    return axis if kept else axis - sum(d < axis for d in summed)


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
    if len(shapes) < 2 or any(len(s) < 2 for s in shapes):
        return None
    result = "abcdefghijklmnop"[: len(op.output.shape)]
    batch = result[:-2]
    row = result[-2]
    column = result[-1]
    if op.name in ("matmul", "bmm"):
        ends = [row + "y", "y" + column]
    elif op.name == "scaled_dot_product_attention":
        ends = [row + "y", "zy", "z" + column, row + "z"][: len(shapes)]
    else:
        return None
    words = [batch[len(batch) + 2 - len(s) :] + e for s, e in zip(shapes, ends, strict=True)]
    return [*words, result]


def product_cost(op: Operation, letters: list[str]) -> int:
    """Return the multiply-adds of products of tensors: one for each choice of all indices."""
    sizes: dict[str, int] = {}
    for value, word in zip((*op.inputs, op.output), letters, strict=True):
        for letter, n in zip(word, value.shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), n)
    if op.kind != "attention":
        return math.prod(sizes.values())
    scores = math.prod(n for letter, n in sizes.items() if letter != letters[-1][-1])
    averages = math.prod(n for letter, n in sizes.items() if letter != "y")
    return scores + averages
