"""Entrywise functions: stored as functions of their root, integrated when needed."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import aten, op_info
from overt.nn.graph.replay import map_tree
from overt.nn.moments.linear_rules import add, linear, multiply
from overt.nn.moments.registry import broadcast_shape, find_values, unknown_operation
from overt.nn.moments.values import (
    SETTINGS,
    Derived,
    Expression,
    Law,
    Propagation,
    RandomTensor,
    Value,
    gelu_moments,
    integrate_roots,
    relu_moments,
)

_OF_POSITIVE = {
    aten.sqrt,
    aten.rsqrt,
    aten.log,
    aten.log2,
    aten.log10,
    aten.reciprocal,
    aten.xlogy,
}
"""Functions that are used on positive numbers, where a normal law would leave their range."""

_STEPS = {aten.floor, aten.ceil, aten.round, aten.sign, aten.trunc}
_COMPARISONS = {aten.gt, aten.ge, aten.lt, aten.le}

ALSO_POINTWISE = {
    aten.hardswish,
    aten.silu,
    aten.gelu,
    aten.elu,
    aten.celu,
    aten.mish,
    aten.softplus,
    aten.hardtanh,
    aten.hardsigmoid,
    aten.leaky_relu,
    aten.relu6,
    aten._to_copy,
}
"""Entrywise operations that torch would decompose or does not tag as pointwise."""


def pointwise(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a function of the root, if all random arguments have the same one."""
    given = find_values((args, kwargs))
    packet = func.overloadpacket
    roots = {id(value.root) for value in given}
    if len(roots) > 1 and not all(value.root.noises for value in given):

        def at_mean(leaf: Any) -> Any:
            is_off = isinstance(leaf, Value) and not leaf.root.noises
            return leaf.moments(run).mean if is_off else leaf

        # Noises that are off take no part beside others.
        args = map_tree(tuple(args), at_mean)
        kwargs = map_tree(kwargs, at_mean)
        given = find_values((args, kwargs))
        if not given:
            return func(*args, **kwargs)
        roots = {id(value.root) for value in given}
    length = 1 + max(value.length for value in given)
    if len(roots) > 1 or length > SETTINGS.max_chain:
        return _several_roots(run, func, args, kwargs)
    root = given[0].root

    def function(x: Tensor, cache: dict[int, Tensor]) -> Tensor:
        def pick(leaf: Any) -> Any:
            return leaf.at(x, cache) if isinstance(leaf, Value) else leaf

        return func(*map_tree(tuple(args), pick), **map_tree(kwargs, pick))

    out = Value(
        root,
        function,
        length=length,
        positive=any(value.positive for value in given)
        or _needs_positive(packet, args),
        affine=False,
        shape=broadcast_shape(args, kwargs),
    )
    out.home = given[0].home or given[0]
    law = root.law
    if (
        law is not None
        and law.quantile is not None
        and packet in (_STEPS | _COMPARISONS)
    ):
        coin = _as_coin(run, packet, out, law)
        return out if coin is None else coin
    if len(given) == 1:
        out.found = _affine(run, func, args, kwargs)
        out.affine = out.found is not None and given[0].affine
        if out.found is None and law is None and given[0].affine:
            out.found = _closed_form(run, func, args, kwargs)
    return out


def _needs_positive(packet: Any, args: Any) -> bool:
    if packet in _OF_POSITIVE:
        return True
    if packet is not aten.pow or isinstance(args[1], (Tensor, Value)):
        return False
    power = args[1]
    return power < 0 or power != int(power)


def _closed_form(
    run: Propagation, func: Any, args: Any, kwargs: Any
) -> RandomTensor | None:
    """Return the moments of ReLU and GELU of normal entries, None for other functions."""
    packet = func.overloadpacket
    is_erf_gelu = packet is aten.gelu and kwargs.get("approximate", "none") == "none"
    if packet is not aten.relu and not is_erf_gelu:
        return None
    x = args[0].moments(run)
    mean, slope, var = (relu_moments if packet is aten.relu else gelu_moments)(
        x.mean, x.var
    )
    rest = (var - slope * slope * x.var).clamp(min=0)
    dev = run.fixed(slope) * x.dev + run.source(rest, rest=True)
    return x.approximated(mean=mean, var=var, dev=dev)


def _as_coin(run: Propagation, packet: Any, out: Value, law: Law) -> Value | None:
    """Return the coin that a step function of a root is, None without a single threshold.

    `rand >= p`, `floor(rand + p)`: the threshold is found by bisection of the quantiles.
    """

    def at(u: Tensor) -> Tensor:
        return out.at(law.quantile(u), {}).double()  # type: ignore[misc]

    grid = (torch.arange(256, dtype=torch.float64) + 0.5) / 256
    y = at(grid)
    if y.shape != grid.shape:
        return None
    first = float(y[0])
    last = float(y[-1])
    jumps = int((y[1:] != y[:-1]).sum())
    if len(y.unique()) > 2 or first == last or jumps != 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if float(at(torch.tensor([middle], dtype=torch.float64))[0]) == first:
            low = middle
        else:
            high = middle
    p = 1 - low  # the probability of the second value
    like = out.root.mean
    coin = Law(
        torch.tensor([first, last]), torch.tensor([1 - p, p], dtype=torch.float64)
    )
    mean = torch.full_like(like, first + p * (last - first))
    var = torch.full_like(like, p * (1 - p) * (last - first) ** 2)
    noises = out.root.noises
    if not noises:
        var = torch.zeros_like(var)
    # Other functions of the same root depend on the coin in a way that no slope shows.
    derived = frozenset({Derived(noises)})
    tossed = Value(
        RandomTensor(
            mean, var, run.source(var) if noises else var, noises, coin, derived=derived
        ),
    )
    if packet not in _COMPARISONS:
        return tossed
    # The comparison is true where the coin shows 1.
    return Value(
        tossed.root,
        lambda x, _: x > 0.5,
        moments=tossed.root,
        length=1,
        shape=out.shape,
    )


