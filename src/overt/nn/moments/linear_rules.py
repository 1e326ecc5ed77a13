"""Affine maps: moving, selecting, joining and adding entries; averages; sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import aten, op_info, op_schema
from overt.nn.graph.replay import RERUN_AS, map_tree
from overt.nn.moments.backward import output_variances
from overt.nn.moments.registry import (
    RULES,
    combined_flags,
    find_values,
    rule,
    unknown_operation,
)
from overt.nn.moments.values import (
    SETTINGS,
    Derived,
    Propagation,
    RandomTensor,
    Value,
    random_signs,
)

_ONE_TO_ONE = """view _unsafe_view reshape permute transpose t squeeze unsqueeze slice select split
    split_with_sizes unsafe_split unbind cat stack clone _to_copy alias detach lift_fresh flip roll
    constant_pad_nd slice_scatter select_scatter copy fill masked_fill diagonal tril triu
    pixel_shuffle pixel_unshuffle channel_shuffle _reshape_alias narrow contiguous lift_fresh_copy
    chunk where masked_scatter view_as movedim zero"""
_REPEATING = """expand repeat index index_select gather upsample_nearest1d upsample_nearest2d
    upsample_nearest3d unfold as_strided im2col reflection_pad1d reflection_pad2d replication_pad1d
    replication_pad2d index_put index_copy scatter diag_embed embedding as_strided_scatter
    _pack_padded_sequence"""
_ADDING = "sum cumsum index_add scatter_add col2im trace"

ONE_TO_ONE = frozenset(_ONE_TO_ONE.split())
"""Operations that use each random entry at most once, so that independent entries stay so."""
ADDING = frozenset(_ADDING.split())
"""Operations that add entries: the variance of a sum is a sum only of independent entries'."""


def _is_number(argument: Any) -> bool:
    """Whether an argument is a number, a list of numbers, or nothing."""
    if isinstance(argument, (list, tuple)):
        return not argument or isinstance(argument[0], int)
    return argument is None or isinstance(argument, (int, float))


@cache
def _fill_position(func: Any) -> int | None:
    """Return the position of a number that an operation fills in, None if there is none."""
    for position, argument in enumerate(op_schema(func).arguments):
        if argument.name == "value" and "Tensor" not in str(argument.type):
            return position
    return None


