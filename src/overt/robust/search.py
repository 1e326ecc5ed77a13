"""Runs of an attack over batches, restarts and rival classes, on the points not fooled yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from overt._check import InputError
from overt._progress import Meter, meter
from overt.results import Status
from overt.robust.ascent import Objective, Outcome, Problem
from overt.robust.draws import keys_of
from overt.robust.losses import Loss
from overt.robust.model import Model, logits
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
        self._attack, self._model, self._threat, self._loss = attack, model, threat, loss
        self._x, self._y, self._clean = x, y, clean
        aim = attack.criterion.aims(y, clean.shape[1])
        self._aim = y if aim is None else aim
        self._objective: Objective = _away(loss) if aim is None else _toward(loss)
        self._rivals = min(loss.rivals, clean.shape[1] - 1) if aim is None else 0
        self.clean_value = self._objective(clean, y, self._aim)
        self.value = self.clean_value.clone()
        self.fooled = attack.criterion.met(clean, y, self._aim)
        self.delta = torch.zeros_like(x).flatten(1)
        self.flat = torch.zeros_like(self.fooled)
        self.gradients = 0

    @property
    def stuck(self) -> Tensor:
        """Points with a gradient whose loss no step raised above that of the input."""
        same = (self.value <= self.clean_value) & ~self.fooled & ~self.flat
        return same if self._threat.radius > 0 else torch.zeros_like(same)

    def run(self, start: Tensor | None) -> Status:
        """Search on all batches; an interruption keeps what was found."""
        if start is not None and start.shape != self._x.shape:
            raise InputError(
                f"start must be shaped like x, {tuple(self._x.shape)}, got {tuple(start.shape)}"
            )
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
        with torch.no_grad():
            after = torch.cat(
                [logits(self._model, part) for part in x.split(self._attack.batch_size)]
            )
        size = self._threat.size((x - self._x).flatten(1))
        allowed = size <= self._threat.radius * (1 + 1e-4)
        success = self._attack.criterion.met(after, self._y, self._aim) & allowed
        value = self._objective(after, self._y, self._aim)
        return AttackResult(x, success, value, self.gradients, self.flat, status)

    def _batch(self, rows: Tensor, start: Tensor | None) -> None:
        for restart in range(self._attack.restarts):
            for rank in range(max(self._rivals, 1)):
                left = rows[~self.fooled[rows]] if self._attack.early_exit else rows
                if len(left) == 0:
                    return
                if self._rivals and restart == rank == 0:
                    order = self._nearest_rivals(left)
                    place = torch.empty_like(self._y)
                    place[left] = torch.arange(len(left), device=left.device)
                aim = order[place[left], rank] if self._rivals else self._aim[left]
                self._merge(left, self._run(left, aim, start, restart))

    def _run(self, rows: Tensor, aim: Tensor, start: Tensor | None, restart: int) -> Outcome:
        x = self._x[rows]
        region = self._threat.region(x)
        problem = Problem(
            self._flat_logits,
            x.flatten(1),
            self._y[rows],
            aim,
            region,
            self._loss.against if self._rivals else self._objective,
            self._attack.criterion,
        )

        def draw() -> Tensor:
            keys = keys_of(x, self._attack.seed + restart)
            return region.project(self._threat.draw(keys, problem.x.shape[1], problem.x))

        if restart > 0 or self._attack.random_start:
            delta = draw()
        elif start is not None:
            delta = region.project((start[rows] - x).flatten(1))
        else:
            delta = torch.zeros_like(problem.x)
        return self._attack.run(problem, delta, draw)

    def _merge(self, rows: Tensor, found: Outcome) -> None:
        value = found.value
        if self._rivals:  # each rival has its own objective; compare by the common one
            with torch.no_grad():
                after = self._flat_logits(self._x[rows].flatten(1) + found.delta)
            value = self._objective(after, self._y[rows], self._aim[rows])
        worse = torch.where(
            found.fooled == self.fooled[rows], value <= self.value[rows], self.fooled[rows]
        )
        chosen = rows[~worse]
        self.delta[chosen] = found.delta[~worse]
        self.value[chosen] = value[~worse]
        self.fooled[rows] |= found.fooled
        self.flat[rows] |= found.flat
        self.gradients += found.gradients

    def _nearest_rivals(self, rows: Tensor) -> Tensor:
        """Return the wrong classes of each point by linearised distance, (points, rivals).

        The distance to class j is (f_y - f_j) / |grad (f_y - f_j)|, in the dual norm.
        """
        x, y = self._x[rows].flatten(1), self._y[rows]
        others = self._clean[rows].scatter(1, y[:, None], -math.inf)
        likely = others.argsort(1, descending=True)[:, :-1][:, : self._loss.candidates]
        distance = torch.empty_like(likely, dtype=x.dtype)
        with torch.enable_grad():
            x = x.requires_grad_()
            f = self._flat_logits(x)
            own = f.gather(1, y[:, None])
            for k in range(likely.shape[1]):
                margin = (own - f.gather(1, likely[:, k : k + 1])).squeeze(1)
                (gradient,) = torch.autograd.grad(margin.sum(), x, retain_graph=True)
                slope = self._threat.dual(gradient).clamp(min=1e-30)
                distance[:, k] = margin.detach() / slope
        self.gradients += likely.numel()
        order = distance.nan_to_num_(nan=math.inf).argsort(1)
        return likely.gather(1, order)[:, : self._rivals]

    def _flat_logits(self, x: Tensor) -> Tensor:
        return logits(self._model, x.view(len(x), *self._x.shape[1:]))

    def _report(self, bar: Meter, rows: Tensor) -> None:
        done = int(rows[-1]) + 1
        bar.advance(len(rows), f"robust {1 - float(self.fooled[:done].double().mean()):.3f}")


def _away(loss: Loss) -> Objective:
    return lambda logits, y, aim: loss.away(logits, y)


def _toward(loss: Loss) -> Objective:
    return lambda logits, y, aim: loss.toward(logits, aim)
