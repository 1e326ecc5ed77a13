"""Entrywise functions: stored as functions of their root, integrated when needed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import aten, map_tree, op_info
from overt.nn.moments.linear_rules import add, linear, multiply
from overt.nn.moments.registry import (
    broadcast_shape,
    find_values,
    refuse,
)
from overt.nn.moments.values import (
    SETTINGS,
    Law,
    Points,
    Propagation,
    RandomTensor,
    Value,
    coin_law,
    integrate,
)

_OF_POSITIVE = ["sqrt", "rsqrt", "log", "log2", "log10", "reciprocal", "xlogy"]
"""Functions that are used on positive numbers, where a normal law would leave their range."""

_COMPARISONS = ("gt", "ge", "lt", "le")
_STEPS = ("floor", "ceil", "round", "sign", "trunc", *_COMPARISONS)

ALSO_POINTWISE = {aten.hardswish, aten._to_copy}
"""Entrywise operations that torch does not tag as pointwise."""


def is_pointwise(func: Any) -> bool:
    """Whether each entry of the result depends on the same entry of the arguments alone."""
    return op_info(func).pointwise or func.overloadpacket in ALSO_POINTWISE


def pointwise(run: Propagation, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a function of the root, if all random arguments have the same one."""
    values = find_values((*args, *kwargs.values()))
    given = list(dict.fromkeys(values))
    name = op_info(func).name
    shape = broadcast_shape(args, kwargs)

    def function(points: Points, cache: dict[Value, Tensor]) -> Tensor:
        def pick(leaf: Any) -> Any:
            return leaf.at(points, cache) if isinstance(leaf, Value) else leaf

        return func(*[pick(leaf) for leaf in args], **map_tree(kwargs, pick))

    first = given[0]
    root = first.root
    length = 1 + max(value.length for value in given)
    if length > SETTINGS.max_chain:

        def restart(leaf: Any) -> Any:
            return Value(leaf.moments(run)) if isinstance(leaf, Value) else leaf

        # The chain is too long: count its entries as normal from here on.
        return pointwise(
            run, func, *map_tree(args, restart), **map_tree(kwargs, restart)
        )
    if any(value.root is not root for value in given):
        return _several_roots(run, func, args, kwargs, given, function, shape)
    positive = name in _OF_POSITIVE or any(value.positive for value in given)
    if name == "pow" and isinstance(args[1], (int, float)):
        positive |= args[1] < 0 or args[1] != int(args[1])
    out = Value(root, function, length=length, positive=positive, shape=shape)
    if root.law is not None and root.law.quantile is not None and name in _STEPS:
        return _as_coin(run, out, root.law, compares=name in _COMPARISONS) or out
    if len(values) == 1:
        affine = _by_affine_rule(run, func, *args, **kwargs)
        if affine is not None:
            out.found = affine.found
            out.affine = first.affine
        elif root.law is None and first.affine and root.integrated_over == (root,):
            out.found = _closed_form(run, name, first, kwargs)
    return out


def _several_roots(
    run: Propagation,
    func: Any,
    args: Any,
    kwargs: Any,
    given: list[Value],
    function: Any,
    shape: Any,
) -> Any:
    """Apply a function of several roots; integrated as one where its arguments share some.

    The roots may be the arguments' own, or what these are functions of.
    """
    out: Any = None
    choices = []
    for picked in itertools.product(
        *(((value.root,), *value.root.roots) for value in given)
    ):
        uses = [root for roots in picked for root in roots]
        roots = tuple(dict.fromkeys(uses))
        if len(roots) <= len(SETTINGS.nodes):
            choices.append(roots)
            if out is None and len(uses) > len(roots):
                out = Value(integrate(run, roots, function, shape))
    if out is None:
        out = _by_affine_rule(run, func, *args, **kwargs)
    if out is None:
        refuse(run, func)
    if isinstance(out, Value):
        made = replace(out.moments(run), roots=tuple(choices[:6]), function=function)
        out.root = out.found = made
    return out


def _by_affine_rule(
    run: Propagation,
    func: Any,
    a: Any,
    b: Any = None,
    c: Any = None,
    *_: Any,
    **options: Any,
) -> Any:
    """Return sums, products and selections of tensors without a common root, None for others."""
    name = op_info(func).name
    if name in ("add", "sub", "rsub"):
        sign = 1 if name == "add" else -1
        if name == "rsub":
            a, b = b, a
        return add(run, a, b, sign * options.get("alpha", 1))
    if name == "neg":
        return multiply(run, a, -1.0)
    if name == "mul":
        return multiply(run, a, b)
    if name == "div" and not options.get("rounding_mode"):
        if not isinstance(b, Value):
            return multiply(run, a, 1 / b)
        if isinstance(a, Value):
            return multiply(run, a, pointwise(run, aten.reciprocal.default, b))
    if name == "_to_copy" and (options.get("dtype") or torch.float).is_floating_point:
        return linear(run, func, a, **options)
    if name in ("where", "masked_fill"):
        condition, one, other = (a, b, c) if name == "where" else (b, c, a)
        if isinstance(condition, Tensor) and not condition.is_floating_point():
            return linear(run, func, a, b, c)
        if isinstance(one, Value) or isinstance(other, Value):
            return _choose(run, condition, one, other)
    return None


