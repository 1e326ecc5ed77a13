"""The one inner loop of all attacks: projected ascent on a batch, point by point.

    delta <- project(delta + size * direction + momentum * (delta - previous delta))

Nothing in it mixes points: losses are summed, never averaged, steps are normalized per point, and
a point that is fooled leaves the batch. The best iterate of each point is what comes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from overt.robust.attacks.points import Draw, Found, Points
from overt.robust.threats import Length, Region

LEAVE = 0.15
"""Share of fooled points in a batch from which it pays to copy the others out."""


class StepSchedule(ABC):
    """A rule for step sizes; with `enough` above 0 they are halved where progress stops."""

    enough: float = 0.0

    @abstractmethod
    def lengths(self, radius: float, steps: int) -> list[float]:
        """Return the lengths of a run's steps, in the units of the inputs."""


class StepSizes:
    """The step sizes of one run, for the points that are still in it.

    `goes_back` says whether points are ever sent back to their best iterate.
    """

    def __init__(self, schedule: StepSchedule, radius: float, steps: int, like: Tensor) -> None:
        self._lengths, self._enough = schedule.lengths(radius, steps), schedule.enough
        self.goes_back = schedule.enough > 0
        self._factors, self._gains = torch.ones_like(like[:, :1]), torch.zeros_like(like[:, 0])
        self._halved = self._gains == 0
        # The shares of all steps that Croce and Hein give.
        self._period, self._shortest, self._shrink = (
            max(int(share * steps), 1) for share in (0.22, 0.06, 0.03)
        )
        self._since = 0

    def size(self, step: int) -> Length:
        """Return the length of this step."""
        return self._lengths[step] * self._factors if self.goes_back else self._lengths[step]

    def observe(self, improved: Tensor) -> Tensor | None:
        """Take note of who improved on their best; return who should go back to it, if any."""
        self._gains += improved
        self._since += 1
        if not self.goes_back or self._since < self._period:
            return None
        none = self._gains == 0
        stalled = (self._gains < self._enough * self._since) | (none & ~self._halved)
        self._factors = torch.where(stalled[:, None], self._factors / 2, self._factors)
        self._halved, self._gains = stalled, torch.zeros_like(self._gains)
        self._period, self._since = max(self._period - self._shrink, self._shortest), 0
        return stalled

    def keep(self, rows: Tensor) -> None:
        """Go on with these points only."""
        self._factors, self._gains = self._factors[rows], self._gains[rows]
        self._halved = self._halved[rows]


@dataclass(frozen=True)
class Walk:
    """How to ascend: number and lengths of steps, momentum, whether steps are normalized."""

    steps: int
    schedule: StepSchedule
    momentum: float = 0.0
    normalize: bool = True


@torch.no_grad()
def ascend(points: Points, start: Tensor, walk: Walk, escape: Draw, *, early_exit: bool) -> Found:
    """Ascend from `start`; points without a gradient there escape to a random draw instead.

    With `early_exit` fooled points leave at once, up to those that it does not pay to copy out.
    """
    sizes = StepSizes(walk.schedule, points.region.threat.radius, walk.steps, start)
    books, mover = Books(start), _Mover(walk, sizes, points.region, start)
    for step in range(walk.steps):
        value, fooled, gradient = points.differentiate(mover.moved)
        better = books.enter(mover.delta, value, fooled)
        books.found.gradients += len(value) * (points.guide.draws if points.guide else 1)
        if step == 0:
            books.found.flat = ~(gradient.abs().amax(1) > 0) & ~fooled
        mover.remember(gradient, better)
        if early_exit and (stay := books.leave()) is not None:
            if len(stay) == 0:
                return books.found
            points, gradient, better = points.take(stay), gradient[stay], better[stay]
            mover.keep(stay, points.region)
        if step > 0:
            mover.go_back(books.batch.delta, gradient, better)
        mover.advance(step, gradient)
        if step == 0 and bool(books.found.flat.any()):
            mover.jump(books.found.flat[books.rows], escape()[books.rows])
    books.enter(mover.delta, *points.evaluate(mover.moved))
    return books.close()


