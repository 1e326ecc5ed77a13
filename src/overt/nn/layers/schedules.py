"""Drop probabilities that change as training goes on: small objects, step -> drop_prob.

Pass one as the `drop_prob` of a layer and call `advance(model)` after each step (or each epoch,
with the schedule's `steps` counted in epochs).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from overt import _check
from overt.noise import DropBlock


class DropSchedule(ABC):
    """A drop probability for each step."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the drop probability at `step`, counted from 0."""


@dataclass(frozen=True)
class Linear(DropSchedule):
    """From `start` to `end` in equal parts over `steps` steps, then constant.

    DropBlock's authors raise the drop probability from 0 this way.

    Examples
    --------
    >>> from overt.nn import schedules
    >>> [schedules.Linear(0.0, 0.4, steps=4)(step) for step in (0, 2, 4, 9)]
    [0.0, 0.2, 0.4, 0.4]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", _check.drop_prob(self.start, "start"))
        object.__setattr__(self, "end", _check.drop_prob(self.end, "end"))
        _check.whole("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return start + (end - start) min(step / steps, 1)."""
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


@dataclass(frozen=True)
class Curriculum(DropSchedule):
    """end (1 - exp(-step / steps)): easy at first, `end` in the limit (curriculum dropout)."""

    end: float
    steps: float

    def __post_init__(self) -> None:
        _check.drop_prob(self.end, "end")
        _check.number("steps", self.steps, exclusive=True)

    def __call__(self, step: int) -> float:
        """Return end (1 - exp(-step / steps))."""
        return -self.end * math.expm1(-step / self.steps)


@dataclass(frozen=True)
class Annealed(DropSchedule):
    """start (1 - step / steps), 0 from `steps` on: the network is noise-free when it is used."""

    start: float
    steps: int

    def __post_init__(self) -> None:
        _check.drop_prob(self.start, "start")
        _check.whole("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return start max(1 - step / steps, 0)."""
        return self.start * max(1 - step / self.steps, 0.0)


@dataclass(frozen=True)
class WidthAdjusted(DropSchedule):
    """1 - theta(d), theta(d) = tb b / (tb b + (1 - tb) d), tb = 1 - drop_prob, at every step.

    The drop probability for a layer of d units (`width`) at which the induced penalty no longer
    vanishes as the layer grows (structured dropout, eq. 7); `drop_prob` is that of a layer with a
    single block of b units (`block_size`).
    """

    drop_prob: float
    width: int
    block_size: int = 1

    def __post_init__(self) -> None:
        _check.drop_prob(self.drop_prob)
        _check.whole("width", self.width)
        _check.whole("block_size", self.block_size)

    def __call__(self, step: int) -> float:
        """1 - theta(width), whatever the step."""
        return float(DropBlock(self.drop_prob, self.block_size).at_width(self.width).drop_prob)
