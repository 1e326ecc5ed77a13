"""The honest default: fixed stages of attacks, cheapest first, each on the points still left."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from overt._check import whole
from overt._progress import meter
from overt.results import Status
from overt.robust.attacks import models
from overt.robust.attacks.base import Attack
from overt.robust.attacks.criteria import Criterion, Misclassified
from overt.robust.attacks.gradient import PGD
from overt.robust.attacks.losses import LOSSES, Loss, ReflectedAll, objective_of
from overt.robust.attacks.results import AttackResult, warn_of_gradients, warn_of_randomness
from overt.robust.threats.base import Threat, check_threat

LEAST_BUDGET = 24
"""Gradients of a point that leave two to the stage with the fewest."""

LONGEST = 20
"""Steps of a run against one class; budget beyond it goes into random restarts."""


def stages(
    threat: Threat, classes: int, budget: int, rivals: int, **common: Any
) -> tuple[Attack, ...]:
    """Return the attacks of `strongest`, which together take at most `budget` gradients a point.

    Cross-entropy gets a twelfth, the ratio of logits an eighth, the log-sum-exp reflected loss a
    sixth, and the reflected loss against each of the nearest of the `rivals` likeliest wrong
    classes what is left, one gradient each to order them included. Small budgets try fewer
    classes, large ones start again at random. What the attacks have in common is passed on.
    """
    whole("budget", budget, minimum=LEAST_BUDGET)
    measured = min(whole("rivals", rivals), classes - 1)
    rest = max(budget - budget // 12 - budget // 8 - budget // 6 - measured, 4)
    top = max(min(measured, rest // 7), 1)
    steps = min(rest // top, LONGEST)
    plan: tuple[tuple[int, str | Loss, int], ...] = (
        (budget // 12, "cross_entropy", 1),
        (budget // 8, "dlr", 1),
        (budget // 6, "reflected_lse", 1),
        (steps, ReflectedAll(top, among=measured), max(rest // (top * steps), 1)),
    )
    return tuple(
        PGD(threat, steps=count, loss=loss, restarts=restarts, **common)
        for count, loss, restarts in plan
    )


def strongest(
    model: models.Model,
    x: Any,
    y: Any,
    threat: Threat,
    *,
    budget: int = 1000,
    rivals: int = 9,
    criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
    start: Any = None,
    batch_size: int = models.BATCH_SIZE,
    seed: int = 0,
    warn: bool = True,
) -> AttackResult:
    """Attack with a fixed ensemble of losses; a point leaves with the first success.

    Cross-entropy finds the easy points, the ratio of logits and the log-sum-exp reflected loss
    those at which cross-entropy is blind, by different paths, and the reflected loss against each
    wrong class in turn those whose nearest wrong class is not the likeliest. Logit scale, batch
    size and order do not matter. The loss that comes out is the reflected one at all points.

    Parameters
    ----------
    model, x, y
        As for any attack.
    threat
        What is allowed: L1, L2 or Linf with a radius and, if wanted, bounds.
    budget
        Gradients spent on a point at most, at least 24.
    rivals
        Wrong classes tried one by one, the likeliest, nearest first.
    criterion
        When a point counts as fooled.
    start
        Perturbed inputs to start from, shaped like x.
    batch_size, seed, warn
        As for any attack.
    """
    x = models.inputs(model, x)
    threat = check_threat(threat).within(x)
    start = models.starts(model, start, x)
    with models.evaluating(model):
        count = models.clean_logits(model, x[:1], 1).shape[1]
    y = models.classes(y, x, count)
    attacks = stages(
        threat, count, budget, rivals, criterion=criterion, batch_size=batch_size, seed=seed
    )
    found: AttackResult | None = None
    left = torch.arange(len(x), device=x.device)
    with meter("strongest", len(attacks)) as bar:
        for attack in attacks:
            attack = dataclasses.replace(attack, criterion=criterion.take(left))
            begin = None if start is None else start[left]
            part = attack(model, x[left], y[left], start=begin, warn=False)
            found = part if found is None else _join(found, left, part)
            left = (~found.success).nonzero().squeeze(1)
            bar.advance(note=f"robust {found.robust_accuracy:.3f}")
            if len(left) == 0 or found.status is Status.INTERRUPTED:
                break
    assert found is not None  # noqa: S101  (there is at least one attack)
    if warn:
        # Saturation of cross-entropy is what the later attacks are for, and not reported.
        with models.evaluating(model):
            random = warn_of_randomness(model, x)
        warn_of_gradients(found, x, threat.radius, known=found.success | random)
    with models.evaluating(model):
        f = models.all_logits(model, found.x, batch_size)
    # The reflected loss, whichever attack was the last at a point.
    aim = criterion.aims(y, count)
    loss = objective_of(LOSSES["reflected"], targeted=aim is not None)(f, y, aim)
    return dataclasses.replace(found, loss=loss)


def _join(found: AttackResult, rows: Tensor, part: AttackResult) -> AttackResult:
    """Return the result with some points replaced."""
    x, success, flat = (
        getattr(found, name).index_copy(0, rows, getattr(part, name))
        for name in ("x", "success", "flat")
    )
    broken = found.broken.index_copy(0, rows, part.broken | found.broken[rows])
    gradients = found.gradients + part.gradients
    return AttackResult(x, success, found.loss, gradients, flat, broken, part.status)
