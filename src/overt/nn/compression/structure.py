"""What of a model can be removed: groups of units, and everything else with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from overt.nn.compression import layers
from overt.nn.compression.modules import feedforward
from overt.nn.compression.state import State
from overt.nn.compression.tracing import Inputs, record_calls, regions
from overt.nn.compression.units import Ids
from overt.nn.compression.walk import walk


@dataclass(frozen=True, eq=False)
class Group:
    """Units that are outputs of the same layers.

    Attributes
    ----------
    layers
        Those layers; more than one where their outputs are added.
    units
        One number for each class of units.
    drops
        The dropout layers through which every reader sees these units.
    tied
        Whether a reader shares its weights with another layer.
    """

    layers: tuple[str, ...]
    units: Ids
    drops: frozenset[str]
    tied: bool


@dataclass(frozen=True)
class Structure:
    """The units of a model: how they are wired, in which groups, and what is left whole."""

    state: State
    groups: tuple[Group, ...]
    skipped: dict[str, str]


def structure(model: nn.Module, inputs: Inputs) -> Structure:
    """Trace a model in evaluation mode on an example, and find its groups of units."""
    calls = record_calls(model, inputs)
    parts, failed = regions(model, inputs, calls)
    state = State()
    for part in parts:
        walk(state, part)
    for name, module in model.named_modules():
        if layers.is_a(module, layers.ATTENTION):
            feedforward(state, name, module, calls.count[name])
        if isinstance(module, layers.SEALED):
            state.skipped[name] = f"{type(module).__name__} keeps its maps inside"
    skipped = {name: f"its forward pass cannot be traced: {why}" for name, why in failed.items()}
    owners = _owners(model)
    for name, module in model.named_modules(remove_duplicate=False):
        met = sum(state.visits[other] for other in owners[id(module)])
        called = sum(calls.count[other] for other in owners[id(module)])
        weight = getattr(module, "weight", None)
        if met and called != met and weight is not None:
            state.slots.lock(weight, "it is also used where the forward pass was not traced")
        if not met and called and layers.is_a(module, layers.WEIGHTED):
            skipped.setdefault(name, "it lies where the forward pass was not traced")
            state.slots.lock(weight, skipped[name])
    state.slots.settle()
    return _grouped(model, state, skipped | state.skipped)


def _grouped(model: nn.Module, state: State, skipped: dict[str, str]) -> Structure:
    units = state.units
    drops: dict[int, frozenset[str]] = {}
    for read in state.reads:
        for unit in set(units.classes(read.ids).tolist()):
            drops[unit] = drops.get(unit, read.drops) & read.drops
    tied = _tied_units(model, state)
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
    return Structure(state, groups, skipped)


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """Return all names under which each module is reached."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        owners.setdefault(id(module), []).append(name)
    return owners


def _tied_units(model: nn.Module, state: State) -> set[int]:
    """Return the units whose reader's weight also belongs to another layer."""
    held = layers.holders(model)
    return {
        unit
        for read in state.reads
        if held[id(model.get_submodule(read.name).weight)] > 1
        for unit in state.units.classes(read.ids).tolist()
    }
