"""Low-rank rewriting of linear and convolutional maps, with the error it makes.

A layer y = W x + b becomes two of rank r, y' = P (P'W x) + c. Without data P holds the leading left
singular vectors of W (a convolution's weight as outputs x everything else), c = b, and

    |y' - y| <= s_(r+1) |x|,  |W' - W|_F^2 = sum_(i>r) s_i^2   (Eckart and Young).

With data P holds the principal directions of the layer's outputs, c = m + P P'(b - m) with m their
mean, and E|y' - y|^2 = sum_(i>r) l_i, with l the variances along the directions: the least error
of any affine map of rank r on those data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.nn.compression.activations import Moments, collect
from overt.nn.compression.dependencies import holders
from overt.nn.compression.layers import SEALED, weights_of, why_not_prunable
from overt.nn.compression.problem import (
    Outcome,
    Problem,
    check_layers,
    copy_model,
    why_it_fails,
)
from overt.nn.compression.report import Change

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)
ROUNDING = 1e-12
"""Share of a layer's energy below which a direction is rounding of single precision."""


@dataclass(frozen=True, eq=False)
class Factors:
    """A layer's weight as outputs x inputs, its directions P and the squared error of each."""

    name: str
    weight: Tensor
    directions: Tensor
    energy: Floats
    mean: Tensor | None
    cost: float

    @property
    def limit(self) -> int:
        """The largest rank that saves multiply-adds."""
        m, n = self.weight.shape
        return min((m * n - 1) // (m + n), min(m, n) - 1)

    @property
    def shares(self) -> Floats:
        """The share of each direction in the sum of squares."""
        return self.energy / (float(self.energy.sum()) or 1.0)

    def cost_of(self, rank: int | None) -> float:
        """Return the multiply-adds at a rank, None for the layer as it is."""
        m, n = self.weight.shape
        return self.cost if rank is None else self.cost * rank * (m + n) / (m * n)


def by_spectrum(problem: Problem) -> Outcome:
    """Rewrite layers as products of two, each with its rank."""
    keep = problem.keep
    layers, skipped = _rewritable(problem)
    if isinstance(keep, Mapping):
        check_layers(keep, [*layers, *skipped])
        layers = {name: module for name, module in layers.items() if name in keep}
    moments: dict[str, Moments] = {}
    if problem.judge is not None:
        names = dict.fromkeys(layers, 1)
        moments = collect(problem.base, names, problem.judge, outputs=True)
    factors = []
    for name, module in layers.items():
        cost = module.weight.numel()
        if problem.of == "multiply_adds":
            operations = problem.graph.costs[id(module.weight)]
            cost = operations / len(problem.inputs)
        factors.append(_factorize(module, name, cost, moments.get(name)))
    ranks: dict[str, int | None] = {}
    if isinstance(keep, Mapping):
        for f in factors:
            ranks.update(_share_ranks([f], keep[f.name] * f.cost))
    else:
        budget = sum(f.cost for f in factors) - (1 - keep) * problem.total
        ranks = _share_ranks(factors, budget)
    return _rewrite_layers(problem, factors, ranks, skipped)


def _rewrite_layers(
    problem: Problem,
    factors: list[Factors],
    ranks: dict[str, int | None],
    skipped: dict[str, str],
) -> Outcome:
    """Return the network with layers of these ranks, except those that the forward pass needs."""
    small = copy_model(problem.base)
    pairs: dict[Factors, nn.Sequential] = {}
    for f in factors:
        rank = ranks[f.name]
        if rank is None:
            skipped[f.name] = (
                "no rank saves anything" if f.limit < 1 else "it is worth its cost"
            )
        elif not f.name:
            skipped[f.name] = "it is the model itself; wrap it in torch.nn.Sequential"
        else:
            pairs[f] = _rewrite(problem.base.get_submodule(f.name), f, rank).eval()
            small.set_submodule(f.name, pairs[f])
    if pairs and why_it_fails(small, problem.inputs, problem.base) is not None:
        small = copy_model(problem.base)  # and rewrite one by one
        for f, pair in list(pairs.items()):
            before = small.get_submodule(f.name)
            small.set_submodule(f.name, pair)
            why = why_it_fails(small, problem.inputs, problem.base)
            if why is not None:
                small.set_submodule(f.name, before)
                skipped[f.name] = f"the forward pass needs the layer itself: {why}"
                del pairs[f]
    changes = [_change(f, ranks[f.name] or 0) for f in pairs]
    return Outcome("spectrum", small, changes, skipped)


def _change(f: Factors, rank: int) -> Change:
    """Return what became of a layer, with the norms of W - P P'W."""
    P = f.directions[:, :rank]
    gap = f.weight - P @ (P.T @ f.weight)
    gram = gap @ gap.T if len(gap) <= gap.shape[1] else gap.T @ gap
    largest = max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0)
    error = math.sqrt(float(np.sum(f.energy[rank:])))
    return Change(
        layers=(f.name,),
        kind="rank",
        before=min(f.weight.shape),
        after=rank,
        operator_error=math.sqrt(largest),
        frobenius_error=float(torch.linalg.matrix_norm(gap)),
        data_error=error if f.mean is not None else None,
        relative_error=math.sqrt(float(np.sum(f.shares[rank:]))),
    )


