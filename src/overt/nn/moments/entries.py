"""A function of single entries, x normal with mean m and variance v: value, slope, what is left.

    E f(x),   s = Cov(x, f(x)) / v = E f'(x)  (Stein),   Var f(x),

so that f(x) = E f + s (x - m) + rest, the affine map of least squares and a rest that is
uncorrelated with x. For ReLU, with a = m / sd, phi and Phi the normal density and distribution,

    E f = m Phi(a) + sd phi(a),   s = Phi(a),   E f^2 = (m^2 + v) Phi(a) + m sd phi(a).

Functions that live on one side of 0 (roots, logarithms, 1 / x) see a log-normal x instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Function = Callable[[Tensor], Tensor]
ONE_SIDED = frozenset(("sqrt", "rsqrt", "log", "log2", "log10", "reciprocal", "rdiv", "xlogy"))

SMALL = 1e-3
"""Relative deviations below which the slope of f at the mean stands for the mean slope."""

AT_ONCE = 2**16
"""The most entries that go through a function at all nodes at once."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(10)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
BLOCK = 2**13
"""Entries that go through a function at all of fewer nodes at once."""

_few = np.polynomial.hermite_e.hermegauss(7)
_z, _w = _few[0], _few[1] / _few[1].sum()
_FEW = np.stack([_z, _w, _w * _z, _w * (_z * _z - 1), _w, _w * _z])


def relu_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, slope and variance of max(x, 0)."""
    sd = v.clamp(min=torch.finfo(v.dtype).tiny).sqrt()
    a = m / sd
    phi = torch.exp(a * a * -0.5) * (2 * math.pi) ** -0.5
    Phi = torch.special.ndtr(a)
    u = torch.addcmul(phi, a, Phi)
    # E[f^2] - E[f]^2 with the terms arranged so that little cancels.
    spread = v * torch.addcmul(Phi, u, a * (1 - Phi) - phi).clamp(min=0)
    return sd * u, Phi, spread


def leaky_relu_moments(m: Tensor, v: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, slope and variance of a x + (1 - a) max(x, 0)."""
    a, b = slope, 1 - slope
    e, s, spread = relu_moments(m, v)
    return a * m + b * e, a + b * s, a * a * v + 2 * a * b * s * v + b * b * spread


def moments_of(
    f: Function, m: Tensor, v: Tensor, *, one_sided: bool, stacked: bool = False
) -> tuple[Tensor, ...]:
    """Return value, slope and variance of f(x) by Gauss-Hermite quadrature.

    `stacked` says that f takes entries of any shape, so that small tensors go through it at once.
    """
    sd, certain = _deviation(m, v)
    if one_sided:  # the deviation of log |x|
        relative = v / torch.where(m == 0, 1.0, m * m)
        sd = torch.sqrt(torch.where(certain, 1.0, torch.log1p(relative)))
    sd = torch.where(certain, 0.0, sd)

    def at(z: Any) -> Tensor:
        return m * torch.exp(sd * z - sd * sd / 2) if one_sided else m + sd * z

    if stacked and m.numel() <= AT_ONCE:
        z, w = (
            torch.as_tensor(t, dtype=m.dtype, device=m.device).reshape(-1, *[1] * m.ndim)
            for t in (_NODES, _WEIGHTS)
        )
        x = at(z)
        y = f(x)
        wy = w * y
        value, square, cross = wy.sum(0), (wy * y).sum(0), (wy * (x - m)).sum(0)
    else:
        value = square = cross = torch.zeros((), dtype=m.dtype, device=m.device)
        for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
            x = at(node)
            y = f(x)
            value, square = value + weight * y, square + weight * y * y
            cross = cross + weight * (x - m) * y
    slope = cross / torch.where(certain, 1.0, v)
    small = v <= SMALL**2 * m * m  # where differences of f drown in rounding
    if not torch.is_grad_enabled() or bool(small.any()):  # without gradients nothing is read
        slope = torch.where(small, _derivative(f, m), slope)
    spread = (square - value * value).clamp(min=0)
    return value, slope, torch.where(certain, torch.zeros_like(spread), spread)


