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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import Floats
from overt.nn.compression.activations import Moments, collect
from overt.nn.compression.dependencies import holders
from overt.nn.compression.layers import SEALED, weights_of, why_not_prunable
from overt.nn.compression.problem import (
    Outcome,
    Problem,
    bisect,
    copy_model,
    why_it_fails,
)
from overt.nn.compression.report import Change

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)
MAX_LOG_PRICE = 80.0
"""At a price of exp(-80) per multiply-add every layer stays; at 1 all ranks are 1."""
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
        """The largest rank that is of use and saves something; at 0 the layer stays as it is."""
        m, n = self.weight.shape
        useful = int(np.count_nonzero(self.tail()))
        saves = (m * n - 1) // (m + n)
        return min(saves, m - 1, n - 1, useful)

    @property
    def price(self) -> float:
        """The cost of one rank."""
        m, n = self.weight.shape
        return self.cost * (m + n) / (m * n)

    def tail(self) -> Floats:
        """Return the share of the squared error at each rank from 0 on."""
        tail = self.energy[::-1].cumsum()[::-1]
        tail = np.append(tail, 0.0)
        tail = tail / (tail[0] or 1.0)
        return np.where(tail > ROUNDING, tail, 0.0)

    def choices(self) -> tuple[Floats, Floats]:
        """Return cost and error at each rank from 1 to `limit`, then of the layer itself."""
        ranks = np.arange(1, self.limit + 1)
        costs = np.append(self.price * ranks, self.cost)
        return costs, np.append(self.tail()[ranks], 0.0)


def by_spectrum(problem: Problem) -> Outcome:
    """Rewrite layers as products of two, each with its rank."""
    layers, skipped = _rewritable(problem)
    moments: dict[str, Moments] = {}
    if problem.judge is not None:
        moments = collect(problem.base, layers, problem.judge, outputs=True)
    factors = [
        _factorize(problem, name, module, moments.get(name))
        for name, module in layers.items()
    ]
    total = problem.total or 1
    fixed = total - sum(f.cost for f in factors)
    smallest = sum(float(f.choices()[0][0]) for f in factors)
    least = (fixed + smallest) / total
    ranks = _choose_ranks(factors, problem.aim(least) * total - fixed)
    for f in factors:
        if f not in ranks:
            why = "it is worth its cost" if f.limit else "no rank saves anything"
            skipped[f.name] = why
    small = _rewrite_layers(problem, ranks, skipped)
    changes = [_change(f, rank, layers[f.name]) for f, rank in ranks.items()]
    return Outcome("spectrum", small, changes, skipped, least)


def _choose_ranks(factors: list[Factors], budget: float) -> dict[Factors, int]:
    """Return ranks within a budget with the least sum of errors; other layers stay.

    Each layer takes what has the least error + price * cost, at one price for all layers.
    """
    if budget >= sum(f.cost for f in factors):
        return {}
    choices = [f.choices() for f in factors]

    def at(log_price: float) -> list[int]:
        price = math.exp(log_price)
        return [int(np.argmin(errors + price * costs)) for costs, errors in choices]

    def cost(chosen: list[int]) -> float:
        return sum(costs[i] for i, (costs, _) in zip(chosen, choices, strict=True))

    chosen = at(-bisect(lambda x: cost(at(-x)) <= budget, 0.0, MAX_LOG_PRICE))
    left = budget - cost(chosen)
    ranks: dict[Factors, int] = {}
    for f, i in zip(factors, chosen, strict=True):
        if i == f.limit:
            continue
        more = min(int(left / f.price + 1e-9), f.limit - i - 1)
        ranks[f] = i + 1 + max(0, more)
        left -= f.price * max(0, more)
    return ranks


def _rewrite_layers(
    problem: Problem, ranks: dict[Factors, int], skipped: dict[str, str]
) -> nn.Module:
    """Return the network with layers of these ranks; those that cannot have them lose them."""
    base = problem.base

    def rewritten(chosen: Mapping[Factors, int]) -> nn.Module:
        small = copy_model(base)
        for f, rank in chosen.items():
            module = base.get_submodule(f.name)
            small.set_submodule(f.name, _rewrite(module, f, rank).eval())
        return small

    for f in list(ranks):
        if not f.name:
            skipped[f.name] = "it is the model itself; wrap it in torch.nn.Sequential"
            del ranks[f]
    small = rewritten(ranks)
    if not ranks or why_it_fails(small, problem.inputs, base) is None:
        return small
    for f, rank in list(ranks.items()):
        why = why_it_fails(rewritten({f: rank}), problem.inputs, base)
        if why is not None:
            skipped[f.name] = f"the forward pass needs the layer itself: {why}"
            del ranks[f]
    return rewritten(ranks)


