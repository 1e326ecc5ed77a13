"""Which rule is used for which ATen operation, which may be called exact, and what has no rule.

An operation without a rule is tested for linearity numerically; others have a few local samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import UnsupportedError, aten, map_tree, op_info
from overt.nn.moments.values import (
    SETTINGS,
    Propagation,
    RandomTensor,
    Value,
    random_signs,
)

Rule = Callable[[Propagation, Any, Any, Any], Any]

RULES: dict[Any, Rule] = {}

_EXACT = """
    _adaptive_avg_pool2d _to_copy _unsafe_view abs add addmm avg_pool2d baddbmm bernoulli bmm cat
    celu clamp clone col2im constant_pad_nd convolution copy cos cumsum detach diag_embed diagonal
    div dot elu embedding erf exp expand fill flip gather ge gelu gt hardsigmoid hardswish hardtanh
    im2col index index_add index_copy index_put index_select le leaky_relu log1p lt mask masked_fill
    masked_scatter mean mish mm mul mv native_batch_norm neg permute
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
    """Return the flags of an affine function of several random tensors.

    Sources that are functions of the same noise count as uncorrelated, which they need not be; a
    product of independent deviations is uncorrelated with whatever is affine in the noise.
    """
    noises = frozenset().union(*(one.noises for one in given))
    disjoint = len(noises) == sum(len(one.noises) for one in given)
    derived = max(one.derived for one in given)
    simple = derived < 2 and sum(one.derived for one in given) < 2
    return {
        "noises": noises,
        "exact": all(one.exact for one in given) and (disjoint or simple),
        "known": all(one.known for one in given) and disjoint,
        "independent": all(one.independent for one in given) and disjoint,
        "derived": derived,
    }


# -- operations without a rule -------------------------------------------------------------------

Tensors = tuple[Tensor, ...]


def unknown_operation(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the moments of any differentiable operation: linear numerically, or by samples."""
    given = list(dict.fromkeys(find_values((args, kwargs))))
    moments = [value.moments(run) for value in given]
    means = tuple(one.mean for one in moments)

    def call(points: Tensors) -> Any:
        at = dict(zip(given, points, strict=True))

        def pick(leaf: Any) -> Any:
            return at[leaf] if isinstance(leaf, Value) else leaf

        return func(*map_tree(tuple(args), pick), **map_tree(kwargs, pick))

    out = call(means)
    several = isinstance(out, (tuple, list))
    results = list(out) if several else [out]
    if any(t.is_complex() for t in results):
        raise UnsupportedError(f"{op_info(func).name} is complex")
    places = [i for i, t in enumerate(results) if t.is_floating_point()]

    def function(*points: Tensor) -> Tensors:
        found = call(points)
        return tuple(found[i] for i in places) if several else (found,)

    # Indices and comparisons are refused where they are used.
    results = [None] * len(results)
    if places:
        try:
            found = _if_linear(function, means, moments)
            if found is None:
                run.unknown[op_info(func).name] = None
                found = _by_samples(run, function, given, means, moments)
        except RuntimeError as error:
            raise UnsupportedError(f"no derivative: {str(error)[:60]}") from error
        flags = combined_flags(moments) | {"known": False, "independent": False}
        for i, (mean, var, dev, exact) in zip(places, found, strict=True):
            flags["exact"] &= exact
            results[i] = Value(RandomTensor(mean, var, dev, **flags))
    return results if several else results[0]


def _jvp(function: Callable[..., Tensors], points: Tensors, tangents: Any) -> Tensors:
    """Return the derivative in a direction."""
    with warnings.catch_warnings():  # torch scripts internal functions at the first use
        warnings.simplefilter("ignore", DeprecationWarning)
        slopes: Tensors = torch.func.jvp(function, points, tuple(tangents))[1]
        return slopes


def _if_linear(
    function: Callable[..., Tensors], means: Tensors, moments: list[RandomTensor]
) -> list[Any] | None:
    """Return the image under an operation that is affine numerically, None if it is not."""
    start = function(*means)

    def moved(steps: list[Tensor]) -> list[Tensor]:
        found = function(*(m + step for m, step in zip(means, steps, strict=True)))
        return [a - b for a, b in zip(found, start, strict=True)]

    for scale in (1.0, 4.0):
        one, other = (
            [scale * torch.randn_like(m) * (1 + m.abs()) for m in means] for _ in "ab"
        )
        both = [a - 2 * b for a, b in zip(one, other, strict=True)]
        for a, b, c in zip(moved(one), moved(other), moved(both), strict=True):
            size = 1e-5 * (a.abs() + b.abs()).detach().amax()
            if not bool((a - 2 * b - c).abs().amax() <= size):
                return None
    squares: Any = [0.0] * len(start)
    for _ in range(SETTINGS.signs):
        steps = [x.var.clamp(min=0).sqrt() * random_signs(x.var) for x in moments]
        pairs = zip(squares, moved(steps), strict=True)
        squares = [v + t * t / SETTINGS.signs for v, t in pairs]
    devs = moved([one.dev for one in moments])
    return [(*found, True) for found in zip(start, squares, devs, strict=True)]


def _by_samples(
    run: Propagation,
    function: Callable[..., Tensors],
    given: list[Value],
    means: Tensors,
    moments: list[RandomTensor],
) -> list[Any]:
    """Return the share of the mean slope that fits local samples best, and a source for the rest.

    What the slope leaves depends on itself across entries: it is a sum of the samples' residuals
    times independent numbers, one for each index of the first axis.
    """
    count = SETTINGS.local_samples
    points = []
    for _ in range(count):
        roots = {value.root: _sample_root(value.root) for value in given}
        cache: dict[Value, Tensor] = {}
        points.append(
            tuple(
                value.at(roots, cache).to(mean.dtype).expand(mean.shape)
                for value, mean in zip(given, means, strict=True)
            )
        )

    def mean_slope(tangents: list[Tensor]) -> list[Tensor]:
        found = [_jvp(function, at, tangents) for at in points[: SETTINGS.local_slopes]]
        return [torch.stack(parts).mean(0) for parts in zip(*found, strict=True)]

    sampled = [function(*at) for at in points]
    lines = [
        mean_slope([p - m for p, m in zip(at, means, strict=True)]) for at in points
    ]
    devs = mean_slope([one.dev for one in moments])
    results = []
    for i, dev in enumerate(devs):
        y = torch.stack([parts[i] for parts in sampled])
        line = torch.stack([parts[i] for parts in lines])
        mean = y.mean(0)
        squares = (line * line).sum(0).clamp(min=torch.finfo(y.dtype).tiny)
        share = ((line * (y - mean)).sum(0) / squares).detach()
        rest = (y - mean - share * line).detach()
        weights = torch.full((count, *rest.shape[1:2]), 1 / count).to(rest)
        own = run.source(weights, rest=True)
        own = own.reshape(*own.shape, *[1] * (rest.ndim - own.ndim))
        results.append((mean, y.var(0), share * dev + (rest * own).sum(0), False))
    return results


def _sample_root(root: RandomTensor) -> Tensor:
    if root.law is None:
        return root.mean + root.var.clamp(min=0).sqrt() * torch.randn_like(root.mean)
    picked = torch.multinomial(root.law.weights.float(), root.mean.numel(), True)
    return root.law.nodes.to(root.mean)[picked.to(root.mean.device)].reshape(
        root.mean.shape
    )
