"""What of a model can be removed: groups of units, and everything else with the reason.

The forward pass on an example is recorded and walked through in order: which units does each tensor
carry, and who reads them. Where the pass asks for values of the data, other inputs may take
another way: nothing is removed in such a module's own forward pass, only inside the modules that
it calls and that ask for none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from overt._check import InputError
from overt.nn.compression import layers
from overt.nn.compression.groups import Structure, grouped
from overt.nn.compression.shapes import letters_of, moved, product_cost
from overt.nn.compression.units import Carried, Wiring
from overt.nn.data.batches import Inputs, name_failing_inputs
from overt.nn.data.models import modes
from overt.nn.data.rng import preserve_rng, python_rng_states
from overt.nn.recording.recorder import Operation, Recording, Value, record
from overt.nn.recording.watching import Frame, tensors


def structure_of(model: nn.Module, inputs: Inputs, *, training: bool = False) -> Structure:
    """Record a model in evaluation mode on an example, and find its groups of units.

    With `training` they are those that the code of both modes can do without.
    """
    recording, outputs, drawing = _recorded(model, inputs)
    if training:
        with preserve_rng(), modes(model, noise=True):
            other = _recorded(model, inputs)[0]
        recording = Recording((*other.operations, *recording.operations), recording.inputs,
                              (*other.outputs, *recording.outputs))  # fmt: skip
    walk = _Walk(model, recording)
    for op in recording.operations:
        walk.take(op)
    for value in recording.outputs:
        walk.hold(value, "the model returns its units")
    wiring = walk.wiring
    met = {id(op.leaf) for op in recording.operations}
    for name, module in model.named_modules():
        if isinstance(module, layers.SEALED):
            wiring.skipped[name] = f"{type(module).__name__} keeps its maps inside"
            met.update(map(id, module.modules()))
        elif id(module) not in met and layers.is_a(module, layers.WEIGHTED):
            wiring.leave_whole(name, module.weight, "its forward pass is not called")
        for key, tensor in module._parameters.items():
            path = name if key == "weight" else f"{name}.{key}".lstrip(".")
            own = tensor is not None and tensor.ndim > 1 and id(module) not in met
            if own and id(tensor) not in wiring.slots.axes:
                wiring.skipped.setdefault(path, f"{type(module).__name__} uses it as it is")
    wiring.slots.settle()
    return grouped(model, wiring, outputs, drawing)


def _recorded(model: nn.Module, inputs: Inputs) -> tuple[Recording, Any, tuple[str, ...]]:
    """Return the recorded pass, the outputs that count, and which modules have drawn."""
    results: list[Any] = []

    def noted(result: Any) -> Any:
        results.append(result)
        return result

    def recorded(extents: bool) -> Recording:
        return record(
            model, inputs.given, output=noted,
            leaves=lambda _, module: layers.is_layer(module), keep=False, extents=extents,
        )  # fmt: skip

    before = python_rng_states()
    with name_failing_inputs(inputs, "example"):
        try:
            recording = recorded(True)
        except (TypeError, RuntimeError):  # compiled functions take no sizes but plain numbers
            recording = recorded(False)
        outputs = results[-1] if inputs.output is None else inputs.output(results[-1])
    if any(x.is_floating_point() and x.isnan().any() for x in tensors(outputs)):
        raise InputError("example: the model returns NaN")
    drawing = {op.module: None for op in recording.operations if op.random}
    if python_rng_states() != before:
        drawing[""] = None
    return recording, outputs, tuple(drawing)


class _Walk:
    """Follows units from operation to operation."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.wiring, self._model = Wiring(), model
        self._carried: dict[Value, Carried] = {}
        self._regions: dict[Value, Frame | None] = {}
        self._own = {id(t) for t in (*model.parameters(), *model.buffers())}
        self._asking = {
            frame.path
            for op in recording.operations
            if op.kind.values == "read" and op.given
            for frame in op.frames
        }
        for path in self._asking:
            self.wiring.skipped[path or type(model).__name__] = (
                "its forward pass depends on values: other inputs may take another way through it"
            )

    def take(self, op: Operation) -> None:
        """Take in one operation."""
        if self._asking and not self._settle(op):
            return
        given = self._layer(op) if op.leaf is not None else self._function(op)
        if isinstance(given, str):
            self._hold_all(op, given)
        elif isinstance(given, list):
            self._carried.update({v: x for v, x in zip(op.outputs, given, strict=True) if x})
        elif given is not None:
            self._carried[op.output] = given

    def _settle(self, op: Operation) -> bool:
        """Hold units that leave a module that asks for no values; whether `op` lies in one."""
        region = next((frame for frame in op.frames if frame.path not in self._asking), None)
        for value in op.inputs:
            if self._regions.get(value, region) != region:
                self.hold(value, "its units go where the forward pass depends on values")
                self._carried.pop(value, None)
        for value in op.outputs:
            self._regions[value] = region
        if region is not None:
            return True
        reason = "it is used where the forward pass depends on values"
        self._hold_all(op, reason)
        weight = getattr(op.leaf, "weight", None)
        if weight is not None:
            self.wiring.leave_whole(op.module, weight, reason)
        return False

    def hold(self, value: Value, reason: str) -> None:
        """Keep whatever units or parameter a value carries."""
        self.wiring.hold(self._carried.get(value), reason)
        if self._is_source(value):
            self.wiring.slots.lock(value.tensor, reason)

    def _hold_all(self, op: Operation, reason: str) -> None:
        for value in op.inputs:
            self.hold(value, reason)

    def _is_source(self, value: Value) -> bool:
        """Whether a value is one of the model's parameters or buffers."""
        return value.maker is None and id(value.tensor) in self._own

    def _layer(self, op: Operation) -> layers.Given:
        module = op.leaf
        assert module is not None  # noqa: S101 (for the type checker)
        if len(op.inputs) != 1 or len(op.outputs) != 1:
            return layers.needs_all(op.module, module)
        (x,) = op.inputs
        return layers.given_by(
            self.wiring, op.module, module, self._carried.get(x), x.shape, op.output.shape
        )

    def _function(self, op: Operation) -> layers.Given | list[Carried | None]:
        """Return what a function or method makes of its inputs."""
        carrying = [v for v in op.inputs if v in self._carried]
        sources = [v for v in op.inputs if self._is_source(v)]
        if not carrying and not sources:
            return None
        if not op.outputs:
            return f"{op.name} reads its units"
        if op.kind.units == "tie" and carrying:
            return self._combined(op)
        if op.kind.values in ("matmul", "attention") and carrying:
            found = self._batched(op)
            if found is not None:
                return found
        first = op.argument(0, "input")
        if not sources and all(v is first for v in carrying):
            x = self._carried[first]
            if op.kind.units == "drop" and op.argument(1, "p", 0.5) > 0 and len(x.axes) == 1:
                whole = op.name != "dropout" or x.axis == len(first.shape) - 1
                return replace(x, drops=x.drops | {str(op.noise)}) if whole else x
            after = moved(op, x, first.shape, self.wiring, self._model)
            if after is not None:
                return after
        if op.name in ("cat", "stack") and not sources:
            joined = self._joined(op)
            if joined is not None:
                return joined
        return f"{op.name} in the forward pass needs all its units"

    def _combined(self, op: Operation) -> layers.Given:
        """Tie the units of tensors that are added, multiplied or the like."""
        name, ndim, units = op.name, len(op.output.shape), self.wiring.units
        reason = f"{name} in the forward pass brings its units together with others"
        shifts = {v: ndim - len(v.shape) for v in op.inputs}
        given = [(v, self._carried[v]) for v in op.inputs if v in self._carried]
        shared = set.intersection(*({a + shifts[v] for a in x.axes} for v, x in given))
        for value in op.inputs:
            places = {a for a in shared if a >= shifts[value]}
            wide = {a for a in places if value.shape[a - shifts[value]] > 1}
            if value not in self._carried and len(shared) > 1:
                shared -= wide
        if not shared:
            return reason
        axes = tuple(a for a in (x + shifts[given[0][0]] for x in given[0][1].axes) if a in shared)
        parts = [
            replace(self.wiring.along(x, tuple(a - shifts[v] for a in axes)), axes=axes)
            for v, x in given
        ]
        main = parts[0]
        if any(part.ids.shape != main.ids.shape for part in parts):
            return reason
        for part in parts[1:]:
            units.tie(main.ids.ravel(), part.ids.ravel())
        for value in op.inputs:
            place = axes[0] - shifts[value]
            if value in self._carried or len(axes) > 1 or place < 0 or value.shape[place] == 1:
                continue
            if self._is_source(value) and value.shape[place] == len(main.ids):
                self.wiring.slots.bind(value.tensor, place, main.ids)
            else:
                units.hold(main.ids, f"{name} brings its units to a tensor of fixed width")
        return replace(main, drops=frozenset.intersection(*(part.drops for part in parts)))

    def _batched(self, op: Operation) -> Carried | None:
        """Tie the heads of tensors that are multiplied head by head, as attention does."""
        ndim = len(op.output.shape)
        letters = letters_of(op)
        if letters is None:
            return None
        places = {
            v: [letters[-1].find(c) for c in word]
            for v, word in zip(op.inputs, letters, strict=False)
        }
        given = [(v, self._carried[v]) for v in op.inputs if v in self._carried]
        shared = set.intersection(*({places[v][a] for a in x.axes} - {-1} for v, x in given))
        shared -= set(range(ndim - 2, ndim)) if op.name != "einsum" else set()
        for value, word in places.items():
            if value not in self._carried:
                shared -= {p for a, p in enumerate(word) if value.shape[a] > 1}
        if len(shared) != 1:
            return None
        (axis,) = shared
        parts = [self.wiring.along(x, (places[v].index(axis),)) for v, x in given]
        most = max(len(part.ids) for part in parts)
        if op.argument(7, "enable_gqa", False) is True:  # several heads of queries share keys
            parts = [replace(x, ids=x.ids.repeat(most // len(x.ids))) for x in parts]
        if any(len(part.ids) != most for part in parts):
            return None
        for part in parts[1:]:
            self.wiring.units.tie(parts[0].ids, part.ids)
        self.wiring.products.append((product_cost(op, letters), parts[0].ids))
        return replace(parts[0], axes=(axis,), drops=frozenset())

    def _joined(self, op: Operation) -> Carried | None:
        """Concatenate lists of units, or tie them where another axis is joined."""
        parts = op.argument(0, "tensors", ())
        dim = op.argument(1, "dim", op.kwargs.get("axis", 0)) % len(op.output.shape)
        found = [self._carried.get(part) for part in parts]
        first = next(x for x in found if x is not None)
        drops = frozenset.intersection(*(frozenset() if x is None else x.drops for x in found))
        if any(x is not None and len(x.axes) > 1 for x in found):
            kept = [a for a in first.axes if a != dim]
            if (
                op.name != "cat"
                or not kept
                or any(x is None or x.axes != first.axes for x in found)
            ):
                return None
            whole = [self.wiring.along(x, kept[:1]) for x in found if x is not None]
            found, first = [*whole], whole[0]
        if op.name == "cat" and dim == first.axis:
            if any(x is not None and x.axis != dim for x in found):
                return None
            lists = [
                self.wiring.units.held(part.shape[dim], "its units are joined with others")
                if x is None
                else x.ids
                for part, x in zip(parts, found, strict=True)
            ]
            return Carried((dim,), np.concatenate(lists), drops)
        if any(x is None or x.axis != first.axis for x in found):
            return None
        for other in found[1:]:
            if other is not None:
                self.wiring.units.tie(first.ids, other.ids)
        axis = first.axis + (op.name == "stack" and dim <= first.axis)
        return Carried((axis,), first.ids, drops)
