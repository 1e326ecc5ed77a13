"""Minimum-norm attacks and certificates, against closed forms, enumeration and each other."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch
from robust_cases import blobs, linear_model, points, small_mlp
from torch import nn

from overt import InputError
from overt.robust import (
    L0,
    L1,
    L2,
    PGD,
    Linf,
    Square,
    Targeted,
    exact,
    minimum_distance,
    robust_error,
    strongest,
)
from overt.robust.certify.bounds import LinearBounds
from overt.robust.certify.milp import Network, best_lead
from overt.robust.certify.network import ReluNetwork

KINDS = [L1, L2, Linf]


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_point_of_a_linear_model_is_its_closed_form(kind):
    model, x = linear_model(3, 8), points(40, 8)
    f, y = model(x).detach(), model(x).argmax(1)
    distances = []
    for j in range(3):
        gap = f.gather(1, y[:, None]).squeeze(1) - f[:, j]
        steep = kind(1.0).dual(model.weight.detach()[j] - model.weight.detach()[y])
        distances.append(torch.where(y == j, torch.inf, gap / steep))
    truth = torch.stack(distances).amin(0)
    found = minimum_distance(model, x, y, kind(50.0), steps=60)
    assert bool(found.success.all())
    assert torch.equal(model(found.x).argmax(1) != y, found.success)  # the proof
    size = kind(1.0).size(found.x - x)
    assert torch.allclose(size.double(), found.distance)
    assert bool((found.distance >= truth * (1 - 1e-9)).all())
    assert bool((found.distance <= truth * (1 + 1e-3)).all())
    errors, intervals = found.errors([0.0, 0.2, 50.0])
    assert errors[1] == float((found.distance <= 0.2).double().mean())
    assert (errors[0], errors[2]) == (0.0, 1.0)
    assert bool((intervals[:, 0] <= errors).all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_points_agree_with_the_curve_of_attacks(kind):
    model, x = (
        small_mlp(dtype=torch.float32),
        points(40, 6, dtype=torch.float32).clamp(-3, 3),
    )
    y = model(x).argmax(1)
    y[:3] = (y[:3] + 1) % 3
    radius = {L1: 1.5, L2: 0.8, Linf: 0.3}[kind]
    threat = kind(radius, (-3.0, 3.0))
    found = minimum_distance(model, x, y, threat)
    assert found.distance[:3].tolist() == [0, 0, 0]
    assert torch.equal(found.distance.isinf(), ~found.success)
    assert float(found.distance[found.success].max()) <= radius
    curve = strongest(model, x, y, threat, budget=200)
    assert abs(int(curve.success.sum()) - int(found.success.sum())) <= 1


def test_counts_of_coordinates():
    model, x = linear_model(3, 8), points(30, 8).clamp(-2, 2)
    f, y = model(x).detach(), model(x).argmax(1)
    W = model.weight.detach()
    gaps = []
    for j in range(3):  # greedy is optimal for a linear model: largest gains first
        w = W[j] - W[y]
        gain = (
            torch.where(w > 0, w * (2 - x), w * (-2 - x))
            .sort(1, descending=True)
            .values
        )
        short = f.gather(1, y[:, None]) - f[:, j : j + 1] - gain.cumsum(1)
        gaps.append(torch.where((y == j)[:, None], torch.inf, short))
    needed = (torch.stack(gaps).amin(0) >= 0).sum(1) + 1
    found = minimum_distance(model, x, y, L0(8, (-2.0, 2.0)), steps=40)
    reachable = needed <= 8
    assert torch.equal(found.success, reachable)
    assert bool((found.distance[reachable] >= needed[reachable]).all())
    assert float((found.distance[reachable] == needed[reachable]).double().mean()) > 0.8
    one = strongest(model, x, y, L0(1, (-2.0, 2.0)), budget=60, warn=False)
    assert float((one.x != x).sum(1).max()) <= 1
    with pytest.raises(InputError, match="L0 must have bounds"):
        PGD(L0(2))(model, x, y)


def deep(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(2, 10),
        nn.ReLU(),
        nn.Sequential(nn.Linear(10, 8), nn.LeakyReLU(0.1)),
        nn.Linear(8, 3),
    )


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
@pytest.mark.parametrize(("kind", "radius"), [(L1, 0.3), (L2, 0.25), (Linf, 0.2)])
def test_every_point_is_decided_and_no_certificate_is_wrong(kind, radius, bounds):
    model, threat = deep(), kind(radius, bounds)
    x, _ = blobs(24)
    y = model(x).argmax(1)
    found = robust_error(
        model, x, y, threat, certify=True, budget=24, queries=0, warn=False
    )
    steps = torch.linspace(-radius, radius, 41)
    grid = torch.cartesian_prod(steps, steps)
    grid = grid[threat.size(grid) <= radius]
    moved = x[:, None] + grid
    moved = moved if bounds is None else moved.clamp(*bounds)
    wrong = (
        (model(moved.flatten(0, 1)).argmax(1).view(len(x), -1) != y[:, None])
        .any(1)
        .numpy()
    )
    assert not (found.proved & wrong).any()
    assert found.value == pytest.approx(
        found.upper, abs=1 / 24
    )  # ties aside, nothing is left open
    assert found.value >= wrong.mean()
    quick = robust_error(
        model, x, y, threat, certify=True, seconds=0, budget=24, queries=0, warn=False
    )
    assert quick.upper >= found.upper
    assert not (quick.proved & ~found.proved).any()


def lead_bounds(network, region, y):
    """Bounds of all points, and those of their hidden units."""
    walks = [
        LinearBounds(network, region.take(torch.tensor([i]))) for i in range(len(y))
    ]
    leads = [walk.best_lead(int(own)) for walk, own in zip(walks, y, strict=True)]
    hidden = [
        [(low.numpy(), high.numpy()) for low, high in walk.hidden] for walk in walks
    ]
    return np.array(leads), hidden


def test_linear_bounds_hold_and_are_exact_without_rectifiers():
    x, y = points(12, 6), torch.arange(12) % 3
    for threat in (L1(0.4), L2(0.3, (-3.0, 3.0)), Linf(0.1)):
        model = nn.Sequential(linear_model(3, 6))
        bound, _ = lead_bounds(ReluNetwork.trace(model, x), threat.region(x), y)
        truth = exact.linear(
            model[0].weight.detach(), model[0].bias.detach(), x.clamp(-3, 3), y, threat
        )
        assert np.allclose(bound, truth.lead)
        net = small_mlp()
        bound, _ = lead_bounds(ReluNetwork.trace(net, x), threat.region(x), y)
        truth = exact.two_layer(
            net[0].weight.detach(),
            net[2].weight.detach(),
            x,
            y,
            threat,
            hidden_bias=net[0].bias.detach(),
            top_bias=net[2].bias.detach(),
            level=100.0,
        )
        assert (bound >= truth.lead - 1e-9).all()


def test_convolutions_and_normalization_are_certified():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, 2, 1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 6),
        nn.ReLU(),
        nn.Linear(6, 1),
    ).eval()
    x = torch.rand(10, 1, 8, 8)
    scaled = {"mean": 0.4, "std": 0.3, "warn": False}
    plain = model((x - 0.4) / 0.3).detach().double()
    y = (plain[:, 0] > 0).long()
    chain = ReluNetwork.trace(model, x, torch.tensor(0.4), torch.tensor(0.3))
    both = torch.cat([0 * plain, plain], 1)
    torch.testing.assert_close(chain.logits(x.double()), both, atol=1e-5, rtol=0)
    net = Network(*chain.dense(), chain.slopes)
    for i in range(10):
        np.testing.assert_allclose(
            net.logits(x[i].double().flatten().numpy()), both[i], atol=1e-5
        )
    found = robust_error(
        model,
        x,
        y,
        Linf(0.02, (0.0, 1.0)),
        certify=True,
        budget=24,
        queries=0,
        **scaled,
    )
    assert found.value == pytest.approx(found.upper)


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (nn.Sequential(nn.Linear(2, 3), nn.Tanh()), {}, "does not model Tanh"),
        (lambda v: deep()(v), {}, "certify needs one torch module"),
        ([deep(), deep(1)], {}, "certify needs one torch module"),
        (deep(), {"attack": PGD(L2(0.1), criterion=Targeted(1))}, "any wrong class"),
    ],
)
def test_what_cannot_be_certified_is_said(model, more, message):
    x, y = blobs(5)
    with pytest.raises(InputError, match=message):
        robust_error(model, x, y, L2(0.1), certify=True, **more)


@pytest.mark.parametrize("slope", [0.0, 0.3])
@pytest.mark.parametrize("kind", [L1, L2, Linf])
def test_linear_bounds_are_those_of_the_definition(kind, slope):
    """One hidden layer, unit by unit: chords above and the nearer line below, no looser."""
    rng, radius = np.random.default_rng(0), 0.4
    W, A, b, c = (rng.normal(size=shape) for shape in ((7, 3), (3, 7), 7, 3))
    model = nn.Sequential(
        nn.Linear(3, 7), nn.LeakyReLU(slope), nn.Linear(7, 3)
    ).double()
    for layer, weight, bias in ((model[0], W, b), (model[2], A, c)):
        layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
    x = torch.tensor(rng.normal(size=(5, 3)))
    y = model(x).argmax(1)
    chain = ReluNetwork.trace(model, x)
    torch.testing.assert_close(chain.logits(x), model(x).detach())
    found, hidden = lead_bounds(chain, kind(radius).region(x), y)
    dual = {L1: np.inf, L2: 2, Linf: 1}[kind]
    for i, point in enumerate(x.numpy()):
        z, reach = W @ point + b, radius * np.linalg.norm(W, dual, axis=1)
        np.testing.assert_allclose(hidden[i][0], (z - reach, z + reach), atol=1e-9)
        leads = []
        for j in {0, 1, 2} - {int(y[i])}:
            total, direction = c[y[i]] - c[j], np.zeros(3)
            for k in range(7):
                w, low, high = A[y[i], k] - A[j, k], z[k] - reach[k], z[k] + reach[k]
                if high <= 0 or low >= 0:
                    line, offset = (slope if high <= 0 else 1.0), 0.0
                elif w >= 0:
                    line, offset = (1.0 if high >= -low else slope), 0.0
                else:
                    line = (high - slope * low) / (high - low)
                    offset = high - line * high
                total += w * (line * b[k] + offset)
                direction += w * line * W[k]
            leads.append(
                -(total + direction @ point - radius * np.linalg.norm(direction, dual))
            )
        assert found[i] == pytest.approx(max(leads), abs=1e-7)


def around(threat, x):
    return threat.region(torch.from_numpy(x)[None])


def lead_by_patterns(net, x, own, j, threat):
    """max f_j - f_own over the ball: a convex program for each pattern of active units."""
    best = -np.inf
    for pattern in itertools.product((0, 1), repeat=sum(map(len, net.b[:-1]))):
        d = cp.Variable(len(x))
        h, at, limits = x + d, 0, [cp.norm(d, float(threat.order)) <= threat.radius]
        if threat.bounds is not None:
            limits += [h >= threat.bounds[0], h <= threat.bounds[1]]
        matrices = [maps[k] for k, maps in enumerate(net.W)]
        for W, b, a in zip(matrices[:-1], net.b[:-1], net.slopes, strict=True):
            on = np.array(pattern[at : at + len(b)])
            z, at = W @ h + b, at + len(b)
            limits.append(cp.multiply(2 * on - 1, z) >= 0)
            h = cp.multiply(np.where(on, 1.0, a), z)
        f = (matrices[-1][j] - matrices[-1][own]) @ h + net.b[-1][j] - net.b[-1][own]
        problem = cp.Problem(cp.Maximize(f), limits)
        problem.solve(solver=cp.CLARABEL)
        best = max(best, float(problem.value)) if problem.status == "optimal" else best
    return best


LEADS = [L1(1.5), L1(1.5, (-1.0, 1.2)), Linf(0.8), Linf(0.8, (-1.0, 1.2))]


@pytest.mark.parametrize("widths", [(3,), (1, 2)])
@pytest.mark.parametrize("threat", LEADS, ids=str)
def test_the_largest_lead_is_that_of_every_pattern_of_units(threat, widths):
    rng = np.random.default_rng(len(widths))
    sizes = (2, *widths, 3)
    W = [rng.normal(size=(b, a)) for a, b in itertools.pairwise(sizes)]
    b = [rng.normal(size=n) for n in sizes[1:]]
    b[-1][1] += 30.0  # nobody is fooled, so that all classes are gone through
    net = Network.chain(W, b, [0.3, 0.0][: len(widths)])
    loose = [(-np.full(n, 20.0), np.full(n, 20.0)) for n in widths]
    for x in np.clip(rng.normal(size=(2, 2)), -1.0, 1.2):
        expected = max(lead_by_patterns(net, x, 1, j, threat) for j in (0, 2))
        for hidden in (None, loose):
            reached, bound, where = best_lead(
                net, x, 1, around(threat, x), -np.inf, hidden=hidden
            )
            assert reached == pytest.approx(expected, abs=1e-4)
            assert reached <= bound <= expected + 1e-4
            f, away = net.logits(where), torch.from_numpy(where - x)[None]
            assert max(f[0], f[2]) - f[1] == reached
            assert float(threat.size(away)) <= threat.radius * (1 + 1e-9)


@pytest.mark.parametrize("seconds", [60, 0])
def test_what_no_attack_has_tried_is_decided_point_by_point(seconds):
    """By the bounds alone, or by the program as well: what it fools counts as found."""
    rng = np.random.default_rng(6)
    model = small_mlp(2, 9, 3)
    for p in model.parameters():
        p.data = torch.from_numpy(rng.normal(size=p.shape))
    x, threat = torch.from_numpy(rng.normal(size=(14, 2))), Linf(0.4)
    y = model(x).argmax(1)
    y[::6] = (y[::6] + 1) % 3  # wrong to begin with
    attack = Square(threat, queries=1)
    found = robust_error(
        model, x, y, threat, certify=True, seconds=seconds, attack=attack, warn=False
    )
    axis = threat.radius * torch.linspace(-1, 1, 61).double()
    f = model(x[:, None] + torch.cartesian_prod(axis, axis)).detach()
    own = nn.functional.one_hot(y, 3)[:, None].bool()
    leads = (f.masked_fill(own, -np.inf).amax(2) - (f * own).sum(2)).amax(1).numpy()
    bound = lead_bounds(ReluNetwork.trace(model, x), threat.region(x), y)[0]
    begun = (model(x).argmax(1) != y).numpy()
    assert (np.abs(leads) > 0.05).all()
    assert ((bound > 0) & (leads < 0)).sum() == 2
    if seconds == 0:
        assert (found.proved == ((bound < 0) & ~begun)).all()
    else:
        assert (found.proved == (leads < 0)).all()
        assert ((found.smallest <= 0.4) == (leads > 0)).all()


def test_bounds_of_channels_are_those_of_their_features():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    ).double()
    x = torch.rand(6, 2, 3, 3).double()
    y = model(x).argmax(1)
    high = torch.tensor([1.0, 1.2])
    found = []
    for limit in (high.view(2, 1, 1), high.view(2, 1, 1).expand(2, 3, 3)):
        threat = Linf(0.25, (0.0, limit))
        attack = Square(threat, queries=1)
        found.append(
            robust_error(model, x, y, threat, certify=True, attack=attack, warn=False)
        )
        assert found[-1].value == pytest.approx(found[-1].upper)
    assert found[0] == found[1]
    assert 0 < found[0].proved.sum() < 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_tie_of_a_linear_model_is_left_open(kind):
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data[:] = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    x = torch.tensor([[0.5, 0.0], [0.7, 0.0]]).double()
    found = robust_error(
        model, x, [0, 0], kind(0.5), certify=True, budget=24, queries=0
    )
    assert (found.value, found.proved.tolist()) == (0.0, [False, True])


@pytest.mark.parametrize("kind", KINDS)
def test_the_lead_in_a_ball_of_radius_zero_is_that_of_the_input(kind):
    rng = np.random.default_rng(4)
    net = Network.chain(
        [rng.normal(size=(3, 2)), rng.normal(size=(2, 3))],
        [rng.normal(size=3), np.array([0.0, 30.0])],
        [0.3],
    )
    x = rng.normal(size=2)
    reached, bound, where = best_lead(net, x, 1, around(kind(0.0), x), -np.inf)
    f = net.logits(x)
    assert reached == pytest.approx(f[0] - f[1])
    assert bound == pytest.approx(f[0] - f[1], abs=1e-4)
    np.testing.assert_allclose(where, x)


@pytest.mark.parametrize("bounds_", [None, (-0.9, 1.1)])
@pytest.mark.parametrize(("kind", "order"), [(L1, 1), (L2, 2), (Linf, np.inf)])
def test_proved_bounds_of_wide_networks_are_reached(kind, order, bounds_):
    """No farther than the solver's tolerance, and no grid of the plane finds more."""
    rng = np.random.default_rng(7)
    sizes = (2, 7, 5, 3)
    net = Network.chain(
        [rng.normal(size=(b, a)) for a, b in itertools.pairwise(sizes)],
        [rng.normal(size=b) for b in sizes[1:]],
        [0.2, 0.0],
    )
    net.b[-1][1] += 30.0
    x = np.clip(rng.normal(size=2), -0.9, 1.1)
    reached, bound, where = best_lead(net, x, 1, around(kind(0.6, bounds_), x), -np.inf)
    axis = 0.6 * np.linspace(-1, 1, 81)
    d = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    z = (x + d[np.linalg.norm(d, order, axis=1) <= 0.6]).T
    z = z if bounds_ is None else np.clip(z, *bounds_)
    matrices = [maps[k] for k, maps in enumerate(net.W)]
    for W, b, a in zip(matrices[:-1], net.b[:-1], net.slopes, strict=True):
        z = W @ z + b[:, None]
        z = np.maximum(a * z, z)
    f = matrices[-1] @ z + net.b[-1][:, None]
    assert np.max(f[[0, 2]] - f[1]) <= reached + 1e-6
    assert reached <= bound <= reached + 1e-4
    assert np.linalg.norm(where - x, order) <= 0.6 * (1 + 1e-9)
