"""Attacks: one final call that checks, batches, restarts and reports, around one inner `run`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import InputTypeError, whole
from overt._progress import meter
from overt.results import Status
from overt.robust.attacks import models, results
from overt.robust.attacks.ascent import Draw, Found, Points, slope
from overt.robust.attacks.criteria import Criterion, Misclassified
from overt.robust.attacks.losses import Loss, Plan, find_loss, objective_of, reflected_pair
from overt.robust.attacks.results import AttackResult
from overt.robust.threats.base import Threat, check_threat

FLAT = 1e-30
"""Steepness below which a class is too far away to tell how far."""

SLACK = 1e-4
"""Relative excess over the radius that rounding may cause in single precision."""


@dataclass(frozen=True)
class Attack(ABC):
    """A search for perturbations that change a model's predictions.

    Parameters
    ----------
    threat
        What is allowed: L1, L2 or Linf with a radius and, if wanted, bounds.
    loss
        What is ascended: "cross_entropy", "dlr", "margin", "reflected" (against the most likely
        wrong class, then the nearest ones in turn), "reflected_greedy" (the most likely only),
        "reflected_all" (each wrong class in a run of its own) or "reflected_lse".
    criterion
        When a point counts as fooled; by default when it is misclassified.
    restarts
        Number of runs; those after the first start at random, by turns at an extreme point of the
        ball and inside it, on the points not fooled yet.
    random_start
        Whether the first run starts at random, too, instead of at the inputs.
    early_exit
        Whether fooled points leave at once. Without it every point gets all steps ("reflected" is
        greedy then), and the iterate of the largest loss among those that fool the model is
        returned.
    batch_size
        Points that go through the model together. The result does not depend on it.
    seed
        Seed of the random starts, which belong to a point's content and not to its place.
    """

    threat: Threat
    _: KW_ONLY
    loss: str | Loss = "reflected"
    criterion: Criterion = Misclassified()  # noqa: RUF009  (immutable)
    restarts: int = 1
    random_start: bool = False
    early_exit: bool = True
    batch_size: int = models.BATCH_SIZE
    seed: int = 0

    def __post_init__(self) -> None:
        check_threat(self.threat)
        if not isinstance(self.criterion, Criterion):
            raise InputTypeError(
                "criterion must be Misclassified(), Targeted(class) or Effective(beta), "
                f"got {self.criterion!r}"
            )
        find_loss(self.loss)
        whole("restarts", self.restarts)
        whole("batch_size", self.batch_size)
        whole("seed", self.seed, minimum=0)

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of gradients of a run."""

    @abstractmethod
    def run(self, points: Points, start: Tensor, steps: int, escape: Draw) -> Found:
        """Take so many steps on one batch from `start`; `escape` draws random perturbations."""

    @final
    def __call__(
        self, model: models.Model, x: Any, y: Any, *, start: Any = None, warn: bool = True
    ) -> AttackResult:
        """Attack `model` at the inputs x (points, ...) with true classes y (points,).

        Parameters
        ----------
        model
            A torch module or any function from inputs to logits: (points, classes), or one logit
            for two classes, (points, 1) or (points,), positive for class 1.
        x, y
            Tensors or arrays; y holds class numbers, or -1 and 1 for two classes.
        start
            Perturbed inputs to start from, shaped like x.
        warn
            Whether to warn of gradients that cannot be trusted.
        """
        x = models.inputs(model, x)
        threat, loss = self.threat.within(x), find_loss(self.loss)
        with torch.inference_mode(False), models.evaluating(model):
            clean = models.clean_logits(model, x, self.batch_size)
            y = models.classes(y, x, clean.shape[1])
            search = _Search(self, model, threat, loss, x, y, clean)
            if warn:
                random = results.warn_of_randomness(model, x)
                known = results.warn_of_saturation(loss, clean, y) | random
            result = search.result(search.run(models.starts(model, start, x)))
            if warn:
                results.warn_of_gradients(result, x, threat.radius, known)
            return result


