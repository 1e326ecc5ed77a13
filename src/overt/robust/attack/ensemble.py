"""The default attack: a fixed sequence of attacks, cheapest first, each on the points left.

Do gradients tell the truth, and whose are followed where they do not? That is at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from overt._check import InputError, whole
from overt.robust.attack.base import AttackState, Batch, slope
from overt.robust.attack.pgd import PGD
from overt.robust.attack.queries import HopSkipJump, Square
from overt.robust.attack.results import MIN_REPORTED_SHARE, AttackResult
from overt.robust.losses import LOSSES, ReflectedAll, objective_of
from overt.robust.models import (
    BATCH_SIZE,
    Model,
    ModelAdapter,
    ModelOptions,
    evaluation_mode,
)
from overt.robust.threats import Threat

MIN_BUDGET = 24
"""Gradients of a point that leave two to the stage with the fewest."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Tuned on the 24 rows of `benchmarks/attacks.py` against AutoAttack at half its gradients.

    A share of the budget, or of the queries, is given by its inverse.
    """

    shares: tuple[tuple[str, int], ...] = (
        ("cross_entropy", 12),
        ("dlr", 8),
        ("reflected_lse", 6),
    )
    rivals: int = 9  # wrong classes tried one by one, likeliest first
    max_steps: int = 20  # of a run against one class; the rest goes into restarts
    honest_queries: int = 10  # where gradients are honest
    masked_budget: int = 4  # of the model's own gradients where they are masked
    smoothing: tuple[float, ...] = (0.5, 0.1)  # sizes in radii
    smoothing_samples: int = 4
    surrogate_budget: int = 3
    smoothed_budget: int = 6  # of each smoothing, and of passing straight through
    # First steps in radii. An MNIST network behind ripples .05 sin(300 v) has a robust accuracy of
    # .81 without them, and of .37 with them.
    short_steps: tuple[float, ...] = (0.3, 0.1)
    short_budget: int = 8  # of each


CONFIG = EnsembleConfig()


@dataclass(frozen=True)
class GradientTestConfig:
    """Tuned so that rippled inputs are noticed and no network without a mask is suspected.

    At each of 7 ripples v + a sin(f v) of an MNIST network, a from .02 to .05 and f from 100 to
    500, at least 59 % of the points break their promise at a radius of .06. At 34 pairs of a
    network without a mask and a threat at most 2 % do.
    """

    step_lengths: tuple[float, ...] = (0.01, 0.1, 1.0)  # in radii
    min_kept: float = 0.4  # share of its promise that a step must gain
    min_kept_toward: float = 0.2  # toward a target, where the best other class changes
    max_doubtful: float = 0.1  # share of the points from which no gradient is believed
    rounding: float = 64  # machine epsilons of the largest logit that a loss is off by


GRADIENT_TEST = GradientTestConfig()


def strongest(
    model: Model,
    x: Any,
    y: Any = None,
    threat: Threat | None = None,
    *,
    budget: int = 1000,
    queries: int = 1500,
    surrogate: Model | None = None,
    target: Any = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    warn: bool = True,
    **options: Unpack[ModelOptions],
) -> AttackResult:
    """Attack with a fixed ensemble of losses; a point leaves with the first success.

    Cross-entropy finds the easy points. The ratio of logits and the log-sum-exp reflected loss find
    those at which cross-entropy is blind, by different paths. The reflected loss against each wrong
    class in turn finds those whose nearest wrong class is not the likeliest. A search without
    gradients follows: a tenth of `queries` where gradients keep their promises, all of them where
    they do not or where the tenth finds anything. There gradients are also averaged over random
    moves, and passed straight through rounding and detaching. A model that returns labels is
    attacked by its decisions alone. Logit scale, batch size and order do not matter.

    Parameters
    ----------
    model, x, y
        As for any attack; a DataLoader may stand for x and y.
    threat
        What is allowed: L1, L2 or Linf with a radius and, if wanted, bounds.
    budget
        Gradients spent on a point at most, at least 24; each is an average over `samples`.
    queries
        Evaluations spent on a point at most in the search without gradients, and on top those that
        masked gradients leave of the budget.
    surrogate
        A model whose gradients are followed as well, at up to half of the budget on top: the model
        without what masks its gradients, or one trained to do the same.
    target
        The class that predictions are to reach; None: any wrong one.
    batch_size, seed, warn, output, outputs, mean, std, samples
        As for any attack.
    """
    state = AttackState(
        model, x, y, threat, target=target, batch_size=batch_size, options=options
    )
    with evaluation_mode(model):
        run_ensemble(state, budget, queries, surrogate, seed)
        return state.result(warn=warn)


def run_ensemble(
    state: AttackState,
    budget: int,
    queries: int,
    surrogate: Any,
    seed: int,
) -> None:
    """Run the stages of `strongest` on the points that are left."""
    budget = whole("budget", budget, minimum=MIN_BUDGET)
    queries = whole("queries", queries, minimum=0)
    if state.threat.radius == 0 or len(state.left) == 0:
        return
    common: dict[str, Any] = {"seed": seed, "batch_size": state.batch_size}
    if state.adapter.hard_labels:
        total = budget + queries
        state.run(HopSkipJump(state.threat, queries=total, **common))
        return
    honest = True
    with state.stage("gradient test"):
        doubtful, trustworthy = find_doubtful_gradients(state)
        honest = trustworthy or state.random
        if not honest:
            state.flag("masked", doubtful)
    given = budget - 1 if honest else max(budget // CONFIG.masked_budget, MIN_BUDGET)
    for name, attack in gradient_stages(state, given, common):
        state.run(attack, name=name)
    for name, source, attack in _further_stages(
        state, surrogate, honest, budget, common
    ):
        state.run(attack, source=source, name=name)
        given += attack.steps * (1 if source is None else source.evaluations)
    unused = max(budget - given, 0) if queries else 0
    search_without_gradients(state, honest, queries + unused, common)


def gradient_stages(
    state: AttackState, budget: int, common: dict[str, Any]
) -> list[tuple[str, PGD]]:
    """Return the attacks by gradients, which together take at most `budget` of them a point.

    Cross-entropy gets a twelfth, the ratio of logits an eighth, the log-sum-exp reflected loss a
    sixth, and the reflected loss against each of the likeliest wrong classes the rest.
    Small budgets try fewer classes, large ones start again at random.
    """
    threat = state.threat
    steps = {name: budget // part for name, part in CONFIG.shares}
    rest = max(budget - sum(steps.values()), 4)
    top = max(min(CONFIG.rivals, state.clean.shape[1] - 1, rest // 7), 1)
    longest = CONFIG.max_steps
    further: dict[str, Any] = {}
    last: dict[str, Any] = {}
    stages: list[tuple[str, PGD]] = []
    if threat.order == 1:
        # Runs begin in larger balls, and small steps count at the end.
        longest *= 2
        top = max(min(top, rest // longest), 1)
        further = {"larger": (3.0, 2.0)}
        last = {"larger": (6.0, 3.0)}  # which leads to other valleys
    everyone = ReflectedAll(top=top)
    if threat.order == 1 and rest >= 8 * top:
        # From the input itself the first step of a run is the exact maximizer of the linearized
        # loss in ball and box, which solves linear models.
        short = min(rest // (4 * top), longest)
        rest -= short * top
        vertex = PGD(threat, steps=short, loss=everyone, **common)
        stages.append(("linear maximizers", vertex))
    for name, count in steps.items():
        stages.append((name, PGD(threat, steps=count, loss=name, **common, **further)))
    each = min(rest // top, longest)
    restarts = max(rest // (top * each), 1)
    final = PGD(threat, steps=each, loss=everyone, restarts=restarts, **common, **last)
    stages.append(("reflected, class by class", final))
    return stages


def _further_stages(
    state: AttackState,
    surrogate: Any,
    honest: bool,
    budget: int,
    common: dict[str, Any],
) -> Iterator[tuple[str, GradientSource | None, PGD]]:
    """Yield attacks with a surrogate, with short steps where gradients ripple, and smoothed."""
    threat = state.threat
    share = CONFIG.surrogate_budget if honest else CONFIG.smoothed_budget
    sources: list[tuple[str, GradientSource]] = []
    if surrogate is not None:
        sources.append(("surrogate", surrogate_gradients(state, surrogate)))
    if not honest:
        short = max(budget // CONFIG.short_budget, 2)
        for length in CONFIG.short_steps:
            size = length * threat.radius
            attack = PGD(threat, steps=short, step_size=size, **common)
            yield f"steps of {length:g} radii", None, attack
        straight = hides_gradients(state)
        if straight:
            through = GradientSource(state.adapter, straight=True)
            sources.append(("straight-through", through))
        samples = CONFIG.smoothing_samples
        for length in CONFIG.smoothing:
            size = length * threat.radius
            smooth = GradientSource(state.adapter, size, samples, straight)
            sources.append((f"smoothed over {length:g} radii", smooth))
    for name, source in sources:
        steps = min(max(budget // (share * source.evaluations), 2), 100)
        yield name, source, PGD(threat, steps=steps, **common)


def search_without_gradients(
    state: AttackState, honest: bool, queries: int, common: dict[str, Any]
) -> None:
    """Search by queries alone: all of them in doubt, or where a tenth of them finds anything."""
    first = queries // CONFIG.honest_queries if honest else queries
    if honest:
        # From where gradients ended: windows find what lies behind a last small ridge. Of 140
        # points that withstood on an adversarially trained network 150 queries from there find 2,
        # and 1,500 from striped starts find no more.
        state.start = state.best.delta
    before = state.best.fooled.clone()
    for part, seed in ((first, 0), (queries - first, 1)):
        if part < 2:
            break
        settings = common | {"seed": common["seed"] + seed, "loss": state.loss}
        state.run(Square(state.threat, queries=part, **settings), name="Square")
        if not bool((state.best.fooled & ~before).any()):
            break
    found = state.best.fooled & ~before
    if not state.random and float(found.double().mean()) >= MIN_REPORTED_SHARE:
        state.flag("unaided", found)


def find_doubtful_gradients(state: AttackState) -> tuple[Tensor, bool]:
    """Step along the gradient and compare the gain with what the gradient promised.

    Return at which of all points a gradient breaks its promise, (points,), and whether gradients
    can be trusted in general. Several lengths are tried because a masking layer may ripple at one
    scale only: a sine of period 1/300 is honest at 1/1000 of the radius and useless at a tenth of
    it. The loss is the margin, which is nearly linear. Costs a gradient and three queries a point.
    """
    left = state.left
    doubtful = torch.zeros_like(state.best.fooled)
    flat = doubtful.clone()
    objective = objective_of(LOSSES["margin"], targeted=state.targeted)
    for rows in left.split(state.batch_size):
        batch = state.batch(rows, objective=objective)
        value, _, gradient = batch.differentiate(batch.region.x)
        breaks = _breaks_promise(state, batch, value, gradient)
        doubtful[rows] = breaks
        flat[rows] = ~(gradient.abs().amax(1) > 0)
        cost = state.adapter.samples * len(rows)
        state.best.gradients += cost
        state.best.queries += len(GRADIENT_TEST.step_lengths) * cost
    doubt = float((doubtful | flat)[left].double().mean())
    return doubtful & ~flat, doubt <= GRADIENT_TEST.max_doubtful


def _breaks_promise(
    state: AttackState, batch: Batch, value: Tensor, gradient: Tensor
) -> Tensor:
    """Return which points gain less than a fair share of what some step promises, (points,)."""
    x = batch.region.x
    exact = gradient.double()
    # By how much rounding in the model's number format may change the loss.
    logits = state.clean[batch.rows].abs().amax(1).double()
    inputs = (exact.abs() * x.abs()).sum(1)
    rounding = state.adapter.precision * (GRADIENT_TEST.rounding * logits + inputs)
    min_kept = (
        GRADIENT_TEST.min_kept_toward if state.targeted else GRADIENT_TEST.min_kept
    )
    broken = torch.zeros_like(batch.y, dtype=torch.bool)
    for length in GRADIENT_TEST.step_lengths:
        radius = length * state.threat.radius
        region = batch.region.with_radius(radius)
        moved = region.perturbed(region.project(radius * region.ascent(gradient)))
        promised = (exact * (moved - x).double()).sum(1)
        gained = batch.evaluate(moved)[0].double() - value.double()
        # A model that returns no number there has another warning.
        known = gained.isfinite() & (promised > rounding)
        broken |= known & ~(gained > min_kept * promised)
    return broken


@dataclass(frozen=True, eq=False)
class GradientSource:
    """Gradients of another model, or of the model itself made smooth.

    They are averaged over `evaluations` normal perturbations of size `sigma` and, if `straight`,
    rounding and detaching pass gradients on unchanged.
    """

    adapter: ModelAdapter
    sigma: float = 0.0
    evaluations: int = 1
    straight: bool = False

    def gradient(self, moved: Tensor, batch: Batch, step: int) -> Tensor:
        """Return the gradient of the batch's objective at the moved points of a step."""
        total = torch.zeros_like(moved)
        generator = torch.Generator().manual_seed(step)
        for _ in range(self.evaluations):
            # The same for every point: results do not depend on the batch.
            noise = torch.randn(moved.shape[1], generator=generator).to(moved)
            there = (moved + self.sigma * noise).detach().requires_grad_()
            mode = StraightThrough() if self.straight else nullcontext()
            with torch.enable_grad():
                with mode:
                    logits = self.adapter.logits(there, batch.rows)
                value = batch.objective(logits, batch.y, batch.target)
                total += slope(value, there).nan_to_num_(0, 0, 0)
        return total


