"""Search without gradients: random windows, accepted where they raise the loss.

After the Square attack (Andriushchenko et al. 2020), with the threat's own projection: a window is
given one random sign for each channel and, in L1 and L2, what a second window has of the norm.
Windows shrink as queries go by; they are the same for every point.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import whole
from overt.robust.attack.base import Attack, Batch, BestIterates, Draw
from overt.robust.losses import Loss
from overt.robust.threats import Region

FIRST_AREA = 0.8
"""Share of the input that the first windows cover."""

HALVING_AT = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the queries after which windows have half the area (Andriushchenko et al. 2020)."""

Planes = tuple[int, int, int]
"""An input's shape as (channels, height, width)."""


@final
@dataclass(frozen=True, eq=False)
class Square(Attack):
    """Random search over windows of the input: it needs no gradient, so nothing can mask it.

    `queries` is the number of evaluations of the model at each point, of each run.
    """

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

    @torch.no_grad()
    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Search on one batch."""
        shape = _planes(batch.adapter.x.shape[1:])
        generator = torch.Generator().manual_seed(self.seed)
        stripes = _stripes(batch.region, shape, generator)
        trial = torch.where(start.any(1, keepdim=True), start, stripes)
        best = BestIterates.start(trial)
        rows = torch.arange(len(trial), device=trial.device)
        for step in range(1, steps + 1):
            value, fooled = batch.evaluate(batch.region.perturbed(trial))
            best.enter(rows, trial, value, fooled)
            best.queries += len(rows) * batch.adapter.samples
            if self.early_exit and bool(fooled.any()):
                stay = (~fooled).nonzero().squeeze(1)
                batch, rows = batch.take(stay), rows[stay]
            if step == steps or len(rows) == 0:
                break
            area = FIRST_AREA / 2 ** sum(step > share * steps for share in HALVING_AT)
            trial = _window(batch.region, best.delta[rows], area, shape, generator)
        return best


def _planes(shape: torch.Size) -> Planes:
    """Return an input's shape as (channels, height, width): vectors and matrices have one."""
    if len(shape) < 3:
        return 1, (1, *shape)[-2], shape[-1]
    return shape[0], shape[1], shape[2:].numel()


def _signs(shape: Planes, generator: torch.Generator, like: Tensor) -> Tensor:
    return torch.randn(shape, generator=generator).sign().to(like)


def _stripes(region: Region, shape: Planes, generator: torch.Generator) -> Tensor:
    """Return a first perturbation: columns of random signs, as large as is allowed."""
    channels, height, width = shape
    sign = _signs((channels, 1, width), generator, region.x)
    wide = sign.expand(-1, height, -1).flatten().expand_as(region.x)
    return region.project(_unit(region, wide) * region.threat.radius)


def _window(
    region: Region,
    delta: Tensor,
    area: float,
    shape: Planes,
    generator: torch.Generator,
) -> Tensor:
    """Return perturbations with one window changed, projected on the region."""
    here = _mask(area, shape, generator).to(delta.device)
    there = _mask(area, shape, generator).to(delta.device)
    sign = _signs((shape[0], 1, 1), generator, delta).expand(shape).flatten()
    threat = region.threat
    if threat.order == torch.inf:
        return region.project(torch.where(here, sign * threat.radius, delta))
    # What both windows have of the norm goes into the first. Half of it keeps the signs that are
    # there: with new signs alone an L1 ball of a network for MNIST yields half as many points.
    rest = torch.where(here | there, 0, delta)
    order = float(threat.order)
    powers = threat.radius**order - threat.size(rest) ** order
    available = (powers.clamp(min=0) ** (1 / order))[:, None].to(delta)
    new = _unit(region, torch.where(here, sign, 0)[None])
    mixed = _unit(region, new + _unit(region, torch.where(here, delta, 0)))
    return region.project(rest + mixed * available)


def _mask(area: float, shape: Planes, generator: torch.Generator) -> Tensor:
    """Return where a random window of about this share of the input is, (features,)."""
    _, height, width = shape
    tall = min(max(round((area * height * width) ** 0.5), 1), height)
    broad = min(max(round(area * height * width / tall), 1), width)
    top = int(torch.randint(height - tall + 1, (), generator=generator))
    left = int(torch.randint(width - broad + 1, (), generator=generator))
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[:, top : top + tall, left : left + broad] = True
    return mask.flatten()


def _unit(region: Region, v: Tensor) -> Tensor:
    return v / region.threat.size(v)[:, None].clamp(min=1e-12).to(v)
