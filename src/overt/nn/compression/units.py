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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._progress import meter
from overt._types import Bools, Floats
from overt.nn.compression.activations import Moments, collect
from overt.nn.compression.dependencies import DependencyGraph, Group, Ids, Reader
from overt.nn.compression.graph import tensors
from overt.nn.compression.problem import (
    TOLERANCE,
    Keep,
    Outcome,
    Problem,
    check_layers,
    copy_model,
    loss_on,
    run_plain,
    score,
    why_it_fails,
)
from overt.nn.compression.report import Change
from overt.nn.data.batches import first_line

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
    psi = np.zeros(len(graph.units))
    if by == "flow" and groups:
        places = {name: reader.places for name, reader in graph.readers.items()}
        moments = collect(base, places, problem.batches, outputs=False)
        psi = flows(base, graph, moments)
    while groups:
        counts = _counts(problem, groups)
        kept = {group: greatest(group, psi, n) for group, n in counts.items()}
        cut = make_cut(base, graph, kept, scaled=by == "mask", moments=moments)
        cut, broken = _check(problem, cut)
        if not broken:
            outcome = Outcome(by, base, [], skipped)
            if by == "mask":
                cut, outcome.losses, outcome.interrupted = _best_mask(
                    problem, counts, cut
                )
            outcome.model = shrink(base, graph, cut)
            outcome.changes = [
                Change(g.layers, "units", len(g.units), n) for g, n in counts.items()
            ]
            return outcome
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
        elif by == "mask" and group.tied:
            reason = "its units are read by a layer whose weights are tied to another's"
        elif by == "mask" and not group.dropped and not isinstance(keep, Mapping):
            reason = (
                "no dropout layer acts on its units wherever they are read; use by='flow', or "
                "name it in keep"
            )
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
    # The last unit may be the one that comes nearer.
    for limit in (keep, TOLERANCE * keep):
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
    found = problem.graph
    costs: Mapping[int, float] = found.costs
    terms: list[tuple[float, tuple[Ids, ...]]]
    terms = [(cost, (ids,)) for cost, ids in found.products]
    whole = float(problem.total * len(problem.inputs))
    if problem.of == "parameters":
        costs = {id(p): p.numel() for p in problem.base.parameters()}
        terms = []
        whole = float(problem.total)
    for key, axes in found.axes.items():
        terms.append((costs.get(key, 0), tuple(axes.values())))
    fixed = whole - sum(cost for cost, _ in terms)

    def share(counts: Mapping[Group, int]) -> float:
        stays = np.ones(len(found.units), dtype=bool)
        for group, n in counts.items():
            stays[group.units[n:]] = False
        stays = stays[problem.graph.classes]
        kept = sum(
            cost * math.prod(float(stays[ids].mean()) for ids in axes)
            for cost, axes in terms
        )
        return (fixed + kept) / max(whole, 1.0)

    return share


def _check(problem: Problem, cut: Cut) -> tuple[Cut, dict[Group, str]]:
    """Return a cut that computes what the masked network does, and the groups that prevent it.

    A forward pass may depend on a width that is not seen, such as a number. Attributes that equal
    a width are changed only where the network does not run without.
    """
    together = _difference(problem, cut)
    if together is None:
        return cut, {}
    guessed = replace(cut, guess=True)
    if _difference(problem, guessed) is None:
        return guessed, {}
    why: dict[Group, str] = {}
    for group, units in cut.kept.items():
        alone = make_cut(problem.base, problem.graph, {group: units}, scaled=cut.scaled)
        reason = _difference(problem, alone)
        if reason and _difference(problem, replace(alone, guess=True)):
            why[group] = reason
    return cut, why or dict.fromkeys(cut.kept, together)


def _difference(problem: Problem, cut: Cut) -> str | None:
    """Return how the smaller network differs from the large one with the same units masked."""
    base = problem.base
    try:
        small = shrink(base, problem.graph, cut)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            result = run_plain(small, problem.inputs)
            torch.manual_seed(0)
            whole = masked(base, problem.graph, cut, small)
            reference = run_plain(whole, problem.inputs)
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


def _best_mask(
    problem: Problem, counts: dict[Group, int], like: Cut
) -> tuple[Cut, Floats, bool]:
    """Sample masks with `counts` survivors in each group; return the one with the least loss.

    Also returns the loss of every mask, and whether Ctrl-C ended the search early. The interrupt is
    raised if no mask was judged yet.
    """
    losses: list[float] = []
    best = like
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
                cut = make_cut(problem.base, problem.graph, kept, scaled=True)
                cut = replace(cut, guess=like.guess)
                small = shrink(problem.base, problem.graph, cut)
                value = loss_on(small, problem.judge, problem.loss)
                if not losses or value < min(losses):
                    best = cut
                losses.append(value)
                bar.advance(note=f"best loss {min(losses):.4g}")
    except KeyboardInterrupt:
        if not losses:
            raise
        interrupted = True
    return best, np.array(losses), interrupted


@dataclass(frozen=True, eq=False)
class Cut:
    """Which units stay, and the tensors that read them, corrected for what is removed.

    Attributes
    ----------
    kept
        The units that stay of each group (all, if it is not there).
    factor
        Each unit's factor at its readers: 0 where it is removed.
    corrected
        By id, tensors of full size that are 0 on removed units, and changed biases.
    scaled
        Whether survivors are multiplied by all / survivors, as dropout does in training.
    guess
        Whether attributes that equal a width are changed with it.
    """

    kept: dict[Group, Ids]
    factor: Floats
    corrected: dict[int, Tensor]
    scaled: bool
    guess: bool = False


