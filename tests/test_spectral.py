import math
from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from overt import CovarianceNoise, DropBlock, DropConnect, Dropout, spectral
from overt.spectral import KSupport, Schatten, SquaredNuclear

NORMS = {
    "nuclear": SquaredNuclear(),
    "support-1": KSupport(1),
    "support-2": KSupport(2),
    "support-3": KSupport(3),
    "support-9": KSupport(9),
    "schatten-1": Schatten(1),
    "schatten-2": Schatten(2),
    "schatten-inf": Schatten(math.inf),
}
WITHOUT_PROX = {"schatten-1.5": Schatten(1.5), "schatten-4": Schatten(4)}
ALL_NORMS = NORMS | WITHOUT_PROX

every_norm = pytest.mark.parametrize("norm", ALL_NORMS.values(), ids=ALL_NORMS.keys())
every_prox = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())

# Multiples of 1/8 bring zeros and ties; the floats bring everything else.
entries = st.one_of(st.integers(-80, 80).map(lambda i: i / 8), st.floats(0.01, 10))
spectra = st.lists(entries, min_size=1, max_size=7).map(np.array)
weights = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))


def objective(norm, s, a, weight):
    return np.sum((s - a) ** 2) + weight * norm.value(a)


@every_norm
@given(s=spectra, factor=st.floats(-20, 20))
def test_value_and_dual_are_homogeneous_of_degree_two(norm, s, factor):
    assume(abs(factor) > 1e-3)
    for squared in (norm.value, norm.dual):
        assert squared(factor * s) == pytest.approx(
            factor**2 * squared(s), rel=1e-12, abs=1e-15
        )


@every_norm
@given(data=st.data())
def test_roots_of_value_and_dual_obey_the_triangle_inequality(norm, data):
    s = data.draw(spectra)
    t = np.array(data.draw(st.lists(entries, min_size=len(s), max_size=len(s))))
    for squared in (norm.value, norm.dual):
        longest = math.sqrt(squared(s)) + math.sqrt(squared(t))
        assert math.sqrt(squared(s + t)) <= longest * (1 + 1e-12)


@every_norm
@given(s=spectra, seed=st.integers(0, 99))
def test_order_and_signs_do_not_matter(norm, s, seed):
    rng = np.random.default_rng(seed)
    other = rng.permutation(s) * rng.choice([-1.0, 1.0], size=len(s))
    assert norm.value(other) == pytest.approx(norm.value(s), rel=1e-12)
    assert norm.dual(other) == pytest.approx(norm.dual(s), rel=1e-12)


@every_norm
@given(data=st.data())
def test_inner_products_are_bounded_by_value_times_dual(norm, data):
    s = data.draw(spectra)
    t = np.array(data.draw(st.lists(entries, min_size=len(s), max_size=len(s))))
    assert (s @ t) ** 2 <= norm.value(s) * norm.dual(t) * (1 + 1e-12)


@every_norm
@given(s=spectra)
def test_zeros_appended_change_nothing(norm, s):
    longer = np.concatenate([s, np.zeros(3)])
    assert norm.value(longer) == pytest.approx(norm.value(s), rel=1e-12)
    assert norm.dual(longer) == pytest.approx(norm.dual(s), rel=1e-12)


@every_norm
def test_value_is_positive_except_at_zero(norm):
    assert norm.value(np.zeros(4)) == 0
    assert norm.value(np.array([0.0, -1e-3])) > 0


@pytest.mark.parametrize("p", [1.5, 2.0, 4.0])
def test_schatten_duality_is_attained(p):
    s = np.array([3.0, 1.0, 0.5])
    t = s ** (p - 1)
    norm = Schatten(p)
    assert norm.value(s) * norm.dual(t) == pytest.approx((s @ t) ** 2, rel=1e-12)


@every_prox
@given(s=spectra, weight=st.floats(1e-3, 1e3))
def test_prox_carries_its_certificate(norm, s, weight):
    """t = (s - a) / w is a subgradient of value / 2 at a: <a, t> = value(a) = dual(t)."""
    a = norm.prox(s, weight)
    t = (s - a) / weight
    scale = (s @ s) / weight
    assert a @ t == pytest.approx(norm.value(a), rel=1e-9, abs=1e-12 * scale)
    assert norm.dual(t) == pytest.approx(norm.value(a), rel=1e-9, abs=1e-12 * scale)


