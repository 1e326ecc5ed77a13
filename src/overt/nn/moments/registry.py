"""Which rule is used for which ATen operation, which may be called exact, and what has no rule.

An operation without a rule is tested for linearity numerically; others have a few local samples.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import UnsupportedError, op_info, op_schema
from overt.nn.graph.replay import map_tree
from overt.nn.moments.values import (
    SETTINGS,
    Propagation,
    RandomTensor,
    Value,
    random_signs,
)

aten = torch.ops.aten
Rule = Callable[[Propagation, Any, Any, Any], Any]

RULES: dict[Any, Rule] = {}

_EXACT = """
    _adaptive_avg_pool2d _to_copy _unsafe_view abs add addmm avg_pool2d baddbmm bernoulli bmm cat
    celu clamp clone col2im constant_pad_nd convolution copy cos cumsum detach diag_embed diagonal
    div dot elu embedding erf exp expand fill flip gather ge gelu gt hardsigmoid hardswish hardtanh
    im2col index index_add index_copy index_put index_select le leaky_relu log1p lt mask masked_fill
    masked_scatter max_pool2d_with_indices mean mish mm mul mv native_batch_norm neg permute
    pixel_shuffle pixel_unshuffle pow rand rand_like randn randn_like reflection_pad1d
    reflection_pad2d relu repeat replication_pad2d roll rsub scatter scatter_add select
    select_scatter sigmoid silu sin slice slice_scatter softplus split split_with_sizes sqrt squeeze
    stack sub sum t tanh trace transpose tril triu unbind unfold unsqueeze upsample_nearest2d view
    where zero
"""
EXACT_OPERATIONS = frozenset(_EXACT.split())
"""Operations whose results may be called exact; for others the label is withdrawn.

The test of this table enumerates all masks for each of them, and fails for a name without a row.
"""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Use a function as the rule of these operations."""

    def register(function: Rule) -> Rule:
        for name in names:
            packet = getattr(aten, name, None)
            if packet is not None:  # not every version of torch has all of them
                RULES[packet] = function
        return function

    return register


def find_values(tree: Any) -> list[Value]:
    """Return the random arguments."""
    found: list[Value] = []
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, Value):
            found.append(item)
        elif isinstance(item, (list, tuple, dict)) and item:
            found += find_values(item)
    return found


def broadcast_shape(args: Any, kwargs: Any) -> Any:
    """Return the shape of an entrywise function of flat arguments."""
    shapes = [
        t.shape for t in (*args, *kwargs.values()) if isinstance(t, (Tensor, Value))
    ]
    if all(shape == shapes[0] for shape in shapes):  # which torch is slow to find out
        return shapes[0]
    return torch.broadcast_shapes(*shapes)


def combined_flags(given: list[RandomTensor]) -> dict[str, Any]:
    """Return the flags of an affine function of several random tensors."""
    noises = frozenset().union(*(one.noises for one in given))
    exact = all(one.exact for one in given)
    disjoint = len(noises) == sum(len(one.noises) for one in given)
    return {
        "noises": noises,
        "exact": exact and (disjoint or not _correlated_sources(given)),
        "known": all(one.known for one in given) and disjoint,
        "independent": all(one.independent for one in given) and disjoint,
        "derived": frozenset().union(*(one.derived for one in given)),
    }


def _correlated_sources(given: list[RandomTensor]) -> bool:
    """Whether sources that count as uncorrelated may be correlated, as made of the same noise."""
    for one, other in itertools.permutations(given, 2):
        for a in one.derived:
            if not a.factors and a.noises & other.noises and a not in other.derived:
                return True
            if any(a is not b and a.may_correlate_with(b) for b in other.derived):
                return True
    return False


# -- operations without a rule -------------------------------------------------------------------


