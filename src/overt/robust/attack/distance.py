"""The nearest perturbation that fools a model: a minimum-norm attack for L1, L2 and Linf.

Two searches share one radius per point. The first (after Pintor et al. 2021)
walks along the decision boundary: where a point is fooled its radius shrinks, where it is not it
grows, and steps are projected on the ball of that radius. The second (in the manner of FAB, Croce
and Hein 2020) linearizes the boundary at the current point and jumps to the smallest perturbation
that crosses it, which is found by bisection over the radius of the exact linear maximizer in ball
and box; a linear model is solved by its first step. L0 allows more and more coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from overt._check import InputError, doubles, instance, number, plain_array, whole
from overt._intervals import clopper_pearson
from overt._types import Floats
from overt.results import Result, Status
from overt.robust.attack.base import AttackState, Batch, slope
from overt.robust.attack.pgd import PGD
from overt.robust.attack.results import Stage, report
from overt.robust.losses import LOSSES, Criterion, Misclassified, lead_of_rival
from overt.robust.models import BATCH_SIZE, Model, ModelOptions
from overt.robust.threats import Threat

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

GROWTH = 1.1
"""Factor by which perturbations of a random model grow until most samples are fooled."""

MAX_GROWTHS = 16
"""Times that they grow: up to 4.6 times in all."""


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
        Which points are fooled, recomputed at x, (points,). For a random model: in most of 100
        fresh samples.
    norm
        "l0", "l1", "l2" or "linf".
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

    def errors(self, radii: Any, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Return the robust error found at any radii (k,), and its intervals (k, 2)."""
        distance = np.asarray(torch.as_tensor(self.distance).cpu())
        radii = doubles("radii", np.atleast_1d(plain_array("radii", radii)), ndim=1)
        confidence = number("confidence", confidence)
        if not 0 < confidence < 1:
            raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
        counts = (distance <= radii[:, None]).sum(1)
        low, high = clopper_pearson(counts, len(distance), confidence)
        return counts / len(distance), np.stack([low, high], axis=1)


def minimum_distance(
    model: Model,
    x: Any,
    y: Any = None,
    threat: Threat | None = None,
    *,
    steps: int = 100,
    rivals: int = 2,
    criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    warn: bool = True,
    **options: Unpack[ModelOptions],
) -> MinimumDistance:
    """Look for the nearest perturbation that fools the model at each point.

    The distance of a random model is that at which most of its samples are fooled.

    Parameters
    ----------
    model, x, y
        As for any attack; a DataLoader may stand for x and y.
    threat
        The norm, the bounds, and a radius beyond which nothing is of interest.
    steps, rivals
        Gradients of each run, and runs against single classes, by linearized distance, that follow
        the one against the likeliest.
    criterion, batch_size, seed, warn, output, outputs, mean, std, samples
        As for any attack.
    """
    whole("steps", steps)
    whole("rivals", rivals, minimum=0)
    if instance("criterion", criterion, Criterion, "a Criterion").regression:
        raise InputError(
            "criterion must be of classes for minimum_distance, got Deviates; use PGD"
        )
    state = AttackState(
        model,
        x,
        y,
        threat,
        criterion=criterion,
        loss=LOSSES["margin"],
        batch_size=batch_size,
        options=options,
    )
    with state:
        if (
            state.random
        ):  # the majority of samples decides which points are wrong to begin with
            state.best.fooled = state.success_rate(state.x)[1] > 0.5
        wrong = state.best.fooled.clone()
        if state.threat.order == 0:
            _count(state, steps, seed)
        elif state.threat.radius > 0:
            _search(state, (~wrong).nonzero().squeeze(1), steps, rivals)
        if state.random:
            _settle_random(state, wrong)
        result = state.result(warn=False)
    state.flags.pop(
        "stuck", None
    )  # where nothing was found the input itself is returned
    moved = state.x.to(result.x.dtype, copy=True)
    moved[result.success] = result.x[result.success]
    size = state.threat.size((moved.double() - state.x.double()).flatten(1)).double()
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


