"""Remove units from a network: how many, which, and how the layers that read them are refitted.

The smaller network is made of the user's own classes with narrower tensors inside. Which units stay
may be sampled, or be those with the greatest flow,

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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._progress import meter
from overt._types import Bools, Floats
from overt.nn.compression.activations import Moments, collect
from overt.nn.compression.dependencies import DependencyGraph, Group, Ids, Reader
from overt.nn.compression.layers import TRANSPOSED, is_a
from overt.nn.compression.problem import (
    TOLERANCE,
    Keep,
    Outcome,
    Problem,
    check_layers,
    copy_model,
    count_parameters,
    loss_or_infinity,
    score,
)
from overt.nn.compression.record import tensors
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
        psi = flows(base, graph, moments)
    while groups:
        losses = np.zeros(0)
        interrupted = False
        counts = _counts(problem, groups)
        if by == "mask":
            cut, losses, interrupted = _best_mask(problem, counts)
        else:
            kept = {group: greatest(group, psi, n) for group, n in counts.items()}
            cut = Cut(kept, refits=refits(base, graph, moments, kept))
        broken = _broken_groups(problem, cut)
        if not broken:
            small = shrink(base, graph, cut)
            changes = [
                Change(g.layers, "units", len(g.units), n) for g, n in counts.items()
            ]
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


def _counts_within(
    problem: Problem, groups: list[Group], keep: float
) -> dict[Group, int]:
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
    for limit in (
        keep,
        TOLERANCE * keep,
    ):  # the last unit may be the one that comes nearer
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
    terms = (
        _parameter_terms(problem)
        if problem.of == "parameters"
        else _product_terms(problem)
    )
    # Terms along the same lists of units are added up.
    lists: dict[int, Ids] = {}
    total: dict[tuple[int, ...], float] = {}
    for weight, axes in terms:
        lists.update({id(ids): ids for ids in axes})
        keys = tuple(map(id, axes))
        total[keys] = total.get(keys, 0.0) + weight
    whole = (
        count_parameters(problem.base) if problem.of == "parameters" else problem.total
    )
    fixed = whole - sum(total.values())

    def share(counts: Mapping[Group, int]) -> float:
        stays = np.ones(len(problem.graph.dependencies.units), dtype=bool)
        for group, n in counts.items():
            stays[group.units[n:]] = False
        stays = stays[problem.graph.classes]
        left = {
            key: np.count_nonzero(stays[ids]) / len(ids) for key, ids in lists.items()
        }
        kept = sum(
            cost * math.prod(left[key] for key in keys) for keys, cost in total.items()
        )
        return (fixed + kept) / max(float(whole), 1.0)

    return share


Term = tuple[float, tuple[Ids, ...]]
"""A cost that is proportional to the units left in each of some lists."""


def _parameter_terms(problem: Problem) -> list[Term]:
    tensors = problem.graph.dependencies.tensors
    sizes = {id(p): float(p.numel()) for p in problem.base.parameters()}
    return [
        (sizes[key], tuple(axes.values()))
        for key, axes in tensors.axes.items()
        if key in sizes
    ]


def _product_terms(problem: Problem) -> list[Term]:
    found = problem.graph.dependencies
    costs: dict[int, float] = {}
    for name, module in problem.base.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None and name not in found.repeated:
            costs[id(weight)] = costs.get(id(weight), 0.0) + problem.layer_costs.get(
                name, 0
            )
    terms: list[Term] = []
    for key, axes in found.tensors.axes.items():
        if key in costs:
            terms.append((costs[key], tuple(axes.values())))
    terms += [(cost / len(problem.inputs), (ids,)) for cost, ids in found.products]
    terms += [
        (problem.layer_costs.get(name, 0), (ids,))
        for name, ids in found.repeated.items()
    ]
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
    corrected = corrections(base, problem.graph, cut)
    small = shrink(base, problem.graph, cut, corrected)
    try:
        with torch.no_grad(), disable_fast_attention():
            result = problem.run_without_noise(small)
            whole = masked(base, problem.graph, cut, small, corrected)
            reference = problem.run_without_noise(whole)
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
                    group: np.sort(
                        problem.rng.choice(group.units, count, replace=False)
                    )
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


Refit = tuple[Tensor, Tensor | None]
"""A layer's weight, 0 on units that are removed, and its bias, if that has changed."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Which units stay of each group (all, if it is not there), and how readers are corrected.

    With `scaled` they multiply a group's survivors by all / survivors, as dropout does in training.
    """

    kept: dict[Group, Ids]
    scaled: bool = False
    refits: dict[str, Refit] = field(default_factory=dict)

    def factors(self, graph: DependencyGraph) -> Floats:
        """Return each unit's factor at its readers: 0 where it is removed."""
        factor = np.ones(len(graph.dependencies.units))
        for group, kept in self.kept.items():
            factor[group.units] = 0
            factor[kept] = len(group.units) / len(kept) if self.scaled else 1
        return factor[graph.classes]