def unknown_operation(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Moments and mean slope of any differentiable operation from local samples.

    What the mean slope leaves depends on itself across entries: it is a sum of the samples'
    residuals times independent numbers, one for each index of the first axis.
    """
    given = find_values((args, kwargs))
    moments = [value.moments(run) for value in given]

    def function(*points: Tensor) -> tuple[Tensor, ...]:
        at = dict(zip(map(id, given), points, strict=True))

        def pick(leaf: Any) -> Any:
            return at.get(id(leaf), leaf)

        out = func(*map_tree(tuple(args), pick), **map_tree(kwargs, pick))
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    at_means = function(*(one.mean for one in moments))
    returns = op_schema(func).returns
    several = len(returns) > 1 or "[]" in str(returns)
    if any(t.is_complex() for t in at_means):
        raise UnsupportedError(f"{op_info(func).name} is complex")
    places = [i for i, t in enumerate(at_means) if t.is_floating_point()]
    if not places:  # only indices or comparisons: refused where they are used
        return [None] * len(at_means) if several else None
    results = _if_linear(run, function, moments)
    if results is None:
        run.unknown[op_info(func).name] = None
        results = _by_samples(run, function, given, moments, at_means, places)
    return results if several else results[0]


def _if_linear(
    run: Propagation, function: Callable[..., Any], moments: list[RandomTensor]
) -> list[Any] | None:
    """Return the image under an operation that is affine numerically, None if it is not."""
    means = [one.mean.detach() for one in moments]
    a = [torch.randn_like(m) * (1 + m.abs()) for m in means]
    b = [torch.randn_like(m) * (1 + m.abs()) for m in means]

    def at(s: float, t: float) -> Any:
        points = [m + s * x + t * y for m, x, y in zip(means, a, b, strict=True)]
        return function(*points)

    zeros = at(0, 0)
    for zero, x, y, both, back in zip(
        zeros, at(1, 0), at(0, 1), at(1, 1), at(-2, 0), strict=True
    ):
        if not zero.is_floating_point():
            return None
        size = 1e-5 * float((x.abs() + y.abs() + zero.abs()).max())
        if not float((both - x - y + zero).abs().max()) <= size:
            return None
        if not float((back - zero + 2 * (x - zero)).abs().max()) <= 3 * size:
            return None
    flags = combined_flags(moments)
    flags["known"] = False
    flags["independent"] = False
    try:
        devs = _jvp(function, means, [one.dev for one in moments])
    except RuntimeError:  # no forward derivative
        return None
    images = []
    for _ in range(SETTINGS.signs):
        points = [m + _random_step(one) for m, one in zip(means, moments, strict=True)]
        images.append(function(*points))
    results = []
    for i, (zero, dev) in enumerate(zip(zeros, devs, strict=True)):
        var = torch.stack([(image[i] - zero) ** 2 for image in images]).mean(0)
        results.append(Value(RandomTensor(zero, var, dev, **flags)))
    return results


def _jvp(
    function: Callable[..., Any], points: list[Tensor], tangents: list[Tensor]
) -> Any:
    """Return the derivative in a direction."""
    with warnings.catch_warnings():  # torch scripts internal functions at the first use
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.jvp(function, tuple(points), tuple(tangents))[1]


def _random_step(x: RandomTensor) -> Tensor:
    return x.var.clamp(min=0).sqrt() * random_signs(x.var)


def _by_samples(
    run: Propagation,
    function: Callable[..., Any],
    given: list[Value],
    moments: list[RandomTensor],
    at_means: tuple[Tensor, ...],
    places: list[int],
) -> list[Any]:
    """Return the share of the mean slope that fits samples best, and a source for the rest."""
    means = [one.mean for one in moments]
    count = SETTINGS.local_samples
    steps = [
        [_local_step(v, m) for v, m in zip(given, moments, strict=True)]
        for _ in range(count)
    ]
    points = [[m + s for m, s in zip(means, step, strict=True)] for step in steps]

    def floats(*xs: Tensor) -> tuple[Tensor, ...]:
        found = function(*xs)
        return tuple(found[i] for i in places)

    def mean_slope(tangents: list[Tensor]) -> list[Tensor]:
        found = [_jvp(floats, x, tangents) for x in points[: SETTINGS.local_slopes]]
        return [torch.stack(parts).mean(0) for parts in zip(*found, strict=True)]

    try:
        sampled = [
            torch.stack(parts)
            for parts in zip(*(floats(*x) for x in points), strict=True)
        ]
        lines = [
            torch.stack(parts) for parts in zip(*map(mean_slope, steps), strict=True)
        ]
        devs = mean_slope([one.dev for one in moments])
    except RuntimeError as error:
        raise UnsupportedError(f"no derivative: {str(error)[:60]}") from error
    flags = combined_flags(moments)
    flags |= {"exact": False, "known": False, "independent": False}
    results: list[Any] = [None] * len(at_means)
    for i, y, line, dev in zip(places, sampled, lines, devs, strict=True):
        mean = y.mean(0)
        squares = (line * line).sum(0).clamp(min=torch.finfo(y.dtype).tiny)
        share = (line * (y - mean)).sum(0) / squares
        rest = (y - mean - share * line).detach()
        own = run.source(
            torch.full((count, *rest.shape[1:2]), 1 / count).to(rest), rest=True
        )
        pad = [1] * (rest.ndim - own.ndim)
        dev = share.detach() * dev + (rest * own.reshape(*own.shape, *pad)).sum(0)
        results[i] = Value(RandomTensor(mean, y.var(0), dev, **flags))
    return results


def _local_step(value: Value, found: RandomTensor) -> Tensor:
    """Sample a deviation, from the law of the root if there is one."""
    law = value.root.law
    if law is None or value.shape != value.root.mean.shape:
        return found.var.clamp(min=0).sqrt() * torch.randn_like(found.var)
    picked = torch.multinomial(
        law.weights.float(), value.root.mean.numel(), replacement=True
    )
    nodes = law.nodes.to(found.mean)[picked.to(law.nodes.device)]
    return value.at(nodes.reshape(value.shape), {}) - found.mean
