"""Losses and steps of attacks, against formulas point by point and a loop written plainly."""

import math

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp

from overt import InputError
from overt.robust import (
    L1,
    L2,
    LOSSES,
    PGD,
    Constant,
    Cosine,
    Decay,
    Deviates,
    Effective,
    Halving,
    Linf,
    Misclassified,
    ReflectedAll,
    Targeted,
)
from overt.robust.attacks.ascent import StepSizes
from overt.robust.attacks.losses import DEVIATION, objective_of, reflected_pair


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
    "reflected_greedy": (lambda f, y: minus(best(f, y)), lambda f, y: minus(-best(f, y))),
    "reflected_lse": (lambda f, y: minus(summed(f, y)), lambda f, y: minus(-summed(f, y))),
}


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_their_formulas(name, classes):
    f, y = 2 * points(9, classes, seed=1), torch.arange(9) % classes
    aim = (y + 1) % classes
    for k, targeted in enumerate((False, True)):
        found = objective_of(LOSSES[name], targeted=targeted)(f, y, aim)
        own = aim if targeted else y
        expected = [FORMULAS[name][k](row, int(c)) for row, c in zip(f.tolist(), own, strict=True)]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    pair = [minus(row[a] - row[b]) for row, a, b in zip(f.tolist(), y, aim, strict=True)]
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
        where = criterion.aims(y, 3)
        assert criterion.met(f, y, aim if where is None else where).tolist() == expected
        assert 0 < sum(expected) < 30
    wanted = points(30, 3, seed=3)
    away = (f - wanted).numpy()
    np.testing.assert_allclose(DEVIATION.away(f, wanted).numpy(), (away**2).sum(1))
    met = Deviates(1.5).met(f, wanted, y).numpy()
    assert np.array_equal(met, np.abs(away).max(1) > 1.5)
    for target, message in ((3, "0..2"), (-1, "0..2"), ([0, 1], "one per point")):
        with pytest.raises(InputError, match=message):
            Targeted(target).aims(y, 3)


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


def test_lengths_of_steps_are_their_formulas():
    np.testing.assert_allclose(Constant().lengths(2.0, 5), [1.0] * 5)
    np.testing.assert_allclose(Constant(0.3).lengths(2.0, 4), [0.3] * 4)
    np.testing.assert_allclose(Decay(0.8, 0.5, 2).lengths(9.0, 5), [0.8, 0.8, 0.4, 0.4, 0.2])
    np.testing.assert_allclose(Decay().lengths(2.0, 11), [2.0] * 10 + [0.4])
    np.testing.assert_allclose(Cosine().lengths(2.0, 4), [2, 1 + math.sqrt(0.5), 1, 1 - 0.5**0.5])
    np.testing.assert_allclose(Halving(0.7).lengths(2.0, 3), [0.7] * 3)
    np.testing.assert_allclose(Halving().lengths(2.0, 3), [2.0] * 3)


def plainly(model, x, y, threat, loss, lengths, momentum, enough):
    """One point at a time: x as numbers, gradients by autograd, the best iterate kept."""
    box = None if threat.bounds is None else tuple(b - x for b in map(float, threat.bounds))
    delta = previous = torch.zeros_like(x)
    reached = -math.inf, None, None
    steps, factor, gains, since, halved = len(lengths), 1.0, 0, 0, True
    period, shortest, shrink = (max(int(s * steps), 1) for s in (0.22, 0.06, 0.03))
    for step in range(steps):
        moved = (x + delta).requires_grad_()
        value = loss.away(model(moved), y)
        gradient = torch.autograd.grad(value.sum(), moved)[0]
        better = value.item() > reached[0]
        if better:
            reached = value.item(), delta, gradient
        if step > 0 and enough:
            gains, since = gains + better, since + 1
            if since >= period:
                stalled = gains < enough * since or (gains == 0 and not halved)
                if stalled:
                    factor, delta, gradient, previous = (
                        factor / 2,
                        reached[1],
                        reached[2],
                        reached[1],
                    )
                halved, gains, since = stalled, 0, 0
                period = max(period - shrink, shortest)
        further = delta + momentum * (delta - previous)
        direction = threat.ascent(gradient.clone(), box)
        previous, delta = delta, threat.project(further + lengths[step] * factor * direction, box)
    value = loss.away(model(x + delta), y).item()
    return reached[1] if value <= reached[0] else delta


WALKS = {
    "cosine": (L2(0.8), Cosine(), 0.0),
    "momentum": (L2(0.8), Cosine(), 0.75),
    "box": (L2(0.8, bounds=(-1.0, 1.5)), Cosine(), 0.4),
    "signs": (Linf(0.3, bounds=(-1.0, 1.5)), Constant(), 0.0),
    "decay": (Linf(0.3), Decay(every=4), 0.3),
    "halving": (L2(0.8), Halving(), 0.75),
    "halving-signs": (Linf(0.3), Halving(0.5), 0.5),
    "sum": (L1(1.0, bounds=(-1.0, 1.5)), Halving(), 0.0),
}


