"""Operations on several entries at once: softmax, normalization, pooling by maxima."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.graph.record import UnsupportedError, aten, op_info
from overt.nn.moments.linear_rules import add, linear, multiply
from overt.nn.moments.registry import rule, unknown_operation
from overt.nn.moments.values import SETTINGS, Derived, Propagation, RandomTensor, Value

MAX_LOGIT_DEVIATION = 3.0
"""Standard deviation of logits, weighted by probability, beyond which a softmax is sampled.

The second-order mean of a softmax is off by a tenth of a standard deviation at 1, and useless at
3; random masks of -1e9 before a softmax are far beyond."""


@rule("logsumexp")
def logsumexp(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Second-order mean, first-order deviation p't."""
    x = args[0].moments(run)
    dims = args[1]
    keepdim = len(args) > 2 and args[2]
    mean = torch.logsumexp(x.mean, dims, keepdim=True)
    p = torch.exp(x.mean - mean)
    _check_logits(run, p, x.var, dims)
    if not keepdim:
        mean = mean.squeeze(dims)
    mean = mean + (p * (1 - p) * x.var).sum(dims, keepdim=keepdim) / 2
    dev = (run.fixed(p) * x.dev).sum(dims, keepdim=keepdim)
    var = (p * p * x.var).sum(dims, keepdim=keepdim)
    return Value(x.approximated(mean=mean, var=var, dev=dev, independent=False))


