"""What is known about a model's units while its graph is walked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from overt.nn.compression.units import Ids, Slots, Units


@dataclass(frozen=True)
class Value:
    """A tensor in the graph: its shape, and the units along one of its axes, if it has any.

    `drops` are the dropout layers that have acted on those units one by one; `source` is the
    parameter that the tensor is, if it is one.
    """

    shape: tuple[int, ...]
    axis: int = -1
    ids: Ids | None = None
    drops: frozenset[str] = frozenset()
    source: Tensor | None = None


@dataclass(frozen=True)
class Read:
    """A layer that reads units: its name, the axis of its weight, the units, the drops."""

    name: str
    axis: int
    ids: Ids
    drops: frozenset[str]


class State:
    """What is known about a model's units after some of its regions have been walked.

    Attributes
    ----------
    units, slots
        The units, and where they lie in parameters and buffers.
    sizes
        For each layer the attributes that count units: {name: {attribute: (entry, ids)}}, entry
        None for a number, else the place in a tuple.
    reads
        Every reading of units by a weighted layer.
    mixing
        Normalizations over all units, with the axis of the tensor they lie on.
    visits
        How often each module was met.
    skipped
        Layers that make no units that could be removed, with the reason.
    """

    def __init__(self) -> None:
        self.units = Units()
        self.slots = Slots(self.units)
        self.sizes: dict[str, dict[str, tuple[int | None, Ids]]] = {}
        self.reads: list[Read] = []
        self.mixing: dict[str, tuple[int, Ids]] = {}
        self.visits: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}

    def describe(self, name: str, **sizes: Ids) -> None:
        """Note which attributes of a layer count which units."""
        self.sizes.setdefault(name, {}).update({key: (None, ids) for key, ids in sizes.items()})

    def hold(self, value: Value | None, reason: str) -> None:
        """Keep whatever units or parameter a value carries."""
        if value is not None and value.ids is not None:
            self.units.hold(value.ids, reason)
        if value is not None and value.source is not None:
            self.slots.lock(value.source, reason)
