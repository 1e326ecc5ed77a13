"""Searches of attacks, each against the same search written plainly, one point at a time."""

import math

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp

from overt.robust import (
    L0,
    L1,
    L2,
    PGD,
    Constant,
    Linf,
    Misclassified,
    Square,
    Targeted,
    closest,
    strongest,
)
from overt.robust.attacks import queries
from overt.robust.attacks.staged import begin, stages
from overt.robust.keyed_random import keys_of, uniform


def lead(model, x, y):
    """max_j f_j - f_y and its slope, what is not finite left out."""
    x = x.detach().requires_grad_()
    f = model(x[None])[0]
    value = torch.stack([f[j] - f[y] for j in range(len(f)) if j != y]).max()
    return value.item(), torch.autograd.grad(value, x)[0].nan_to_num(0, 0, 0)


def walked(model, x, y, threat, steps):
    """Distance to the nearest point seen to be fooled, with a radius that follows the boundary."""
    low, high = threat.bounds if threat.bounds is not None else (-math.inf, math.inf)
    one, delta, reach = threat.with_radius(1.0), torch.zeros_like(x), threat.radius
    near, nearest, known = math.inf, None, False

    def size(v, way=threat.size):
        return float(way(v[None]))

    for step in range(steps):
        fall = (1 + math.cos(math.pi * step / steps)) / 2
        value, gradient = lead(model, x + delta, y)
        rate = 0.001 + 0.049 * fall
        if value > 0:
            known = True
            if size(delta) < near:
                near, nearest = size(delta), delta
            reach = min(reach, size(delta)) * (1 - rate)
        else:
            guess = size(delta) - value / size(gradient, threat.dual)
            reach = (reach if known else guess) * (1 + rate)
        reach = min(reach, near, threat.radius)
        box = None
        if threat.bounds is not None:
            box = ((low - x)[None] / reach, (high - x)[None] / reach)
        direction = one.ascent(gradient[None].clone(), box)
        delta = one.project(delta / reach + (0.01 + 0.99 * fall) * direction, box)[0] * reach
    if nearest is None:
        return math.inf
    short, long = 0.0, 1.0
    for _ in range(12):
        middle = (short + long) / 2
        fooled = lead(model, x + middle * nearest, y)[0] > 0
        short, long = (short, middle) if fooled else (middle, long)
    return near * long


@pytest.mark.parametrize("kind", [L1, L2, Linf])
def test_a_coordinate_without_a_finite_slope_does_not_end_the_walk(kind):
    W = points(2, 6, seed=1)

    def model(x, size=1e-9):
        f, rest = x @ W.T, x[:, 0].abs().sqrt() + x[:, 1].sqrt() - x[:, 2].sqrt()
        return torch.stack([f[:, 0], f[:, 1] + size * rest], 1)

    x = points(2, 6, seed=2).abs().clamp(max=1)
    x[:, :3] = 0
    y, threat = model(x).argmax(1), kind(9.0, (0.0, 1.0))
    found = closest(model, x, y, threat, steps=15, rivals=0)
    expected = [walked(model, x[i], int(y[i]), threat, 15) for i in range(2)]
    np.testing.assert_allclose(found.distance, expected, rtol=1e-6)
    assert bool(found.success.all())


def parts(*given, **more):
    found = stages(*given, **more)
    losses = [a.loss if isinstance(a.loss, str) else (a.loss.top, a.loss.among) for a in found]
    ends = [(a.restarts, a.larger, type(a.schedule).__name__) for a in found]
    return [(a.steps, loss, *end) for a, loss, end in zip(found, losses, ends, strict=True)]


