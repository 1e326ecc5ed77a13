"""Remove units from a network: how many, which, and how the layers that read them are refitted.

The smaller network is made of the user's own classes with narrower tensors inside. The units with
the greatest flow stay,

    psi_i = |u_i| * sqrt(E a_i^2),  u_i the weights that read unit i, a_i its activation

(thesis, section 4.3). A unit that several layers, or several positions of a layer, read has the
root of the sum of squares.

Readers are then refitted. With S the units that stay and R those that go, a_R is predicted from
a_S by least squares, a_R ~ B a_S + c, so that a reader's W_R a_R + W_S a_S + b becomes
(W_S + W_R B) a_S + b + W_R c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import Bools, Floats, InputError
from overt.nn.compression.activations import Moments, collect
from overt.nn.compression.dependencies import DependencyGraph, Group, Ids, Reader
from overt.nn.compression.graph import tensors
from overt.nn.compression.problem import (
    TOLERANCE,
    Outcome,
    Problem,
    bisect,
    check_layers,
    copy_model,
    run_plain,
    why_it_fails,
)
from overt.nn.compression.report import Change
from overt.nn.data.batches import first_line


def by_units(problem: Problem) -> Outcome:
    """Remove the units with the least flow."""
    base = problem.base
    graph = problem.graph
    skipped = dict(graph.skipped)
    groups = _removable_groups(problem, skipped)
    least = None
    moments: dict[str, Moments] = {}
    psi = np.zeros(len(graph.units))
    if groups:
        moments = collect(base, graph.readers, problem.batches, outputs=False)
        psi = flows(base, graph, moments)
    while groups:
        counts, least = _counts(problem, groups)
        kept = {group: greatest(group, psi, n) for group, n in counts.items()}
        cut = _tested_cut(problem, kept, moments)
        if isinstance(cut, Cut):
            changes = [
                Change(g.layers, "units", len(g.units), n) for g, n in counts.items()
            ]
            return Outcome("flow", shrink(base, graph, cut), changes, skipped, least)
        alone = {g: _tested_cut(problem, {g: kept[g]}, moments) for g in kept}
        broken = {g: why for g, why in alone.items() if isinstance(why, str)}
        for group, why in (broken or dict.fromkeys(kept, cut)).items():
            groups.remove(group)
            skipped.update(dict.fromkeys(group.layers, why))
    return Outcome("flow", copy_model(base), [], skipped, least)


def _removable_groups(problem: Problem, skipped: dict[str, str]) -> list[Group]:
    """Return the groups that may lose units; the others go to `skipped` with the reason."""
    groups = problem.graph.groups
    if isinstance(problem.keep, Mapping):
        names = [name for group in groups for name in group.layers]
        check_layers(problem.keep, [*skipped, *names])
    chosen = []
    for group in groups:
        if len(group.units) == 1:
            why = "all its units stand or fall together"
            skipped.update(dict.fromkeys(group.layers, why))
        elif _share(problem, group) < 1:
            chosen.append(group)
    return chosen


def _share(problem: Problem, group: Group) -> float:
    """Return the share of units that a group is to keep."""
    keep = problem.keep
    if not isinstance(keep, Mapping):
        return keep
    shares = {name: keep[name] for name in group.layers if name in keep}
    if len(set(shares.values())) > 1:
        raise InputError(
            f"keep must give one share to layers whose outputs are added, got {shares}"
        )
    return next(iter(shares.values()), 1.0)


def _counts(
    problem: Problem, groups: list[Group]
) -> tuple[dict[Group, int], float | None]:
    """Return how many units stay of each group that loses some, and the least share there is.

    Where `keep` is of a cost, one share of units for all groups is found whose cost is within it.
    The cost that is then left goes to single units of the groups that rounding has cut most.
    """
    if problem.of_units:
        counts = {g: max(1, round(_share(problem, g) * len(g.units))) for g in groups}
        return {g: n for g, n in counts.items() if n < len(g.units)}, None

    def at(share: float) -> dict[Group, int]:
        return {g: max(1, round(share * len(g.units))) for g in groups}

    cost = _cost_function(problem)
    least = cost(at(0.0))
    keep = problem.aim(least)
    share = bisect(lambda share: cost(at(share)) <= keep, 0.0, 1.0)
    counts = at(share)
    present = cost(counts)
    cut_most_first = sorted(groups, key=lambda g: counts[g] - share * len(g.units))
    # The last unit may be the one that comes nearer.
    for limit in (keep, TOLERANCE * keep):
        for group in cut_most_first:
            added = min(counts[group] + 1, len(group.units))
            more = {**counts, group: added}
            there = cost(more)
            if there <= limit and abs(there - keep) < abs(present - keep):
                counts = more
                present = there
    return {g: n for g, n in counts.items() if n < len(g.units)}, least


def _cost_function(problem: Problem) -> Callable[[Mapping[Group, int]], float]:
    """Return a function: units that stay -> the share of parameters or multiply-adds left.

    A weight's cost is proportional to the units that are left along each of its axes, unless the
    layer runs once for each unit; attention costs the same for every head.
    """
    graph = problem.graph
    costs: Mapping[int, float] = graph.costs
    terms: list[tuple[float, tuple[Ids, ...]]]
    terms = [(cost, (ids,)) for cost, ids in graph.products]
    whole = float(problem.total * len(problem.inputs))
    if problem.of == "parameters":
        costs = {id(p): p.numel() for p in problem.base.parameters()}
        terms = []
        whole = float(problem.total)
    for key, axes in graph.axes.items():
        terms.append((costs.get(key, 0), tuple(axes.values())))
    fixed = whole - sum(cost for cost, _ in terms)

    def share(counts: Mapping[Group, int]) -> float:
        kept_units = {g: g.units[:n] for g, n in counts.items()}
        stays = _stays(graph, kept_units)
        kept = sum(
            cost * math.prod(stays[ids].mean() for ids in axes) for cost, axes in terms
        )
        return float(fixed + kept) / max(whole, 1.0)

    return share


def _stays(graph: DependencyGraph, kept: Mapping[Group, Ids]) -> Bools:
    """Return whether each unit stays, by its number."""
    stays = np.ones(len(graph.units), dtype=bool)
    for group, units in kept.items():
        stays[group.units] = False
        stays[units] = True
    return stays[graph.classes]


def _tested_cut(
    problem: Problem, kept: dict[Group, Ids], moments: Mapping[str, Moments]
) -> Cut | str:
    """Return a cut that computes what the masked network does, or why there is none.

    A forward pass may depend on a width that is not seen, such as a number. Attributes that equal
    a width are changed only where the network does not run without.
    """
    cut = make_cut(problem.base, problem.graph, kept, moments)
    why = _difference(problem, cut)
    if why is None:
        return cut
    guessed = replace(cut, guess=True)
    return guessed if _difference(problem, guessed) is None else why


def _difference(problem: Problem, cut: Cut) -> str | None:
    """Return how the smaller network differs from the large one with the same units masked."""
    base = problem.base
    try:
        small = shrink(base, problem.graph, cut)
        torch.manual_seed(0)
        result = run_plain(small, problem.inputs)
        torch.manual_seed(0)
        reference = run_plain(masked(base, problem.graph, cut, small), problem.inputs)
    except Exception as error:  # whatever the model's code raises on other widths
        return f"the forward pass fails with fewer units: {first_line(error)}"
    first = list(tensors(result))
    second = list(tensors(reference))
    if len(first) != len(second) or not all(map(_close, first, second)):
        return "the forward pass computes something else with fewer units"
    why = why_it_fails(small, problem.inputs, base)
    return why and f"the forward pass fails with fewer units in training mode: {why}"


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two outputs agree up to rounding, relative to their size."""
    if a.shape != b.shape or not a.is_floating_point():
        return bool(torch.equal(a, b))
    size = float(b.nan_to_num(0, 0, 0).abs().max()) if b.numel() else 0.0
    tol = max(1e-4, 20 * torch.finfo(a.dtype).eps)
    return bool(torch.allclose(a, b, rtol=tol, atol=tol * max(size, 1e-30)))


