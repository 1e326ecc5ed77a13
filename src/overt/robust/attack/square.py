"""Search without gradients: random windows, accepted where they raise the loss.

After the Square attack (Andriushchenko et al. 2020), with the threat's own projection: a window is
given one random sign for each channel and, but in Linf, what a second window has of the norm.
Windows shrink as queries go by; they depend on a point's values, the seed and the step.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import whole
from overt.robust.attack.base import Attack, Batch, BestIterates, Draw
from overt.robust.attack.pgd import LiveBatch
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
        live = LiveBatch(trial)
        for step in range(1, steps + 1):
            live.enter(trial, *batch.evaluate(batch.region.perturbed(trial)))
            live.all.queries += len(keys) * batch.adapter.samples
            stay = live.leave(0.0) if self.early_exit else None
            if stay is not None:
                batch = batch.take(stay)
                keys = keys[stay]
            if step == steps or len(keys) == 0:
                break
            area = FIRST_AREA / 2 ** sum(step > share * steps for share in HALVING_AT)
            trial = _window(batch.region, live.best.delta, keys, step, area, shape)
        return live.close()


def _planes(shape: torch.Size) -> Planes:
    """Return an input's shape as (channels, height, width): vectors and matrices have one."""
    if len(shape) < 3:
        return 1, (1, *shape)[-2], shape[-1]
    return shape[0], shape[1], shape[2:].numel()


def _stripes(region: Region, keys: Tensor, shape: Planes) -> Tensor:
    """Return a first perturbation: columns of random signs, as large as is allowed."""
    c, h, w = shape
    sign = (uniform(keys, c * w, region.x) - 0.5).sign().view(-1, c, 1, w)
    wide = sign.expand(-1, c, h, w).flatten(1)
    if not region.threat.order:
        return region.project(wide)
    size = region.threat.size(wide)[:, None].to(wide)
    return region.project(wide * region.threat.radius / size)


def _window(
    region: Region, delta: Tensor, keys: Tensor, step: int, area: float, shape: Planes
) -> Tensor:
    """Return perturbations with one window changed, projected on the region."""
    c, h, w = shape
    tall = min(max(round((area * h * w) ** 0.5), 1), h)
    broad = min(max(round(area * h * w / tall), 1), w)
    random = uniform(keys, 4 + c, delta, stream=step + 8)
    here = _mask(random[:, 0], random[:, 1], tall, broad, shape)
    there = _mask(random[:, 2], random[:, 3], tall, broad, shape)
    sign = (random[:, 4:] - 0.5).sign().repeat_interleave(h * w, 1)
    threat = region.threat
    if threat.order == torch.inf:
        return region.project(torch.where(here, sign * threat.radius, delta))
    if threat.order == 0:
        rest = torch.where(there, 0, delta)
        low, high = region.delta_bounds or (-1.0, 1.0)
        ends = torch.where(sign > 0, high, low)
        return region.project(torch.where(here, ends * 1.5, rest))
    # What both windows have of the norm goes into the first, half of it as it was there.
    rest = torch.where(here | there, 0, delta)
    order = float(threat.order)
    powers = threat.radius**order - threat.size(rest).double() ** order
    available = powers.clamp(min=0) ** (1 / order)
    new = _unit(region, sign * _bump(tall, broad, c, here, delta))
    mixed = _unit(region, new + _unit(region, torch.where(here, delta, 0)))
    return region.project(rest + mixed * available[:, None].to(delta))


def _mask(top: Tensor, left: Tensor, tall: int, broad: int, shape: Planes) -> Tensor:
    """Return where the windows are whose corners lie at these shares of the free range."""
    c, h, w = shape
    rows = _inside(top, h, tall)
    columns = _inside(left, w, broad)
    both = rows[:, :, None] & columns[:, None]
    return both[:, None].expand(-1, c, h, w).flatten(1)


def _inside(share: Tensor, n: int, k: int) -> Tensor:
    """Return which of n places lie in a window of k, one row for each share."""
    first = (share * (n - k + 1)).floor()
    at = torch.arange(n, device=share.device).to(share) - first[:, None]
    return (at >= 0) & (at < k)


def _unit(region: Region, v: Tensor) -> Tensor:
    return v / region.threat.size(v)[:, None].clamp(min=1e-12).to(v)


def _bump(tall: int, broad: int, channels: int, here: Tensor, like: Tensor) -> Tensor:
    """Return a bump over each window, highest in its middle."""
    down = 1 - (2 * (torch.arange(tall).to(like) + 0.5) / tall - 1).abs()
    across = 1 - (2 * (torch.arange(broad).to(like) + 0.5) / broad - 1).abs()
    bump = (
        (torch.minimum(down[:, None], across[None]) + 0.05).flatten().repeat(channels)
    )
    out = torch.zeros_like(like)
    out[here] = bump.repeat(len(like))
    return out
