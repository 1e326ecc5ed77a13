"""The nearest point that fools a model: one method for L1, L2 and Linf, and growing counts for L0.

Each point carries a radius of its own. Where it is fooled the radius shrinks below what fooled it,
where it is not it grows; steps are taken, and projected, in units of that radius, so that iterates
stay near the decision boundary (after Pintor et al. 2021). Segments to the nearest iterates are
then halved.
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
from overt.robust.attacks import models
from overt.robust.attacks.criteria import Criterion, Misclassified
from overt.robust.attacks.gradient import PGD
from overt.robust.attacks.points import Points, slope
from overt.robust.attacks.results import report
from overt.robust.attacks.search import Search
from overt.robust.attacks.staged import begin
from overt.robust.threats import Region, Threat

JUMPS, OVERSHOOT = 4, 1.01
"""Linearizations of the boundary, and how far beyond it a jump goes, to cross a curved one."""

GROWTH, GROWTHS = 1.1, 16
"""Factor by which perturbations of a random model grow, and how often: up to 4.6 times."""

HALVINGS = 12
"""Times that the segment from an input to what fools it is halved."""


@dataclass(frozen=True, repr=False, eq=False)
class Closest(Result):
    """The nearest perturbed inputs that were found to fool the model.

    Attributes
    ----------
    x
        Perturbed inputs, shaped like the given ones; the inputs themselves where nothing was found.
    distance
        Their distance from the inputs as stored, an upper bound on that to the decision boundary: 0
        for points that are wrong to begin with, infinity where nothing was found, (points,).
    success
        Which points are fooled, recomputed at x: the proof, (points,).
    norm
        "l0", "l1", "l2" or "linf".
    gradients, queries, warnings, status
        As for any attack.
    """

    x: Tensor
    distance: Tensor
    success: Tensor
    norm: str
    gradients: int
    queries: int
    warnings: tuple[str, ...]
    status: Status

    def errors(self, radii: Any, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Return the robust error found at any radii (k,), and its intervals (k, 2)."""
        distance = np.asarray(torch.as_tensor(self.distance).cpu())
        radii = doubles("radii", np.atleast_1d(plain_array("radii", radii)), ndim=1)
        if not 0 < (confidence := number("confidence", confidence)) < 1:
            raise InputError(f"confidence must lie between 0 and 1, got {confidence}")
        counts = (distance <= radii[:, None]).sum(1)
        return counts / len(distance), np.stack(
            clopper_pearson(counts, len(distance), confidence), axis=1
        )


def closest(
    model: models.Model, x: Any, y: Any = None, threat: Threat | None = None, *, steps: int = 100,
    rivals: int = 2, criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
    batch_size: int = models.BATCH_SIZE, seed: int = 0, warn: bool = True,
    **run: Unpack[models.Door],
) -> Closest:  # fmt: skip
    """Look for the nearest perturbation that fools the model at each point.

    Parameters
    ----------
    model, x, y
        As for any attack.
    threat
        The norm, the bounds, and a radius beyond which nothing is of interest.
    steps, rivals
        Gradients of each run, and runs against single classes, by linearized distance, that follow
        the one against the likeliest.
    criterion, batch_size, seed, warn, output, mean, std, samples
        As for any attack.
    """
    whole("steps", steps)
    if instance("criterion", criterion, Criterion, "a Criterion").raw:
        raise InputError("criterion must be of classes for closest, got Deviates; use PGD")
    search = begin(model, x, y, threat, criterion, batch_size, run, loss="margin")
    begun = search.best.fooled.clone()
    with search:
        if search.random:  # the majority decides who is wrong to begin with
            begun = search.score(search.x)[1] > 0.5
            search.best.fooled = begun.clone()
        if search.threat.order == 0:
            _count(search, steps, seed)
        else:
            classes = search.clean.shape[1] - 1
            count = 0 if search.targeted else min(whole("rivals", rivals, minimum=0), classes)
            left = (~begun).nonzero().squeeze(1)
            measured = min(classes, 9) if count else 0
            parts = left.split(search.batch_size) if len(left) else ()
            try:
                for part in parts:
                    _surround(steps, count, measured, search, part)
            except KeyboardInterrupt:
                search.status = Status.INTERRUPTED
        if search.random:
            _enlarge(search, begun)
        result = search.result(warn=False)
    search.signs.pop("stuck", None)  # the input itself is what stands where nothing was found
    moved = search.x.to(result.x.dtype, copy=True)
    moved[result.success] = result.x[result.success]
    size = search.threat.size((moved.double() - search.x.double()).flatten(1)).double()
    size = torch.where(result.success, size, math.inf)
    return Closest(
        moved, size, result.success, search.threat.name, result.gradients, result.queries,
        report(search.signs, warn=warn), result.status,
    )  # fmt: skip