@dataclass(frozen=True, eq=False)
class Cut:
    """Which units stay, and the tensors that read them, corrected for what is removed.

    Attributes
    ----------
    kept
        The units that stay of each group (all, if it is not there).
    stays
        Whether each unit stays, by its number.
    corrected
        By id, tensors of full size that are 0 on removed units, and changed biases.
    guess
        Whether attributes that equal a width are changed with it.
    """

    kept: dict[Group, Ids]
    stays: Bools
    corrected: dict[int, Tensor]
    guess: bool = False


def make_cut(
    model: nn.Module,
    graph: DependencyGraph,
    kept: dict[Group, Ids],
    moments: Mapping[str, Moments],
) -> Cut:
    """Remove all but some units, and refit the layers that read them."""
    stays = _stays(graph, kept)
    # What a layer with tied weights reads cannot be predicted for one of its uses alone.
    free = {g: units for g, units in kept.items() if not g.tied}
    fixed = _stays(graph, free)
    corrected: dict[int, Tensor] = {}
    for reader in graph.readers.values():
        module = model.get_submodule(reader.name)
        gone = ~stays[reader.ids]
        if id(module.weight) in corrected or not gone.any():
            continue
        weight = module.weight.detach()
        predicted = ~fixed[reader.ids]
        if predicted.any():
            weight, bias = _refit(module, reader, predicted, moments[reader.name])
            if bias is not None:
                corrected[id(module.bias)] = bias
        index = torch.from_numpy(np.flatnonzero(gone)).to(weight.device)
        corrected[id(module.weight)] = weight.index_fill(reader.axis, index, 0)
    return Cut(kept, stays, corrected)


