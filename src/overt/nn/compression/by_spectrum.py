"""Products of two layers in place of one: which, at which rank, and with what error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from overt.nn.compression import lowrank
from overt.nn.compression.batches import Batches
from overt.nn.compression.measure import multiply_adds
from overt.nn.compression.moments import Moments, collect
from overt.nn.compression.outcome import Keep, Outcome, has_units, inputs_of
from overt.nn.compression.report import Change
from overt.nn.compression.shrink import duplicate
from overt.nn.compression.tracing import Inputs, observing


def by_spectrum(base: nn.Module, keep: Keep, inputs: Inputs, judge: Batches | None) -> Outcome:
    """Rewrite layers as products of two, each with a rank of its own."""
    costs = _called_costs(base, inputs)
    found, skipped = lowrank.rewritable(base, costs)
    if isinstance(keep, Mapping):
        has_units(keep, [*found, *skipped])
        found = {name: module for name, module in found.items() if name in keep}
    moments: dict[str, Moments] = {}
    if judge is not None:
        moments = collect(base, found, inputs_of(judge, inputs), outputs=True)
    factors = [
        lowrank.factorize(module, name, costs[name], moments.get(name))
        for name, module in found.items()
    ]
    if isinstance(keep, Mapping):
        ranks = {f.name: lowrank.affordable_rank(f, keep[f.name]) for f in factors}
    else:
        ranks = lowrank.share_ranks(factors, keep)
    small, changes = duplicate(base), []
    for f in factors:
        rank, module = ranks[f.name], found[f.name]
        if rank is None:
            skipped[f.name] = (
                "no rank saves multiply-adds" if f.limit < 1 else "it is worth its multiply-adds"
            )
            continue
        pair = lowrank.rewrite(module, f, rank).eval()
        problem = _replaceable(small, f.name, pair, inputs)
        if problem is not None:
            skipped[f.name] = problem
            continue
        operator, frobenius = lowrank.operator_error(f, rank)
        error = f.error(rank)
        total = float(np.sqrt(np.sum(f.energy))) or 1.0
        data = error if f.mean is not None else None
        changes.append(
            Change((f.name,), "rank", min(f.weight.shape), rank, operator, frobenius, data,
                   error / total)
        )  # fmt: skip
    return Outcome(small, changes, skipped)


def _called_costs(base: nn.Module, inputs: Inputs) -> dict[str, int]:
    """Return the multiply-adds of layers that are called as modules, fast paths included."""
    called: set[str] = set()

    def hook(name: str) -> Any:
        return lambda *_: called.add(name)

    handles = [m.register_forward_pre_hook(hook(name)) for name, m in base.named_modules()]
    with observing(handles):
        base(*inputs)
    return {name: n for name, n in multiply_adds(base, inputs).items() if name in called}


def _replaceable(small: nn.Module, name: str, pair: nn.Module, inputs: Inputs) -> str | None:
    """Put two layers in place of one; undo it and return the reason if the model breaks."""
    if not name:
        return "it is the model itself; wrap it in torch.nn.Sequential"
    before = small.get_submodule(name)
    small.set_submodule(name, pair)
    try:
        with torch.no_grad():
            small(*inputs)
    except Exception as error:  # the forward pass may reach for the layer's weight
        small.set_submodule(name, before)
        return f"the forward pass needs the layer itself: {str(error).splitlines()[0][:160]}"
    return None
