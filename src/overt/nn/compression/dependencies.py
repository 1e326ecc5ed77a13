"""Units of a network, and which of them can only be removed together.

Every output of a layer is a unit with its number. An axis of a tensor is a list of such
numbers: flattening a map repeats them, concatenation joins lists, and addition ties two lists entry
by entry. Where a reshape splits an axis into several, as attention does into heads and features,
the numbers lie in a table with an axis for each, until a later operation decides along which of
them units are removed. A unit that something needs stays, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from overt._types import Ints

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

    def new_kept(self, count: int, reason: str) -> Ids:
        """Return numbers of new units that cannot be removed."""
        ids = self.new(count)
        self.keep(ids, reason)
        return ids

    def keep(self, ids: Ids, reason: str) -> None:
        """Mark units that cannot be removed; the first reason counts."""
        self.reasons.append((ids.ravel(), reason))

    def tie(self, a: Ids, b: Ids) -> None:
        """Make a[i] and b[i] one class for every i."""
        while True:
            a = self.classes(a)
            b = self.classes(b)
            different = a != b
            if not different.any():
                return
            a = a[different]
            b = b[different]
            np.minimum.at(self._parent, np.maximum(a, b), np.minimum(a, b))

    def classes(self, ids: Ids) -> Ids:
        """Return the class of each unit: the smallest number in it."""
        while True:
            parent = self._parent[ids]
            if np.array_equal(parent, ids):
                return parent
            ids = parent


class Labels:
    """Labels of each unit, collected from (units, label) pairs: `texts[index[unit]]`."""

    def __init__(self, pairs: Iterable[tuple[Ids, Hashable]], units: Units) -> None:
        self.index = np.zeros(len(units), dtype=np.int64)
        self.texts: list[tuple[Any, ...]] = [()]
        known: dict[tuple[int, Hashable], int] = {}
        for ids, label in pairs:
            ids = units.classes(ids)
            before = self.index[ids]
            for old in np.unique(before).tolist():
                if label in self.texts[old]:
                    continue
                if (old, label) not in known:
                    known[old, label] = len(self.texts)
                    self.texts.append((*self.texts[old], label))
                self.index[ids[before == old]] = known[old, label]


class TensorAxes:
    """Which units lie along which axis of which parameter or buffer.

    Tensors are known by identity, so that weights that two layers share are cut once.
    """

    def __init__(self, units: Units) -> None:
        self._units = units
        self._locked: dict[int, str] = {}
        self.axes: dict[int, dict[int, Ids]] = {}
        self.tensors: dict[int, Tensor] = {}

    def find(self, tensor: Tensor, axis: int, maker: str) -> Ids:
        """Return the units along an axis, new outputs of the layer `maker` if none are known."""
        known = self.axes.get(id(tensor), {}).get(axis)
        if known is not None:
            self._units.tie(known, self._units.new(len(known), maker))
            return known
        ids = self._units.new(tensor.shape[axis], maker)
        self.bind(tensor, axis, ids)
        return ids

    def bind(self, tensor: Tensor | None, axis: int, ids: Ids) -> None:
        """Declare that these units lie along an axis."""
        if tensor is None:
            return
        self.tensors[id(tensor)] = tensor
        axes = self.axes.setdefault(id(tensor), {})
        if axis in axes:
            self._units.tie(axes[axis], ids)
        else:
            axes[axis] = ids

    def lock(self, tensor: Tensor, reason: str) -> None:
        """Keep a tensor as it is, however it may be used elsewhere."""
        self._locked[id(tensor)] = reason

    def keep_locked(self) -> None:
        """Keep the units along every locked tensor."""
        for key, reason in self._locked.items():
            for ids in self.axes.get(key, {}).values():
                self._units.keep(ids, reason)


@dataclass(frozen=True)
class WrittenSize:
    """A number of units written into the code: the module, and its attributes with that value."""

    path: str
    attributes: tuple[str, ...]
    reason: str  # to keep the units, where there are no attributes


@dataclass(frozen=True, eq=False)
class UnitAxes:
    """Units along axes of a tensor.

    `ids` is a table with an axis for each of `axes`; `written` says for each axis where the code
    has its length; `drops` are the dropouts that have acted on single units.
    """

    axes: tuple[int, ...]
    ids: Ids
    drops: frozenset[str] = frozenset()
    written: tuple[WrittenSize | None, ...] = (None,)

    @property
    def axis(self) -> int:
        """The axis, where there is one."""
        return self.axes[0]


WIDE = 1024
"""A layer with more inputs reads a flattened map as one feature per channel, not per position."""


@dataclass(frozen=True, eq=False)
class Reader:
    """A layer that reads units: its name, the axis of its weight, the units, the drops."""

    name: str
    axis: int
    ids: Ids
    drops: frozenset[str]

    @property
    def places(self) -> int:
        """How many entries in turn are one unit, where a wide layer reads a flattened map."""
        if len(self.ids) <= WIDE:
            return 1
        n = int(np.argmax(self.ids != self.ids[0]))
        if n <= 1 or len(self.ids) % n:
            return 1
        regular = (self.ids[::n] == self.ids.reshape(-1, n).T).all()
        return n if regular else 1


class Dependencies:
    """How the units of a model are made, read and passed on in its forward pass."""

    def __init__(self) -> None:
        self.units = Units()
        self.tensors = TensorAxes(self.units)
        # The attributes of each layer that count units: (place in a tuple or None, ids).
        self.sizes: dict[str, dict[str, tuple[int | None, Ids]]] = {}
        self.readers: list[Reader] = []  # every reading of units by a weighted layer
        self.mixing: dict[
            str, tuple[int, Ids]
        ] = {}  # norms over all units on this axis
        self.products: list[
            tuple[int, Ids]
        ] = []  # multiply-adds of attention, shared by units
        self.repeated: dict[
            str, Ids
        ] = {}  # layers that run once for each of these units
        self.skipped: dict[str, str] = {}  # layers without units to remove, and why

    def describe(self, name: str, **sizes: Ids) -> None:
        """Declare which attributes of a layer count which units."""
        self.sizes.setdefault(name, {}).update(
            {key: (None, ids) for key, ids in sizes.items()}
        )

    def keep(self, x: UnitAxes | None, reason: str) -> None:
        """Keep the units of a tensor."""
        if x is not None:
            self.units.keep(x.ids, reason)

    def keep_layer(self, name: str, weight: Tensor, reason: str) -> None:
        """Keep a layer as it is."""
        self.tensors.lock(weight, reason)
        self.skipped.setdefault(name, reason)

    def reduce_to(self, x: UnitAxes, axes: Sequence[int]) -> UnitAxes:
        """Return x along some of its axes; units that differ only along others become one."""
        if tuple(axes) != x.axes:
            places = [x.axes.index(axis) for axis in axes]
            table = np.moveaxis(x.ids, places, range(len(places)))
            table = table.reshape(*table.shape[: len(places)], -1)
            self.units.tie(
                np.broadcast_to(table[..., :1], table.shape).ravel(), table.ravel()
            )
            written = tuple(x.written[place] for place in places)
            x = replace(x, axes=tuple(axes), ids=table[..., 0], written=written)
        return self.follow_written_size(x)

    def follow_written_size(self, x: UnitAxes) -> UnitAxes:
        """Let the code's number follow units that lie along one axis, or keep these."""
        size = x.written[0] if len(x.axes) == 1 else None
        if size is None:
            return x
        if size.attributes:
            self.describe(size.path, **dict.fromkeys(size.attributes, x.ids))
        else:
            self.units.keep(x.ids, size.reason)
        return replace(x, written=(None,))


