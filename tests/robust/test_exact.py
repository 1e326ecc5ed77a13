"""Exact robust error, against convex programs, grids and attacks."""

import os

import cvxpy as cp
import numpy as np
import pytest
import torch
from robust_cases import linear_network, points, small_mlp, two_layer_network
from torch import nn

from overt import InputError
from overt.robust import (
    L1,
    L2,
    Linf,
    exact_error,
    strongest,
)


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.2)])
@pytest.mark.parametrize(("kind", "radius"), [(L1, 0.9), (L2, 0.7), (Linf, 0.4)])
def test_leads_of_linear_models_are_convex_programs(kind, radius, bounds):
    rng = np.random.default_rng(3)
    W, b = rng.normal(size=(3, 4)), rng.normal(size=3)
    X = np.clip(rng.normal(size=(4, 4)), -1.0, 1.2)
    y = (X @ W.T + b).argmax(1)
    y[3] = (y[3] + 1) % 3
    threat = kind(radius, bounds)
    found = exact_error(linear_network(W, b), X, y, threat)
    for i in range(4):
        best = -np.inf
        for j in range(3):
            if j == y[i]:
                continue
            d = cp.Variable(4)
            limits = [cp.norm(d, float(threat.order)) <= radius]
            if bounds is not None:
                limits += [X[i] + d >= bounds[0], X[i] + d <= bounds[1]]
            goal = (W[j] - W[y[i]]) @ (X[i] + d) + b[j] - b[y[i]]
            best = max(
                best, cp.Problem(cp.Maximize(goal), limits).solve(solver=cp.CLARABEL)
            )
        assert found.lead[i] == pytest.approx(best, abs=1e-5)
        f = W @ found.x[i] + b
        assert (
            max(f[k] for k in range(3) if k != y[i]) - f[y[i]] >= found.lead[i] - 1e-9
        )
    assert found.fooled.tolist() == (found.lead > 0).tolist()
    assert found.value == np.mean(found.fooled)
    assert found.status == "optimal"
    level = linear_network([[1.0, 0.0], [-1.0, 0.0]])
    tie = exact_error(level, [[0.5, 0.0]], [0], kind(0.5))
    assert (tie.undecided.tolist(), tie.status, tie.value) == ([True], "finished", 0.0)
    single = linear_network(W[0], b[:1])
    pair = linear_network(np.stack([0 * W[0], W[0]]), [0.0, b[0]])
    one, two = (exact_error(net, X, [0, 1, 0, 1], threat) for net in (single, pair))
    np.testing.assert_allclose(one.lead, two.lead)


THREATS = [L1(0.8), L2(0.5), Linf(0.25), L2(0.5, (-1.5, 1.5)), Linf(0.25, (-1.5, 1.5))]


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_attacks_come_close_to_the_exact_robust_error(threat, classes):
    model = small_mlp(4, 6, classes, seed=5)
    x = points(10, 4, seed=11).clamp(-1.5, 1.5)
    y = (model(x)[:, 0] > 0).long() if classes == 1 else model(x).argmax(1)
    truth = exact_error(model, x, y, threat)
    found = strongest(model, x, y, threat, budget=400, warn=False)
    assert 0 < truth.value < 1
    assert not bool(
        (found.success & ~torch.from_numpy(truth.fooled)).any()
    )  # a proof is a proof
    assert abs(float(found.success.double().mean()) - truth.value) <= 0.01
    # The certificate, recomputed: witnesses are allowed and fool; the others are bounded.
    moved = torch.from_numpy(truth.x)
    assert float(threat.size(moved - x).max()) <= threat.radius * (1 + 1e-6)
    wrong = (
        (model(moved)[:, 0] > 0).long() != y
        if classes == 1
        else model(moved).argmax(1) != y
    )
    assert np.array_equal(wrong.numpy(), truth.fooled)
    assert (truth.bound[~truth.fooled] < 0).all()
    assert not truth.undecided.any()


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("threat", "norm"), [(L1, 1), (L2, 2), (Linf, np.inf)])
def test_levels_are_decided_on_both_sides_of_the_largest_lead(threat, norm, slope):
    """A third oracle: all perturbations of the plane, on a fine polar grid."""
    rng = np.random.default_rng(int(10 * slope))
    W, b, A, c = (rng.normal(size=shape) for shape in ((4, 2), 4, (3, 4), 3))
    angles = np.linspace(0, 2 * np.pi, 4001)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    circle /= np.linalg.norm(circle, norm, axis=1, keepdims=True)
    disc = np.concatenate([r * circle for r in np.linspace(0, 0.7, 71)])
    for x in rng.normal(size=(3, 2)):
        z = (x + disc) @ W.T + b
        f = np.maximum(slope * z, z) @ A.T + c
        y = int(f[0].argmin())  # so that the lead is positive
        best = np.delete(f - f[:, [y]], y, axis=1).max()
        net = two_layer_network(W, A, b, c, slope)
        below, above = (
            exact_error(net, x[None], [y], threat(0.7), level=share * best)
            for share in (0.995, 1.005)
        )
        assert below.fooled.all()
        assert np.linalg.norm(below.x[0] - x, norm) <= 0.7 * (1 + 1e-12)
        assert not above.fooled.any()
        assert not above.undecided.any()
        assert best <= above.bound[0] < 1.005 * best