def _change(f: Factors, rank: int, module: Any) -> Change:
    """Return what became of a layer, with the norm of W - P P'W, or a bound on a convolution's."""
    P = f.directions[:, :rank]
    gap = f.weight - P @ (P.T @ f.weight)
    gram = gap @ gap.T if len(gap) <= gap.shape[1] else gap.T @ gap
    largest = max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0)
    zeros = getattr(module, "padding_mode", "zeros") == "zeros"
    error = math.sqrt(float(np.sum(f.energy[rank:])))
    return Change(
        layers=(f.name,),
        kind="rank",
        before=min(f.weight.shape),
        after=rank,
        operator_error=math.sqrt(largest * _overlap(module)) if zeros else None,
        data_error=error if f.mean is not None else None,
        relative_error=math.sqrt(float(f.tail()[rank])),
    )


def _overlap(module: Any) -> int:
    """Return how many patches of a convolution an entry of its input can be in."""
    if not isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return 1
    axes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    # Offsets in the kernel at which a patch has the entry differ by stride / gcd.
    return math.prod(math.ceil(k * math.gcd(s, d) / s) for k, s, d in axes)


def _rewritable(problem: Problem) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the layers that a product of two can stand for, and the others with the reason."""
    found: dict[str, nn.Module] = {}
    skipped: dict[str, str] = {}
    uses = holders(problem.base)
    forwards = [kind.forward for kind in KINDS]
    for name, module in problem.base.named_modules():
        kind = type(module).__name__
        if isinstance(module, SEALED):
            skipped[name] = f"{kind} keeps its maps inside"
        if weights_of(module) is None:
            continue
        reason = why_not_prunable(module)
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
    problem: Problem, name: str, module: Any, moments: Moments | None
) -> Factors:
    """Decompose one layer, by its outputs' moments if there are any."""
    kind: Any = weights_of(module)
    weight = module.weight.detach().double()
    weight = weight.movedim(kind.outer, 0).flatten(1)
    cost = weight.numel()
    if problem.of == "multiply_adds":
        cost = problem.graph.costs[id(module.weight)] / len(problem.inputs)
    covariance = None if moments is None else moments.covariance()
    if moments is None or covariance is None:
        P, s, _ = torch.linalg.svd(weight, full_matrices=False)
        energy = s.square().cpu().numpy()
        return Factors(name, weight, P, energy, None, cost)
    variance, P = torch.linalg.eigh(covariance)
    energy = variance.flip(0).clamp(min=0).cpu().numpy()
    return Factors(name, weight, P.flip(1), energy, moments.mean(), cost)


def _rewrite(module: Any, f: Factors, rank: int) -> nn.Sequential:
    """Return the two layers of this rank that stand for one."""
    P = f.directions[:, :rank]
    bias = None if module.bias is None else module.bias.detach().double()
    if f.mean is not None:
        gap = (torch.zeros_like(f.mean) if bias is None else bias) - f.mean
        bias = f.mean + P @ (P.T @ gap)
    outputs, inputs = f.weight.shape
    first: Any = nn.Linear(inputs, rank, bias=False)
    second: Any = nn.Linear(rank, outputs)
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        kind = nn.Conv1d if isinstance(module, nn.Conv1d) else nn.Conv2d
        second = kind(rank, outputs, 1)
        first = copy.deepcopy(module)  # with its stride, padding and dilation
        first.out_channels = rank
        first.bias = None
    inner = P.T @ f.weight
    inner = inner.reshape(rank, *first.weight.shape[1:])
    first.weight = nn.Parameter(inner)
    second.weight = nn.Parameter(P.reshape(second.weight.shape).contiguous())
    second.bias = None if bias is None else nn.Parameter(bias)
    pair = nn.Sequential(first, second).to(module.weight)
    return pair.requires_grad_(module.weight.requires_grad)
