"""Attacks that need no gradient: search by the loss, and by decisions alone.

`Square` follows Andriushchenko et al. 2020, with the threat's own projection: random windows are
given one random sign for each channel and, in L1 and L2, what a second window has of the norm; a
change stays where it raises the loss. Windows shrink as queries go by; they are the same for
every point.

`HopSkipJump` follows Chen et al. 2020. From a perturbation of any size that fools the model, each
round shrinks it to the decision boundary by bisection, estimates the boundary's normal from the
labels of random nearby points, and steps along it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import whole
from overt.robust.attack.base import Attack, Batch, BestIterates, Draw, bisect
from overt.robust.losses import Loss
from overt.robust.threats import Region

FIRST_AREA = 0.8
"""Share of the input that the first windows cover."""

HALVING_AT = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the queries after which windows have half the area (Andriushchenko et al. 2020)."""

BISECTIONS = 10
"""Halvings of the way to the boundary: its distance is known to a thousandth."""

STARTS = [(2.0**k, seed) for k in range(7) for seed in range(10)]
"""Sizes, in radii, and seeds of first perturbations that are tried; all points share them."""

SHORTER_STEPS = 4
"""Halvings of a step along the normal until it fools the model."""

MAX_DIRECTIONS = 80
"""Random directions of one estimate; more of them cost more than they gain in accuracy."""


@dataclass(frozen=True, eq=False)
class _Search(Attack):
    """An attack whose length is its number of evaluations of the model at each point."""

    _: KW_ONLY
    queries: int = 1000
    loss: str | Loss | Any = "margin"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("queries", self.queries)

    @property
    def length(self) -> int:
        """Number of queries of a run."""
        return self.queries


@final
@dataclass(frozen=True, eq=False)
class Square(_Search):
    """Random search over windows of the input: it needs no gradient, so nothing can mask it.

    `queries` is the number of evaluations of the model at each point, of each run.
    """

    @torch.no_grad()
    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Search on one batch."""
        windows = _Windows(batch.adapter.x.shape[1:], self.seed)
        stripes = windows.stripes(batch.region)
        trial = torch.where(start.any(1, keepdim=True), start, stripes)
        best = BestIterates.start(trial)
        rows = torch.arange(len(trial), device=trial.device)
        for step in range(1, steps + 1):
            value, fooled = batch.evaluate(batch.region.perturbed(trial))
            best.enter(rows, trial, value, fooled)
            best.queries += len(rows) * batch.adapter.samples
            if self.early_exit and bool(fooled.any()):
                stay = (~fooled).nonzero().squeeze(1)
                batch = batch.take(stay)
                rows = rows[stay]
            if len(rows) == 0:
                break
            halvings = sum(step > share * steps for share in HALVING_AT)
            area = FIRST_AREA / 2**halvings
            trial = windows.changed(best.delta[rows], batch.region, area)
        return best


class _Windows:
    """Random windows of inputs, as planes (channels, height, width); the same for every point."""

    def __init__(self, shape: torch.Size, seed: int) -> None:
        if len(shape) < 3:  # a vector or a matrix is one plane
            shape = torch.Size((1, *(1, *shape)[-2:]))
        self._channels = shape[0]
        self._height = shape[1]
        self._width = shape[2:].numel()
        self._generator = torch.Generator().manual_seed(seed)

    def stripes(self, region: Region) -> Tensor:
        """Return a first perturbation: columns of random signs, as large as is allowed."""
        columns = self._signs(self._width).to(region.x)
        wide = columns.expand_as(region.x)
        return region.project(_unit(region, wide) * region.threat.radius)

    def changed(self, delta: Tensor, region: Region, area: float) -> Tensor:
        """Return perturbations with one window changed, projected on the region."""
        here = self._mask(area).to(delta.device)
        there = self._mask(area).to(delta.device)
        sign = self._signs(1).to(delta)
        threat = region.threat
        if threat.order == torch.inf:
            return region.project(torch.where(here, sign * threat.radius, delta))
        # What both windows have of the norm goes into the first, with a share of the old signs:
        # on 21 linear models of 12 inputs and 4 networks, all of them fool 321 + 146 points in L1
        # where half of them fool 310 + 146; in L2 it is 288 + 213 and 305 + 218.
        rest = torch.where(here | there, 0, delta)
        order = threat.order
        powers = threat.radius**order - threat.size(rest) ** order
        available = powers.clamp(min=0) ** (1 / order)
        new = _unit(region, torch.where(here, sign, 0)[None])
        old = _unit(region, torch.where(here, delta, 0))
        mixed = _unit(region, new + old / order)
        return region.project(rest + mixed * available[:, None].to(delta))

    def _signs(self, width: int) -> Tensor:
        """Return random signs of each channel, one or one for each column, (features,)."""
        shape = (self._channels, 1, width)
        signs = torch.randn(shape, generator=self._generator).sign()
        return signs.expand(-1, self._height, self._width).flatten()

    def _mask(self, area: float) -> Tensor:
        """Return where a random window of about this share of the input is, (features,)."""
        pixels = area * self._height * self._width
        tall = min(max(round(pixels**0.5), 1), self._height)
        broad = min(max(round(pixels / tall), 1), self._width)
        shape = (self._channels, self._height, self._width)
        mask = torch.zeros(shape, dtype=torch.bool)
        rows = self._window(tall, self._height)
        columns = self._window(broad, self._width)
        mask[:, rows, columns] = True
        return mask.flatten()

    def _window(self, size: int, end: int) -> slice:
        """Return a random range of this size below `end`."""
        first = int(torch.randint(end - size + 1, (), generator=self._generator))
        return slice(first, first + size)


def _unit(region: Region, v: Tensor) -> Tensor:
    size = region.threat.size(v).clamp(min=1e-12)
    return v / size[:, None].to(v)


@final
@dataclass(frozen=True, eq=False)
class HopSkipJump(_Search):
    """Attack by decisions alone: for models that return labels.

    `queries` is the number of evaluations of the model at each point.
    """

    _: KW_ONLY
    queries: int = 2500

    @torch.no_grad()
    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Attack one batch."""
        walk = _BoundaryWalk(batch, steps, self.seed)
        walk.start()
        while walk.round():
            pass
        best = BestIterates.start(start)
        inside = walk.distance <= batch.region.threat.radius
        delta = torch.where(inside[:, None], walk.delta, start)
        value, fooled = batch.evaluate(batch.region.perturbed(delta))
        best.enter(torch.arange(len(delta), device=delta.device), delta, value, fooled)
        best.queries = len(delta) * (steps - walk.available)
        return best