@dataclass(frozen=True, eq=False)
class Group:
    """Units, one number for each class, that are outputs of the same layers."""

    layers: tuple[str, ...]  # more than one where their outputs are added
    units: Ids
    drops: frozenset[
        str
    ]  # the dropout layers through which every reader sees these units
    tied: bool  # whether a reader shares its weights with another layer


@dataclass(frozen=True, eq=False)
class DependencyGraph:
    """The units of a model: their dependencies, their groups, and what is left whole."""

    dependencies: Dependencies
    groups: tuple[Group, ...]
    skipped: dict[str, str]
    classes: Ids  # of every unit
    outputs: Any  # of the model on the example
    random_modules: tuple[str, ...]  # modules that sample in evaluation mode


def group_units(
    model: nn.Module, found: Dependencies, outputs: Any, random_modules: tuple[str, ...]
) -> DependencyGraph:
    """Put units that are outputs of the same layers, and can be removed, into groups."""
    units = found.units
    skipped = dict(found.skipped)
    makers = Labels(units.makers, units)
    reasons = Labels(units.reasons, units)
    reads = Labels([(reader.ids, reader.drops) for reader in found.readers], units)
    copies = holders(model)
    tied = np.zeros(len(units), dtype=np.int64)
    for reader in found.readers:
        if copies[id(model.get_submodule(reader.name).weight)] > 1:
            tied[units.classes(reader.ids)] = 1
    # Units with the same makers, reasons, readers and ties are treated alike.
    kinds = np.stack([makers.index, reasons.index, reads.index, tied])
    made = np.flatnonzero(makers.index)
    members: dict[tuple[Any, ...], list[Ids]] = {}
    _, first, kind_of = np.unique(
        kinds[:, made], axis=1, return_index=True, return_inverse=True
    )
    for kind in np.argsort(first).tolist():
        unit = made[first[kind]]
        names = makers.texts[makers.index[unit]]
        drops = reads.texts[reads.index[unit]]
        why = reasons.texts[reasons.index[unit]]
        if not drops:
            why = (*why, "nothing reads its units")
        if why:
            for name in names:
                skipped.setdefault(name, why[0])
            continue
        key = (names, frozenset.intersection(*drops), bool(tied[unit]))
        members.setdefault(key, []).append(made[kind_of.ravel() == kind])
    groups = tuple(
        Group(names, np.sort(np.concatenate(parts)), drops, shared)
        for (names, drops, shared), parts in members.items()
    )
    classes = units.classes(np.arange(len(units)))
    return DependencyGraph(found, groups, skipped, classes, outputs, random_modules)


def holders(model: nn.Module) -> Counter[int]:
    """Return how many modules have each parameter, by its id: more than one where it is tied."""
    return Counter(
        id(tensor)
        for module in model.modules()
        for tensor in module._parameters.values()
        if tensor is not None
    )
