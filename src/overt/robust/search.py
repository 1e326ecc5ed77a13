"""Runs of an attack over batches, restarts and rival classes, on the points not fooled yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from overt._progress import Meter, meter
from overt.results import Status
from overt.robust.ascent import Objective, Outcome, Problem, slope
from overt.robust.draws import keys_of
from overt.robust.losses import Loss, Plan, reflected_pair
from overt.robust.model import Model, all_logits, logits
from overt.robust.outcome import AttackResult
from overt.robust.threat import Threat

if TYPE_CHECKING:
    from overt.robust.attack import Attack


class Search:
    """The state of an attack on all points: best perturbation, loss and success of each."""

    def __init__(
        self,
        attack: Attack,
        model: Model,
        threat: Threat,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        clean: Tensor,
    ) -> None:
        self._attack, self._model, self._threat = attack, model, threat
        self._x, self._y, self._clean = x, y, clean
        aim = attack.criterion.aims(y, clean.shape[1])
        self._aim = y if aim is None else aim
        self._objective: Objective = _away(loss) if aim is None else _toward(loss)
        # Where the largest loss counts and not success, as in training, a loss that has steps of
        # its own gets all of them.
        plan = loss.plan(attack.length, clean.shape[1])
        split = aim is None and (attack.early_exit or plan.steps == 0)
        self._plan = plan if split else Plan(attack.length)
        self.value = self._objective(clean, y, self._aim)
        self.fooled = attack.criterion.met(clean, y, self._aim)
        self.delta = torch.zeros_like(x).flatten(1)
        self.flat = torch.zeros_like(self.fooled)
        self.broken = torch.zeros_like(self.fooled)
        self.gradients = 0

    def run(self, start: Tensor | None) -> Status:
        """Search on all batches; an interruption keeps what was found."""
        batches = torch.arange(len(self._x), device=self._x.device).split(self._attack.batch_size)
        try:
            with meter("attack", len(self._x), show=len(batches) > 1) as bar:
                for rows in batches:
                    self._batch(rows, start)
                    self._report(bar, rows)
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        return Status.FINISHED

    def result(self, status: Status) -> AttackResult:
        """Return the perturbed inputs, with success and loss recomputed there."""
        x = self._x + self.delta.view_as(self._x)
        if self._threat.bounds is not None:
            x = x.clamp(*self._threat.box(x))
        x = torch.where((self.delta == 0).all(1).view(-1, *[1] * (x.ndim - 1)), self._x, x)
        after = all_logits(self._model, x, self._attack.batch_size)
        size = self._threat.size((x - self._x).flatten(1))
        slack = max(1e-4, 4 * torch.finfo(x.dtype).eps)
        allowed = size <= self._threat.radius * (1 + slack)
        success = self._attack.criterion.met(after, self._y, self._aim) & allowed
        value = self._objective(after, self._y, self._aim)
        return AttackResult(x, success, value, self.gradients, self.flat, self.broken, status)

    def _batch(self, rows: Tensor, start: Tensor | None) -> None:
        plan, order = self._plan, None
        for restart in range(self._attack.restarts):
            if plan.steps:
                left = self._left(rows)
                self._run(left, None, plan.steps, start, restart)
            for rank in range(plan.rivals):
                left = self._left(rows)
                if order is None and len(left):
                    order = torch.zeros(len(self._x), plan.rivals).to(self._y)
                    order[left] = self._nearest_rivals(left)
                if order is not None:
                    self._run(left, order[left, rank], plan.each, start, restart)

    def _left(self, rows: Tensor) -> Tensor:
        return rows[~self.fooled[rows]] if self._attack.early_exit else rows

    def _run(
        self, rows: Tensor, rival: Tensor | None, steps: int, start: Tensor | None, restart: int
    ) -> None:
        if len(rows) == 0:
            return
        x = self._x[rows]
        region = self._threat.region(x)
        problem = Problem(
            self._flat_logits,
            self._y[rows],
            self._aim[rows] if rival is None else rival,
            region,
            self._objective if rival is None else reflected_pair,
            self._attack.criterion,
        )

        def draw() -> Tensor:
            keys, width = keys_of(x, self._attack.seed + restart), region.x.shape[1]
            if restart % 2:
                return region.project(self._threat.extreme(keys, width, region.x))
            return region.project(self._threat.draw(keys, width, region.x))

        if restart == 0 and start is not None:
            delta = region.project((start[rows] - x).flatten(1))
        elif restart > 0 or self._attack.random_start:
            delta = draw()
        else:
            delta = torch.zeros_like(region.x)
        found = self._attack.run(problem, delta, steps, draw)
        if rival is not None:  # each rival has its own objective; compare by the common one
            with torch.no_grad():
                after = self._flat_logits(region.x + found.delta)
            found.value = self._objective(after, self._y[rows], self._aim[rows])
        self._merge(rows, found)

    def _merge(self, rows: Tensor, found: Outcome) -> None:
        better = torch.where(
            found.fooled == self.fooled[rows], found.value > self.value[rows], found.fooled
        )
        chosen = rows[better]
        self.delta[chosen] = found.delta[better]
        self.value[chosen] = found.value[better]
        self.fooled[rows] |= found.fooled
        self.flat[rows] |= found.flat
        self.broken[rows] |= found.broken
        self.gradients += found.gradients

    def _nearest_rivals(self, rows: Tensor) -> Tensor:
        """Return the wrong classes of each point by linearized distance, (points, rivals).

        The distance to class j is (f_y - f_j) / |grad (f_y - f_j)|, in the dual norm.
        """
        x, y = self._x[rows].flatten(1), self._y[rows]
        others = self._clean[rows].scatter(1, y[:, None], -math.inf)
        likely = others.argsort(1, descending=True)[:, : self._plan.measured]
        distance = torch.empty_like(likely, dtype=x.dtype)
        with torch.enable_grad():
            x = x.requires_grad_()
            f = self._flat_logits(x)
            own = f.gather(1, y[:, None])
            for k in range(likely.shape[1]):
                margin = (own - f.gather(1, likely[:, k : k + 1])).squeeze(1)
                steepness = self._threat.dual(slope(margin, x, retain=True)).clamp(min=1e-30)
                distance[:, k] = margin.detach() / steepness
        self.gradients += likely.numel()
        order = distance.nan_to_num_(nan=math.inf).argsort(1)
        return likely.gather(1, order)[:, : self._plan.rivals]

    def _flat_logits(self, x: Tensor) -> Tensor:
        return logits(self._model, x.view(len(x), *self._x.shape[1:]))

    def _report(self, bar: Meter, rows: Tensor) -> None:
        done = int(rows[-1]) + 1
        bar.advance(len(rows), f"robust {1 - float(self.fooled[:done].double().mean()):.3f}")


def _away(loss: Loss) -> Objective:
    return lambda logits, y, aim: loss.away(logits, y)


def _toward(loss: Loss) -> Objective:
    return lambda logits, y, aim: loss.toward(logits, aim)
