"""Groups of units that can be removed, and everything else with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from overt.nn.compression import layers
from overt.nn.compression.units import Ids, Labels, Wiring


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
    classes: Ids  # of every unit
    outputs: Any  # of the model on the example
    drawing: tuple[str, ...]  # modules that draw in evaluation mode


def grouped(model: nn.Module, wiring: Wiring, outputs: Any, drawing: tuple[str, ...]) -> Structure:
    """Put units that are outputs of the same layers, and can be removed, into groups."""
    units, skipped = wiring.units, dict(wiring.skipped)
    makers, held = Labels(units.makers, units), Labels(units.reasons, units)
    reads = Labels([(read.ids, read.drops) for read in wiring.reads], units)
    copies = layers.holders(model)
    tied = np.zeros(len(units), dtype=np.int64)
    for read in wiring.reads:
        if copies[id(model.get_submodule(read.name).weight)] > 1:
            tied[units.classes(read.ids)] = 1
    codes = np.ravel_multi_index(
        (makers.of, held.of, reads.of, tied), (len(makers.said), len(held.said), len(reads.said), 2)
    )
    made = np.flatnonzero(makers.of)
    members: dict[tuple[Any, ...], list[Ids]] = {}
    _, first, code = np.unique(codes[made], return_index=True, return_inverse=True)
    for kind in np.argsort(first).tolist():
        unit = made[first[kind]]
        names, drops = makers.said[makers.of[unit]], reads.said[reads.of[unit]]
        reasons = held.said[held.of[unit]]
        if not drops:
            reasons = (*reasons, "nothing reads its units")
        for name in names if reasons else ():
            skipped.setdefault(name, reasons[0])
        if reasons:
            continue
        key = names, frozenset.intersection(*drops), bool(tied[unit])
        members.setdefault(key, []).append(made[code == kind])
    groups = tuple(
        Group(names, np.sort(np.concatenate(found)), drops, shared)
        for (names, drops, shared), found in members.items()
    )
    classes = units.classes(np.arange(len(units)))
    return Structure(wiring, groups, skipped, classes, outputs, drawing)
