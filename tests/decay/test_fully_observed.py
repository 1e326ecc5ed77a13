"""Minima and thresholds in closed form, if every entry is observed."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from overt import Entries, InputError
from overt.decay import balanced, existence, minima, rank_thresholds

SPECTRUM = np.array([1.6, 1.1, 0.7])


def observe(M):
    return Entries.from_matrix(np.asarray(M, dtype=float))


def matrix_of(s, shape=(3, 4), seed=0):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((shape[0], len(s))))[0]
    V = np.linalg.qr(rng.standard_normal((shape[1], len(s))))[0]
    return U * s @ V.T


def descend(M, weights, lam):
    """Minimize mean squared error / 2 + lam |theta|^2 by SciPy; return the loss and the product."""
    shapes = [W.shape for W in weights]
    ends = np.cumsum([W.size for W in weights])[:-1]

    def value(theta):
        layers = [
            p.reshape(s) for p, s in zip(np.split(theta, ends), shapes, strict=True)
        ]
        below = [np.eye(M.shape[1])]
        for W in layers:
            below.append(W @ below[-1])
        D = (below[-1] - M) / M.size
        slopes = []
        for W, x in zip(layers[::-1], below[-2::-1], strict=True):
            slopes.append((D @ x.T + 2 * lam * W).ravel())
            D = W.T @ D
        loss = np.mean((below[-1] - M) ** 2) / 2 + lam * np.sum(theta**2)
        return loss, np.concatenate(slopes[::-1])

    theta = np.concatenate([W.ravel() for W in weights])
    options = {"maxiter": 20_000, "maxfun": 100_000, "gtol": 1e-12, "ftol": 1e-16}
    found = minimize(value, theta, jac=True, method="L-BFGS-B", options=options)
    layers = [
        p.reshape(s) for p, s in zip(np.split(found.x, ends), shapes, strict=True)
    ]
    A = layers[0]
    for W in layers[1:]:
        A = W @ A
    return found.fun, A


@pytest.mark.parametrize("depth", [3, 4])
def test_minima_are_the_leading_singular_directions_and_no_others(depth):
    """Each subset of directions is disturbed, and descends by SciPy: only prefixes return."""
    M = matrix_of(SPECTRUM)
    lam = 0.004
    U, _, Vt = np.linalg.svd(M, full_matrices=False)
    found = minima(observe(M), depth, lam)
    assert [m.rank for m in found] == [0, 1, 2, 3]
    assert all(m.verified and m.isolated and m.proof == "closed form" for m in found)
    assert found.unseen == {1: 0.0, 2: 0.0, 3: 0.0}
    a = np.linalg.svd(found[3].matrix, compute_uv=False)
    rng = np.random.default_rng(0)
    for count in range(4):
        for used in combinations(range(3), count):
            A = sum((a[p] * np.outer(U[:, p], Vt[p]) for p in used), np.zeros(M.shape))
            start = [
                W + 1e-3 * rng.standard_normal(W.shape) for W in balanced(A, depth, 3)
            ]
            at = np.mean((A - M) ** 2) / 2 + lam * depth * np.sum(
                a[list(used)] ** (2 / depth)
            )
            loss, end = descend(M, start, lam)
            if used == tuple(range(count)):
                assert loss == pytest.approx(at, rel=1e-7)
                np.testing.assert_allclose(end, found[count].matrix, atol=1e-4)
                assert found[count].loss == pytest.approx(at, rel=1e-12)
            else:
                assert loss < at - 1e-4


def test_descents_end_on_the_ladder():
    M = matrix_of(SPECTRUM)
    lam = 0.02
    losses = [m.loss for m in minima(observe(M), 3, lam)]
    rng = np.random.default_rng(1)
    for _ in range(20):
        start = [rng.standard_normal(W.shape) for W in balanced(M, 3, 3)]
        loss, _ = descend(M, start, lam)
        assert np.min(np.abs(np.array(losses) - loss)) < 1e-8


@pytest.mark.parametrize("depth", [3, 4, 7])
def test_thresholds_by_a_grid_of_one_number(depth):
    """A 1 x 1 matrix: the loss of a > 0 is a curve, whose minima a grid shows."""
    s = 0.8
    a = np.linspace(0, 1, 200_001)
    found = rank_thresholds(observe([[s]]), depth)
    for lam, exists, optimal in (
        (0.999 * found.optimal[0], True, True),
        (1.001 * found.optimal[0], True, False),
        (0.999 * found.exists[0], True, False),
        (1.001 * found.exists[0], False, False),
    ):
        loss = (a - s) ** 2 / 2 + lam * depth * a ** (2 / depth)
        inner = (loss[1:-1] < loss[:-2]) & (loss[1:-1] < loss[2:])
        assert inner.any() == exists
        assert (np.argmin(loss) > 0) == optimal
        ladder = minima(observe([[s]]), depth, lam)
        assert [m.rank for m in ladder] == [0, 1][: 1 + exists]
        if exists:
            assert ladder[1].matrix[0, 0] == pytest.approx(a[1:-1][inner][0], abs=1e-5)
            assert (ladder[1].loss < ladder[0].loss) == optimal


def test_ranks_vanish_and_win_at_their_thresholds():
    problem = observe(matrix_of(SPECTRUM))
    found = rank_thresholds(problem, 3)
    np.testing.assert_allclose(found.singular_values, SPECTRUM)
    for q in (1, 2, 3):
        assert existence(problem, 3, q) == found.exists[q - 1]
        largest = []
        best = []
        for factor in (0.99, 1.01):
            largest.append(minima(problem, 3, factor * found.exists[q - 1])[-1].rank)
            ladder = minima(problem, 3, factor * found.optimal[q - 1])
            best.append(min(ladder, key=lambda m: m.loss).rank)
        assert largest == best == [q, q - 1]


def test_any_size_is_solved():
    M = matrix_of(np.linspace(3, 1, 40), (300, 200))
    lam = 1e-6
    found = minima(observe(M), 3, lam)
    assert [m.rank for m in found] == list(range(41))
    assert all(m.verified for m in found)
    assert np.isnan(found[40].curvature)
    assert min(found, key=lambda m: m.loss).rank == 40
    assert [m.kind for m in found[39:]] == ["underestimating", "exact"]


@pytest.mark.parametrize("unit", [1e-5, 1e5])
def test_units_do_not_matter(unit):
    M = matrix_of(SPECTRUM)
    plain = minima(observe(M), 3, 0.004)
    scaled = minima(observe(unit * M), 3, 0.004 * unit ** (2 - 2 / 3))
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(b.matrix / unit, a.matrix, atol=1e-9)
    ratio = (
        rank_thresholds(observe(unit * M), 3).exists
        / rank_thresholds(observe(M), 3).exists
    )
    np.testing.assert_allclose(ratio, unit ** (4 / 3))


def test_two_layers_shrink_every_singular_value():
    M = matrix_of(SPECTRUM)
    lam = 0.04
    (only,) = minima(observe(M), 2, lam)
    s = np.linalg.svd(only.matrix, compute_uv=False)
    np.testing.assert_allclose(
        s, np.maximum(SPECTRUM - 2 * lam * M.size, 0), atol=1e-12
    )
    loss, A = descend(M, [np.full((3, 4), 0.3), np.eye(3)], lam)
    assert only.loss == pytest.approx(loss)
    np.testing.assert_allclose(only.matrix, A, atol=1e-5)
    assert rank_thresholds(observe(M), 2).exists[0] == pytest.approx(SPECTRUM[0] / 24)
    assert existence(observe(np.eye(2)), 2, 1) == 0  # both vanish at once


def test_what_is_not_fully_observed_is_refused():
    with pytest.raises(InputError, match="every entry of the matrix once"):
        rank_thresholds(Entries([0, 1], [0, 1], [1.0, 2.0]), 3)
    twice = Entries([0, 0, 1, 1], [0, 0, 1, 0], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(InputError, match="every entry of the matrix once"):
        rank_thresholds(twice, 3)
