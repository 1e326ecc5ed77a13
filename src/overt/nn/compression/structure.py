"""What of a model can be removed: groups of units, and everything else with the reason.

The forward pass on an example is recorded and walked through in order: which units does each tensor
carry, and who reads them. Where the pass asks for values of the data, other inputs may take
another way: nothing is removed in such a module's own forward pass, only inside the modules that
it calls and that ask for none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from overt.nn.compression import layers
from overt.nn.compression.shapes import moved
from overt.nn.compression.units import Carried, Ids, Wiring
from overt.nn.given.batches import Inputs
from overt.nn.recording.recorder import Operation, Recording, Value, record
from overt.nn.recording.watching import Frame


@dataclass(frozen=True, eq=False)
class Group:
    """Units, one number for each class, that are outputs of the same layers."""

    layers: tuple[str, ...]  # more than one where their outputs are added
    units: Ids
    drops: frozenset[str]  # the dropout layers through which every reader sees these units
    tied: bool  # whether a reader shares its weights with another layer


@dataclass(frozen=True, eq=False)
class Structure:
    """The units of a model: how they are wired, in which groups, and what is left whole."""

    wiring: Wiring
    groups: tuple[Group, ...]
    skipped: dict[str, str]


def structure_of(model: nn.Module, inputs: Inputs) -> Structure:
    """Record a model in evaluation mode on an example, and find its groups of units."""
    recording = _recorded(model, inputs)
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
    wiring.slots.settle()
    return _grouped(model, wiring)


def _recorded(model: nn.Module, inputs: Inputs) -> Recording:
    def as_one(_: str, module: nn.Module) -> bool:
        return layers.is_layer(module)

    try:
        return record(model, inputs.given, leaves=as_one, keep=False, extents=True)
    except (TypeError, RuntimeError):  # compiled functions take no sizes but plain numbers
        return record(model, inputs.given, leaves=as_one, keep=False)


class _Walk:
    """Follows units from operation to operation."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.wiring = Wiring()
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

    def _function(self, op: Operation) -> layers.Given:
        """Return what a function or method makes of its inputs."""
        carrying = [v for v in op.inputs if v in self._carried]
        sources = [v for v in op.inputs if self._is_source(v)]
        if not carrying and not sources:
            return None
        if not op.outputs:
            return f"{op.name} reads its units"
        if op.kind.units == "tie" and carrying:
            return self._combined(op)
        first = op.argument(0, "input")
        if not sources and carrying == [first]:
            x = self._carried[first]
            if op.kind.units == "drop" and op.argument(1, "p", 0.5) > 0:
                whole = op.name != "dropout" or x.axis == len(first.shape) - 1
                return Carried(x.axis, x.ids, x.drops | {str(op.noise)} if whole else x.drops)
            found = moved(op, x, first.shape)
            if found is not None:
                return found
        if op.name in ("cat", "stack") and not sources:
            joined = self._joined(op)
            if joined is not None:
                return joined
        return f"{op.name} in the forward pass needs all its units"

    def _combined(self, op: Operation) -> Carried:
        """Tie the units of two tensors that are added, multiplied or the like."""
        name, ndim, units = op.name, len(op.output.shape), self.wiring.units
        main = next(v for v in op.inputs if v in self._carried)
        ids, drops = self._carried[main].ids, self._carried[main].drops
        axis = self._carried[main].axis + ndim - len(main.shape)
        for value in op.inputs:
            other, place = self._carried.get(value), axis - (ndim - len(value.shape))
            if value is main:
                continue
            if other is not None and (other.axis != place or len(other.ids) != len(ids)):
                reason = f"{name} in the forward pass brings its units together with others"
                units.hold(ids, reason)
                units.hold(other.ids, reason)
            elif other is not None:
                units.tie(ids, other.ids)
                drops = drops & other.drops
            elif place >= 0 and value.shape[place] > 1:
                if self._is_source(value) and value.shape[place] == len(ids):
                    self.wiring.slots.bind(value.tensor, place, ids)
                else:
                    units.hold(ids, f"{name} brings its units to a tensor of fixed width")
        return Carried(axis, ids, drops)

    def _joined(self, op: Operation) -> Carried | None:
        """Concatenate lists of units, or tie them where another axis is joined."""
        parts = op.argument(0, "tensors", ())
        dim = op.argument(1, "dim", op.kwargs.get("axis", 0)) % len(op.output.shape)
        found = [self._carried.get(part) for part in parts]
        first = next(x for x in found if x is not None)
        drops = frozenset.intersection(*(frozenset() if x is None else x.drops for x in found))
        if op.name == "cat" and dim == first.axis:
            if any(x is not None and x.axis != dim for x in found):
                return None
            lists = [
                self.wiring.units.held(part.shape[dim], "its units are joined with others")
                if x is None
                else x.ids
                for part, x in zip(parts, found, strict=True)
            ]
            return Carried(dim, np.concatenate(lists), drops)
        if any(x is None or x.axis != first.axis for x in found):
            return None
        for other in found[1:]:
            if other is not None:
                self.wiring.units.tie(first.ids, other.ids)
        return Carried(first.axis + (op.name == "stack" and dim <= first.axis), first.ids, drops)


def _grouped(model: nn.Module, wiring: Wiring) -> Structure:
    units, skipped = wiring.units, dict(wiring.skipped)
    drops: dict[int, frozenset[str]] = {}
    for read in wiring.reads:
        for unit in set(units.classes(read.ids).tolist()):
            drops[unit] = drops.get(unit, read.drops) & read.drops
    tied = _tied_units(model, wiring)
    members: dict[tuple[Any, ...], list[int]] = {}
    for unit in sorted(set(units.classes(np.arange(len(units))).tolist())):
        makers, reason = units.makers(unit), units.reason(unit)
        if not makers:
            continue
        if reason is None and unit not in drops:
            reason = "nothing reads its units"
        if reason is not None:
            for maker in makers:
                skipped.setdefault(maker, reason)
            continue
        members.setdefault((makers, drops[unit], unit in tied), []).append(unit)
    groups = tuple(
        Group(makers, np.array(found), dropped, shared)
        for (makers, dropped, shared), found in members.items()
    )
    return Structure(wiring, groups, skipped)


def _tied_units(model: nn.Module, wiring: Wiring) -> set[int]:
    """Return the units whose reader's weight also belongs to another layer."""
    held = layers.holders(model)
    return {
        unit
        for read in wiring.reads
        if held[id(model.get_submodule(read.name).weight)] > 1
        for unit in wiring.units.classes(read.ids).tolist()
    }