class _BoundaryWalk:
    """Perturbations that fool the model, each as near to its input as was found so far.

    Their `distance` is infinite where nothing was found.
    """

    def __init__(self, batch: Batch, queries: int, seed: int) -> None:
        self._batch = batch
        self._region = batch.region
        self._generator = torch.Generator().manual_seed(seed)
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
        region = self._region
        radius = region.threat.radius
        trials = (
            region.with_radius(scale * radius).draw(seed, extreme=seed % 2 == 0)
            for scale, seed in STARTS
        )
        delta, found = self._first_success(trials)
        self._shrink(delta, found)

    def _first_success(self, trials: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the first of some perturbations that fools each point, and whether one does."""
        delta = self.delta
        found = torch.zeros_like(self.distance, dtype=torch.bool)
        for trial in trials:
            if self.available < 1 or bool(found.all()):
                break
            new = self._decide(trial) & ~found
            delta = torch.where(new[:, None], trial, delta)
            found |= new
        return delta, found

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
        distance = self.distance.where(found, 0)[:, None].to(ascent)
        length = distance / self._rounds**0.5
        box = self._region.delta_bounds or (None, torch.inf)
        shorter = [length / 2**k for k in range(SHORTER_STEPS)]
        steps = [(self.delta + ascent * part).clamp(*box) for part in shorter]
        trial, moved = self._first_success(steps)
        self._shrink(trial, moved & active)
        return True

    def _estimate_normal(self, directions: int) -> Tensor:
        """Return the direction in which random neighbors are fooled more often."""
        width = self.delta.shape[1]
        size = self.distance.nan_to_num(0, 0, 0) / width**0.5
        size = size[:, None].to(self.delta)
        u = torch.randn(directions, width, generator=self._generator).to(self.delta)
        u /= torch.linalg.vector_norm(u, dim=1, keepdim=True)
        fooled = [self._decide(self.delta + size * row) for row in u]
        votes = torch.stack(fooled, 1).to(u)
        # Subtracting the mean vote reduces the variance (Chen et al. 2020, section 3.3).
        return (votes - votes.mean(1, keepdim=True)) @ u

    def _shrink(self, delta: Tensor, rows: Tensor) -> None:
        """Bisect the radius on which a perturbation is projected; keep what is nearer."""
        nearest = delta

        def fools(radius: Tensor) -> Tensor:
            nonlocal nearest
            ball = self._region.with_radius(radius[:, None].to(delta))
            trial = ball.project(delta)
            fooled = self._decide(trial)
            nearest = torch.where(fooled[:, None], trial, nearest)
            return fooled

        size = self._region.threat.size(delta)
        bisect(fools, size, min(BISECTIONS, self.available))
        size = self._region.threat.size(nearest)
        nearer = rows & (size < self.distance)
        self.delta = torch.where(nearer[:, None], nearest, self.delta)
        self.distance = torch.where(nearer, size, self.distance)
