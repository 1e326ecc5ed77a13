"""Certificates of networks, against enumeration, grids and attacks."""

import itertools

import cvxpy as cp
import numpy as np
import pytest
import torch
from robust_cases import blobs, small_mlp
from torch import nn

from overt import InputError
from overt.robust import L1, L2, PGD, Linf, Square, robust_error

KINDS = [L1, L2, Linf]


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


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (nn.Sequential(nn.Linear(2, 3), nn.Tanh()), {}, "does not model Tanh"),
        (lambda v: deep()(v), {}, "certify needs one torch module"),
        (deep(), {"attack": PGD(L2(0.1), target=1)}, "any wrong class"),
    ],
)
def test_what_cannot_be_certified_is_said(model, more, message):
    x, y = blobs(5)
    with pytest.raises(InputError, match=message):
        robust_error(model, x, y, L2(0.1), certify=True, **more)


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


def lead_by_patterns(W, b, slopes, x, own, threat):
    """max f_j - f_own over the ball: a convex program for each pattern of active units."""
    best = -np.inf
    for pattern in itertools.product((0, 1), repeat=sum(map(len, b[:-1]))):
        d = cp.Variable(len(x))
        h, at, limits = x + d, 0, [cp.norm(d, float(threat.order)) <= threat.radius]
        if threat.bounds is not None:
            limits += [h >= threat.bounds[0], h <= threat.bounds[1]]
        for matrix, offset, slope in zip(W[:-1], b[:-1], slopes, strict=True):
            on = np.array(pattern[at : at + len(offset)])
            z, at = matrix @ h + offset, at + len(offset)
            limits.append(cp.multiply(2 * on - 1, z) >= 0)
            h = cp.multiply(np.where(on, 1.0, slope), z)
        for j in {*range(len(b[-1]))} - {own}:
            f = (W[-1][j] - W[-1][own]) @ h + b[-1][j] - b[-1][own]
            problem = cp.Problem(cp.Maximize(f), limits)
            problem.solve(solver=cp.CLARABEL)
            if problem.status == "optimal":
                best = max(best, float(problem.value))
    return best


LEADS = [L1(0.8), L1(0.8, (-1.0, 1.2)), L2(0.5), Linf(0.4), Linf(0.4, (-1.0, 1.2))]


@pytest.mark.parametrize("widths", [(3,), (2, 2)])
@pytest.mark.parametrize("threat", LEADS, ids=str)
def test_certificates_are_those_of_every_pattern_of_units(threat, widths):
    """A point is proved where no pattern lets a wrong class lead, and fooled elsewhere."""
    rng = np.random.default_rng(len(widths))
    sizes = (2, *widths, 3)
    W = [rng.normal(size=(b, a)) for a, b in itertools.pairwise(sizes)]
    b = [rng.normal(size=n) for n in sizes[1:]]
    slopes = [0.3, 0.0][: len(widths)]
    layers = []
    for matrix, offset, slope in zip(W, b, [*slopes, 1.0], strict=True):
        layer = nn.Linear(matrix.shape[1], len(matrix)).double()
        layer.weight.data, layer.bias.data = torch.tensor(matrix), torch.tensor(offset)
        layers += [layer, nn.LeakyReLU(slope)]
    model = nn.Sequential(*layers[:-1])
    x = np.clip(rng.normal(size=(8, 2)), -1.0, 1.2)
    y = model(torch.tensor(x)).argmax(1)
    leads = np.array(
        [
            lead_by_patterns(W, b, slopes, point, int(own), threat)
            for point, own in zip(x, y, strict=True)
        ]
    )
    assert (np.abs(leads) > 1e-3).all()
    attack = Square(threat, queries=1)
    found = robust_error(model, x, y, threat, certify=True, attack=attack, warn=False)
    assert found.proved.tolist() == (leads < 0).tolist()
    assert found.success.tolist() == (leads > 0).tolist()


@pytest.mark.parametrize("seconds", [60, 0])
def test_what_no_attack_has_tried_is_decided_point_by_point(seconds):
    """By the bounds alone, or by the program as well: points that it fools count as found."""
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
    assert (np.abs(leads) > 0.05).all()
    assert not (found.proved & (leads > 0)).any()
    if seconds:
        assert (found.proved == (leads < 0)).all()
        assert (found.success == (leads > 0)).all()