def _search(state: AttackState, left: Tensor, steps: int, rivals: int) -> None:
    """Search in all batches; an interruption keeps what was found."""
    classes = state.clean.shape[1]
    count = 0 if state.targeted or classes < 3 else min(rivals, classes - 1)
    best = state.best
    gradients, queries = best.gradients, best.queries
    found = int(best.fooled.sum())
    try:
        for rows in left.split(state.batch_size) if len(left) else ():
            batch = state.batch(rows)
            follow_boundary(state, batch, steps)
            cross_boundaries(state, batch)
            if count:
                nearest = state.rivals(rows, min(classes - 1, MAX_RIVALS))
                for k in range(count):
                    rival = nearest[:, k].to(state.adapter.device)
                    single = state.batch(rows, objective=lead_of_rival, target=rival)
                    follow_boundary(state, single, steps)
    except KeyboardInterrupt:
        state.status = Status.INTERRUPTED
    state.record("boundary", found, gradients, queries)


def _nearest(state: AttackState, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the nearest perturbations of a batch so far, and their sizes (infinite if none)."""
    delta = state.best.delta[batch.rows].to(batch.region.x)
    fooled = state.best.fooled[batch.rows].to(delta.device)
    size = batch.region.threat.size(delta).double()
    return delta, torch.where(fooled, size, math.inf)


def _keep(state: AttackState, batch: Batch, delta: Tensor, near: Tensor) -> None:
    """Bisect the segments to the perturbations that fool the model, and store the nearest."""
    low = torch.zeros_like(near)
    high = torch.ones_like(near)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fooled = batch.evaluate(batch.region.seen(delta * middle[:, None].to(delta)))[1]
        low = torch.where(fooled, low, middle)
        high = torch.where(fooled, middle, high)
    state.best.queries += BISECTIONS * len(near) * batch.adapter.samples
    found = torch.isfinite(near)
    rows = batch.rows[found]
    shortest = delta * high[:, None].to(delta)
    state.best.delta[rows] = shortest[found].to(state.best.delta)
    state.best.fooled[rows] = True


@torch.no_grad()
def follow_boundary(state: AttackState, batch: Batch, steps: int) -> None:
    """Walk along the decision boundary from the inputs."""
    region = batch.region
    threat = region.threat
    nearest, near = _nearest(state, batch)
    delta = torch.zeros_like(region.x)
    reach = torch.full_like(near, threat.radius)
    crossed = torch.zeros_like(near, dtype=torch.bool)
    one = threat.with_radius(1.0)
    for step in range(steps):
        falling = (1 + math.cos(math.pi * step / steps)) / 2
        value, fooled, gradient = batch.differentiate(region.seen(delta))
        gradient = gradient.nan_to_num(0, 0, 0)
        if step == 0:
            flat = ~(gradient.abs().amax(1) > 0)
            state.best.flat[batch.rows] |= flat.to(state.best.flat.device)
        size = threat.size(delta).double()
        closer = fooled & (size < near)
        near = torch.where(closer, size, near)
        nearest = torch.where(closer[:, None], delta, nearest)
        crossed |= fooled
        # The radius shrinks or grows by 5 percent at first and by a thousandth at the end.
        rate = 0.001 + 0.049 * falling
        steepness = threat.dual(gradient).double().clamp(min=1e-30)
        linearized = size - value.double().nan_to_num(0).clamp(max=0) / steepness
        grown = torch.where(crossed, reach, linearized) * (1 + rate)
        reach = torch.where(fooled, torch.minimum(reach, size) * (1 - rate), grown)
        reach = torch.minimum(reach, near.clamp(max=threat.radius)).clamp(min=1e-30)
        unit = reach[:, None].to(delta)
        box = region.delta_bounds
        scaled = None if box is None else (box[0] / unit, box[1] / unit)
        length = (0.01 + 0.99 * falling) * unit
        delta = region.project_each(
            delta + length * one.ascent(gradient, scaled), reach
        )
    state.best.gradients += steps * len(near) * batch.gradient_cost
    _keep(state, batch, nearest, near)


@torch.no_grad()
def cross_boundaries(state: AttackState, batch: Batch) -> None:
    """Jump to the nearest linearized boundary of each of the likeliest classes, again and again."""
    region = batch.region
    nearest, near = _nearest(state, batch)
    delta = torch.zeros_like(region.x)
    for _ in range(JUMPS):
        for value, gradient in _boundaries(batch, region.seen(delta)):
            # A perturbation e crosses the boundary linearized at x + delta where <g, e> is this.
            needed = ((gradient * delta).sum(1) - value).double()
            jump = _smallest_crossing(batch, gradient, needed)
            fooled = batch.evaluate(region.seen(jump))[1]
            size = region.threat.size(jump).double()
            closer = fooled & (size < near)
            near = torch.where(closer, size, near)
            nearest = torch.where(closer[:, None], jump, nearest)
            state.best.gradients += len(near) * batch.gradient_cost
            state.best.queries += len(near) * batch.adapter.samples
        delta = torch.where(torch.isfinite(near)[:, None], nearest, delta)
    _keep(state, batch, nearest, near)


def _boundaries(batch: Batch, moved: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the lead and its gradient of the likeliest wrong classes, or of the target class."""
    with torch.enable_grad():
        x = moved.detach().requires_grad_()
        logits = batch.adapter.logits(x, batch.rows)
    others = logits.detach().scatter(1, batch.y[:, None], -math.inf)
    likely = others.argsort(1, descending=True)[
        :, : min(logits.shape[1] - 1, MAX_RIVALS)
    ]
    if not torch.equal(batch.target, batch.y):
        likely = batch.target[:, None]
    for k in range(likely.shape[1]):
        with torch.enable_grad():
            lead = lead_of_rival(logits, batch.y, likely[:, k])
            gradient = slope(lead, x, retain=True).nan_to_num(0, 0, 0)
        yield lead.detach(), gradient


def _smallest_crossing(batch: Batch, gradient: Tensor, needed: Tensor) -> Tensor:
    """Return the smallest e in the box with <gradient, e> >= needed, a little beyond it.

    The most that a ball of radius r allows is reached by its linear maximizer and grows with r.
    """
    region = batch.region
    high = torch.full_like(needed, region.threat.radius).double()
    low = torch.zeros_like(high)
    goal = needed.double()
    for _ in range(LINEAR_BISECTIONS):
        middle = (low + high) / 2
        reached = (gradient * region.argmax_each(gradient, middle)).sum(1).double()
        enough = reached >= goal
        high = torch.where(enough, middle, high)
        low = torch.where(enough, low, middle)
    beyond = (high * OVERSHOOT).clamp(max=region.threat.radius)
    return region.argmax_each(gradient, beyond)


def _count(state: AttackState, steps: int, seed: int) -> None:
    """Allow more and more coordinates, each time on the points not fooled yet."""
    largest = min(state.threat.radius, state.best.delta.shape[1])
    count = 1
    while count <= largest and len(state.left):
        state.set_radius(count)
        attack = PGD(
            state.threat,
            loss="margin",
            batch_size=state.batch_size,
            steps=max(steps // 4, 1),
            restarts=2,
            seed=seed,
        )
        state.run(attack, name=f"{count} coordinates")
        count = max(count + 1, round(1.3 * count))
    state.set_radius(largest)


def _settle_random(state: AttackState, wrong: Tensor) -> None:
    """Enlarge perturbations of a random model until most of its samples are fooled."""
    for _ in range(MAX_GROWTHS):
        short = (
            state.best.fooled & ~wrong & (state.success_rate(state.stored())[1] <= 0.6)
        )
        if not bool(short.any()) or state.status is Status.INTERRUPTED:
            return
        larger = state.region.project(state.best.delta * GROWTH)
        state.best.delta = torch.where(short[:, None], larger, state.best.delta)
