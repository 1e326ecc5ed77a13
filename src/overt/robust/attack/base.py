"""Attacks: a final call that checks, batches, restarts and reports, around one inner `run`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from operator import sub
from typing import Any, ClassVar, Unpack, final

import torch
from torch import Tensor

from overt._check import whole
from overt._running import meter
from overt.results import Result, Status
from overt.robust.attack.results import AttackResult, Stage, report
from overt.robust.losses import (
    LOSSES,
    CrossEntropy,
    Loss,
    Objective,
    Plan,
    find_loss,
    find_targets,
    is_fooled,
    objective_of,
    reflected_pair,
    saturated,
)
from overt.robust.models import (
    BATCH_SIZE,
    Model,
    ModelAdapter,
    ModelOptions,
    classes,
    evaluation_mode,
    examples,
    mode_changes_outputs,
)
from overt.robust.threats import Region, Threat, check_threat

Draw = Callable[[], Tensor]
"""Samples random allowed perturbations of the points of a batch."""

SCORING_SAMPLES = 100
"""Fresh samples of a random model over which success is scored."""

RECHECK_SAMPLES, MIN_RATE = 20, 0.9
"""Samples that decide whether a fooled point of a random model may leave, and the share needed.

A point that leaves with its first lucky sample is fooled in little more than half of all samples.
"""


@dataclass(frozen=True, eq=False)
class Batch:
    """Points that go through the model together, and their allowed perturbations.

    `source` gives gradients to follow instead of the model's own.
    """

    adapter: ModelAdapter
    rows: Tensor
    y: Tensor
    target: Tensor
    region: Region
    objective: Objective
    targeted: bool
    source: Any = None

    def evaluate(self, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective at the moved points and which of them are fooled."""
        with torch.no_grad():
            logits = self.adapter.logits(moved, self.rows)
            value = self.objective(logits, self.y, self.target)
        return self._judge(logits, value)

    def differentiate(
        self, moved: Tensor, step: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective at the moved points, which of them are fooled, the gradient."""
        if self.source is not None:
            value, fooled = self.evaluate(moved)
            return value, fooled, self.source.gradient(moved, self, step)
        logits, value, gradient = self.own_gradient(moved)
        value, fooled = self._judge(logits, value)
        return value, fooled, gradient

    def own_gradient(self, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the model's logits at the moved points, the objective, its gradient."""
        moved = moved.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.adapter.logits(moved, self.rows)
            value = self.objective(logits, self.y, self.target)
            gradient = slope(value, moved)
        return logits.detach(), value.detach(), gradient

    @property
    def gradient_cost(self) -> int:
        """Gradients of the model, or of the source, behind one gradient of a point."""
        samples = self.adapter.samples
        if self.source is None:
            return samples
        return int(samples * self.source.evaluations)

    def take(self, rows: Tensor) -> Batch:
        """Return some of the points."""
        return replace(
            self,
            rows=self.rows[rows],
            y=self.y[rows],
            target=self.target[rows],
            region=self.region.take(rows),
        )

    def _judge(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value, NaN where logits are not finite, and who is fooled by finite ones."""
        broken = ~torch.isfinite(logits).all(1)
        fooled = is_fooled(logits, self.y, self.target, self.targeted)
        return value.masked_fill(broken, torch.nan), fooled & ~broken


@dataclass(eq=False)
class BestIterates:
    """The best perturbation of each point so far, its objective and success, and the cost.

    `flat` points had no gradient where they started, `broken` ones met NaN or infinity.
    """

    delta: Tensor
    value: Tensor
    fooled: Tensor
    flat: Tensor
    broken: Tensor
    gradients: int = 0
    queries: int = 0

    @classmethod
    def start(cls, delta: Tensor) -> BestIterates:
        """Return the state before the first evaluation."""
        lowest = torch.full_like(delta[:, 0], -torch.inf)
        none = torch.zeros_like(lowest, dtype=torch.bool)
        flat = none.clone()
        return cls(delta.clone(), lowest, none, flat, none.clone())

    def enter(
        self,
        rows: Tensor,
        delta: Tensor,
        value: Tensor,
        fooled: Tensor,
        *,
        by_value: bool = False,
    ) -> None:
        """Take over what is better at some of the points: success first, unless `by_value`."""
        higher = value > self.value[rows]
        better = torch.where(fooled == self.fooled[rows], higher, fooled)
        if by_value:
            better = higher
        self.delta[rows[better]] = delta[better]
        self.value[rows[better]] = value[better]
        self.fooled[rows] |= fooled
        self.broken[rows] |= value.isnan()

    def merge(
        self, rows: Tensor, other: BestIterates, *, by_value: bool = False
    ) -> None:
        """Take over what another search found, and its cost."""
        self.enter(rows, other.delta, other.value, other.fooled, by_value=by_value)
        self.flat[rows] |= other.flat
        self.broken[rows] |= other.broken
        self.gradients += other.gradients
        self.queries += other.queries


def bisect(holds: Callable[[Tensor], Tensor], high: Tensor, halvings: int) -> Tensor:
    """Return about the smallest value up to `high` of each point at which a condition holds."""
    low = torch.zeros_like(high)
    for _ in range(halvings):
        middle = (low + high) / 2
        true = holds(middle)
        low = torch.where(true, low, middle)
        high = torch.where(true, middle, high)
    return high


def slope(value: Tensor, x: Tensor, *, retain: bool = False) -> Tensor:
    """Return the gradient of each point's value, zero if it does not depend on x at all."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(
        value.sum(), x, retain_graph=retain, allow_unused=True
    )
    if gradient is None:
        return torch.zeros_like(x)
    return gradient


def likely_rivals(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """Return the likeliest wrong classes (points, count), likeliest first."""
    others = logits.detach().scatter(1, y[:, None], -math.inf)
    return others.argsort(1, descending=True)[:, :count]


class AttackState:
    """The best perturbation of every point so far; `loss` is what they are compared by.

    Everything but its construction needs `evaluation_mode`.
    """

    def __init__(
        self,
        model: Model,
        x: Any,
        y: Any,
        threat: Any,
        *,
        target: Any = None,
        loss: Loss | None = None,
        batch_size: int = BATCH_SIZE,
        options: Any,
    ) -> None:
        x, y, threat = examples(x, y, threat)
        self.options = options
        self.batch_size = whole("batch_size", batch_size)
        self.adapter = ModelAdapter(model, x, **options)
        self.x = self.adapter.x
        self.loss = loss or LOSSES["reflected_greedy"]
        self.status = Status.FINISHED
        self.stages: list[Stage] = []
        self._several_losses = False
        self.set_radius(check_threat(threat))
        modes_change = mode_changes_outputs(model)
        with evaluation_mode(model):
            clean = self.adapter.clean_logits(self.batch_size, y)
            differs = self.adapter.find_randomness()
            self.random = bool(differs.any())
            if self.random:
                clean = self.adapter.all_logits(self.x, self.batch_size)
            count = clean.shape[1]
            self.clean = clean
            self.y = classes(y, self.x, count)
            self.targeted = target is not None
            self.target = self.y
            if self.targeted:
                self.target = find_targets(target, self.y, count)
            self._objective = objective_of(self.loss, targeted=self.targeted)
            self.best = BestIterates.start(torch.zeros_like(self.x).flatten(1))
            self.best.value = self._objective(clean, self.y, self.target)
            self.best.fooled = is_fooled(clean, self.y, self.target, self.targeted)
            nowhere = torch.zeros_like(self.best.fooled)
            self.flags: dict[str, Any] = defaultdict(lambda: nowhere)
            self.flags["random"] = differs & self.adapter.chooses_samples
            probable = self.adapter.looks_like_probabilities(clean, self.y)
            self.flag("probabilities", probable)
            self.flag("labels", self.adapter.hard_labels)
            self.flag("modes", modes_change)
            self.flag("batch", self.adapter.mixes_points and not self.random)

    def set_radius(self, threat: Threat) -> None:
        """Attack the same points with this threat from now on."""
        self.threat = threat
        self.region = threat.region(self.x, self.adapter.storage)
        self.start = torch.zeros_like(self.region.x)

    @property
    def left(self) -> Tensor:
        """The points that are not fooled."""
        return (~self.best.fooled).nonzero().squeeze(1)

    def flag(self, name: str, points: Tensor | bool) -> None:
        """Add points, a mask over all or all of them, to those with a warning flag."""
        self.flags[name] = self.flags[name] | points

    def batch(self, rows: Tensor, **changes: Any) -> Batch:
        """Return some points, ready to be attacked by the state's own loss."""
        own = Batch(
            adapter=self.adapter,
            rows=rows,
            y=self.y[rows],
            target=self.target[rows],
            region=self.region.take(rows),
            objective=self._objective,
            targeted=self.targeted,
        )
        return replace(own, **changes)

    def run(self, attack: Attack, *, source: Any = None, name: str = "") -> None:
        """Run an attack on the points left, from `start`; an interruption keeps what was found."""
        if self.threat.radius == 0 or self.status is Status.INTERRUPTED:
            return
        run = _AttackRun(self, attack, source, find_loss(attack.loss))
        self._several_losses |= run.loss is not self.loss
        # The last attack that followed the model's own gradients says where there are none.
        if attack.follows_gradients and source is None:
            self.best.flat &= self.best.fooled
        rows = torch.arange(len(self.x), device=self.x.device).split(self.batch_size)
        with self.stage(name or type(attack).__name__):
            with meter("attack", len(rows), show=len(rows) > 1) as bar:
                for part in rows:
                    run(part)
                    bar.advance()
            if self.random:
                self._recheck()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what is found and spent inside to the table; Ctrl-C ends the work, not the call."""
        before = self._counts()
        try:
            yield
        except KeyboardInterrupt:
            self.status = Status.INTERRUPTED
        self.stages.append(Stage(name, *map(sub, self._counts(), before)))

    def _counts(self) -> tuple[int, int, int]:
        """Return how many points are fooled, and the gradients and queries so far."""
        best = self.best
        return int(best.fooled.sum()), best.gradients, best.queries

    def flag_saturation(self, attack: Attack) -> None:
        """Flag where the loss of an attack that runs alone is blind; an ensemble has others."""
        blind = isinstance(find_loss(attack.loss), CrossEntropy) and not self.targeted
        if blind and self.threat.radius > 0:
            self.flag("saturated", saturated(self.clean, self.y))

    def _recheck(self) -> None:
        """Keep attacking points of a random model that are not fooled nearly always."""
        _, rate = self.success_rate(self.stored(), RECHECK_SAMPLES)
        self.best.queries += RECHECK_SAMPLES * len(self.x)
        self.best.fooled &= rate >= MIN_RATE

    def stored(self) -> Tensor:
        """Return the perturbed inputs as stored, inside the threat in exact arithmetic."""
        return self.region.store_exactly(self.best.delta).view_as(self.x)

    def success_rate(
        self, x: Tensor, samples: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits at x and the rate of success, over fresh samples of a random model."""
        total = samples or (SCORING_SAMPLES if self.random else 1)
        averaged = self.adapter.samples
        self.adapter.samples = 1
        hits = torch.zeros_like(self.best.value)
        done = 0
        try:
            for _ in range(total):
                after = self.adapter.all_logits(x, self.batch_size)
                fooled = is_fooled(after, self.y, self.target, self.targeted)
                hits += fooled & torch.isfinite(after).all(1)
                done += 1
        except KeyboardInterrupt:
            self.status = Status.INTERRUPTED
            if done == 0:  # what was found is still scored
                return self.success_rate(x, 1)
        finally:
            self.adapter.samples = averaged
        return after, hits / done

    def result(self, *, warn: bool) -> AttackResult:
        """Return the perturbed inputs, with success and loss recomputed there."""
        best = self.best
        x = self.stored()
        after, rate = self.success_rate(x)
        success = rate > 0.5
        self.add_doubts(success)
        return AttackResult(
            x=x,
            success=success,
            rate=rate,
            loss=self._objective(after, self.y, self.target),
            gradients=best.gradients,
            queries=best.queries,
            flat=best.flat,
            broken=best.broken,
            stages=tuple(self.stages),
            warnings=report(self.flags, warn=warn, stacklevel=4),
            status=self.status,
        )

    def add_doubts(self, success: Tensor) -> None:
        """Flag what cannot be trusted, given which points are certainly fooled."""
        best = self.best
        explained = best.broken | self.random
        for other in ("probabilities", "saturated", "labels"):
            explained = explained | self.flags[other]
        # The best iterate is the input itself where no step raised the loss.
        same = (best.delta == 0).all(1) & (self.threat.radius > 0)
        settled = success & self._several_losses
        self.flag("flat", best.flat & ~explained & ~settled)
        self.flag("broken", best.broken & ~success)
        explained = explained | success | best.flat | self.flags["masked"]
        self.flag("stuck", same & ~explained)
        self.flag("lost", best.fooled & ~success & (not self.random))


@dataclass(frozen=True, eq=False)
class _AttackRun:
    """One attack on the points of a state that are not fooled yet."""

    state: AttackState
    attack: Attack
    source: Any
    loss: Loss

    def __call__(self, rows: Tensor) -> None:
        """Attack a batch, against its likeliest rivals in turn if the loss asks for it."""
        state = self.state
        attack = self.attack
        plan = self.loss.plan(attack.length, state.clean.shape[1])
        # Where the largest loss counts and not success, a loss with separate steps gets all
        # of them.
        early = attack.early_exit and not state.random
        if state.targeted or not (early or plan.steps == 0):
            plan = Plan(attack.length)
        rivals = likely_rivals(state.clean, state.y, plan.rivals)
        for restart in range(attack.restarts):
            if plan.steps:
                self._run(rows, plan.steps, restart)
            for rank in range(plan.rivals):
                self._run(rows, plan.each, restart, rivals[:, rank])

    def _run(
        self, rows: Tensor, steps: int, restart: int, rivals: Tensor | None = None
    ) -> None:
        """Attack the rows left, each against its rival if there are `rivals`."""
        state = self.state
        attack = self.attack
        if attack.early_exit:
            rows = rows[~state.best.fooled[rows]]
        if len(rows) == 0:
            return
        own = state.batch(rows)
        region = own.region
        objective = objective_of(self.loss, targeted=state.targeted)
        batch = replace(own, source=self.source, objective=objective)
        if rivals is not None:
            batch = replace(batch, objective=reflected_pair, target=rivals[rows])

        def draw() -> Tensor:
            return region.draw(attack.seed + restart, extreme=restart % 2 == 1)

        delta = state.start[rows]
        if restart > 0 or attack.random_start:
            delta = draw()
        found = attack.run(batch, delta, steps, draw)
        if self.source is not None:
            found.flat.zero_()
        if rivals is not None or self.loss is not state.loss:
            # Runs are compared by the state's loss.
            value, _ = own.evaluate(region.perturbed(found.delta))
            found.value = value.nan_to_num_(-math.inf)
            found.queries += len(rows)
        state.best.merge(rows, found, by_value=state.random)


@dataclass(frozen=True, eq=False)
class Attack(ABC):
    """A search for perturbations that change a model's predictions.

    Parameters
    ----------
    threat
        What is allowed: L1, L2 or Linf with a radius and, if wanted, bounds.
    loss
        What is ascended: "cross_entropy", "dlr", "margin", "reflected" (against the most likely
        wrong class, then the likeliest ones in turn), "reflected_greedy" (the most likely only),
        "reflected_all" (one run for each wrong class), "reflected_lse", or a function
        (logits, y) -> (points,).
    target
        The class that predictions are to reach: one for all points, or one for each. None: any
        wrong class.
    restarts
        Number of runs. Those after the first start at random, alternating between extreme points
        of the ball and its inside, on the points not fooled yet.
    random_start
        Whether the first run starts at random, too, instead of at the inputs.
    early_exit
        Whether fooled points leave at once. Without it every point gets all steps ("reflected" is
        greedy then), and the iterate of the largest loss among those that fool the model is
        returned.
    batch_size
        Points that go through the model together. The result does not depend on it.
    seed
        Seed for random starts, which are the same perturbation for every point.
    """

    threat: Threat
    _: KW_ONLY
    loss: str | Loss | Any = "reflected"
    target: Any = None
    restarts: int = 1
    random_start: bool = False
    early_exit: bool = True
    batch_size: int = BATCH_SIZE
    seed: int = 0
    follows_gradients: ClassVar[bool] = False
    __eq__ = Result.__eq__  # by value, arrays included
    __hash__ = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_threat(self.threat)
        find_loss(self.loss)
        whole("restarts", self.restarts)
        whole("batch_size", self.batch_size)
        whole("seed", self.seed, minimum=0)

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of gradients, or of queries, of a run."""

    @abstractmethod
    def run(
        self, batch: Batch, start: Tensor, steps: int, escape: Draw
    ) -> BestIterates:
        """Attack one batch with `steps` steps from `start`; `escape` samples other starts."""

    def perturb(self, batch: Batch, start: Tensor, draw: Draw) -> Tensor:
        """Return the perturbations of the largest loss of all runs, for adversarial training."""
        best = self.run(batch, start, self.length, draw)
        everyone = torch.arange(len(start), device=start.device)
        for _ in range(1, self.restarts):
            other = self.run(batch, draw(), self.length, draw)
            best.merge(everyone, other, by_value=True)
        return best.delta

    @final
    def __call__(
        self,
        model: Model,
        x: Any,
        y: Any = None,
        *,
        warn: bool = True,
        **options: Unpack[ModelOptions],
    ) -> AttackResult:
        """Attack `model` at the inputs x (points, ...) with true classes y (points,).

        Parameters
        ----------
        model
            A torch module or any function from inputs to logits: (points, classes), or one logit
            for two classes, (points, 1) or (points,), positive for class 1. A
            module in training mode is evaluated in evaluation mode; modules inside one in
            evaluation mode keep their modes.
        x, y
            Tensors or arrays; y holds class numbers, or -1 and 1 for two classes. x may be a tuple
            or a dict of a model's inputs, the first of which is perturbed, or, without y, a
            DataLoader.
        warn
            Whether to warn of gradients that cannot be trusted.
        output
            Function from what the model returns to its logits, such as `lambda o: o.logits`.
        outputs
            "logits", or "probabilities" for a model that ends in a softmax or a sigmoid.
        mean, std
            The model is given (x - mean) / std: numbers, or one for each channel. Radius and
            bounds are in the units of x.
        samples
            Samples of a random model that logits, and with them gradients, are averaged over. By
            default 8 where two evaluations of the model differ, and 1 otherwise.
        """
        state = AttackState(
            model,
            x,
            y,
            self.threat,
            target=self.target,
            loss=find_loss(self.loss),
            batch_size=self.batch_size,
            options=options,
        )
        with evaluation_mode(model):
            state.flag_saturation(self)
            state.run(self)
            return state.result(warn=warn)
