"""FGSM, BIM and PGD: projected gradient ascent with different step lengths, in one loop.

    delta <- project(delta + length * direction + momentum * (delta - previous delta))

Nothing in the loop mixes points: losses are summed, never averaged, steps are normalized per
point, and a point that is fooled leaves the batch. Attacks take the best iterate of each point,
adversarial training takes the last one.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import final

import torch
from torch import Tensor

from overt._check import InputError, InputTypeError, choice, number, whole
from overt.robust.attack.base import Attack, Batch, BestIterates, Draw, replace_rows
from overt.robust.threats import Length

MIN_LEAVING = 0.15
"""Share of fooled points in a batch from which it pays to copy the others out."""

MAX_LENGTH = 1e30
"""Longest step: single precision has no longer ones, and balls are smaller."""

SCHEDULES = ("constant", "cosine", "decay", "halving")


@dataclass(frozen=True)
class AscentConfig:
    """How to ascend: number of steps, their lengths, momentum, normalization."""

    steps: int
    schedule: str = "cosine"
    step_size: float | None = None
    momentum: float = 0.0
    normalize: bool = True

    def lengths(self, radius: float) -> list[float]:
        """Return the length of every step, in the units of the inputs.

        The first length is the radius unless `step_size` is given; a constant one is
        2.5 radius / steps.
        """
        n = self.steps
        default = 2.5 * radius / n if self.schedule == "constant" else radius
        first = default if self.step_size is None else min(self.step_size, MAX_LENGTH)
        if self.schedule == "cosine":
            return [first * (1 + math.cos(math.pi * k / n)) / 2 for k in range(n)]
        if self.schedule == "decay":
            return [first * 0.2 ** (k // 10) for k in range(n)]
        return [first] * n


class HalvedSteps:
    """Step lengths that are halved where a point's progress stops (Croce and Hein 2020, 3.1).

    At check points that come ever faster, a point that improved its best loss in fewer than three
    quarters of the steps since the last one goes back to its best iterate with half the step.
    """

    MIN_IMPROVED = 0.75
    # Shares of all steps: the first period, the shortest one, and by how much periods shorten.
    FIRST_PERIOD, SHORTEST_PERIOD, SHORTER = 0.22, 0.06, 0.03

    def __init__(self, steps: int, like: Tensor) -> None:
        self.factors = torch.ones_like(like[:, :1])
        self._improved = torch.zeros_like(like[:, 0])
        self._just_halved = self._improved == 0
        self._period = max(int(self.FIRST_PERIOD * steps), 1)
        self._shortest = max(int(self.SHORTEST_PERIOD * steps), 1)
        self._shorter = max(int(self.SHORTER * steps), 1)
        self._since = 0

    def observe(self, improved: Tensor) -> Tensor | None:
        """Note which points improved; return which should go back to their best, if any."""
        self._improved += improved
        self._since += 1
        if self._since < self._period:
            return None
        none = self._improved == 0
        stalled = self._improved < self.MIN_IMPROVED * self._since
        stalled |= none & ~self._just_halved
        self.factors = torch.where(stalled[:, None], self.factors / 2, self.factors)
        self._just_halved = stalled
        self._improved = torch.zeros_like(self._improved)
        self._period = max(self._period - self._shorter, self._shortest)
        self._since = 0
        return stalled

    def take(self, rows: Tensor) -> None:
        """Continue with these points only."""
        self.factors = self.factors[rows]
        self._improved = self._improved[rows]
        self._just_halved = self._just_halved[rows]


class Iterate:
    """Where the points of a batch are, where they were, and the next step of each."""

    def __init__(self, batch: Batch, start: Tensor, config: AscentConfig) -> None:
        self._config = config
        self._region = batch.region
        self._lengths = config.lengths(batch.region.threat.radius)
        self.delta = start.clone()
        self.moved = batch.region.perturbed(start)
        self._previous = start.clone() if config.momentum else None
        self.halved = (
            HalvedSteps(config.steps, start) if config.schedule == "halving" else None
        )
        self._best_gradient = torch.zeros_like(start) if self.halved else None

    def remember(self, gradient: Tensor, better: Tensor) -> None:
        """Keep the gradients of the best iterates, where points may go back to them."""
        if self._best_gradient is not None:
            replace_rows(self._best_gradient, gradient.nan_to_num_(0, 0, 0), better)

    def take(self, rows: Tensor, batch: Batch) -> None:
        """Continue with these points only."""
        self._region = batch.region
        self.delta = self.delta[rows]
        self.moved = torch.empty_like(batch.region.x)
        if self._previous is not None:
            self._previous = self._previous[rows]
        if self._best_gradient is not None:
            self._best_gradient = self._best_gradient[rows]
        if self.halved is not None:
            self.halved.take(rows)

    def go_back(self, best: Tensor, gradient: Tensor, better: Tensor) -> None:
        """Send stalled points back to their best iterate, and its gradient."""
        if self.halved is None or self._best_gradient is None:
            return
        back = self.halved.observe(better)
        if back is None:
            return
        replace_rows(self.delta, best, back)
        replace_rows(gradient, self._best_gradient, back)
        if self._previous is not None:
            replace_rows(self._previous, best, back)

    def advance(self, step: int, gradient: Tensor) -> None:
        """Take a step; may overwrite the gradient."""
        length: Length = self._lengths[step]
        if self._previous is not None:
            further = torch.lerp(self._previous, self.delta, 1 + self._config.momentum)
            self.delta, self._previous = further, self.delta
        if self.halved is not None:
            length = length * self.halved.factors
        if self._config.normalize:
            self._region.steepest_step(self.delta, gradient, length, self.moved)
        else:
            self._region.step(
                self.delta, gradient.nan_to_num_(0, 0, 0), length, self.moved
            )

    def jump(self, lost: Tensor, elsewhere: Tensor) -> None:
        """Move some points somewhere else."""
        self.delta = torch.where(lost[:, None], elsewhere, self.delta)
        self.moved = self._region.perturbed(self.delta)


class LiveBatch:
    """The best iterates of a batch that fooled points leave; `all` includes those that left."""

    def __init__(self, delta: Tensor) -> None:
        self.all = BestIterates.start(delta)
        self.best = BestIterates.start(delta)
        self.rows = torch.arange(len(delta), device=delta.device)
        self._live = torch.ones_like(self.all.fooled)

    def enter(self, delta: Tensor, value: Tensor, fooled: Tensor) -> Tensor:
        """Compare iterates with the best so far; return where they are better."""
        return self.best.enter(delta, value, fooled, self._live)

    def leave(self, min_share: float = MIN_LEAVING) -> Tensor | None:
        """Let fooled points go; return which stay, or None while too few would go."""
        self._live = ~self.best.fooled
        live = int(self._live.sum())
        if live == len(self._live) or live > (1 - min_share) * len(self._live):
            return None
        self.close()
        stay = self._live.nonzero().squeeze(1)
        self.rows = self.rows[stay]
        self._live = self._live[stay]
        self.best = self.best.each(lambda part: part[stay])
        return stay

    def close(self) -> BestIterates:
        """Return the best iterates of all points."""
        self.all.merge(self.rows, self.best)
        return self.all


@torch.no_grad()
def ascend(
    batch: Batch,
    start: Tensor,
    config: AscentConfig,
    escape: Draw | None = None,
    *,
    early_exit: bool = False,
    last: bool = False,
) -> BestIterates:
    """Ascend from `start` and return the best iterate of each point, or the last one.

    Attacks take the best iterate; adversarial training takes the `last`, whether or not it fools
    the model. Points without a gradient at the start jump to a random start from `escape`.
    With `early_exit` fooled points leave at once, up to those that it does not pay to copy out.
    """
    live = LiveBatch(start)
    iterate = Iterate(batch, start, config)
    needs_best = not last or iterate.halved is not None
    for step in range(config.steps):
        value, fooled, gradient = batch.differentiate(iterate.moved)
        better = live.enter(iterate.delta, value, fooled) if needs_best else fooled
        live.all.gradients += len(value) * batch.gradient_cost
        if step == 0 and not last:
            live.all.flat = ~(gradient.abs().amax(1) > 0) & ~fooled
        iterate.remember(gradient, better)
        stay = live.leave() if early_exit else None
        if stay is not None:
            if len(stay) == 0:
                return live.all
            batch = batch.take(stay)
            gradient, better = gradient[stay], better[stay]
            iterate.take(stay, batch)
        if step > 0:
            iterate.go_back(live.best.delta, gradient, better)
        iterate.advance(step, gradient)
        if step == 0 and escape is not None and bool(live.all.flat.any()):
            iterate.jump(live.all.flat[live.rows], escape()[live.rows])
    if last:
        live.all.delta = iterate.delta
        return live.all
    live.enter(iterate.delta, *batch.evaluate(iterate.moved))
    return live.close()


@dataclass(frozen=True)
class _GradientAttack(Attack):
    """An attack that follows the gradient."""

    def config(self, radius: float, *, training: bool = False) -> AscentConfig:
        """Return how to ascend within a ball of this radius."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        """Number of gradients of a run."""
        return self.config(self.threat.radius).steps

    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Attack one batch."""
        config = replace(self.config(batch.region.threat.radius), steps=steps)
        return ascend(batch, start, config, escape, early_exit=self.early_exit)

    def perturb(self, batch: Batch, start: Tensor, draw: Draw) -> Tensor:
        """Return the last iterate; of several restarts, that of the largest loss at each point."""
        config = self.config(batch.region.threat.radius, training=True)
        delta = ascend(batch, start, config, last=True).delta
        if self.restarts == 1:
            return delta
        value, _ = batch.evaluate(batch.region.perturbed(delta))
        for _ in range(1, self.restarts):
            other = ascend(batch, draw(), config, last=True).delta
            reached, _ = batch.evaluate(batch.region.perturbed(other))
            higher = reached > value
            delta = torch.where(higher[:, None], other, delta)
            value = torch.where(higher, reached, value)
        return delta


