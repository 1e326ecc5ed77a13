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
    """Return clip(s v, low, high) with the largest s in [0, 1] that keeps the norm.

    h(q) = |clip(sqrt(q) v, low, high)|^2 = sum_i min(q v_i^2, c_i^2) is concave and grows with
    q = s^2, so secant steps towards h(q) = radius^2 from q = 0 never overshoot.
    """
    norm = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    if box is None:
        shrink = radius / norm.clamp(min=max(radius, torch.finfo(v.dtype).tiny))
        return torch.mul(v, shrink, out=out)
    d = torch.clamp(v, *box, out=out)
    inside = torch.linalg.vector_norm(d, dim=1, keepdim=True) <= radius
    if bool(inside.all()):
        return d
    target = radius * radius
    before, h_before = torch.zeros_like(norm), torch.zeros_like(norm)
    q = torch.where(inside, 1, target / norm.square().clamp(min=target))
    # Short by a few rounding errors of the norm is still inside, and saves steps.
    tolerance = 1000 * torch.finfo(v.dtype).eps * target
    for _ in range(60):
        torch.mul(v, q.sqrt(), out=d).clamp_(*box)
        h = torch.linalg.vector_norm(d, dim=1, keepdim=True).square_()
        short = (target - h).masked_fill_(inside, 0)
        rise = h - h_before
        moving = (short > tolerance) & (rise > 0)
        if not bool(moving.any()):
            break
        step = torch.where(moving, short * (q - before) / rise, 0)
        before, h_before, q = q, h, (q + step).clamp_(max=1)
    return d


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
    piece = (norm < radius).sum(1, keepdim=True) - 1
    t = points.gather(1, piece) - (radius - norm.gather(1, piece)) / slope.gather(1, piece)
    t = torch.where(inside, 0, t.clamp(min=0))
    return torch.mul(v.sign(), torch.minimum((a - t).clamp_(min=0), cap), out=out)
