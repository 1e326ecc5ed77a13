"""Minima by rank: a table found by descent, closed forms against search, derivatives."""

import numpy as np
import pytest

from overt import Entries, InputError, spectral
from overt.decay import (
    balanced,
    existence,
    family,
    layers,
    minima,
    smallest_fitting_rank,
    two_by_two,
)

# depth, epsilon: (thresholds of rank 2 and 1), missing entry by (weight decay, rank).
TABLE = {
    (3, 0.25): (
        (0.0259, 0.1010),
        {(0.025, 2): 0.780, (0.025, 1): 1.330, (0.00025, 2): 0.519, (0.00025, 1): 3.781},
    ),
    (3, 0.1): (
        (0.0456, 0.0930),
        {(0.025, 2): 0.251, (0.025, 1): 1.449, (0.00025, 2): 0.201, (0.00025, 1): 7.119},
    ),
    (4, 0.25): (
        (0.0087, 0.0884),
        {(0.025, 1): 1.401, (0.00025, 2): 0.840, (0.00025, 1): 3.822},
    ),
    (4, 0.1): (
        (0.0257, 0.0812),
        {(0.025, 2): 0.626, (0.025, 1): 1.545, (0.00025, 2): 0.305, (0.00025, 1): 7.584},
    ),
}


def disguised(epsilon):
    """The 2 x 2 problem, changed too little to matter but enough to hide its closed form."""
    return Entries([0, 1, 1], [0, 0, 1], [1.0, epsilon, 1 + 1e-13], (2, 2))


def least_norm(A, depth):
    """The least |theta|^2 of weights with product A."""
    return spectral.factorization_cost(np.linalg.svd(A, compute_uv=False), depth)


@pytest.mark.parametrize("key", TABLE)
def test_table_of_minima(key):
    depth, epsilon = key
    thresholds, expected = TABLE[key]
    for rank, limit in zip((2, 1), thresholds, strict=True):
        # The table was found by bisection from below and is cut off, not rounded.
        found = existence(two_by_two(epsilon), depth, rank)
        assert limit - 6e-5 <= found <= limit + 1e-4
    for lam in (0.025, 0.00025):
        found = minima(two_by_two(epsilon), depth, lam, starts=1)
        missing = {(lam, m.rank): m.matrix[0, 1] for m in found if m.rank}
        wanted = {k: v for k, v in expected.items() if k[0] == lam}
        assert missing.keys() == wanted.keys()
        for k, value in wanted.items():
            assert missing[k] == pytest.approx(value, abs=6e-4)
        assert [m.kind for m in found if m.rank == 0] == ["underestimating"]


@pytest.mark.parametrize(("depth", "epsilon", "lam"), [(3, 0.25, 0.02), (4, 0.1, 0.01)])
def test_search_finds_what_the_closed_form_says(depth, epsilon, lam):
    exact = minima(two_by_two(epsilon), depth, lam, starts=1, every=True)
    searched = minima(disguised(epsilon), depth, lam, starts=6, fitting_rank=1, every=True, seed=1)
    assert [m.rank for m in searched] == [m.rank for m in exact]
    assert {m.proof for m in searched} == {"origin", "numeric"}
    for a, b in zip(searched, exact, strict=True):
        np.testing.assert_allclose(a.matrix, b.matrix, atol=1e-6)
        assert a.loss == pytest.approx(b.loss, abs=1e-9)


def test_spurious_minimum_of_rank_one():
    """The family has a second rank-1 minimum, with a negative missing entry, that never fits."""
    for lam in (1e-3, 1e-4):
        found = minima(two_by_two(0.25), 3, lam, starts=1, every=True)
        low, high = [m for m in found if m.rank == 1]
        assert low.matrix[0, 1] > 0 > high.matrix[0, 1]
        assert low.verified
        assert high.verified
        assert high.cost > 0.005 > low.cost


def test_followed_threshold_agrees_with_the_exact_one():
    exact = existence(two_by_two(0.25), 3, 2)
    followed = existence(disguised(0.25), 3, 2, starts=4)
    assert exact * (1 - 1e-3) <= followed <= exact * (1 + 1e-6)


