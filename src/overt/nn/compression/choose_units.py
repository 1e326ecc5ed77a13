"""Narrower layers: which groups lose units, how many, which, and whether the model still runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt._check import InputError
from overt._progress import meter
from overt._types import Floats
from overt.nn.compression import remove_units
from overt.nn.compression.activations import Moments, collect
from overt.nn.compression.dependencies import DependencyGraph, Group, Ids
from overt.nn.compression.measure import count_parameters, loss_or_infinity, score
from overt.nn.compression.problem import (
    TOLERANCE,
    Keep,
    Outcome,
    Problem,
    check_layers,
    copy_model,
)
from overt.nn.compression.record import tensors
from overt.nn.compression.remove_units import Cut, shrink
from overt.nn.compression.report import Change
from overt.nn.data.batches import first_line
from overt.nn.data.models import disable_fast_attention

BISECTIONS = 16
"""Steps of the search for a share of units: 1.5e-5, below one unit in 65,000."""


def by_units(problem: Problem, by: str) -> Outcome:
    """Remove units: chosen by sampling masks ("mask"), or by their flow ("flow")."""
    base = problem.base
    graph = problem.graph
    skipped = dict(graph.skipped)
    groups = _removable_groups(graph, problem.keep, by, skipped)
    if by == "mask" and groups and score(base, problem.judge, problem.loss) is None:
        raise InputError(
            "by='mask' needs data of pairs (inputs, targets), and a model that returns a "
            "tensor (or a loss that is a function of what it returns); output= says which counts"
        )
    moments: dict[str, Moments] = {}
    psi = np.zeros(0)
    if by == "flow" and groups:
        places = {reader.name: reader.places for reader in graph.dependencies.readers}
        moments = collect(base, places, problem.batches, outputs=False)
        psi = remove_units.flows(base, graph, moments)
    while groups:
        losses = np.zeros(0)
        interrupted = False
        counts = _counts(problem, groups)
        if by == "mask":
            cut, losses, interrupted = _best_mask(problem, counts)
        else:
            kept = {group: remove_units.greatest(group, psi, n) for group, n in counts.items()}
            cut = Cut(kept, refits=remove_units.refits(base, graph, moments, kept))
        broken = _broken_groups(problem, cut)
        if not broken:
            small = shrink(base, graph, cut)
            changes = [Change(g.layers, "units", len(g.units), n) for g, n in counts.items()]
            return Outcome(by, small, changes, skipped, losses, interrupted)
        for group, why in broken.items():
            skipped.update(dict.fromkeys(group.layers, why))
        groups = [group for group in groups if group not in broken]
    return Outcome(by, copy_model(base), [], skipped)


def _removable_groups(
    graph: DependencyGraph, keep: Keep, by: str, skipped: dict[str, str]
) -> list[Group]:
    """Return the groups that may lose units; the others go to `skipped` with the reason."""
    if isinstance(keep, Mapping):
        names = [name for group in graph.groups for name in group.layers]
        check_layers(keep, [*skipped, *names])
    chosen = []
    for group in graph.groups:
        if _share(group, keep) == 1:
            continue
        reason = None
        if len(group.units) == 1:
            reason = "all its units stand or fall together"
        elif by == "mask":
            reason = _why_not_masked(group, keep)
        if reason is None:
            chosen.append(group)
        else:
            skipped.update(dict.fromkeys(group.layers, reason))
    return chosen


def _share(group: Group, keep: Keep) -> float:
    if not isinstance(keep, Mapping):
        return keep
    shares = {name: keep[name] for name in group.layers if name in keep}
    if len(set(shares.values())) > 1:
        raise InputError(
            f"keep must give one share to layers whose outputs are added, got {shares}"
        )
    return next(iter(shares.values()), 1.0)


def _why_not_masked(group: Group, keep: Keep) -> str | None:
    """Return why a group's units are not sampled by masks, None if they are."""
    if group.tied:
        return "its units are read by a layer whose weights are tied to another's"
    if not group.drops and not isinstance(keep, Mapping):
        return (
            "no dropout layer acts on its units wherever they are read; use by='flow', or name it "
            "in keep"
        )
    return None


def _counts(problem: Problem, groups: list[Group]) -> dict[Group, int]:
    """Return how many units of each group stay, for those that lose some."""
    keep = problem.keep
    if isinstance(keep, Mapping) or problem.of_units:
        counts = {g: max(1, round(_share(g, keep) * len(g.units))) for g in groups}
    else:
        counts = _counts_within(problem, groups, keep)
    return {group: n for group, n in counts.items() if n < len(group.units)}


def _counts_within(problem: Problem, groups: list[Group], keep: float) -> dict[Group, int]:
    """Find the largest share of units, the same for all groups, whose cost is within `keep`.

    The cost that is then left goes to single units of the groups that rounding has cut most.
    """
    cost = _cost_function(problem)

    def at(share: float) -> dict[Group, int]:
        return {group: max(1, round(share * len(group.units))) for group in groups}

    low = 0.0
    high = 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if cost(at(middle)) <= keep:
            low = middle
        else:
            high = middle
    counts = at(low)
    present = cost(counts)
    cut_most_first = sorted(groups, key=lambda g: counts[g] - low * len(g.units))
    for limit in (keep, TOLERANCE * keep):  # the last unit may be the one that comes nearer
        for group in cut_most_first:
            if counts[group] == len(group.units):
                continue
            more = {**counts, group: counts[group] + 1}
            there = cost(more)
            if there <= limit and abs(there - keep) < abs(present - keep):
                counts = more
                present = there
    return counts


