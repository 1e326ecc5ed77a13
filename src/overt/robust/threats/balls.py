"""Perturbations bounded in the L0, L1, L2 or Linf norm, with their Euclidean projections.

    project(v) = argmin_d |d - v|^2  subject to  |d| <= radius,  low <= d <= high

Projections take all rows of a matrix at once. The box always contains 0, so that no perturbation
at all is allowed; it is given as a pair of matrices shaped like v, or None. With `out` the answer
is written there, which spares the loops of attacks the cost of fresh memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from overt._check import InputError
from overt.robust.threats.base import Box, Threat, compiles
from overt.robust.threats.keyed_random import normal, uniform


@dataclass(frozen=True, eq=False)
class L2(Threat):
    """Perturbations of Euclidean norm at most `radius`."""

    name: ClassVar[str] = "l2"
    order, dual_order = 2, 2
    wide = torch.float64  # its squares do not overflow
    has_kernel: ClassVar[bool] = True

    def project(self, v: Tensor, box: Box, out: Tensor | None = None) -> Tensor:
        """Return clip(s v, low, high) with the largest s in [0, 1] that keeps the norm."""
        if box is None:
            # Squares of perturbations as long as a very large radius would overflow.
            wide = torch.float64 if self.radius > torch.finfo(v.dtype).max ** 0.4 else None
            norm = torch.linalg.vector_norm(v, dim=1, keepdim=True, dtype=wide)
            shrink = self.radius / norm.clamp(min=max(self.radius, torch.finfo(v.dtype).tiny))
            return torch.mul(v, shrink.to(v.dtype), out=out)
        out = torch.empty_like(v) if out is None else out
        low, high = box
        if compiles(v):
            from overt.robust.threats.kernels import l2_in_box as compiled

            compiled(v.numpy(), self.radius, low.numpy(), high.numpy(), out.numpy())
        else:
            l2_in_box(v, self.radius, low, high, out)
        return out

    def ascent(self, gradient: Tensor, box: Box) -> Tensor:
        """Return g / |g|, which does not overflow or vanish however small or large g is."""
        tiny = torch.finfo(gradient.dtype).tiny
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        least, most = torch.aminmax(norm)
        if not (float(least) > tiny**0.4 and float(most) < torch.inf):
            usual = (norm > tiny**0.4) & torch.isfinite(norm)
            peak = gradient.abs().amax(1, keepdim=True).clamp(min=tiny)
            gradient = torch.where(usual, gradient, (gradient / peak).nan_to_num_())
            norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        return gradient.div_(norm.clamp_(min=tiny))

    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return points uniform in the ball: a uniform direction, radius u^(1/width)."""
        direction = normal(keys, width, like)
        direction /= torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        return direction * self.radius * uniform(keys, 1, like, stream=2) ** (1 / width)


@dataclass(frozen=True, eq=False)
class Linf(Threat):
    """Perturbations that change no coordinate by more than `radius`."""

    name: ClassVar[str] = "linf"
    order, dual_order = torch.inf, 1

    def project(self, v: Tensor, box: Box, out: Tensor | None = None) -> Tensor:
        """Return clip(v, max(low, -radius), min(high, radius)): the problem is separable."""
        d = torch.clamp(v, -self.radius, self.radius, out=out)
        return d if box is None else d.clamp_(*box)

    def ascent(self, gradient: Tensor, box: Box) -> Tensor:
        """Return sign(g)."""
        return gradient.sign_()

    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return points uniform in the cube."""
        return (2 * uniform(keys, width, like) - 1) * self.radius


@dataclass(frozen=True, eq=False)
class L1(Threat):
    """Perturbations whose absolute values sum to at most `radius`."""

    name: ClassVar[str] = "l1"
    order, dual_order = 1, torch.inf

    def project(self, v: Tensor, box: Box, out: Tensor | None = None) -> Tensor:
        """Return sign(v) min(max(|v| - t, 0), c) with the smallest t >= 0 that keeps the norm.

        c_i is the room that the box leaves in the direction of v_i. The norm falls with t, linearly
        between the break points |v_i| and |v_i| - c_i; one sort finds where it is the radius.
        """
        a = v.abs()
        cap = torch.full_like(a, torch.inf) if box is None else torch.where(v > 0, box[1], -box[0])
        inside = torch.minimum(a, cap).sum(1, keepdim=True) <= self.radius
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
        piece = ((norm < self.radius).sum(1, keepdim=True) - 1).clamp_(min=0)
        t = points.gather(1, piece) - (self.radius - norm.gather(1, piece)) / slope.gather(1, piece)
        t = torch.where(inside, 0, t.clamp(min=0))
        return torch.mul(v.sign(), torch.minimum((a - t).clamp_(min=0), cap), out=out)

    def ascent(self, gradient: Tensor, box: Box) -> Tensor:
        """Return argmax <g, d> over |d|_1 <= 1, each coordinate within its share of the box.

        Without a box that is one coordinate; with one, the steepest coordinates are filled up in
        turn, as the best perturbation of a linear model does.
        """
        a = gradient.abs()
        if box is None or self.radius == 0:
            best = a.argmax(1, keepdim=True)
            value = gradient.gather(1, best).sign()
            return torch.zeros_like(gradient).scatter_(1, best, value)
        room = (torch.where(gradient > 0, box[1], -box[0]) / self.radius).clamp_(max=1)
        order = a.argsort(1, descending=True)
        room = torch.where(gradient != 0, room, 0).gather(1, order)
        used = room.cumsum(1)
        filled = torch.minimum(room, (1 - (used - room)).clamp_(min=0))
        return torch.zeros_like(a).scatter_(1, order, filled) * gradient.sign()

    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return points uniform in the ball: normalized exponentials with signs, u^(1/width)."""
        share = -uniform(keys, width, like).log_()
        share /= share.sum(1, keepdim=True)
        sign = (uniform(keys, width, like, stream=1) - 0.5).sign()
        return sign * share * self.radius * uniform(keys, 1, like, stream=2) ** (1 / width)