@rule("_softmax", "_log_softmax", "_safe_softmax")
def softmax(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Second-order mean for independent logits, first-order deviation p (t - p't)."""
    x = args[0].moments(run)
    dim = args[1]
    finite = torch.isfinite(x.mean)  # masked positions are -inf
    p = torch.nan_to_num(torch.softmax(x.mean, dim))
    v = torch.where(finite, x.var, 0.0)
    _check_logits(run, p, v, dim)
    pv = (p * v).sum(dim, keepdim=True)
    ppv = (p * p * v).sum(dim, keepdim=True)
    single = (1 - 2 * p) * v
    q = run.fixed(p)
    dev = torch.where(finite, x.dev, 0.0)
    dev = dev - (q * dev).sum(dim, keepdim=True)
    # Relative to its value, an entry is exp(a) with a of variance u; a^2 / 2 is left out.
    u = (single + ppv).clamp(min=0).detach()
    if func.overloadpacket is aten._log_softmax:
        mean = torch.log_softmax(x.mean, dim) - (pv - ppv) / 2
        var = single + ppv
        dev = run.doubt(dev, ((pv - ppv) ** 2).detach().expand(u.shape) / 2)
    else:
        mean = p + p * (single - pv + 2 * ppv) / 2
        var = p * p * (single + ppv)
        dev = run.doubt(q * dev, (p * u).detach() ** 2 / 2)
    return Value(
        x.approximated(mean=mean, var=var.clamp(min=0), dev=dev, independent=False)
    )


def _check_logits(run: Propagation, p: Tensor, var: Tensor, dim: Any) -> None:
    """Refuse noise on logits that a second-order expansion cannot follow."""
    if run.sampled:
        return
    with torch.no_grad():
        weighted = (p * (1 - p) * var).sum(dim)
        heaviest = float(var.amax()) if var.numel() else 0.0
        if heaviest > 100 * MAX_LOGIT_DEVIATION**2:
            raise UnsupportedError(
                "random masks before a softmax are too large to be propagated"
            )
        typical = weighted.mean().sqrt() if weighted.numel() else weighted.sum()
        if float(typical) > MAX_LOGIT_DEVIATION:
            raise UnsupportedError(
                "noise before a softmax is too strong to be propagated"
            )


def standardize(
    run: Propagation,
    x: RandomTensor,
    dims: tuple[int, ...],
    eps: float,
    *,
    center: bool,
) -> Value:
    """u = (x - mean x) r, with the expected mean square in r; Jacobian r (I - 1/d - u u'/d)."""
    d = math.prod(x.mean.shape[i] for i in dims)
    c = float(center)

    def average(t: Tensor) -> Tensor:
        return t.mean(dims, keepdim=True)

    m = x.mean
    if center:
        m = m - average(m)
    v = x.var
    square = average(m * m + v * (1 - c / d)) + eps
    r = torch.rsqrt(square)
    u = m * r
    w = run.fixed(u)
    t = x.dev - average(x.dev) if center else x.dev
    dev = run.fixed(r) * (t - w * average(w * t))
    with run.variance_mode():
        var = v * (1 - 2 * c / d) + u * u * (average(v * u * u) - 2 * v) / d
        if center:
            var = var + average(v) / d + 2 / d * u * average(v * u)
        var = var.clamp(min=0) * r * r
    if not run.sampled:
        with torch.no_grad():  # how much the mean square fluctuates, relative to itself
            fluctuation = (average(4 * m * m * v + 2 * v * v) / d).clamp(
                min=0
            ).sqrt() / square
            left_out = fluctuation**2 * (var + u * u * fluctuation**2) / 4
        dev = run.doubt(dev, left_out)
    return Value(x.approximated(mean=u, var=var, dev=dev, independent=False))


def _scale_and_shift(
    run: Propagation, x: Value, weight: Any, bias: Any, shape: Any = None
) -> Value:
    if shape is not None:
        weight = weight.reshape(shape) if isinstance(weight, Tensor) else weight
        bias = bias.reshape(shape) if isinstance(bias, Tensor) else bias
    if weight is not None:
        x = multiply(run, x, weight)
    return x if bias is None else add(run, x, bias)


def _per_channel(x: Value) -> tuple[int, ...]:
    return (-1, *[1] * (len(x.shape) - 2))


@rule("native_layer_norm", "_fused_rms_norm")
def layer_norm(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """LayerNorm and RMSNorm."""
    if not isinstance(args[0], Value):
        return unknown_operation(run, func, args, kwargs)
    center = func.overloadpacket is aten.native_layer_norm
    x, shape, weight, *more = args
    bias, eps = more if center else (None, *more)
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    dims = tuple(range(-len(shape), 0))
    out = standardize(run, x.moments(run), dims, eps, center=center)
    return [_scale_and_shift(run, out, weight, bias)]


@rule("native_group_norm")
def group_norm(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """GroupNorm: LayerNorm of each group."""
    if not isinstance(args[0], Value):
        return unknown_operation(run, func, args, kwargs)
    x, weight, bias, n, _, _, groups, eps = args
    shape = list(x.shape)
    contiguous = {"memory_format": torch.contiguous_format}
    dense = linear(run, aten.clone.default, (x,), contiguous)
    split = linear(run, aten.view.default, (dense, [n, groups, -1]), {})
    out = standardize(run, split.moments(run), (-1,), eps, center=True)
    out = linear(run, aten.view.default, (out, shape), {})
    return [_scale_and_shift(run, out, weight, bias, _per_channel(x))]


@rule(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional",
)
def batch_norm(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Affine by running statistics; by batch statistics, rows share all noise."""
    if not isinstance(args[0], Value):
        return unknown_operation(run, func, args, kwargs)
    x, weight, bias, center, spread, *more = args
    shape = _per_channel(x)
    uses_batch = (len(more) > 2 and more[0]) or spread is None
    if uses_batch:
        moments = x.moments(run)
        dims = tuple(i for i in range(moments.mean.ndim) if i != 1)
        out = standardize(run, moments, dims, more[-1], center=True)
        return [_scale_and_shift(run, out, weight, bias, shape)]
    scale = torch.rsqrt(spread + more[-1])
    if weight is not None:
        scale = scale * weight
    out = add(run, x, -center.reshape(shape))
    return [_scale_and_shift(run, out, scale, bias, shape)]


# -- pooling by maxima --------------------------------------------------------------------------


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Take the largest of independent normal entries (Clark); exact right after dropout."""
    axes = int(op_info(func).name[len("max_pool")])
    kernel, stride, padding, dilation, ceil_mode = _pooling_arguments(args, axes)
    small = math.prod(kernel) <= SETTINGS.max_window
    if any(d != 1 for d in dilation) or ceil_mode or not small:
        return unknown_operation(run, func, args, kwargs)
    value = args[0]
    x = value.moments(run)

    def windows(t: Tensor, outside: float = 0.0) -> Tensor:
        if any(padding):
            t = functional.pad(
                t, [n for n in reversed(padding) for _ in range(2)], value=outside
            )
        first = t.ndim - axes
        for axis in range(axes):
            t = t.unfold(first + axis, kernel[axis], stride[axis])
        return t.flatten(-axes)

    exact = _max_after_dropout(run, value, x, windows, kernel, stride, padding)
    if exact is not None:
        return [exact]
    far = float(x.mean.detach().abs().amax() + x.var.detach().amax().sqrt())
    m = windows(x.mean, -10 * far)
    v = windows(x.var)
    mean, slopes, var = largest_of_normals(m, v)
    rest = (var - (slopes * slopes * v).sum(-1)).clamp(min=0)
    dev = (run.fixed(slopes) * windows(x.dev)).sum(-1) + run.source(rest, rest=True)
    return [Value(x.approximated(mean=mean, var=var, dev=dev))]


def _pooling_arguments(
    args: Any, axes: int
) -> tuple[list[int], list[int], list[int], Any, bool]:
    full = (*args, *[None] * 6)

    def per_axis(value: Any, default: list[int]) -> list[int]:
        if not value:
            return default
        return list(value) * axes if len(value) == 1 else list(value)

    kernel = per_axis(full[1], [])
    stride = per_axis(full[2], kernel)
    return (
        kernel,
        stride,
        per_axis(full[3], [0] * axes),
        per_axis(full[4], [1] * axes),
        full[5],
    )


def _max_after_dropout(
    run: Propagation,
    value: Value,
    x: RandomTensor,
    windows: Any,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
) -> Value | None:
    """Return the exact maximum of entries after dropout, None where they are not."""
    root = value.root
    if root.law is None or not root.law.is_coin or not root.independent:
        return None
    overlap = any(s < k for s, k in zip(stride, kernel, strict=True))
    if overlap or any(padding) or value.shape != root.mean.shape:
        return None
    dropped, kept = (value.at(node.to(x.mean), {}) for node in root.law.nodes)
    if bool(dropped.any()):
        return None
    keep_prob = float(root.law.weights[1])
    mean, var = largest_kept(windows(kept.expand(x.mean.shape)), keep_prob)
    derived = x.derived | {Derived(x.noises)}
    return Value(
        replace(
            x,
            mean=mean,
            var=var,
            dev=run.source(var),
            law=None,
            product=None,
            derived=derived,
        )
    )


def largest_of_normals(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, slopes and variance of the largest on the last axis, one after the other."""
    tiny = torch.finfo(v.dtype).tiny
    a, var_a = m[..., 0], v[..., 0]
    ahead = []  # the probability that the largest so far stays the largest
    for i in range(1, m.shape[-1]):
        b, var_b = m[..., i], v[..., i]
        sd = (var_a + var_b).clamp(min=tiny).sqrt()
        z = (a - b) / sd
        phi = torch.exp(z * z * -0.5) * (2 * math.pi) ** -0.5
        P = torch.special.ndtr(z)
        above = sd * torch.addcmul(phi, z, P)  # E max(a, b) - b
        below = above - sd * z
        var_a = (
            P * (var_a + below**2)
            + (1 - P) * (var_b + above**2)
            - (below + above) * sd * phi
        )
        a, var_a = b + above, var_a.clamp(min=0)
        ahead.append(P)
    slopes = []
    later = torch.ones_like(a)
    for P in reversed(ahead):
        slopes.append(later * (1 - P))
        later = later * P
    return a, torch.stack([later, *reversed(slopes)], -1), var_a


def largest_kept(windows: Tensor, keep_prob: float) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the largest of entries after dropout, exactly."""
    count = windows.shape[-1]
    descending = windows.sort(-1, descending=True).values
    all_larger_dropped = (1 - keep_prob) ** torch.arange(
        count, dtype=windows.dtype, device=windows.device
    )
    positive = descending.clamp(min=0)
    # If all entries are negative, the largest is 0 unless none is dropped.
    negative = descending[..., 0].clamp(max=0)
    mean = (
        keep_prob * (positive * all_larger_dropped).sum(-1)
        + negative * keep_prob**count
    )
    square = keep_prob * (positive**2 * all_larger_dropped).sum(-1)
    square = square + negative**2 * keep_prob**count
    return mean, (square - mean**2).clamp(min=0)