@every_prox
@given(s=spectra, weight=weights, seed=st.integers(0, 99))
def test_optimality_is_zero_at_the_prox_and_bounds_the_gain_elsewhere(
    norm, s, weight, seed
):
    a, rng = norm.prox(s, weight), np.random.default_rng(seed)
    best, scale = objective(norm, s, a, weight), s @ s + 1e-9
    assert abs(norm.optimality(s, a, weight)) <= 1e-12 * scale
    for size in (1e-3, 0.1, 1.0):
        other = a + size * rng.standard_normal(len(s)) * (1 + abs(a))
        gain = objective(norm, s, other, weight) - best
        assert norm.optimality(s, other, weight) >= gain - 1e-9 * (scale + abs(gain))


@every_prox
def test_optimality_without_a_norm_is_the_distance(norm):
    s, a = np.array([3.0, 1.0, 0.5]), np.array([2.0, 1.5, 0.0])
    assert norm.optimality(s, a, 0.0) == pytest.approx(np.sum((s - a) ** 2))


def test_optimality_needs_a_dual():
    with pytest.raises(ValueError, match="p >= 1"):
        Schatten(0.5).optimality([1.0], [0.5], 1.0)


@every_prox
@given(s=spectra, weight=weights, seed=st.integers(0, 99))
def test_prox_beats_random_competitors(norm, s, weight, seed):
    rng = np.random.default_rng(seed)
    a = norm.prox(s, weight)
    best = objective(norm, s, a, weight)
    for size in (1e-3, 0.1, 1.0):
        other = a + size * rng.standard_normal(len(s)) * (1 + abs(a))
        assert best <= objective(norm, s, other, weight) * (1 + 1e-12)


@every_prox
@given(data=st.data(), weight=weights)
def test_prox_is_firmly_nonexpansive(norm, data, weight):
    s = data.draw(spectra)
    t = np.array(data.draw(st.lists(entries, min_size=len(s), max_size=len(s))))
    step = norm.prox(s, weight) - norm.prox(t, weight)
    assert step @ step <= step @ (s - t) + 1e-10


@every_prox
@given(s=spectra, weight=weights)
def test_prox_keeps_signs_order_and_shrinks(norm, s, weight):
    a = norm.prox(s, weight)
    assert np.all(a * s >= 0)
    assert np.all(abs(a) <= abs(s) * (1 + 1e-12))
    assert np.all(np.diff(abs(a)[np.argsort(abs(s), kind="stable")]) >= -1e-12)


@every_prox
@given(s=spectra, seed=st.integers(0, 99))
def test_prox_follows_permutations_and_signs(norm, s, seed):
    rng = np.random.default_rng(seed)
    order, signs = rng.permutation(len(s)), rng.choice([-1.0, 1.0], size=len(s))
    expected = norm.prox(s, 0.7)[order] * signs
    np.testing.assert_allclose(
        norm.prox(s[order] * signs, 0.7), expected, rtol=1e-12, atol=1e-12
    )


@every_prox
def test_prox_with_weight_zero_is_a_copy(norm):
    s = np.array([3.0, -1.0, 0.0, 2.0])
    a = norm.prox(s, 0.0)
    np.testing.assert_array_equal(a, s)
    a[:] = 9.0
    np.testing.assert_array_equal(s, [3.0, -1.0, 0.0, 2.0])


@every_prox
def test_prox_of_zero_is_zero(norm):
    np.testing.assert_array_equal(norm.prox(np.zeros(4), 0.5), np.zeros(4))


def support_squared(a, k):
    """min { sum a_i^2 / t_i : 0 <= t <= 1, sum t <= k } as an expression and constraints."""
    n = a.shape[0]
    t, cost = cp.Variable(n), cp.Variable(n)
    ratios = [cp.quad_over_lin(a[i], t[i]) <= cost[i] for i in range(n)]
    return cp.sum(cost), [*ratios, t <= 1, cp.sum(t) <= k]


def solver_prox(expression, s, weight):
    a = cp.Variable(len(s))
    cost, constraints = expression(a)
    problem = cp.Problem(
        cp.Minimize(cp.sum_squares(s - a) + weight * cost), constraints
    )
    problem.solve(solver=cp.CLARABEL)
    return a.value


