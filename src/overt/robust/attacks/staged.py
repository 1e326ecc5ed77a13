"""The honest default: fixed stages of attacks, cheapest first, each on the points still left."""

from __future__ import annotations

from typing import Any, Unpack

from overt._check import InputError, instance, whole
from overt._progress import meter
from overt.results import Status
from overt.robust.attacks import inputs, models
from overt.robust.attacks.base import Attack
from overt.robust.attacks.criteria import Criterion, Misclassified
from overt.robust.attacks.gradient import PGD, Halving
from overt.robust.attacks.losses import DEVIATION, LOSSES, Loss, ReflectedAll
from overt.robust.attacks.points import Guide
from overt.robust.attacks.queries import Square
from overt.robust.attacks.results import NOTEWORTHY, AttackResult
from overt.robust.attacks.search import Search
from overt.robust.threats import Threat, check_threat

LEAST_BUDGET = 24
"""Gradients of a point that leave two to the stage with the fewest."""

LONGEST = 20
"""Steps of a run against one class; budget beyond it goes into random restarts."""

FEW = 10
"""Share of the queries, as its inverse, that are spent where gradients tell the truth."""

SMOOTH = ((0.5, 4), (0.1, 4))
"""Sizes, in radii, and numbers of the random moves that masked gradients are averaged over."""