@pytest.mark.parametrize("name", ["cross_entropy", "margin", "reflected_lse"])
@pytest.mark.parametrize("walk", WALKS)
def test_an_attack_is_the_loop_written_plainly(walk, name):
    threat, schedule, momentum = WALKS[walk]
    model, x = small_mlp(), points(6, 6, seed=4).clamp(-1, 1.5)
    y = model(x).argmax(1)
    attack = PGD(threat, steps=25, schedule=schedule, momentum=momentum, loss=name,
                 early_exit=False)  # fmt: skip
    # Fooled iterates come first: a criterion that none meets leaves the loss alone to decide.
    attack = type(attack)(**{**vars(attack), "criterion": Effective(1e9)})
    found = attack(model, x, y, warn=False).x
    lengths = schedule.lengths(threat.radius, 25)
    for i in range(6):
        delta = plainly(model, x[i : i + 1], y[i : i + 1], threat, LOSSES[name], lengths, momentum,
                        schedule.enough)  # fmt: skip
        np.testing.assert_allclose(found[i], (x[i] + delta[0]).detach(), atol=1e-7)


def test_progress_is_looked_at_when_croce_and_hein_say():
    """p_(j+1) = p_j + max(p_j - p_(j-1) - 0.03, 0.06) of all steps, from p_1 = 0.22."""
    sizes = StepSizes(Halving(), 0.5, 100, torch.zeros(3, 2))
    seen = {}
    for step in range(1, 101):
        improved = torch.tensor([True, False, step % 3 > 0])  # always, never, in two of three
        if (back := sizes.observe(improved)) is not None:
            seen[step] = back.tolist()
    assert list(seen) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert all(back[:2] == [False, True] for back in seen.values())
    assert seen[22] == [False, True, True]
    assert sizes.size(0)[:2].flatten().tolist() == [0.5, 0.5**9]


def test_larger_balls_come_first_and_take_three_tenths_each():
    """The slope is 1 everywhere, so that iterates fill whatever ball they are in."""
    sizes = []

    def model(x):
        if x.requires_grad:
            sizes.append(float((x.detach() - 5).abs().max()))
        return torch.stack([x[:, 0], 100 - x[:, 0]], 1)

    attack = PGD(Linf(1.0), steps=20, larger=(3.0, 2.0), schedule=Constant(1.0), early_exit=False)
    found = attack(model, torch.full((1, 1), 5.0), [1])
    last = sizes[-20:]
    assert found.gradients == 20
    assert last[3:6] == [3.0] * 3
    assert max(last[6:12]) == 2.0
    assert last[12:] == [1.0] * 8


def test_a_ball_of_radius_zero_is_a_point():
    v = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    for ball in (L1(0.0), L2(0.0), Linf(0.0)):
        assert ball.project(v.clone(), None).tolist() == [[0.0, 0.0]] * 2


def test_probabilities_of_zero_have_finite_logits():
    def model(x):
        return torch.stack([(x[:, 0] > 0).float(), (x[:, 0] <= 0).float()], 1) + 0 * x[:, :1]

    found = PGD(Linf(0.1), steps=3)(model, torch.ones(2, 1), [0, 0], warn=False)
    assert torch.isfinite(torch.as_tensor(found.loss)).all()


class Broken(torch.autograd.Function):
    """The identity, with slopes that are not numbers at the first three features."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        odd = torch.tensor([math.nan, math.inf, -math.inf], dtype=g.dtype)
        return torch.cat([odd.expand(len(g), 3), g[:, 3:]], 1)


@pytest.mark.parametrize(
    ("schedule", "normalize"), [(Halving(), True), (Halving(), False), (Constant(0.4), False)]
)
def test_slopes_that_are_not_numbers_move_nothing(schedule, normalize):
    """Where a point is lost at first it escapes; from there on only the others climb."""
    x, y, threat = points(4, 6, seed=1), torch.zeros(4, dtype=torch.int64), Linf(0.5)
    w = torch.tensor([0.0, 0.0, 0.0, 3.0, -2.0, 1.0]).double()
    walk = PGD(threat, steps=12, schedule=schedule, normalize=normalize, loss="margin", seed=3,
               momentum=0.0)  # fmt: skip

    def model(v):
        f = Broken.apply(v) @ w + 100
        return torch.stack([f, 0 * f], 1)

    found = walk(model, x, y, warn=False)
    moved = found.x - x
    assert bool(found.flat.all())
    torch.testing.assert_close(moved[:, :3], threat.region(x).draw(3)[:, :3])
    torch.testing.assert_close(moved[:, 3:], -0.5 * w[3:].sign().expand(4, 3))
