"""The dependency graph of a model: which units can be removed together, and what cannot be.

The forward pass on an example is recorded and followed in order: which units does each tensor have,
and which layers read them. Functions that move entries run on the numbers of units. Where the pass
reads values of the data, other inputs may take another way. Then nothing is removed in that
module's own forward pass, only inside the modules that it calls and that read no values.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt.nn.compression import layers
from overt.nn.compression.dependencies import (
    Dependencies,
    DependencyGraph,
    Ids,
    UnitAxes,
    WrittenSize,
    group_units,
)
from overt.nn.compression.record import (
    Extent,
    Frame,
    Operation,
    Recording,
    Value,
    record,
    tensors,
)
from overt.nn.data.batches import Inputs, name_failing_inputs
from overt.nn.data.models import modes
from overt.nn.data.rng import preserve_rng, python_rng_states


def build_graph(
    model: nn.Module, inputs: Inputs, *, training: bool = False
) -> DependencyGraph:
    """Record a model in evaluation mode on an example, and find its groups of units.

    With `training` they are those that the code of both modes can do without.
    """
    recording, outputs, random_modules = _record(model, inputs)
    if training:
        with preserve_rng(), modes(model, noise=True):
            other, _, _ = _record(model, inputs)
        recording = Recording(
            (*other.operations, *recording.operations),
            (*other.outputs, *recording.outputs),
        )
    walk = _Walk(model, recording)
    for op in recording.operations:
        walk.follow(op)
    for value in recording.outputs:
        walk.keep(value, "the model returns its units")
    _skip_unrecorded(model, recording, walk.found)
    walk.found.tensors.keep_locked()
    return group_units(model, walk.found, outputs, random_modules)


def _skip_unrecorded(
    model: nn.Module, recording: Recording, found: Dependencies
) -> None:
    """Name the layers and parameters that the recorded pass did not use as layers."""
    called = {id(op.leaf) for op in recording.operations}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, layers.SEALED):
            found.skipped[name] = f"{kind} keeps its maps inside"
            called.update(map(id, module.modules()))
        elif id(module) not in called and layers.is_a(module, layers.WEIGHTED):
            found.keep_layer(name, module.weight, "its forward pass is not called")
        for key, tensor in module._parameters.items():
            matrix = tensor is not None and tensor.ndim > 1 and id(module) not in called
            if matrix and id(tensor) not in found.tensors.axes:
                path = name if key == "weight" else f"{name}.{key}".lstrip(".")
                found.skipped.setdefault(path, f"{kind} uses it as it is")


def _record(model: nn.Module, inputs: Inputs) -> tuple[Recording, Any, tuple[str, ...]]:
    """Return the recorded pass, the outputs that count, and which modules have sampled."""
    before = python_rng_states()
    with name_failing_inputs(inputs, "example"):
        recording, outputs = record(model, inputs, layers.is_layer)
    if any(x.is_floating_point() and x.isnan().any() for x in tensors(outputs)):
        raise InputError("example: the model returns NaN")
    random_modules = {op.module: None for op in recording.operations if op.random}
    if python_rng_states() != before:
        random_modules[""] = None
    return recording, outputs, tuple(random_modules)


class _Walk:
    """Follows units from operation to operation."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.found = Dependencies()
        self._model = model
        self._units: dict[Value, UnitAxes] = {}
        self._regions: dict[Value, Frame | None] = {}
        self._own = {id(t) for t in (*model.parameters(), *model.buffers())}
        self._reading = {  # modules whose forward pass depends on values
            frame.path
            for op in recording.operations
            if op.reads_data
            for frame in op.frames
        }
        for path in self._reading:
            self.found.skipped[path or type(model).__name__] = (
                "its forward pass depends on values: other inputs may take another way through it"
            )

    def follow(self, op: Operation) -> None:
        """Follow the units through one operation."""
        if self._reading and not self._inside_region(op):
            return
        after = self._layer(op) if op.leaf is not None else self._function(op)
        if isinstance(after, str):
            self._keep_all(op, after)
        elif isinstance(after, list):
            for value, x in zip(op.outputs, after, strict=True):
                if x is not None:
                    self._units[value] = x
        elif after is not None:
            self._units[op.output] = after

    def keep(self, value: Value, reason: str) -> None:
        """Keep the units of a value, or the parameter that it is."""
        self.found.keep(self._units.get(value), reason)
        if self._is_parameter(value):
            self.found.tensors.lock(value.tensor, reason)

    def _inside_region(self, op: Operation) -> bool:
        """Return whether `op` lies in a module that reads no values; keep units that leave one."""
        region = next(
            (frame for frame in op.frames if frame.path not in self._reading), None
        )
        for value in op.inputs:
            if self._regions.get(value, region) != region:
                self.keep(
                    value, "its units go where the forward pass depends on values"
                )
                self._units.pop(value, None)
        for value in op.outputs:
            self._regions[value] = region
        if region is not None:
            return True
        reason = "it is used where the forward pass depends on values"
        self._keep_all(op, reason)
        weight = getattr(op.leaf, "weight", None)
        if weight is not None:
            self.found.keep_layer(op.module, weight, reason)
        return False

    def _keep_all(self, op: Operation, reason: str) -> None:
        for value in op.inputs:
            self.keep(value, reason)

    def _is_parameter(self, value: Value) -> bool:
        """Return whether a value is one of the model's parameters or buffers."""
        return value.maker is None and id(value.tensor) in self._own

    def _with_units(self, op: Operation) -> list[tuple[Value, UnitAxes]]:
        return [(v, self._units[v]) for v in op.inputs if v in self._units]

    def _layer(self, op: Operation) -> layers.Found:
        module = op.leaf
        assert module is not None  # noqa: S101 (for the type checker)
        if len(op.inputs) != 1 or len(op.outputs) != 1:
            return layers.needs_all(op.module, module)
        (x,) = op.inputs
        units = self._units.get(x)
        return layers.follow_layer(
            self.found, op.module, module, units, x.shape, op.output.shape
        )

    def _function(self, op: Operation) -> layers.Found | list[UnitAxes | None]:
        """Return the units of the results of a function or method."""
        given = self._with_units(op)
        parameters = [v for v in op.inputs if self._is_parameter(v)]
        if not given and not parameters:
            return None
        if not op.outputs:
            return f"{op.name} reads its units"
        if op.kind == "tie" and given:
            return self._tied(op)
        if op.kind in ("matmul", "attention") and given:
            multiplied = self._multiplied(op)
            if multiplied is not None:
                return multiplied
        first = op.argument(0, "input")
        if not parameters and all(v is first for v, _ in given):
            x = self._units[first]
            if op.kind == "drop" and op.argument(1, "p", 0.5) > 0 and len(x.axes) == 1:
                single = op.name != "dropout" or x.axis == len(first.shape) - 1
                return replace(x, drops=x.drops | {op.noise}) if single else x
            after = follow_function(op, x, first.shape, self.found, self._model)
            if after is not None:
                return after
        if op.name in ("cat", "stack") and not parameters:
            joined = self._joined(op)
            if joined is not None:
                return joined
        return f"{op.name} in the forward pass needs all its units"

    def _tied(self, op: Operation) -> layers.Found:
        """Tie the units of tensors that are added, multiplied or the like."""
        reason = f"{op.name} in the forward pass brings its units together with others"
        ndim = len(op.output.shape)
        shift = {
            v: ndim - len(v.shape) for v in op.inputs
        }  # broadcasting adds leading axes
        given = self._with_units(op)
        shared = set.intersection(*({a + shift[v] for a in x.axes} for v, x in given))
        for value in op.inputs:
            wide = {
                a
                for a in shared
                if a >= shift[value] and value.shape[a - shift[value]] > 1
            }
            if value not in self._units and len(shared) > 1:
                shared -= wide
        if not shared:
            return reason
        first, x = given[0]
        axes = tuple(a + shift[first] for a in x.axes if a + shift[first] in shared)
        parts = []
        for value, x in given:
            own = self.found.reduce_to(x, tuple(a - shift[value] for a in axes))
            parts.append(replace(own, axes=axes))
        main = parts[0]
        if any(part.ids.shape != main.ids.shape for part in parts):
            return reason
        for part in parts[1:]:
            self.found.units.tie(main.ids.ravel(), part.ids.ravel())
        for value in op.inputs:
            place = axes[0] - shift[value]
            if (
                value in self._units
                or len(axes) > 1
                or place < 0
                or value.shape[place] == 1
            ):
                continue
            if self._is_parameter(value) and value.shape[place] == len(main.ids):
                self.found.tensors.bind(value.tensor, place, main.ids)
            else:
                why = f"{op.name} brings its units to a tensor of fixed width"
                self.found.units.keep(main.ids, why)
        return replace(
            main, drops=frozenset.intersection(*(part.drops for part in parts))
        )

    def _multiplied(self, op: Operation) -> UnitAxes | None:
        """Tie the heads of tensors that are multiplied head by head, as attention does."""
        letters = letters_of(op)
        if letters is None:
            return None
        result = letters[-1]
        places = {
            v: [result.find(c) for c in word]
            for v, word in zip(op.inputs, letters, strict=False)
        }
        given = self._with_units(op)
        shared = set.intersection(
            *({places[v][a] for a in x.axes} - {-1} for v, x in given)
        )
        if op.name != "einsum":  # the last two axes are the matrices' own
            shared -= {len(result) - 2, len(result) - 1}
        for value, word in places.items():
            if value not in self._units:
                shared -= {p for a, p in enumerate(word) if value.shape[a] > 1}
        if len(shared) != 1:
            return None
        (axis,) = shared
        parts = [self.found.reduce_to(x, (places[v].index(axis),)) for v, x in given]
        heads = max(len(part.ids) for part in parts)
        if (
            op.argument(7, "enable_gqa", False) is True
        ):  # several heads of queries share keys
            parts = [replace(x, ids=x.ids.repeat(heads // len(x.ids))) for x in parts]
        if any(len(part.ids) != heads for part in parts):
            return None
        for part in parts[1:]:
            self.found.units.tie(parts[0].ids, part.ids)
        self.found.products.append((product_cost(op, letters), parts[0].ids))
        return replace(parts[0], axes=(axis,), drops=frozenset())

    def _joined(self, op: Operation) -> UnitAxes | None:
        """Concatenate lists of units, or tie them where another axis is joined."""
        # torch.cat ignores empty vectors: caches of keys and values begin with one.
        parts = [part for part in op.argument(0, "tensors", ()) if part.shape != (0,)]
        if op.name == "cat" and len(parts) == 1:
            return self._units.get(parts[0])
        dim = op.argument(1, "dim", op.kwargs.get("axis", 0)) % len(op.output.shape)
        found = [self._units.get(part) for part in parts]
        first = next(x for x in found if x is not None)
        drops = frozenset.intersection(
            *(frozenset() if x is None else x.drops for x in found)
        )
        if any(x is not None and len(x.axes) > 1 for x in found):
            axes = [a for a in first.axes if a != dim]
            alike = all(x is not None and x.axes == first.axes for x in found)
            if op.name != "cat" or not axes or not alike:
                return None
            found = [self.found.reduce_to(x, axes[:1]) for x in found if x is not None]
            first = found[0] or first
        if op.name == "cat" and dim == first.axis:
            if any(x is not None and x.axis != dim for x in found):
                return None
            lists = []
            for part, x in zip(parts, found, strict=True):
                if x is None:
                    why = "its units are joined with others"
                    lists.append(self.found.units.new_kept(part.shape[dim], why))
                else:
                    lists.append(x.ids)
            return UnitAxes((dim,), np.concatenate(lists), drops)
        if any(x is None or x.axis != first.axis for x in found):
            return None
        for other in found[1:]:
            if other is not None:
                self.found.units.tie(first.ids, other.ids)
        axis = first.axis + (op.name == "stack" and dim <= first.axis)
        return UnitAxes((axis,), first.ids, drops)


Shape = tuple[int, ...]
RESHAPES = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as")
TRANSPOSES = (
    "permute",
    "transpose",
    "movedim",
    "mT",
    "T",
    "t",
    "unsqueeze",
    "squeeze",
    "expand",
)
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
    except (
        TypeError,
        ValueError,
        IndexError,
        RuntimeError,
    ):  # arguments that are not foreseen
        return None
    kept = [
        axis
        for axis, place in zip(x.axes, places, strict=True)
        if isinstance(place, int)
    ]
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
            written = tuple(
                _written_size(op, a, model, several=len(axes) > 1) for a in axes
            )
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
        met = len(
            np.unique(k[tuple(slice(None) if a in own else 0 for a in range(k.ndim))])
        )
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


def _axis_after(
    op: Operation, before: Shape, after: Shape, axis: int
) -> int | str | None:
    """Return where an axis is after an operation that leaves units as they are."""
    ndim = len(before)
    kind = op.kind
    silent = (
        kind == "random" and not op.random
    )  # dropout in evaluation mode, and the like
    if kind in ("pass", "drop") or silent:
        return axis if before == after else None
    if op.name in ("tril", "triu"):
        return axis if axis <= ndim - 3 else None
    if kind == "spatial":
        return axis if axis == 1 and len(after) == ndim > 2 else None
    if kind == "normalize":
        dim = (
            op.kwargs.get("dim", 1) if op.name == "normalize" else op.argument(1, "dim")
        )
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


def _follow_gate(
    op: Operation, x: UnitAxes, before: Shape, found: Dependencies
) -> Found:
    """Follow units through a gated linear unit: units of both halves are one."""
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
    equal = [
        key for key, n in attributes if type(n) is int and n == size and key[0] != "_"
    ]
    widths = [
        key for key in equal if any(word in key for word in ("dim", "size", "features"))
    ]
    counts = [key for key in equal if key not in widths]
    chosen = (counts or widths) if several else (widths or counts)
    reason = f"{op.name} in the forward pass names the number of its units, {size}"
    return WrittenSize(op.module, tuple(chosen), reason)


def _axis_after_sum(op: Operation, ndim: int, axis: int, *, kept: bool) -> int | str:
    """Follow a sum over some axes, which stay with one entry (`kept`) or go."""
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
    words = [
        batch[len(batch) + 2 - len(s) :] + e for s, e in zip(shapes, ends, strict=True)
    ]
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
