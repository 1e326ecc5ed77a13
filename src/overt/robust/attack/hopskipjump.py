"""A decision-based attack: it sees the predicted class and nothing else.

After HopSkipJump (Chen et al. 2020). From a perturbation of any size that fools the model, each
round shrinks it to the decision boundary by bisection, estimates the boundary's normal from the
labels of random nearby points, and steps along it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import whole
from overt.robust.attack.base import Attack, Batch, BestIterates, Draw
from overt.robust.losses import Loss

BISECTIONS = 10
"""Halvings of the way to the boundary: its distance is known to a thousandth."""

STARTS = [(2.0**k, seed) for k in range(7) for seed in range(10)]
"""Sizes, in radii, and seeds of first perturbations that are tried; all points share them."""

SHORTER_STEPS = 4
"""Halvings of a step along the normal until it fools the model."""

MAX_DIRECTIONS = 80
"""Random directions of one estimate; more of them cost more than they gain in accuracy."""


@final
@dataclass(frozen=True, eq=False)
class HopSkipJump(Attack):
    """Attack by decisions alone: for models that return labels.

    `queries` is the number of evaluations of the model at each point.
    """

    _: KW_ONLY
    queries: int = 2500
    loss: str | Loss | Any = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("queries", self.queries)

    @property
    def length(self) -> int:
        """Number of queries of a run."""
        return self.queries

    @torch.no_grad()
    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Attack one batch."""
        walk = _BoundaryWalk(batch, steps, torch.Generator().manual_seed(self.seed))
        walk.start()
        while walk.round():
            pass
        best = BestIterates.start(start)
        inside = (walk.distance <= batch.region.threat.radius)[:, None]
        delta = torch.where(inside, walk.delta, start)
        value, fooled = batch.evaluate(batch.region.perturbed(delta))
        best.enter(torch.arange(len(delta), device=delta.device), delta, value, fooled)
        best.queries = len(delta) * (steps - walk.available)
        return best


class _BoundaryWalk:
    """Perturbations that fool the model, each as near to its input as was found so far.

    Their `distance` is infinite where nothing was found.
    """

    def __init__(self, batch: Batch, queries: int, generator: torch.Generator) -> None:
        self._batch = batch
        self._region = batch.region
        self._generator = generator
        self._rounds = 0
        self.available = queries - 1
        self.delta = torch.zeros_like(batch.region.x)
        self.distance = torch.full_like(self.delta[:, 0], torch.inf).double()

    def _decide(self, delta: Tensor) -> Tensor:
        """Return which points a perturbation fools; costs a query each."""
        self.available -= 1
        return self._batch.evaluate(self._region.perturbed(delta))[1]

    def start(self) -> None:
        """Find any perturbation that fools the model, within ever larger balls."""
        found = torch.zeros_like(self.distance, dtype=torch.bool)
        delta = self.delta
        for scale, seed in STARTS:
            if bool(found.all()) or self.available < 1:
                break
            larger = self._region.with_radius(scale * self._region.threat.radius)
            trial = larger.draw(seed, extreme=seed % 2 == 0)
            new = self._decide(trial) & ~found
            delta = torch.where(new[:, None], trial, delta)
            found |= new
        self._shrink(delta, found)

    def round(self) -> bool:
        """Estimate the boundary's normal, step along it, and shrink; return whether to continue."""
        self._rounds += 1
        directions = min(int(20 * self._rounds**0.5), MAX_DIRECTIONS)
        found = torch.isfinite(self.distance)
        active = found & (self.distance > self._region.threat.radius)
        enough = self.available >= directions + BISECTIONS + SHORTER_STEPS
        if not enough or not bool(active.any()):
            return False
        ascent = self._region.ascent(self._estimate_normal(directions))
        length = self.distance.where(found, 0)[:, None].to(ascent) / self._rounds**0.5
        trial = self.delta
        moved = torch.zeros_like(found)
        for _ in range(SHORTER_STEPS):  # until one still fools the model
            step = self.delta + ascent * length
            if self._region.delta_bounds is not None:
                step = step.clamp(*self._region.delta_bounds)
            new = self._decide(step) & ~moved
            trial = torch.where(new[:, None], step, trial)
            moved |= new
            length = length / 2
        self._shrink(trial, moved & active)
        return True

    def _estimate_normal(self, directions: int) -> Tensor:
        """Return the direction in which random neighbors are fooled more often."""
        width = self.delta.shape[1]
        size = (self.distance.nan_to_num(0, 0, 0) / width**0.5)[:, None].to(self.delta)
        u = torch.randn(directions, width, generator=self._generator).to(self.delta)
        u /= torch.linalg.vector_norm(u, dim=1, keepdim=True)
        signs = [2.0 * self._decide(self.delta + size * row) - 1 for row in u]
        votes = torch.stack(signs, 1).to(u)
        # Subtracting the mean vote reduces the variance (Chen et al. 2020, section 3.3).
        return (votes - votes.mean(1, keepdim=True)) @ u

    def _shrink(self, delta: Tensor, rows: Tensor) -> None:
        """Bisect the radius on which a perturbation is projected; keep what is nearer."""
        high = self._region.threat.size(delta)
        low = torch.zeros_like(high)
        nearest = delta
        for _ in range(min(BISECTIONS, self.available)):
            middle = (low + high) / 2
            ball = self._region.with_radius(middle[:, None].to(delta))
            trial = ball.project(delta)
            fooled = self._decide(trial)
            nearest = torch.where(fooled[:, None], trial, nearest)
            high = torch.where(fooled, middle, high)
            low = torch.where(fooled, low, middle)
        size = self._region.threat.size(nearest)
        nearer = rows & (size < self.distance)
        self.delta = torch.where(nearer[:, None], nearest, self.delta)
        self.distance = torch.where(nearer, size, self.distance)
