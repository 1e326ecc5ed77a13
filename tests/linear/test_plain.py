"""Parts of solvers against their formulas, entry by entry and by differences."""

import itertools

import numpy as np
import pytest

import overt
from overt.linear import whitening
from overt.linear.regression import DenseRegression
from overt.linear.units import UnitNoise

NOISES = [overt.Dropout(0.4), overt.DropBlock(0.4, 2, "sliding"), overt.CovarianceNoise(
    np.ones(3), np.array([[1.0, -0.4, 0.1], [-0.4, 0.7, 0.2], [0.1, 0.2, 0.5]]))]  # fmt: skip


def effect(noise, decay=0.0):
    net = overt.LinearNetwork(np.diag([3.0, 2.0, 1.0]), 3, noise, weight_decay=decay)
    return net.effect


def differences(f, at, h=1e-6):
    """The gradient of f by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = h
        found[place] = (f(at + step) - f(at - step)) / (2 * h)
    return found


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize(("mu", "raised"), [(0.0, 1.0), (0.3, 1.0), (0.3, 2.5)])
def test_objective_of_factors_term_by_term(noise, mu, raised):
    rng = np.random.default_rng(0)
    task, (T, U, P) = effect(noise), rng.standard_normal((3, 3, 3))
    assert isinstance(task, UnitNoise)
    Gamma = noise.characteristic(3)

    def plain(U, P):
        total = sum((T[i, j] - U[i] @ P[j]) ** 2 for i in range(3) for j in range(3))
        for k, l in itertools.product(range(3), repeat=2):  # noqa: E741
            total += raised * Gamma[k, l] * (U[:, k] @ U[:, l]) * (P[:, k] @ P[:, l])
        return total + mu * (np.sum(U**2) + np.sum(P**2))

    value, (of_U, of_P) = task._value(T, U, P, mu, raised)
    assert value == pytest.approx(plain(U, P))
    np.testing.assert_allclose(of_U, differences(lambda Z: plain(Z, P), U), atol=1e-6)
    np.testing.assert_allclose(of_P, differences(lambda Z: plain(U, Z), P), atol=1e-6)
    best = task._partner(T, U, mu, raised)
    np.testing.assert_allclose(task._value(T, U, best, mu, raised)[1][1], 0, atol=1e-9)
    best = task._partner(T, U, mu)
    np.testing.assert_allclose(task._value(T, U, best, mu)[1][1], 0, atol=1e-9)
    U[:, 1] = 0  # a unit that carries nothing
    assert np.isfinite(task._partner(T, U, mu)).all()


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
def test_decayed_factors_have_equal_norms_and_the_same_map(noise):
    rng, task = np.random.default_rng(1), effect(noise, decay=0.2)
    U, V = rng.standard_normal((2, 3, 3))
    U[:, 2] = 0
    found = task._decayed(U, V)
    np.testing.assert_allclose(found[0][:, :2] @ found[1][:, :2].T, U[:, :2] @ V[:, :2].T)
    for k in (0, 1):
        assert np.linalg.norm(found[0][:, k]) == pytest.approx(np.linalg.norm(found[1][:, k]))
    same = effect(noise)._decayed(U, V)
    assert same[0] is U
    assert same[1] is V


def test_penalties_that_cancel_are_sums_of_squares():
    """Units in pairs u, -u, whose noises are correlated such that what they add nearly cancels."""
    K = np.array([[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]])
    noise = overt.CovarianceNoise(np.ones(2), K)
    net = overt.LinearNetwork(np.eye(2), 2, noise)
    u, v = np.array([[1.0, -1.0], [2.0, -2.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])
    exact = 2 * 5.0 * 2.0 * 1e-9  # |u|^2 |v|^2 (1 + 1 - 2 (1 - 1e-9))
    assert net.effect.penalty(u, v) == pytest.approx(exact, rel=1e-6)
    w = np.array([[1.0, 1.0], [2.0, 2.0]])
    assert net.effect.penalty(w, v) == pytest.approx(5.0 * 2.0 * (4 - 2e-9), rel=1e-12)


@pytest.mark.parametrize("rows", [None, 40])
def test_rounding_of_bounds_is_its_formula(rows):
    rng = np.random.default_rng(2)
    if rows is None:
        task = overt.LinearNetwork(rng.standard_normal((4, 7)), 3, overt.Dropout(0.3))
    else:
        X = rng.standard_normal((rows, 5))
        Y = X @ rng.standard_normal((5, 3)) + rng.standard_normal((rows, 3))
        task = overt.LinearNetwork(X=X, Y=Y, width=3, noise=overt.Dropout(0.3))
    task = task.effect.regression
    assert isinstance(task, DenseRegression)
    bound, loss, nuclear = 3.1, 0.7, 2.3
    size = max(*task.samples.inputs.shape, *task.T.shape, task.inputs)
    largest = np.sqrt(task.scale) if rows else np.linalg.norm(task.T, 2)
    lean = 2 * 30.0 * np.sqrt(task.residual) * nuclear
    terms = bound + 2 * largest * np.sqrt(min(task.T.shape) * loss) + lean
    expected = 8 * np.finfo(float).eps * np.sqrt(size) * terms
    assert task.rounding(bound, loss, nuclear) == pytest.approx(expected)
    assert whitening.MENDED == 30.0


def test_slices_of_a_landscape_point_by_point():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((3, 3))
    net = overt.TiedAutoencoder(A @ A.T, 2, overt.Dropout(0.3))
    found = net.landscape()
    center, first, second = rng.standard_normal((3, 3, 2))
    axis, values = found.slice(center, first, second, 1.5, 4)
    np.testing.assert_allclose(axis, [-1.5, -0.5, 0.5, 1.5])
    for (i, a), (j, b) in itertools.product(enumerate(axis), repeat=2):
        U = center + a * first + b * second
        norms = np.sum(U**2, axis=0)
        expected = np.sum((A @ A.T - U @ U.T) ** 2) + 0.3 / 0.7 * np.sum(norms**2)
        assert values[i, j] == pytest.approx(expected)


def test_descents_of_tied_weights_start_in_turned_coordinates(monkeypatch):
    """R R' = (I + t C)^-1 for t = 0, and between the inverse eigenvalues of C."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((40, 3)) * [3.0, 1.0, 0.4]
    task = overt.TiedAutoencoder(X=X, width=2, noise=overt.Dropout(0.3)).effect
    C, seen = X.T @ X / 40, []
    monkeypatch.setattr(type(task), "_turned", lambda self, R, Z: seen.append((R, Z)) or (R @ Z,))
    U = rng.standard_normal((3, 2))
    ends = list(task._ends(U, 3, 10))
    assert len(ends) == 1 + 4 + 5
    values = np.linalg.eigvalsh(C)
    ts = [0.0, *np.geomspace(1 / values[-1], 1 / values[0], 3)]
    for t, (R, Z) in zip(ts, seen, strict=False):
        np.testing.assert_allclose(R @ R.T, np.linalg.inv(np.eye(3) + t * C), atol=1e-9)
        assert Z.shape == (3, 2)
    for R, Z in seen[4:]:  # t at random, and weights up to ten times what fits best
        inverse = np.linalg.inv(R @ R.T) - np.eye(3)
        t = inverse[0, 0] / C[0, 0]
        np.testing.assert_allclose(inverse, t * C, rtol=1e-9, atol=1e-9)
        assert ts[1] <= t <= ts[-1]
        W = R @ Z
        fit = np.sum(W * (C @ W)) / np.sum((W.T @ W) * (W.T @ C @ W))
        assert 0.1 <= 1 / np.sqrt(abs(fit)) <= 10
