"""The nearest perturbation that fools a model: a minimum-norm attack for L1, L2 and Linf.

Two searches share one radius per point. The first (after Pintor et al. 2021)
walks along the decision boundary: where a point is fooled its radius shrinks, where it is not it
grows, and steps are projected on the ball of that radius. The second (in the manner of FAB, Croce
and Hein 2020) linearizes the boundary at the current point and jumps to the smallest perturbation
that crosses it, which is found by bisection over the radius of the exact linear maximizer in ball
and box; a linear model is solved by its first step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from overt._check import InputError, whole
from overt.robust.attack.base import (
    AttackState,
    Batch,
    bisect,
    likely_rivals,
    slope,
)
from overt.robust.attack.results import AttackResult, report
from overt.robust.losses import LOSSES, lead_of_rival
from overt.robust.models import BATCH_SIZE, Model, ModelOptions, evaluation_mode
from overt.robust.threats import Region, Threat

BISECTIONS = 12
"""Halvings of the segment from an input to what fools it: a relative error of 1/4000."""

LINEAR_BISECTIONS = 24
"""Halvings of the radius of a linear maximizer; they cost no evaluation of the model."""

JUMPS = 4
"""Times that the boundaries are linearized."""

MAX_RIVALS = 9
"""Likeliest wrong classes whose boundaries are linearized."""

OVERSHOOT = 1.01
"""How far beyond the linearized boundary a step goes, so that it crosses a curved one."""

MIN_SLOPE = 1e-30
"""Steepness below which the boundary is too far away to tell how far."""


@dataclass(frozen=True, repr=False, eq=False)
class MinimumDistance(AttackResult):
    """The nearest perturbed inputs that were found to fool the model.

    Attributes
    ----------
    x
        Perturbed inputs, shaped like the given ones; the inputs themselves where nothing was found.
    distance
        Their distance from the inputs as stored, an upper bound on that to the decision boundary: 0
        for points that are wrong to begin with, infinity where nothing was found, (points,).
    norm
        "l1", "l2" or "linf".
    success, rate, loss, gradients, queries, flat, broken, stages, warnings, status
        As for any attack.
    """

    distance: Tensor
    norm: str


def minimum_distance(
    model: Model,
    x: Any,
    y: Any = None,
    threat: Threat | None = None,
    *,
    steps: int = 100,
    target: Any = None,
    batch_size: int = BATCH_SIZE,
    warn: bool = True,
    **options: Unpack[ModelOptions],
) -> MinimumDistance:
    """Look for the nearest perturbation that fools the model at each point.

    Parameters
    ----------
    model, x, y
        As for any attack; a DataLoader may stand for x and y.
    threat
        The norm, the bounds, and a radius beyond which nothing is of interest.
    steps
        Gradients of the walk along the boundary.
    target, batch_size, warn, output, outputs, mean, std, samples
        As for any attack.
    """
    whole("steps", steps)
    state = AttackState(
        model,
        x,
        y,
        threat,
        target=target,
        loss=LOSSES["margin"],
        batch_size=batch_size,
        options=options,
    )
    if state.random:
        raise InputError(
            "model must not be random for minimum_distance; measure robust_error at several radii"
        )
    with evaluation_mode(model):
        with state.stage("boundary"):
            for rows in state.left.split(state.batch_size):
                if len(rows) and state.threat.radius > 0:
                    nearest = _Nearest(state, state.batch(rows))
                    nearest.follow_boundary(steps)
                    nearest.cross_boundaries()
        result = state.result(warn=False)
    # Where nothing was found the input itself is returned.
    state.flags.pop("stuck", None)
    moved = state.x.to(result.x.dtype, copy=True)
    moved[result.success] = result.x[result.success]
    size = state.threat.size((moved.double() - state.x.double()).flatten(1))
    found: dict[str, Any] = vars(result) | {
        "x": moved,
        "distance": torch.where(result.success, size, math.inf),
        "norm": state.threat.name,
        "warnings": report(state.flags, warn=warn),
    }
    return MinimumDistance(**found)


class _Nearest:
    """The nearest perturbations of a batch that fool the model, and their sizes, (points,).

    Sizes are infinite where nothing was found.
    """

    def __init__(self, state: AttackState, batch: Batch) -> None:
        self._batch = batch
        self._best = state.best
        self._threat = batch.region.threat
        self.delta = torch.zeros_like(batch.region.x)
        self.size = torch.full_like(self.delta[:, 0], math.inf).double()

    @torch.no_grad()
    def follow_boundary(self, steps: int) -> None:
        """Walk along the decision boundary from the inputs."""
        batch = self._batch
        delta = torch.zeros_like(self.delta)
        reach = torch.full_like(self.size, self._threat.radius)
        crossed = torch.zeros_like(self.size, dtype=torch.bool)
        for step in range(steps):
            turn = math.pi * step / steps
            falling = (1 + math.cos(turn)) / 2
            value, fooled, gradient = batch.differentiate(self._seen(delta))
            gradient = gradient.nan_to_num(0, 0, 0)
            if step == 0:
                self._best.flat[batch.rows] |= ~(gradient.abs().amax(1) > 0)
            self._enter(delta, fooled)
            crossed |= fooled
            # The radius shrinks or grows by 5 percent at first and by a thousandth at the end.
            rate = 0.001 + 0.049 * falling
            size = self._threat.size(delta)
            missing = -value.double().nan_to_num(0).clamp(max=0)
            steepness = self._threat.dual(gradient).double()
            linearized = size + missing / steepness.clamp(min=MIN_SLOPE)
            grown = torch.where(crossed, reach, linearized) * (1 + rate)
            shrunk = torch.minimum(reach, size) * (1 - rate)
            reach = torch.where(fooled, shrunk, grown)
            largest = self.size.clamp(max=self._threat.radius)
            reach = torch.minimum(reach, largest)
            radius = reach.clamp(min=MIN_SLOPE)[:, None].to(delta)
            ball = batch.region.with_radius(radius)
            length = (0.01 + 0.99 * falling) * radius
            moved = delta + length * ball.ascent(gradient)
            delta = ball.project(moved)
        self._best.gradients += steps * len(reach) * batch.gradient_cost
        self._store()

    @torch.no_grad()
    def cross_boundaries(self) -> None:
        """Jump to the nearest linearized boundary of the likeliest classes, again and again."""
        batch = self._batch
        delta = torch.zeros_like(self.delta)
        rivals = batch.target[:, None]
        for _ in range(JUMPS):
            with torch.enable_grad():
                moved = self._seen(delta).requires_grad_()
                logits = batch.adapter.logits(moved, batch.rows)
            if not batch.targeted:
                count = min(logits.shape[1] - 1, MAX_RIVALS)
                rivals = likely_rivals(logits, batch.y, count)
            for rival in rivals.unbind(1):
                with torch.enable_grad():
                    lead = lead_of_rival(logits, batch.y, rival)
                    gradient = slope(lead, moved, retain=True).nan_to_num(0, 0, 0)
                # A perturbation e crosses the boundary linearized at x + delta where <g, e> is
                # this.
                needed = ((gradient * delta).sum(1) - lead.detach()).double()
                jump = _smallest_crossing(batch.region, gradient, needed)
                self._enter(jump, batch.evaluate(self._seen(jump))[1])
                self._best.gradients += len(jump) * batch.gradient_cost
                self._best.queries += len(jump) * batch.adapter.samples
            delta = self.delta
        self._store()

    def _seen(self, delta: Tensor) -> Tensor:
        """Return x + delta exactly as it will be stored: at the boundary the last digit decides."""
        region = self._batch.region
        return region.store(delta.to(region.x)).to(region.x)

    def _enter(self, delta: Tensor, fooled: Tensor) -> None:
        """Keep perturbations that fool the model and are nearer."""
        size = self._threat.size(delta)
        nearer = fooled & (size < self.size)
        self.size = torch.where(nearer, size, self.size)
        self.delta = torch.where(nearer[:, None], delta, self.delta)

    def _store(self) -> None:
        """Bisect the segments to the perturbations, and store the nearest in the state."""
        batch = self._batch

        def fools(share: Tensor) -> Tensor:
            return batch.evaluate(self._seen(self.delta * share[:, None]))[1]

        share = bisect(fools, torch.ones_like(self.size), BISECTIONS)
        found = torch.isfinite(self.size)
        self.delta = self.delta * share[:, None].to(self.delta)
        self.size = torch.where(found, self._threat.size(self.delta), math.inf)
        rows = batch.rows[found]
        self._best.delta[rows] = self.delta[found]
        self._best.fooled[rows] = True
        self._best.queries += BISECTIONS * len(share) * batch.adapter.samples


def _smallest_crossing(region: Region, gradient: Tensor, needed: Tensor) -> Tensor:
    """Return the smallest e in the box with <gradient, e> >= needed, a little beyond it.

    The most that a ball of radius r allows is reached by its linear maximizer and grows with r.
    """

    def longest(radius: Tensor) -> Tensor:
        ball = region.with_radius(radius[:, None].to(gradient))
        return ball.linear_argmax(gradient)

    def reaches(radius: Tensor) -> Tensor:
        return (gradient * longest(radius)).sum(1) >= needed

    largest = region.threat.radius
    radius = bisect(reaches, torch.full_like(needed, largest), LINEAR_BISECTIONS)
    return longest((radius * OVERSHOOT).clamp(max=largest))
