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
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from overt._check import InputError, InputTypeError, number, plain_array
from overt.results import Result
from overt.robust.keyed_random import keys_of, normal, uniform

Bounds = Any
"""None, "data", or a pair (low, high) of numbers or of arrays that fit one input or all inputs."""

Limits: TypeAlias = tuple[Tensor, Tensor] | None
"""Smallest and largest values, (1, features) or (points, features) each; None without limits."""

Length: TypeAlias = float | Tensor
"""Length of a step: one number, or a column (points, 1)."""

MAX_ROUNDING = 1e-4
"""Share of the radius above which the rounding of stored inputs is handled at every step."""

UNLIMITED = 1e30
"""Limit of features that may change freely beside others that may not; finite in every format."""


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
        that fit one input, or of arrays shaped like all inputs; "data" for the range of the given
        inputs; None for no limits.
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
    sum_dtype: ClassVar[torch.dtype | None] = None  # in which the norm is summed
    __eq__ = Result.__eq__  # by value, arrays included

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", number("radius", self.radius))
        if self.bounds is None or (
            isinstance(self.bounds, str) and self.bounds == "data"
        ):
            return
        if isinstance(self.bounds, str) or not isinstance(self.bounds, (tuple, list)):
            raise InputTypeError(
                f'bounds must be None, "data" or a pair (low, high), got {self.bounds!r}'
            )
        if len(self.bounds) != 2:
            raise InputError(
                f"bounds must be a pair (low, high), got {len(self.bounds)} values"
            )
        low = tensor("bounds", self.bounds[0])
        high = tensor("bounds", self.bounds[1])
        if not (bool((low <= high).all()) and bool((low < high).any())):
            raise InputError(
                f"bounds must be (low, high) with low below high, got {_brief(self.bounds)}"
            )

    def __hash__(self) -> int:
        return hash((self.name, self.radius))

    def with_radius(self, radius: float) -> Self:
        """Return the same threat with another radius."""
        return dataclasses.replace(self, radius=radius)

    def input_bounds(self, x: Tensor) -> Limits:
        """Return the limits of each feature of the inputs x, and check that x fits them.

        Limits are rounded inward to the number format of x. The range of "data" is that of all
        of x, so that it does not depend on batches.
        """
        limits = self._given_bounds(x)
        if self.mutable is None:
            return limits
        flat = x.flatten(1)
        mutable = (
            _fit("mutable", tensor("mutable", self.mutable), x).bool().to(x.device)
        )
        if limits is None:
            limits = (flat - UNLIMITED, flat + UNLIMITED)
        return torch.where(mutable, limits[0], flat), torch.where(
            mutable, limits[1], flat
        )

    def _given_bounds(self, x: Tensor) -> Limits:
        if self.bounds is None:
            return None
        if isinstance(self.bounds, str):
            low, high = x.min(), x.max()
            return (low.view(1, 1), high.view(1, 1)) if bool(low < high) else None
        exact = [_fit("bounds", tensor("bounds", part), x) for part in self.bounds]
        low, high = (part.double().to(x.device) for part in exact)
        flat = x.flatten(1)
        # An input that equals a bound up to the rounding of its format is not outside.
        outside = (flat < low.to(x.dtype)) | (flat > high.to(x.dtype))
        if bool(outside.any()):
            raise InputError(
                f"bounds must contain the inputs, got bounds {_brief(self.bounds)} and inputs "
                f"between {float(x.min()):.4g} and {float(x.max()):.4g}; were the inputs "
                'normalized? bounds="data" takes their range'
            )
        return _round_up(low, x.dtype), -_round_up(-high, x.dtype)

    def region(self, x: Tensor, storage: torch.dtype | None = None) -> Region:
        """Return the set of allowed perturbations of the inputs x (points, ...)."""
        return Region.of(self, x, self.input_bounds(x), storage or x.dtype)

    def size(self, delta: Tensor) -> Tensor:
        """Return the norm of each row, (points,)."""
        return torch.linalg.vector_norm(
            delta, ord=self.order, dim=1, dtype=self.sum_dtype
        )

    def dual(self, gradient: Tensor) -> Tensor:
        """Return max <gradient, d> over |d| <= 1 for each row, (points,)."""
        return torch.linalg.vector_norm(gradient, ord=self.dual_order, dim=1)

    @abstractmethod
    def project(self, v: Tensor, box: Limits, out: Tensor | None = None) -> Tensor:
        """Return the nearest allowed perturbation to each row.

        `box` holds the limits of the perturbation, shaped like v, and always contains 0.
        """

    @abstractmethod
    def ascent(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return the direction of norm 1 in which the loss grows fastest (0 where it is flat).

        It is finite where the gradient is not, and may overwrite the gradient.
        """

    def linear_argmax(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return argmax <gradient, d> over the allowed perturbations d of each row."""
        return self.ascent(gradient.clone(), box) * self.radius

    @abstractmethod
    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return random perturbations in the ball, one row for each key."""

    def draw_extreme(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return random extreme points of the ball: where a random linear function is largest."""
        return self.radius * self.ascent(normal(keys, width, like), None)


@dataclass(frozen=True, eq=False)
class Region:
    """The allowed perturbations of the points x (points, features): a ball, cut by a box.

    `limits` bound the inputs themselves. `storage` is the number format in which perturbed inputs
    are returned; `coarse` says whether its rounding is no longer small beside the radius.
    """

    threat: Threat
    x: Tensor
    limits: Limits
    storage: torch.dtype
    coarse: bool

    @classmethod
    def of(
        cls, threat: Threat, x: Tensor, limits: Limits, storage: torch.dtype
    ) -> Region:
        """Return the region of inputs of any shape."""
        if not threat.radius < torch.finfo(x.dtype).max / 8:
            raise InputError(f"the radius must fit {x.dtype}, got {threat.radius:g}")
        flat = x.flatten(1).contiguous()
        if limits is not None:
            rows = max(len(part) for part in limits)
            low, high = (
                part.expand(rows, flat.shape[1]).contiguous() for part in limits
            )
            limits = (low, high)
        coordinates = flat.shape[1] ** (1 / threat.order) if threat.order else 0.0
        rounding = float(flat.abs().max()) * torch.finfo(storage).eps
        coarse = coordinates * rounding > MAX_ROUNDING * threat.radius
        return cls(threat, flat, limits, storage, coarse)

    @cached_property
    def delta_bounds(self) -> Limits:
        """Smallest and largest perturbation of each coordinate, (points, features) each."""
        if self.limits is None:
            return None
        low, high = self.limits
        return (low - self.x).clamp_(max=0), (high - self.x).clamp_(min=0)

    def draw(self, seed: int, *, extreme: bool = False) -> Tensor:
        """Return random allowed perturbations that depend on the points' values, not their order.

        They come from inside the ball or, if `extreme`, from its extreme points.
        """
        draw = self.threat.draw_extreme if extreme else self.threat.draw
        return self.project(draw(keys_of(self.x, seed), self.x.shape[1], self.x))

    def project(self, delta: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the Euclidean projection of each row on the region."""
        return self.threat.project(delta, self.delta_bounds, out)

    def project_each(self, delta: Tensor, radii: Tensor) -> Tensor:
        """Return the projection of each row on the ball of its radius (points,), in the box."""
        unit = radii.clamp(min=1e-30)[:, None].to(delta)
        box = self.delta_bounds
        if box is not None:
            box = (box[0] / unit, box[1] / unit)
        return self.threat.with_radius(1.0).project(delta / unit, box) * unit

    def argmax_each(self, gradient: Tensor, radii: Tensor) -> Tensor:
        """Return the linear maximizer of each row in the ball of its radius (points,)."""
        unit = radii.clamp(min=1e-30)[:, None].to(gradient)
        box = self.delta_bounds
        if box is not None:
            box = (box[0] / unit, box[1] / unit)
        return self.threat.with_radius(1.0).linear_argmax(gradient, box) * unit

    def linear_argmax(self, gradient: Tensor) -> Tensor:
        """Return the allowed perturbation that a linear function with this gradient prefers."""
        return self.threat.linear_argmax(gradient, self.delta_bounds)

    def with_radius(self, radius: float) -> Region:
        """Return the region of the same points with another radius."""
        return dataclasses.replace(self, threat=self.threat.with_radius(radius))

    def perturbed(self, delta: Tensor) -> Tensor:
        """Return x + delta as the model is to see it."""
        return self.seen(delta) if self.coarse else self.x + delta

    def seen(self, delta: Tensor) -> Tensor:
        """Return what `store` makes of x + delta, in the number format of x."""
        return self.store(delta).to(self.x.dtype)

    def store(self, delta: Tensor) -> Tensor:
        """Return x + delta in the storage format, within the limits, no farther than delta."""
        moved = self.x + delta
        if self.limits is not None:
            moved = moved.clamp(*self.limits)
        moved = moved.to(self.storage)
        x = self.x.to(self.storage)
        too_far = (moved.double() - self.x.double()).abs() > delta.double().abs()
        return torch.where(too_far, next_toward(moved, x), moved)

    def store_exactly(self, delta: Tensor) -> Tensor:
        """Return x + delta in the storage format, inside the ball in exact arithmetic."""
        moved = self.store(delta)
        for _ in range(8):
            exact = moved.double() - self.x.double()
            size = self.threat.size(exact).double()
            over = (size > self.threat.radius)[:, None]
            if not bool(over.any()):
                return moved
            shrink = self.threat.radius / size * (1 - 4 * torch.finfo(moved.dtype).eps)
            smaller = self.store((exact * shrink[:, None]).to(self.x))
            moved = torch.where(over, smaller, moved)
        return torch.where(over, self.x.to(self.storage), moved)

    def steepest_step(
        self, delta: Tensor, gradient: Tensor, length: Length, moved: Tensor
    ) -> None:
        """Step along the direction of steepest ascent, in place; may overwrite the gradient.

        delta <- project(delta + length direction), moved <- x + delta.
        """
        self.step(delta, self.threat.ascent(gradient, self.delta_bounds), length, moved)

    def step(
        self, delta: Tensor, direction: Tensor, length: Length, moved: Tensor
    ) -> None:
        """Step along any direction, in place."""
        if isinstance(length, Tensor):
            torch.addcmul(delta, direction, length, out=moved)
        else:
            torch.add(delta, direction, alpha=length, out=moved)
        self.project(moved, out=delta)
        if self.coarse:
            moved.copy_(self.perturbed(delta))
        else:
            torch.add(self.x, delta, out=moved)

    def to(self, device: torch.device) -> Region:
        """Return the region on another device."""
        if self.x.device == device:
            return self
        limits = self.limits
        if limits is not None:
            limits = (limits[0].to(device), limits[1].to(device))
        return dataclasses.replace(self, x=self.x.to(device), limits=limits)

    def double(self) -> Region:
        """Return the region in double precision."""
        limits = self.limits
        if limits is not None:
            limits = (limits[0].double(), limits[1].double())
        return dataclasses.replace(self, x=self.x.double(), limits=limits)

    def take(self, rows: Tensor) -> Region:
        """Return the region of some of the points."""
        limits = self.limits
        if limits is not None and len(limits[0]) > 1:
            limits = (limits[0][rows], limits[1][rows])
        return Region(self.threat, self.x[rows], limits, self.storage, self.coarse)


@dataclass(frozen=True, eq=False)
class L2(Threat):
    """Perturbations of Euclidean norm at most `radius`."""

    name: ClassVar[str] = "l2"
    order, dual_order = 2, 2
    sum_dtype = torch.float64  # its squares do not overflow

    def project(self, v: Tensor, box: Limits, out: Tensor | None = None) -> Tensor:
        """Return clip(s v, low, high) with the largest s in [0, 1] that keeps the norm."""
        # Squares of perturbations as long as a very large radius would overflow.
        large = self.radius > torch.finfo(v.dtype).max ** 0.4
        if box is None:
            wide = torch.float64 if large else None
            norm = torch.linalg.vector_norm(v, dim=1, keepdim=True, dtype=wide)
            shrink = self.radius / norm.clamp(
                min=max(self.radius, torch.finfo(v.dtype).tiny)
            )
            return torch.mul(v, shrink.to(v.dtype), out=out)
        out = torch.empty_like(v) if out is None else out
        if large and v.dtype != torch.float64:
            exact = self.project(v.double(), (box[0].double(), box[1].double()))
            return out.copy_(exact)
        return l2_in_box(v, self.radius, *box, out)

    def ascent(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return g / |g|, which neither overflows nor vanishes however large or small g is."""
        tiny = torch.finfo(gradient.dtype).tiny
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        least, most = torch.aminmax(norm)
        if not (float(least) > tiny**0.4 and float(most) < torch.inf):
            usual = (norm > tiny**0.4) & torch.isfinite(norm)
            peak = gradient.abs().amax(1, keepdim=True).clamp(min=tiny)
            gradient = torch.where(usual, gradient, (gradient / peak).nan_to_num_())
            norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        return gradient.div_(norm.clamp_(min=tiny))

    def linear_argmax(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return the projection of a point far out along g, whose normal cone contains g."""
        far = 1e8 * max(self.radius, 1.0)
        return self.project(self.ascent(gradient.clone(), box) * far, box)

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

    def project(self, v: Tensor, box: Limits, out: Tensor | None = None) -> Tensor:
        """Return clip(v, max(low, -radius), min(high, radius)): the problem is separable."""
        d = torch.clamp(v, -self.radius, self.radius, out=out)
        return d if box is None else d.clamp_(*box)

    def ascent(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return sign(g)."""
        return gradient.sign_()

    def linear_argmax(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return the vertex in the direction of g."""
        return self.project(gradient.sign() * self.radius, box)

    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return points uniform in the cube."""
        return (2 * uniform(keys, width, like) - 1) * self.radius


@dataclass(frozen=True, eq=False)
class L1(Threat):
    """Perturbations whose absolute values sum to at most `radius`."""

    name: ClassVar[str] = "l1"
    order, dual_order = 1, torch.inf

    def project(self, v: Tensor, box: Limits, out: Tensor | None = None) -> Tensor:
        """Return sign(v) min(max(|v| - t, 0), c) with the smallest t >= 0 that keeps the norm.

        c_i is the distance to the box in the direction of v_i. The norm falls with t, linearly
        between the break points |v_i| and |v_i| - c_i; one sort finds where it is the radius.
        """
        a = v.abs()
        points, slope = a, torch.ones_like(a)
        cap = torch.full_like(a, torch.inf)
        if box is not None:
            cap = torch.where(v > 0, box[1], -box[0])
            # Going down from t = inf, coordinate i starts to grow at a_i and stops at a_i - c_i.
            points = torch.cat([a, a - cap], 1)
            slope = torch.cat([slope, -slope], 1)
        inside = torch.minimum(a, cap).sum(1, keepdim=True) <= self.radius
        points, order = points.sort(dim=1, descending=True)
        slope = slope.gather(1, order).cumsum(
            1
        )  # of the norm just below each break point
        gaps = points[:, :-1] - points[:, 1:]
        norm = torch.zeros_like(points)
        norm[:, 1:] = (slope[:, :-1] * gaps).cumsum(1)  # at each break point
        piece = ((norm < self.radius).sum(1, keepdim=True) - 1).clamp_(min=0)
        missing = self.radius - norm.gather(1, piece)
        t = points.gather(1, piece) - missing / slope.gather(1, piece)
        t = torch.where(inside, 0, t.clamp(min=0))
        return torch.mul(v.sign(), torch.minimum((a - t).clamp_(min=0), cap), out=out)

    def ascent(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return argmax <g, d> over |d|_1 <= 1, each coordinate within its share of the box.

        Without a box that is one coordinate. In a box the steepest coordinates are filled in
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
        return (
            sign * share * self.radius * uniform(keys, 1, like, stream=2) ** (1 / width)
        )


@dataclass(frozen=True, eq=False)
class L0(Threat):
    """Perturbations that change at most `radius` coordinates, each anywhere within the bounds."""

    name: ClassVar[str] = "l0"
    order, dual_order = 0, torch.inf

    def input_bounds(self, x: Tensor) -> Limits:
        """Return the limits of each feature, without which an L0 ball is unbounded."""
        if self.bounds is None:
            raise InputError(
                'L0 must have bounds, as in L0(10, bounds=(0, 1)) or bounds="data"'
            )
        return super().input_bounds(x)

    def project(self, v: Tensor, box: Limits, out: Tensor | None = None) -> Tensor:
        """Return clip(v, low, high) at the coordinates that bring it nearest to v, 0 elsewhere."""
        d = v if box is None else torch.clamp(v, *box)
        gain = v.square() - (v - d).square()
        return torch.mul(d, self._largest(gain), out=out)

    def ascent(self, gradient: Tensor, box: Limits) -> Tensor:
        """Return argmax <g, d> over the allowed d, divided by the radius."""
        if self.radius < 1:
            return torch.zeros_like(gradient)
        room = torch.ones_like(gradient)
        if box is not None:
            room = torch.where(gradient > 0, box[1], -box[0])
        gain = (gradient.abs() * room).nan_to_num_(0, 0, 0)
        return self._largest(gain) * room * gradient.sign().nan_to_num_(0) / self.radius

    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return random coordinates at random ends of the box."""
        sign = (uniform(keys, width, like, stream=1) - 0.5).sign()
        order = uniform(keys, width, like).argsort(1)[:, : int(self.radius)]
        # The projection clips this to the box.
        return torch.zeros_like(sign).scatter_(1, order, 1e6) * sign

    draw_extreme = draw

    def _largest(self, gain: Tensor) -> Tensor:
        """Return 1 at the coordinates of largest gain, as many as the radius allows, else 0."""
        chosen = gain.topk(min(int(self.radius), gain.shape[1]), dim=1).indices
        return torch.zeros_like(gain).scatter_(1, chosen, 1.0)


def l2_in_box(
    v: Tensor, radius: float, low: Tensor, high: Tensor, out: Tensor
) -> Tensor:
    """Write clip(s v, low, high) to `out` with the largest s in [0, 1] that keeps the norm.

    h(q) = |clip(sqrt(q) v, low, high)|^2 is concave, piecewise linear and grows with q = s^2. The
    tangent at any q meets radius^2 at or before h does, so Newton's steps, after the first, go up
    to the root and stop there exactly.
    """
    target = min(radius * radius, torch.finfo(v.dtype).max)
    tiny = torch.finfo(v.dtype).tiny
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
        root = torch.where(
            (free > 0) & (fixed < target), q * (target - fixed) / free, least
        )
        first = moving is over
        moving = over & (first | (root > q * (1 + 8 * torch.finfo(v.dtype).eps)))
        q = torch.where(moving, root, q)
    torch.clamp(v * q.sqrt(), low, high, out=out)
    return out.mul_((target / _squares(out).clamp(min=max(target, tiny))).sqrt_())


def _squares(v: Tensor) -> Tensor:
    return v.square().sum(1, keepdim=True)


def check_threat(threat: Any) -> Threat:
    """Return the threat, if it is one."""
    if not isinstance(threat, Threat):
        raise InputTypeError(
            f"threat must be L0, L1, L2 or Linf of a radius, as in L2(0.5), got {threat!r}"
        )
    return threat


def tensor(name: str, value: Any) -> Tensor:
    """Return a tensor, an array, a data frame or a list of numbers as a tensor."""
    if isinstance(value, Tensor):
        if value.is_meta or value.is_nested or "float8" in str(value.dtype):
            raise InputTypeError(
                f"{name} must be a plain tensor of numbers, got {value!r:.60}"
            )
        return value.detach().to_dense()  # the same tensor, unless it is sparse
    array = plain_array(name, value)
    if array.dtype.kind not in "biufc":
        raise InputTypeError(
            f"{name} must be a tensor or an array of numbers, got {type(value).__name__} of "
            f"{array.dtype}"
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise InputError(f"{name} must hold numbers below 2^63, got {int(array.max())}")
    wide = {np.dtype(np.longdouble): np.float64, np.dtype(np.uint64): np.int64}
    native = wide.get(array.dtype, array.dtype.newbyteorder("="))
    # PyTorch takes neither negative strides nor foreign byte orders, and complains of read-only.
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.require(array, native, ["C", "W"]))


def fits(value: Tensor, one: Tensor) -> bool:
    """Return whether a value can be broadcast to one input."""
    return value.ndim <= one.ndim and all(
        size in (1, wanted)
        for size, wanted in zip(value.shape[::-1], one.shape[::-1], strict=False)
    )


def next_toward(value: Tensor, goal: Tensor) -> Tensor:
    """Return the next number from `value` toward `goal`, also in half precision."""
    if value.dtype in (torch.float32, torch.float64):
        return torch.nextafter(value, goal)
    # Formats of 16 bits: neighbors of a positive number have neighboring bit patterns.
    bits = value.view(torch.int16)
    outward = (goal.abs() > value.abs()) | (goal.sign() * value.sign() < 0) & (
        value == 0
    )
    step = torch.where(outward, 1, -1).to(torch.int16)
    moved = torch.where(value == goal, bits, bits + step).view(value.dtype)
    # From 0, and across 0, the goal is so near that 0 or the goal itself will do.
    return torch.where(
        (value == 0) | (goal * value < 0), torch.zeros_like(value), moved
    )


def _fit(name: str, value: Tensor, x: Tensor) -> Tensor:
    """Return a value for one input as (1, features), for all inputs as (points, features)."""
    if value.ndim == x.ndim and value.shape[0] == len(x) and fits(value[0], x[0]):
        return value.expand_as(x).flatten(1)
    one = value[0] if value.ndim == x.ndim and len(value) == 1 else value
    if not fits(one, x[0]):
        raise InputError(
            f"{name} must be numbers or arrays that fit one input, {tuple(x.shape[1:])}, or all "
            f"inputs, {tuple(x.shape)}, got shape {tuple(value.shape)}"
        )
    return one.expand_as(x[0]).flatten()[None]


def _round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the smallest numbers of a format that are not below `value` (double)."""
    near = value.to(dtype)
    return torch.where(
        near.double() < value, torch.nextafter(near, near.new_tensor(torch.inf)), near
    )


def _brief(bounds: Any) -> str:
    low, high = (tensor("bounds", value) for value in bounds)
    return f"({float(low.min()):.4g}, {float(high.max()):.4g})"
