"""The one inner loop of all attacks: projected ascent on a batch, point by point.

    delta <- project(delta + size * direction + momentum * (delta - previous delta))

Nothing in it mixes points: losses are summed, never averaged, steps are normalised per point, and
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
    """What to attack: flat inputs (points, features) with their classes and allowed moves."""

    logits_of: Callable[[Tensor], Tensor]
    x: Tensor
    y: Tensor
    aim: Tensor
    region: Region
    objective: Objective
    criterion: Criterion

    def evaluate(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective at x + delta and who is fooled there."""
        with torch.no_grad():
            logits = self.logits_of(self.x + delta)
            return self.objective(logits, self.y, self.aim), self._met(logits)

    def differentiate(self, delta: Tensor, space: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective at x + delta, its gradient and who is fooled there.

        `space` is memory for x + delta.
        """
        moved = torch.add(self.x, delta, out=space.detach()).requires_grad_()
        with torch.enable_grad():
            logits = self.logits_of(moved)
            value = self.objective(logits, self.y, self.aim)
            (gradient,) = torch.autograd.grad(value.sum(), moved)
        return value.detach(), gradient, self._met(logits.detach())

    def take(self, rows: Tensor) -> Problem:
        """Return the problem of some of the points."""
        return Problem(
            self.logits_of,
            self.x[rows],
            self.y[rows],
            self.aim[rows],
            self.region.take(rows),
            self.objective,
            self.criterion,
        )

    def _met(self, logits: Tensor) -> Tensor:
        return self.criterion.met(logits, self.y, self.aim)


@dataclass(frozen=True)
class Steps:
    """How to ascend: number and lengths of steps, momentum, what follows a success."""

    count: int
    schedule: Schedule
    momentum: float = 0.0
    normalise: bool = True
    early_exit: bool = True


@dataclass
class Outcome:
    """The best perturbation of each point, its objective, success, and what was seen."""

    delta: Tensor
    value: Tensor
    fooled: Tensor
    flat: Tensor
    gradients: int


@torch.no_grad()
def ascend(
    problem: Problem, delta: Tensor, steps: Steps, escape: Callable[[], Tensor] | None = None
) -> Outcome:
    """Ascend from delta; points without a gradient there go on from a random draw instead."""
    n = len(delta)
    everyone = torch.arange(n, device=delta.device)
    out = Outcome(
        delta.clone(),
        torch.full((n,), -torch.inf, dtype=delta.dtype, device=delta.device),
        torch.zeros(n, dtype=torch.bool, device=delta.device),
        torch.zeros(n, dtype=torch.bool, device=delta.device),
        0,
    )
    rows, live = everyone, torch.ones_like(out.fooled)
    sizes = steps.schedule.begin(n, problem.region.threat, steps.count, delta)
    best, best_value, best_fooled = delta.clone(), out.value.clone(), out.fooled.clone()
    best_gradient = torch.zeros_like(delta) if sizes.goes_back else delta
    delta, previous, spare, space = (
        delta.clone(),
        delta.clone(),
        delta.clone(),
        torch.empty_like(delta),
    )
    for step in range(steps.count + 1):
        last = step == steps.count
        if last:
            value, fooled = problem.evaluate(delta)
        else:
            value, gradient, fooled = problem.differentiate(delta, space)
            out.gradients += int(live.sum())
        better = torch.where(fooled == best_fooled, value > best_value, fooled) & live
        best_value = torch.where(better, value, best_value)
        best_fooled = best_fooled | (fooled & live)
        column = better[:, None]
        torch.where(column, delta, best, out=best)
        if last:
            break
        if step == 0:
            flat = ~(gradient.abs().amax(1) > 0)
            out.flat = flat & ~fooled
            gradient[flat] = 0
        if sizes.goes_back:
            torch.where(column, gradient, best_gradient, out=best_gradient)
        if steps.early_exit:
            live = ~best_fooled
            staying = int(live.sum())
            if staying <= (1 - LEAVE) * len(live):
                _store(out, rows, best, best_value, best_fooled)
                keep = live.nonzero().squeeze(1)
                if staying == 0:
                    return out
                rows, problem = rows[keep], problem.take(keep)
                delta, previous, best = delta[keep], previous[keep], best[keep]
                spare, space = torch.empty_like(delta), torch.empty_like(delta)
                best_value, best_fooled, live = best_value[keep], best_fooled[keep], live[keep]
                gradient, better = gradient[keep], better[keep]
                best_gradient = best_gradient[keep] if sizes.goes_back else delta
                sizes.keep(keep)
        if step > 0:
            back = sizes.observe(better)
            if back is not None:
                column = back[:, None]
                delta = torch.where(column, best, delta)
                previous = torch.where(column, best, previous)
                gradient = torch.where(column, best_gradient, gradient)
        moved = problem.region.ascent(gradient) if steps.normalise else gradient
        moved = moved.mul_(sizes.size(step)).add_(delta)
        if steps.momentum and step > 0:
            moved.add_(delta, alpha=steps.momentum).sub_(previous, alpha=steps.momentum)
        spare, previous, delta = previous, delta, problem.region.project(moved, out=spare)
        if step == 0 and escape is not None and bool(out.flat.any()):
            lost = out.flat[rows]
            delta = torch.where(lost[:, None], escape()[rows], delta)
    _store(out, rows, best, best_value, best_fooled)
    return out


def _store(out: Outcome, rows: Tensor, best: Tensor, value: Tensor, fooled: Tensor) -> None:
    out.delta[rows], out.value[rows], out.fooled[rows] = best, value, fooled