def test_stages_share_the_budget():
    """A twelfth, an eighth, a sixth, and what is left for runs of at most 20 against a class."""
    first = [(83, "cross_entropy", 1), (125, "dlr", 1), (166, "reflected_lse", 1)]
    # 1000 - 83 - 125 - 166 - 9 measured = 617 = 9 classes x 20 steps x 3 starts and some.
    found = parts(Linf(0.1), 10, 1000, 9, seed=3)
    assert found == [(*p, (), "Cosine") for p in [*first, (20, (9, 9), 3)]]
    assert parts(L2(0.1), 3, 1000, 9)[3][:3] == (20, (2, 2), 624 // 40)
    assert parts(L2(0.1), 100, 1000, 4)[3][:3] == (20, (4, 4), 622 // 80)
    # 60 - 5 - 7 - 10 - 9 = 29 is enough for four classes of seven steps.
    assert [p[:3] for p in parts(Linf(0.1), 10, 60, 9)] == [
        (5, "cross_entropy", 1), (7, "dlr", 1), (10, "reflected_lse", 1), (7, (4, 9), 1)
    ]  # fmt: skip
    # 24 - 2 - 3 - 4 - 9 = 6 is less than seven, for one class.
    assert parts(Linf(0.1), 10, 24, 9)[3][:3] == (6, (1, 9), 1)
    assert parts(Linf(0.1), 20, 24, 15)[3][:3] == (4, (1, 15), 1)
    wide = parts(L1(0.1), 10, 1000, 9)
    larger = [(3.0, 2.0)] * 3
    assert [p[3:] for p in wide] == [
        ((), "Cosine"), *((each, "Cosine") for each in larger), ((6.0, 3.0), "Halving")
    ]  # fmt: skip
    for threat in (L0(3, (0.0, 1.0)), L1(1.0), L2(1.0), Linf(1.0)):
        common = stages(threat, 3, 50, 2, seed=3, batch_size=7)
        assert all((a.seed, a.batch_size, a.threat) == (3, 7, threat) for a in common)


def windowed(threat, box, delta, draw, share, shape):
    """One window of one point, cell by cell."""
    c, h, w = shape
    tall = min(max(round(math.sqrt(share * h * w)), 1), h)
    broad = min(max(round(share * h * w / tall), 1), w)

    def cells(a, b):
        top, left = math.floor(a * (h - tall + 1)), math.floor(b * (w - broad + 1))
        return {(i, j): (i - top, j - left)
                for i in range(top, top + tall) for j in range(left, left + broad)}  # fmt: skip

    here, there = cells(draw[0], draw[1]), cells(draw[2], draw[3])
    old, new = delta.view(shape), delta.view(shape).clone()
    bump, kept = torch.zeros(shape).double(), torch.zeros(shape).double()
    for k in range(c):
        sign = 1 if draw[4 + k] > 0.5 else -1
        for i, j in there:
            new[k, i, j] = old[k, i, j] if threat.order == math.inf else 0
        for (i, j), (a, b) in here.items():
            if threat.order == math.inf:
                new[k, i, j] = sign * threat.radius
            elif threat.order == 0:
                at = (k * h + i) * w + j
                new[k, i, j] = 1.5 * box[sign > 0][at]
            else:
                new[k, i, j], kept[k, i, j] = 0, old[k, i, j]
                down = 1 - abs(2 * (a + 0.5) / tall - 1)
                across = 1 - abs(2 * (b + 0.5) / broad - 1)
                bump[k, i, j] = sign * (min(down, across) + 0.05)
    if threat.order in (0, math.inf):
        return new.flatten()

    def unit(v):
        size = float(threat.size(v.flatten()[None]))
        return v / size if size else v

    p = threat.order
    held = max(threat.radius**p - float(threat.size(new.flatten()[None])) ** p, 0) ** (1 / p)
    return (new + held * unit(unit(bump) + unit(kept))).flatten()


@pytest.mark.parametrize("shape", [(1, 1, 7), (2, 3, 4), (1, 6, 3)])
@pytest.mark.parametrize("threat", [L0(5), L1(1.3), L2(0.9), Linf(0.4), Linf(1.4)], ids=str)
def test_windows_are_filled_cell_by_cell(threat, shape):
    width = math.prod(shape)
    x = points(9, width, seed=5).clamp(-1, 1.5)
    for bounds, scale in ((None, 0.3), ((-1.0, 1.5), 0.3), ((-1.0, 1.5), 0.0)):
        if bounds is None and threat.order == 0:
            continue
        region = type(threat)(threat.radius, bounds).region(x)
        delta = region.project(scale * points(9, width, seed=6))
        keys = keys_of(x, 11)
        box = region.delta_bounds or (torch.full_like(x, -1.0), torch.ones_like(x))
        for step, share in ((1, 0.8), (6, 0.25), (40, 0.01)):
            draw = uniform(keys, 4 + shape[0], x, stream=step + 8).tolist()
            found = queries._window(region, delta, keys, step, share, shape)
            plain = [windowed(threat, (box[0][i], box[1][i]), delta[i], draw[i], share, shape)
                     for i in range(9)]  # fmt: skip
            np.testing.assert_allclose(found, region.project(torch.stack(plain)), atol=1e-12)


def test_windows_shrink_at_fixed_shares_of_the_queries(monkeypatch):
    shares, real = {}, queries._window

    def window(region, delta, keys, step, share, shape):
        shares[step] = share, shape
        return real(region, delta, keys, step, share, shape)

    monkeypatch.setattr(queries, "_window", window)
    model, x = small_mlp(), points(2, 6).view(2, 3, 1, 2)
    flat = torch.nn.Sequential(torch.nn.Flatten(), model)
    y = flat(x).argmax(1)
    found = Square(Linf(1e-3), queries=100)(flat, x, y, warn=False)
    halved = [0.1, 0.5, 2, 5, 10, 20, 40, 60, 80]
    assert shares == {
        step: (0.8 / 2 ** sum(step > k for k in halved), (3, 1, 2)) for step in range(1, 100)
    }
    assert found.queries == 200


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (2, 3, 4, 2)])
def test_first_windows_are_columns_of_one_sign(shape):
    planes = {1: (1, 1, 5), 2: (1, 2, 3), 3: (2, 3, 4), 4: (2, 3, 8)}[len(shape)]
    assert queries._planes(torch.Size(shape)) == planes
    c, h, w = planes
    x = points(4, c * h * w, seed=7)
    keys = keys_of(x, 3)
    sign = (uniform(keys, c * w, x) > 0.5).double().view(4, c, 1, w) * 2 - 1
    wide = sign.expand(4, c, h, w).flatten(1)
    for threat in (L1(0.7), L2(0.7), Linf(0.7), L1(99.0), L2(99.0), Linf(99.0)):
        found = queries._stripes(threat.region(x), keys, planes)
        plain = wide * threat.radius / threat.size(wide)[:, None]
        np.testing.assert_allclose(found, plain, rtol=1e-12)
    few = queries._stripes(L0(2, (-9.0, 9.0)).region(x), keys, planes)
    assert np.array_equal((few != 0).sum(1), [2] * 4)
    assert set(few.abs().unique().tolist()) == {0.0, 1.0}


