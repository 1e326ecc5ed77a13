"""Low-rank rewriting of linear and convolutional maps, with the error it makes.

A layer y = W x + b becomes two of rank r, y' = P (P'W x) + c. Without data P holds the leading left
singular vectors of W (a convolution's weight as outputs x everything else), c = b, and

    |y' - y| <= s_(r+1) |x|,  |W' - W|_F^2 = sum_(i>r) s_i^2   (Eckart and Young).

With data P holds the principal directions of the layer's outputs, c = m + P P'(b - m) with m their
mean, and E|y' - y|^2 = sum_(i>r) l_i, with l the variances along the directions: the least error
of any affine map of rank r on those data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.nn.compression.activations import Moments, collect
from overt.nn.compression.dependencies import holders
from overt.nn.compression.layers import SEALED, WEIGHTED, is_a, why_not_prunable
from overt.nn.compression.problem import (
    Outcome,
    Problem,
    check_layers,
    copy_model,
    count_parameters,
    why_it_fails,
)
from overt.nn.compression.report import Change

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)
LARGE = 2**17
"""Entries of a weight beyond which its directions come from its Gram matrix, which is faster."""
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
    cost: int

    @property
    def limit(self) -> int:
        """The largest rank that saves multiply-adds."""
        m, n = self.weight.shape
        return min((m * n - 1) // (m + n), min(m, n) - 1)

    def cost_of(self, rank: int | None) -> float:
        """Return the multiply-adds at a rank, None for the layer as it is."""
        m, n = self.weight.shape
        return self.cost if rank is None else self.cost * rank * (m + n) / (m * n)

    def error(self, rank: int) -> float:
        """Return the root of the sum of squared errors that a rank leaves."""
        return math.sqrt(max(float(np.sum(self.energy[rank:])), 0.0))


def by_spectrum(problem: Problem) -> Outcome:
    """Rewrite layers as products of two, each with its rank."""
    base = problem.base
    keep = problem.keep
    layers, skipped = _rewritable(base, problem.layer_costs)
    if isinstance(keep, Mapping):
        check_layers(keep, [*layers, *skipped])
        layers = {name: module for name, module in layers.items() if name in keep}
    moments: dict[str, Moments] = {}
    if problem.judge is not None:
        moments = collect(base, list(layers), problem.judge, outputs=True)
    costs = problem.layer_costs
    total = problem.total
    if problem.of == "parameters":
        costs = {name: module.weight.numel() for name, module in layers.items()}
        total = count_parameters(base)
    factors = [
        _factorize(module, name, costs[name], moments.get(name))
        for name, module in layers.items()
    ]
    if isinstance(keep, Mapping):
        ranks = {f.name: _affordable_rank(f, keep[f.name]) for f in factors}
    else:
        budget = sum(f.cost for f in factors) - (1 - keep) * total
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
    operator_error, frobenius_error = _operator_error(f, rank)
    error = f.error(rank)
    total = float(np.sqrt(np.sum(f.energy))) or 1.0
    return Change(
        layers=(f.name,),
        kind="rank",
        before=min(f.weight.shape),
        after=rank,
        operator_error=operator_error,
        frobenius_error=frobenius_error,
        data_error=error if f.mean is not None else None,
        relative_error=error / total,
    )


def _rewritable(
    model: nn.Module, costs: Mapping[str, int]
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the layers that a product of two can stand for, and the others with the reason."""
    found: dict[str, nn.Module] = {}
    skipped: dict[str, str] = {}
    uses = holders(model)
    for name, module in model.named_modules():
        if not is_a(module, KINDS):
            if isinstance(module, SEALED):
                skipped[name] = f"{type(module).__name__} keeps its maps inside"
            elif isinstance(module, (*WEIGHTED, nn.Embedding)):
                skipped[name] = f"{type(module).__name__} is not rewritten"
            continue
        reason = why_not_prunable(module)
        if reason is None and name not in costs:
            reason = "its forward pass is not called"
        if reason is None and uses[id(module.weight)] > 1:
            reason = "its weights are tied to another layer's"
        if reason is None and getattr(module, "groups", 1) > 1:
            reason = f"it is a convolution in {module.groups} groups"
        if reason is None:
            found[name] = module
        else:
            skipped[name] = reason
    return found, skipped