def _surround(steps: int, count: int, measured: int, search: Search, rows: Tensor) -> None:
    """Approach the nearest class at each of some points, and single ones in turn."""
    _approach(search, rows, search.points(rows), steps)
    _cross(search, rows, search.points(rows))
    nearest = search.rivals(rows, measured)
    for k in range(count):
        toward = nearest[:, k].to(search.subject.device)
        _approach(search, rows, search.points(rows, objective=_lead, aim=toward), steps)


def _enlarge(search: Search, begun: Tensor) -> None:
    """Enlarge perturbations of a random model until most of its samples are fooled."""
    for _ in range(GROWTHS):
        short = search.best.fooled & ~begun & (search.score(search.settled())[1] <= 0.6)
        if not bool(short.any()) or search.status is Status.INTERRUPTED:
            return
        larger = search.region.project(search.best.delta * GROWTH)
        search.best.delta = torch.where(short[:, None], larger, search.best.delta)


def _cross(search: Search, rows: Tensor, points: Points) -> None:
    """Jump to the nearest linearized boundary, again and again (in the manner of FAB).

    The smallest perturbation that crosses a linearized boundary is the exact linear maximizer in
    ball and box, its radius found by bisection: a linear model is solved by the first jump.
    """
    region, threat, best = points.region, points.region.threat, search.best
    near = torch.where(best.fooled[rows], threat.size(best.delta[rows]).double(), math.inf)
    nearest, delta = best.delta[rows].clone(), torch.zeros_like(region.x)
    for _ in range(JUMPS):
        for value, gradient in _boundaries(points, region.seen(delta)):
            needed = ((gradient * delta).sum(1) - value).double()
            jump = _smallest(region, gradient, needed)
            fooled = points.evaluate(region.seen(jump))[1]
            size = threat.size(jump).double()
            closer = fooled & (size < near)
            near = torch.where(closer, size, near)
            nearest = torch.where(closer[:, None], jump, nearest)
            best.gradients += len(rows)
            best.queries += len(rows)
        delta = torch.where(torch.isfinite(near)[:, None], nearest, delta)
    nearest, near = _halve(points, nearest, near)
    best.queries += HALVINGS * len(rows)
    found = torch.isfinite(near)
    best.delta[rows[found]], best.fooled[rows[found]] = nearest[found], True