PLANS = [  # (loss, early exit, target, gradients of a point that is not fooled in two runs)
    ("reflected", True, None, 80 - 3), ("reflected", False, None, 80), ("reflected", True, 3, 80),
    ("reflected_all", True, None, 6 * 40 + 3), ("reflected_all", False, None, 6 * 40 + 3),
    ("reflected_all", True, 3, 80), ("margin", False, None, 80),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "early", "target", "each"), PLANS)
def test_a_run_spends_what_its_loss_plans(loss, early, target, each):
    model, x = small_mlp(classes=4), points(6, 6)
    y = model(x).argmax(1)
    given = {"early_exit": early} if target is None else {"criterion": Targeted(target)}
    x, y = (x, y) if target is None else (x[y != target], y[y != target])
    found = PGD(L2(1e-6), steps=40, loss=loss, restarts=2, **given)(model, x, y, warn=False)
    assert found.gradients == len(x) * each
    greedy = PGD(L2(1e-6), steps=40, loss="reflected_greedy", restarts=2, **given)
    if loss == "reflected" and (target is not None or not early):
        assert torch.equal(found.x, greedy(model, x, y, warn=False).x)
    against = {"reflected": early, "reflected_all": True}.get(loss, False) and target is None
    assert found.queries == (2 * 3 * len(x) if against else 0)  # to compare by the common loss