def _rewritable(problem: Problem) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the layers that a product of two can stand for, and the others with the reason."""
    found: dict[str, nn.Module] = {}
    skipped: dict[str, str] = {}
    uses = holders(problem.base)
    for name, module in problem.base.named_modules():
        kind = type(module).__name__
        if isinstance(module, SEALED):
            skipped[name] = f"{kind} keeps its maps inside"
        if weights_of(module) is None:
            continue
        reason = why_not_prunable(module)
        forwards = [k.forward for k in KINDS]
        if type(module).forward not in forwards and kind != "Conv1D":
            reason = f"{kind} is not rewritten"
        elif reason is None and id(module.weight) not in problem.graph.costs:
            reason = "its forward pass is not called"
        elif uses[id(module.weight)] > 1:
            reason = "its weights are tied to another layer's"
        elif getattr(module, "groups", 1) > 1:
            reason = f"it is a convolution in {module.groups} groups"
        if reason is None:
            found[name] = module
        else:
            skipped[name] = reason
    return found, skipped


def _factorize(
    module: nn.Module, name: str, cost: float, moments: Moments | None
) -> Factors:
    """Decompose one layer, by its outputs' moments if there are any."""
    weight = module.weight.detach().double()
    kind = weights_of(module)
    if kind is not None:
        weight = weight.movedim(kind.outer, 0).flatten(1)
    covariance = None if moments is None else moments.covariance()
    mean = None
    if moments is None or covariance is None:
        Q, R = torch.linalg.qr(weight)
        variance, P = torch.linalg.eigh(R @ R.T)
        P = Q @ P
    else:
        variance, P = torch.linalg.eigh(covariance)
        mean = moments.mean()
    energy = variance.flip(0).clamp(min=0).cpu().numpy()
    return Factors(name, weight, P.flip(1), energy, mean, cost)


def _share_ranks(factors: list[Factors], budget: float) -> dict[str, int | None]:
    """Return the rank of each layer (None: as it is) within a budget for all.

    Minimizes the sum of relative squared errors for a price of the cost, and finds the least
    price that meets the budget.
    """
    if budget >= sum(f.cost for f in factors):
        return {f.name: None for f in factors}
    low, high = -60.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        ranks = {f.name: _best_rank(f, math.exp(middle)) for f in factors}
        if sum(f.cost_of(ranks[f.name]) for f in factors) <= budget:
            high = middle
        else:
            low = middle
    ranks = {f.name: _best_rank(f, math.exp(high)) for f in factors}
    return _spend_rest(factors, ranks, budget)


def _spend_rest(
    factors: list[Factors], ranks: dict[str, int | None], budget: float
) -> dict[str, int | None]:
    """Spend the rest of the budget on the ranks that are worth most."""
    left = budget - sum(f.cost_of(ranks[f.name]) for f in factors)

    def worth(f: Factors) -> float:
        rank = ranks[f.name]
        price = f.cost_of(1)
        if rank is None or not 0 < price <= left or rank >= f.limit:
            return 0.0
        share = float(f.shares[rank])
        return share / price if share > ROUNDING else 0.0

    while factors:
        f = max(factors, key=worth)
        if worth(f) == 0:
            break
        ranks[f.name] = (ranks[f.name] or 0) + 1
        left -= f.cost_of(1)
    return ranks


def _best_rank(f: Factors, price: float) -> int | None:
    """Return the rank with the least error plus price, None if the layer costs less."""
    if f.limit < 1:
        return None
    worth = f.shares > max(price * f.cost_of(1), ROUNDING)
    rank = int(np.clip(np.sum(worth), 1, f.limit))
    rewritten = float(f.shares[rank:].sum()) + price * f.cost_of(rank)
    return rank if rewritten < price * f.cost else None


def _rewrite(module: nn.Module, f: Factors, rank: int) -> nn.Sequential:
    """Return the two layers of this rank that stand for one."""
    P = f.directions[:, :rank]
    bias = None if module.bias is None else module.bias.detach().double()
    if f.mean is not None:
        gap = (torch.zeros_like(f.mean) if bias is None else bias) - f.mean
        bias = f.mean + P @ (P.T @ gap)
    outputs, inputs = f.weight.shape
    with torch.random.fork_rng(devices=[]):
        first = nn.Linear(inputs, rank, bias=False)
        second = nn.Linear(rank, outputs, bias=bias is not None)
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            kind = nn.Conv1d if isinstance(module, nn.Conv1d) else nn.Conv2d
            second = kind(rank, outputs, 1, bias=bias is not None)
            first = copy.deepcopy(module)  # with its stride, padding and dilation
            first.out_channels = rank
            first.bias = None
    inner = (P.T @ f.weight).reshape(rank, *first.weight.shape[1:])
    first.weight = nn.Parameter(inner)
    second.weight = nn.Parameter(P.reshape(second.weight.shape).contiguous())
    if bias is not None:
        second.bias = nn.Parameter(bias)
    pair = nn.Sequential(first, second).to(module.weight)
    return pair.requires_grad_(module.weight.requires_grad)
