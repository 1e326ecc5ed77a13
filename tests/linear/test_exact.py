"""What was once wrong or only bounded: tiny variances or noise, repeated values, unlike units."""

import time
from fractions import Fraction
from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest

import overt
from overt.linear.bounds import UnitShares
from overt.linear.descent import descend
from overt.linear.landscape import feasible_sets
from overt.linear.regression import exact_product


def exact_objective(X, Y, U, V, lam):
    """The dropout objective of the stored numbers, in rational arithmetic."""
    X, Y, U, V = (
        [[Fraction(float(x)) for x in row] for row in A] for A in (X, Y, U, V)
    )
    H = [
        [sum(x * v[k] for x, v in zip(row, V, strict=True)) for k in range(len(U[0]))]
        for row in X
    ]
    loss = sum(
        (y - sum(h * u for h, u in zip(hidden, out, strict=True))) ** 2
        for hidden, row in zip(H, Y, strict=True)
        for y, out in zip(row, U, strict=True)
    )
    units = range(len(U[0]))
    penalty = sum(sum(u[k] ** 2 for u in U) * sum(h[k] ** 2 for h in H) for k in units)
    return (loss + Fraction(lam) * penalty) / len(X)


@pytest.mark.parametrize("scale", [1e-14, 1e-30, 1e20])
def test_an_input_of_small_variance_counts(scale):
    M = [[1, 10 / np.sqrt(scale)]]
    best = overt.LinearNetwork(
        M, 1, overt.Dropout(0.5), second_moment=np.diag([1, scale])
    ).solve()
    assert best.objective == pytest.approx(50.5, rel=1e-12)
    assert best.status == "optimal"


def test_units_of_the_inputs_change_nothing():
    rng = np.random.default_rng(0)
    X, Y, units = (
        rng.standard_normal((20, 4)),
        rng.standard_normal((20, 3)),
        [1, 1e-9, 1e7, 1e3],
    )
    for noise in (overt.Dropout(0.3), overt.KeepExactly(2), overt.DropConnect(0.3)):
        one = overt.LinearNetwork(X=X, Y=Y, width=4, noise=noise).solve()
        other = overt.LinearNetwork(X=X * units, Y=Y, width=4, noise=noise).solve()
        assert other.objective == pytest.approx(one.objective, rel=1e-9)
        np.testing.assert_allclose(other.product * units, one.product, atol=1e-6)


UNITS = {
    "dropout": overt.Dropout(0.3),
    "per unit": overt.Dropout([0.1, 0.0, 0.5, 0.3]),
    "kept": overt.KeepExactly(3),
    "blocks": overt.DropBlock(0.3, 2),
    "sliding": overt.DropBlock(0.3, 2, "sliding"),
    "weights": overt.DropConnect(0.3),
    "covariance": overt.CovarianceNoise(np.full(4, 0.7), 0.3 * np.eye(4) + 0.1),
}


@pytest.mark.parametrize("unit", [1e-20, 1e20])
@pytest.mark.parametrize("name", UNITS)
def test_units_of_targets_and_moments_scale_the_answer(name, unit):
    """Rank 2 of 3 inputs, one of them a sum of the others: what is zero is told by ratios."""
    rng, root = np.random.default_rng(3), np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    target, C = (
        np.outer([1.0, 2.0], [1.0, 0.0, 1.0]) + 0.3 * rng.standard_normal((2, 3)),
        root @ root.T,
    )
    one, outputs, inputs = (
        overt.LinearNetwork(a * target, 4, UNITS[name], second_moment=b * C).solve()
        for a, b in ((1, 1), (unit, 1), (1, unit))
    )
    for other, factor, scale in ((outputs, unit, unit**2), (inputs, 1, unit)):
        assert other.objective == pytest.approx(scale * one.objective, rel=1e-6, abs=0)
        bounds = other.certificate.lower_bound, scale * one.certificate.lower_bound
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-6, abs=0)
        assert (other.rank, other.status) == (one.rank, one.status)
        np.testing.assert_allclose(
            other.product @ root, factor * one.product @ root, atol=1e-4 * factor
        )


@pytest.mark.parametrize("unit", [1e-20, 1e20])
def test_units_scale_the_answers_of_other_networks(unit):
    rng = np.random.default_rng(4)
    M = rng.standard_normal((3, 3))
    root = M @ M.T
    for build, power in (
        (lambda a: overt.DeepLinearNetwork(a * M, (3, 4), (0.3, 0.5)), 2),
        (lambda a: overt.TiedAutoencoder(a * root, 3, overt.Dropout(0.3)), 2),
        (
            lambda a: overt.LinearNetwork(
                M, 3, overt.Dropout(0.3), second_moment=a * root
            ),
            1,
        ),
        (lambda a: overt.DeepLinearNetwork(M, (3, 4), 0.3, second_moment=a * root), 1),
    ):
        one, other = build(1.0).solve(), build(unit).solve()
        assert other.objective == pytest.approx(
            unit**power * one.objective, rel=1e-6, abs=0
        )
        assert (other.rank, other.status) == (one.rank, one.status)
        found = other.certificate.lower_bound / unit**power
        assert found == pytest.approx(one.certificate.lower_bound, rel=1e-6)


