"""Affine maps: moving, selecting, joining and adding entries; averages; sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import (
    RERUN_AS,
    UnsupportedError,
    aten,
    map_tree,
    op_info,
    op_schema,
    tensors,
)
from overt.nn.moments.backward import output_variances
from overt.nn.moments.registry import (
    combined_flags,
    find_values,
    register,
    rule,
)
from overt.nn.moments.values import SETTINGS, Propagation, RandomTensor, Value

_ONE_TO_ONE = """view _unsafe_view reshape permute transpose t squeeze unsqueeze slice select split
    split_with_sizes unsafe_split unbind cat stack clone _to_copy alias detach lift_fresh flip roll
    constant_pad_nd slice_scatter select_scatter copy fill masked_fill diagonal tril triu
    pixel_shuffle pixel_unshuffle channel_shuffle _reshape_alias narrow contiguous lift_fresh_copy
    chunk where masked_scatter view_as movedim zero to
    tensor_split"""
_REPEATING = """expand repeat index index_select gather upsample_nearest1d upsample_nearest2d
    upsample_nearest3d unfold as_strided im2col reflection_pad1d reflection_pad2d replication_pad1d
    replication_pad2d index_copy scatter diag_embed embedding as_strided_scatter
    _pack_padded_sequence index_put"""
_ADDING = "sum cumsum index_add scatter_add col2im trace"

ONE_TO_ONE = frozenset(_ONE_TO_ONE.split())
"""Operations that use each random entry at most once, so that independent entries stay so."""
ADDING = frozenset(_ADDING.split())
"""Operations that add entries: the variance of a sum is a sum only of independent entries'."""


@cache
def _fill_position(func: Any) -> int | None:
    """Return the position of a number that an operation fills in, None if there is none."""
    for position, argument in enumerate(op_schema(func).arguments):
        if argument.name == "value" and "Tensor" not in str(argument.type):
            return position
    return None


@cache
def _index_positions(func: Any) -> list[int]:
    """Return the positions of arguments that are places, not numbers."""
    names = [argument.name for argument in op_schema(func).arguments]
    return [i for i, name in enumerate(names) if name in ("index", "indices", "mask")]


def refuse_random_places(func: Any, args: Any) -> None:
    """Raise an error where the random numbers of some argument are places."""
    places = [args[i] for i in _index_positions(func) if i < len(args)]
    if find_values(places):
        raise UnsupportedError(f"{op_info(func).name} uses random numbers as places")