@torch.no_grad()
def follow(points: Points, start: Tensor, walk: Walk) -> Tensor:
    """Return where the steps lead, and judge no success: what training asks for."""
    sizes = StepSizes(walk.schedule, points.region.threat.radius, walk.steps, start)
    mover = _Mover(walk, sizes, points.region, start)
    best = Found.nothing(start)
    for step in range(walk.steps):
        _, value, gradient = points.follow(mover.moved)
        if sizes.goes_back:
            better = value.detach() > best.value
            best.value = torch.where(better, value.detach(), best.value)
            _replace(best.delta, mover.delta, better)
            mover.remember(gradient, better)
            if step > 0:
                mover.go_back(best.delta, gradient, better)
        mover.advance(step, gradient)
    return mover.delta


class Books:
    """The best iterate of each point in the batch; `found` holds that of those who have left."""

    def __init__(self, delta: Tensor) -> None:
        self.found, self.batch = Found.nothing(delta), Found.nothing(delta)
        self.rows = torch.arange(len(delta), device=delta.device)
        self._live = torch.ones_like(self.found.fooled)

    def enter(self, delta: Tensor, value: Tensor, fooled: Tensor) -> Tensor:
        """Compare an iterate with the best so far, success first; return where it is better."""
        own, live = self.batch, self._live
        better = torch.where(fooled == own.fooled, value > own.value, fooled) & live
        own.value = torch.where(better, value, own.value)
        own.fooled = own.fooled | (fooled & live)
        own.broken = own.broken | (value.isnan() & live)
        _replace(own.delta, delta, better)
        return better

    def leave(self, least: float = LEAVE) -> Tensor | None:
        """Let the fooled go; return who stays, or None while too small a share would go."""
        self._live = ~self.batch.fooled
        live = int(self._live.sum())
        if live == len(self._live) or live > (1 - least) * len(self._live):
            return None
        self.close()
        stay = self._live.nonzero().squeeze(1)
        self.rows, self._live = self.rows[stay], self._live[stay]
        self.batch = self.batch.each(lambda part: part[stay])
        return stay

    def close(self) -> Found:
        """Return what was found, the batch included."""
        self.found.merge(self.rows, self.batch)
        return self.found


class _Mover:
    """Where the points of the batch are, where they were, and the next step of each."""

    def __init__(self, walk: Walk, sizes: StepSizes, region: Region, start: Tensor) -> None:
        self._walk, self._sizes, self._region = walk, sizes, region
        self.delta, self.moved = start.clone(), region.perturbed(start)
        self._previous = start.clone() if walk.momentum else None
        self._best_gradient = torch.zeros_like(start) if sizes.goes_back else None

    def remember(self, gradient: Tensor, better: Tensor) -> None:
        """Keep the gradients of the best iterates, where points may go back to them."""
        if self._best_gradient is not None:
            _replace(self._best_gradient, gradient.nan_to_num_(0, 0, 0), better)

    def keep(self, rows: Tensor, region: Region) -> None:
        """Go on with these points only."""
        self._region = region
        self.delta, self.moved = self.delta[rows], torch.empty_like(region.x)
        if self._previous is not None:
            self._previous = self._previous[rows]
        if self._best_gradient is not None:
            self._best_gradient = self._best_gradient[rows]
        self._sizes.keep(rows)

    def go_back(self, best: Tensor, gradient: Tensor, better: Tensor) -> None:
        """Send those back to their best iterate, and its gradient, who have not improved enough."""
        back = self._sizes.observe(better)
        if back is None or self._best_gradient is None:
            return
        _replace(self.delta, best, back)
        _replace(gradient, self._best_gradient, back)
        if self._previous is not None:
            _replace(self._previous, best, back)

    def advance(self, step: int, gradient: Tensor) -> None:
        """Take a step; may use the gradient's memory."""
        if self._previous is not None:
            further = torch.lerp(self._previous, self.delta, 1 + self._walk.momentum)
            self.delta, self._previous = further, self.delta
        size = self._sizes.size(step)
        if self._walk.normalize:
            self._region.steepest_step(self.delta, gradient, size, self.moved)
        else:
            self._region.step(self.delta, gradient.nan_to_num_(0, 0, 0), size, self.moved)

    def jump(self, lost: Tensor, elsewhere: Tensor) -> None:
        """Move the lost points somewhere else."""
        self.delta = torch.where(lost[:, None], elsewhere, self.delta)
        self.moved = self._region.perturbed(self.delta)


def _replace(old: Tensor, new: Tensor, rows: Tensor) -> None:
    """Put some rows of `new`, which is finite, in the place of the old.

    Interpolation is exact for the weights 0 and 1, and several times faster than torch.where.
    """
    old.lerp_(new, rows[:, None].to(old.dtype))