def _cost_function(problem: Problem) -> Callable[[Mapping[Group, int]], float]:
    """Return a function: units that stay -> the share of parameters or multiply-adds left.

    A weight's cost is proportional to the units that are left along each of its axes, unless the
    layer runs once for each unit; attention costs the same for every head.
    """
    terms = _parameter_terms(problem) if problem.of == "parameters" else _product_terms(problem)
    # Terms along the same lists of units are added up.
    lists: dict[int, Ids] = {}
    total: dict[tuple[int, ...], float] = {}
    for weight, axes in terms:
        lists.update({id(ids): ids for ids in axes})
        keys = tuple(map(id, axes))
        total[keys] = total.get(keys, 0.0) + weight
    whole = count_parameters(problem.base) if problem.of == "parameters" else problem.total
    fixed = whole - sum(total.values())

    def share(counts: Mapping[Group, int]) -> float:
        stays = np.ones(len(problem.graph.dependencies.units), dtype=bool)
        for group, n in counts.items():
            stays[group.units[n:]] = False
        stays = stays[problem.graph.classes]
        left = {key: np.count_nonzero(stays[ids]) / len(ids) for key, ids in lists.items()}
        kept = sum(cost * math.prod(left[key] for key in keys) for keys, cost in total.items())
        return (fixed + kept) / max(float(whole), 1.0)

    return share


Term = tuple[float, tuple[Ids, ...]]
"""A cost that is proportional to the units left in each of some lists."""


def _parameter_terms(problem: Problem) -> list[Term]:
    tensors = problem.graph.dependencies.tensors
    sizes = {id(p): float(p.numel()) for p in problem.base.parameters()}
    return [
        (sizes[key], tuple(axes.values())) for key, axes in tensors.axes.items() if key in sizes
    ]


def _product_terms(problem: Problem) -> list[Term]:
    found = problem.graph.dependencies
    costs: dict[int, float] = {}
    for name, module in problem.base.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None and name not in found.repeated:
            costs[id(weight)] = costs.get(id(weight), 0.0) + problem.layer_costs.get(name, 0)
    terms: list[Term] = []
    for key, axes in found.tensors.axes.items():
        if key in costs:
            terms.append((costs[key], tuple(axes.values())))
    terms += [(cost / len(problem.inputs), (ids,)) for cost, ids in found.products]
    terms += [(problem.layer_costs.get(name, 0), (ids,)) for name, ids in found.repeated.items()]
    return terms


def _broken_groups(problem: Problem, cut: Cut) -> dict[Group, str]:
    """Return the groups without whose units the model does not compute what the masked one does.

    A forward pass may depend on a width that its recording does not show, such as a number.
    """
    together = _difference(problem, cut)
    if together is None:
        return {}
    why: dict[Group, str] = {}
    for group, units in cut.kept.items():
        alone = _difference(problem, Cut({group: units}, cut.scaled))
        if alone is not None:
            why[group] = alone
    return why or dict.fromkeys(cut.kept, together)


def _difference(problem: Problem, cut: Cut) -> str | None:
    """Return how the smaller network differs from the large one with the same units masked."""
    base = problem.base
    corrected = remove_units.corrections(base, problem.graph, cut)
    small = shrink(base, problem.graph, cut, corrected)
    try:
        with torch.no_grad(), disable_fast_attention():
            result = problem.run_without_noise(small)
            masked = remove_units.masked(base, problem.graph, cut, small, corrected)
            reference = problem.run_without_noise(masked)
    except Exception as error:  # whatever the model's code raises on other widths
        return f"the forward pass fails with fewer units: {first_line(error)}"
    if not _same(result, reference):
        return "the forward pass computes something else with fewer units"
    return None


def _best_mask(problem: Problem, counts: dict[Group, int]) -> tuple[Cut, Floats, bool]:
    """Sample masks with `counts` survivors in each group; return the one with the least loss.

    Also returns the loss of every mask, and whether Ctrl-C ended the search early. The interrupt is
    raised if no mask was judged yet.
    """
    losses: list[float] = []
    best: Cut | None = None
    interrupted = False
    try:
        with meter("sub-networks", problem.draws) as bar:
            for _ in range(problem.draws):
                kept = {
                    group: np.sort(problem.rng.choice(group.units, count, replace=False))
                    for group, count in counts.items()
                }
                cut = Cut(kept, scaled=True)
                small = shrink(problem.base, problem.graph, cut)
                value = loss_or_infinity(score(small, problem.judge, problem.loss))
                if best is None or value < min(losses):
                    best = cut
                losses.append(value)
                bar.advance(note=f"best loss {min(losses):.4g}")
    except KeyboardInterrupt:
        if best is None:
            raise
        interrupted = True
    assert best is not None  # noqa: S101 (draws is at least 1)
    return best, np.array(losses), interrupted


def _same(a: Any, b: Any) -> bool:
    """Return whether two outputs agree up to rounding, relative to their size."""
    first = list(tensors(a))
    second = list(tensors(b))
    return len(first) == len(second) and all(map(_close, first, second))


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not a.is_floating_point():
        return bool(torch.equal(a, b))
    size = float(b.nan_to_num(0, 0, 0).abs().max()) if b.numel() else 0.0
    tol = max(1e-4, 20 * torch.finfo(a.dtype).eps)
    return bool(torch.allclose(a, b, rtol=tol, atol=tol * max(size, 1e-30)))
