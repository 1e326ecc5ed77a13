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
from overt.robust.keyed_random import keys_of, normal
from overt.robust.losses import Loss

BISECTIONS = 10
"""Halvings of the way to the boundary: its distance is known to a thousandth."""

MAX_START = 64.0
"""Largest start, in radii, that is tried for a first perturbation that fools the model."""

MAX_DIRECTIONS = 80
"""Random directions of one estimate; more of them cost more than they gain in accuracy."""


@final
@dataclass(frozen=True)
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
        best = BestIterates.start(torch.zeros_like(start))
        walk = _BoundaryWalk(batch, self.seed or 0, steps, best)
        walk.start()
        while walk.rounds():
            pass
        inside = walk.fooled & (walk.distance <= batch.region.threat.radius)
        delta = torch.where(inside[:, None], walk.delta, start)
        value, fooled = batch.evaluate(batch.region.perturbed(delta))
        best.enter(torch.arange(len(delta), device=delta.device), delta, value, fooled)
        best.queries += len(delta)
        return best


class _BoundaryWalk:
    """Perturbations that fool the model, each as near to its input as was found so far."""

    def __init__(
        self, batch: Batch, seed: int, queries: int, best: BestIterates
    ) -> None:
        self._batch = batch
        self._region = batch.region
        self._keys = keys_of(batch.region.x, seed)
        self._available = queries - 1
        self._round = 0
        self._best = best
        self.delta = torch.zeros_like(batch.region.x)
        self.distance = torch.full_like(batch.region.x[:, 0], torch.inf).double()
        self.fooled = torch.zeros_like(best.fooled)

    def _decide(self, delta: Tensor) -> Tensor:
        """Return which points a perturbation fools; costs a query each."""
        self._available -= 1
        self._best.queries += len(delta)
        return self._batch.evaluate(self._region.perturbed(delta))[1]

    def start(self) -> None:
        """Find any perturbation that fools the model, within ever larger balls."""
        radius = self._region.threat.radius
        scale = 1.0
        while (
            scale <= MAX_START and self._available > 0 and not bool(self.fooled.all())
        ):
            larger = self._region.with_radius(scale * radius)
            for seed in (0, 1):
                trial = larger.draw(seed, extreme=seed == 0)
                new = self._decide(trial) & ~self.fooled
                self.delta = torch.where(new[:, None], trial, self.delta)
                self.fooled |= new
            scale *= 2
        self._shrink(self.delta, self.fooled)

    def rounds(self) -> bool:
        """Estimate the boundary's normal, step along it, and shrink; return whether to continue."""
        self._round += 1
        directions = min(int(20 * self._round**0.5), MAX_DIRECTIONS)
        done = ~self.fooled | (self.distance <= self._region.threat.radius)
        if bool(done.all()) or self._available < directions + BISECTIONS + 4:
            return False
        normal_vector = self._estimate(directions)
        length = self.distance / self._round**0.5
        moved = torch.zeros_like(done)
        trial = self.delta
        ascent = self._region.ascent(normal_vector)
        for _ in range(4):  # shorter steps until one still fools the model
            step = self.delta + ascent * length[:, None].to(trial)
            box = self._region.delta_bounds
            step = step if box is None else step.clamp(*box)
            ok = self._decide(step) & self.fooled & ~moved
            trial = torch.where(ok[:, None], step, trial)
            moved |= ok
            length = length / 2
        self._shrink(trial, moved & ~done)
        return True

    def _estimate(self, directions: int) -> Tensor:
        """Return the direction in which random neighbors are fooled more often."""
        width = self.delta.shape[1]
        size = (self.distance / width**0.5).to(self.delta)[:, None]
        total = torch.zeros_like(self.delta)
        signs = torch.zeros_like(self.delta[:, :1])
        moves = torch.zeros_like(self.delta)
        for k in range(directions):
            u = normal(self._keys + 7919 * (self._round * 1000 + k), width, self.delta)
            u /= torch.linalg.vector_norm(u, dim=1, keepdim=True)
            sign = torch.where(self._decide(self.delta + size * u), 1.0, -1.0)[:, None]
            total += sign * u
            moves += u
            signs += sign
        # Subtracting the mean sign reduces the variance (Chen et al. 2020, section 3.3).
        return total - signs / directions * moves

    def _shrink(self, delta: Tensor, rows: Tensor) -> None:
        """Bisect the radius on which a perturbation is projected; keep what is nearer."""
        high = self._region.threat.size(delta).double()
        low = torch.zeros_like(high)
        nearest = delta
        for _ in range(BISECTIONS):
            if self._available < 1:
                break
            middle = (low + high) / 2
            ball = self._region.with_radius(middle[:, None].to(delta))
            trial = ball.project(delta)
            fooled = self._decide(trial)
            nearest = torch.where(fooled[:, None], trial, nearest)
            high = torch.where(fooled, middle, high)
            low = torch.where(fooled, low, middle)
        size = self._region.threat.size(nearest).double()
        nearer = rows & (size < self.distance)
        self.delta = torch.where(nearer[:, None], nearest, self.delta)
        self.distance = torch.where(nearer, size, self.distance)