def test_units_of_a_second_moment_do_not_hide_correlations():
    A = np.array([[1.0, 0.0], [0.8, 0.6]])
    units, M = np.array([1e-9, 1e9]), np.array([[1.0, -2.0], [0.5, 1.0]])
    C = A @ A.T
    one, other = (
        overt.LinearNetwork(
            M / u, 2, overt.DropConnect(0.4), second_moment=C * np.outer(u, u)
        )
        for u in (np.ones(2), units)
    )
    assert other.solve().objective == pytest.approx(one.solve().objective, rel=1e-9)


@pytest.mark.parametrize("drop_prob", [1 - 1e-9, 1 - 1e-12, 1 - 1e-15])
@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0, 0.1]])
def test_the_strongest_noise_leaves_nothing(drop_prob, values):
    M = np.diag(values)
    deep = overt.DeepLinearNetwork(M, (3, 2, 4), drop_prob).solve()
    shallow = overt.LinearNetwork(M, 3, overt.Dropout(drop_prob)).solve()
    for best in (deep, shallow):
        assert best.status == "optimal"
        assert best.objective == pytest.approx(np.sum(M**2), rel=1e-6)


def test_what_was_cut_is_told():
    near = 1 - 1e-17
    C = np.array([[1.0, near], [near, 1.0]])
    with pytest.warns(UserWarning, match="second_moment has directions that are zero"):
        overt.LinearNetwork([[1e8, -1e8]], 1, overt.Dropout(0.5), second_moment=C)
    for M in ([[1.0, 2.0]], [[0.0, 0.0]]):
        overt.LinearNetwork(M, 1, overt.Dropout(0.5), second_moment=C)  # says nothing


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10, 1e12, 1e13])
def test_the_bound_is_below_the_exact_objective_of_ill_conditioned_data(condition):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 10)))[0] for n in (30, 10))
    X, Y = (
        left * np.geomspace(1, 1 / condition, 10) @ right.T,
        rng.standard_normal((30, 6)),
    )
    noise = overt.Dropout(0.3)
    best = overt.LinearNetwork(X=X, Y=Y, width=5, noise=noise).solve()
    exact = exact_objective(X, Y, best.U, best.V, noise.strength)
    assert Fraction(best.certificate.lower_bound) <= exact
    assert best.objective == pytest.approx(float(exact), rel=1e-12)
    assert best.status == "optimal"


def test_products_are_rounded_once():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((4, 7)) * 1e5, rng.standard_normal((7, 3))
    B[:, 0] = np.linalg.svd(A)[2][-1]  # A B cancels to rounding
    exact = [
        [
            float(
                sum(Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True))
            )
            for column in B.T.tolist()
        ]
        for row in A.tolist()
    ]
    np.testing.assert_allclose(exact_product(A, B), exact, rtol=1e-13)