def random_spectra():
    """Spectra of all kinds with a weight and a k: generic, tied, sparse, gapped, k >= n, k = 1."""
    rng = np.random.default_rng(20)
    for i in range(100):
        n = int(rng.integers(1, 8))
        s = rng.exponential(size=n) * rng.choice([-1.0, 1.0], size=n)
        match i % 5:
            case 1:
                s = np.round(2 * s) / 2
            case 2:
                s[rng.random(n) < 0.4] = 0.0
            case 3:
                s[: n // 2] *= 20
        k = 1 if i % 4 == 0 else int(rng.integers(1, n + 3))
        yield s, k, float(rng.choice([0.01, 0.1, 0.5, 1.0, 3.0, 30.0]))


def assert_not_worse_than_the_solver(norm, expression, s, weight):
    a, rival = norm.prox(s, weight), solver_prox(expression, s, weight)
    best = objective(norm, s, a, weight)
    scale = max(1.0, s @ s)
    assert best <= objective(norm, s, rival, weight) + 1e-12 * scale
    np.testing.assert_allclose(a, rival, atol=1e-4 * math.sqrt(scale))


@pytest.mark.parametrize("batch", range(4))
def test_support_prox_is_the_solvers_optimum(batch):
    for s, k, weight in list(random_spectra())[batch::4]:
        assert_not_worse_than_the_solver(
            KSupport(k), lambda a, k=k: support_squared(a, k), s, weight
        )


SOLVER_FORMS = {
    "nuclear": (SquaredNuclear(), lambda a: (cp.square(cp.norm1(a)), [])),
    "schatten-1": (Schatten(1), lambda a: (cp.square(cp.norm1(a)), [])),
    "schatten-2": (Schatten(2), lambda a: (cp.sum_squares(a), [])),
    "schatten-inf": (Schatten(math.inf), lambda a: (cp.square(cp.norm_inf(a)), [])),
}


@pytest.mark.parametrize(
    ("norm", "form"), SOLVER_FORMS.values(), ids=SOLVER_FORMS.keys()
)
def test_other_proxes_are_the_solvers_optimum(norm, form):
    for s, _, weight in list(random_spectra())[::3]:
        assert_not_worse_than_the_solver(norm, form, s, weight)


def test_support_value_is_its_variational_minimum():
    for s, k, _ in list(random_spectra())[::3]:
        a = cp.Variable(len(s))
        cost, constraints = support_squared(a, k)
        problem = cp.Problem(cp.Minimize(cost), [*constraints, a == s])
        assert KSupport(k).value(s) == pytest.approx(
            problem.solve(solver=cp.CLARABEL), rel=1e-6, abs=1e-7
        )


def test_support_value_is_the_best_dual_bound():
    for s, k, _ in list(random_spectra())[1::5]:
        t = cp.Variable(len(s))
        ball = (
            [cp.sum_largest(cp.square(t), k) <= 1]
            if k < len(s)
            else [cp.sum_squares(t) <= 1]
        )
        best = cp.Problem(cp.Maximize(s @ t), ball).solve(solver=cp.CLARABEL)
        assert KSupport(k).value(s) == pytest.approx(best**2, rel=1e-5, abs=1e-7)


@given(s=spectra, k=st.integers(1, 5))
def test_occupancy_attains_the_variational_minimum(s, k):
    t = KSupport(k).occupancy(s)
    assert np.all((t >= 0) & (t <= 1))
    assert np.all(t[s != 0] > 0)
    assert t.sum() <= k * (1 + 1e-12)
    attained = np.sum(s[s != 0] ** 2 / t[s != 0])
    assert attained == pytest.approx(KSupport(k).value(s), rel=1e-12)


def test_support_norm_spans_nuclear_to_frobenius():
    s = np.array([3.0, -2.0, 1.0, 0.5])
    assert KSupport(1).value(s) == pytest.approx(6.5**2, rel=1e-14)
    assert (
        KSupport(4).value(s) == KSupport(50).value(s) == pytest.approx(s @ s, rel=1e-14)
    )


def test_support_norm_is_frobenius_where_few_values_are_nonzero():
    assert KSupport(2).value([3.0, 0.0, 1.0, 0.0]) == pytest.approx(10.0, rel=1e-14)


def printed_expression(s, k, rho):
    s = np.sort(np.abs(s))[::-1]
    return np.sum(s[: rho - 1] ** 2) + np.sum(s[rho - 1 :]) ** 2 / (k - rho + 1)


def test_printed_value_rule_always_picks_the_last_rho_and_overstates():
    rng = np.random.default_rng(21)
    wrong = 0
    for _ in range(120):
        s, k = rng.exponential(size=6), int(rng.integers(1, 5))
        options = [printed_expression(s, k, rho) for rho in range(1, k + 1)]
        assert np.all(np.diff(options) >= -1e-12)
        value = KSupport(k).value(s)
        assert min(abs(value - option) for option in options) <= 1e-12 * value
        wrong += max(options) > value * (1 + 1e-9)
    assert wrong >= 30


def prox_by_trial(s, k, weight, last_rho):
    """The best of all candidates of Theorem 2.7: values before rho kept, rho..last shrunk."""
    order = np.argsort(-s)
    candidates = [np.zeros(len(s))]
    for p in range(last_rho):
        for q in range(p + 1, len(s) + 1):
            alpha = (k - p + weight * (q - p)) / s[order[p:q]].sum()
            t = np.zeros(len(s))
            t[order[:p]], t[order[p:q]] = (
                1.0,
                np.clip(alpha * s[order[p:q]] - weight, 0, 1),
            )
            candidates.append(s * t / (t + weight))
    return min(candidates, key=lambda a: objective(KSupport(k), s, a, weight))


def test_prox_needs_rho_up_to_k_where_the_paper_stops_at_k_minus_one():
    rng = np.random.default_rng(22)
    wrong = 0
    for _ in range(60):
        s, k = rng.exponential(size=6), int(rng.integers(1, 5))
        a = KSupport(k).prox(s, 0.5)
        np.testing.assert_allclose(prox_by_trial(s, k, 0.5, k), a, atol=1e-10)
        wrong += not np.allclose(prox_by_trial(s, k, 0.5, k - 1), a, atol=1e-6)
    assert wrong >= 30


def test_support_prox_with_k_one_is_the_nuclear_prox():
    for s, _, weight in random_spectra():
        np.testing.assert_allclose(
            KSupport(1).prox(s, weight), SquaredNuclear().prox(s, weight), atol=1e-12
        )


GAPPED = {
    "one-far-above": ([5.808961205647326, 0.0009078058487347282], 1, 4648.091635550649),
    "three-of-four": (
        [
            61.310342460594164,
            0.004290420883149344,
            11.235617291981193,
            0.3536427223934318,
        ],
        3,
        0.814322387513931,
    ),
    "two-of-five": (
        [
            1.487049872963934,
            1.604802026126084,
            0.7269107893367934,
            1.9725533127056227,
            0.36908982,
        ],
        2,
        24.00010110893572,
    ),
}


@pytest.mark.parametrize(("s", "k", "weight"), GAPPED.values(), ids=GAPPED.keys())
def test_support_prox_where_k_values_stand_far_above_the_rest(s, k, weight):
    s = np.array(s)
    kept = s >= np.sort(s)[-k]
    np.testing.assert_allclose(
        KSupport(k).prox(s, weight), np.where(kept, s / (1 + weight), 0), rtol=1e-12
    )


def test_support_prox_is_optimal_however_far_values_lie_apart():
    rng = np.random.default_rng(23)
    for _ in range(1000):
        n, weight = int(rng.integers(2, 8)), float(10 ** rng.uniform(-14, 8))
        s = 10 ** -rng.uniform(0, rng.choice([1, 5, 17, 40]), n)
        norm = KSupport(int(rng.integers(1, n)))
        a, c = norm.prox(s, weight), norm.shrinkage(s, weight)
        reached = np.sum((s - a) ** 2) + weight * norm.value(a)
        assert reached <= (c @ (2 * s - c) - norm.dual(c) / weight) * (1 + 1e-9), (
            s,
            norm,
            weight,
        )


def test_rounding_beside_one_singular_value_does_not_hide_it():
    s = [79.6, 5e-15, 3e-15, 1e-15]
    np.testing.assert_allclose(
        KSupport(1).prox(s, 0.1), [79.6 / 1.1, 0, 0, 0], rtol=1e-12
    )


@pytest.mark.parametrize("weight", [1e15, 1e18, 1e30])
@pytest.mark.parametrize("norm", [SquaredNuclear(), Schatten(1)], ids=str)
def test_strong_weights_leave_no_rounding_of_the_spectrum(norm, weight):
    s = np.array([2.7, -1.9, 0.3])
    assert np.abs(norm.prox(s, weight)).max() <= 4.9 / weight


def test_shrinkage_rank_is_the_largest_feasible_index():
    rng = np.random.default_rng(24)
    for _ in range(100):
        s, w = np.sort(rng.exponential(size=6))[::-1], float(rng.exponential())
        h = np.cumsum(s)
        feasible = [j for j in range(1, 7) if s[j - 1] * (1 + w * j) > w * h[j - 1]]
        assert feasible == list(range(1, len(feasible) + 1))
        assert spectral.shrinkage_rank(s, h, w) == len(feasible)


def test_schatten_values():
    s = [3.0, -4.0]
    assert Schatten(1).value(s) == pytest.approx(49.0)
    assert Schatten(2).value(s) == pytest.approx(25.0)
    assert Schatten(math.inf).value(s) == pytest.approx(16.0)
    assert Schatten(0.5).value(s) == pytest.approx((math.sqrt(3) + 2) ** 4)


@pytest.mark.parametrize("scale", [1e-140, 1e140])
def test_schatten_neither_underflows_nor_overflows(scale):
    s = np.array([3.0, 4.0])
    assert Schatten(4).value(scale * s) == pytest.approx(
        scale**2 * Schatten(4).value(s), rel=1e-9, abs=0
    )


def random_matrix(*shape, seed=25):
    return np.random.default_rng(seed).standard_normal(shape)


@every_norm
def test_matrix_forms_act_on_the_singular_values(norm):
    A = random_matrix(3, 5)
    s = np.linalg.svd(A, compute_uv=False)
    assert norm.matrix_value(A) == pytest.approx(norm.value(s), rel=1e-13)
    assert norm.matrix_dual(A.T) == pytest.approx(norm.dual(s), rel=1e-13)


@every_prox
def test_matrix_prox_shrinks_the_singular_values_and_keeps_the_vectors(norm):
    A = random_matrix(4, 3)
    W, s, Y = np.linalg.svd(A, full_matrices=False)
    expected = W * norm.prox(s, 0.6) @ Y
    np.testing.assert_allclose(norm.matrix_prox(A, 0.6), expected, atol=1e-13)
    np.testing.assert_allclose(norm.matrix_prox(A.T, 0.6), expected.T, atol=1e-12)


def matrix_solver_prox(A, weight, value, cost):
    B = cp.Variable(A.shape)
    loss = cp.sum(cp.multiply(cost, cp.square(A - B)))
    problem = cp.Problem(cp.Minimize(loss + weight * value(B)))
    problem.solve(solver=cp.CLARABEL)
    return B.value


def test_matrix_nuclear_prox_is_the_solvers_optimum():
    A = random_matrix(3, 4)
    rival = matrix_solver_prox(
        A, 0.4, lambda B: cp.square(cp.normNuc(B)), np.ones((3, 4))
    )
    np.testing.assert_allclose(SquaredNuclear().matrix_prox(A, 0.4), rival, atol=1e-5)


P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.4, 0.3, 0.2])


