"""The exact optimum of two-layer networks against restarts of a generic optimizer."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize

import overt
from overt.linear.shallow import block_factors, hadamard


def lowest_of_restarts(net, restarts, seed):
    """Minimize the closed-form objective over (U, V) from random starts."""
    (m, d), (n, _) = net.effect.shapes
    rng = np.random.default_rng(seed)

    def value(theta):
        U, V = theta[: m * d].reshape(m, d), theta[m * d :].reshape(n, d)
        f, gradients = net.effect.value(U, V)
        return f, np.concatenate([g.ravel() for g in gradients])

    found = []
    for _ in range(restarts):
        start = rng.standard_normal((m + n) * d) * 0.5
        options = {"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-11}
        found.append(
            minimize(value, start, jac=True, method="L-BFGS-B", options=options).fun
        )
    return min(found)


def random_network(seed):
    """Draw a problem from every combination of the ordinary cases."""
    rng = np.random.default_rng(seed)
    m, n = rng.integers(1, 6, 2)
    rank = rng.integers(1, min(m, n) + 1)
    M = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))
    drop_prob = float(rng.choice([0.0, 0.1, 0.3, 0.5, 0.8]))
    kind = ("dropout", "dropblock", "dropconnect")[seed % 3]
    width = int(rng.integers(1, 8))
    noise = overt.Dropout(drop_prob)
    if kind == "dropblock":
        # A Hadamard number of blocks, at which the convex bound is attained.
        width, noise = 16, overt.DropBlock(drop_prob, 2)
    elif kind == "dropconnect":
        noise = overt.DropConnect(drop_prob)
    inputs = ("isotropic", "anisotropic", "singular", "data", "deficient data")[
        seed % 5
    ]
    A = rng.standard_normal((n, n))
    if kind == "dropconnect" and inputs != "isotropic":
        width = max(width, min(m, n))
        C = np.diag(rng.uniform(0.2, 3.0, n))
        return overt.LinearNetwork(M, width, noise, second_moment=C)
    match inputs:
        case "anisotropic":
            return overt.LinearNetwork(
                M, width, noise, second_moment=A @ A.T + 0.05 * np.eye(n)
            )
        case "singular":
            B = A[:, : max(1, n // 2)]
            return overt.LinearNetwork(M, width, noise, second_moment=B @ B.T)
        case "data" | "deficient data":
            samples = 12 if inputs == "data" else max(1, n - 1)
            X = rng.standard_normal((samples, n))
            Y = X @ M.T + 0.3 * rng.standard_normal((samples, m))
            return overt.LinearNetwork(X=X, Y=Y, width=width, noise=noise)
    return overt.LinearNetwork(M, width, noise)


@pytest.mark.parametrize("block", range(20))
def test_solve_equals_the_best_of_many_restarts(block):
    for seed in range(5 * block, 5 * block + 5):
        net = random_network(seed)
        best = net.solve()
        lowest = lowest_of_restarts(net, 3, seed)
        scale = max(abs(lowest), 1e-6 * net.effect.regression.scale)
        assert best.status == "optimal", (seed, best)
        assert best.objective <= lowest + 1e-8 * scale, seed
        assert best.certificate.relative_gap < 1e-10, seed
        assert best.certificate.lower_bound <= lowest + 1e-10 * scale, seed
        if not isinstance(net.noise, overt.DropBlock):
            assert best.objective == pytest.approx(
                lowest, rel=1e-8, abs=1e-8 * scale
            ), seed


def test_optimum_of_a_planted_diagonal_target():
    # rho = 1: alpha = lam s_1 / (r + lam) = 1, and s_2 = 1 is not above it.
    best = overt.LinearNetwork(np.diag([3.0, 1.0]), 2, overt.Dropout(0.5)).solve()
    np.testing.assert_allclose(best.product, np.diag([2.0, 0.0]), atol=1e-12)
    assert best.objective == pytest.approx(1 + 1 + 4 / 2)
    assert (best.rank, best.status) == (1, "optimal")


def test_width_caps_the_rank_where_the_printed_form_does_not():
    M = np.diag([2.0, 1.9])
    best = overt.LinearNetwork(M, 1, overt.Dropout(0.5)).solve()
    alpha = 2.0 / 2.0
    printed = np.sum(np.maximum(np.diag(M) - alpha, 0) > 0)
    assert best.rank == 1
    assert printed == 2


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
def test_dropblock_equals_the_convex_program(blocks):
    rng = np.random.default_rng(blocks)
    M, b = rng.standard_normal((5, 4)), 2
    noise = overt.DropBlock(0.4, b)
    net = overt.LinearNetwork(M, b * blocks, noise)
    weight = noise.strength / blocks
    m = np.linalg.svd(M, compute_uv=False)[: b * blocks]
    rest = np.sum(M**2) - np.sum(m**2)
    a, t = cp.Variable(len(m)), cp.Variable(len(m), nonneg=True)
    cost = cp.sum_squares(m - a) + weight * sum(
        cp.quad_over_lin(a[i], t[i]) for i in range(len(m))
    )
    problem = cp.Problem(cp.Minimize(cost), [t <= 1, cp.sum(t) <= b])
    problem.solve(solver=cp.CLARABEL)
    assert net.solve().certificate.lower_bound == pytest.approx(
        problem.value + rest, rel=1e-7
    )


def test_dropblock_reports_the_gap_of_too_few_blocks():
    m, beta = np.diag([2.0, 1.9, 1.8]), 0.5
    gaps = []
    for blocks in (2, 3):
        noise = overt.DropBlock(beta / (1 + beta), 2).at_width(2 * blocks)
        solution = overt.LinearNetwork(m, 2 * blocks, noise).solve()
        gaps.append(solution.certificate.gap)
        assert solution.status == ("lower_bound" if blocks == 2 else "optimal")
    assert gaps[0] == pytest.approx(0.114, abs=5e-4)
    assert abs(gaps[1]) < 1e-9


@pytest.mark.parametrize("order", [1, 2, 4, 8, 16])
def test_hadamard_rows_are_orthogonal(order):
    H = hadamard(order)
    np.testing.assert_allclose(H @ H.T, order * np.eye(order), atol=1e-12)
    assert set(np.unique(H)) <= {-1.0, 1.0}


def test_hadamard_is_none_where_there_is_no_construction():
    assert hadamard(3) is None
    assert hadamard(6) is None


def test_block_factors_share_the_map_equally():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 5)))[0] for n in (7, 6))
    a = np.array([3.0, 1.5, 1.0, 0.7, 0.2])
    U, V = block_factors(left, a, right, width=24, block_size=3)
    np.testing.assert_allclose(U @ V.T, left * a @ right.T, atol=1e-12)
    norms = [
        np.linalg.norm(U[:, j : j + 3] @ V[:, j : j + 3].T) for j in range(0, 24, 3)
    ]
    np.testing.assert_allclose(norms, norms[0])
    value = overt.spectral.KSupport(3).value(a)
    assert sum(n**2 for n in norms) == pytest.approx(value / 8)


def test_dropconnect_with_correlated_inputs_solves_its_convex_program():
    rng = np.random.default_rng(0)
    M, A = rng.standard_normal((4, 3)), rng.standard_normal((3, 3))
    C = A @ A.T + 0.1 * np.eye(3)
    net = overt.LinearNetwork(M, 6, overt.DropConnect(0.4), second_moment=C)
    L = np.linalg.cholesky(C)
    W = cp.Variable((4, 3))
    cost = cp.sum_squares((M - W) @ L)
    nuclear = cp.normNuc(W @ np.diag(np.sqrt(np.diag(C))))
    problem = cp.Problem(
        cp.Minimize(cost + net.noise.strength / 6 * cp.square(nuclear))
    )
    problem.solve(solver=cp.CLARABEL)
    best = net.solve()
    assert best.status == "optimal"
    assert best.objective == pytest.approx(problem.value, rel=1e-6)
    np.testing.assert_allclose(best.product, W.value, atol=1e-4)


@pytest.mark.parametrize(
    "noise",
    [
        overt.Dropout([0.1, 0.2, 0.3, 0.2]),
        overt.Dropout([0.0, 0.4, 0.4, 0.6]),
        overt.DropBlock(0.3, 2, "sliding"),
        overt.CovarianceNoise(np.ones(4), np.diag([0.5, 1.0, 0.2, 0.8]) + 0.1),
    ],
    ids=["per unit", "one noise-free unit", "sliding", "covariance"],
)
def test_other_noises_report_an_honest_gap(noise):
    M = np.random.default_rng(1).standard_normal((4, 3))
    net = overt.LinearNetwork(M, 4, noise)
    best = net.solve()
    lowest = lowest_of_restarts(net, 20, 0)
    assert best.objective <= lowest * (1 + 1e-7)
    assert best.certificate.lower_bound <= lowest
    assert (best.status == "optimal") == (best.certificate.relative_gap <= 1e-9)


def test_per_unit_probabilities_are_solved_exactly_where_the_spectrum_majorizes_the_shares():
    M = np.diag([5.0, 1.0, 1.0])
    best = overt.LinearNetwork(M, 3, overt.Dropout([0.2, 0.3, 0.4])).solve()
    assert best.status == "optimal"


def test_zero_target_and_zero_noise():
    zero = overt.LinearNetwork(np.zeros((3, 2)), 2, overt.Dropout(0.5)).solve()
    assert (zero.objective, zero.rank) == (0.0, 0)
    M = np.random.default_rng(0).standard_normal((4, 3))
    free = overt.LinearNetwork(M, 2, overt.Dropout(0.0)).solve()
    s = np.linalg.svd(M, compute_uv=False)
    assert free.objective == pytest.approx(s[2] ** 2)
    assert free.status == "optimal"


def test_data_and_target_agree():
    rng = np.random.default_rng(0)
    X, M = rng.standard_normal((40, 4)), rng.standard_normal((3, 4))
    noise = overt.Dropout(0.3)
    by_data = overt.LinearNetwork(X=X, Y=X @ M.T, width=3, noise=noise).solve()
    by_target = overt.LinearNetwork(M, 3, noise, second_moment=X.T @ X / 40).solve()
    assert by_data.objective == pytest.approx(by_target.objective, rel=1e-12)
    np.testing.assert_allclose(by_data.product, by_target.product, atol=1e-10)


def test_residual_outside_the_inputs_is_part_of_the_objective():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((30, 3)), rng.standard_normal((30, 2))
    net = overt.LinearNetwork(X=X, Y=Y, width=2, noise=overt.Dropout(0.2))
    best = net.solve()
    direct = np.mean(np.sum((Y - X @ best.product.T) ** 2, axis=1))
    penalty = overt.penalty.shallow(best.U, best.V, net.noise, X.T @ X / 30)
    assert best.objective == pytest.approx(direct + penalty, rel=1e-12)
    assert net.effect.regression.scale == pytest.approx(
        np.mean(np.sum(Y**2, axis=1)), rel=1e-12
    )


def test_sparse_targets_agree_with_dense_ones():
    from scipy import sparse

    M = sparse.random(60, 40, density=0.2, random_state=0).tocsr()
    dense = overt.LinearNetwork(M.toarray(), 12, overt.Dropout(0.7)).solve()
    best = overt.LinearNetwork(M, 12, overt.Dropout(0.7)).solve()
    assert best.objective == dense.objective


def test_sparse_targets_too_large_to_be_dense_are_refused_in_a_sentence():
    from scipy import sparse

    M = sparse.csr_array((200_000, 50_000))
    with pytest.raises(overt.InputError, match="leading singular values"):
        overt.LinearNetwork(M, 20, overt.Dropout(0.5))


def test_large_targets_are_solved_by_their_leading_singular_values():
    """The recipe of the page on large matrices: its gap is that of the whole network."""
    M = np.random.default_rng(0).standard_normal((60, 40))
    left, s, right = np.linalg.svd(M, full_matrices=False)
    noise = overt.Dropout(0.9)
    best = overt.LinearNetwork(np.diag(s[:20]), 12, noise).solve()
    whole = overt.LinearNetwork(M, 12, noise)
    found = whole.certify(left[:, :20] @ best.U, right[:20].T @ best.V)
    assert best.rank < 20
    assert abs(found.relative_gap) < 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_narrow_dropconnect_is_solved_in_any_units(seed):
    """With hardly any noise it is Eckart and Young's theorem, whatever the units of inputs."""
    rng = np.random.default_rng(seed)
    units = 10 ** rng.uniform(-4, 4, 6)
    A = rng.standard_normal((6, 6))
    C = (A @ A.T) * np.outer(units, units)
    M = rng.standard_normal((5, 6)) / units
    s = np.linalg.svd(M @ np.linalg.cholesky(C), compute_uv=False)
    noise = overt.DropConnect(1e-9)
    best = overt.LinearNetwork(M, 3, noise, second_moment=C).solve()
    # The noise adds about 1e-9 times the conditioning of C.
    assert best.objective == pytest.approx(np.sum(s[3:] ** 2), rel=1e-4)


def test_solution_saves_and_prints(tmp_path):
    best = overt.LinearNetwork(np.eye(3), 2, overt.Dropout(0.5)).solve()
    with np.load(best.save(tmp_path / "best.npz"), allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["U"], best.U)
    assert "optimal" in repr(best)


@pytest.mark.parametrize(
    ("drop_prob", "width", "block"), [(1 - 1e-7, 6, 5), (1 - 1e-5, 5, 4)]
)
def test_blocks_that_nearly_always_drop_are_solved(drop_prob, width, block):
    """Costs of units far above their sizes leave no singular matrix behind."""
    for seed in range(3):
        M = np.random.default_rng(seed).standard_normal((2, 6))
        net = overt.LinearNetwork(
            M, width, overt.DropBlock(drop_prob, block, "sliding")
        )
        best = net.solve()
        assert best.certificate.lower_bound <= best.objective <= np.sum(M**2)
