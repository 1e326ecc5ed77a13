"""The default attack: a fixed sequence of attacks, cheapest first, each on the points left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from overt._check import whole
from overt._progress import meter
from overt.results import Status
from overt.robust.attack.base import Attack, AttackState
from overt.robust.attack.gradients import (
    OtherGradients,
    find_doubtful_gradients,
    hides_gradients,
    surrogate_gradients,
)
from overt.robust.attack.hopskipjump import HopSkipJump
from overt.robust.attack.pgd import PGD
from overt.robust.attack.results import MIN_REPORTED_SHARE, AttackResult
from overt.robust.attack.square import Square
from overt.robust.losses import Criterion, Misclassified, ReflectedAll
from overt.robust.models import BATCH_SIZE, Model, ModelOptions
from overt.robust.threats import Threat

MIN_BUDGET = 24
"""Gradients of a point that leave two to the stage with the fewest."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Tuned on the 24 rows of `benchmarks/attacks.py` against AutoAttack at half its gradients."""

    cross_entropy: int = 12  # the inverse of its share of the budget
    dlr: int = 8
    reflected_lse: int = 6
    max_steps: int = (
        20  # of a run against one class; budget beyond it goes into restarts
    )
    honest_queries: int = (
        10  # the inverse of the share of queries where gradients are honest
    )
    masked_budget: int = (
        4  # the inverse of the share of the budget for masked gradients
    )
    smoothing: tuple[tuple[float, int], ...] = (
        (0.5, 4),
        (0.1, 4),
    )  # size in radii, samples
    other_budget: int = 3  # the inverse of a surrogate's share of the budget
    smoothed_budget: int = 6  # the same of each smoothing of masked gradients
    # First steps in radii, and the inverse of the share of the budget of each. An MNIST network
    # behind ripples .05 sin(300 v) has a robust accuracy of .81 without them, and of .37 with them.
    short_steps: tuple[float, ...] = (0.3, 0.1)
    short_budget: int = 8


CONFIG = EnsembleConfig()