@pytest.mark.parametrize("widths", [[5], [3, 7], [2, 4, 8], [1, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("drop_prob", [0.0, 1e-12, 0.3, 0.95])
def test_nu_is_the_sum_over_subsets_of_layers(widths, drop_prob):
    lam = drop_prob / (1 - drop_prob)
    expected = sum(
        lam**order / math.prod(subset)
        for order in range(1, len(widths) + 1)
        for subset in combinations(widths, order)
    )
    assert spectral.nu(widths, drop_prob) == pytest.approx(expected, rel=1e-12, abs=0)


def test_nu_with_one_probability_per_layer():
    assert spectral.nu([2, 4], [0.5, 0.2]) == pytest.approx(1.5 * 1.0625 - 1, rel=1e-14)
    assert spectral.nu((2, 4), (0.5, 0.0)) == pytest.approx(0.5, rel=1e-14)


def test_nu_of_one_layer_is_dropouts_induced_weight():
    assert spectral.nu(8, 0.3) == pytest.approx(
        spectral.induced(Dropout(0.3), 8)[0], rel=1e-14
    )


@pytest.mark.parametrize("depth", [2, 3])
def test_factorization_cost_is_the_least_sum_of_squares(depth):
    A = random_matrix(2, 2, seed=26)

    def sum_of_squares(theta):
        free = theta.reshape(depth - 1, 2, 2)
        partial = np.linalg.multi_dot([*free, np.eye(2)])
        last = np.linalg.solve(partial.T, A.T).T
        return np.sum(theta**2) + np.sum(last**2)

    starts = (
        np.tile(np.eye(2), (depth - 1, 1, 1)),
        np.tile([[0, 1], [1, 0.1]], (depth - 1, 1, 1)),
    )
    best = min(
        minimize(sum_of_squares, start.ravel(), method="BFGS").fun for start in starts
    )
    s = np.linalg.svd(A, compute_uv=False)
    assert spectral.factorization_cost(s, depth) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_factorization_cost_is_a_schatten_quasi_norm(depth):
    s = np.array([2.0, -1.0, 0.3])
    expected = depth * Schatten(2 / depth).value(s) ** (1 / depth)
    assert spectral.factorization_cost(s, depth) == pytest.approx(expected, rel=1e-13)


INDUCED = {
    "dropout": (Dropout(0.2), 0.25 / 12, SquaredNuclear()),
    "dropconnect": (DropConnect(0.2), 0.25 / 12, SquaredNuclear()),
    "grid": (DropBlock(0.2, 3), 0.25 / 4, KSupport(3)),
    "grid-one-block": (DropBlock(0.2, 12), 0.25, KSupport(12)),
}


@pytest.mark.parametrize(
    ("noise", "weight", "norm"), INDUCED.values(), ids=INDUCED.keys()
)
def test_induced_norm_and_weight(noise, weight, norm):
    found_weight, found_norm = spectral.induced(noise, 12)
    assert found_weight == pytest.approx(weight, rel=1e-14)
    assert found_norm == norm


def test_width_adjusted_noise_induces_a_weight_free_of_the_width():
    for width in (6, 12, 60):
        weight, _ = spectral.induced(DropBlock(0.2, 3).at_width(width), width)
        assert weight == pytest.approx(0.25, rel=1e-12)


UNKNOWN = {
    "dropout-per-unit": Dropout([0.1, 0.2]),
    "sliding": DropBlock(0.2, 2, "sliding"),
    "covariance": CovarianceNoise([1.0, 1.0], np.eye(2)),
    "word": "dropout",
}


@pytest.mark.parametrize("noise", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_no_induced_norm_is_claimed_where_none_is_known(noise):
    with pytest.raises(
        TypeError, match="induced norm is known for Dropout with one drop_prob"
    ):
        spectral.induced(noise, 2)


SPECTRUM = np.array([2.5, -1.3, 0.9, 0.4, -0.1])


@every_norm
def test_torch_and_numpy_values_agree(norm):
    for squared in (norm.value, norm.dual):
        tensor = squared(torch.tensor(SPECTRUM))
        assert torch.is_tensor(tensor)
        assert float(tensor) == pytest.approx(float(squared(SPECTRUM)), rel=1e-13)


@every_prox
def test_torch_and_numpy_prox_agree(norm):
    tensor = norm.prox(torch.tensor(SPECTRUM), 0.3)
    np.testing.assert_allclose(
        tensor.numpy(), norm.prox(SPECTRUM, 0.3), rtol=1e-13, atol=1e-15
    )
    A = random_matrix(3, 4)
    np.testing.assert_allclose(
        norm.matrix_prox(torch.tensor(A), 0.3).numpy(),
        norm.matrix_prox(A, 0.3),
        atol=1e-13,
    )


@every_norm
def test_gradient_of_the_value(norm):
    s = torch.tensor(SPECTRUM, requires_grad=True)
    A = torch.tensor(random_matrix(3, 4), requires_grad=True)
    assert torch.autograd.gradcheck(norm.value, s)
    assert torch.autograd.gradcheck(norm.dual, s)
    assert torch.autograd.gradcheck(norm.matrix_value, A)


def test_gradient_of_the_occupancy():
    s = torch.tensor(SPECTRUM, requires_grad=True)
    assert torch.autograd.gradcheck(KSupport(2).occupancy, s)


@every_prox
@pytest.mark.parametrize("weight", [0.1, 1.0, 5.0])
def test_gradient_of_the_prox(norm, weight):
    s = torch.tensor(SPECTRUM, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: norm.prox(x, weight), s)


@every_prox
def test_gradient_of_the_matrix_prox(norm):
    A = torch.tensor(random_matrix(3, 4), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: norm.matrix_prox(x, 0.1), A)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gradient_of_the_factorization_cost(depth):
    s = torch.tensor(SPECTRUM, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: spectral.factorization_cost(x, depth), s)


@every_prox
@pytest.mark.parametrize("weight", [0.0, 0.3, 5.0])
def test_shrinkage_is_what_the_proximal_map_takes(norm, weight):
    s = np.array([3.0, -2.0, 1.5, 0.25, 0.0])
    assert norm.shrinkage(s, weight) == pytest.approx(
        s - norm.prox(s, weight), abs=1e-12
    )
