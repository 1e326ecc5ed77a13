"""Units of a network, and which of them can only be removed together.

Every output of a layer is a unit with a number of its own. An axis of a tensor is a list of such
numbers: flattening a map repeats them, concatenation joins lists, and addition ties two lists entry
by entry. A unit that something needs whole (the model's output, a grouped convolution) is held,
with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from overt._types import Ints

Ids = Ints


class Units:
    """Numbers of units in classes that stand or fall together (union-find)."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._reason: dict[int, str] = {}
        self._makers: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int, maker: str | None = None) -> Ids:
        """Return numbers of new units, outputs of the layer `maker`."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        if maker is not None:
            self._makers |= {i: [maker] for i in range(start, start + count)}
        return np.arange(start, start + count)

    def held(self, count: int, reason: str) -> Ids:
        """Return numbers of new units that cannot be removed."""
        ids = self.fresh(count)
        self.hold(ids, reason)
        return ids

    def hold(self, ids: Ids, reason: str) -> None:
        """Keep these units; the first reason stays."""
        for i in set(map(self._root, ids.tolist())):
            self._reason.setdefault(i, reason)

    def tie(self, a: Ids, b: Ids) -> None:
        """Make a[i] and b[i] one class for every i."""
        for i, j in set(zip(a.tolist(), b.tolist(), strict=True)):
            first, second = sorted((self._root(i), self._root(j)))
            if first == second:
                continue
            self._parent[second] = first
            if second in self._reason:
                self._reason.setdefault(first, self._reason[second])
            makers = self._makers.setdefault(first, [])
            makers += [name for name in self._makers.pop(second, []) if name not in makers]

    def classes(self, ids: Ids) -> Ids:
        """Return the class of each unit: the smallest number in it."""
        return np.array([self._root(i) for i in ids.tolist()], dtype=np.int64)

    def reason(self, i: int) -> str | None:
        """Why a unit cannot be removed, None if it can."""
        return self._reason.get(self._root(i))

    def makers(self, i: int) -> tuple[str, ...]:
        """Return the layers whose outputs are in a unit's class."""
        return tuple(self._makers.get(self._root(i), ()))

    def _root(self, i: int) -> int:
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i


class Slots:
    """Which units lie along which axis of which parameter or buffer.

    Tensors are known by identity, so that weights that two layers share are cut once.
    """

    def __init__(self, units: Units) -> None:
        self._units = units
        self._locked: dict[int, str] = {}
        self.axes: dict[int, dict[int, Ids]] = {}
        self.tensors: dict[int, Tensor] = {}

    def find(self, tensor: Tensor, axis: int, maker: str | None = None) -> Ids:
        """Return the units along an axis, new ones of the layer `maker` if none are known."""
        known = self.axes.get(id(tensor), {}).get(axis)
        if known is not None:
            if maker is not None:
                self._units.tie(known, self._units.fresh(len(known), maker))
            return known
        ids = self._units.fresh(tensor.shape[axis], maker)
        self.bind(tensor, axis, ids)
        return ids

    def bind(self, tensor: Tensor | None, axis: int, ids: Ids) -> None:
        """Say that these units lie along an axis."""
        if tensor is None:
            return
        axes = self.axes.setdefault(id(tensor), {})
        self.tensors[id(tensor)] = tensor
        if axis in axes:
            self._units.tie(axes[axis], ids)
        axes.setdefault(axis, ids)

    def lock(self, tensor: Tensor, reason: str) -> None:
        """Keep a tensor as it is, however it may be used elsewhere."""
        self._locked[id(tensor)] = reason

    def settle(self) -> None:
        """Hold the units along every locked tensor."""
        for key, reason in self._locked.items():
            for ids in self.axes.get(key, {}).values():
                self._units.hold(ids, reason)


@dataclass(frozen=True, eq=False)
class Carried:
    """Units along one axis of a tensor; `drops` are the dropouts that have acted on them singly."""

    axis: int
    ids: Ids
    drops: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Read:
    """A layer that reads units: its name, the axis of its weight, the units, the drops."""

    name: str
    axis: int
    ids: Ids
    drops: frozenset[str]


class Wiring:
    """How the units of a model are made, read and passed on, as far as its pass was followed."""

    def __init__(self) -> None:
        self.units = Units()
        self.slots = Slots(self.units)  # where they lie in parameters and buffers
        # The attributes of each layer that count units: (place in a tuple or None, ids).
        self.sizes: dict[str, dict[str, tuple[int | None, Ids]]] = {}
        self.reads: list[Read] = []  # every reading of units by a weighted layer
        self.mixing: dict[str, tuple[int, Ids]] = {}  # norms over all units on this axis
        self.skipped: dict[str, str] = {}  # layers without units to remove, and why

    def describe(self, name: str, **sizes: Ids) -> None:
        """Note which attributes of a layer count which units."""
        self.sizes.setdefault(name, {}).update({key: (None, ids) for key, ids in sizes.items()})

    def hold(self, carried: Carried | None, reason: str) -> None:
        """Keep whatever units a tensor carries."""
        if carried is not None:
            self.units.hold(carried.ids, reason)

    def leave_whole(self, name: str, weight: Tensor, reason: str) -> None:
        """Keep a layer as it is, and say why."""
        self.slots.lock(weight, reason)
        self.skipped.setdefault(name, reason)
