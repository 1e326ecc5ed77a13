"""Losses against their formulas, row by row."""

import math

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp
from torch.nn.functional import cross_entropy

from overt import InputError
from overt.robust import L2, LOSSES, PGD, ReflectedAll
from overt.robust.losses import objective_of, reflected_pair, saturated


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


@pytest.mark.parametrize("steps", [1, 9, 14, 15, 20, 50, 100])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_plans_spend_all_steps_and_no_more(steps, classes):
    plan = LOSSES["reflected"].plan(steps, classes)
    assert plan.steps + plan.rivals * plan.each == steps
    assert plan.rivals <= min(3, classes - 1)
    if plan.rivals:
        assert plan.rivals >= 2
        assert plan.each >= 5
        assert plan.steps >= steps // 3
    every = LOSSES["reflected_all"].plan(steps, classes)
    assert (every.steps, every.rivals, every.each) == (0, classes - 1, steps)
    some = ReflectedAll(top=2).plan(steps, classes)
    assert (some.rivals, some.each) == (min(2, classes - 1), steps)


def test_saturation_depends_on_the_number_format():
    margins = torch.stack([torch.full((3,), 20.0), torch.zeros(3)], 1)
    zero = torch.zeros(3, dtype=torch.long)
    assert saturated(margins, zero).all()
    assert not saturated(margins.double(), zero).any()


def test_own_losses_are_ascended_as_named_ones():
    net, x = small_mlp(), points(30, 6)
    y = net(x).argmax(1)
    own = PGD(L2(0.8), steps=8, loss=lambda f, t: cross_entropy(f, t, reduction="none"))
    named = PGD(L2(0.8), steps=8, loss="cross_entropy")
    assert torch.equal(own(net, x, y).x, named(net, x, y).x)
    with pytest.raises(InputError, match="one number for each of the 30 points"):
        PGD(L2(0.8), loss=cross_entropy)(net, x, y)