@dataclass(frozen=True, eq=False)
class L0(Threat):
    """Perturbations that change at most `radius` coordinates, each anywhere within the bounds."""

    name: ClassVar[str] = "l0"
    order, dual_order = 0, torch.inf

    def within(self, x: Tensor) -> Self:
        """Return the threat with settled bounds, which it cannot do without."""
        if self.bounds is None:
            raise InputError('L0 must have bounds, as in L0(10, bounds=(0, 1)) or bounds="data"')
        return super().within(x)

    def project(self, v: Tensor, box: Box, out: Tensor | None = None) -> Tensor:
        """Return clip(v, low, high) at the coordinates that bring it nearest to v, 0 elsewhere."""
        d = v if box is None else torch.clamp(v, *box)
        gain = v.square() - (v - d).square()
        return torch.mul(d, self._largest(gain), out=out)

    def ascent(self, gradient: Tensor, box: Box) -> Tensor:
        """Return argmax <g, d> over the allowed d, divided by the radius."""
        if self.radius < 1:
            return torch.zeros_like(gradient)
        room = (torch.ones_like(gradient) if box is None
                else torch.where(gradient > 0, box[1], -box[0]))  # fmt: skip
        gain = (gradient.abs() * room).nan_to_num_(0, 0, 0)
        return self._largest(gain) * room * gradient.sign().nan_to_num_(0) / self.radius

    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return random coordinates at random ends of whatever box there is."""
        sign = (uniform(keys, width, like, stream=1) - 0.5).sign()
        order = uniform(keys, width, like).argsort(1)[:, : int(self.radius)]
        return torch.zeros_like(sign).scatter_(1, order, 1e6) * sign

    extreme = draw

    def _largest(self, gain: Tensor) -> Tensor:
        """Return 1 at the coordinates that gain most, as many as are allowed, and 0 elsewhere."""
        kept = gain.topk(min(int(self.radius), gain.shape[1]), dim=1).indices
        return torch.zeros_like(gain).scatter_(1, kept, 1.0)


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
        q = torch.where(moving, root, q)
    torch.clamp(v * q.sqrt(), low, high, out=out)
    out.mul_((target / _squares(out).clamp(min=max(target, tiny))).sqrt_())


def _squares(v: Tensor) -> Tensor:
    return v.square().sum(1, keepdim=True)


def farthest(gradient: Tensor, threat: Threat, box: Any) -> Tensor:
    """Return argmax <g, d> over the allowed perturbations d of each row."""
    match threat:
        case Linf():
            return threat.project(gradient.sign() * threat.radius, box)
        case L2():
            # Far out along g the projection is the point whose normal cone holds g.
            reach = 1e8 * max(threat.radius, 1.0)
            return threat.project(threat.ascent(gradient.clone(), box) * reach, box)
    return threat.ascent(gradient.clone(), box) * threat.radius
