"""The honest default: a small fixed ensemble of attacks, cheapest first, each on what is left."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from overt._check import whole
from overt._progress import meter
from overt.results import Status
from overt.robust.attack import Attack
from overt.robust.criteria import Criterion, Misclassified
from overt.robust.losses import Loss, ReflectedAll
from overt.robust.model import Model, clean_logits, evaluation, inputs
from overt.robust.outcome import AttackResult
from overt.robust.pgd import PGD
from overt.robust.threat import Threat

LONGEST = 20
"""Steps of a run against one class; budget beyond it goes into random restarts."""


def ensemble(
    threat: Threat,
    classes: int,
    *,
    budget: int = 1000,
    rivals: int = 9,
    criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
    batch_size: int = 1024,
    seed: int = 0,
) -> tuple[Attack, ...]:
    """Return the attacks of `strongest`, which together take at most `budget` gradients a point.

    Cross-entropy gets a twelfth, the ratio of logits an eighth, the log-sum-exp reflected loss a
    sixth, and the reflected loss against each of the nearest of the `rivals` likeliest wrong
    classes what is left, one gradient each to order them included. Small budgets try fewer
    classes, large ones start again at random.
    """
    whole("budget", budget, minimum=24)
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
        PGD(
            threat,
            steps=count,
            loss=loss,
            restarts=restarts,
            criterion=criterion,
            batch_size=batch_size,
            seed=seed,
        )
        for count, loss, restarts in plan
    )


def strongest(
    model: Model,
    x: Any,
    y: Any,
    threat: Threat,
    *,
    budget: int = 1000,
    rivals: int = 9,
    criterion: Criterion = Misclassified(),  # noqa: B008  (immutable)
    start: Any = None,
    batch_size: int = 1024,
    seed: int = 0,
    warn: bool = True,
) -> AttackResult:
    """Attack with a fixed ensemble of losses; a point leaves with the first success.

    Cross-entropy finds the easy points, the ratio of logits and the log-sum-exp reflected loss
    those at which cross-entropy is blind, by different paths, and the reflected loss against each
    wrong class in turn those whose nearest wrong class is not the likeliest. Logit scale, batch
    size and order do not matter.

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
    x = inputs(model, x)
    threat = threat.within(x)
    y = torch.as_tensor(y, device=x.device)
    with evaluation(model):
        classes = clean_logits(model, x[:1], 1).shape[1]
    attacks = ensemble(
        threat,
        classes,
        budget=budget,
        rivals=rivals,
        criterion=criterion,
        batch_size=batch_size,
        seed=seed,
    )
    found: AttackResult | None = None
    left = torch.arange(len(x), device=x.device)
    with meter("strongest", len(attacks)) as bar:
        for attack in attacks:
            part = attack(
                model,
                x[left],
                y[left],
                start=None if start is None else start[left],
                # Saturation of cross-entropy is what the later attacks are for.
                warn=warn and attack is attacks[-1],
            )
            found = part if found is None else _join(found, left, part)
            left = (~found.success).nonzero().squeeze(1)
            bar.advance(note=f"robust {found.robust_accuracy:.3f}")
            if len(left) == 0 or found.status is Status.INTERRUPTED:
                break
    assert found is not None  # noqa: S101  (there is at least one attack)
    return found


def _join(found: AttackResult, rows: Any, part: AttackResult) -> AttackResult:
    """Return the result with some points replaced; all losses are those of the last attack."""
    x, success, loss, flat = (t.clone() for t in (found.x, found.success, found.loss, found.flat))
    x[rows], success[rows], loss[rows], flat[rows] = part.x, part.success, part.loss, part.flat
    return dataclasses.replace(
        found,
        x=x,
        success=success,
        loss=loss,
        flat=flat,
        gradients=found.gradients + part.gradients,
        status=part.status,
    )