class _Search:
    """An attack on all points: over batches, restarts and rival classes, where not fooled yet."""

    def __init__(
        self, attack: Attack, model: models.Model, threat: Threat, loss: Loss, x: Tensor, y: Tensor,
        clean: Tensor,
    ) -> None:  # fmt: skip
        self._attack, self._model, self._threat = attack, model, threat
        self._x, self._y, self._clean = x, y, clean
        aim = attack.criterion.aims(y, clean.shape[1])
        self._aim = y if aim is None else aim
        self._objective = objective_of(loss, targeted=aim is not None)
        # Where the largest loss counts and not success, as in training, a loss that has steps of
        # its own gets all of them.
        plan = loss.plan(attack.length, clean.shape[1])
        split = aim is None and (attack.early_exit or plan.steps == 0)
        self._plan = plan if split else Plan(attack.length)
        self._best = Found.nothing(torch.zeros_like(x).flatten(1))
        self._best.value = self._objective(clean, y, self._aim)
        self._best.fooled = attack.criterion.met(clean, y, self._aim)

    def run(self, start: Tensor | None) -> Status:
        """Search on all batches; an interruption keeps what was found."""
        batches = torch.arange(len(self._x), device=self._x.device).split(self._attack.batch_size)
        try:
            with meter("attack", len(self._x), show=len(batches) > 1) as bar:
                for rows in batches:
                    self._batch(rows, start)
                    done = self._best.fooled[: int(rows[-1]) + 1]
                    bar.advance(len(rows), f"robust {1 - float(done.double().mean()):.3f}")
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        return Status.FINISHED

    def result(self, status: Status) -> AttackResult:
        """Return the perturbed inputs, with success and loss recomputed there."""
        best = self._best
        x = self._x + best.delta.view_as(self._x)
        if self._threat.bounds is not None:
            x = x.clamp(*self._threat.box(x))
        x = torch.where((best.delta == 0).all(1).view(-1, *[1] * (x.ndim - 1)), self._x, x)
        after = models.all_logits(self._model, x, self._attack.batch_size)
        size = self._threat.size((x - self._x).flatten(1))
        allowed = size <= self._threat.radius * (1 + max(SLACK, 4 * torch.finfo(x.dtype).eps))
        success = self._attack.criterion.met(after, self._y, self._aim) & allowed
        value = self._objective(after, self._y, self._aim)
        return AttackResult(x, success, value, best.gradients, best.flat, best.broken, status)

    def _batch(self, rows: Tensor, start: Tensor | None) -> None:
        plan, order = self._plan, None
        for restart in range(self._attack.restarts):
            if plan.steps:
                self._run(self._left(rows), None, plan.steps, start, restart)
            for rank in range(plan.rivals):
                left = self._left(rows)
                if order is None and len(left):
                    order = torch.zeros(len(self._x), plan.rivals).to(self._y)
                    order[left] = self._nearest_rivals(left)
                if order is not None:
                    self._run(left, order[left, rank], plan.each, start, restart)

    def _left(self, rows: Tensor) -> Tensor:
        return rows[~self._best.fooled[rows]] if self._attack.early_exit else rows

    def _run(
        self, rows: Tensor, rival: Tensor | None, steps: int, start: Tensor | None, restart: int
    ) -> None:
        if len(rows) == 0:
            return
        y, aim = self._y[rows], self._aim[rows]
        region = self._threat.region(self._x[rows])
        objective, toward = (self._objective, aim) if rival is None else (reflected_pair, rival)
        points = Points(self._flat_logits, y, toward, region, objective, self._attack.criterion)

        def draw() -> Tensor:
            return region.draw(self._attack.seed + restart, extreme=restart % 2 == 1)

        if restart == 0 and start is not None:
            delta = region.project(start[rows].flatten(1) - region.x)
        elif restart > 0 or self._attack.random_start:
            delta = draw()
        else:
            delta = torch.zeros_like(region.x)
        found = self._attack.run(points, delta, steps, draw)
        if rival is not None:  # each rival has its own objective; compare by the common one
            with torch.no_grad():
                after = self._flat_logits(region.x + found.delta)
            found.value = self._objective(after, y, aim)
        self._best.merge(rows, found)

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
                steepness = self._threat.dual(slope(margin, x, retain=True)).clamp(min=FLAT)
                distance[:, k] = margin.detach() / steepness
        self._best.gradients += likely.numel()
        order = distance.nan_to_num_(nan=math.inf).argsort(1)
        return likely.gather(1, order)[:, : self._plan.rivals]

    def _flat_logits(self, x: Tensor) -> Tensor:
        return models.logits(self._model, x.view(len(x), *self._x.shape[1:]))
