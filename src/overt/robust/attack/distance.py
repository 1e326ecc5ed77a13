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
from overt.results import Result, Status
from overt.robust.attack.base import AttackState, Batch, likely_rivals, slope
from overt.robust.attack.results import Stage, report
from overt.robust.losses import LOSSES, lead_of_rival
from overt.robust.models import BATCH_SIZE, Model, ModelOptions
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
class MinimumDistance(Result):
    """The nearest perturbed inputs that were found to fool the model.

    Attributes
    ----------
    x
        Perturbed inputs, shaped like the given ones; the inputs themselves where nothing was found.
    distance
        Their distance from the inputs as stored, an upper bound on that to the decision boundary: 0
        for points that are wrong to begin with, infinity where nothing was found, (points,).
    success
        Which points are fooled, recomputed at x, (points,).
    norm
        "l1", "l2" or "linf".
    gradients, queries, stages, warnings, status
        As for any attack.
    """

    x: Tensor
    distance: Tensor
    success: Tensor
    norm: str
    gradients: int
    queries: int
    stages: tuple[Stage, ...]
    warnings: tuple[str, ...]
    status: Status


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
    with state:
        with state.stage("boundary"):
            for rows in state.left.split(state.batch_size):
                if len(rows) and state.threat.radius > 0:
                    batch = state.batch(rows)
                    follow_boundary(state, batch, steps)
                    cross_boundaries(state, batch)
        result = state.result(warn=False)
    # Where nothing was found the input itself is returned.
    state.flags.pop("stuck", None)
    moved = state.x.to(result.x.dtype, copy=True)
    moved[result.success] = result.x[result.success]
    size = state.threat.size((moved.double() - state.x.double()).flatten(1))
    return MinimumDistance(
        x=moved,
        distance=torch.where(result.success, size, math.inf),
        success=result.success,
        norm=state.threat.name,
        gradients=result.gradients,
        queries=result.queries,
        stages=result.stages,
        warnings=report(state.flags, warn=warn),
        status=result.status,
    )


@dataclass(eq=False)
class _Nearest:
    """The nearest perturbations of a batch that fool the model, and their sizes, (points,)."""

    state: AttackState
    batch: Batch
    delta: Tensor
    size: Tensor

    @classmethod
    def of(cls, state: AttackState, batch: Batch) -> _Nearest:
        """Return what the state knows of a batch; sizes are infinite where it knows nothing."""
        delta = state.best.delta[batch.rows]
        fooled = state.best.fooled[batch.rows]
        size = torch.where(fooled, batch.region.threat.size(delta), math.inf)
        return cls(state, batch, delta, size)

    def enter(self, delta: Tensor, fooled: Tensor) -> None:
        """Keep perturbations that fool the model and are nearer."""
        size = self.batch.region.threat.size(delta)
        nearer = fooled & (size < self.size)
        self.size = torch.where(nearer, size, self.size)
        self.delta = torch.where(nearer[:, None], delta, self.delta)

    def store(self) -> None:
        """Bisect the segments to the perturbations, and store the nearest in the state."""
        batch, best = self.batch, self.state.best
        low = torch.zeros_like(self.size)
        high = torch.ones_like(self.size)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            fooled = batch.evaluate(_seen(batch, self.delta * middle[:, None]))[1]
            low = torch.where(fooled, low, middle)
            high = torch.where(fooled, middle, high)
        best.queries += BISECTIONS * len(low) * batch.adapter.samples
        found = torch.isfinite(self.size)
        rows = batch.rows[found]
        shortest = self.delta * high[:, None].to(self.delta)
        best.delta[rows] = shortest[found]
        best.fooled[rows] = True


def _seen(batch: Batch, delta: Tensor) -> Tensor:
    """Return x + delta exactly as it will be stored: at the boundary the last digit decides."""
    x = batch.region.x
    return batch.region.store(delta.to(x)).to(x)


