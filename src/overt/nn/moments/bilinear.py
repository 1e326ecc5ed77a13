"""Linear maps, sums and products of random tensors.

For independent x and y the deviation of a product is E[x] t_y + t_x E[y] + t_x t_y; the last part
is a source of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from overt.nn.moments.tape import Moment, Tape
from overt.nn.recording.watching import Call

Map = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]
SIGNS = 16
"""Random signs that show how a linear map spreads independent entries."""


def linear_map(
    tape: Tape, x: Moment, affine: Map, linear: Map, squared: Map, *, keeps: bool = False
) -> Moment:
    """Return the image of x; `keeps` says that each output sees one entry, and each its own.

    `linear` is the map without its constant, for tangents, and `squared` that with squared
    coefficients, for variances.
    """
    return replace(
        x, mean=affine(x.mean), variance=tape.spread(squared, x.variance),
        tangent=tape.later(lambda: linear(x.tangent())),
        known=x.known and (x.independent or keeps), independent=x.independent and keeps,
        dropped=None, law=None,
    )  # fmt: skip


def scaled(tape: Tape, x: Moment, scale: float | Tensor, shift: float | Tensor = 0.0) -> Moment:
    """Return scale x + shift, entry by entry, without a change of shape."""
    fixed = tape.fixed(scale)
    return linear_map(
        tape, x, lambda t: scale * t + shift, lambda t: fixed * t, lambda t: scale * scale * t,
        keeps=True,
    )  # fmt: skip


def spread_by_signs(tape: Tape, x: Moment, f: Map) -> Moment:
    """Return the image under a linear f; variances by random signs, which only choose slopes."""
    sd = x.variance.detach().clamp(min=0).sqrt()
    with torch.no_grad():
        generator = torch.Generator(device=sd.device).manual_seed(0)
        signs = torch.randint(0, 2, (SIGNS, *sd.shape), generator=generator, device=sd.device)
        variance = torch.stack([f(sd * (2 * s - 1)) ** 2 for s in signs]).mean(0)
    return linear_map(tape, x, f, f, lambda _: variance).with_(known=False)


def added(tape: Tape, x: Moment, y: Moment, sign: float = 1.0) -> Moment:
    """Return x + sign y."""
    mean = torch.add(x.mean, y.mean, alpha=sign)
    noisy = [z for z in (x, y) if z.noises]

    def whole(a: Tensor, b: Tensor, factor: float) -> Tensor:
        total = torch.add(a, b, alpha=factor) if y.noises else a
        return total if total.shape == mean.shape else total.expand(mean.shape)

    variance = whole(x.variance, y.variance, sign * sign)

    def tangent() -> Tensor:
        return whole(x.tangent(), y.tangent(), sign)

    alone = len(noisy) < 2 or not (x.noises & y.noises)
    law = None
    if len(noisy) == 1 and noisy[0] is x and x.law is not None and y.mean.numel() == 1:
        law = x.law.shifted(sign * float(y.mean))
    return Moment(
        mean, variance, tape.later(tangent), x.noises | y.noises, x.exact and y.exact,
        x.known and y.known and alone,
        alone and all(z.independent and z.mean.shape == mean.shape for z in noisy), law=law,
    )  # fmt: skip


def product(tape: Tape, f: Product, x: Moment, y: Moment) -> Moment:
    """Return f(x, y), f linear in each."""
    if not x.noises or not y.noises:
        return _one_sided(tape, f, x, y)
    entrywise = f is torch.mul
    apart = not (x.noises & y.noises)
    x, y = (tape.settled(x), tape.settled(y)) if apart else (x, y)
    mean = f(x.mean, y.mean)
    a, b = tape.fixed((x.mean, y.mean))
    # v y^2 + x^2 w + v w, in two products; the last part is a source of its own.
    variance = tape.spread(
        lambda v, w: f(v, torch.addcmul(w, y.mean, y.mean)) + f(x.mean**2, w),
        x.variance,
        y.variance,
    )

    def tangent() -> Tensor:
        s, t = x.tangent(), y.tangent()
        if tape.probe:
            return f(s, b + t) + f(a, t)
        return f(s, b) + f(a, t) + tape.source(f(x.variance, y.variance), rest=True)

    alone = [z.independent and z.mean.shape == mean.shape for z in (x, y)]
    exact = x.exact and y.exact and x.known and y.known and apart
    exact = exact and (any(alone) if entrywise else x.independent and y.independent)
    return Moment(mean, variance, tape.later(tangent), x.noises | y.noises, exact, exact,
                  apart and entrywise and all(alone))  # fmt: skip


def _one_sided(tape: Tape, f: Product, x: Moment, y: Moment) -> Moment:
    noisy, other = (x, y.mean) if x.noises else (y, x.mean)
    fixed = tape.fixed(other)

    def g(value: Tensor, beside: Tensor) -> Tensor:
        return f(value, beside) if noisy is x else f(beside, value)

    mean = g(noisy.mean, other)
    keeps = f is torch.mul and noisy.mean.shape == mean.shape
    after = linear_map(tape, noisy, lambda _: mean, lambda t: g(t, fixed),
                       lambda t: g(t, other * other), keeps=keeps)  # fmt: skip
    return after.with_(known=after.known or (noisy.known and f is torch.mul))


def weighted(tape: Tape, call: Call) -> Any:
    """Return a linear layer's or a convolution's output; its weights may be random too."""
    x, W, b = (call.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    rest = call.args[3:]
    kwargs = {k: v for k, v in call.kwargs.items() if k not in ("input", "weight", "bias")}

    def f(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = call.function(value, weight, bias, *rest, **kwargs)
        return result

    if tape.get(W) is None and tape.get(b) is None:
        fixed = tape.fixed(W)
        return linear_map(tape, tape.of(x), lambda t: f(t, W, b), lambda t: f(t, fixed),
                          lambda t: f(t.contiguous(), W * W))  # fmt: skip
    moment = product(tape, f, tape.of(x), tape.of(W))
    if b is None:
        return moment
    shape = (-1,) if call.name == "linear" else (-1, *[1] * (W.ndim - 2))
    bias = linear_map(tape, tape.of(b), *[lambda t: t.reshape(shape)] * 3, keeps=True)
    return added(tape, moment, bias)


def averaged(tape: Tape, x: Moment, call: Call, f: Map) -> Moment:
    """Return sums of entries over a divisor d: variances add up over d^2."""
    if call.name in ("sum", "nansum", "cumsum"):
        return linear_map(tape, x, f, f, f)
    divisor = _divisor(call, x.mean)
    if divisor is None:
        return spread_by_signs(tape, x, f)
    return linear_map(tape, x, f, f, lambda v: f(v) / divisor)


def _divisor(call: Call, x: Tensor) -> float | None:
    """Return over how many entries an operation averages, None if they are not the same for all."""
    given = call.named()
    if call.name == "mean":
        dims = call.argument(1, "dim", given.get("axis"))
        if dims is None:
            return float(x.numel())
        dims = (dims,) if isinstance(dims, int) else dims
        return float(math.prod(x.shape[d] for d in dims or range(x.ndim)))
    axes = int(call.name[-2]) if call.name[-1] == "d" else 0
    if call.name.startswith("avg_pool"):
        kernel = call.argument(1, "kernel_size")
        even = given.get("padding", 0) in (0, (0,) * axes)
        if not even or given.get("ceil_mode") or given.get("divisor_override"):
            return None
        return float(kernel**axes if isinstance(kernel, int) else math.prod(kernel))
    if call.name.startswith("adaptive"):
        size = call.argument(1, "output_size")
        targets = (size,) * axes if isinstance(size, int) or size is None else tuple(size)
        pairs = [(n, s or n) for n, s in zip(x.shape[-axes:], targets, strict=True)]
        if all(n % s == 0 for n, s in pairs):
            return float(math.prod(n // s for n, s in pairs))
    return None
