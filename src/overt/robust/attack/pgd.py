"""FGSM, BIM and PGD: projected gradient ascent with different step lengths, in one loop.

    delta <- project(delta + length * direction)

Nothing in the loop mixes points: losses are summed, never averaged, steps are normalized per
point, and a point that is fooled leaves the batch. Attacks take the best iterate of each point,
adversarial training takes the last one.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from overt._check import InputError, choice, instance, number, whole
from overt.robust.attack.base import Attack, Batch, BestIterates, Draw

MAX_LENGTH = 1e30
"""Longest step: single precision has no longer ones, and balls are smaller."""

SCHEDULES = ("constant", "cosine", "decay")


@torch.no_grad()
def ascend(
    batch: Batch,
    start: Tensor,
    lengths: list[float],
    escape: Draw,
    *,
    normalize: bool = True,
    early_exit: bool = False,
    last: bool = False,
) -> BestIterates:
    """Ascend from `start` and return the best iterate of each point, or the `last` one.

    Points without a gradient at the start jump to a random start from `escape`. With `early_exit`
    fooled points leave at once.
    """
    best = BestIterates.start(start)
    rows = torch.arange(len(start), device=start.device)
    delta = start
    for step, length in enumerate(lengths):
        moved = batch.region.perturbed(delta)
        best.gradients += len(rows) * batch.gradient_cost
        if last:
            gradient = batch.own_gradient(moved)[2]
        else:
            value, fooled, gradient = batch.differentiate(moved, step)
            best.enter(rows, delta, value, fooled)
            if step == 0:
                best.flat = ~(gradient.abs().amax(1) > 0) & ~fooled
            if early_exit and bool(fooled.any()):
                stay = (~fooled).nonzero().squeeze(1)
                if len(stay) == 0:
                    return best
                batch = batch.take(stay)
                rows = rows[stay]
                delta = delta[stay]
                gradient = gradient[stay]
        region = batch.region
        if not normalize:
            gradient = gradient.nan_to_num(0, 0, 0)
        direction = region.ascent(gradient) if normalize else gradient
        delta = region.project(torch.add(delta, direction, alpha=length))
        if step == 0 and bool(best.flat.any()):
            delta = torch.where(best.flat[rows][:, None], escape()[rows], delta)
    if last:
        best.delta = delta
        return best
    value, fooled = batch.evaluate(batch.region.perturbed(delta))
    best.enter(rows, delta, value, fooled)
    return best


@dataclass(frozen=True, eq=False)
class PGD(Attack):
    """Projected gradient ascent with steps that shorten.

    Parameters
    ----------
    steps
        Number of gradients of each run.
    schedule
        Lengths of the steps: "cosine" (falling from step_size to 0), "decay" (a fifth after every
        10 steps) or "constant".
    step_size
        The first length; the radius if not given, and 2.5 radius / steps for "constant".
    normalize
        Whether steps go along the steepest direction of the threat's norm; otherwise along the
        gradient itself, whatever its length, as in the thesis's Algorithm 5.
    larger
        Multiples of the radius to begin with: three tenths of the steps are taken in each of these
        larger balls, and what they find is projected on the next. The ensemble uses it for L1.
    """

    _: KW_ONLY
    steps: int = 50
    schedule: str = "cosine"
    step_size: float | None = None
    normalize: bool = True
    larger: tuple[float, ...] = ()
    follows_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("steps", self.steps)
        if self.step_size is not None:
            number("step_size", self.step_size)
        choice("schedule", self.schedule, SCHEDULES)
        factors = instance("larger", self.larger, tuple, "a tuple of factors")
        if len(factors) > 3 or any(number("larger", part) < 1 for part in factors):
            raise InputError(
                f"larger must be at most three factors above 1, got {factors}"
            )

    @property
    def length(self) -> int:
        """Number of gradients of a run."""
        return self.steps

    def _lengths(self, radius: float, steps: int) -> list[float]:
        """Return the length of every step, in the units of the inputs."""
        first = 2.5 * radius / steps if self.schedule == "constant" else radius
        if self.step_size is not None:
            first = min(self.step_size, MAX_LENGTH)
        if self.schedule == "cosine":
            turns = [math.pi * k / steps for k in range(steps)]
            return [first * (1 + math.cos(turn)) / 2 for turn in turns]
        if self.schedule == "decay":
            return [first * 0.2 ** (k // 10) for k in range(steps)]
        return [first] * steps

    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Attack one batch, in larger balls first."""
        region = batch.region
        radius = region.threat.radius
        part = 3 * steps // 10 if self.larger else 0
        spent = 0
        for factor in self.larger if part else ():
            larger = replace(batch, region=region.with_radius(factor * radius))
            lengths = self._lengths(factor * radius, part)
            found = ascend(larger, start, lengths, escape, normalize=self.normalize)
            start = region.project(found.delta)
            spent += found.gradients
        found = ascend(
            batch,
            start,
            self._lengths(radius, steps - len(self.larger) * part),
            escape,
            normalize=self.normalize,
            early_exit=self.early_exit,
        )
        found.gradients += spent
        return found

    def perturb(self, batch: Batch, start: Tensor, draw: Draw) -> Tensor:
        """Return the last iterate, or the best one of several runs or larger balls."""
        if self.restarts > 1 or self.larger:
            return super().perturb(batch, start, draw)
        lengths = self._lengths(batch.region.threat.radius, self.steps)
        return ascend(
            batch, start, lengths, draw, normalize=self.normalize, last=True
        ).delta


@dataclass(frozen=True, eq=False)
class FGSM(PGD):
    """One step of the whole radius in the direction of steepest ascent.

    For Linf that is the fast gradient sign method (Goodfellow et al. 2015).
    """

    _: KW_ONLY
    steps: int = 1


@dataclass(frozen=True, eq=False)
class BIM(PGD):
    """Steps of equal length along the steepest direction (Kurakin et al. 2017).

    step_size is 2.5 radius / steps if not given.
    """

    _: KW_ONLY
    steps: int = 10
    schedule: str = "constant"