def strongest(
    model: Model,
    x: Any,
    y: Any = None,
    threat: Threat | None = None,
    *,
    budget: int = 1000,
    queries: int = 1500,
    rivals: int = 9,
    surrogate: Model | None = None,
    criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
    start: Any = None,
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
        What is allowed: L0, L1, L2 or Linf with a radius and, if wanted, bounds.
    budget
        Gradients spent on a point at most, at least 24; each is an average over `samples`.
    queries
        Evaluations spent on a point at most in the search without gradients, and on top those that
        masked gradients leave of the budget.
    rivals
        Wrong classes tried one by one, the likeliest, nearest first.
    surrogate
        A model whose gradients are followed as well, at up to half of the budget on top: the model
        without what masks its gradients, or one trained to do the same.
    criterion
        When a point counts as fooled.
    start
        Perturbed inputs to start from, shaped like x.
    batch_size, seed, warn, output, outputs, mean, std, samples
        As for any attack.
    """
    state = AttackState(
        model, x, y, threat, criterion=criterion, batch_size=batch_size, options=options
    )
    with state:
        run_ensemble(state, budget, queries, rivals, surrogate, seed, start)
        return state.result(warn=warn)


def run_ensemble(
    state: AttackState,
    budget: int,
    queries: int,
    rivals: int,
    surrogate: Any,
    seed: int,
    start: Any,
) -> None:
    """Run the stages of `strongest` on the points that are left."""
    whole("budget", budget, minimum=MIN_BUDGET)
    whole("queries", queries, minimum=0)
    whole("rivals", rivals)
    if state.threat.radius == 0 or len(state.left) == 0:
        return
    common: dict[str, Any] = {"seed": seed, "batch_size": state.batch_size}
    if state.adapter.hard_labels and not state.targeted:
        decide_by_labels(state, budget + queries, common)
        return
    honest = _test(state)
    given = budget - 1 if honest else max(budget // CONFIG.masked_budget, MIN_BUDGET)
    attacks = gradient_stages(state, given, rivals, common)
    with meter("strongest", len(attacks) + 2) as bar:
        for name, attack in attacks:
            state.run(attack, start=start, name=name)
            bar.advance(note=state.progress)
        if not honest:
            given += _short_steps(state, budget, common)
        given += _other_gradients(state, surrogate, honest, budget, common)
        bar.advance(note=state.progress)
        unused = max(budget - given, 0) if queries else 0
        search_without_gradients(state, honest, queries + unused, common)
        bar.advance()


def _test(state: AttackState) -> bool:
    """Return whether the gradients tell the truth; flag the points where they do not."""
    best = state.best
    gradients, queries = best.gradients, best.queries
    found = int(best.fooled.sum())
    doubtful, trustworthy = find_doubtful_gradients(state)
    state.record("gradient test", found, gradients, queries)
    honest = trustworthy or state.random
    if not honest:
        state.flag("masked", doubtful)
    return honest


def gradient_stages(
    state: AttackState, budget: int, rivals: int, common: dict[str, Any]
) -> list[tuple[str, Attack]]:
    """Return the attacks by gradients, which together take at most `budget` of them a point.

    Cross-entropy gets a twelfth, the ratio of logits an eighth, the log-sum-exp reflected loss a
    sixth, and the reflected loss against each of the nearest of the `rivals` likeliest wrong
    classes the rest, one gradient each to order them included. Small budgets try fewer classes,
    large ones start again at random.
    """
    threat = state.threat
    if state.criterion.regression:  # from random starts: |f - y| has no slope at f = y
        steps = max(budget // 4, 1)
        return [
            (
                "deviation",
                PGD(threat, steps=steps, restarts=4, random_start=True, **common),
            )
        ]
    classes = state.clean.shape[1]
    measured = min(rivals, classes - 1)
    shares = [
        budget // part
        for part in (CONFIG.cross_entropy, CONFIG.dlr, CONFIG.reflected_lse)
    ]
    rest = max(budget - sum(shares) - measured, 4)
    top = max(min(measured, rest // 7), 1)
    longest = CONFIG.max_steps
    last: dict[str, Any] = {}
    attacks: list[tuple[str, Attack]] = []
    everyone = ReflectedAll(top, among=measured)
    if (
        threat.order == 1
    ):  # runs begin in larger balls, and small steps count at the end
        longest *= 2
        top = max(min(top, rest // longest), 1)
        everyone = ReflectedAll(top, among=measured)
        if rest - measured >= 8 * top:  # what ordering the classes a second time costs
            # From the input itself the first step of a run is the exact maximizer of the
            # linearized loss in ball and box, which solves linear models.
            short = min((rest - measured) // (4 * top), longest)
            rest -= short * top + measured
            vertex = PGD(threat, steps=short, loss=everyone, **common)
            attacks.append(("linear maximizers", vertex))
        common = common | {"larger": (3.0, 2.0)}
        last = {
            "schedule": "halving",
            "larger": (6.0, 3.0),
        }  # which leads to other valleys
    for steps, loss_name in zip(
        shares, ("cross_entropy", "dlr", "reflected_lse"), strict=True
    ):
        attacks.append((loss_name, PGD(threat, steps=steps, loss=loss_name, **common)))
    steps = min(rest // top, longest)
    restarts = max(rest // (top * steps), 1)
    final = PGD(
        threat, steps=steps, loss=everyone, restarts=restarts, **(common | last)
    )
    attacks.append(("reflected, class by class", final))
    return attacks


def _other_gradients(
    state: AttackState,
    surrogate: Any,
    honest: bool,
    budget: int,
    common: dict[str, Any],
) -> int:
    """Follow gradients besides the model's own; return what was spent on a point."""
    sources: list[tuple[str, OtherGradients]] = []
    if surrogate is not None:
        sources.append(("surrogate", surrogate_gradients(state, surrogate)))
    if not honest:
        straight = hides_gradients(state)
        if straight:
            sources.append(
                ("straight-through", OtherGradients(state.adapter, straight=True))
            )
        for sigma, samples in CONFIG.smoothing:
            smooth = OtherGradients(
                state.adapter,
                sigma * state.threat.radius,
                samples,
                straight or bool(sources),
            )
            sources.append(("smoothed gradients", smooth))
    spent = 0
    for name, source in sources:
        share = CONFIG.other_budget if honest else CONFIG.smoothed_budget
        steps = min(max(budget // (share * source.evaluations), 2), 100)
        attack = PGD(state.threat, steps=steps, momentum=0.75, **common)
        state.run(attack, source=source, name=name)
        spent += steps * source.evaluations
    return spent


def _short_steps(state: AttackState, budget: int, common: dict[str, Any]) -> int:
    """Take short steps, over which gradients that ripple are right; return what was spent."""
    steps = max(budget // CONFIG.short_budget, 2)
    for length in CONFIG.short_steps:
        attack = PGD(
            state.threat, steps=steps, step_size=length * state.threat.radius, **common
        )
        state.run(attack, name=f"steps of {length:g} radii")
    return steps * len(CONFIG.short_steps)


def search_without_gradients(
    state: AttackState, honest: bool, queries: int, common: dict[str, Any]
) -> None:
    """Search by queries alone: all of them in doubt, or where a tenth of them finds anything."""
    first = queries // CONFIG.honest_queries if honest else queries
    before = state.best.fooled.clone()
    for part, seed in ((first, 0), (queries - first, 1)):
        if part < 2 or state.status is Status.INTERRUPTED:
            break
        attack = Square(
            state.threat,
            queries=part,
            loss=state.loss,
            seed=common["seed"] + seed,
            batch_size=state.batch_size,
        )
        state.run(attack, name="Square")
        if not bool((state.best.fooled & ~before).any()):
            break
    found = state.best.fooled & ~before
    if not state.random and float(found.double().mean()) >= MIN_REPORTED_SHARE:
        state.flag("unaided", found)


def decide_by_labels(state: AttackState, queries: int, common: dict[str, Any]) -> None:
    """Attack a model that returns labels by its decisions alone."""
    attack = HopSkipJump(state.threat, queries=max(queries, 10), **common)
    state.run(attack, name="HopSkipJump")
