"""Operations on several entries at once: softmax, normalization, pooling by maxima."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import UnsupportedError, aten, op_info
from overt.nn.moments.linear_rules import add, linear, windows
from overt.nn.moments.pointwise_rules import pointwise
from overt.nn.moments.registry import rule, unknown_operation
from overt.nn.moments.values import (
    SETTINGS,
    Points,
    Propagation,
    RandomTensor,
    Value,
)

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

    def total(t: Tensor) -> Tensor:
        return t.sum(dims, keepdim=keepdim)

    move = total(p * (1 - p) * x.var) / 2
    mean = (mean if keepdim else mean.squeeze(dims)) + move
    dev = run.doubt(total(run.fixed(p) * x.dev), 2 * move**2)
    var = total(p * p * x.var)
    return Value(x.approximated(mean=mean, var=var, dev=dev, independent=False))


@rule("_log_softmax")
def log_softmax(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """x - logsumexp(x)."""
    return add(run, args[0], logsumexp(run, func, (args[0], [args[1]], True), {}), -1.0)


@rule("_softmax _safe_softmax")
def softmax(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Second-order mean for independent logits, first-order deviation p (t - p't)."""
    x = args[0].moments(run)
    finite = torch.isfinite(x.mean)  # masked positions are -inf
    p = torch.nan_to_num(torch.softmax(x.mean, args[1]))
    v = torch.where(finite, x.var, 0.0)
    _check_logits(run, p, v, args[1])

    def total(t: Tensor) -> Tensor:
        return t.sum(args[1], keepdim=True)

    ppv = total(p * p * v)
    relative = (1 - 2 * p) * v + ppv
    mean = p + p * (relative - total(p * v) + ppv) / 2
    q = run.fixed(p)
    t = torch.where(finite, x.dev, 0.0)
    # Relative to its value, an entry is exp(a) with a of variance u; a^2 / 2 is left out.
    u = relative.clamp(min=0)
    dev = run.doubt(q * (t - total(q * t)), (p * u) ** 2 / 2)
    return Value(x.approximated(mean=mean, var=p * p * u, dev=dev, independent=False))


def _check_logits(run: Propagation, p: Tensor, var: Tensor, dim: Any) -> None:
    """Refuse noise on logits that a second-order expansion cannot follow."""
    if run.sampled or not var.numel():
        return
    typical = (p * (1 - p) * var).detach().sum(dim).mean()
    if float(var.detach().amax()) > 100 * MAX_LOGIT_DEVIATION**2:
        raise UnsupportedError(
            "random masks before a softmax are too large to be propagated"
        )
    if float(typical) > MAX_LOGIT_DEVIATION**2:
        raise UnsupportedError("noise before a softmax is too strong to be propagated")


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
            fluctuation = average(4 * m * m * v + 2 * v * v) / d / square**2
            left_out = fluctuation * (var + u * u * fluctuation) / 4
        dev = run.doubt(dev, left_out.clamp(min=0))
    return Value(x.approximated(mean=u, var=var, dev=dev, independent=False))


def _scale_and_shift(
    run: Propagation, x: Value, weight: Any, bias: Any, shape: Any
) -> list[Value]:
    """Return x * weight + bias, the first result of each norm."""
    if weight is not None:
        weight = weight.reshape(shape) if isinstance(weight, Tensor) else weight
        x = pointwise(run, aten.mul.Tensor, (x, weight), {})
    if bias is not None:
        bias = bias.reshape(shape) if isinstance(bias, Tensor) else bias
        x = pointwise(run, aten.add.Tensor, (x, bias), {})
    return [x]


def _per_channel(x: Value) -> tuple[int, ...]:
    return (-1, *[1] * (len(x.shape) - 2))


@rule("native_layer_norm _fused_rms_norm")
def layer_norm(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """LayerNorm and RMSNorm."""
    x, shape, weight, *bias, eps = args
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    dims = tuple(range(-len(shape), 0))
    out = standardize(run, x.moments(run), dims, eps, center=bool(bias))
    return _scale_and_shift(run, out, weight, bias[0] if bias else None, shape)


@rule("native_group_norm")
def group_norm(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """GroupNorm: LayerNorm of each group."""
    x, weight, bias, n, _, _, groups, eps = args
    split = linear(run, aten.view.default, (x, [n, groups, -1]), {})
    out = standardize(run, split.moments(run), (-1,), eps, center=True)
    out = linear(run, aten.view.default, (out, list(x.shape)), {})
    return _scale_and_shift(run, out, weight, bias, _per_channel(x))


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional")
def batch_norm(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Affine by running statistics; by batch statistics, rows share all noise."""
    x, weight, bias, center, square, *more = args
    shape = _per_channel(x)
    if (len(more) > 2 and more[0]) or square is None:
        dims = tuple(i for i in range(len(x.shape)) if i != 1)
        out = standardize(run, x.moments(run), dims, more[-1], center=True)
        return _scale_and_shift(run, out, weight, bias, shape)
    scale = torch.rsqrt(square + more[-1]).reshape(shape)
    out = pointwise(run, aten.sub.Tensor, (x, center.reshape(shape)), {})
    out = pointwise(run, aten.mul.Tensor, (out, scale), {})
    return _scale_and_shift(run, out, weight, bias, shape)


# -- pooling by maxima --------------------------------------------------------------------------


@rule("max_pool2d_with_indices max_pool3d_with_indices")
def max_pool(run: Propagation, func: Any, args: Any, kwargs: Any) -> Any:
    """Take the largest of independent normal entries, one after the other (Clark).

    Where a window has one random number, as after Dropout2d, the maximum is a function of it.
    """
    axes = int(op_info(func).name[len("max_pool")])
    root = args[0].root
    shape = root.mean.shape
    alone = len(shape) == len(args[0].shape) and shape[-axes:].numel() == 1
    if root.law is not None and alone:
        return [_largest_at_each_number(func, args, axes)]
    x = args[0].moments(run)
    if not x.independent:  # the entries of a window may share noise
        run.unknown[op_info(func).name] = None
    far = float(x.mean.detach().abs().amax() + x.var.detach().amax().sqrt())
    found = windows(run, func, args, -10 * far)
    if found is None or found.shape[-1] > SETTINGS.max_window:
        return unknown_operation(run, func, args, kwargs)
    x = found.moments(run)
    mean, slopes, var = largest_of_normals(x.mean, x.var)
    rest = (var - (slopes * slopes * x.var).sum(-1)).clamp(min=0)
    dev = (run.fixed(slopes) * x.dev).sum(-1) + run.source(rest, rest=True)
    return [Value(x.approximated(mean=mean, var=var, dev=dev))]


def _largest_at_each_number(func: Any, args: Any, axes: int) -> Value:
    """Return the maxima as an entrywise function of the random numbers."""
    given = args[0]
    like = torch.empty(given.shape, device="meta")
    shape = func(like, *args[1:])[0].shape

    def function(points: Points, cache: dict[Value, Tensor]) -> Tensor:
        y = given.at(points, cache)
        y = y.expand(*y.shape[: -len(shape)], *given.shape)
        pooled = func(y.reshape(-1, *given.shape[-axes - 1 :]), *args[1:])[0]
        return pooled.reshape(*y.shape[: -axes - 1], *pooled.shape[1:])

    return Value(given.root, function, length=given.length + 1, shape=shape)


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