@final
@dataclass(frozen=True)
class FGSM(_GradientAttack):
    """One step of the whole radius in the direction of steepest ascent.

    For Linf that is the fast gradient sign method (Goodfellow et al. 2015). Training starts it at
    random, with a step of 1.25 radii (Wong et al. 2020), unless random_start is False.
    """

    _: KW_ONLY
    random_start: bool | None = None

    def config(self, radius: float, *, training: bool = False) -> AscentConfig:
        """Return one step of the whole radius, longer after the random start of training."""
        longer = training and self.random_start is not False
        return AscentConfig(1, "constant", 1.25 * radius if longer else radius)


@final
@dataclass(frozen=True)
class BIM(_GradientAttack):
    """Steps of equal length along the steepest direction (Kurakin et al. 2017).

    step_size is 2.5 radius / steps if not given.
    """

    _: KW_ONLY
    steps: int = 10
    step_size: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps(self.steps, self.step_size)

    def config(self, radius: float, *, training: bool = False) -> AscentConfig:
        """Return steps of equal length."""
        return AscentConfig(self.steps, "constant", self.step_size)


@final
@dataclass(frozen=True)
class PGD(_GradientAttack):
    """Projected gradient ascent with steps that shorten.

    Parameters
    ----------
    steps
        Number of gradients of each run.
    schedule
        Lengths of the steps: "cosine" (falling from step_size to 0), "halving" (halved where a
        point's progress stops), "decay" (a fifth after every 10 steps) or "constant".
    step_size
        The first length; the radius if not given, and 2.5 radius / steps for "constant".
    momentum
        Share of the last move that is added to the next.
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
    momentum: float = 0.0
    normalize: bool = True
    larger: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps(self.steps, self.step_size)
        choice("schedule", self.schedule, SCHEDULES)
        if number("momentum", self.momentum) > 1e6:
            raise InputError(f"momentum must be at most 1e6, got {self.momentum!r}")
        if not isinstance(self.larger, (tuple, list)):
            raise InputTypeError(
                f"larger must be a list of factors, got {self.larger!r:.60}"
            )
        factors = tuple(number("larger", factor) for factor in self.larger)
        if len(factors) > 3 or any(factor < 1 for factor in factors):
            raise InputError(
                f"larger must be at most three factors above 1, got {factors}"
            )

    def config(self, radius: float, *, training: bool = False) -> AscentConfig:
        """Return steps by the schedule, with momentum."""
        return AscentConfig(
            self.steps, self.schedule, self.step_size, self.momentum, self.normalize
        )

    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Attack one batch, in larger balls first."""
        region = batch.region
        config = self.config(region.threat.radius)
        part = replace(config, steps=3 * steps // 10)
        spent = 0
        for factor in self.larger if part.steps else ():
            larger = replace(
                batch, region=region.with_radius(factor * region.threat.radius)
            )
            found = ascend(larger, start, part, escape, early_exit=False)
            start = region.project(found.delta)
            spent += found.gradients
        rest = replace(config, steps=steps - len(self.larger) * part.steps)
        found = ascend(batch, start, rest, escape, early_exit=self.early_exit)
        found.gradients += spent
        return found

    def perturb(self, batch: Batch, start: Tensor, draw: Draw) -> Tensor:
        """Return the last iterate, or the best one after larger balls."""
        if self.larger:
            whole_run = replace(self, early_exit=False)
            return whole_run.run(batch, start, self.steps, draw).delta
        return super().perturb(batch, start, draw)


def _check_steps(steps: int, step_size: float | None) -> None:
    whole("steps", steps)
    if step_size is not None:
        number("step_size", step_size)