def linear(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Apply the map to means; to variances and deviations with all constants set to 0."""
    if kwargs.get("alpha", 1) != 1:  # of index_add: the last tensor counts alpha times
        *head, source = args
        alpha = kwargs["alpha"]
        scaled = (
            multiply(run, source, alpha)
            if isinstance(source, Value)
            else source * alpha
        )
        return linear(run, func, (*head, scaled), {})
    given = [value.moments(run) for value in find_values((args, kwargs))]
    fill = _fill_position(func)
    function = RERUN_AS.get(func, func)

    alone = not kwargs and fill is None and isinstance(args[0], Value)
    alone = alone and all(_is_number(arg) for arg in args[1:])

    def apply_to(part: str) -> Any:
        if alone:  # views and the like: nothing else to replace
            return function(getattr(args[0].found, part), *args[1:])

        def pick(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return getattr(leaf.found, part)
            if part != "mean" and isinstance(leaf, Tensor) and leaf.is_floating_point():
                return torch.zeros_like(leaf)
            return leaf

        new_args = map_tree(tuple(args), pick)
        new_kwargs = map_tree(kwargs, pick)
        if part != "mean" and fill is not None:
            if fill < len(new_args):
                new_args = (*new_args[:fill], 0.0, *new_args[fill + 1 :])
            elif "value" in new_kwargs:
                new_kwargs["value"] = 0.0
        return function(*new_args, **new_kwargs)

    name = op_info(func).name
    flags = combined_flags(given)
    flags["independent"] &= name in ONE_TO_ONE
    accumulates = name == "index_put" and True in args[3:]
    if name in ADDING or accumulates:
        flags["known"] &= all(one.independent for one in given)
    with run.variance_mode():
        var = apply_to("var")
    return _assemble(apply_to("mean"), var, apply_to("dev"), flags)


def _assemble(mean: Any, var: Any, dev: Any, flags: dict[str, Any]) -> Any:
    if isinstance(mean, (tuple, list)):
        return [_assemble(*parts, flags) for parts in zip(mean, var, dev, strict=True)]
    if not mean.is_floating_point():  # such as the sizes of packed sequences
        return mean
    return Value(RandomTensor(mean, var, dev, **flags))


for _name in (*ONE_TO_ONE, *_REPEATING.split(), *ADDING):
    if hasattr(aten, _name):
        RULES[getattr(aten, _name)] = linear


# -- linear in the first argument ---------------------------------------------------------------


@rule(
    "mean",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "grid_sampler_2d",
)
def average(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Weighted averages of entries: Var = average of variances / n where all n weights agree."""
    if len(find_values((args, kwargs))) > 1 or not isinstance(args[0], Value):
        return unknown_operation(run, func, args, kwargs)
    x = args[0].moments(run)

    def apply_to(t: Tensor) -> Tensor:
        return func(t, *args[1:], **kwargs)

    mean = apply_to(x.mean)
    count = _window_size(op_info(func).name, x.mean, mean, args)
    var = _variance_by_signs(apply_to, x) if count is None else apply_to(x.var) / count
    return Value(
        replace(
            x,
            mean=mean,
            var=var,
            dev=apply_to(x.dev),
            law=None,
            product=None,
            known=x.known and x.independent and count is not None,
            independent=False,
        )
    )


def _window_size(name: str, x: Tensor, mean: Tensor, args: Any) -> float | None:
    """Return how many entries each average is over, None if that or their weights differ."""
    if name == "mean":
        return x.numel() / mean.numel()
    if name.startswith("avg_pool"):
        padding = args[3] if len(args) > 3 else ()
        ceil_mode = len(args) > 4 and args[4]
        divisor = args[6] if len(args) > 6 else None
        if any(padding) or ceil_mode or divisor is not None:
            return None
        axes = int(name[len("avg_pool")])
        kernel = list(args[1])
        return math.prod(kernel * axes if len(kernel) == 1 else kernel)
    if name.startswith("_adaptive"):
        sizes = zip(x.shape[-len(args[1]) :], args[1], strict=True)
        ratios = [n // size if n % size == 0 else None for n, size in sizes]
        return None if None in ratios else math.prod(r for r in ratios if r)
    return None


def _variance_by_signs(apply_to: Callable[[Tensor], Tensor], x: RandomTensor) -> Tensor:
    """Estimate the variances of a linear map; they only choose slopes further on."""
    sd = x.var.detach().clamp(min=0).sqrt()
    with torch.no_grad():
        images = [apply_to(sd * random_signs(sd)) ** 2 for _ in range(SETTINGS.signs)]
        return torch.stack(images).mean(0)


# -- sums and products --------------------------------------------------------------------------


def add(run: Propagation, a: Any, b: Any, scale: float = 1.0) -> Value:
    """Return a + scale * b, one or both of them random."""
    x = a.moments(run) if isinstance(a, Value) else None
    y = b.moments(run) if isinstance(b, Value) else None
    mean = torch.add(x.mean if x else a, y.mean if y else b, alpha=scale)
    given = [one for one in (x, y) if one is not None]
    flags = combined_flags(given)
    if x is not None and y is not None:
        var = torch.add(x.var, y.var, alpha=scale**2)
        dev = torch.add(x.dev, y.dev, alpha=scale)
    elif x is not None:
        var, dev = x.var, x.dev
    else:
        var, dev = given[0].var, given[0].dev
        if scale != 1:
            var, dev = scale * scale * var, scale * dev
    flags["independent"] &= all(one.mean.shape == mean.shape for one in given)
    if len(given) == 1 and given[0].mean.shape == mean.shape and dev is given[0].dev:
        flags["product"] = given[0].product  # a constant was added
    return Value(
        RandomTensor(mean, var.expand(mean.shape), dev.expand(mean.shape), **flags)
    )


def multiply(run: Propagation, a: Any, b: Any) -> Value:
    """Return a * b entry by entry; b may be a number."""
    return product(run, torch.mul, _as_factor(a), _as_factor(b))


def _as_factor(value: Any) -> Any:
    if isinstance(value, (Tensor, Value)):
        return value
    return torch.tensor(float(value), dtype=torch.float64)


def product(run: Propagation, f: Callable[[Any, Any], Tensor], a: Any, b: Any) -> Value:
    """f(a, b), linear in each.

    For independent x and y the deviation is f(t_x, E y) + f(E x, t_y) + f(t_x, t_y), of which the
    last is a separate source.
    """
    x = a.moments(run) if isinstance(a, Value) else None
    y = b.moments(run) if isinstance(b, Value) else None
    if x is None:
        return _scale(run, lambda s, t: f(t, s), y, a, entrywise=f is torch.mul)
    if y is None:
        return _scale(run, f, x, b, entrywise=f is torch.mul)
    entrywise = f is torch.mul
    if entrywise:
        x, y = _with_known_variance(run, x), _with_known_variance(run, y)
    flags = combined_flags([x, y])
    disjoint = not x.noises & y.noises
    mean = f(x.mean, y.mean)
    with run.variance_mode():
        both = f(x.var, y.var)
        var = both + f(x.mean**2, y.var) + f(x.var, y.mean**2)
    if not disjoint:
        mean = _with_shared_noise(run, f, x, y, mean, var)
    separate = [one.independent and one.mean.shape == mean.shape for one in (x, y)]
    exact = flags["exact"] and flags["known"] and disjoint
    exact &= any(separate) if entrywise else x.independent and y.independent
    p, q = run.fixed(x.mean), run.fixed(y.mean)
    if run.sampled:
        dev = f(x.dev, q + y.dev) + f(p, y.dev)
    else:
        # The last term counts as independent entries, which it need not be.
        both = run.source(both.expand(mean.shape), rest=not exact)
        dev = f(x.dev, q) + f(p, y.dev) + both
    derived = flags["derived"]
    if disjoint:
        derived |= {Derived(x.noises | y.noises, (x.noises, y.noises))}
    return Value(
        RandomTensor(
            mean,
            var.expand(mean.shape),
            dev,
            flags["noises"],
            exact=exact,
            known=exact,
            derived=derived,
            independent=entrywise and disjoint and all(separate),
        )
    )


def _with_known_variance(run: Propagation, x: RandomTensor) -> RandomTensor:
    """Work out the variances of few correlated entries, where that keeps a product exact."""
    units = x.mean.numel() / (len(x.mean) if x.mean.ndim else 1)
    if run.sampled or x.known or not x.exact or units > SETTINGS.max_units:
        return x
    var, _, _ = output_variances(x.dev, run.sources, graph=run.grad)
    return replace(x, var=var, known=True)


def _with_shared_noise(
    run: Propagation,
    f: Callable[[Any, Any], Tensor],
    x: RandomTensor,
    y: RandomTensor,
    mean: Tensor,
    var: Tensor,
) -> Tensor:
    """Return the mean of a product whose factors share noise, with E f(t_x, t_y) if it is known."""
    index = run.shared_count
    run.shared_count += 1
    if run.cross is not None:
        run.cross.append(f(x.dev, y.dev).detach())
    if run.corrections is None:
        _note_shared(run, f, x, y, var)
        return mean
    value, error = run.corrections[index]
    sd = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()
    run.note_shared_product((error / sd).clamp(max=9.9).mean()[None])
    return mean + value


def _note_shared(
    run: Propagation,
    f: Callable[[Any, Any], Tensor],
    x: RandomTensor,
    y: RandomTensor,
    var: Tensor,
) -> None:
    """Note how far the mean may be off because Cov(x, y) is left out, in standard deviations."""
    with torch.no_grad():
        most = f(x.var.clamp(min=0).sqrt(), y.var.clamp(min=0).sqrt()).abs()
        terms = (
            max(1.0, x.mean.numel() / max(1, most.numel()))
            if f is not torch.mul
            else 1.0
        )
        sd = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()
        run.note_shared_product(
            (most / math.sqrt(terms) / sd).clamp(max=9.9).mean()[None]
        )


def _scale(
    run: Propagation,
    f: Callable[[Any, Any], Tensor],
    x: Any,
    factor: Tensor,
    *,
    entrywise: bool,
) -> Value:
    """f(x, factor) for a certain factor."""
    if factor.dtype != x.mean.dtype and (
        factor.ndim == 0 or not factor.is_floating_point()
    ):
        factor = factor.to(x.mean.dtype)
    mean = f(x.mean, factor)
    with run.variance_mode():
        var = f(x.var, factor * factor)
    same_shape = mean.shape == x.mean.shape
    is_product = f is torch.matmul and x.mean.ndim == factor.ndim == 2
    return Value(
        replace(
            x,
            mean=mean,
            var=var,
            dev=f(x.dev, run.fixed(factor)),
            law=None,
            product=(x.var, factor) if is_product and x.independent else None,
            known=x.known and (x.independent or entrywise),
            independent=x.independent and entrywise and same_shape,
        )
    )


@rule("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv")
def matmul(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Matrix products, with or without a term that is added."""
    if len(args) == 2:
        return product(run, torch.matmul, *args)
    start, a, b = args
    alpha = kwargs.get("alpha", 1)
    beta = kwargs.get("beta", 1)
    random = bool(find_values((a, b)))
    made = product(run, torch.matmul, a, b) if random else torch.matmul(a, b)
    if alpha != 1:
        made = multiply(run, made, alpha) if random else made * alpha
    if beta == 0:
        return made
    return add(run, made, start, beta)


@rule("convolution")
def convolution(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Convolution: bilinear in input and kernel, plus a bias."""
    x, weight, bias, *rest = args

    def convolve(s: Tensor, t: Tensor) -> Tensor:
        return func(s, t, None, *rest)

    axes = len(rest[0])
    shape = [-1, *[1] * axes]
    if find_values((x, weight)):
        out: Any = product(run, convolve, x, weight)
    else:
        out = convolve(x, weight)
    if bias is None:
        return out
    if isinstance(bias, Value):
        bias = linear(run, aten.view.default, (bias, shape), {})
    else:
        bias = bias.reshape(shape)
    return add(run, out, bias)