class Bent(torch.autograd.Function):  # type: ignore[misc]
    """Value, slope, variance of f(x) and deviation of its rest; gradients in m alone.

    E f = sum_i w_i f_i, E f' = E[f z] / sd, E f'' = E[f (z^2 - 1)] / v, E f f' = E[f^2 z] / (2 sd),
    so that derivatives need no more than the values f_i = f(m + sd z_i); for ReLU all are known.
    """

    @staticmethod
    def forward(
        ctx: Any, m: Tensor, v: Tensor, f: Function | None, alone: bool
    ) -> tuple[Tensor, ...]:
        """Return value, slope, variance and sqrt(variance - slope^2 v); f is None for ReLU.

        `alone` says that f takes entries of any shape.
        """
        ctx.f, ctx.alone = f, alone
        tiny = torch.finfo(v.dtype).tiny ** 0.5
        if f is functional.gelu:
            value, slope, curve, rest, rise = _gelu(m, v, tiny)
            ctx.save_for_backward(m, v, slope, curve, rise)
            spread = torch.addcmul(rest * rest, slope * slope, v)
            ctx.mark_non_differentiable(spread)
            return value, slope, spread, rest
        sd = v.clamp(min=tiny).sqrt_()
        if f is None:
            a = m / sd
            slope = torch.special.ndtr(a)
            density = a.square_().mul_(-0.5).exp_().mul_((2 * math.pi) ** -0.5)
            value = torch.addcmul(sd * density, m, slope)
            spread = (value * (m - value)).addcmul_(v, slope).clamp_(min=0)
            curve = density.div_(sd).masked_fill_(v <= tiny, 0.0)
            rise = (1 - slope).mul_(value).mul_(2)
        else:
            value, slope, spread, curve, rise = _by_nodes(f, m, v, sd, alone)
        rest = torch.addcmul(spread, slope * slope, v, value=-1).clamp_(min=tiny).sqrt_()
        rise = rise.addcmul_(slope * curve, v, value=-2).div_(2 * rest)
        rise.masked_fill_(rest * rest <= 2 * tiny, 0.0)
        ctx.save_for_backward(m, v, slope, curve, rise)
        ctx.mark_non_differentiable(spread)
        return value, slope, spread, rest

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient in m, by operations that torch knows where that is differentiated."""
        m, v, slope, curve, rise = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = _followed(m, v, ctx.f, ctx.alone)
            return *torch.autograd.grad(found, m, (g[0], g[1], g[3]), create_graph=True), *[
                None
            ] * 3
        return (g[0] * slope).addcmul_(g[1], curve).addcmul_(g[3], rise), None, None, None


def _followed(m: Tensor, v: Tensor, f: Function | None, alone: bool) -> tuple[Tensor, ...]:
    """Return what `Bent` does but for the variance, made of operations with derivatives."""
    if f is None:
        value, slope, spread = relu_moments(m, v)
    else:
        value, slope, spread = moments_of(f, m, v, one_sided=False, stacked=alone)
    tiny = torch.finfo(v.dtype).tiny ** 0.5
    return value, slope, (spread - slope * slope * v).clamp(min=tiny).sqrt()


def _gelu(m: Tensor, v: Tensor, tiny: float) -> tuple[Tensor, ...]:
    """Return E f, E f', E f'', the deviation of the rest and its derivative, f(x) = x Phi(x).

    With s^2 = 1 + v, c = 1 / s^2, a = m / s: E f = m Phi(a) + v phi(a) / s, and its derivatives in
    m are those of f on average, f_k. The rest has variance v^2 f_2^2 / 2 + v^3 f_3^2 / 6 + ..., of
    which three terms are taken.
    """
    c = (1 + v).reciprocal_()
    r = c.sqrt()
    a, cv = m * r, c * v
    aa = a * a
    Phi = torch.special.ndtr(a)
    phi = aa.mul(-0.5).exp_().mul_((2 * math.pi) ** -0.5)
    value = torch.addcmul(phi * v * r, m, Phi)
    slope = torch.addcmul(Phi, a * phi, c)
    # f_2 = phi r h_2, f_3 = -c phi h_3, f_4 = c r phi h_4, f_5 = c^2 phi h_5
    h2 = 1 + c * (1 - aa)
    h3 = torch.add(h2, c, alpha=2).mul_(a)
    h4 = torch.addcmul(aa - 1, c, (6 - aa).mul_(aa).sub_(3))
    h5 = torch.addcmul(3 - aa, c, (aa - 10).mul_(aa).add_(15)).mul_(a)
    curve = phi * r * h2
    inner = torch.addcmul(h2 * h2 * 3, cv, h3 * h3).addcmul_(cv * cv / 4, h4 * h4)
    w = (v * cv).mul_(phi).mul_(phi).div_(6)  # the variance is w times what stands inside
    rest = (w * inner).clamp_(min=tiny).sqrt_()
    steep = (h2 * h3 * -3).addcmul_(cv, h3 * h4, value=-1).addcmul_(cv * cv / 4, h4 * h5)
    rise = (w * r * steep).div_(rest).masked_fill_(rest * rest <= 2 * tiny, 0.0)
    return value, slope, curve, rest, rise


def _by_nodes(f: Function, m: Tensor, v: Tensor, sd: Tensor, alone: bool) -> tuple[Tensor, ...]:
    """Return E f, E f', Var f, E f'' and the derivative of Var f, by quadrature."""
    table = torch.as_tensor(_FEW, dtype=m.dtype, device=m.device)
    z, once, twice = table[0, :, None], table[1:4], table[4:]
    if alone:  # block by block, which stays in the caches
        blocks = zip(m.reshape(-1).split(BLOCK), sd.reshape(-1).split(BLOCK), strict=True)
        values = (f(torch.addcmul(a, s, z)) for a, s in blocks)
    else:
        stacked = torch.stack([f(torch.add(m, sd, alpha=n)) for n in _FEW[0]])
        values = (F.flatten(1) for F in (stacked,))
    sums = torch.cat([torch.cat([once @ F, twice @ (F * F)]) for F in values], 1)
    value, slope, curve, square, rise = sums.reshape(5, *m.shape).unbind()
    slope, curve = slope.div_(sd), curve.div_(sd).div_(sd)
    spread = square.addcmul_(value, value, value=-1).clamp_(min=0)
    rise = rise.div_(sd).addcmul_(value, slope, value=-2)
    small = v <= SMALL**2 * (1 + m * m)
    if bool(small.any()):  # differences of f drown in rounding
        slope = torch.where(small, _derivative(f, m), slope)
        spread = torch.where(small, slope * slope * v, spread)
        curve, rise = (t.masked_fill_(small, 0.0) for t in (curve, rise))
    return value, slope, spread, curve, rise


def _deviation(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return standard deviations, 1 in place of 0, and where they were 0."""
    floor = torch.finfo(v.dtype).eps ** 2
    certain = v <= floor * (floor + m * m)
    return torch.where(certain, 1.0, v).sqrt(), certain


def _derivative(f: Function, m: Tensor) -> Tensor:
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        x = m if create and m.requires_grad else m.detach().requires_grad_()
        (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=create)
    return slope


def signs(like: Tensor) -> Tensor:
    """Return independent signs, eight to a random number."""
    words = torch.empty(like.numel() // 8 + 1, dtype=torch.int64, device=like.device).random_()
    bits = words.view(torch.int8)[: like.numel()].reshape(like.shape).bitwise_and_(2)
    return bits.sub_(1).to(like.dtype)
