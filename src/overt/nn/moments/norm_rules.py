"""Operations on several entries at once: softmax and normalization."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import UnsupportedError, aten
from overt.nn.moments.linear_rules import add, linear, multiply
from overt.nn.moments.pointwise_rules import pointwise
from overt.nn.moments.registry import rule
from overt.nn.moments.values import (
    Propagation,
    RandomTensor,
    Value,
)

MAX_LOGIT_DEVIATION = 3.0
"""Standard deviation of logits, weighted by probability, beyond which a softmax is sampled.

The second-order mean of a softmax is off by a tenth of a standard deviation at 1, and useless at
3; random masks of -1e9 before a softmax are far beyond."""


@rule("logsumexp")
def logsumexp(
    run: Propagation, func: Any, value: Value, dims: Any, keepdim: bool = False
) -> Value:
    """Second-order mean, first-order deviation p't."""
    x = value.moments(run)

    def total(t: Tensor) -> Tensor:
        return t.sum(dims, keepdim=keepdim)

    mean = torch.logsumexp(x.mean, dims, keepdim=True)
    p = torch.exp(x.mean - mean)
    pv = p * x.var
    var = total(p * pv)
    move = (total(pv) - var) / 2
    _check_logits(run, x.var, 2 * move)
    if not keepdim:
        mean = mean.squeeze(dims)
    dev = run.doubt(total(run.fixed(p) * x.dev), 2 * move**2)
    return Value(x.approximated(mean=mean + move, var=var, dev=dev, independent=False))


@rule("_log_softmax")
def log_softmax(run: Propagation, func: Any, x: Value, dim: int, *_: Any) -> Any:
    """x - logsumexp(x)."""
    return add(run, x, logsumexp(run, func, x, [dim], True), -1.0)


@rule("_softmax _safe_softmax")
def softmax(
    run: Propagation, func: Any, value: Value, dim: int, *_: Any, **dtype: Any
) -> Value:
    """Second-order mean for independent logits, first-order deviation p (t - p't)."""
    x = value.moments(run)
    p = torch.softmax(x.mean, dim)
    v = x.var
    t = x.dev
    finite = torch.isfinite(x.mean)
    if not bool(finite.all()):  # masked positions are -inf
        p = torch.nan_to_num(p)
        v = torch.where(finite, v, 0.0)
        t = torch.where(finite, t, 0.0)
    pv = p * v
    ppv = (p * pv).sum(dim, keepdim=True)
    away = pv.sum(dim, keepdim=True) - ppv
    _check_logits(run, v, away)
    # Relative to its value, an entry is exp(a) with a of variance u; a^2 / 2 is left out.
    u = v - 2 * pv + ppv
    mean = p + p * (u - away) / 2
    u = u.clamp(min=0)
    q = run.fixed(p)
    qt = q * t
    dev = qt - q * qt.sum(dim, keepdim=True)
    square = p * p * u
    dev = run.doubt(dev, square * u / 2)
    return Value(x.approximated(mean=mean, var=square, dev=dev, independent=False))


def _check_logits(run: Propagation, var: Tensor, weighted: Tensor) -> None:
    """Refuse noise on logits that a second-order expansion cannot follow.

    `weighted` is sum_k p_k (1 - p_k) var_k.
    """
    if run.sampled or not var.numel():
        return
    if float(var.detach().amax()) > 100 * MAX_LOGIT_DEVIATION**2:
        raise UnsupportedError(
            "random masks before a softmax are too large to be propagated"
        )
    if float(weighted.detach().mean()) > MAX_LOGIT_DEVIATION**2:
        raise UnsupportedError("noise before a softmax is too strong to be propagated")


def standardize(
    run: Propagation, x: RandomTensor, dims: tuple[int, ...], eps: float, center: bool
) -> Value:
    """u = (x - mean x) r, with the expected mean square in r; Jacobian r (I - 1/d - u u'/d)."""
    d = math.prod(x.mean.shape[i] for i in dims)

    def average(t: Tensor) -> Tensor:
        return t.mean(dims, keepdim=True)

    m = x.mean
    t = x.dev
    v = x.var
    if center:
        m = m - average(m)
        t = t - average(t)
    average_v = average(v)
    square = average(m * m) + average_v * (1 - center / d) + eps
    r = torch.rsqrt(square)
    u = m * r
    w = run.fixed(u)
    dev = run.fixed(r) * (t - w * average(w * t))
    with run.variance_mode():
        uv = u * v
        average_uuv = average(u * uv)
        shared = u * (u * average_uuv - 2 * uv)
        if center:
            shared = shared + 2 * u * average(uv) + average_v - 2 * v
        var = (v + shared / d).clamp(min=0) / square
    if not run.sampled:
        with torch.no_grad():  # how much the mean square fluctuates, relative to itself
            fluctuation = (4 * average_uuv + 2 * average(v * v) / square) / square / d
            left_out = fluctuation * (var + u * u * fluctuation) / 4
        dev = run.doubt(dev, left_out)
    return Value(x.approximated(mean=u, var=var, dev=dev, independent=False))


def _scale_and_shift(
    run: Propagation,
    x: Any,
    weight: Any,
    bias: Any,
    shape: Any,
    entrywise: bool = False,
) -> list[Value]:
    """Return x * weight + bias, the first result of each norm; `entrywise`: it keeps its root."""
    scaling = (aten.mul.Tensor, multiply, weight)
    for func, affine, t in (scaling, (aten.add.Tensor, add, bias)):
        if isinstance(t, Value):
            t = linear(run, aten.view.default, t, shape)
        elif t is not None:
            t = t.reshape(shape)
        if t is not None:
            x = pointwise(run, func, x, t) if entrywise else affine(run, x, t)
    return [x]


def _per_channel(x: Value) -> tuple[int, ...]:
    return (-1, *[1] * (len(x.shape) - 2))


@rule("native_layer_norm _fused_rms_norm")
def layer_norm(
    run: Propagation, func: Any, x: Value, shape: Any, weight: Any, *more: Any
) -> list[Value]:
    """LayerNorm and RMSNorm."""
    *bias, eps = more
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    dims = tuple(range(-len(shape), 0))
    out = standardize(run, x.moments(run), dims, eps, bool(bias))
    return _scale_and_shift(run, out, weight, bias[0] if bias else None, shape)


@rule("native_group_norm")
def group_norm(
    run: Propagation, func: Any, x: Value, weight: Any, bias: Any, n: int, *more: Any
) -> list[Value]:
    """GroupNorm: LayerNorm of each group."""
    *_, groups, eps = more
    split = linear(run, aten.view.default, x, [n, groups, -1])
    out = standardize(run, split.moments(run), (-1,), eps, True)
    out = linear(run, aten.view.default, out, list(x.shape))
    return _scale_and_shift(run, out, weight, bias, _per_channel(x))


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional")
def batch_norm(
    run: Propagation, func: Any, x: Value, weight: Any, bias: Any, *more: Any
) -> list[Value]:
    """Affine by running statistics; by batch statistics, rows share all noise."""
    *statistics, training, _, eps = more
    shape = _per_channel(x)
    if training or not statistics:
        dims = tuple(i for i in range(len(x.shape)) if i != 1)
        out = standardize(run, x.moments(run), dims, eps, True)
        return _scale_and_shift(run, out, weight, bias, shape)
    center, square = statistics
    scale = torch.rsqrt(square + eps)
    out = _scale_and_shift(run, x, scale, -center * scale, shape, True)[0]
    return _scale_and_shift(run, out, weight, bias, shape, True)