def test_critical_points_are_critical():
    for rank in (1, 2):
        for A in family.critical_points(0.25, 3, 0.01, rank):
            weights = balanced(A, 3, 2, rank)
            gradient = layers.flatten(layers.gradient(two_by_two(0.25), weights, 0.01))
            assert np.abs(gradient).max() < 1e-13


def test_kinds_on_a_small_problem():
    rng = np.random.default_rng(0)
    truth = np.outer([1.0, 2.0, -1.0], [1.0, 0.5, 1.5])
    problem = Entries.sample(truth, 6, seed=rng)
    assert smallest_fitting_rank(problem, starts=4) == 1
    found = minima(problem, 3, 1e-3, starts=4)
    kinds = {m.rank: m.kind for m in found}
    assert kinds[0] == "underestimating"
    assert kinds[1] == "exact"
    assert all(kind == "overestimating" for rank, kind in kinds.items() if rank > 1)
    for m in found:
        assert m.verified
        assert m.gradient < 1e-8
        assert m.curvature > 0
        assert m.imbalance < 1e-12
        assert m.loss == pytest.approx(m.cost + 1e-3 * least_norm(m.matrix, 3), rel=1e-12)


def test_two_layers_have_one_minimum():
    """With L = 2 the loss is convex in A: cost + 2 lam |A|_*."""
    cp = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(4)
    problem = Entries.sample(rng.standard_normal((3, 3)), 7, seed=rng)
    found = minima(problem, 2, 0.02, starts=3, fitting_rank=1)
    X = cp.Variable((3, 3))
    fit = cp.sum_squares(X[problem.rows, problem.cols] - problem.values) / (2 * len(problem))
    best = cp.Problem(cp.Minimize(fit + 2 * 0.02 * cp.normNuc(X))).solve(solver="CLARABEL")
    assert len(found) == 1
    assert found[0].loss == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_gradient_and_hessian_against_differences(depth):
    rng = np.random.default_rng(depth)
    problem = Entries.sample(rng.standard_normal((3, 4)), 9, seed=rng)
    shapes = layers.shapes(problem.shape, depth, 2)
    theta = layers.flatten([0.5 * rng.standard_normal(s) for s in shapes])

    def value(x):
        return layers.loss(problem, layers.unflatten(x, shapes), 0.03)

    def slope(x):
        return layers.flatten(layers.gradient(problem, layers.unflatten(x, shapes), 0.03))

    t = 1e-5
    for _ in range(3):
        d = rng.standard_normal(theta.size)
        assert slope(theta) @ d == pytest.approx(
            (value(theta + t * d) - value(theta - t * d)) / (2 * t), rel=1e-5, abs=1e-8
        )
        H = layers.hessian(problem, layers.unflatten(theta, shapes), 0.03)
        np.testing.assert_allclose(
            H @ d, (slope(theta + t * d) - slope(theta - t * d)) / (2 * t), rtol=1e-5, atol=1e-7
        )
        np.testing.assert_allclose(H, H.T, atol=1e-14)


@pytest.mark.parametrize("width", [None, 3, 5])
def test_balanced_factors(width):
    A = np.random.default_rng(0).standard_normal((4, 3))
    weights = balanced(A, 4, width)
    np.testing.assert_allclose(layers.product(weights), A, atol=1e-12)
    assert layers.imbalance(weights) < 1e-12
    assert sum(np.sum(W**2) for W in weights) == pytest.approx(least_norm(A, 4))


def test_bad_input():
    problem = two_by_two(0.5)
    large = Entries([0], [0], [1.0], (60, 60))
    for call in (
        lambda: minima(problem, 1),
        lambda: minima(problem, 3, 0.0),
        lambda: minima(large),
        lambda: minima(np.eye(2)),
        lambda: existence(problem, 3, 3),
        lambda: family.existence(0.5, 3, 3),
        lambda: family.critical_points(0.5, 2, 0.1, 1),
    ):
        with pytest.raises(InputError):
            call()
