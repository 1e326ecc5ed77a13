"""What an adversary may do: move each input within a ball, and within the inputs' box.

A threat model knows its geometry and nothing of networks: the Euclidean projection on the allowed
set, the direction of steepest ascent, the dual norm, random starting points.
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
from overt.robust.threats.keyed_random import keys_of, normal

Bounds = Any
"""None, "data", or a pair (low, high) of numbers or of arrays that fit one input."""

Box: TypeAlias = tuple[Tensor, Tensor] | None
"""The least and the largest perturbation of each coordinate, (points, features) each."""

Size: TypeAlias = float | Tensor
"""Length of a step, one for all points or a column (points, 1)."""


ROUNDING = 1e-4
"""Share of the radius from which the rounding of inputs is attended to at every step."""


@dataclass(frozen=True, eq=False)
class Threat(ABC):
    """A ball of perturbations around each input.

    Parameters
    ----------
    radius
        Largest norm of a perturbation, in the units of the inputs (for pixels stored as 0..255 a
        radius of 8 is what the literature calls 8/255).
    bounds
        Smallest and largest value that an input may take: a pair (low, high) of numbers or of
        arrays that fit one input, "data" for the range of the given inputs, None for no limits.
    """

    radius: float
    bounds: Bounds = None
    name: ClassVar[str]
    order: ClassVar[float]  # of the norm, and of its dual
    dual_order: ClassVar[float]
    wide: ClassVar[torch.dtype | None] = None  # number format that the norm is summed in
    has_kernel: ClassVar[bool] = False  # whether `kernels` takes its steps in a box in one pass
    __eq__ = Result.__eq__  # by value, arrays included

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", number("radius", self.radius))
        if self.bounds is None or (isinstance(self.bounds, str) and self.bounds == "data"):
            return
        if isinstance(self.bounds, str) or not isinstance(self.bounds, (tuple, list)):
            raise InputTypeError(
                f'bounds must be None, "data" or a pair (low, high), got {self.bounds!r}'
            )
        if len(self.bounds) != 2:
            raise InputError(f"bounds must be a pair (low, high), got {len(self.bounds)} values")
        low, high = (tensor("bounds", value) for value in self.bounds)
        if not (bool((low <= high).all()) and bool((low < high).any())):
            raise InputError(
                f"bounds must be (low, high) with low below high, got {_brief(self.bounds)}"
            )

    def __hash__(self) -> int:
        return hash((self.name, self.radius))

    def at(self, radius: float) -> Self:
        """Return the same threat with another radius."""
        return dataclasses.replace(self, radius=radius)

    def within(self, x: Tensor) -> Self:
        """Return the same threat with its bounds settled for the inputs x, and check that x fits.

        The range of the data is that of all of x, so that it does not depend on batches.
        """
        if self.bounds is None:
            return self
        if isinstance(self.bounds, str):
            low, high = float(x.min()), float(x.max())
            return dataclasses.replace(self, bounds=(low, high) if low < high else None)
        low, high = self.box(x)
        if not (fits(low, x[0]) and fits(high, x[0])):
            raise InputError(
                f"bounds must be numbers or arrays that fit one input, {tuple(x.shape[1:])}, got "
                f"shapes {tuple(low.shape)} and {tuple(high.shape)}"
            )
        least, most = (x.amin(), x.amax()) if low.ndim == high.ndim == 0 else (x, x)
        if bool((least < low).any()) or bool((most > high).any()):
            raise InputError(
                f"bounds must contain the inputs, got bounds {_brief(self.bounds)} and inputs "
                f"between {float(x.min()):.4g} and {float(x.max()):.4g}; were the inputs "
                'normalized? bounds="data" takes their range'
            )
        return self

    def box(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (low, high) in the number format of x, broadcastable to x."""
        low, high = (tensor("bounds", value).to(x) for value in self.bounds)
        return low, high

    def _inner_box(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (low, high) rounded inward to the number format of x."""
        low, high = (tensor("bounds", value).double().to(x.device) for value in self.bounds)
        return _round_up(low, x.dtype), -_round_up(-high, x.dtype)

    def region(self, x: Tensor) -> Region:
        """Return the set of allowed perturbations of the inputs x (points, ...)."""
        flat = x.flatten(1).contiguous()
        if self.bounds is None:
            return Region(self, flat, None)
        limits = self._inner_box(x)
        low, high = (limit.expand_as(x[0]).flatten().contiguous() for limit in limits)
        return Region(self, flat, (low, high))

    def size(self, delta: Tensor) -> Tensor:
        """Return the norm of each row, (points,)."""
        return torch.linalg.vector_norm(delta, ord=self.order, dim=1, dtype=self.wide)

    def dual(self, gradient: Tensor) -> Tensor:
        """Return max <gradient, d> over |d| <= 1 for each row, (points,)."""
        return torch.linalg.vector_norm(gradient, ord=self.dual_order, dim=1)

    @abstractmethod
    def project(self, v: Tensor, box: Box, out: Tensor | None = None) -> Tensor:
        """Return the nearest allowed perturbation to each row."""

    @abstractmethod
    def ascent(self, gradient: Tensor, box: Box) -> Tensor:
        """Return the direction of norm 1 in which the loss grows fastest (0 where it is flat).

        It is finite where the gradient is not, and may take over the gradient's memory.
        """

    @abstractmethod
    def draw(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return random perturbations in the ball, one row for each key."""

    def extreme(self, keys: Tensor, width: int, like: Tensor) -> Tensor:
        """Return random extreme points of the ball: where a random linear function is largest."""
        return self.radius * self.ascent(normal(keys, width, like), None)


@dataclass(frozen=True, eq=False)
class Region:
    """The allowed perturbations of the points x (points, features): a ball, cut by a box.

    `limits` are the smallest and the largest input, (features,) each.
    """

    threat: Threat
    x: Tensor
    limits: Box

    def __post_init__(self) -> None:
        if not self.threat.radius < torch.finfo(self.x.dtype).max / 8:
            raise InputError(f"the radius must fit {self.x.dtype}, got {self.threat.radius:g}")

    @cached_property
    def box(self) -> Box:
        """What the limits leave to each perturbation, (points, features) each."""
        if self.limits is None:
            return None
        low, high = self.limits
        # An input at a bound may lie beyond it by its rounding.
        return (low - self.x).clamp_(max=0), (high - self.x).clamp_(min=0)

    def draw(self, seed: int, *, extreme: bool = False) -> Tensor:
        """Return random allowed perturbations, which belong to the points and not to their place.

        They come from inside the ball or, if `extreme`, from its extreme points.
        """
        draw = self.threat.extreme if extreme else self.threat.draw
        return self.project(draw(keys_of(self.x, seed), self.x.shape[1], self.x))

    def project(self, delta: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the Euclidean projection of each row on the region."""
        return self.threat.project(delta, self.box, out)

    def at(self, radius: float) -> Region:
        """Return the region of the same points with another radius."""
        return Region(self.threat.at(radius), self.x, self.limits)

    @cached_property
    def coarse(self) -> bool:
        """Whether the rounding of the inputs is no longer small beside the radius."""
        spread = self.x.shape[1] ** (1 / self.threat.order) if self.threat.order else 0.0
        largest = max(abs(float(limit)) for limit in torch.aminmax(self.x))
        rounding = largest * torch.finfo(self.x.dtype).eps
        return spread * rounding > ROUNDING * self.threat.radius

    def moved(self, delta: Tensor) -> Tensor:
        """Return x + delta as the model is to see it, inside also where x is coarse."""
        return self.place(delta) if self.coarse else self.x + delta

    def place(self, delta: Tensor) -> Tensor:
        """Return x + delta as stored, within the limits and no farther from x than delta is."""
        moved = self.x + delta
        if self.limits is not None:
            moved = moved.clamp(*self.limits)
        away = (moved.double() - self.x.double()).abs() > delta.double().abs()
        return torch.where(away, torch.nextafter(moved, self.x), moved)

    def settle(self, delta: Tensor) -> Tensor:
        """Return x + delta as stored, its distance from x at most the radius in exact numbers."""
        moved = self.place(delta)
        for _ in range(8):
            exact = moved.double() - self.x.double()
            size = self.threat.size(exact).double()
            over = (size > self.threat.radius)[:, None]
            if not bool(over.any()):
                break
            shrink = self.threat.radius / size * (1 - 4 * torch.finfo(moved.dtype).eps)
            moved = torch.where(over, self.place((exact * shrink[:, None]).to(moved)), moved)
        return moved

    def advance(self, delta: Tensor, gradient: Tensor, size: Size, moved: Tensor) -> None:
        """Take a step along the direction of steepest ascent; may use the gradient's memory.

        In place: delta <- project(delta + size direction), moved <- x + delta.
        """
        if self.threat.has_kernel and self.limits is not None and compiles(delta):
            from overt.robust.threats.kernels import l2_step

            sizes = torch.as_tensor(size, dtype=delta.dtype).expand(len(delta), 1).squeeze(1)
            given = (self.x, delta, gradient, sizes, *self.limits, moved)
            x, d, g, s, low, high, m = (t.contiguous().numpy() for t in given)
            l2_step(x, d, g, s, self.threat.radius, low, high, m)
            if self.coarse:
                moved.copy_(self.place(delta))
        else:
            self.climb(delta, self.threat.ascent(gradient, self.box), size, moved)

    def climb(self, delta: Tensor, direction: Tensor, size: Size, moved: Tensor) -> None:
        """Take a step along any direction, in place."""
        if isinstance(size, Tensor):
            torch.addcmul(delta, direction, size, out=moved)
        else:
            torch.add(delta, direction, alpha=size, out=moved)
        self.project(moved, out=delta)
        if self.coarse:
            moved.copy_(self.place(delta))
        else:
            torch.add(self.x, delta, out=moved)

    def take(self, rows: Tensor) -> Region:
        """Return the region of some of the points."""
        return Region(self.threat, self.x[rows], self.limits)


def compiles(v: Tensor) -> bool:
    """Return whether the compiled functions of `kernels` can work on v."""
    return v.device.type == "cpu" and v.dtype in (torch.float32, torch.float64)


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
            raise InputTypeError(f"{name} must be a plain tensor of numbers, got {value!r:.60}")
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


def fits(limit: Tensor, one: Tensor) -> bool:
    """Return whether a limit can be broadcast to one input."""
    return limit.ndim <= one.ndim and all(
        size in (1, wanted)
        for size, wanted in zip(limit.shape[::-1], one.shape[::-1], strict=False)
    )


def _round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the smallest numbers of a format that are not below `value`."""
    near = value.to(dtype)
    above = torch.nextafter(near, torch.full_like(near, torch.inf))
    return torch.where(near.double() < value, above, near)


def _brief(bounds: Any) -> str:
    low, high = (tensor("bounds", value) for value in bounds)
    return f"({float(low.min()):.4g}, {float(high.max()):.4g})"
