"""A search over all points: batches, restarts, rival classes, stages; what was found, and signs."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor

from overt._progress import meter
from overt.results import Status
from overt.robust.attacks.criteria import Criterion
from overt.robust.attacks.inputs import starts
from overt.robust.attacks.losses import Loss, Plan, find_loss, objective_of, reflected_pair
from overt.robust.attacks.models import (
    Door,
    Model,
    Subject,
    evaluating,
    modes_change_outputs,
)
from overt.robust.attacks.points import Found, Guide, Points, StraightThrough, slope
from overt.robust.attacks.results import AttackResult, report
from overt.robust.threats import Region, Threat

FLAT = 1e-30
"""Steepness below which a class is too far away to tell how far."""

DRAWS = 100
"""Fresh draws of a random model that success is scored over."""

PROBES, KEPT = (0.01, 0.1, 1.0), 0.2
"""Steps, in radii, that test a gradient, and the share of its promise below which it lies.

Several, because a masking layer may ripple at one scale only: a sine of period 1/300 is honest at
1/1000 of the radius and useless at a tenth of it.
"""

DOUBTFUL = 0.1
"""Share of the points with dishonest gradients from which none of them is believed."""


class Search:
    """The best perturbation of each point so far; a context in which the model is evaluated.

    `loss` is what perturbations are compared by. `threat` may be replaced by a larger one.
    """

    def __init__(
        self, model: Model, x: Any, y: Any, threat: Threat, criterion: Criterion, loss: Loss,
        batch_size: int, run: Door,
    ) -> None:  # fmt: skip
        self.door = run
        self.start: Tensor | None = None
        self.guide: Guide | None = None
        self.subject = Subject(model, x, self.door, raw=criterion.raw)
        self.x, self.criterion, self.batch_size = self.subject.x, criterion, batch_size
        self.loss = loss
        self.limit(threat)
        self.modes, self._several = ExitStack(), False
        switched = any(modes_change_outputs(part) for part in self.subject.models)
        with self:
            self.clean = self.subject.clean_logits(batch_size)
            self.y = criterion.truth(y, self.x, self.clean.shape[1])
            noisy = self.subject.random()
            aim = criterion.aims(self.y, self.clean.shape[1])
            self.targeted = aim is not None
            self.aim = self.y if aim is None else aim
            self._objective = objective_of(loss, targeted=self.targeted)
            self.best = Found.nothing(torch.zeros_like(self.x).flatten(1))
            self.best.value = self._objective(self.clean, self.y, self.aim)
            self.best.fooled = criterion.met(self.clean, self.y, self.aim)
        self.random, self.status = bool(noisy.any()), Status.FINISHED
        everyone = torch.ones(len(self.x), dtype=torch.bool, device=self.x.device)
        self.signs = {
            "random": noisy & self.subject.chooses_samples,
            "probabilities": everyone & self.subject.looks_like_probabilities(self.clean, self.y),
            "labels": everyone & self.subject.hard_labels(self.clean),
            "modes": everyone & switched,
        }

    def __enter__(self) -> Self:
        self.modes.enter_context(torch.inference_mode(False))
        self.modes.enter_context(evaluating(*self.subject.models))
        return self

    def __exit__(self, *_: object) -> None:
        self.modes.close()

    def limit(self, threat: Threat) -> None:
        """Attack within this threat from now on."""
        self.threat = threat
        limits = threat.input_bounds(self.x)
        self.region = Region.of(threat, self.x, limits, self.subject.storage)

    @property
    def left(self) -> Tensor:
        """The points that are not fooled."""
        return (~self.best.fooled).nonzero().squeeze(1)

    def note(self, sign: str, points: Tensor) -> None:
        """Add points (a mask over all) to those that show a sign."""
        self.signs[sign] = self.signs.get(sign, torch.zeros_like(points)) | points

    def stage(self, attack: Any, *, start: Any = None, guide: Guide | None = None) -> None:
        """Run an Attack on the points left; an interruption keeps what was found."""
        self.start, self.guide = starts(start, self.x), guide
        if self.threat.radius == 0 or self.status is Status.INTERRUPTED:
            return
        stage = _Stage(self, attack)
        self._several = stage.loss is not self.loss or self._several
        rows = torch.arange(len(self.x), device=self.x.device).split(self.batch_size)
        parts = [left for part in rows if len(left := stage.left(self, part))]
        flat, spent = self.best.flat.clone(), self.best.gradients
        self.best.flat &= self.best.fooled
        try:
            with meter("attack", sum(map(len, parts)), show=len(rows) > 1) as bar:
                for part in parts:
                    stage(self, part)
                    done = self.best.fooled[: int(part[-1]) + 1]
                    bar.advance(len(part), f"robust {1 - float(done.double().mean()):.3f}")
        except KeyboardInterrupt:
            self.status = Status.INTERRUPTED
        # The last attack that followed the model's own gradients says where there are none.
        if guide is not None or self.best.gradients == spent:
            self.best.flat = flat

    def note_saturation(self, attack: Any) -> None:
        """Note where the loss of an attack that runs alone goes blind; an ensemble has others."""
        if not self.targeted and not self.criterion.raw and self.threat.radius > 0:
            self.note("saturated", find_loss(attack.loss).saturated(self.clean, self.y))

    def points(self, rows: Tensor, **changes: Any) -> Points:
        """Return some points, ready to be attacked by the search's own loss."""
        there = self.subject.device
        y, aim = (part[rows].to(there) for part in (self.y, self.aim))
        region = self.region.take(rows).to(there)
        given = {"objective": self._objective, "aim": aim} | changes
        return Points(self.subject, rows, y=y, region=region, criterion=self.criterion, **given)

    def diagnose(self) -> bool:
        """Return whether gradients tell the truth at most points left; note where they do not.

        Steps of several lengths must raise the margin loss by a fair share of what the gradient at
        their start promises. Costs a gradient and three queries a point; some must be left.
        """
        lying, flat, left = torch.zeros_like(self.best.fooled), self.best.flat.clone(), self.left
        least = 0.0 if self.threat.order else 1.0  # a coordinate
        margin = find_loss("margin", raw=self.criterion.raw)
        objective = objective_of(margin, targeted=self.targeted)
        for rows in left.split(self.batch_size):
            points = self.points(rows, objective=objective)
            value, _, gradient = points.differentiate(points.region.x.clone())
            blind = ~(gradient.abs().amax(1) > 0)
            coarse = self._rounding(rows, gradient, points.region.x)
            for length in PROBES:
                delta, moved = torch.zeros_like(points.region.x), points.region.x.clone()
                region = points.region.with_radius(max(length * self.threat.radius, least))
                region.steepest_step(delta, gradient.clone(), region.threat.radius, moved)
                promised = (gradient.double() * (moved - region.x).double()).sum(1)
                gained = points.evaluate(moved)[0].double() - value.double()
                # A model that returns no number there has a warning of its own.
                broken = ~(gained > KEPT * promised) & (promised > coarse) & gained.isfinite()
                lying[rows] |= broken.to(lying.device)
            flat[rows] = blind.to(flat.device)
            self.best.gradients += len(rows)
            self.best.queries += len(PROBES) * len(rows)
        if self.random:
            return True
        honest = float((lying | flat)[left].double().mean()) <= DOUBTFUL
        if not honest:
            self.note("lying", lying & ~flat)
        return honest

    def _rounding(self, rows: Tensor, gradient: Tensor, x: Tensor) -> Tensor:
        """Return what rounding in the model's number format may change the loss by, (points,)."""
        eps = self.subject.precision
        inputs = (gradient.abs().double() * x.abs().double()).sum(1)
        logits = self.clean[rows].abs().amax(1).double().to(x.device)
        return eps * (64 * logits + inputs)

    def rivals(self, rows: Tensor, measured: int) -> Tensor:
        """Return the likeliest wrong classes of points by linearized distance, nearest first.

        The distance to class j is (f_y - f_j) / |grad (f_y - f_j)|, in the dual norm.
        """
        points = self.points(rows)
        x, y = points.region.x, points.y
        others = self.clean[rows].to(y.device).scatter(1, y[:, None], -math.inf)
        likely = others.argsort(1, descending=True)[:, :measured]
        distance = torch.empty_like(likely, dtype=x.dtype)
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            f = self.subject.logits(x, rows)
            own = f.gather(1, y[:, None])
            for k in range(likely.shape[1]):
                margin = (own - f.gather(1, likely[:, k : k + 1])).squeeze(1)
                steepness = self.threat.dual(slope(margin, x, retain=True)).clamp(min=FLAT)
                distance[:, k] = margin.detach() / steepness
        self.best.gradients += likely.numel()
        order = distance.nan_to_num_(nan=math.inf).argsort(1)
        return likely.gather(1, order).to(self.x.device)

    def hides(self) -> bool:
        """Return whether the model rounds or cuts off what depends on its inputs, or the like."""
        rows = self.left[: self.batch_size]
        x = self.x[rows].to(self.subject.device).requires_grad_()
        try:
            with torch.enable_grad(), StraightThrough() as mode:
                mode.through(self.subject.logits(x, rows))
        except Exception:  # numbers in the place of whole ones may not do, for an index say
            return False
        return mode.seen

    def settled(self) -> Tensor:
        """Return the perturbed inputs as stored, inside the threat in exact numbers."""
        return self.region.store_exactly(self.best.delta).view_as(self.x)

    def result(self, *, warn: bool) -> AttackResult:
        """Return the perturbed inputs, with success and loss recomputed there."""
        best, x = self.best, self.settled()
        after, rate = self.score(x)
        value, success = self._objective(after, self.y, self.aim), rate > 0.5
        self.doubt(success)
        return AttackResult(
            x, success, rate, value, best.gradients, best.queries, best.flat, best.broken,
            report(self.signs, warn=warn), self.status,
        )  # fmt: skip

    def score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits at x and the rate of success: over fresh draws if the model is random."""
        samples, self.subject.samples = self.subject.samples, 1
        hits, total = torch.zeros_like(self.best.value), DRAWS if self.random else 1
        for _ in range(total):
            after = self.subject.all_logits(x, self.batch_size)
            hits += self.criterion.met(after, self.y, self.aim) & torch.isfinite(after).all(1)
        self.subject.samples = samples
        return after, hits / total

    def doubt(self, success: Tensor) -> None:
        """Note what of the search so far cannot be trusted, given who is fooled for certain."""
        best, random = self.best, torch.full_like(success, self.random)
        eps = torch.finfo(self.x.dtype).eps
        spacing = eps * self.x.flatten(1).abs().amax(1)
        positive = self.threat.radius > 0 and self.threat.order > 0
        coarse = (spacing / 2 > self.threat.radius) & positive
        known = random | best.broken | coarse | self.signs["probabilities"]
        known = known | self.signs.get("saturated", random)
        # The best iterate is the input itself where no step raised the loss, which means nothing
        # where a step of the whole radius drowns in rounding.
        same = (best.delta == 0).all(1) & (self.threat.radius > 100 * spacing)
        self.note("flat", best.flat & ~known & ~(success & self._several))
        self.note("broken", best.broken & ~success)
        self.note("stuck", same & ~(known | success | best.flat | self.signs.get("lying", known)))
        self.note("coarse", coarse & ~success)
        self.note("lost", best.fooled & ~success & ~random)


class _Stage:
    """One attack on the points of a search that are not fooled yet."""

    def __init__(self, search: Search, attack: Any) -> None:
        self._attack, self.loss = attack, find_loss(attack.loss, raw=search.criterion.raw)
        self._objective = objective_of(self.loss, targeted=search.targeted)
        self._own = self.loss is search.loss  # what perturbations are compared by anyway
        # Where the largest loss counts and not success, as in training, a loss that has steps of
        # its own gets all of them.
        plan = self.loss.plan(attack.length, search.clean.shape[1])
        early = attack.early_exit and not search.random
        split = not search.targeted and (early or plan.steps == 0)
        self._plan = plan if split else Plan(attack.length)

    def __call__(self, search: Search, rows: Tensor) -> None:
        """Attack a batch, against its nearest rivals in turn if the loss says so."""
        plan, order = self._plan, None
        for restart in range(self._attack.restarts):
            if plan.steps:
                self._run(search, self.left(search, rows), None, plan.steps, restart)
            for rank in range(plan.rivals):
                left = self.left(search, rows)
                if order is None and len(left):
                    order = torch.zeros(len(search.x), plan.rivals).to(search.y)
                    order[left] = search.rivals(left, plan.measured)[:, : plan.rivals]
                if order is not None:
                    self._run(search, left, order[left, rank], plan.each, restart)

    def left(self, search: Search, rows: Tensor) -> Tensor:
        """Return those of the rows that are to be attacked."""
        return rows[~search.best.fooled[rows]] if self._attack.early_exit else rows

    def _run(
        self, search: Search, rows: Tensor, rival: Tensor | None, steps: int, restart: int
    ) -> None:
        if len(rows) == 0:
            return
        own, attack = search.points(rows), self._attack
        changes: dict[str, Any] = {"objective": self._objective, "guide": search.guide}
        if rival is not None:
            changes |= {"objective": reflected_pair, "aim": rival.to(own.y.device)}
        points, region = search.points(rows, **changes), own.region

        def draw() -> Tensor:
            return region.draw((attack.seed or 0) + restart, extreme=restart % 2 == 1)

        if restart == 0 and search.start is not None:
            there = search.start[rows].to(region.x.device).flatten(1)
            delta = region.project(there - region.x)
        elif restart > 0 or attack.random_start:
            delta = draw()
        else:
            delta = torch.zeros_like(region.x)
        found = attack.run(points, delta, steps, draw)
        if rival is not None or not self._own:  # compare by the common loss
            found.value = own.evaluate(region.perturbed(found.delta))[0].nan_to_num_(-math.inf)
            found.queries += len(rows)
        home = search.x.device
        search.best.merge(rows, found.each(lambda part: part.to(home)))