def _boundaries(points: Points, moved: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the lead and its gradient of the likeliest wrong classes, or of the class aimed at."""
    with torch.enable_grad():
        x = moved.detach().requires_grad_()
        logits = points.subject.logits(x, points.rows)
    others = logits.detach().scatter(1, points.y[:, None], -math.inf)
    likely = others.argsort(1, descending=True)[:, : min(logits.shape[1] - 1, 9)]
    if not torch.equal(points.aim, points.y):
        likely = points.aim[:, None]
    for k in range(likely.shape[1]):
        with torch.enable_grad():
            lead = _lead(logits, points.y, likely[:, k])
        yield lead.detach(), slope(lead, x, retain=True).nan_to_num(0, 0, 0)


def _smallest(region: Region, gradient: Tensor, needed: Tensor) -> Tensor:
    """Return the smallest allowed d with <gradient, d> >= needed, a little beyond it."""
    low, high = torch.zeros_like(needed), torch.full_like(needed, region.threat.radius)

    for _ in range(24):  # costs no evaluation of the model
        middle = (low + high) / 2
        enough = (gradient * region.argmax_each(gradient, middle)).sum(1).double() >= needed
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return region.argmax_each(gradient, (high * OVERSHOOT).clamp(max=region.threat.radius))


def _lead(logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
    """Return f_rival - f_y."""
    at = torch.stack([rival, y], 1)
    return -logits.gather(1, at).diff(dim=1).squeeze(1)


def _approach(search: Search, rows: Tensor, points: Points, steps: int) -> None:
    """Walk along the decision boundary from the inputs; keep the best."""
    region, threat, best = points.region, points.region.threat, search.best
    near = torch.where(best.fooled[rows], threat.size(best.delta[rows]).double(), math.inf)
    delta = torch.zeros_like(region.x)
    nearest, reach = best.delta[rows].clone(), torch.full_like(near, threat.radius)
    one, box, known = (
        threat.with_radius(1.0),
        region.delta_bounds,
        torch.zeros_like(best.fooled[rows]),
    )
    for step in range(steps):
        fall = (1 + math.cos(math.pi * step / steps)) / 2
        value, fooled, gradient = points.differentiate(region.seen(delta))
        gradient = gradient.nan_to_num(0, 0, 0)
        if step == 0:
            best.flat[rows] |= (~(gradient.abs().amax(1) > 0)).to(best.flat.device)
        size = threat.size(delta).double()
        closer = fooled & (size < near)
        near = torch.where(closer, size, near)
        nearest = torch.where(closer[:, None], delta, nearest)
        known |= fooled
        rate = 0.001 + 0.049 * fall
        steep = threat.dual(gradient).double().clamp(min=1e-30)
        guess = size - value.double().nan_to_num(0).clamp(max=0) / steep
        grown = torch.where(known, reach, guess) * (1 + rate)
        reach = torch.where(fooled, torch.minimum(reach, size) * (1 - rate), grown)
        reach = torch.minimum(reach, near.clamp(max=threat.radius)).clamp(min=1e-30)
        unit = reach[:, None].to(delta)
        scaled = None if box is None else (box[0] / unit, box[1] / unit)
        length = 0.01 + 0.99 * fall
        direction = one.ascent(gradient, scaled)
        delta = one.project(delta / unit + length * direction, scaled) * unit
    best.gradients += steps * len(rows)
    nearest, near = _halve(points, nearest, near)
    best.queries += HALVINGS * len(rows)
    found = torch.isfinite(near)
    best.delta[rows[found]], best.fooled[rows[found]] = nearest[found], True


def _halve(points: Points, delta: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shortest part of each perturbation that was seen to fool the model."""
    low, high = torch.zeros_like(near), torch.ones_like(near)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fooled = points.evaluate(points.region.seen(delta * middle[:, None].to(delta)))[1]
        low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)
    return delta * high[:, None].to(delta), near * high


def _count(search: Search, steps: int, seed: int) -> None:
    """Allow more and more coordinates, each time on the points not fooled yet."""
    largest = min(search.threat.radius, search.best.delta.shape[1])
    count = 1
    while count <= largest and len(search.left):
        search.limit(search.threat.with_radius(count))
        runs: dict[str, Any] = {"steps": max(steps // 4, 1), "restarts": 2, "seed": seed}
        search.stage(PGD(search.threat, loss="margin", batch_size=search.batch_size, **runs))
        count = max(count + 1, round(1.3 * count))
    search.limit(search.threat.with_radius(largest))
