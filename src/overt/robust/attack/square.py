"""Search without gradients: random windows, accepted where they raise the loss.

After the Square attack (Andriushchenko et al. 2020), with the threat's own projection: a window is
given one random sign for each channel and, in L1 and L2, what a second window has of the norm.
Windows shrink as queries go by; they depend on a point's values, the seed and the step.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import whole
from overt.robust.attack.base import Attack, Batch, BestIterates, Draw
from overt.robust.keyed_random import keys_of, uniform
from overt.robust.losses import Loss
from overt.robust.threats import Region

FIRST_AREA = 0.8
"""Share of the input that the first windows cover."""

HALVING_AT = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the queries after which windows have half the area (Andriushchenko et al. 2020)."""

Planes = tuple[int, int, int]
"""An input's shape as (channels, height, width)."""


@final
@dataclass(frozen=True)
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
        keys = keys_of(batch.region.x, self.seed or 0)
        stripes = _stripes(batch.region, keys, shape)
        trial = torch.where(start.any(1, keepdim=True), start, stripes)
        best = BestIterates.start(trial)
        rows = torch.arange(len(trial), device=trial.device)
        for step in range(1, steps + 1):
            value, fooled = batch.evaluate(batch.region.perturbed(trial))
            best.enter(rows, trial, value, fooled)
            best.queries += len(rows) * batch.adapter.samples
            if self.early_exit and bool(fooled.any()):
                stay = (~fooled).nonzero().squeeze(1)
                batch, rows, keys = batch.take(stay), rows[stay], keys[stay]
            if step == steps or len(rows) == 0:
                break
            area = FIRST_AREA / 2 ** sum(step > share * steps for share in HALVING_AT)
            trial = _window(batch.region, best.delta[rows], keys, step, area, shape)
        return best


def _planes(shape: torch.Size) -> Planes:
    """Return an input's shape as (channels, height, width): vectors and matrices have one."""
    if len(shape) < 3:
        return 1, (1, *shape)[-2], shape[-1]
    return shape[0], shape[1], shape[2:].numel()


def _stripes(region: Region, keys: Tensor, shape: Planes) -> Tensor:
    """Return a first perturbation: columns of random signs, as large as is allowed."""
    channels, height, width = shape
    sign = (uniform(keys, channels * width, region.x) - 0.5).sign()
    wide = sign.view(-1, channels, 1, width).expand(-1, -1, height, -1).flatten(1)
    return region.project(_unit(region, wide) * region.threat.radius)


def _window(
    region: Region, delta: Tensor, keys: Tensor, step: int, area: float, shape: Planes
) -> Tensor:
    """Return perturbations with one window changed, projected on the region."""
    channels, height, width = shape
    tall = min(max(round((area * height * width) ** 0.5), 1), height)
    broad = min(max(round(area * height * width / tall), 1), width)
    random = uniform(keys, 4 + channels, delta, stream=step + 8)
    here = _mask(random[:, 0], random[:, 1], tall, broad, shape)
    there = _mask(random[:, 2], random[:, 3], tall, broad, shape)
    sign = (random[:, 4:] - 0.5).sign().repeat_interleave(height * width, 1)
    threat = region.threat
    if threat.order == torch.inf:
        return region.project(torch.where(here, sign * threat.radius, delta))
    if threat.order == 0 and region.delta_bounds is not None:
        ends = torch.where(sign > 0, region.delta_bounds[1], region.delta_bounds[0])
        # The projection prefers what lies beyond the box, and clips it.
        return region.project(
            torch.where(here, 1.5 * ends, torch.where(there, 0, delta))
        )
    # What both windows have of the norm goes into the first.
    rest = torch.where(here | there, 0, delta)
    order = float(threat.order)
    powers = threat.radius**order - threat.size(rest) ** order
    available = (powers.clamp(min=0) ** (1 / order))[:, None].to(delta)
    new = _unit(region, torch.where(here, sign, 0))
    return region.project(rest + new * available)


def _mask(top: Tensor, left: Tensor, tall: int, broad: int, shape: Planes) -> Tensor:
    """Return where the windows are whose corners lie at these shares of the free range."""
    channels, height, width = shape
    rows = _inside(top, height, tall)
    columns = _inside(left, width, broad)
    both = rows[:, :, None] & columns[:, None]
    return both[:, None].expand(-1, channels, -1, -1).flatten(1)


def _inside(share: Tensor, n: int, k: int) -> Tensor:
    """Return which of n places lie in a window of k, one row for each share."""
    first = (share * (n - k + 1)).floor()
    at = torch.arange(n, device=share.device).to(share) - first[:, None]
    return (at >= 0) & (at < k)


def _unit(region: Region, v: Tensor) -> Tensor:
    return v / region.threat.size(v)[:, None].clamp(min=1e-12).to(v)
