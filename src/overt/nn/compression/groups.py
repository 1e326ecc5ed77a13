"""Groups of units that can be removed, and everything else with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from overt.nn.compression.layers import holders
from overt.nn.compression.units import Dependencies, Ids, Labels


@dataclass(frozen=True, eq=False)
class Group:
    """Units, one number for each class, that are outputs of the same layers."""

    layers: tuple[str, ...]  # more than one where their outputs are added
    units: Ids
    drops: frozenset[str]  # the dropout layers through which every reader sees these units
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
    _, first, kind_of = np.unique(kinds[:, made], axis=1, return_index=True, return_inverse=True)
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