def _affine(run: Propagation, func: Any, args: Any, kwargs: Any) -> RandomTensor | None:
    """Return the moments of an affine function of one random tensor, None if it is not affine."""
    packet = func.overloadpacket
    a = args[0]
    b = args[1] if len(args) > 1 else kwargs.get("other")
    alpha = kwargs.get("alpha", 1)
    if packet is aten.add:
        return add(run, a, b, alpha).found
    if packet is aten.sub:
        return add(run, a, b, -alpha).found
    if packet is aten.rsub:
        return add(run, b, a, -alpha).found
    if packet is aten.neg:
        return multiply(run, a, -1.0).found
    if packet is aten.mul:
        return multiply(run, a, b).found
    if packet is aten.div and isinstance(a, Value) and not kwargs.get("rounding_mode"):
        return multiply(run, a, 1 / b).found
    if packet is aten._to_copy:
        dtype = kwargs.get("dtype")
        if dtype is not None and not dtype.is_floating_point:
            return None
        return linear(run, func, args, kwargs).found
    condition = args[0] if packet is aten.where else args[1] if len(args) > 1 else None
    if packet is aten.clone:
        return linear(run, func, args, kwargs).found
    if packet in (aten.masked_fill, aten.where) and not isinstance(condition, Value):
        return linear(run, func, args, kwargs).found
    return None


def _several_roots(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Apply a function of several roots; integrated as one where its arguments share some."""
    given = list({id(value): value for value in find_values((args, kwargs))}.values())
    expressions: list[Expression] = []
    shared: Expression | None = None
    for choice in itertools.product(*(value.as_expressions() for value in given)):
        homes = {id(home): home for roots, _ in choice for home in roots}
        if len(homes) > SETTINGS.max_roots:
            continue
        parts = {
            id(value): inner for value, (_, inner) in zip(given, choice, strict=True)
        }

        def function(points: Any, cache: Any, parts: Any = parts) -> Tensor:
            def pick(leaf: Any) -> Any:
                return (
                    parts[id(leaf)](points, cache) if isinstance(leaf, Value) else leaf
                )

            return func(*map_tree(tuple(args), pick), **map_tree(kwargs, pick))

        expressions.append((tuple(homes.values()), function))
        uses = sum(len(roots) for roots, _ in choice)
        if shared is None and uses > len(homes):
            shared = expressions[-1]
    if shared is None:
        out = _separate_roots(run, func, args, kwargs)
    else:
        shape = broadcast_shape(args, kwargs)
        out = Value(integrate_roots(run, shared, shape))
    if isinstance(out, Value):
        out.expressions = expressions[:6]
    return out


def _separate_roots(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Apply a function of several tensors that share no root."""
    packet = func.overloadpacket
    a, b = (*args, None)[:2]
    if packet in (aten.add, aten.sub):
        sign = 1 if packet is aten.add else -1
        return add(run, a, b, sign * kwargs.get("alpha", 1))
    if packet is aten.mul:
        return multiply(run, a, b)
    if packet is aten.div and not kwargs.get("rounding_mode"):
        if not isinstance(b, Value):
            return multiply(run, a, 1 / b)
        inverse = pointwise(run, aten.reciprocal.default, (b,), {})
        return multiply(run, a, inverse)
    if packet is aten.where:
        if isinstance(args[0], Value):
            return _choose(run, args[0], args[1], args[2])
        return linear(run, func, args, kwargs)
    if packet is aten.masked_fill and isinstance(args[1], Value):
        return _choose(run, args[1], args[2], args[0])
    if max(value.length for value in find_values((args, kwargs))) >= SETTINGS.max_chain:

        def restart(leaf: Any) -> Any:
            return Value(leaf.moments(run)) if isinstance(leaf, Value) else leaf

        # The chain is too long: count its entries as normal from here on.
        return pointwise(
            run, func, map_tree(tuple(args), restart), map_tree(kwargs, restart)
        )
    return unknown_operation(run, func, args, kwargs)


def _choose(run: Propagation, condition: Value, a: Any, b: Any) -> Value:
    """Return a where a coin shows 1 and b elsewhere: b + coin (a - b), all of separate roots."""
    like = a if isinstance(a, Value) else b
    dtype = {"dtype": like.moments(run).mean.dtype}
    coin = pointwise(run, aten._to_copy.default, (condition,), dtype)
    other = pointwise(run, aten.rsub.Scalar, (coin, 1.0), {})
    kept = multiply(run, other, b)
    filled = multiply(run, coin, a)
    return add(run, kept, filled)


def is_pointwise(func: Any) -> bool:
    """Whether each entry of the result depends on the same entry of the arguments alone."""
    return op_info(func).pointwise or func.overloadpacket in ALSO_POINTWISE