class StraightThrough(TorchFunctionMode):  # type: ignore[misc]
    """Give rounding and detaching the gradient of the identity; `seen` says if there are any.

    Conversions to whole numbers keep their values and become numbers with a fraction.
    """

    HIDING: ClassVar[frozenset[str]] = frozenset(
        ("round", "floor", "ceil", "trunc", "sign", "int", "long", "byte", "detach")
    )

    seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        x = args[0] if args else None
        hides = getattr(func, "__name__", "") in self.HIDING
        hides = hides or func == Tensor.data.__get__
        if not hides or not isinstance(x, Tensor) or not x.requires_grad:
            return func(*args, **(kwargs or {}))
        self.seen = True
        return func(*args, **(kwargs or {})).detach().to(x.dtype) + (x - x.detach())


def hides_gradients(state: AttackState) -> bool:
    """Return whether the model rounds or detaches."""
    rows = state.left[: state.batch_size]
    x = state.x[rows].requires_grad_()
    try:
        with torch.enable_grad(), StraightThrough() as mode:
            state.adapter.logits(x, rows)
    except Exception:  # a number with a fraction may not do as an index, say
        return False
    return mode.seen


def surrogate_gradients(state: AttackState, surrogate: Any) -> GradientSource:
    """Return the gradients of a surrogate, which must have the model's classes."""
    other = ModelAdapter(surrogate, state.adapter.inputs, **state.options)
    found = other.clean_logits(state.batch_size).shape[1]
    if found != state.clean.shape[1]:
        raise InputError(
            f"surrogate must return as many logits as the model, {state.clean.shape[1]}, got "
            f"{found}"
        )
    return GradientSource(other)
