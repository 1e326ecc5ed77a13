"""FGSM, BIM and PGD: the same ascent with different steps, and the rules for their lengths."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import final

from torch import Tensor

from overt._check import InputError, InputTypeError, number, whole
from overt.robust.attacks.ascent import StepSchedule, Walk, ascend, follow
from overt.robust.attacks.base import Attack
from overt.robust.attacks.points import Draw, Found, Points
from overt.robust.threats import Threat

FARTHEST = 1e30
"""Longest step: single precision has no longer ones, and balls are smaller."""


@dataclass(frozen=True)
class Constant(StepSchedule):
    """The same length throughout; 2.5 radius / steps if not given."""

    size: float | None = None

    def lengths(self, radius: float, steps: int) -> list[float]:
        """Return the length, so many times."""
        return [_first(self.size, 2.5 * radius / steps)] * steps


@dataclass(frozen=True)
class Decay(StepSchedule):
    """`size` (the radius if not given), multiplied by `factor` after every `every` steps."""

    size: float | None = None
    factor: float = 0.2
    every: int = 10

    def lengths(self, radius: float, steps: int) -> list[float]:
        """Return size factor^(step // every)."""
        size, factor = _first(self.size, radius), number("factor", self.factor)
        return [size * factor ** (step // whole("every", self.every)) for step in range(steps)]


@dataclass(frozen=True)
class Cosine(StepSchedule):
    """`size` (the radius if not given) times (1 + cos(pi step / steps)) / 2."""

    size: float | None = None

    def lengths(self, radius: float, steps: int) -> list[float]:
        """Return lengths that fall to 0."""
        size = _first(self.size, radius)
        return [size * (1 + math.cos(math.pi * k / steps)) / 2 for k in range(steps)]


@dataclass(frozen=True)
class Halving(StepSchedule):
    """`size` (the radius if not given), halved where a point's progress stops.

    At check points that come ever faster, a point that improved its best loss in fewer than
    `enough` of the steps since the last one goes back to its best iterate with half the step
    (Croce and Hein 2020, section 3.1).
    """

    size: float | None = None
    enough: float = 0.75

    def lengths(self, radius: float, steps: int) -> list[float]:
        """Return what is halved."""
        return [_first(self.size, radius)] * steps


def _first(size: float | None, usual: float) -> float:
    return usual if size is None else min(number("size", size), FARTHEST)


@dataclass(frozen=True)
class _Ascending(Attack):
    """An attack that follows the gradient."""

    @abstractmethod
    def walk(self, threat: Threat) -> Walk:
        """Return how to ascend within the threat."""

    @property
    def length(self) -> int:
        """Number of gradients of a run."""
        return self.walk(self.threat).steps

    def run(self, points: Points, start: Tensor, steps: int, escape: Draw) -> Found:
        """Attack one batch."""
        walk = replace(self.walk(points.region.threat), steps=steps)
        return ascend(points, start, walk, escape, early_exit=self.early_exit)

    def follow(self, points: Points, start: Tensor) -> Tensor:
        """Return the last iterate of a run from `start`: what training asks for."""
        return follow(points, start, self.walk(points.region.threat))


@final
@dataclass(frozen=True)
class FGSM(_Ascending):
    """One step of the whole radius in the direction of steepest ascent.

    For Linf that is the fast gradient sign method (Goodfellow et al. 2015). Training starts it at
    random, with a step of 1.25 radii (Wong et al. 2020), unless random_start is False.
    """

    _: KW_ONLY
    random_start: bool | None = None

    def walk(self, threat: Threat) -> Walk:
        """Return one step of the whole radius."""
        return Walk(1, Constant(threat.radius))

    def follow(self, points: Points, start: Tensor) -> Tensor:
        """Return the step from `start`, longer where that is random."""
        radius = points.region.threat.radius * (1.0 if self.random_start is False else 1.25)
        return follow(points, start, Walk(1, Constant(radius)))


@final
@dataclass(frozen=True)
class BIM(_Ascending):
    """Steps of equal length along the steepest direction (Kurakin et al. 2017).

    step_size is 2.5 radius / steps if not given.
    """

    _: KW_ONLY
    steps: int = 10
    step_size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("steps", self.steps)
        if self.step_size is not None:
            number("step_size", self.step_size)

    def walk(self, threat: Threat) -> Walk:
        """Return steps of equal length."""
        return Walk(self.steps, Constant(self.step_size))


@final
@dataclass(frozen=True)
class PGD(_Ascending):
    """Projected gradient ascent with steps that shorten.

    Parameters
    ----------
    steps
        Number of gradients of each run.
    schedule
        Lengths of the steps: Cosine(), Halving(), Decay(size, factor, every) or Constant(size).
    momentum
        Share of the last move that is added to the next.
    normalize
        Whether steps go along the steepest direction of the threat's norm; otherwise along the
        gradient itself, whatever its length, as in the thesis's Algorithm 5.
    larger
        Multiples of the radius to begin with: three tenths of the steps are taken in each of these
        larger balls, and what they find is projected on the next. For L1, (3, 2) finds more.
    """

    _: KW_ONLY
    steps: int = 50
    schedule: StepSchedule = Cosine()
    momentum: float = 0.0
    normalize: bool = True
    larger: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("steps", self.steps)
        if number("momentum", self.momentum) > 1e6:
            raise InputError(f"momentum must be at most 1e6, got {self.momentum!r}")
        if not isinstance(self.larger, (tuple, list)):
            raise InputTypeError(f"larger must be a list of factors, got {self.larger!r:.60}")
        if len(self.larger) > 3 or any(number("larger", f) < 1 for f in self.larger):
            raise InputError(f"larger must be at most three factors above 1, got {self.larger}")
        if not isinstance(self.schedule, StepSchedule):
            raise InputTypeError(
                "schedule must be Cosine(), Halving(), Decay(...) or Constant(...), "
                f"got {self.schedule!r}"
            )

    def walk(self, threat: Threat) -> Walk:
        """Return steps by the schedule, with momentum."""
        return Walk(self.steps, self.schedule, self.momentum, self.normalize)

    def run(self, points: Points, start: Tensor, steps: int, escape: Draw) -> Found:
        """Attack one batch, in larger balls first."""
        region, walk, spent = points.region, self.walk(points.region.threat), 0
        for factor in self.larger:
            there = replace(points, region=region.with_radius(factor * region.threat.radius))
            part = replace(walk, steps=3 * steps // 10)
            if part.steps:
                found = ascend(there, start, part, escape, early_exit=False)
                start, spent = region.project(found.delta), spent + found.gradients
        rest = replace(walk, steps=steps - len(self.larger) * (3 * steps // 10))
        found = ascend(points, start, rest, escape, early_exit=self.early_exit)
        found.gradients += spent
        return found