@pytest.mark.parametrize("drop_prob", [1e-12, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("width", [4, 6, 12])
def test_weak_noise_is_solved_as_well_as_strong(drop_prob, width):
    M = np.random.default_rng(width).standard_normal((6, 5))
    # Three or six blocks have no exact factors: descent does not see a penalty of 1e-12.
    blocks = overt.DropBlock(max(drop_prob, 1e-9), 2)
    for noise in (overt.Dropout(drop_prob), blocks):
        best = overt.LinearNetwork(M, width, noise).solve()
        if width > 4:
            assert best.status == "optimal"
            leading = overt.penalty.shallow(best.U, best.V, noise)
            rel = 10 * noise.drop_prob
            assert best.objective == pytest.approx(leading, rel=rel, abs=0)
    tied = overt.TiedAutoencoder(M.T @ M, width, overt.Dropout(drop_prob)).solve()
    assert tied.status == "optimal"


def tight_fusion_frame(k, b, n):
    """Whether k projections of rank b can sum to a multiple of the identity of order n.

    Casazza, Fickus, Mixon, Wang and Zhou (2011): complements turn b into n - b, and n into k b - n.
    """
    if k == 1 or n > k * min(b, n - b):
        return False
    b = min(b, n - b)
    if n % b == 0:
        return k >= n // b
    least = -(-n // b) + 1
    return k > least or (k == least and tight_fusion_frame(k, b, k * b - n))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("block_size", [2, 3])
def test_repeated_values_reach_the_bound_exactly_where_fusion_frames_exist(
    n, block_size
):
    for blocks in range(1, 6):
        best = overt.LinearNetwork(
            np.eye(n), block_size * blocks, overt.DropBlock(0.3, block_size)
        )
        q = min(n, block_size * blocks)
        exists = q <= block_size or tight_fusion_frame(blocks, block_size, q)
        assert (best.solve().status == "optimal") == exists, (n, block_size, blocks)


def test_attainment_is_decided_by_majorization_for_single_directions():
    # The first direction fills a place of the blocks of two; the others share one: k >= 3 of them.
    M = np.diag([9.0, 1.0, 0.9, 0.8])
    for blocks in (2, 3):
        best = overt.LinearNetwork(M, 2 * blocks, overt.DropBlock(0.1, 2)).solve()
        assert best.status == ("optimal" if blocks == 3 else "lower_bound")


@pytest.mark.parametrize("seed", range(6))
def test_feasible_sets_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    m, width = np.sort(rng.exponential(size=7))[::-1], int(rng.integers(1, 8))
    lam = float(rng.exponential(2))
    expected = [
        kept
        for size in range(min(width, 7) + 1)
        for kept in combinations(range(7), size)
        if all(m[i] > lam * m[list(kept)].sum() / (width + lam * size) for i in kept)
    ]
    assert list(feasible_sets(m, width, lam)) == expected


def test_landscape_costs_what_it_returns():
    A = np.random.default_rng(0).standard_normal((30, 30))
    net = overt.TiedAutoencoder(A @ A.T, 8, overt.Dropout(0.5))
    began = time.process_time()
    found = net.landscape(max_points=40)
    assert time.process_time() - began < 5  # a search of all sets takes an hour
    assert found.strict_saddle


@pytest.mark.parametrize(
    ("spectrum", "width", "ranks"),
    [
        ([2.0, 0.0], 3, [1]),
        ([1.0] * 4, 4, [4]),
        ([1.0] * 4, 2, [2]),
        ([2.0, 2.0, 1.0, 1.0, 0.5], 5, [2, 4, 5]),
        ([3.0, 1.0, 1.0, 1.0], 3, [1, 3]),
        ([1.0, 1e-9], 2, [1, 2]),
    ],
)
def test_ranks_that_exist_are_reached_and_others_refused(spectrum, width, ranks):
    n = len(spectrum)
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    M = left * spectrum @ right.T
    for rank in range(1, n + 1):
        if rank in ranks:
            p = overt.drop_prob_for_rank(M, width, rank)
            assert 0 <= p < 1
            assert overt.LinearNetwork(M, width, overt.Dropout(p)).solve().rank == rank
        else:
            with pytest.raises(overt.InputError, match=r"rank must be (one|at most)"):
                overt.drop_prob_for_rank(M, width, rank)


def test_a_zero_target_has_no_rank_to_choose():
    with pytest.raises(overt.InputError, match="a target that is zero"):
        overt.drop_prob_for_rank(np.zeros((3, 3)), 2, 1)


def convex_program(s, delta, gamma):
    """The optimum over spectra and shares, by a generic solver."""
    delta, d = np.sort(delta), len(delta)
    top = np.concatenate([s[:d], np.zeros(max(0, d - len(s)))])
    a, x = cp.Variable(d), cp.Variable(d)
    tail = np.triu(np.ones((d, d)))
    held = [a >= 0, x >= 0, tail @ x >= tail @ a]
    if d > 1:
        held += [cp.diff(a) <= 0, cp.diff(x) <= 0]
    # |top - a|^2 + gamma |a|^2, completed to a square so that it is seen to be convex
    cost = (1 + gamma) * cp.sum_squares(a - top / (1 + gamma)) + gamma / (
        1 + gamma
    ) * np.sum(top**2)
    problem = cp.Problem(
        cp.Minimize(cost + cp.sum(cp.multiply(delta, cp.square(x)))), held
    )
    problem.solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
    )
    return problem.value + np.sum(s[d:] ** 2)


@pytest.mark.parametrize("seed", range(12))
def test_unequal_units_equal_the_convex_program_and_carry_their_shares(seed):
    rng = np.random.default_rng(seed)
    n, d = (int(x) for x in rng.integers(1, 7, 2))
    M, delta = rng.standard_normal((n, n + 1)), rng.choice([0.0, 0.1, 0.5, 0.5, 3.0], d)
    gamma = float(rng.choice([0.0, 0.4, -0.9 * delta.min() / d]))
    noise = overt.CovarianceNoise(np.ones(d), np.diag(delta) + gamma)
    best = overt.LinearNetwork(M, d, noise).solve()
    s = np.linalg.svd(M, compute_uv=False)
    assert best.status == "optimal"
    assert best.objective == pytest.approx(
        convex_program(s, delta, gamma), rel=1e-7, abs=1e-9
    )
    units = UnitShares(delta, gamma)
    shares = units.shares(units.shrink(s[:d]))
    np.testing.assert_allclose(
        overt.equalize.importance(best.U, best.V), shares, atol=1e-7
    )


@pytest.mark.parametrize("seed", range(10))
def test_any_multipliers_bound_unequal_units(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    s, delta = np.sort(rng.exponential(size=4))[::-1], rng.uniform(0.1, 2, 5)
    units = UnitShares(delta, 0.3)
    right = units.bound(s)
    y = np.cumsum(rng.exponential(0.2, 5))
    monkeypatch.setattr(UnitShares, "multipliers", lambda self, s: y)
    assert units.bound(s) <= right


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_keeping_exactly_some_units_is_solved_in_closed_form(count):
    M, d = np.diag([3.0, 2.0, 1.0]), 5
    best = overt.LinearNetwork(M, d, overt.KeepExactly(count)).solve()
    assert best.status == "optimal"
    # Planted: with one unit at a time each is the best rank-one map; with all there is no noise.
    if count == 1:
        assert best.objective == pytest.approx(5.0)
    if count == d:
        assert best.objective == pytest.approx(0.0, abs=1e-12)
    masks = np.array(
        [[i in kept for i in range(d)] for kept in combinations(range(d), count)]
    )
    losses = [np.sum((M - (best.U * z * d / count) @ best.V.T) ** 2) for z in masks]
    assert best.objective == pytest.approx(np.mean(losses), abs=1e-12)


def test_sliding_blocks_are_bounded_by_the_support_norm():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((12, 10))
    best = overt.LinearNetwork(M, 12, overt.DropBlock(0.5, 2, "sliding")).solve()
    assert best.certificate.relative_gap < 0.35  # 2.1 with the Frobenius norm


def test_deep_networks_with_equal_values_are_separate_chains():
    # min over q of r s^2 - q s^2 / prod_j (1 + lam q / d_j)
    for r, widths, lam in ((2, (2, 2), 1.0), (4, (4, 4), 0.3), (4, (8, 8), 1.0)):
        best = overt.DeepLinearNetwork(np.eye(r), widths, lam / (1 + lam)).solve()
        chains = min(
            r - q / np.prod([1 + lam * q / d for d in widths])
            for q in range(1, r + 1)
            if all(d % q == 0 for d in widths)
        )
        assert best.objective == pytest.approx(chains, rel=1e-9)


def random_noise(rng, d):
    """A noise of every kind that has a closed form, beside those that have none."""
    K = rng.standard_normal((d, d))
    delta, gamma = rng.uniform(0.05, 2), rng.uniform(-0.05 / d, 1)
    return {
        "per unit": overt.Dropout(rng.choice([0, 1e-6, 0.1, 0.3, 0.8, 0.95], d)),
        "keep exactly": overt.KeepExactly(int(rng.integers(1, d + 1))),
        "exchangeable": overt.CovarianceNoise(
            np.full(d, 0.7), 0.49 * (delta * np.eye(d) + gamma)
        ),
        "sliding": overt.DropBlock(0.4, int(rng.integers(1, d + 1)), "sliding"),
        "any": overt.CovarianceNoise(rng.uniform(0.5, 2, d), K @ K.T / d),
    }


@pytest.mark.parametrize("seed", range(10))
def test_no_status_is_contradicted_by_restarts(seed):
    rng = np.random.default_rng(seed)
    m, n, d = (int(x) for x in rng.integers(1, 6, 3))
    M = rng.standard_normal((m, n)) * 10 ** rng.uniform(-4, 4)
    A, units = rng.standard_normal((n, n)), 10 ** rng.uniform(-3, 3, n)
    C = (A @ A.T + 0.01 * np.eye(n)) * np.outer(units, units) if seed % 2 else None
    for name, noise in random_noise(rng, d).items():
        net = overt.LinearNetwork(M, d, noise, second_moment=C)
        best = net.solve()
        if name not in ("sliding", "any"):
            assert best.status == "optimal", name
        assert best.certificate.gap >= 0, name
        T = net.effect.regression.T
        size = np.sqrt(np.linalg.norm(T) / d)
        for _ in range(3):
            U, P = (
                size * rng.standard_normal((m, d)),
                size * rng.standard_normal((T.shape[1], d)),
            )
            U, V = descend(net.effect.value, [U, net.effect.regression.unwhiten(P)])
            reached = net.objective(U, V)
            assert best.certificate.lower_bound <= reached * (1 + 1e-12), name
            assert best.objective <= reached * (1 + 1e-6) + 1e-13 * np.sum(T**2), name
