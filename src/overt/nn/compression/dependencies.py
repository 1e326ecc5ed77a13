"""Units of a network, and which of them can only be removed together.

Every output of a layer is a unit with its number. An axis of a parameter has a list of such
numbers. Operations tie units that stay or go together. A unit that something needs stays, with the
reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from overt._check import Ints

Ids = Ints


class Units:
    """Numbers of units in classes that stay or go together (union-find)."""

    def __init__(self) -> None:
        self._parent = np.zeros(0, dtype=np.int64)
        self.reasons: list[tuple[Ids, str]] = []  # why these units cannot be removed
        self.makers: list[tuple[Ids, str]] = []  # the layers whose outputs they are

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int, maker: str | None = None) -> Ids:
        """Return numbers of new units, outputs of the layer `maker`."""
        ids = np.arange(len(self._parent), len(self._parent) + count)
        self._parent = np.concatenate([self._parent, ids])
        if maker is not None:
            self.makers.append((ids, maker))
        return ids

    def keep(self, ids: Ids, reason: str) -> None:
        """Mark units that cannot be removed; the first reason counts."""
        self.reasons.append((ids.ravel(), reason))

    def tie(self, a: Ids, b: Ids) -> None:
        """Make a[i] and b[i] one class for every i; the arrays are broadcast."""
        a, b = (part.ravel() for part in np.broadcast_arrays(a, b))
        while True:
            a = self.classes(a)
            b = self.classes(b)
            different = a != b
            if not different.any():
                return
            a = a[different]
            b = b[different]
            larger = np.maximum(a, b)
            np.minimum.at(self._parent, larger, np.minimum(a, b))

    def merge(self, ids: Ids, axes: Iterable[int]) -> Ids:
        """Make units that differ only along some axes one class; return ids of length 1 there."""
        axes = set(axes)
        part = [slice(1 if axis in axes else None) for axis in range(ids.ndim)]
        first = ids[tuple(part)]
        self.tie(ids, first)
        return first

    def classes(self, ids: Ids) -> Ids:
        """Return the class of each unit: the smallest number in it."""
        while True:
            parent = self._parent[ids]
            if np.array_equal(parent, ids):
                return parent
            ids = parent


class Reader(NamedTuple):
    """A layer that reads units: its name, the axis of its weight, the units."""

    name: str
    axis: int
    ids: Ids


class Size(NamedTuple):
    """An attribute of a module that counts units: rows of a table of units that have any left.

    It is guessed where an attribute equals the length of an axis in the module's forward pass.
    """

    name: str
    attribute: str
    units: Ids
    guessed: bool = False


@dataclass(frozen=True, eq=False)
class Group:
    """Units, one number for each class, that are outputs of the same layers."""

    layers: tuple[str, ...]  # more than one where their outputs are added
    units: Ids
    tied: bool  # whether a reader shares its weights with another layer


@dataclass(eq=False)
class DependencyGraph:
    """How the units of a model are made, read and passed on in its forward pass.

    Parameters and buffers are known by identity, so that weights that two layers share are cut
    once.
    """

    units: Units = field(default_factory=Units)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    # The units along each axis of a tensor.
    axes: dict[int, dict[int, Ids]] = field(default_factory=dict)
    # Tensors that stay as they are, however they may be used elsewhere.
    locked: dict[int, str] = field(default_factory=dict)
    sizes: list[Size] = field(default_factory=list)
    # Layers that read units, by name.
    readers: dict[str, Reader] = field(default_factory=dict)
    # Normalizations over all units along an axis.
    mixing: dict[str, tuple[int, Ids]] = field(default_factory=dict)
    # Multiply-adds of layers, by id of the weight, and of operations that run once for each of
    # these units.
    costs: Counter[int] = field(default_factory=Counter)
    products: list[tuple[int, Ids]] = field(default_factory=list)
    # Layers without units to remove, and why.
    skipped: dict[str, str] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    outputs: Any = None  # of the model on the example
    # Modules that sample in evaluation mode.
    random_modules: dict[str, None] = field(default_factory=dict)

    @cached_property
    def classes(self) -> Ids:
        """The class of every unit, once all are known."""
        return self.units.classes(np.arange(len(self.units)))

    def find(self, tensor: Tensor, axis: int, maker: str) -> Ids:
        """Return the units along an axis, new outputs of the layer `maker` if none are known."""
        ids = self.units.new(tensor.shape[axis], maker)
        return self.bind(tensor, axis, ids)

    def bind(self, tensor: Tensor | None, axis: int, ids: Ids) -> Ids:
        """Declare that these units lie along an axis; return those that do."""
        if tensor is None:
            return ids
        self.tensors[id(tensor)] = tensor
        known = self.axes.setdefault(id(tensor), {}).setdefault(axis, ids)
        self.units.tie(known, ids)
        return known

    def keep_layer(self, name: str, weight: Tensor, reason: str) -> None:
        """Keep a layer as it is."""
        self.locked[id(weight)] = reason
        self.skipped.setdefault(name, reason)


def group_units(model: nn.Module, found: DependencyGraph) -> None:
    """Put units that can be removed into groups, and name the other layers with the reason."""
    units = found.units
    for key, reason in found.locked.items():
        for ids in found.axes.get(key, {}).values():
            units.keep(ids, reason)

    def each(ids: Ids) -> list[int]:
        return np.unique(found.classes[ids]).tolist()

    makers: dict[int, dict[str, None]] = {}
    for ids, name in units.makers:
        for unit in each(ids):
            makers.setdefault(unit, {})[name] = None
    reasons: dict[int, str] = {}
    for ids, reason in units.reasons:
        reasons = dict.fromkeys(each(ids), reason) | reasons
    copies = holders(model)
    seen: set[int] = set()
    tied: set[int] = set()
    for reader in found.readers.values():
        read = each(reader.ids)
        seen.update(read)
        if copies[id(model.get_submodule(reader.name).weight)] > 1:
            tied.update(read)
    members: dict[tuple[Any, ...], list[int]] = {}
    for unit in sorted(makers):
        if unit in reasons or unit not in seen:
            why = reasons.get(unit, "nothing reads its units")
            for name in makers[unit]:
                found.skipped.setdefault(name, why)
        else:
            alike = (tuple(makers[unit]), unit in tied)
            members.setdefault(alike, []).append(unit)
    for alike, members_of in members.items():
        found.groups.append(Group(alike[0], np.array(members_of), alike[1]))


def holders(model: nn.Module) -> Counter[int]:
    """Return how many modules have each parameter, by its id: more than one where it is tied."""
    return Counter(
        id(tensor)
        for module in model.modules()
        for tensor in module._parameters.values()
        if tensor is not None
    )
