"""Minima by rank: a table found by descent, closed forms against search, derivatives."""

import numpy as np
import pytest

from overt import Entries, spectral
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
        {
            (0.025, 2): 0.780,
            (0.025, 1): 1.330,
            (0.00025, 2): 0.519,
            (0.00025, 1): 3.781,
        },
    ),
    (3, 0.1): (
        (0.0456, 0.0930),
        {
            (0.025, 2): 0.251,
            (0.025, 1): 1.449,
            (0.00025, 2): 0.201,
            (0.00025, 1): 7.119,
        },
    ),
    (4, 0.25): (
        (0.0087, 0.0884),
        {(0.025, 1): 1.401, (0.00025, 2): 0.840, (0.00025, 1): 3.822},
    ),
    (4, 0.1): (
        (0.0257, 0.0812),
        {
            (0.025, 2): 0.626,
            (0.025, 1): 1.545,
            (0.00025, 2): 0.305,
            (0.00025, 1): 7.584,
        },
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
    searched = minima(
        disguised(epsilon), depth, lam, starts=6, fitting_rank=1, every=True, seed=1
    )
    assert [m.rank for m in searched] == [m.rank for m in exact]
    assert {m.proof for m in searched} == {"origin", "numeric"}
    assert {m.proof for m in exact} == {"origin", "closed form"}
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
        assert m.loss == pytest.approx(
            m.cost + 1e-3 * least_norm(m.matrix, 3), rel=1e-12
        )


def test_two_layers_have_one_minimum():
    """With L = 2 the loss is convex in A: cost + 2 lam |A|_*."""
    cp = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(4)
    problem = Entries.sample(rng.standard_normal((3, 3)), 7, seed=rng)
    found = minima(problem, 2, 0.02, starts=3, fitting_rank=1)
    X = cp.Variable((3, 3))
    fit = cp.sum_squares(X[problem.rows, problem.cols] - problem.values) / (
        2 * len(problem)
    )
    best = cp.Problem(cp.Minimize(fit + 2 * 0.02 * cp.normNuc(X))).solve(
        solver="CLARABEL"
    )
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
        return layers.flatten(
            layers.gradient(problem, layers.unflatten(x, shapes), 0.03)
        )

    t = 1e-5
    for _ in range(3):
        d = rng.standard_normal(theta.size)
        assert slope(theta) @ d == pytest.approx(
            (value(theta + t * d) - value(theta - t * d)) / (2 * t), rel=1e-5, abs=1e-8
        )
        H = layers.hessian(problem, layers.unflatten(theta, shapes), 0.03)
        np.testing.assert_allclose(
            H @ d,
            (slope(theta + t * d) - slope(theta - t * d)) / (2 * t),
            rtol=1e-5,
            atol=1e-7,
        )
        np.testing.assert_allclose(H, H.T, atol=1e-14)


@pytest.mark.parametrize("width", [None, 3, 5])
def test_balanced_factors(width):
    A = np.random.default_rng(0).standard_normal((4, 3))
    weights = balanced(A, 4, width)
    np.testing.assert_allclose(layers.product(weights), A, atol=1e-12)
    assert layers.imbalance(weights) < 1e-12
    assert sum(np.sum(W**2) for W in weights) == pytest.approx(least_norm(A, 4))


def pattern(matrix):
    return Entries.from_matrix(np.array(matrix, dtype=float))


def test_compiled_loss_and_gradient():
    from overt.decay.descent import loss_gradient

    rng = np.random.default_rng(0)
    for depth in (2, 3, 4):
        problem = Entries.sample(rng.standard_normal((5, 3)), 9, seed=rng)
        shapes = layers.shapes(problem.shape, depth, 4)
        weights = [rng.standard_normal(s) for s in shapes]
        theta, sizes = layers.flatten(weights), np.array([3, *(m for m, _ in shapes)])
        g = np.empty_like(theta)
        value = loss_gradient(
            theta, sizes, problem.rows, problem.cols, problem.values, 0.02, g
        )
        assert value == pytest.approx(layers.loss(problem, weights, 0.02), rel=1e-13)
        np.testing.assert_allclose(
            g, layers.flatten(layers.gradient(problem, weights, 0.02)), atol=1e-13
        )


def test_continuum_of_minima_at_depth_two():
    """[[d, x], [x, d]], |x| <= d, all have loss C + 2 lam 2d, the least."""
    nan, lam = np.nan, 1e-3
    found = minima(pattern([[1, nan], [nan, 1]]), 2, lam)
    assert [(m.rank, m.isolated, m.dimension) for m in found] == [
        (1, False, 1),
        (2, False, 1),
    ]
    d = 1 - 4 * lam  # minimizes (1/4) 2 (1-d)^2 + 2 lam 2d
    for m in found:
        assert m.loss == pytest.approx(0.5 * (1 - d) ** 2 + 4 * lam * d, rel=1e-9)
        np.testing.assert_allclose(np.diag(m.matrix), d, rtol=1e-7)
        assert m.matrix[0, 1] == pytest.approx(m.matrix[1, 0], abs=1e-6)


@pytest.mark.parametrize(("n", "unseen_columns"), [(3, 0), (5, 0), (3, 1)])
def test_identity_has_a_grassmannian_of_minima(n, unseen_columns):
    """A = s P for any projection P of rank r: r (n - r) dimensions.

    With a column that is never seen, minima are searched; without, they are in closed form.
    """
    unseen = np.full((n, unseen_columns), np.nan)
    found = minima(pattern(np.hstack([np.eye(n), unseen])), 3, 1e-3)
    assert found[-1].proof == ("numeric" if unseen_columns else "closed form")
    assert [(m.rank, m.dimension) for m in found] == [
        (r, r * (n - r)) for r in range(n + 1)
    ]
    for m in found:
        assert m.isolated == (m.dimension == 0)
        s = np.linalg.svd(m.matrix, compute_uv=False)[: m.rank]
        A = m.matrix[:, :n]
        np.testing.assert_allclose(A @ A, s.max(initial=0) * A, atol=1e-6)
        np.testing.assert_allclose(m.matrix[:, n:], 0, atol=1e-6)


def test_default_finds_what_many_descents_find():
    """Oracle: 150 descents of SciPy's optimizer on layers' loss, in the network of each width."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(3)
    problem, depth, lam = (
        Entries.sample(rng.standard_normal((4, 3)), 8, seed=rng),
        3,
        1e-3,
    )
    found = minima(problem, depth, lam, every=True)
    ends = []
    for k in range(150):
        shapes = layers.shapes(problem.shape, depth, 1 + k % 3)

        def objective(x, shapes=shapes):
            W = layers.unflatten(x, shapes)
            g = layers.gradient(problem, W, lam)
            return layers.loss(problem, W, lam), layers.flatten(g)

        size = sum(m * n for m, n in shapes)
        end = minimize(
            objective, rng.standard_normal(size), jac=True, options={"gtol": 1e-7}
        )
        ends.append(layers.product(layers.unflatten(end.x, shapes)))
    seen = [any(np.linalg.norm(A - m.matrix) < 1e-3 for m in found) for A in ends]
    assert np.mean(seen) >= 0.99
    assert set(found.starts) == set(found.unseen) == {1, 2, 3}
    assert all(n >= 192 for n in found.starts.values())
    assert all(0 < share < 0.05 for share in found.unseen.values())


def test_kinds_say_whether_they_are_proved():
    nan = np.nan
    whole = smallest_fitting_rank(pattern([[1, 2, nan], [3, 4, nan], [nan, 1, 1]]))
    assert whole == 2
    # No 2 x 2 block is seen whole, and yet the cycle of six entries has no rank-1 completion.
    cycle = smallest_fitting_rank(pattern([[1, 2, nan], [nan, 1, 1], [1, nan, 1]]))
    assert cycle == 2
    kinds = {
        m.rank: m.kind_proved for m in minima(pattern([[1, 2], [nan, 1]]), 3, 1e-3)
    }
    assert all(kinds.values())
    unsure = minima(pattern([[1, 2, nan], [nan, 1, 1], [1, nan, 1]]), 3, 1e-3)
    assert {m.rank: m.kind_proved for m in unsure if m.rank < 3} == {
        0: True,
        1: False,
        2: False,
    }
    assert smallest_fitting_rank(pattern([[0, nan], [0, 0]])) == 0


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1e3, 1e6])
def test_units_of_the_values_do_not_change_ranks_and_kinds(unit):
    """[[1, *], [.25, 1]] times 1000 was said to need rank 2, and kinds of minima flipped."""
    rng = np.random.default_rng(0)
    low = np.outer(rng.standard_normal(5), rng.standard_normal(4))
    seen = np.nonzero(rng.random((5, 4)) < 0.8)
    for rows, cols, values, shape in (
        ([0, 1, 1], [0, 0, 1], np.array([1.0, 0.25, 1.0]), (2, 2)),
        (*seen, low[seen], (5, 4)),
    ):
        problem = Entries(rows, cols, values, shape)
        scaled = Entries(rows, cols, values * unit, shape)
        assert smallest_fitting_rank(scaled) == smallest_fitting_rank(problem) == 1
    problem, scaled = (
        two_by_two(0.25),
        Entries([0, 1, 1], [0, 0, 1], np.array([1.0, 0.25, 1.0]) * unit, (2, 2)),
    )
    plain = minima(problem, 3, 1e-3, starts=16)
    other = minima(scaled, 3, 1e-3 * unit ** (2 - 2 / 3), starts=16)
    assert [(m.rank, m.kind) for m in other] == [(m.rank, m.kind) for m in plain]
    for mine, theirs in zip(other, plain, strict=True):
        np.testing.assert_allclose(
            mine.matrix / unit, theirs.matrix, rtol=1e-6, atol=1e-8
        )
        assert mine.loss == pytest.approx(theirs.loss * unit**2, rel=1e-8)


def test_entries_observed_twice_are_fitted_by_their_mean():
    """Minima of every rank were "underestimating": no matrix fits two values of one entry."""
    values = [2.0, 2.5, 1.0, 3.0]
    problem = Entries([0, 0, 0, 1], [0, 0, 1, 1], values, (2, 2))
    assert smallest_fitting_rank(problem) == 1
    found = {m.rank: m for m in minima(problem, 3, 1e-3, starts=16)}
    assert (found[0].kind, found[1].kind) == ("underestimating", "exact")
    assert found[1].kind_proved


def test_the_family_needs_no_search():
    """`overt jumps` compiled a descent for seconds, to find again what it had in closed form."""
    found = minima(two_by_two(0.25), 3, 1e-3)
    assert set(found.starts.values()) == {0}
    assert [m.rank for m in found] == [0, 1, 2]
    assert all(m.kind_proved for m in found)