def shrink(model: nn.Module, graph: DependencyGraph, cut: Cut) -> nn.Module:
    """Return a copy of the model without the units that a cut removes.

    Every parameter along whose axes units lie is replaced, wherever the copy refers to it, so
    that shared layers and tied weights stay shared.
    """
    memo: dict[int, Any] = {}
    for key, axes in graph.axes.items():
        old = graph.tensors[key]
        tensor = cut.corrected.get(key, old.detach())
        for axis, ids in axes.items():
            index = torch.from_numpy(np.flatnonzero(cut.stays[ids]))
            if len(index) < len(ids):
                tensor = tensor.index_select(axis, index.to(tensor.device))
        if tensor.shape != old.shape or key in cut.corrected:
            memo[key] = _like(tensor, old)
    small = copy_model(model, memo)
    for (name, attribute), count in _new_sizes(graph, cut).items():
        module = small.get_submodule(name)
        several = isinstance(getattr(module, attribute), tuple)
        setattr(module, attribute, (count,) if several else count)
    return small


def _new_sizes(graph: DependencyGraph, cut: Cut) -> dict[tuple[str, str], int]:
    """Return the new values of attributes that count units."""
    found: dict[tuple[str, str], int] = {}
    for size in graph.sizes:
        if cut.guess or not size.guessed:
            left = int(np.count_nonzero(cut.stays[size.units].any(1)))
            key = (size.name, size.attribute)
            # Where the number and the width of heads are equal, the name says which it is.
            wide = "dim" in size.attribute or "size" in size.attribute
            before = found.get(key, left)
            found[key] = max(before, left) if wide else min(before, left)
    return found


def masked(
    model: nn.Module, graph: DependencyGraph, cut: Cut, small: nn.Module
) -> nn.Module:
    """Return a full-size copy that ignores the units that a cut removes: what `shrink` must equal.

    Readers' weights are zero on removed units; normalizations over all units run over those
    that stay, as in the smaller network. All other tensors are the model's own.
    """
    own = (*model.parameters(), *model.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in own}
    for key, tensor in cut.corrected.items():
        memo[key] = _like(tensor, memo[key])
    reference = copy_model(model, memo)
    for name, (axis, ids) in graph.mixing.items():
        index = torch.from_numpy(np.flatnonzero(cut.stays[ids]))
        if len(index) < len(ids):
            norm = reference.get_submodule(name)
            norm.forward = _among(small.get_submodule(name), index, axis)
    return reference


def _among(norm: nn.Module, index: Tensor, axis: int) -> Callable[[Tensor], Tensor]:
    """Return a normalization among some of the units, zeros for the others."""

    def forward(x: Tensor) -> Tensor:
        where = index.to(x.device)
        normalized = norm(x.index_select(axis, where))
        return torch.zeros_like(x).index_copy(axis, where, normalized)

    return forward


def _like(tensor: Tensor, old: Tensor) -> Tensor:
    """Return a parameter in place of a parameter."""
    if isinstance(old, nn.Parameter):
        return nn.Parameter(tensor, old.requires_grad)
    return tensor


def flows(model: nn.Module, graph: DependencyGraph, seen: dict[str, Moments]) -> Floats:
    """Return psi for each unit, by the number of its class."""
    total = np.zeros(len(graph.units))
    for reader in graph.readers.values():
        weight = model.get_submodule(reader.name).weight.detach().double()
        rows = weight.movedim(reader.axis, 0).flatten(1)
        norms = rows.square().sum(1)
        flow = norms * seen[reader.name].squares()
        flow = flow.cpu().numpy()
        np.add.at(total, graph.classes[reader.ids], flow)
    return np.sqrt(total)


def greatest(group: Group, psi: Floats, count: int) -> Ids:
    """Return the `count` units of a group with the greatest flow, in their order."""
    order = np.argsort(-psi[group.units], kind="stable")
    return group.units[np.sort(order[:count])]


def _refit(
    module: nn.Module, reader: Reader, gone: Bools, moments: Moments
) -> tuple[Tensor, Tensor | None]:
    """Return a reader's weight and bias with what it misses predicted from the units that stay.

    All taps of a convolution use the same prediction.
    """
    old = module.weight.detach()
    weight = old.movedim(reader.axis, -1).double().clone()
    S = torch.from_numpy(np.flatnonzero(~gone)).to(old.device)
    R = torch.from_numpy(np.flatnonzero(gone)).to(old.device)
    B = moments.prediction(S, R, centered=module.bias is not None)
    lost = weight.index_select(-1, R)
    weight.index_add_(-1, S, lost @ B)
    refitted = weight.movedim(-1, reader.axis).to(old)
    if module.bias is None:
        return refitted, None
    mean = moments.mean()
    missing = lost @ (mean[R] - B @ mean[S])
    shift = missing.reshape(len(missing), -1).sum(1)
    if getattr(module, "transposed", False):
        # An output position meets one tap in prod(stride).
        shift = shift / math.prod(module.stride)
    return refitted, module.bias.detach() + shift.to(module.bias)
