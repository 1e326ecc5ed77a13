"""Search without gradients: random windows, kept where they raise the loss.

After the Square attack (Andriushchenko et al. 2020), with the threat's own projection: a window is
given one random sign for each channel and, but in Linf, what a second window holds of the norm.
Windows shrink as queries go by; they depend on a point's content, the seed and the step.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import whole
from overt.robust.attacks.ascent import Books
from overt.robust.attacks.base import Attack
from overt.robust.attacks.losses import Loss
from overt.robust.attacks.points import Draw, Found, Points
from overt.robust.keyed_random import keys_of, uniform
from overt.robust.threats import Region

AREA = 0.8
"""Share of the input that the first windows cover."""

SHRINK = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the queries after which windows have half the area."""


@final
@dataclass(frozen=True)
class Square(Attack):
    """Random search over windows of the input: needs no gradient, so nothing can mask it.

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

    def follow(self, points: Points, start: Tensor) -> Tensor:
        """Return what a run finds."""
        return self.run(points, start, self.queries, lambda: start).delta

    @torch.no_grad()
    def run(self, points: Points, start: Tensor, steps: int, escape: Draw) -> Found:
        """Search on one batch."""
        shape = _planes(points.subject.x.shape[1:])
        keys = keys_of(points.region.x, self.seed or 0)
        trial = torch.where(start.any(1, keepdim=True), start, _stripes(points.region, keys, shape))
        books = Books(trial)
        for step in range(1, steps + 1):
            books.enter(trial, *points.evaluate(points.region.perturbed(trial)))
            books.found.queries += len(keys)
            if self.early_exit and (stay := books.leave(0.0)) is not None:
                points, keys = points.take(stay), keys[stay]
            if step == steps or len(keys) == 0:
                break
            share = AREA / 2 ** sum(step > s * steps for s in SHRINK)
            trial = _window(points.region, books.batch.delta, keys, step, share, shape)
        return books.close()


def _planes(shape: torch.Size) -> tuple[int, int, int]:
    """Return an input's shape as (channels, height, width): vectors have one row, matrices one."""
    if len(shape) < 3:
        return 1, (1, *shape)[-2], shape[-1]
    return shape[0], shape[1], shape[2:].numel()


def _stripes(region: Region, keys: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return a first perturbation: columns of random signs, as large as is allowed."""
    c, h, w = shape
    sign = (uniform(keys, c * w, region.x) - 0.5).sign().view(-1, c, 1, w)
    wide = sign.expand(-1, c, h, w).flatten(1)
    size = region.threat.size(wide)[:, None].to(wide)
    return region.project(wide * (region.threat.radius / size if region.threat.order else 1.0))


def _window(
    region: Region, delta: Tensor, keys: Tensor, step: int, share: float,
    shape: tuple[int, int, int],
) -> Tensor:  # fmt: skip
    """Return perturbations with one window changed, projected on the region."""
    c, h, w = shape
    tall = min(max(round((share * h * w) ** 0.5), 1), h)
    broad = min(max(round(share * h * w / tall), 1), w)
    draw = uniform(keys, 4 + c, delta, stream=step + 8)

    def mask(a: Tensor, b: Tensor) -> Tensor:
        inside = []
        for share, n, k in ((a, h, tall), (b, w, broad)):
            at = torch.arange(n).to(delta) - (share * (n - k + 1)).floor()[:, None]
            inside.append((at >= 0) & (at < k))
        both = inside[0][:, :, None] & inside[1][:, None]
        return both[:, None].expand(-1, c, h, w).flatten(1)

    here, there = mask(draw[:, 0], draw[:, 1]), mask(draw[:, 2], draw[:, 3])
    sign = (draw[:, 4:] - 0.5).sign().repeat_interleave(h * w, 1)
    threat = region.threat
    if threat.order == torch.inf:
        return region.project(torch.where(here, sign * threat.radius, delta))
    if threat.order == 0:
        rest = torch.where(there, 0, delta)
        low, high = region.delta_bounds or (-1.0, 1.0)
        return region.project(torch.where(here, torch.where(sign > 0, high, low) * 1.5, rest))
    # What both windows hold of the norm goes into the first, half of it as it was there.
    rest = torch.where(here | there, 0, delta)
    order = float(threat.order)
    held = (threat.radius**order - threat.size(rest).double() ** order).clamp(min=0) ** (1 / order)

    def unit(v: Tensor) -> Tensor:
        return v / threat.size(v)[:, None].clamp(min=1e-12).to(v)

    new = unit(sign * _hump(tall, broad, c, here, delta))
    mixed = unit(new + unit(torch.where(here, delta, 0)))
    return region.project(rest + mixed * held[:, None].to(delta))


def _hump(tall: int, broad: int, c: int, here: Tensor, like: Tensor) -> Tensor:
    """Return a bump over each window, highest in its middle."""
    down = 1 - (2 * (torch.arange(tall).to(like) + 0.5) / tall - 1).abs()
    across = 1 - (2 * (torch.arange(broad).to(like) + 0.5) / broad - 1).abs()
    bump = (torch.minimum(down[:, None], across[None]) + 0.05).flatten().repeat(c)
    out = torch.zeros_like(like)
    out[here] = bump.repeat(len(like))
    return out
