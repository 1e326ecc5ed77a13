"""Units of a network, and which of them can only be removed together.

Every output of a layer is a unit with a number of its own. An axis of a tensor is a list of such
numbers: flattening a map repeats them, concatenation joins lists, and addition ties two lists entry
by entry. Where a reshape splits an axis into several, as attention does into heads and features,
the numbers lie in a table with an axis for each, until what comes next decides along which of
them units are removed. A unit that something needs whole is held, with the reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from overt._types import Ints

Ids = Ints


class Units:
    """Numbers of units in classes that stand or fall together (union-find)."""

    def __init__(self) -> None:
        self._parent = np.zeros(0, dtype=np.int64)
        self.reasons: list[tuple[Ids, str]] = []  # why these units cannot be removed
        self.makers: list[tuple[Ids, str]] = []  # the layers whose outputs they are

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, count: int, maker: str | None = None) -> Ids:
        """Return numbers of new units, outputs of the layer `maker`."""
        ids = np.arange(len(self._parent), len(self._parent) + count)
        self._parent = np.concatenate([self._parent, ids])
        if maker is not None:
            self.makers.append((ids, maker))
        return ids

    def held(self, count: int, reason: str) -> Ids:
        """Return numbers of new units that cannot be removed."""
        ids = self.fresh(count)
        self.hold(ids, reason)
        return ids

    def hold(self, ids: Ids, reason: str) -> None:
        """Keep these units; the first reason stays."""
        self.reasons.append((ids.ravel(), reason))

    def tie(self, a: Ids, b: Ids) -> None:
        """Make a[i] and b[i] one class for every i."""
        while True:
            a, b = self.classes(a), self.classes(b)
            apart = a != b
            if not apart.any():
                return
            a, b = a[apart], b[apart]
            np.minimum.at(self._parent, np.maximum(a, b), np.minimum(a, b))

    def classes(self, ids: Ids) -> Ids:
        """Return the class of each unit: the smallest number in it."""
        while True:
            above = self._parent[ids]
            if np.array_equal(above, ids):
                return above
            ids = above


class Labels:
    """What is said of each unit, label after label: `said[of[unit]]`."""

    def __init__(self, said: Iterable[tuple[Ids, Hashable]], units: Units) -> None:
        self.of = np.zeros(len(units), dtype=np.int64)
        self.said: list[tuple[Any, ...]] = [()]
        known: dict[tuple[int, Hashable], int] = {}
        for ids, label in said:
            ids = units.classes(ids)
            before = self.of[ids]
            for old in np.unique(before).tolist():
                if label in self.said[old]:
                    continue
                if (old, label) not in known:
                    known[old, label] = len(self.said)
                    self.said.append((*self.said[old], label))
                self.of[ids[before == old]] = known[old, label]


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


@dataclass(frozen=True)
class Named:
    """A number of units that is written into the code: the module, and its attributes with it."""

    path: str
    attributes: tuple[str, ...]
    reason: str  # to hold the units, where there are none


@dataclass(frozen=True, eq=False)
class Carried:
    """Units along axes of a tensor.

    `ids` is a table with an axis for each of `axes`, `named` says for each what names its length;
    `drops` are the dropouts that have acted on the units singly.
    """

    axes: tuple[int, ...]
    ids: Ids
    drops: frozenset[str] = frozenset()
    named: tuple[Named | None, ...] = (None,)

    @property
    def axis(self) -> int:
        """The axis, where there is one."""
        return self.axes[0]


WIDE = 1024
"""Features beyond which those of a flattened map are taken as one feature at many places."""


@dataclass(frozen=True, eq=False)
class Read:
    """A layer that reads units: its name, the axis of its weight, the units, the drops."""

    name: str
    axis: int
    ids: Ids
    drops: frozenset[str]

    @property
    def places(self) -> int:
        """How many entries in turn are one unit, where a wide layer reads a flattened map."""
        n = int(np.argmax(self.ids != self.ids[0])) if len(self.ids) > WIDE else 1
        regular = n > 1 and len(self.ids) % n == 0
        return n if regular and (self.ids[::n] == self.ids.reshape(-1, n).T).all() else 1


class Wiring:
    """How the units of a model are made, read and passed on, as far as its pass was followed."""

    def __init__(self) -> None:
        self.units = Units()
        self.slots = Slots(self.units)  # where they lie in parameters and buffers
        # The attributes of each layer that count units: (place in a tuple or None, ids).
        self.sizes: dict[str, dict[str, tuple[int | None, Ids]]] = {}
        self.reads: list[Read] = []  # every reading of units by a weighted layer
        self.mixing: dict[str, tuple[int, Ids]] = {}  # norms over all units on this axis
        self.products: list[tuple[int, Ids]] = []  # multiply-adds of attention, shared by units
        self.repeated: dict[str, Ids] = {}  # layers that run once for each of these units
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

    def along(self, x: Carried, axes: Sequence[int]) -> Carried:
        """Return x along some of its axes; units that differ only along others become one."""
        if tuple(axes) != x.axes:
            places = [x.axes.index(axis) for axis in axes]
            table = np.moveaxis(x.ids, places, range(len(places)))
            table = table.reshape(*table.shape[: len(places)], -1)
            self.units.tie(np.broadcast_to(table[..., :1], table.shape).ravel(), table.ravel())
            named = tuple(x.named[place] for place in places)
            x = replace(x, axes=tuple(axes), ids=table[..., 0], named=named)
        return self.settled(x)

    def settled(self, x: Carried) -> Carried:
        """Let numbers in the code follow units that lie along one axis, or hold these."""
        name = x.named[0] if len(x.axes) == 1 else None
        if name is None:
            return x
        if name.attributes:
            self.describe(name.path, **dict.fromkeys(name.attributes, x.ids))
        else:
            self.units.hold(x.ids, name.reason)
        return replace(x, named=(None,))
