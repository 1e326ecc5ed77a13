"""Losses and criteria against their formulas, row by row."""

import math

import numpy as np
import pytest
import torch
from robust_cases import points

from overt import InputError
from overt.robust import (
    LOSSES,
    Deviates,
    Effective,
    Misclassified,
    ReflectedAll,
    Targeted,
)
from overt.robust.losses import DEVIATION, objective_of, reflected_pair


def minus(z):
    """l_-(z) = -log(1 + e^z)."""
    return -math.log1p(math.exp(z))


def best(f, y):
    return f[y] - max(f[j] for j in range(len(f)) if j != y)


def summed(f, y):
    return f[y] - math.log(sum(math.exp(f[j]) for j in range(len(f)) if j != y))


def ratio(f, y):
    top = sorted(f, reverse=True)
    return best(f, y) / (top[0] - top[2]) if len(f) > 2 else best(f, y)


FORMULAS = {  # (away from y, toward a target)
    "cross_entropy": (
        lambda f, y: -math.log(math.exp(f[y]) / sum(map(math.exp, f))),
        lambda f, y: math.log(math.exp(f[y]) / sum(map(math.exp, f))),
    ),
    "dlr": (lambda f, y: -ratio(f, y), ratio),
    "margin": (lambda f, y: -best(f, y), best),
    "reflected": (lambda f, y: minus(best(f, y)), lambda f, y: minus(-best(f, y))),
    "reflected_all": (lambda f, y: minus(best(f, y)), lambda f, y: minus(-best(f, y))),
    "reflected_greedy": (
        lambda f, y: minus(best(f, y)),
        lambda f, y: minus(-best(f, y)),
    ),
    "reflected_lse": (
        lambda f, y: minus(summed(f, y)),
        lambda f, y: minus(-summed(f, y)),
    ),
}


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_their_formulas(name, classes):
    f, y = 2 * points(9, classes, seed=1), torch.arange(9) % classes
    aim = (y + 1) % classes
    for k, targeted in enumerate((False, True)):
        found = objective_of(LOSSES[name], targeted=targeted)(f, y, aim)
        own = aim if targeted else y
        expected = [
            FORMULAS[name][k](row, int(c))
            for row, c in zip(f.tolist(), own, strict=True)
        ]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    pair = [
        minus(row[a] - row[b]) for row, a, b in zip(f.tolist(), y, aim, strict=True)
    ]
    np.testing.assert_allclose(reflected_pair(f, y, aim).numpy(), pair, rtol=1e-12)


def test_deviation_and_criteria_are_their_definitions():
    f, y = points(30, 3, seed=2), torch.arange(30) % 3
    rows, aim = list(zip(f.tolist(), y.tolist(), strict=True)), (y + 1) % 3
    meets = {
        Misclassified(): [max(r) != r[c] for r, c in rows],
        Targeted(1): [max(r) == r[1] for r, c in rows],
        Effective(0.4): [best(r, c) <= -0.4 for r, c in rows],
    }
    for criterion, expected in meets.items():
        where = criterion.targets(y, 3)
        assert criterion.met(f, y, aim if where is None else where).tolist() == expected
        assert 0 < sum(expected) < 30
    wanted = points(30, 3, seed=3)
    away = (f - wanted).numpy()
    np.testing.assert_allclose(DEVIATION.away(f, wanted).numpy(), (away**2).sum(1))
    met = Deviates(1.5).met(f, wanted, y).numpy()
    assert np.array_equal(met, np.abs(away).max(1) > 1.5)
    for target, message in ((3, "0..2"), (-1, "0..2"), ([0, 1], "one per point")):
        with pytest.raises(InputError, match=message):
            Targeted(target).targets(y, 3)


@pytest.mark.parametrize("steps", [1, 4, 9, 14, 15, 20, 50, 100])
@pytest.mark.parametrize("classes", [2, 3, 4, 10, 100])
def test_plans_spend_all_steps_and_no_more(steps, classes):
    plan = LOSSES["reflected"].plan(steps, classes)
    assert plan.steps + plan.rivals * plan.each + plan.measured == steps
    assert plan.rivals <= min(3, classes - 1)
    assert plan.measured <= min(9, classes - 1)
    if plan.rivals:
        assert plan.rivals >= 2
        assert plan.each >= 5
        assert plan.steps >= steps // 3
    assert bool(plan.rivals) == (steps >= 20 and classes >= 3)
    every = LOSSES["reflected_all"].plan(steps, classes)
    assert (every.steps, every.rivals, every.each) == (0, classes - 1, steps)
    some = ReflectedAll(top=2, among=5).plan(steps, classes)
    assert (some.rivals, some.each) == (min(2, classes - 1), steps)
    assert some.measured == min(5, classes - 1)
    assert LOSSES["margin"].plan(steps, classes).rivals == 0
