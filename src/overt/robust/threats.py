"""Threat models: the perturbations an adversary may use, and their geometry.

A threat is a ball |d| <= radius around each input, cut by the box of valid inputs. This module
knows nothing of networks: it projects, finds directions of steepest ascent, maximizes linear
functions, samples random starts, and stores perturbed inputs exactly inside the ball.

    project(v)        = argmin_d |d - v|^2   subject to  |d| <= radius,  low <= d <= high
    linear_argmax(g)  = argmax_d <g, d>      subject to the same

All functions take the rows of a matrix (points, features) at once.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from overt._check import InputError, InputTypeError, instance, number
from overt.nn.data.batches import as_tensor
from overt.results import Result

Bounds = Any
"""None, or a pair (low, high) of numbers or of arrays that fit one input or all inputs."""

Limits: TypeAlias = tuple[Tensor, Tensor] | None
"""Smallest and largest values, (1, features) or (points, features) each; None without limits."""

Length: TypeAlias = float | Tensor
"""A length: one number, or a column (points, 1)."""

UNLIMITED = 1e30
"""Limit of features that may change freely beside others that may not; finite in every format."""

FAR = 1e8
"""Radii to a point whose projection is what a linear function prefers, to single precision."""

MAX_SHRINKS = 8
"""Times that a stored perturbation is shortened; each takes off at least 4 machine epsilons."""


@dataclass(frozen=True, eq=False)
class Threat(ABC):
    """A ball of perturbations around each input.

    Parameters
    ----------
    radius
        Largest norm of a perturbation, in the units of the inputs. For pixels stored as 0..255 a
        radius of 8 is what the literature calls 8/255.
    bounds
        Smallest and largest value that an input may take: a pair (low, high) of numbers, of arrays
        that fit one input, or of arrays shaped like all inputs; None for no limits.
    mutable
        Which features may change: a boolean array that fits one input, or is shaped like all
        inputs. None: every feature.
    """

    radius: float
    bounds: Bounds = None
    mutable: Any = None
    name: ClassVar[str]
    order: ClassVar[float]
    dual_order: ClassVar[float]
    __eq__ = Result.__eq__  # by value, arrays included

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", number("radius", self.radius))
        if self.bounds is None:
            return
        if not isinstance(self.bounds, (tuple, list)) or len(self.bounds) != 2:
            raise InputTypeError(
                f"bounds must be None or a pair (low, high), got {self.bounds!r:.80}"
            )
        low, high = (as_tensor("bounds", part) for part in self.bounds)
        ordered = bool((low <= high).all())
        if not (ordered and bool((low < high).any())):
            raise InputError(
                f"bounds must be (low, high) with low below high, got {self.bounds!r:.80}"
            )

    def __hash__(self) -> int:
        return hash((self.name, self.radius))

    def with_radius(self, radius: float) -> Self:
        """Return the same threat with another radius."""
        return dataclasses.replace(self, radius=radius)

    def input_bounds(self, x: Tensor) -> Limits:
        """Return the limits of each feature of the inputs x, and check that x fits them.

        Limits are rounded inward to the number format of x.
        """
        limits = self._given_bounds(x)
        if self.mutable is None:
            return limits
        flat = x.flatten(1)
        mutable = _fit("mutable", self.mutable, x).bool()
        if limits is None:
            limits = flat - UNLIMITED, flat + UNLIMITED
        low = torch.where(mutable, limits[0], flat)
        high = torch.where(mutable, limits[1], flat)
        return low, high

    def _given_bounds(self, x: Tensor) -> Limits:
        if self.bounds is None:
            return None
        low, high = (_fit("bounds", part, x).double() for part in self.bounds)
        flat = x.flatten(1)
        # An input that equals a bound up to the rounding of its format is not outside.
        inside = flat.clamp(low.to(x.dtype), high.to(x.dtype))
        if not torch.equal(inside, flat):
            raise InputError(
                f"bounds must contain the inputs, got bounds ({float(low.min()):.4g}, "
                f"{float(high.max()):.4g}) and inputs between {float(x.min()):.4g} and "
                f"{float(x.max()):.4g}; were the inputs normalized?"
            )
        highest = -_round_up(-high, x.dtype)
        return _round_up(low, x.dtype), highest

    def region(self, x: Tensor, storage: torch.dtype | None = None) -> Region:
        """Return the set of allowed perturbations of the inputs x (points, ...)."""
        # Squares of longer perturbations overflow.
        if not self.radius < torch.finfo(x.dtype).max ** 0.4:
            raise InputError(f"the radius must fit {x.dtype}, got {self.radius:g}")
        flat = x.flatten(1).contiguous()
        found = Region(
            threat=self,
            x=flat,
            limits=self.input_bounds(x),
            storage=storage or x.dtype,
            radius=self.radius,
        )
        return found.changed(lambda part: part.expand_as(flat))

    def size(self, delta: Tensor) -> Tensor:
        """Return the norm of each row in double precision, (points,)."""
        return torch.linalg.vector_norm(delta.double(), ord=self.order, dim=1)

    def dual(self, gradient: Tensor) -> Tensor:
        """Return max <gradient, d> over |d| <= 1 for each row, (points,)."""
        return torch.linalg.vector_norm(gradient, ord=self.dual_order, dim=1)

    @abstractmethod
    def project(self, v: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return the nearest perturbation to each row in the ball of a radius and in a box.

        `box` holds the limits of the perturbation, shaped like v, and always contains 0.
        """

    @abstractmethod
    def ascent(self, gradient: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return the direction of norm 1 in which the loss grows fastest (0 where it is flat).

        It is finite where the gradient is not.
        """

    def linear_argmax(self, gradient: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return argmax <gradient, d> over the allowed perturbations d of each row.

        It is the projection of a point far out along the gradient, whose normal cone contains it.
        """
        far = FAR * (1 + self.radius)
        direction = self.ascent(gradient, radius, box)
        return self.project(direction * far, radius, box)

    @abstractmethod
    def draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return random perturbations of this shape, uniform in the ball of radius 1."""


@dataclass(frozen=True, eq=False)
class Region:
    """The allowed perturbations of the points x (points, features): a ball, cut by a box.

    `limits` bound the inputs themselves. `storage` is the number format in which perturbed inputs
    are returned. `radius` is that of the threat, or one for each point.
    """

    threat: Threat
    x: Tensor
    limits: Limits
    storage: torch.dtype
    radius: Length

    @cached_property
    def delta_bounds(self) -> Limits:
        """Smallest and largest perturbation of each coordinate, (points, features) each."""
        if self.limits is None:
            return None
        low = self.limits[0] - self.x
        high = self.limits[1] - self.x
        return low.clamp_(max=0), high.clamp_(min=0)

    def draw(self, seed: int, *, extreme: bool = False, shared: bool = True) -> Tensor:
        """Return random allowed perturbations, from inside the ball or its extreme points.

        Random numbers are `shared`: they are the same for every point, so that a point's result
        depends neither on the other points nor on the batch.
        """
        generator = torch.Generator().manual_seed(seed)
        shape = (1 if shared else len(self.x), self.x.shape[1])
        if extreme:  # where a random linear function is largest
            g = torch.randn(shape, generator=generator)
            delta = self.threat.ascent(g, 1.0, None)
        else:
            delta = self.threat.draw(shape, generator)
        delta = delta.to(self.x) * self.threat.radius
        each = delta.expand_as(self.x)
        return self.project(each)

    def project(self, delta: Tensor) -> Tensor:
        """Return the Euclidean projection of each row on the region."""
        return self.threat.project(delta, self.radius, self.delta_bounds)

    def ascent(self, gradient: Tensor) -> Tensor:
        """Return the direction of steepest ascent of each row."""
        return self.threat.ascent(gradient, self.radius, self.delta_bounds)

    def linear_argmax(self, gradient: Tensor) -> Tensor:
        """Return the allowed perturbation that a linear function with this gradient prefers."""
        return self.threat.linear_argmax(gradient, self.radius, self.delta_bounds)

    def with_radius(self, radius: Length) -> Region:
        """Return the region of the same points with another radius, or one for each point."""
        threat = self.threat
        if not isinstance(radius, Tensor):
            threat = threat.with_radius(radius)
        return dataclasses.replace(self, threat=threat, radius=radius)

    def perturbed(self, delta: Tensor) -> Tensor:
        """Return x + delta as the model is to see it."""
        moved = self.x + delta
        if self.storage == moved.dtype:
            return moved
        return self.store(delta).to(moved)

    def store(self, delta: Tensor) -> Tensor:
        """Return x + delta in the storage format, within the limits, no farther than delta."""
        moved = self.x + delta
        if self.limits is not None:
            moved = moved.clamp(*self.limits)
        moved = moved.to(self.storage)
        exact = moved.double() - self.x.double()
        too_far = exact.abs() > delta.double().abs()
        nearer = torch.nextafter(moved, self.x.to(self.storage))
        return torch.where(too_far, nearer, moved)

    def store_exactly(self, delta: Tensor) -> Tensor:
        """Return x + delta in the storage format, inside the ball in exact arithmetic."""
        moved = self.store(delta)
        radius = self.threat.radius
        spacing = torch.finfo(moved.dtype).eps
        for _ in range(MAX_SHRINKS):
            exact = moved.double() - self.x.double()
            size = self.threat.size(exact)[:, None]
            over = size > radius
            if not bool(over.any()):
                return moved
            shrink = radius / size * (1 - 4 * spacing)
            shorter = exact * shrink
            smaller = self.store(shorter.to(self.x))
            moved = torch.where(over, smaller, moved)
        return torch.where(over, self.x.to(self.storage), moved)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Region:
        """Return the region with points and limits changed in the same way."""
        x = change(self.x)
        limits = self.limits
        if limits is not None:
            limits = change(limits[0]), change(limits[1])
        return dataclasses.replace(self, x=x, limits=limits)

    def take(self, rows: Tensor) -> Region:
        """Return the region of some of the points."""
        return self.changed(itemgetter(rows))


@dataclass(frozen=True, eq=False)
class L2(Threat):
    """Perturbations of Euclidean norm at most `radius`."""

    name: ClassVar[str] = "l2"
    order = 2
    dual_order = 2

    def project(self, v: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return clip(s v, low, high) with the largest s in [0, 1] that keeps the norm.

        h(q) = |clip(sqrt(q) v, low, high)|^2 is concave, piecewise linear and grows with q = s^2.
        The tangent at any q meets radius^2 at or before h does, so Newton's steps, after the
        first, go up to the root and stop there exactly.
        """
        tiny = torch.finfo(v.dtype).tiny
        target = torch.as_tensor(radius, dtype=v.dtype, device=v.device) ** 2
        clipped = v if box is None else v.clamp(*box)
        norm = _squares(clipped)
        over = norm > target
        q = torch.where(over, target / norm, 1)
        if box is None:
            return v * q.sqrt()
        least = target / _squares(v).clamp(min=tiny)
        grows = 1 + 8 * torch.finfo(v.dtype).eps
        moving = over
        while bool(moving.any()):
            w = v * q.sqrt()
            clipped = w.clamp(*box)
            moves = torch.where(clipped == w, w, 0)
            free = _squares(moves)
            fixed = _squares(clipped) - free
            crossing = q * (target - fixed) / free
            crosses = (free > 0) & (fixed < target)
            root = torch.where(crosses, crossing, least)
            larger = root > q * grows
            moving = over & ((moving is over) | larger)
            q = torch.where(moving, root, q)
        w = v * q.sqrt()
        clipped = w.clamp(*box)
        rounding = target / _squares(clipped).clamp(min=tiny)
        return clipped * rounding.clamp(max=1).sqrt()

    def ascent(self, gradient: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return g / |g|, which neither overflows nor vanishes however large or small g is."""
        tiny = torch.finfo(gradient.dtype).tiny
        peak = gradient.abs().amax(1, keepdim=True)
        scaled = gradient / peak.clamp(min=tiny)
        scaled = scaled.nan_to_num_()
        norm = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        return scaled / norm.clamp(min=tiny)

    def draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return points uniform in the ball: on the sphere of two more dimensions, cut off."""
        points, width = shape
        g = torch.randn((points, width + 2), generator=generator)
        sphere = self.ascent(g, 1.0, None)
        return sphere[:, :width]


@dataclass(frozen=True, eq=False)
class Linf(Threat):
    """Perturbations that change no coordinate by more than `radius`."""

    name: ClassVar[str] = "linf"
    order = torch.inf
    dual_order = 1

    def project(self, v: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return clip(v, max(low, -radius), min(high, radius)): the problem is separable."""
        d = v.clamp(-radius, radius)
        if box is None:
            return d
        return d.clamp_(*box)

    def ascent(self, gradient: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return sign(g)."""
        return gradient.sign()

    def draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return points uniform in the cube."""
        return torch.empty(shape).uniform_(-1, 1, generator=generator)


@dataclass(frozen=True, eq=False)
class L1(Threat):
    """Perturbations whose absolute values sum to at most `radius`."""

    name: ClassVar[str] = "l1"
    order = 1
    dual_order = torch.inf

    def project(self, v: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return sign(v) min(max(|v| - t, 0), c) with the smallest t >= 0 that keeps the norm.

        c_i is the distance to the box in the direction of v_i. The norm falls with t, linearly
        between the break points |v_i| and |v_i| - c_i; one sort finds where it is the radius.
        """
        a = v.abs()
        points = a
        slope = torch.ones_like(a)
        cap = torch.full_like(a, torch.inf)
        if box is not None:
            cap = torch.where(v > 0, box[1], -box[0])
            # Going down from t = inf, coordinate i starts to grow at a_i and stops at a_i - c_i.
            points = torch.cat([a, a - cap], 1)
            slope = torch.cat([slope, -slope], 1)
        largest = torch.minimum(a, cap)
        inside = largest.sum(1, keepdim=True) <= radius
        points, order = points.sort(dim=1, descending=True)
        # The slope of the norm just below each break point, and the norm at each.
        slope = slope.gather(1, order).cumsum(1)
        gaps = points[:, :-1] - points[:, 1:]
        grown = slope[:, :-1] * gaps
        norm = torch.zeros_like(points)
        norm[:, 1:] = grown.cumsum(1)
        below = (norm < radius).sum(1, keepdim=True)
        piece = (below - 1).clamp_(min=0)
        missing = radius - norm.gather(1, piece)
        more = missing / slope.gather(1, piece)
        t = points.gather(1, piece) - more
        t = torch.where(inside, 0, t.clamp(min=0))
        left = (a - t).clamp_(min=0)
        return v.sign() * torch.minimum(left, cap)

    def ascent(self, gradient: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return argmax <g, d> over |d|_1 <= 1, each coordinate within its share of the box.

        Without a box that is one coordinate. In a box the steepest coordinates are filled in
        turn, as the best perturbation of a linear model does.
        """
        a = gradient.abs()
        if box is None or self.radius == 0:
            best = a.argmax(1, keepdim=True)
            value = gradient.gather(1, best).sign()
            return torch.zeros_like(gradient).scatter_(1, best, value)
        reach = torch.where(gradient > 0, box[1], -box[0])
        room = (reach / radius).clamp_(max=1)
        room = torch.where(gradient != 0, room, 0)
        order = a.argsort(1, descending=True)
        room = room.gather(1, order)
        used = room.cumsum(1) - room  # by steeper coordinates
        unused = (1 - used).clamp_(min=0)
        filled = torch.minimum(room, unused)
        step = torch.zeros_like(a)
        step.scatter_(1, order, filled)
        return step * gradient.sign()

    def linear_argmax(self, gradient: Tensor, radius: Length, box: Limits) -> Tensor:
        """Return the steepest coordinates, filled in turn."""
        return self.ascent(gradient, radius, box) * radius

    def draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Return points uniform in the ball: shares of one more exponential, with signs."""
        points, width = shape
        sign = torch.randn(shape, generator=generator).sign()
        parts = sign.new_empty((points, width + 1)).exponential_(generator=generator)
        share = parts / parts.sum(1, keepdim=True)
        return sign * share[:, :width]


def _squares(v: Tensor) -> Tensor:
    return v.square().sum(1, keepdim=True)


def check_threat(threat: Threat) -> Threat:
    """Return the threat, if it is one."""
    return instance(
        "threat", threat, Threat, "L1, L2 or Linf of a radius, as in L2(0.5)"
    )


def broadcast(name: str, value: Any, shape: torch.Size) -> Tensor:
    """Return a value that was given for arrays of this shape, expanded to it."""
    given = as_tensor(name, value)
    try:
        return given.expand(shape)
    except RuntimeError:
        raise InputError(
            f"{name} must be a number or an array that fits {tuple(shape)}, got shape "
            f"{tuple(given.shape)}"
        ) from None


def _fit(name: str, value: Any, x: Tensor) -> Tensor:
    """Return a value for one input as (1, features), for all inputs as (points, features)."""
    given = as_tensor(name, value)
    single = x[:1].shape
    if given.ndim == x.ndim and len(given) > 1:
        single = x.shape
    fitted = broadcast(name, given, single)
    return fitted.flatten(1).to(x.device)


def _round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the smallest numbers of a format that are not below `value` (double)."""
    near = value.to(dtype)
    top = torch.full_like(near, torch.inf)
    above = torch.nextafter(near, top)
    return torch.where(near.double() < value, above, near)