@pytest.mark.parametrize(("threat", "order"), [(L1, 1), (L2, 2), (Linf, np.inf)])
def test_proofs_agree_with_a_fine_grid_of_the_plane(threat, order):
    """Three classes with biases: who is fooled, and bounds above all that the grid finds."""
    rng, radius = np.random.default_rng(3), 0.5
    W, A, b, c = (rng.normal(size=shape) for shape in ((4, 2), (3, 4), 4, 3))
    x = rng.normal(size=(14, 2))

    def logits(v):
        z = v @ W.T + b
        return np.maximum(0.2 * z, z) @ A.T + c

    y = logits(x).argmax(1)
    found = exact_error(two_layer_network(W, A, b, c, 0.2), x, y, threat(radius))
    axis = radius * np.linspace(-1, 1, 161)
    d = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    d = d[np.linalg.norm(d, order, axis=1) <= radius * (1 + 1e-12)]
    best = []
    for point, own in zip(x, y, strict=True):
        f = logits(point + d)
        best.append(np.max(np.delete(f, own, axis=1) - f[:, [own]]))
    best = np.array(best)
    clear = np.abs(best) > 0.05
    assert 2 < found.fooled.sum() < 12
    assert np.array_equal(found.fooled[clear], best[clear] > 0)
    assert not found.undecided[clear].any()
    assert np.all(found.bound >= best - 1e-9)
    assert np.all(found.bound[clear & (best < 0)] < 0)
    reached = [
        np.max(np.delete(f, own) - f[own])
        for f, own in zip(logits(found.x), y, strict=True)
    ]
    np.testing.assert_allclose(found.lead, reached, atol=1e-9)
    assert np.all(np.linalg.norm(found.x - x, order, axis=1) <= radius * (1 + 1e-9))


@pytest.mark.parametrize(
    "scales", [(1e-5, 1e-5, 1), (1, 1e-8, 1), (1e6, 1, 1e-6), (1, 1, 255)]
)
def test_proofs_do_not_depend_on_units(scales):
    hidden, top, inputs = scales
    rng = np.random.default_rng(1)
    W, A, x, b, c = (rng.normal(size=shape) for shape in ((5, 3), (3, 5), (8, 3), 5, 3))
    y = (np.maximum(x @ W.T + b, 0) @ A.T + c).argmax(1)
    plain = exact_error(two_layer_network(W, A, b, c), x, y, L2(0.4))
    scaled = two_layer_network(
        hidden * W, top * A, hidden * inputs * b, hidden * top * inputs * c
    )
    other = exact_error(scaled, inputs * x, y, L2(0.4 * inputs))
    assert 0 < plain.value < 1
    assert other.fooled.tolist() == plain.fooled.tolist()
    assert not other.undecided.any()
    assert np.allclose(
        other.bound, hidden * top * inputs * plain.bound, rtol=1e-3, atol=0
    )
    linear = exact_error(linear_network(top * A[:, :3]), x, y % 3, L2(0.4))
    assert not linear.undecided.any()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_linear_leads_within_rounding_are_undecided(size):
    W, x = size * np.array([[1.0], [-1.0]]), [[1.0], [0.5], [1.0]]
    for short, open_ in ((0.5e-9, [True, False, True]), (2e-9, [False] * 3)):
        found = exact_error(linear_network(W), x, [0, 0, 0], Linf(1 - short))
        assert found.fooled.tolist() == [False, True, False]
        assert found.undecided.tolist() == open_
        np.testing.assert_allclose(found.lead[[0, 2]], -2 * size * short, rtol=1e-6)
    # The move gains twice the largest logit.
    shifted = linear_network(W, [-size, size])
    found = exact_error(shifted, [[3 + 1.5e-9]], [0], Linf(2.0))
    assert found.undecided.tolist() == [True]


def test_the_solver_leaves_the_output_open(capfd):
    net = two_layer_network([[1.0], [-1.0]], [[1.0, 0.5]])
    found = exact_error(net, [[0.3], [2.0]], [1, 1], L2(0.5))
    os.write(1, b"still here")
    assert capfd.readouterr().out == "still here"
    assert len(found.lead) == 2


X = np.ones((3, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [0, 1, 2]}, "y must lie in 0..1"),
        ({"y": [0, 1]}, "one class for each of the 3 points"),
        ({"x": X * np.nan}, "x must be finite"),
        ({"x": np.ones((3, 3))}, "model must take inputs"),
        ({"level": -1.0}, "level must be"),
        ({"threat": 0.1}, "threat must be"),
        ({"model": lambda v: v}, "needs one torch module"),
        ({"model": nn.Sequential(nn.Linear(2, 2), nn.GELU())}, "does not model GELU"),
    ],
)
def test_what_cannot_be_decided_exactly_is_refused(change, message):
    given = {"model": linear_network(np.eye(2)), "x": X, "y": [0, 1, 1]}
    given |= {"threat": L2(0.1)} | change
    with pytest.raises(InputError, match=message):
        exact_error(**given)


def test_a_tie_counts_as_the_prediction_does():
    """Dead units make all logits equal; attack and proof must then agree on who is fooled."""
    W, A, b = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.0, 0.0])
    model = lambda v: torch.relu(v @ torch.eye(2).double()) @ torch.from_numpy(A).T  # noqa: E731
    x = np.array([[-0.5, 0.2], [0.2, -0.5]])
    y = model(torch.from_numpy(x)).argmax(1)
    assert y.tolist() == [1, 0]
    truth = exact_error(two_layer_network(W, A, b), x, y, Linf(0.3))
    found = strongest(model, x, y, Linf(0.3), budget=60, warn=False)
    assert truth.lead.tolist() == [0.0, 0.0]
    assert truth.fooled.tolist() == found.success.tolist() == [True, False]
    assert truth.undecided.tolist() == [
        False,
        True,
    ]  # class 0 wins the tie, and no more is proved
    assert truth.status == "finished"
