"""Functions that are not affine: of single entries, normalizations, softmax, attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.moments.bilinear import added, linear_map, product, scaled
from overt.nn.moments.entries import (
    ONE_SIDED,
    Bent,
    leaky_relu_moments,
    moments_of,
    relu_moments,
    signs,
)
from overt.nn.moments.local import unknown, with_first
from overt.nn.moments.tape import Moment, Tape
from overt.nn.recording.watching import Call, tensors


def entrywise(tape: Tape, call: Call) -> Any:
    """Return a function of single entries of the first argument."""
    x = tape.get(call.args[0])
    if x is None or tape.noisy((call.args[1:], call.kwargs)):
        return unknown(tape, call)
    if call.name == "leaky_relu" and x.dropped is None:
        slope = float(call.argument(1, "negative_slope", 0.01))
        return _bent(tape, x, *leaky_relu_moments(x.mean, x.variance, slope))
    power = call.args[1] if call.name == "pow" else 1
    one_sided = not (isinstance(power, int) and power > 0)
    name = "rsqrt" if one_sided else call.name
    if call.kwargs.get("approximate", "none") != "none":
        name = f"{name} by another formula"
    alone = not any(True for _ in tensors((call.args[1:], call.kwargs)))
    return of_entries(tape, x, lambda z: with_first(tape, call, z), name, alone=alone)


def of_entries(
    tape: Tape, x: Moment, f: Callable[[Tensor], Tensor], name: str, *, alone: bool = True
) -> Moment:
    """Return f(x), f a function of single entries, `alone` if of nothing else."""
    if x.dropped is not None:
        return _of_dropped(tape, x, *x.dropped, f)
    if tape.probe and tape.differentiable and name not in ONE_SIDED:
        given = {"relu": None, "gelu": functional.gelu}.get(name, f)
        return _bent(tape, x, *Bent.apply(x.mean, x.variance, given, alone))
    if name == "relu":
        return _bent(tape, x, *relu_moments(x.mean, x.variance))
    found = moments_of(f, x.mean, x.variance, one_sided=name in ONE_SIDED, stacked=alone)
    return _bent(tape, x, *found)


def _of_dropped(
    tape: Tape, x: Moment, values: Tensor, p: float, f: Callable[[Tensor], Tensor]
) -> Moment:
    """f of values that are kept or dropped is affine in the mask: f(0) + (f(x) - f(0)) z."""
    kept = values / (1 - p)
    low, high = f(torch.zeros_like(kept)), f(kept)
    slope = (high - low) / torch.where(kept == 0, 1.0, kept)
    return replace(
        x, mean=low + (1 - p) * (high - low), variance=p * (1 - p) * (high - low) ** 2,
        tangent=tape.later(lambda: tape.fixed(slope) * x.tangent()), dropped=None,
    )  # fmt: skip


def gated(tape: Tape, call: Call) -> Any:
    """GLU: one half times the sigmoid of the other."""

    def gate(x: Tensor, dim: int = -1) -> Tensor:
        a, b = x.chunk(2, dim)
        return a * torch.sigmoid(b)

    return call.again(lambda: gate(*call.args, **call.kwargs))


def _bent(
    tape: Tape, x: Moment, value: Tensor, slope: Tensor, variance: Tensor,
    deviation: Tensor | None = None,
) -> Moment:  # fmt: skip
    def tangent() -> Tensor:
        if deviation is not None:  # of the rest, in a probe
            return slope * x.tangent() + deviation * signs(deviation)
        rest = (variance - slope * slope * x.variance).clamp(min=0)
        return tape.fixed(slope) * x.tangent() + tape.source(rest, rest=True)

    return x.with_(mean=value, variance=variance, tangent=tape.later(tangent), exact=False,
                   known=False, dropped=None, law=None)  # fmt: skip


def softmax(tape: Tape, call: Call) -> Any:
    """Softmax or its logarithm: the Jacobian, and the mean to second order, entries independent."""
    x, dim = tape.of(call.args[0]), call.argument(1, "dim")
    x = scaled(tape, x, -1.0) if call.name == "softmin" else x
    dtype = call.kwargs.get("dtype") or x.mean.dtype
    m = x.mean.to(dtype)
    p, finite = torch.softmax(m, dim), torch.isfinite(m)
    whole = tape.probe and bool(finite.all())  # elsewhere nothing is read
    v = x.variance.to(dtype) if whole else torch.where(finite, x.variance.to(dtype), 0.0)
    pv, p2v = (p * v).sum(dim, keepdim=True), (p * p * v).sum(dim, keepdim=True)

    def tangent() -> Tensor:
        q, t = tape.fixed(p), x.tangent().to(dtype)
        away = t - (q * t).sum(dim, keepdim=True)
        return away if call.name == "log_softmax" else q * away

    single = (1 - 2 * p) * v
    if call.name == "log_softmax":
        mean, variance = torch.log_softmax(m, dim) - (pv - p2v) / 2, single + p2v
    else:
        mean = p + p * (single - pv + 2 * p2v) / 2
        variance = tape.spread(lambda v: p * p * (v + p2v), single)
    return x.with_(mean=mean, variance=variance.clamp(min=0), tangent=tape.later(tangent),
                   exact=False, known=False, independent=False, dropped=None, law=None)  # fmt: skip


def normalized(tape: Tape, call: Call) -> Any:
    """Shift and scale a tensor by statistics of its own."""
    given = call.named()
    x, W, b = tape.of(call.args[0]), given.get("weight"), given.get("bias")
    eps = given.get("eps")
    if call.name == "batch_norm" or tape.noisy((W, b)):
        return _batch_norm(tape, call, x) if not tape.noisy((W, b)) else unknown(tape, call)
    shape = x.mean.shape
    groups = given.get("num_groups")
    match call.name:
        case "layer_norm" | "rms_norm":
            dims = tuple(range(-len(given["normalized_shape"]), 0))
            out = _standardized(tape, x, dims, eps, center=call.name == "layer_norm")
        case "group_norm" | "instance_norm" if given.get("use_input_stats", True):
            parts = (shape[0], groups or shape[1], -1)
            out = _standardized(tape, _reshaped(tape, x, parts), (-1,), eps, center=True)
            out = _reshaped(tape, out, shape)
            column = (-1, *[1] * (len(shape) - 2))
            W, b = (None if t is None else t.reshape(column) for t in (W, b))
        case _:
            return unknown(tape, call)
    out = out if W is None else product(tape, torch.mul, out, tape.certain(W))
    return out if b is None else added(tape, out, tape.certain(b))


def _reshaped(tape: Tape, x: Moment, shape: Any) -> Moment:
    return linear_map(tape, x, *[lambda t: t.reshape(shape)] * 3)


def _standardized(
    tape: Tape, x: Moment, dims: tuple[int, ...], eps: float | None, *, center: bool
) -> Moment:
    """u = (x - mean) r with E of the sample variance in r; Jacobian r (I - 1/d - u u'/d)."""
    tape.rough.update(dict.fromkeys(x.noises.intersection(tape.few)))
    eps = torch.finfo(x.mean.dtype).eps if eps is None else eps
    d = math.prod(x.mean.shape[i] for i in dims)

    def mean(value: Tensor) -> Tensor:
        return value.mean(dims, keepdim=True)

    m, v, one = x.mean, x.variance, 1.0 if center else 0.0
    centered = m - mean(m) if center else m
    r = torch.rsqrt(mean(torch.addcmul(v * (1 - one / d), centered, centered)) + eps)
    u = centered * r

    def tangent() -> Tensor:
        (w, scale), t = tape.fixed((u, r)), x.tangent()
        t = t - mean(t) if center else t
        return scale * torch.addcmul(t, w, mean(w * t), value=-1)

    def spread(v: Tensor) -> Tensor:
        uu, vu = u * u, v * u
        found = torch.addcmul(v * (1 - 2 * one / d), uu, (mean(vu * u) - 2 * v) / d)
        if center:
            found = torch.addcmul(found + mean(v) / d, u, mean(vu), value=2 / d)
        return found.clamp(min=0) * (r * r)

    variance = tape.spread(spread, v)
    return x.with_(mean=u, variance=variance, tangent=tape.later(tangent), exact=False,
                   known=False, independent=False, dropped=None, law=None)  # fmt: skip


def _batch_norm(tape: Tape, call: Call, x: Moment) -> Moment:
    """Affine, by running statistics or those of the noise-free batch."""
    given = call.named()
    column = (1, -1, *[1] * (x.mean.ndim - 2))
    trained = bool(given.get("training")) or given.get("running_var") is None
    if trained:
        spread = x.mean.transpose(0, 1).flatten(1).var(1, unbiased=False)
    else:
        spread = given["running_var"]
    scale = torch.rsqrt(spread + given.get("eps", 1e-5))
    W = given.get("weight")
    scale = (scale if W is None else scale * W).reshape(column)
    mean = with_first(tape, call, x.mean)
    after = scaled(tape, x, scale).with_(mean=mean)
    return after.with_(exact=False, known=False) if trained else after


def drops(call: Call) -> bool:
    """Whether a call of attention drops weights."""
    given = call.named()
    return bool(given.get("training", True)) and float(given.get("dropout_p") or 0.0) > 0


def opened(tape: Tape, call: Call) -> Any:
    """Attention, part by part."""
    given = call.named()
    if call.name == "scaled_dot_product_attention":
        return call.again(lambda: attention(**given))
    query = given.get("query")
    plain = isinstance(query, Tensor) and query.ndim == 3 and given.get("need_weights") is False
    plain = plain and query is given.get("key") is given.get("value")
    if plain and all(given.get(name, usual) is usual for name, usual in _USUAL.items()):
        return call.again(lambda: _to_itself(given))
    return call.again(lambda: _unchecked(call.function)(*call.args, **call.kwargs))


_USUAL = {"key_padding_mask": None, "attn_mask": None, "bias_k": None,
          "bias_v": None, "add_zero_attn": False, "use_separate_proj_weight": False,
          "static_k": None, "static_v": None, "is_causal": False}  # fmt: skip


def _to_itself(given: dict[str, Any]) -> tuple[Tensor, None]:
    """Return what `multi_head_attention_forward` does in its plainest case, in fewer calls."""
    x, dropout_p = given["query"], given["dropout_p"] if given.get("training", True) else 0.0
    packed = functional.linear(x, given["in_proj_weight"], given["in_proj_bias"])
    packed = packed.unflatten(-1, (3, given["num_heads"], -1))  # (places, rows, 3, heads, features)
    q, k, v = packed.permute(2, 1, 3, 0, 4).unbind(0)
    out = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p)
    out = out.permute(2, 0, 1, 3).reshape(x.shape)
    return functional.linear(out, given["out_proj_weight"], given["out_proj_bias"]), None


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return what `scaled_dot_product_attention` does, by its parts."""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        shape = (query.size(-2), key.size(-2))
        keep = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~keep, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = functional.dropout(functional.softmax(scores, -1), dropout_p, dropout_p > 0)
    return weights @ value


def _unchecked(function: Any) -> Any:
    """Return a function of torch.nn.functional that is not shown as one call."""
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**function.__globals__, **dict.fromkeys(checks, lambda *_: False)}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)