def shrink(
    model: nn.Module,
    graph: DependencyGraph,
    cut: Cut,
    corrected: dict[int, Tensor] | None = None,
) -> nn.Module:
    """Return a copy of the model without the units that a cut removes.

    Every parameter along whose axes units lie is replaced, wherever the copy refers to it, so
    that shared layers and tied weights stay shared.
    """
    factor = cut.factors(graph)
    dependencies = graph.dependencies
    memo: dict[int, Any] = {}
    corrected = corrections(model, graph, cut) if corrected is None else corrected
    kept: dict[int, Any] = {}
    for key, axes in dependencies.tensors.axes.items():
        old = dependencies.tensors.tensors[key]
        tensor = corrected.get(key, old.detach())
        for axis, ids in axes.items():
            if id(ids) not in kept:
                kept[id(ids)] = np.flatnonzero(factor[ids])
            if len(kept[id(ids)]) < len(ids):
                index = torch.from_numpy(kept[id(ids)]).to(tensor.device)
                tensor = tensor.index_select(axis, index)
        if tensor.shape != old.shape or key in corrected:
            parameter = isinstance(old, nn.Parameter)
            memo[key] = nn.Parameter(tensor, old.requires_grad) if parameter else tensor
    small = copy_model(model, memo)
    for name, sizes in dependencies.sizes.items():
        own = vars(small.get_submodule(name))
        for attribute, (entry, ids) in sizes.items():
            count: Any = int(np.count_nonzero(factor[ids]))
            if entry is not None:
                shape = own[attribute]
                count = (*shape[:entry], count, *shape[entry + 1 :])
            own[attribute] = count
    return small


def masked(
    model: nn.Module,
    graph: DependencyGraph,
    cut: Cut,
    small: nn.Module,
    corrected: dict[int, Tensor],
) -> nn.Module:
    """Return a full-size copy that ignores the units that a cut removes: what `shrink` must equal.

    Readers' weights are zero on removed units; normalizations over all units run over those
    that stay, as in the smaller network. All other tensors are the model's own.
    """
    factor = cut.factors(graph)
    dependencies = graph.dependencies
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for key, tensor in corrected.items():
        old = dependencies.tensors.tensors[key]
        memo[key] = (
            nn.Parameter(tensor, False) if isinstance(old, nn.Parameter) else tensor
        )
    reference = copy_model(model, memo)
    for name, (axis, ids) in dependencies.mixing.items():
        index = torch.from_numpy(np.flatnonzero(factor[ids]))
        if len(index) < len(ids):
            reference.set_submodule(
                name, NormAmong(small.get_submodule(name), index, axis)
            )
    return reference


def corrections(
    model: nn.Module, graph: DependencyGraph, cut: Cut
) -> dict[int, Tensor]:
    """Return tensors that read units with the units' factors, refitted, and changed biases."""
    found: dict[int, Tensor] = {}
    factor = cut.factors(graph)
    for reader in graph.dependencies.readers:
        module = model.get_submodule(reader.name)
        refit = cut.refits.get(reader.name)
        scale = factor[reader.ids]
        if id(module.weight) in found or (refit is None and (scale == 1).all()):
            continue
        tensor, bias = (module.weight.detach(), None) if refit is None else refit
        if refit is None or cut.scaled:
            shape = [-1 if i == reader.axis else 1 for i in range(tensor.ndim)]
            tensor = tensor * torch.from_numpy(scale).to(tensor).reshape(shape)
        found[id(module.weight)] = tensor
        if bias is not None:
            found[id(module.bias)] = bias
    return found