def test_starts_are_given_then_drawn_by_turns():
    """One step of length 0 stays where it starts: the draw of the largest loss is what is left."""
    W = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]]).double()
    x, y = points(5, 3, seed=3) + torch.tensor([5.0, 9.0, -5.0]), torch.zeros(5, dtype=torch.int64)
    threat, seed = L2(0.5), 4

    def leads(delta):
        return (delta @ (W[1] - W[0])).numpy()

    region = threat.region(x)
    draws = [leads(region.draw(seed + k, extreme=k % 2 == 1)) for k in range(4)]
    given = leads(points(5, 3, seed=8) * 0.1)
    for start in (None, x + 0.1 * points(5, 3, seed=8), x + 10 * (W[1] - W[0])):
        for fresh in (False, True):
            walk = PGD(threat, steps=1, schedule=Constant(1e-12), loss="margin", restarts=4,
                       random_start=fresh, seed=seed)  # fmt: skip
            found = walk(lambda v: v @ W.T, x, y, start=start, warn=False)
            first = draws[0] if fresh else leads(torch.zeros(5, 3).double())
            if start is not None:
                far = float((start - x).norm(dim=1).max()) > 1
                first = given if not far else np.full(5, 0.5 * 6**0.5)
            best = np.max([first, *draws[1:]], 0)
            np.testing.assert_allclose(leads(found.x - x), best, atol=1e-9)


def test_success_is_scored_by_finite_logits_alone():
    outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, math.inf], [-math.inf, 0.0],
                            [math.nan, 1.0]]).double()  # fmt: skip
    x, y = torch.zeros(5, 1).double(), torch.zeros(5, dtype=torch.int64)
    search = begin(lambda v: outputs[v[:, 0].long()], x, y, L2(9.0), Misclassified(), 2, {})
    after, rate = search.score(torch.arange(5.0).double()[:, None])
    assert torch.equal(after[:4], outputs[:4])
    assert rate.tolist() == [0, 1, 0, 0, 0]


def test_random_models_get_all_steps_against_the_likeliest_class():
    torch.manual_seed(0)
    model, x = small_mlp(classes=4), points(6, 6)
    noisy = lambda v: 100 * model(v) + 0.5 * torch.randn(len(v), 4)  # noqa: E731
    y = model(x).argmax(1)
    sure = model(x).sort(1).values.diff(dim=1)[:, -1] > 0.1
    found = PGD(L2(1e-6), steps=40, restarts=2)(noisy, x[sure], y[sure], warn=False)
    assert int(sure.sum()) > 2
    assert (found.gradients, found.queries) == (80 * int(sure.sum()), 0)


def test_points_that_are_fooled_where_they_start_are_not_flat():
    def model(v):
        right = (v[:, 0] < 1).double()
        return torch.stack([right, 1 - right], 1) + 0 * v[:, :1]

    x, start = torch.zeros(2, 1).double(), torch.tensor([[2.0], [0.5]]).double()
    found = PGD(L2(3.0), steps=3, seed=1)(model, x, [0, 0], start=start, warn=False)
    assert found.flat.tolist() == [False, True]
    assert bool(found.success[0])


@pytest.mark.parametrize("attack", [PGD(L2(0.5), steps=2), PGD(L2(0.5), steps=2, normalize=False)])
def test_models_without_any_gradient_are_flat(attack):
    """What leaves torch on its way has no gradient at all, and random starts may still fool it."""
    x = torch.tensor([[1.0, 0.0], [0.1, 0.0]]).double()

    def model(v):
        first = v.detach().numpy()[:, 0]
        return torch.from_numpy(np.stack([first, 0 * first], 1))

    found = attack(model, x, [0, 0], warn=False)
    assert found.flat[0].item() is True
    assert (found.success[0].item(), found.gradients) == (False, 4)
    assert torch.equal(model(found.x).argmax(1) != 0, found.success)


@pytest.mark.parametrize("budget", [24, 60, 200, 1000])
@pytest.mark.parametrize("kind", [L1, L2, Linf])
def test_the_ensemble_never_exceeds_its_budget(kind, budget):
    """A radius at which nothing is found, so that every stage runs to its end."""
    model, x = small_mlp(classes=10), points(4, 6)
    y = model(x).argmax(1)
    found = strongest(model, x, y, kind(1e-6), budget=budget, queries=0, warn=False)
    assert not found.success.any()
    assert found.gradients <= budget * len(x)