def make_cut(
    model: nn.Module,
    graph: DependencyGraph,
    kept: dict[Group, Ids],
    *,
    scaled: bool = False,
    moments: Mapping[str, Moments] | None = None,
) -> Cut:
    """Remove all but some units, and refit the layers that read them if there are moments."""
    factor = np.ones(len(graph.units))
    tied = np.zeros(len(graph.units), dtype=bool)
    for group, units in kept.items():
        factor[group.units] = 0
        factor[units] = len(group.units) / len(units) if scaled else 1
        tied[group.units] = group.tied
    factor = factor[graph.classes]
    removed = (factor == 0) & ~tied[graph.classes]
    corrected: dict[int, Tensor] = {}
    for reader in graph.readers.values():
        module = model.get_submodule(reader.name)
        weight = module.weight.detach()
        scale = torch.from_numpy(factor[reader.ids]).to(weight)
        if id(module.weight) in corrected or bool((scale == 1).all()):
            continue
        gone = removed[reader.ids]
        if moments and gone.any():
            weight, bias = _refit(module, reader, gone, moments[reader.name])
            if bias is not None:
                corrected[id(module.bias)] = bias
        shape = [-1 if i == reader.axis else 1 for i in range(weight.ndim)]
        corrected[id(module.weight)] = weight * scale.reshape(shape)
    return Cut(kept, factor, corrected, scaled)


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
            index = np.flatnonzero(cut.factor[ids])
            if len(index) < len(ids):
                where = torch.from_numpy(index).to(tensor.device)
                tensor = tensor.index_select(axis, where)
        if tensor.shape != old.shape or key in cut.corrected:
            memo[key] = _like(tensor, old)
    small = copy_model(model, memo)
    for name, attribute, ids in graph.sizes:
        module = small.get_submodule(name)
        count = int(np.count_nonzero(cut.factor[ids]))
        if count < len(ids):
            several = isinstance(getattr(module, attribute), tuple)
            setattr(module, attribute, (count,) if several else count)
    for (name, attribute), count in _guesses(graph, cut).items():
        vars(small.get_submodule(name))[attribute] = count
    return small


def _guesses(graph: DependencyGraph, cut: Cut) -> dict[tuple[str, str], int]:
    """Return the new values of attributes that equal the length of an axis of units."""
    found: dict[tuple[str, str], int] = {}
    for name, attribute, table in graph.guesses if cut.guess else ():
        left = int(np.count_nonzero(cut.factor[table].any(1)))
        key = (name, attribute)
        # Where the number and the width of heads are equal, the name says which it is.
        choose = max if "dim" in attribute or "size" in attribute else min
        found[key] = choose(found.get(key, left), left)
    return found


def masked(
    model: nn.Module, graph: DependencyGraph, cut: Cut, small: nn.Module
) -> nn.Module:
    """Return a full-size copy that ignores the units that a cut removes: what `shrink` must equal.

    Readers' weights are zero on removed units; normalizations over all units run over those
    that stay, as in the smaller network. All other tensors are the model's own.
    """
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for key, tensor in cut.corrected.items():
        memo[key] = _like(tensor, memo[key])
    reference = copy_model(model, memo)
    for name, (axis, ids) in graph.mixing.items():
        index = torch.from_numpy(np.flatnonzero(cut.factor[ids]))
        if len(index) < len(ids):
            norm = NormAmong(small.get_submodule(name), index, axis)
            reference.set_submodule(name, norm)
    return reference


def _like(tensor: Tensor, old: Tensor) -> Tensor:
    """Return a parameter in place of a parameter."""
    if isinstance(old, nn.Parameter):
        return nn.Parameter(tensor, old.requires_grad)
    return tensor


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
    total = np.zeros(len(graph.units))
    for reader in graph.readers.values():
        weight = model.get_submodule(reader.name).weight.detach().double()
        norms = weight.movedim(reader.axis, 0).flatten(1).square().sum(1)
        norms = norms.unflatten(0, (-1, reader.places)).sum(1)
        flow = (norms * seen[reader.name].squares()).cpu().numpy()
        np.add.at(total, graph.classes[reader.ids[:: reader.places]], flow)
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
    n = reader.places
    old = module.weight.detach()
    weight = old.movedim(reader.axis, -1).double()
    weight = weight.unflatten(-1, (-1, n)).mT.clone()
    S, R = (
        torch.from_numpy(np.flatnonzero(part[::n])).to(old.device)
        for part in (~gone, gone)
    )
    B = moments.prediction(S, R, centered=module.bias is not None)
    lost = weight.index_select(-1, R)
    weight.index_add_(-1, S, lost @ B)
    weight = weight.mT.flatten(-2).movedim(-1, reader.axis).to(old)
    if module.bias is None:
        return weight, None
    mean = moments.mean()
    shift = (lost @ (mean[R] - B @ mean[S])).flatten(1).sum(1)
    if getattr(module, "transposed", False):
        # An output position meets one tap in prod(stride).
        shift = shift / math.prod(module.stride)
    return weight, module.bias.detach() + shift.to(module.bias)
