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

Rule = Callable[..., Any]
"""Called with the pass, the operation and its arguments."""

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


def register(names: str, function: Rule) -> None:
    """Use a function as the rule of these operations; not every version of torch has all."""
    for name in names.split():
        if hasattr(aten, name):
            RULES[getattr(aten, name)] = function


def rule(names: str) -> Callable[[Rule], Rule]:
    """Use a function as the rule of these operations where their first argument is random."""

    def decorate(function: Rule) -> Rule:
        def guarded(run: Propagation, func: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = function if isinstance(args[0], Value) else unknown_operation
            return chosen(run, func, *args, **kwargs)

        register(names, guarded)
        return function

    return decorate


def find_values(tree: Any) -> list[Value]:
    """Return the random arguments among nested ones; lists of sizes hold none."""
    found: list[Value] = []
    for item in tree:
        if isinstance(item, Value):
            found.append(item)
        elif isinstance(item, (list, tuple)) and item and type(item[0]) is not int:
            found += find_values(item)
    return found


def broadcast_shape(args: Any, kwargs: Any) -> Any:
    """Return the shape of an entrywise function of flat arguments."""
    shapes = {t.shape for t in (*args, *kwargs.values()) if hasattr(t, "shape")}
    # torch is slow to find out that all agree.
    return shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)


def combined_flags(given: list[RandomTensor]) -> dict[str, Any]:
    """Return the flags of an affine function of several random tensors.

    Sources that are functions of the same noise count as uncorrelated, which they need not be; a
    product of independent deviations is uncorrelated with whatever is affine in the noise.
    """
    if len(given) == 1:  # most calls
        names = ("noises", "exact", "known", "independent", "derived")
        return {name: getattr(given[0], name) for name in names}
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

Function = Callable[[list[Tensor]], Tensor]


def unknown_operation(run: Propagation, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the moments of any differentiable operation: linear numerically, or by samples."""
    given = list(dict.fromkeys(find_values((*args, *kwargs.values()))))

    def call(points: list[Tensor]) -> Any:
        at = dict(zip(given, points, strict=True))

        def pick(leaf: Any) -> Any:
            return at[leaf] if isinstance(leaf, Value) else leaf

        return func(*map_tree(args, pick), **map_tree(kwargs, pick))

    name = op_info(func).name
    out = call([value.moments(run).mean for value in given])
    if isinstance(out, Tensor):
        return _moments_of(run, name, call, given, out)

    def result(i: int) -> Function:
        return lambda points: call(points)[i]

    return [_moments_of(run, name, result(i), given, t) for i, t in enumerate(out)]


def _moments_of(
    run: Propagation, name: str, function: Function, given: list[Value], start: Tensor
) -> Value | None:
    """Return the moments of one result, `start` at the means; None if it holds no numbers."""
    if start.is_complex():
        raise UnsupportedError(f"{name} is complex")
    if not start.is_floating_point():  # indices: refused where they are used
        return None
    moments = [value.moments(run) for value in given]
    flags = combined_flags(moments) | {"known": False, "independent": False}
    try:
        found = _if_linear(function, moments, start)
        if found is None:
            run.unknown[name] = None
            flags["exact"] = False
            found = _by_samples(run, function, given, moments)
    except RuntimeError as error:
        raise UnsupportedError(f"no derivative: {str(error)[:60]}") from error
    return Value(RandomTensor(*found, **flags))


def _if_linear(
    function: Function, moments: list[RandomTensor], start: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the image under an operation that is affine numerically, None if it is not."""

    def moved(steps: list[Tensor]) -> Tensor:
        pairs = zip(moments, steps, strict=True)
        return function([x.mean + step for x, step in pairs]) - start

    for scale in (1.0, 4.0):
        one, other = (
            [scale * torch.randn_like(x.mean) * (1 + x.mean.abs()) for x in moments]
            for _ in range(2)
        )
        both = moved([s - 2 * t for s, t in zip(one, other, strict=True)])
        a, b = moved(one), moved(other)
        if not bool(
            (a - 2 * b - both).abs().amax() <= 1e-5 * (a.abs() + b.abs()).amax()
        ):
            return None
    squares = [
        moved([x.var.clamp(min=0).sqrt() * random_signs(x.var) for x in moments]) ** 2
        for _ in range(SETTINGS.signs)
    ]
    return start, torch.stack(squares).mean(0), moved([x.dev for x in moments])


def _by_samples(
    run: Propagation,
    function: Function,
    given: list[Value],
    moments: list[RandomTensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the share of the mean slope that fits local samples best, and a source for the rest.

    What the slope leaves depends on itself across entries: it is a sum of the samples' residuals
    times independent numbers, one for each index of the first axis.
    """
    count = SETTINGS.local_samples
    points = []
    for _ in range(count):
        roots = {value.root: _sample_root(value.root) for value in given}
        at = [value.at(roots, {}) for value in given]
        pairs = zip(at, moments, strict=True)
        points.append([t.to(x.mean).expand(x.mean.shape) for t, x in pairs])

    def mean_slope(tangents: list[Tensor]) -> Tensor:
        with warnings.catch_warnings():  # torch scripts functions at the first use
            warnings.simplefilter("ignore", DeprecationWarning)
            slopes = [
                torch.func.jvp(function, (at,), (tangents,))[1]
                for at in points[: SETTINGS.local_slopes]
            ]
        return torch.stack(slopes).mean(0)

    y = torch.stack([function(at) for at in points])
    lines = []
    for at in points:
        pairs = zip(at, moments, strict=True)
        lines.append(mean_slope([t - x.mean for t, x in pairs]))
    line = torch.stack(lines)
    mean = y.mean(0)
    squares = (line * line).sum(0).clamp(min=torch.finfo(y.dtype).tiny)
    share = ((line * (y - mean)).sum(0) / squares).detach()
    rest = (y - mean - share * line).detach()
    own = run.source(
        torch.full((count, *rest.shape[1:2]), 1 / count).to(rest), rest=True
    )
    own = own.reshape(*own.shape, *[1] * (rest.ndim - own.ndim))
    dev = share * mean_slope([x.dev for x in moments]) + (rest * own).sum(0)
    return mean, y.var(0), dev


def _sample_root(root: RandomTensor) -> Tensor:
    if root.law is None:
        return root.mean + root.var.clamp(min=0).sqrt() * torch.randn_like(root.mean)
    nodes = root.law.nodes.to(root.mean)
    if nodes.ndim > 1:  # a coin for each entry
        shown = torch.rand_like(root.mean) < root.law.weights[1]
        return torch.where(shown, nodes[1], nodes[0])
    picked = torch.multinomial(root.law.weights.float(), root.mean.numel(), True)
    return nodes[picked.to(nodes.device)].reshape(root.mean.shape)
