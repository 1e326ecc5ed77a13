"""Groups of units that can be removed, and everything else with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from overt.nn.compression import layers
from overt.nn.compression.units import Ids, Wiring


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
    drops: dict[int, frozenset[str]] = {}
    for read in wiring.reads:
        for unit in set(units.classes(read.ids).tolist()):
            drops[unit] = drops.get(unit, read.drops) & read.drops
    tied, reasons = _tied_units(model, wiring), units.reasons()
    members: dict[tuple[Any, ...], list[int]] = {}
    for unit, makers in units.makers().items():
        reason = reasons.get(unit)
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
    classes = units.classes(np.arange(len(units)))
    return Structure(wiring, groups, skipped, classes, outputs, drawing)


def _tied_units(model: nn.Module, wiring: Wiring) -> set[int]:
    """Return the units whose reader's weight also belongs to another layer."""
    held = layers.holders(model)
    return {
        unit
        for read in wiring.reads
        if held[id(model.get_submodule(read.name).weight)] > 1
        for unit in wiring.units.classes(read.ids).tolist()
    }