class NormAmong(nn.Module):  # type: ignore[misc]
    """A normalization among some of the units, zeros for the others."""

    def __init__(self, norm: nn.Module, index: Tensor, axis: int) -> None:
        super().__init__()
        self.norm = norm
        self.index = index
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized units, and zeros."""
        index = self.index.to(x.device)
        return torch.zeros_like(x).index_copy(
            self.axis, index, self.norm(x.index_select(self.axis, index))
        )


def flows(model: nn.Module, graph: DependencyGraph, seen: dict[str, Moments]) -> Floats:
    """Return psi for each unit, by the number of its class."""
    units = graph.dependencies.units
    total = np.zeros(len(units))
    for reader in {
        reader.name: reader for reader in graph.dependencies.readers
    }.values():
        weight = model.get_submodule(reader.name).weight.detach()
        others = [d for d in range(weight.ndim) if d != reader.axis]
        norms = torch.linalg.vector_norm(
            weight, dim=others, dtype=_working(weight)
        ).double()
        norms = norms.square().unflatten(0, (-1, reader.places)).sum(1)
        flow = (norms * seen[reader.name].squares()).cpu().numpy()
        np.add.at(total, units.classes(reader.ids[:: reader.places]), flow)
    return np.sqrt(total)


def _working(weight: Tensor) -> torch.dtype:
    """Return a format in which sums of a weight's entries round little."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def greatest(group: Group, psi: Floats, count: int) -> Ids:
    """Return the `count` units of a group with the greatest flow, in their order."""
    order = np.argsort(-psi[group.units], kind="stable")
    return group.units[np.sort(order[:count])]


def refits(
    model: nn.Module,
    graph: DependencyGraph,
    seen: dict[str, Moments],
    kept: dict[Group, Ids],
) -> dict[str, Refit]:
    """Return each reader's weight and bias changed so that it misses its units least."""
    removed = np.zeros(len(graph.dependencies.units), dtype=bool)
    tied = np.zeros_like(removed)
    for group, staying in kept.items():
        part = tied if group.tied else removed
        part[group.units] = True
        part[staying] = False
    found: dict[str, Refit] = {}
    for reader in {
        reader.name: reader for reader in graph.dependencies.readers
    }.values():
        units = graph.dependencies.units.classes(reader.ids[:: reader.places])
        if removed[units].any():
            module = model.get_submodule(reader.name)
            moments = seen[reader.name]
            found[reader.name] = _refit(
                module, reader, removed[units], tied[units], moments
            )
    return found


def _refit(
    module: nn.Module, reader: Reader, gone: Bools, tied: Bools, moments: Moments
) -> Refit:
    """Change one reader; all taps of a convolution use the same prediction."""
    old = module.weight.detach()
    bias = module.bias
    weight = old.to(_working(old)).movedim(reader.axis, -1)
    if reader.places > 1:
        weight = weight.unflatten(-1, (-1, reader.places)).mT
    S, R, T = (
        torch.from_numpy(np.flatnonzero(x)).to(old.device) for x in (~gone, gone, tied)
    )
    B = moments.prediction(S, R, centered=bias is not None)
    lost = weight.index_select(-1, R)
    weight = weight.index_fill(-1, R, 0.0)
    if B:
        replacement = lost
        for factor in B:
            replacement = replacement @ factor.to(weight)
        weight.index_add_(-1, S, replacement)
    weight.index_fill_(-1, T, 0.0)
    if reader.places > 1:
        weight = weight.mT.flatten(-2)
    weight = weight.movedim(-1, reader.axis).to(old)
    if bias is None:
        return weight, None
    mean = moments.mean()
    left = mean[R]
    if B:
        predicted = mean[S]
        for factor in reversed(B):
            predicted = factor @ predicted
        left = left - predicted
    shift = (lost @ left.to(lost)).reshape(len(lost), -1).sum(1)
    if is_a(module, TRANSPOSED):  # an output position meets one tap in prod(stride)
        shift = shift / math.prod(module.stride)
    return weight, bias.detach() + shift.to(bias)
