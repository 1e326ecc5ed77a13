"""The one inner loop of all attacks: projected ascent on a batch, point by point.

    delta <- project(delta + size * direction + momentum * (delta - previous delta))

Nothing in it mixes points: losses are summed, never averaged, steps are normalized per point, and
a point that is fooled leaves the batch. The best iterate of each point is what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from overt.robust.criteria import Criterion
from overt.robust.schedule import Schedule
from overt.robust.threat import Region

Objective = Callable[[Tensor, Tensor, Tensor], Tensor]
"""objective(logits, y, aim) -> (points,), to be made large."""

LEAVE = 0.15
"""Share of fooled points in a batch from which it pays to copy the others out."""


@dataclass(frozen=True)
class Problem:
    """What to attack: points with their classes and allowed moves."""

    logits_of: Callable[[Tensor], Tensor]
    y: Tensor
    aim: Tensor
    region: Region
    objective: Objective
    criterion: Criterion

    def evaluate(self, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective at the moved points and who is fooled there."""
        with torch.no_grad():
            logits = self.logits_of(moved)
            return self._judge(logits, self.objective(logits, self.y, self.aim))

    def differentiate(self, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective at the moved points, its gradient and who is fooled there."""
        moved = moved.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.logits_of(moved)
            value = self.objective(logits, self.y, self.aim)
            gradient = slope(value, moved)
        value, fooled = self._judge(logits.detach(), value.detach())
        return value, gradient, fooled

    def take(self, rows: Tensor) -> Problem:
        """Return the problem of some of the points."""
        return Problem(
            self.logits_of,
            self.y[rows],
            self.aim[rows],
            self.region.take(rows),
            self.objective,
            self.criterion,
        )

    def _judge(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value, NaN where logits are not finite, and who is fooled by finite ones."""
        broken = ~torch.isfinite(logits).all(1)
        fooled = self.criterion.met(logits, self.y, self.aim)
        return value.masked_fill(broken, torch.nan), fooled & ~broken


@dataclass(frozen=True)
class Steps:
    """How to ascend: number and lengths of steps, momentum, what follows a success."""

    count: int
    schedule: Schedule
    momentum: float = 0.0
    normalize: bool = True
    early_exit: bool = True


@dataclass
class Outcome:
    """The best perturbation of each point, its objective, success, and what was seen."""

    delta: Tensor
    value: Tensor
    fooled: Tensor
    flat: Tensor
    broken: Tensor
    gradients: int


@torch.no_grad()
def ascend(
    problem: Problem, delta: Tensor, steps: Steps, escape: Callable[[], Tensor] | None = None
) -> Outcome:
    """Ascend from delta; points without a gradient there go on from a random draw instead."""
    n = len(delta)
    everyone = torch.arange(n, device=delta.device)
    nobody = torch.zeros(n, dtype=torch.bool, device=delta.device)
    lowest = torch.full((n,), -torch.inf, dtype=delta.dtype, device=delta.device)
    out = Outcome(delta.clone(), lowest, nobody, nobody.clone(), nobody.clone(), 0)
    rows, live, left = everyone, torch.ones_like(out.fooled), n
    sizes = steps.schedule.begin(n, problem.region.threat, steps.count, delta)
    best, best_value, best_fooled = delta.clone(), out.value.clone(), out.fooled.clone()
    broken = out.broken.clone()
    delta, moved = delta.clone(), problem.region.x + delta
    previous = delta.clone() if steps.momentum else delta
    best_gradient = torch.zeros_like(delta) if sizes.goes_back else delta
    for step in range(steps.count + 1):
        last = step == steps.count
        if last:
            value, fooled = problem.evaluate(moved)
        else:
            value, gradient, fooled = problem.differentiate(moved)
            out.gradients += left
        better = torch.where(fooled == best_fooled, value > best_value, fooled) & live
        best_value = torch.where(better, value, best_value)
        best_fooled = best_fooled | (fooled & live)
        broken = broken | (value.isnan() & live)
        _replace(best, delta, better)
        if last:
            break
        if step == 0:
            out.flat = ~(gradient.abs().amax(1) > 0) & ~fooled
        if sizes.goes_back:
            _replace(best_gradient, gradient.nan_to_num_(0, 0, 0), better)
        if steps.early_exit:
            live = ~best_fooled
            left = int(live.sum())
            if left <= (1 - LEAVE) * len(live):
                _store(out, rows, best, best_value, best_fooled, broken)
                keep = live.nonzero().squeeze(1)
                if left == 0:
                    return out
                rows, problem = rows[keep], problem.take(keep)
                delta, best, gradient, better = (
                    delta[keep],
                    best[keep],
                    gradient[keep],
                    better[keep],
                )
                best_value, best_fooled = best_value[keep], best_fooled[keep]
                broken, live = broken[keep], live[keep]
                moved = torch.empty_like(delta)
                previous = previous[keep] if steps.momentum else delta
                best_gradient = best_gradient[keep] if sizes.goes_back else delta
                sizes.keep(keep)
        if step > 0:
            back = sizes.observe(better)
            if back is not None:
                _replace(delta, best, back)
                _replace(previous, best, back)
                _replace(gradient, best_gradient, back)
        if steps.momentum:
            delta, previous = torch.lerp(previous, delta, 1 + steps.momentum), delta
        size = sizes.size(step)
        if steps.normalize:
            problem.region.advance(delta, gradient, size, moved)
        else:
            problem.region.climb(delta, gradient.nan_to_num_(0, 0, 0), size, moved)
        if step == 0 and escape is not None and bool(out.flat.any()):
            lost = out.flat[rows]
            delta = torch.where(lost[:, None], escape()[rows], delta)
            torch.add(problem.region.x, delta, out=moved)
    _store(out, rows, best, best_value, best_fooled, broken)
    return out


def slope(value: Tensor, x: Tensor, *, retain: bool = False) -> Tensor:
    """Return the gradient of each point's value, zero if it does not depend on x at all."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(value.sum(), x, retain_graph=retain, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient


def _replace(old: Tensor, new: Tensor, rows: Tensor) -> None:
    """Put some rows of `new`, which is finite, in the place of the old.

    Interpolation is exact for the weights 0 and 1, and several times faster than torch.where.
    """
    old.lerp_(new, rows[:, None].to(old.dtype))


def _store(
    out: Outcome, rows: Tensor, best: Tensor, value: Tensor, fooled: Tensor, broken: Tensor
) -> None:
    out.delta[rows], out.value[rows], out.fooled[rows] = best, value, fooled
    out.broken[rows] = broken