def _factorize(
    module: nn.Module, name: str, cost: int, moments: Moments | None
) -> Factors:
    """Decompose one layer, by its outputs' moments if there are any."""
    weight = module.weight.detach().double().flatten(1)
    covariance = None if moments is None else moments.covariance()
    if moments is None or covariance is None:
        if weight.numel() > LARGE and weight.shape[0] <= weight.shape[1]:
            values, P = torch.linalg.eigh(weight @ weight.T)
            energy = values.flip(0).clamp(min=0).cpu().numpy()
            return Factors(name, weight, P.flip(1), energy, None, cost)
        P, s, _ = torch.linalg.svd(weight, full_matrices=False)
        return Factors(name, weight, P, (s * s).cpu().numpy(), None, cost)
    variance, P = torch.linalg.eigh(covariance)
    energy = variance.flip(0).clamp(min=0).cpu().numpy()
    return Factors(name, weight, P.flip(1), energy, moments.mean(), cost)


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
        share = f.energy[rank] / (float(f.energy.sum()) or 1.0)
        return float(share / price) if share > ROUNDING else 0.0

    while factors:
        f = max(factors, key=worth)
        if worth(f) == 0:
            break
        ranks[f.name] = (ranks[f.name] or 0) + 1
        left -= f.cost_of(1)
    return ranks


def _best_rank(f: Factors, price: float) -> int | None:
    if f.limit < 1:
        return None
    total = float(f.energy.sum()) or 1.0
    share = f.energy / total
    worth = share > max(price * f.cost_of(1), ROUNDING)
    rank = int(np.clip(np.sum(worth), 1, f.limit))
    rewritten = float(share[rank:].sum()) + price * f.cost_of(rank)
    return rank if rewritten < price * f.cost else None


def _affordable_rank(f: Factors, keep: float) -> int | None:
    """Return the largest rank within `keep` of the layer's own multiply-adds, at least 1."""
    if keep >= 1 or f.limit < 1:
        return None
    m, n = f.weight.shape
    return max(1, min(f.limit, int(keep * m * n / (m + n))))


def _rewrite(module: nn.Module, f: Factors, rank: int) -> nn.Sequential:
    """Return the two layers of this rank that stand for one."""
    P = f.directions[:, :rank]
    inner = (P.T @ f.weight).reshape(rank, *module.weight.shape[1:])
    bias = None if module.bias is None else module.bias.detach().double()
    if f.mean is not None:
        gap = (torch.zeros_like(f.mean) if bias is None else bias) - f.mean
        bias = f.mean + P @ (P.T @ gap)
    with torch.random.fork_rng(devices=[]):
        pair = _pair(module, rank, bias is not None)
    with torch.no_grad():
        pair[0].weight.copy_(inner)
        pair[1].weight.copy_(P.reshape(pair[1].weight.shape))
        if bias is not None:
            pair[1].bias.copy_(bias)
    for parameter in pair.parameters():
        parameter.requires_grad_(module.weight.requires_grad)
    return pair


def _pair(module: nn.Module, rank: int, bias: bool) -> nn.Sequential:
    where = {"device": module.weight.device, "dtype": module.weight.dtype}
    if isinstance(module, nn.Linear):
        return nn.Sequential(
            nn.Linear(module.in_features, rank, bias=False, **where),
            nn.Linear(rank, module.out_features, bias=bias, **where),
        )
    kind = nn.Conv1d if isinstance(module, nn.Conv1d) else nn.Conv2d
    inner = kind(
        module.in_channels,
        rank,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        bias=False,
        padding_mode=module.padding_mode,
        **where,
    )
    return nn.Sequential(inner, kind(rank, module.out_channels, 1, bias=bias, **where))


def _operator_error(f: Factors, rank: int) -> tuple[float, float]:
    """Return the largest singular value, and the Frobenius norm, of W - P P'W."""
    if f.mean is None:
        tail = np.sqrt(f.energy[rank:])
        return (float(tail[0]) if len(tail) else 0.0), f.error(rank)
    P = f.directions[:, :rank]
    gap = f.weight - P @ (P.T @ f.weight)
    gram = gap @ gap.T if len(gap) <= gap.shape[1] else gap.T @ gap
    largest = math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0))
    return largest, float(torch.linalg.matrix_norm(gap))