def _choose(run: Propagation, coin: Any, a: Any, b: Any) -> Value:
    """Return a where a coin shows 1 and b elsewhere: coin a + (1 - coin) b."""
    if isinstance(coin, Value):
        like = a if isinstance(a, Value) else b
        dtype = like.moments(run).mean.dtype
        coin = pointwise(run, aten._to_copy.default, coin, dtype=dtype)
        other = pointwise(run, aten.rsub.Scalar, coin, 1.0)
    else:
        other = 1 - coin
    chosen: Value = add(run, multiply(run, coin, a), multiply(run, other, b))
    return chosen


def _as_coin(run: Propagation, out: Value, law: Law, *, compares: bool) -> Value | None:
    """Return the coin that a step function of a root is, None without a single threshold.

    `rand >= p`, `floor(rand + p)`: the threshold is found by bisection of the quantiles.
    """
    root = out.root
    low = 1e-9  # rarer values are not seen
    high = 1 - low
    ends: list[float] = []
    axes = [1] * len(out.shape)

    def at(shares: Tensor) -> Tensor:
        points = law.quantile(shares).reshape(-1, *axes)  # type: ignore[misc]
        return out.at({root: points}, {}).double().flatten()

    if at(torch.full((1,), 0.5, dtype=torch.float64)).numel() > 1:
        return None  # entries have thresholds of their own
    for _ in range(6):  # each finds eight binary digits of the threshold
        grid = torch.linspace(low, high, 257, dtype=torch.float64)
        y = at(grid)
        steps = (y[1:] != y[:-1]).nonzero().flatten()
        if len(steps) != 1:
            return None
        ends = ends or [float(y[0]), float(y[-1])]
        low, high = grid[steps[0] :][:2].tolist()
    first, last = ends
    p = 1 - low  # the probability of the second value
    coin = coin_law(p, first, last)
    mean = torch.full_like(root.mean, first + p * (last - first))
    var = torch.full_like(mean, p * low * (last - first) ** 2)
    # Other functions of the same root depend on the coin in a way that no slope shows.
    tossed = RandomTensor(mean, var, var, root.noises, coin, derived=2)
    if root.noises:
        tossed = replace(tossed, dev=run.source(var))
    if not compares:
        return Value(tossed)

    def is_one(points: Points, cache: dict[Value, Tensor]) -> Tensor:
        return points[tossed] > 0.5

    return Value(tossed, is_one, moments=tossed, length=1, shape=out.shape)


def _closed_form(
    run: Propagation, name: str, value: Value, kwargs: Any
) -> RandomTensor | None:
    """Return the moments of ReLU and GELU of normal entries, None for other functions."""
    if name == "relu":
        moments = relu_moments
    elif name == "gelu" and kwargs.get("approximate", "none") == "none":
        moments = gelu_moments
    else:
        return None
    x = value.moments(run)
    mean, slope, var = moments(x.mean, x.var)
    if run.sampled:  # variances inside the network have no gradients in training
        var = var.detach()
    with run.variance_mode():
        rest = (var - slope * slope * x.var).clamp(min=0)
    dev = run.fixed(slope) * x.dev + run.source(rest, rest=True)
    return x.approximated(mean=mean, var=var, dev=dev)


def normal_density(z: Tensor) -> Tensor:
    """Return exp(-z^2 / 2) / sqrt(2 pi)."""
    return torch.exp(z * z * -0.5) * (2 * math.pi) ** -0.5


def relu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E, mean slope and variance of max(x, 0) for normal x."""
    sd = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()
    a = mean / sd
    phi = normal_density(a)
    Phi = torch.special.ndtr(a)
    u = torch.addcmul(phi, a, Phi)
    # Var = v (Phi + u (a (1 - Phi) - phi)): no difference of large numbers.
    return sd * u, Phi, var * torch.addcmul(Phi, u, a * (1 - Phi) - phi).clamp(min=0)


def gelu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E, mean slope and variance of x Phi(x) for normal x.

    With s^2 = 1 + v and a = m / s: E f = m Phi(a) + v phi(a) / s. Its derivatives in m are the
    mean derivatives f_k of f, and Var f = v f_1^2 + v^2 f_2^2 / 2 + v^3 f_3^2 / 6 + ...; the first
    four terms are taken, which is 1e-3 for v = 1.
    """
    c = 1 / (1 + var)
    r = c.sqrt()
    a = mean * r
    aa = a * a
    Phi = torch.special.ndtr(a)
    phi = normal_density(a)
    slope = Phi + a * phi * c
    h2 = 1 + c * (1 - aa)
    h3 = a * (h2 + 2 * c)
    h4 = aa - 1 + c * ((6 - aa) * aa - 3)
    cv = c * var
    squares = 3 * h2 * h2 + cv * (h3 * h3 + cv / 4 * h4 * h4)
    rest = var * cv * phi * phi / 6 * squares
    return mean * Phi + phi * var * r, slope, slope * slope * var + rest