@torch.no_grad()
def follow_boundary(state: AttackState, batch: Batch, steps: int) -> None:
    """Walk along the decision boundary from the inputs."""
    threat = batch.region.threat
    nearest = _Nearest.of(state, batch)
    delta = torch.zeros_like(batch.region.x)
    reach = torch.full_like(nearest.size, threat.radius)
    crossed = torch.zeros_like(nearest.size, dtype=torch.bool)
    for step in range(steps):
        falling = (1 + math.cos(math.pi * step / steps)) / 2
        value, fooled, gradient = batch.differentiate(_seen(batch, delta))
        gradient = gradient.nan_to_num(0, 0, 0)
        if step == 0:
            flat = ~(gradient.abs().amax(1) > 0)
            state.best.flat[batch.rows] |= flat
        nearest.enter(delta, fooled)
        crossed |= fooled
        # The radius shrinks or grows by 5 percent at first and by a thousandth at the end.
        rate = 0.001 + 0.049 * falling
        size = threat.size(delta)
        steepness = threat.dual(gradient).double().clamp(min=MIN_SLOPE)
        linearized = size - value.double().nan_to_num(0).clamp(max=0) / steepness
        grown = torch.where(crossed, reach, linearized) * (1 + rate)
        reach = torch.where(fooled, torch.minimum(reach, size) * (1 - rate), grown)
        reach = torch.minimum(reach, nearest.size.clamp(max=threat.radius))
        radius = reach.clamp(min=MIN_SLOPE)[:, None].to(delta)
        ball = batch.region.with_radius(radius)
        length = (0.01 + 0.99 * falling) * radius
        delta = ball.project(delta + length * ball.ascent(gradient))
    state.best.gradients += steps * len(reach) * batch.gradient_cost
    nearest.store()


@torch.no_grad()
def cross_boundaries(state: AttackState, batch: Batch) -> None:
    """Jump to the nearest linearized boundary of each of the likeliest classes, again and again."""
    nearest = _Nearest.of(state, batch)
    delta = torch.zeros_like(batch.region.x)
    rivals = batch.target[:, None]
    for _ in range(JUMPS):
        with torch.enable_grad():
            moved = _seen(batch, delta).requires_grad_()
            logits = batch.adapter.logits(moved, batch.rows)
        if not state.targeted:
            count = min(logits.shape[1] - 1, MAX_RIVALS)
            rivals = likely_rivals(logits, batch.y, count)
        for rival in rivals.unbind(1):
            with torch.enable_grad():
                lead = lead_of_rival(logits, batch.y, rival)
                gradient = slope(lead, moved, retain=True).nan_to_num(0, 0, 0)
            # A perturbation e crosses the boundary linearized at x + delta where <g, e> is this.
            needed = ((gradient * delta).sum(1) - lead.detach()).double()
            jump = _smallest_crossing(batch.region, gradient, needed)
            nearest.enter(jump, batch.evaluate(_seen(batch, jump))[1])
            state.best.gradients += len(jump) * batch.gradient_cost
            state.best.queries += len(jump) * batch.adapter.samples
        found = torch.isfinite(nearest.size)[:, None]
        delta = torch.where(found, nearest.delta, delta)
    nearest.store()


def _smallest_crossing(region: Region, gradient: Tensor, needed: Tensor) -> Tensor:
    """Return the smallest e in the box with <gradient, e> >= needed, a little beyond it.

    The most that a ball of radius r allows is reached by its linear maximizer and grows with r.
    """
    low = torch.zeros_like(needed)
    high = torch.full_like(needed, region.threat.radius)
    for _ in range(LINEAR_BISECTIONS):
        middle = (low + high) / 2
        ball = region.with_radius(middle[:, None].to(gradient))
        enough = (gradient * ball.linear_argmax(gradient)).sum(1) >= needed
        high = torch.where(enough, middle, high)
        low = torch.where(enough, low, middle)
    beyond = (high * OVERSHOOT).clamp(max=region.threat.radius)
    return region.with_radius(beyond[:, None].to(gradient)).linear_argmax(gradient)
