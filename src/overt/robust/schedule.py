"""How long an attack's steps are: constant, decaying, or halved where progress stops."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from overt._check import number, whole
from overt.robust.threat import Size, Threat


class StepSizes(ABC):
    """The step sizes of one run, for the points that are still in it.

    `goes_back` says whether points are ever sent back to their best iterate.
    """

    goes_back: ClassVar[bool] = False

    @abstractmethod
    def size(self, step: int) -> Size:
        """Return the length of this step."""

    @abstractmethod
    def observe(self, improved: Tensor) -> Tensor | None:
        """Take note of who improved on their best; return who should go back to it, if any."""

    @abstractmethod
    def keep(self, rows: Tensor) -> None:
        """Go on with these points only."""


class Schedule(ABC):
    """A rule for step sizes; lengths are in the units of the inputs."""

    @abstractmethod
    def begin(self, points: int, threat: Threat, steps: int, like: Tensor) -> StepSizes:
        """Return the step sizes of a run."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same length throughout; 2.5 radius / steps if not given."""

    size: float | None = None

    def begin(self, points: int, threat: Threat, steps: int, like: Tensor) -> StepSizes:
        """Return the step sizes of a run."""
        size = 2.5 * threat.radius / steps if self.size is None else number("size", self.size)
        return _Shared([size] * steps)


@dataclass(frozen=True)
class Decay(Schedule):
    """`size` (the radius if not given), multiplied by `factor` after every `every` steps."""

    size: float | None = None
    factor: float = 0.2
    every: int = 10

    def begin(self, points: int, threat: Threat, steps: int, like: Tensor) -> StepSizes:
        """Return the step sizes of a run."""
        size = threat.radius if self.size is None else number("size", self.size)
        every, factor = whole("every", self.every), number("factor", self.factor)
        return _Shared([size * factor ** (step // every) for step in range(steps)])


@dataclass(frozen=True)
class Cosine(Schedule):
    """`size` (the radius if not given) times (1 + cos(pi step / steps)) / 2."""

    size: float | None = None

    def begin(self, points: int, threat: Threat, steps: int, like: Tensor) -> StepSizes:
        """Return the step sizes of a run."""
        size = threat.radius if self.size is None else number("size", self.size)
        return _Shared([size * (1 + math.cos(math.pi * k / steps)) / 2 for k in range(steps)])


@dataclass(frozen=True)
class Halving(Schedule):
    """`size` (the radius if not given), halved where a point's progress stops.

    At check points that come ever faster, a point that improved its best loss in fewer than
    `enough` of the steps since the last one goes back to its best iterate with half the step
    (Croce and Hein 2020, section 3.1).
    """

    size: float | None = None
    enough: float = 0.75

    def begin(self, points: int, threat: Threat, steps: int, like: Tensor) -> StepSizes:
        """Return the step sizes of a run."""
        size = threat.radius if self.size is None else number("size", self.size)
        return _Halved(torch.full((points, 1), size).to(like), steps, self.enough)


class _Shared(StepSizes):
    def __init__(self, sizes: list[float]) -> None:
        self._sizes = sizes

    def size(self, step: int) -> float:
        return self._sizes[step]

    def observe(self, improved: Tensor) -> None:
        return None

    def keep(self, rows: Tensor) -> None:
        return None


class _Halved(StepSizes):
    goes_back: ClassVar[bool] = True

    def __init__(self, sizes: Tensor, steps: int, enough: float) -> None:
        self._sizes, self._enough = sizes, enough
        self._gains = torch.zeros(len(sizes), device=sizes.device)
        self._period = max(int(0.22 * steps), 1)
        self._shortest, self._shrink = max(int(0.06 * steps), 1), max(int(0.03 * steps), 1)
        self._since = 0
        self._halved = torch.ones(len(sizes), dtype=torch.bool, device=sizes.device)

    def size(self, step: int) -> Tensor:
        return self._sizes

    def observe(self, improved: Tensor) -> Tensor | None:
        self._gains += improved
        self._since += 1
        if self._since < self._period:
            return None
        none = self._gains == 0
        stalled = (self._gains < self._enough * self._since) | (none & ~self._halved)
        self._sizes = torch.where(stalled[:, None], self._sizes / 2, self._sizes)
        self._halved = stalled
        self._gains = torch.zeros_like(self._gains)
        self._period, self._since = max(self._period - self._shrink, self._shortest), 0
        return stalled

    def keep(self, rows: Tensor) -> None:
        self._sizes, self._gains = self._sizes[rows], self._gains[rows]
        self._halved = self._halved[rows]