def linear(run: Propagation, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply the map to means; to variances and deviations with all constants set to 0."""
    name = op_info(func).name
    if name in ("view", "_unsafe_view", "expand"):
        if isinstance(args[1], torch.dtype):
            raise UnsupportedError("bits of random numbers are read as other numbers")
        if [*args[1]] == [*args[0].shape]:
            return args[0]  # which stays a function of its root
    values = find_values((*args, *kwargs.values()))
    given = [value.moments(run) for value in values]
    fill = _fill_position(func)
    function = RERUN_AS.get(func, func)
    # Most calls are views: they have nothing to replace but their first argument.
    is_view = args[0] is values[0] and len(values) == 1 and fill is None
    is_view = is_view and not (kwargs or tensors(args))

    def apply_to(part: str) -> Any:
        if is_view:
            return function(getattr(given[0], part), *args[1:])

        def pick(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return getattr(leaf.found, part)
            if part != "mean" and isinstance(leaf, Tensor) and leaf.is_floating_point():
                return torch.zeros_like(leaf)
            return leaf

        new_args = [map_tree(item, pick) for item in args]
        new_kwargs = map_tree(kwargs, pick)
        if part != "mean" and fill is not None:
            if fill < len(new_args):
                new_args[fill] = 0.0
            elif "value" in new_kwargs:
                new_kwargs["value"] = 0.0
        if part == "var" and "alpha" in kwargs:  # of index_add
            new_kwargs["alpha"] = kwargs["alpha"] ** 2
        return function(*new_args, **new_kwargs)

    flags = combined_flags(given)
    flags["independent"] &= name in ONE_TO_ONE
    if name in ADDING or (name == "index_put" and True in args[3:]):
        flags["known"] &= all(one.independent for one in given)
    mean = apply_to("mean")
    with run.variance_mode():
        var = apply_to("var")
    dev = apply_to("dev")
    if isinstance(mean, Tensor):
        return Value(RandomTensor(mean, var, dev, **flags))
    results = []
    for parts in zip(mean, var, dev, strict=True):
        if parts[0].is_floating_point():
            results.append(Value(RandomTensor(*parts, **flags)))
        else:  # the sizes of packed sequences
            results.append(parts[0])
    return results


register(f"{_ONE_TO_ONE} {_REPEATING} {_ADDING}", linear)


@rule("mean avg_pool2d avg_pool3d")
def average(
    run: Propagation, func: Any, value: Value, *sizes: Any, **dtype: Any
) -> Any:
    """Averages over n entries: the variance is that of a sum, divided by n twice."""
    x = value.moments(run)
    mean, var, dev = (func(t, *sizes, **dtype) for t in (x.mean, x.var, x.dev))
    n = x.mean.numel() / max(mean.numel(), 1)
    if op_info(func).name != "mean":
        axes = int(op_info(func).name[len("avg_pool")])
        n = math.prod(sizes[0]) ** (axes // len(sizes[0]))
    # With more arguments windows at the border are smaller.
    known = x.known and x.independent and len(sizes) <= 3
    changes = {"known": known, "independent": False}
    return Value(x.changed(mean=mean, var=var / n, dev=dev, **changes))


# -- sums and products --------------------------------------------------------------------------


def add(run: Propagation, a: Any, b: Any, scale: float = 1.0) -> Any:
    """Return a + scale * b."""
    if not isinstance(b, Value):
        return _shift(run, a, b if scale == 1 else scale * b)
    if scale != 1:
        b = multiply(run, b, scale)
    if not isinstance(a, Value):
        return _shift(run, b, a)
    x = a.moments(run)
    y = b.moments(run)
    flags = combined_flags([x, y])
    flags["independent"] &= x.mean.shape == y.mean.shape
    sums = (x.mean + y.mean, x.var + y.var, x.dev + y.dev)
    return Value(RandomTensor(*sums, **flags))


def _shift(run: Propagation, value: Value, constant: Any) -> Value:
    x = value.moments(run)
    mean = x.mean + constant
    if mean.shape == x.mean.shape:
        return Value(x.changed(mean=mean, product=x.product))
    var = x.var.expand(mean.shape)
    dev = x.dev.expand(mean.shape)
    return Value(x.changed(mean=mean, var=var, dev=dev, independent=False))


def multiply(run: Propagation, a: Any, b: Any) -> Any:
    """Return a * b entry by entry; b may be a number."""
    if isinstance(b, (Tensor, Value)):
        return product(run, torch.mul, a, b)
    x = a.moments(run)
    return Value(x.changed(mean=x.mean * b, var=x.var * b**2, dev=x.dev * b))


def product(run: Propagation, f: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Any:
    """f(a, b), linear in each.

    For independent x and y the deviation is f(t_x, E y) + f(E x, t_y) + f(t_x, t_y), of which the
    last is a separate source.
    """
    entrywise = f is torch.mul
    if not isinstance(a, Value):
        if not isinstance(b, Value):
            return f(a, b)
        return _scale(run, lambda s, t: f(t, s), b.moments(run), a, entrywise)
    if not isinstance(b, Value):
        return _scale(run, f, a.moments(run), b, entrywise)
    x = a.moments(run)
    y = b.moments(run)
    if entrywise:
        x = _with_known_variance(run, x)
        y = _with_known_variance(run, y)
    flags = combined_flags([x, y])
    disjoint = not x.noises & y.noises
    mean = f(x.mean, y.mean)
    with run.variance_mode():
        both = f(x.var, y.var)
        var = both + f(x.mean**2, y.var) + f(x.var, y.mean**2)
    if not disjoint:
        mean = mean + _shared_mean(run, f, x, y, var)
    separate = [one.independent and one.mean.shape == mean.shape for one in (x, y)]
    exact = flags["exact"] and flags["known"] and disjoint
    exact &= any(separate) if entrywise else x.independent and y.independent
    p = run.fixed(x.mean)
    q = run.fixed(y.mean)
    if run.sampled:
        dev = f(x.dev, q + y.dev) + f(p, y.dev)
    else:
        # The last term counts as independent entries, which it need not be.
        both = run.source(both.expand(mean.shape), rest=not exact)
        dev = f(x.dev, q) + f(p, y.dev) + both
    flags["exact"] = flags["known"] = exact
    flags["derived"] = max(1, flags["derived"])
    flags["independent"] = entrywise and disjoint and all(separate)
    return Value(RandomTensor(mean, var.expand(mean.shape), dev, **flags))


def _with_known_variance(run: Propagation, x: RandomTensor) -> RandomTensor:
    """Work out the variances of few correlated entries, where that keeps a product exact."""
    if run.sampled or x.known or not x.exact or x.units > SETTINGS.max_units:
        return x
    var = output_variances(x.dev, run.sources, graph=run.grad).total
    return replace(x, var=var, known=True)


def _shared_mean(
    run: Propagation,
    f: Callable[[Any, Any], Tensor],
    x: RandomTensor,
    y: RandomTensor,
    var: Tensor,
) -> Tensor | float:
    """Return E f(t_x, t_y) of factors that share noise, 0 if it is not known; note its error."""
    if run.cross is not None:
        run.cross.append(f(x.dev, y.dev).detach())
    if run.sampled:
        return 0.0
    value: Tensor | float = 0.0
    if run.corrections is not None:
        value, error = next(run.corrections)
    else:
        with torch.no_grad():  # at most sd_x sd_y for each term of a sum
            error = f(x.var.clamp(min=0).sqrt(), y.var.clamp(min=0).sqrt()).abs()
            error = error / math.sqrt(max(1.0, x.mean.numel() / max(1, error.numel())))
    sd = var.detach().clamp(min=torch.finfo(var.dtype).tiny).sqrt()
    share = float((error / sd).clamp(max=9.9).mean().nan_to_num(9.9))
    run.shared = max(run.shared, share)
    return value


def _scale(
    run: Propagation,
    f: Callable[[Any, Any], Tensor],
    x: RandomTensor,
    factor: Tensor,
    entrywise: bool,
) -> Value:
    """f(x, factor) for a certain factor."""
    if factor.ndim == 0 or not factor.is_floating_point():
        factor = factor.to(x.mean.dtype)
    mean = f(x.mean, factor)
    with run.variance_mode():
        var = f(x.var, factor * factor)
    dev = f(x.dev, run.fixed(factor))
    changes: dict[str, Any] = {"mean": mean, "var": var, "dev": dev}
    if not entrywise:
        changes["known"] = x.known and x.independent
    changes["independent"] = x.independent and entrywise and mean.shape == x.mean.shape
    if f is torch.matmul and x.mean.ndim == factor.ndim == 2 and x.independent:
        changes["product"] = (x.var, factor)
    return Value(x.changed(**changes))


def matmul(run: Propagation, func: Any, *args: Any, **factors: Any) -> Any:
    """Matrix products, with or without a term that is added."""
    *start, a, b = args
    made = product(run, torch.matmul, a, b)
    alpha = factors.get("alpha", 1)
    beta = factors.get("beta", 1)
    if alpha != 1:
        made = multiply(run, made, alpha)
    return add(run, made, start[0], beta) if start and beta else made


def convolution(
    run: Propagation, func: Any, x: Any, weight: Any, bias: Any, *rest: Any
) -> Any:
    """Convolution: bilinear in input and kernel, plus a bias."""

    def convolve(s: Tensor, t: Tensor) -> Tensor:
        return func(s, t, None, *rest)

    out = product(run, convolve, x, weight)
    if bias is None:
        return out
    shape = [-1, *[1] * len(rest[0])]
    if isinstance(bias, Value):
        bias = linear(run, aten.view.default, bias, shape)
    else:
        bias = bias.reshape(shape)
    return add(run, out, bias)


register("mm bmm mv dot addmm baddbmm addmv", matmul)
register("convolution", convolution)
