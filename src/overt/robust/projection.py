"""Euclidean projections on norm balls cut by a box, for all rows of a matrix at once.

    project(v) = argmin_d |d - v|^2  subject to  |d| <= radius,  low <= d <= high

Rows are perturbations; the box always contains 0, so that no perturbation at all is allowed. It is
given as a pair of matrices shaped like v, or None. With `out` the answer is written there, which
spares the loops of attacks the cost of fresh memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

Box = tuple[Tensor, Tensor] | None


def linf(v: Tensor, radius: float, box: Box, out: Tensor | None = None) -> Tensor:
    """Return clip(v, max(low, -radius), min(high, radius)): the problem is separable."""
    d = torch.clamp(v, -radius, radius, out=out)
    return d if box is None else d.clamp_(*box)


def l2(v: Tensor, radius: float, box: Box, out: Tensor | None = None) -> Tensor:
    """Return clip(s v, low, high) with the largest s in [0, 1] that keeps the norm."""
    if box is None:
        # Squares of perturbations as long as a very large radius would overflow.
        wide = torch.float64 if radius > torch.finfo(v.dtype).max ** 0.4 else None
        norm = torch.linalg.vector_norm(v, dim=1, keepdim=True, dtype=wide)
        shrink = radius / norm.clamp(min=max(radius, torch.finfo(v.dtype).tiny))
        return torch.mul(v, shrink.to(v.dtype), out=out)
    out = torch.empty_like(v) if out is None else out
    low, high = box
    if compiles(v):
        from overt.robust.kernels import l2_in_box as compiled

        compiled(v.numpy(), radius, low.numpy(), high.numpy(), out.numpy())
    else:
        l2_in_box(v, radius, low, high, out)
    return out


def compiles(v: Tensor) -> bool:
    """Return whether the compiled functions of `overt.robust.kernels` can work on v."""
    return v.device.type == "cpu" and v.dtype in (torch.float32, torch.float64)


def l2_in_box(v: Tensor, radius: float, low: Tensor, high: Tensor, out: Tensor) -> None:
    """Write clip(s v, low, high) to `out` with the largest s in [0, 1] that keeps the norm.

    h(q) = |clip(sqrt(q) v, low, high)|^2 is concave, piecewise linear and grows with q = s^2. The
    tangent at any q meets radius^2 at or before h does, so Newton's steps, after the first, go up
    to the root and stop there exactly.
    """
    target, tiny = radius * radius, torch.finfo(v.dtype).tiny
    clipped = _squares(torch.clamp(v, low, high, out=out))
    over = clipped > target
    least = target / _squares(v).clamp(min=tiny)
    q = torch.where(over, target / clipped, 1)
    moving = over
    while bool(moving.any()):
        w = v * q.sqrt()
        h = _squares(torch.clamp(w, low, high, out=out))
        free = _squares(torch.where(out == w, w, 0))
        fixed = h - free
        root = torch.where((free > 0) & (fixed < target), q * (target - fixed) / free, least)
        first = moving is over
        moving = over & (first | (root > q * (1 + 8 * torch.finfo(v.dtype).eps)))
        q = torch.where(moving, torch.maximum(root, least), q)
    torch.clamp(v * q.sqrt(), low, high, out=out)
    out.mul_((target / _squares(out).clamp(min=max(target, tiny))).sqrt_())


def _squares(v: Tensor) -> Tensor:
    return v.square().sum(1, keepdim=True)


def l1(v: Tensor, radius: float, box: Box, out: Tensor | None = None) -> Tensor:
    """Return sign(v) min(max(|v| - t, 0), c) with the smallest t >= 0 that keeps the norm.

    c_i is the room that the box leaves in the direction of v_i. The norm falls with t, linearly
    between the break points |v_i| and |v_i| - c_i; one sort finds the piece on which it is radius.
    """
    a = v.abs()
    cap = torch.full_like(a, torch.inf) if box is None else torch.where(v > 0, box[1], -box[0])
    inside = torch.minimum(a, cap).sum(1, keepdim=True) <= radius
    # Going down from t = inf, coordinate i starts to grow at t = a_i and stops at a_i - c_i.
    points = a if box is None else torch.cat([a, a - cap], 1)
    slope = torch.ones_like(a)
    if box is not None:
        slope = torch.cat([slope, -slope], 1)
    points, order = points.sort(dim=1, descending=True)
    slope = slope.gather(1, order).cumsum(1)  # of the norm just below each break point
    gaps = points[:, :-1] - points[:, 1:]
    norm = torch.zeros_like(points)
    norm[:, 1:] = (slope[:, :-1] * gaps).cumsum(1)  # at each break point
    piece = ((norm < radius).sum(1, keepdim=True) - 1).clamp_(min=0)
    t = points.gather(1, piece) - (radius - norm.gather(1, piece)) / slope.gather(1, piece)
    t = torch.where(inside, 0, t.clamp(min=0))
    return torch.mul(v.sign(), torch.minimum((a - t).clamp_(min=0), cap), out=out)