def stages(
    threat: Threat, classes: int, budget: int, rivals: int, **common: Any
) -> tuple[Attack, ...]:
    """Return the attacks by gradients, which together take at most `budget` of them a point.

    Cross-entropy gets a twelfth, the ratio of logits an eighth, the log-sum-exp reflected loss a
    sixth, and the reflected loss against each of the nearest of the `rivals` likeliest wrong
    classes what is left, one gradient each to order them included. Small budgets try fewer
    classes, large ones start again at random. What the attacks have in common is passed on.
    """
    measured = min(whole("rivals", rivals), classes - 1)
    rest = max(budget - budget // 12 - budget // 8 - budget // 6 - measured, 4)
    top = max(min(measured, rest // 7), 1)
    longest, last = LONGEST, dict[str, Any]()
    if threat.order == 1:  # runs begin in larger balls, and small steps count at the end
        longest, common = 2 * LONGEST, {"larger": (3.0, 2.0)} | common
        top = max(min(top, rest // longest), 1)
        last = {"schedule": Halving(), "larger": (6.0, 3.0)}  # which leads to other valleys
    begun: tuple[Attack, ...] = ()
    if threat.order == 1 and rest - measured >= 8 * top:  # to order the classes a second time
        # From the input itself the first step of a run is the exact maximizer of the linearized
        # loss in ball and box, which solves linear models.
        short = min((rest - measured) // (4 * top), longest)
        rest -= short * top + measured
        first = {name: value for name, value in common.items() if name != "larger"}
        begun = (PGD(threat, steps=short, loss=ReflectedAll(top, among=measured), **first),)
    steps = min(rest // top, longest)
    plan: tuple[tuple[int, str | Loss, int], ...] = (
        (budget // 12, "cross_entropy", 1),
        (budget // 8, "dlr", 1),
        (budget // 6, "reflected_lse", 1),
        (steps, ReflectedAll(top, among=measured), max(rest // (top * steps), 1)),
    )
    return begun + tuple(
        PGD(threat, steps=count, loss=loss, restarts=restarts, **(common | extra))
        for (count, loss, restarts), extra in zip(plan, ({}, {}, {}, last), strict=True)
    )


def strongest(
    model: models.Model, x: Any, y: Any = None, threat: Threat | None = None, *, budget: int = 1000,
    queries: int = 1500, rivals: int = 9, surrogate: models.Model | None = None,
    criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
    start: Any = None, batch_size: int = models.BATCH_SIZE, seed: int = 0, warn: bool = True,
    **run: Unpack[models.Door],
) -> AttackResult:  # fmt: skip
    """Attack with a fixed ensemble of losses; a point leaves with the first success.

    Cross-entropy finds the easy points, the ratio of logits and the log-sum-exp reflected loss
    those at which cross-entropy is blind, by different paths, and the reflected loss against each
    wrong class in turn those whose nearest wrong class is not the likeliest. A search without
    gradients follows, short where gradients tell the truth and long where they do not; there
    rounding is also passed straight through, and gradients are averaged over random moves. Logit
    scale, batch size and order do not matter. The loss that comes out is the reflected one at all
    points.

    Parameters
    ----------
    model, x, y
        As for any attack.
    threat
        What is allowed: L0, L1, L2 or Linf with a radius and, if wanted, bounds.
    budget
        Gradients spent on a point at most, at least 24.
    queries
        Evaluations spent on a point at most in the search without gradients; a tenth of them where
        gradients tell the truth, and those that the budget has left on top where they do not.
    rivals
        Wrong classes tried one by one, the likeliest, nearest first.
    surrogate
        A model whose gradients are followed as well, at up to half of the budget on top: the model
        without what masks its gradients, or one trained to do the same.
    criterion
        When a point counts as fooled.
    start
        Perturbed inputs to start from, shaped like x.
    batch_size, seed, warn, output, mean, std, samples
        As for any attack.
    """
    with begin(model, x, y, threat, criterion, batch_size, run) as search:
        run_stages(search, budget, queries, rivals, surrogate, seed, start)
        return search.result(warn=warn)


def begin(
    model: models.Model, x: Any, y: Any, threat: Threat | None, criterion: Criterion,
    batch_size: int, run: models.Door, loss: str = "reflected_greedy",
) -> Search:  # fmt: skip
    """Return a search whose perturbations are compared by this loss."""
    instance("criterion", criterion, Criterion, "a Criterion")
    x, y, threat = inputs.examples(x, y, threat)
    chosen = DEVIATION if criterion.raw else LOSSES[loss]
    size = whole("batch_size", batch_size)
    return Search(model, x, y, check_threat(threat), criterion, chosen, size, run)


def run_stages(
    search: Search, budget: int, queries: int, rivals: int, surrogate: Any, seed: int, start: Any
) -> None:
    """Run the stages of `strongest` on the points that are left."""
    whole("budget", budget, minimum=LEAST_BUDGET)
    whole("queries", queries, minimum=0)
    if search.threat.radius == 0 or len(search.left) == 0:
        return
    common: dict[str, Any] = {"seed": seed, "batch_size": search.batch_size}
    honest = search.diagnose()
    given = budget - 1 if honest else max(budget // 4, LEAST_BUDGET)
    if search.criterion.raw:  # from random starts, since |f - y| has no slope at f = y
        runs = {"steps": given // 4, "restarts": 4, "random_start": True} | common
        attacks: tuple[Attack, ...] = (PGD(search.threat, **runs),)
    else:
        attacks = stages(search.threat, search.clean.shape[1], given, rivals, **common)
    with meter("strongest", len(attacks) + 2) as bar:
        for attack in attacks:
            search.stage(attack, start=start)
            bar.advance(note=f"robust {1 - float(search.best.fooled.double().mean()):.3f}")
        for guide in guides(search, surrogate, honest):
            steps = min(max(budget // (3 * guide.draws), 2), 100)
            search.stage(PGD(search.threat, steps=steps, momentum=0.75, **common), guide=guide)
            given += steps * guide.draws
        bar.advance()
        unaided(search, honest, queries + max(budget - given, 0) * (queries > 0), common)
        bar.advance()


def guides(search: Search, surrogate: Any, honest: bool) -> list[Guide]:
    """Return whose gradients to follow besides the model's own."""
    found = []
    if surrogate is not None:
        given = (search.x, *search.subject.context)
        other = models.Subject(surrogate, given if len(given) > 1 else given[0], search.door)
        classes = other.clean_logits(search.batch_size).shape[1]
        if classes != search.clean.shape[1]:
            raise InputError(
                f"surrogate must return as many logits as the model, {search.clean.shape[1]}, got "
                f"{classes}"
            )
        found.append(Guide(other))
    if honest:
        return found
    if search.hides():
        found.append(Guide(search.subject, straight=True))
    straight = bool(found)
    for sigma, draws in SMOOTH:
        found.append(Guide(search.subject, sigma * search.threat.radius, draws, straight=straight))
    return found


def unaided(search: Search, honest: bool, queries: int, common: dict[str, Any]) -> None:
    """Search without gradients, on with all queries if the first few of them gain."""
    common = {"seed": common["seed"], "batch_size": common["batch_size"]}
    parts = (queries // FEW, queries - queries // FEW) if honest else (queries,)
    before, n = search.best.fooled.clone(), len(search.x)
    for k, part in enumerate(parts):
        if part < 2 or search.status is Status.INTERRUPTED:
            break
        common["seed"] += k
        search.stage(Square(search.threat, queries=part, loss=search.loss, **common))
        if not bool((search.best.fooled & ~before).any()):
            break
    found = search.best.fooled & ~before
    if not search.random and int(found.sum()) >= max(NOTEWORTHY * n, 1):
        search.note("unaided", found)
