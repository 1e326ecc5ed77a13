"""Tied autoencoders: the optimum, and every critical point of the landscape."""

import numpy as np
import pytest
from scipy.optimize import minimize

import overt


def lowest_of_restarts(net, restarts=10):
    ((n, d),) = net.effect.shapes
    rng = np.random.default_rng(0)

    def value(theta):
        f, (g,) = net.effect.value(theta.reshape(n, d))
        return f, g.ravel()

    options = {"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-11}
    return [
        minimize(
            value,
            rng.standard_normal(n * d),
            jac=True,
            method="L-BFGS-B",
            options=options,
        )
        for _ in range(restarts)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_solve_equals_the_best_of_many_restarts(seed):
    rng = np.random.default_rng(seed)
    n, width = rng.integers(1, 5), int(rng.integers(1, 6))
    M = rng.standard_normal((n, n))  # neither symmetric nor definite
    noise = overt.Dropout(float(rng.choice([0.0, 0.2, 0.6])))
    if seed % 3 == 2:
        width, noise = 8, overt.DropBlock(0.4, 2)
    net = overt.TiedAutoencoder(M, width, noise)
    best = net.solve()
    lowest = min(run.fun for run in lowest_of_restarts(net))
    assert best.status == "optimal"
    assert best.objective == pytest.approx(lowest, rel=1e-8, abs=1e-8)
    assert best.certificate.relative_gap < 1e-10
    np.testing.assert_array_equal(best.U, best.V)


@pytest.mark.parametrize("seed", range(3))
def test_the_distance_is_to_the_map_that_attains_the_bound(seed):
    # Sliding blocks have two envelopes, and either can give the higher bound.
    S = np.random.default_rng(seed).standard_normal((4, 4))
    best = overt.TiedAutoencoder(S @ S.T, 4, overt.DropBlock(0.6, 4, "sliding")).solve()
    assert best.certificate.relative_gap <= 1e-8
    assert best.certificate.distance <= 1e-3 * np.linalg.norm(best.product)


def test_anisotropic_data_are_bounded_by_the_untied_network():
    X = np.random.default_rng(0).standard_normal((40, 4)) * [3.0, 2.0, 1.0, 0.5]
    net = overt.TiedAutoencoder(X=X, width=3, noise=overt.Dropout(0.3))
    best = net.solve()
    lowest = min(run.fun for run in lowest_of_restarts(net))
    assert best.objective <= lowest * (1 + 1e-7)
    assert best.certificate.lower_bound <= lowest
    untied = overt.LinearNetwork(X=X, Y=X, width=3, noise=overt.Dropout(0.3)).solve()
    assert best.certificate.lower_bound == untied.certificate.lower_bound


@pytest.mark.parametrize("strength", [0.3, 1.0, 5.0, 50.0])
def test_every_critical_point_is_critical_and_only_the_global_minimum_is_a_minimum(
    strength,
):
    M = np.diag([3.0, 2.5, 1.0, 0.4])
    net = overt.TiedAutoencoder(M, 3, overt.Dropout(strength / (1 + strength)))
    view = net.landscape()
    best = net.solve()
    assert view.points[0].objective == pytest.approx(best.objective)
    assert view.strict_saddle
    assert [p.kind for p in view.points].count("minimum") == 1
    for point in view.points:
        _, (gradient,) = net.effect.value(point.U)
        np.testing.assert_allclose(gradient, 0, atol=1e-9)
        if point.kind == "strict saddle":
            step = 1e-3 * point.escape
            assert net.objective(point.U + step) < point.objective


def test_strict_saddles_beyond_the_printed_bound():
    net = overt.TiedAutoencoder(np.diag([3.0, 2.0, 1.0]), 3, overt.Dropout(0.9))
    view = net.landscape()
    top = np.sort(np.linalg.eigvalsh(view.M))[::-1][: view.width]
    printed = view.width * top[-1] / (top.sum() - view.width * top[-1])  # Theorem 4.3
    assert view.strength > printed
    assert view.strict_saddle


def test_random_descents_find_no_spurious_minimum_beyond_the_printed_bound():
    net = overt.TiedAutoencoder(np.diag([3.0, 2.0, 1.0]), 3, overt.Dropout(0.9))
    best = net.solve().objective
    for run in lowest_of_restarts(net, restarts=20):
        assert run.fun == pytest.approx(best, rel=1e-7)


def hessian(net, U):
    """Return the Hessian of the objective; its gradient is cubic, so differences are exact."""
    step = 0.05 * (np.sqrt(np.mean(U**2)) or 1.0)

    def gradient(move):
        return net.effect.value(U + move.reshape(U.shape))[1][0].ravel()

    rows = []
    for e in step * np.eye(U.size):
        near, far = (gradient(k * e) - gradient(-k * e) for k in (1, 2))
        rows.append((8 * near - far) / (12 * step))
    H = np.array(rows)
    return (H + H.T) / 2


@pytest.mark.parametrize("number", range(8))
def test_curvature_is_the_least_eigenvalue_of_the_hessian(number):
    rng = np.random.default_rng(number)
    n, r = (int(x) for x in rng.integers(1, 6, 2))
    values = rng.integers(0, 4, n) if number % 2 else rng.uniform(-1, 3, n)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    M = 10 ** rng.uniform(-6, 6) * (Q * np.r_[2.0, values[1:]]) @ Q.T
    net = overt.TiedAutoencoder(M, r, overt.Dropout(rng.uniform(0.02, 0.95)))
    view = net.landscape()
    assert view.strict_saddle
    for point in view.points:
        H = hessian(net, point.U)
        tol = 1e-9 * np.abs(M).max()
        least = min(0.0, np.linalg.eigvalsh(H)[0])
        assert point.curvature == pytest.approx(least, abs=tol)
        step = point.escape.ravel()
        assert step @ step == pytest.approx(float(point.curvature < 0))
        np.testing.assert_allclose(H @ step, point.curvature * step, atol=tol)


@pytest.mark.parametrize(("second", "saddles"), [(0.9, True), (1 - 1e-8, False)])
def test_saddles_are_strict_whatever_the_units(second, saddles):
    """Where two values are one up to 1e-8 the second best set is no better than a minimum."""
    for unit in (1e-6, 1.0, 1e6):
        net = overt.TiedAutoencoder(
            unit * np.diag([1.0, second]), 1, overt.Dropout(0.3)
        )
        view = net.landscape()
        lowest, above = sorted(p.objective for p in view.points)[:2]
        assert above > lowest
        assert view.strict_saddle == saddles


def test_weak_noise_on_many_units_leaves_a_landscape():
    A = np.random.default_rng(0).standard_normal((30, 30))
    net = overt.TiedAutoencoder(A @ A.T, 30, overt.Dropout(0.001))
    view = net.landscape()
    assert view.points[0].objective == pytest.approx(net.solve().objective)
    assert view.points[0].curvature == 0
    assert view.strict_saddle


def test_points_are_capped_but_the_minimum_is_always_there():
    net = overt.TiedAutoencoder(np.diag(np.arange(1.0, 9.0)), 6, overt.Dropout(0.1))
    view = net.landscape(max_points=5)
    assert len(view.points) <= 6
    assert view.points[0].objective == pytest.approx(net.solve().objective)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: overt.TiedAutoencoder(np.ones((2, 3)), 2, overt.Dropout(0.5)),
            "square",
        ),
        (
            lambda: overt.TiedAutoencoder(np.eye(2), 2, overt.DropConnect(0.5)),
            "DropConnect",
        ),
        (
            lambda: overt.TiedAutoencoder(
                np.eye(2), 2, overt.DropBlock(0.5, 2)
            ).landscape(),
            "Dropout",
        ),
        (
            lambda: overt.TiedAutoencoder(
                -np.eye(2), 2, overt.Dropout(0.5)
            ).landscape(),
            "positive",
        ),
        (
            lambda: overt.TiedAutoencoder(np.eye(2), 2, overt.Dropout(0.5)).certify(
                np.eye(3)
            ),
            "weights must",
        ),
    ],
)
def test_bad_tied_problems_are_refused(make, message):
    with pytest.raises(overt.InputError, match=message):
        make()


@pytest.mark.parametrize("seed", range(2))
def test_inputs_in_very_different_units(seed):
    """Oracle: one unit along w = (1, r) lowers E|y|^2 by (w'K w)^2 / (|w|^2 w'C w (1 + strength)).

    K = E[y x']; r is tried on either side of zero and at every size.
    """
    rng = np.random.default_rng(seed)
    units, A = 10 ** rng.uniform(-5, 5, 2), rng.standard_normal((2, 2))
    C, M = A @ A.T * np.outer(units, units), rng.standard_normal((2, 2)) / units
    net = overt.TiedAutoencoder(M, 1, overt.Dropout(0.3), second_moment=C)
    r = np.geomspace(1e-12, 1e12, 40_001)
    w = np.array([np.ones(2 * len(r)), np.r_[r, -r]])
    gain, size = (
        np.sum(w * (M @ C @ w), axis=0),
        np.sum(w * w, axis=0) * np.sum(w * (C @ w), axis=0),
    )
    lowest = np.trace(M @ C @ M.T) - np.max(np.maximum(gain, 0) ** 2 / size) / (
        1 + 3 / 7
    )
    assert net.solve().objective == pytest.approx(lowest, rel=1e-6)


@pytest.mark.parametrize("noise", ["dropout", "correlated"])
def test_descents_do_not_end_below_the_solution_where_inputs_have_their_units(noise):
    """Solutions were 87 and 20 percent above the best of these descents."""
    rng = np.random.default_rng(3)
    n = 4
    X = rng.standard_normal((12, n)) @ rng.standard_normal((n, n))
    X = X * 10 ** rng.uniform(-4, 4, n)
    A = rng.standard_normal((n, n))
    M = rng.standard_normal((n, n)) / np.sqrt(np.mean(X**2, axis=0))
    C = X.T @ X / 12
    chosen = overt.CovarianceNoise(np.ones(n), A @ A.T / n)
    width = n
    if noise == "dropout":
        M = np.array([[-299.44, -0.33696], [129.26, -0.059054]])
        C = np.array([[0.026965, 6.1443], [6.1443, 176156.7]])
        chosen = overt.Dropout(0.852)
        width = 7
    net = overt.TiedAutoencoder(M, width, chosen, second_moment=C)
    runs = lowest_of_restarts(net)
    assert net.solve().objective <= min(run.fun for run in runs) * (1 + 1e-6)


def test_a_small_input_that_matters_is_not_left_out():
    """Descents whose steps know nothing of units end at 4.92e-8; few of many restarts go lower."""
    C = np.array([[2.8657e-9, 7.3186e-4], [7.3186e-4, 196.17]])
    M = np.array([[3.3393, -9.3085e-5], [-0.33125, 9.2959e-6]])
    net = overt.TiedAutoencoder(M, 6, overt.Dropout(0.1875), second_moment=C)
    assert net.solve().objective < 4.85e-8


def test_without_noise_an_autoencoder_finds_the_principal_components():
    """Inputs of very different sizes led the search astray by a factor of a million."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((15, 5)) * [1e4, 1.0, 1e-3, 3e2, 1e-4]
    X = X @ np.linalg.qr(rng.standard_normal((5, 5)))[0]
    none = overt.CovarianceNoise(np.ones(2), np.zeros((2, 2)))
    s = np.linalg.svd(X / np.sqrt(15), compute_uv=False)
    best = overt.TiedAutoencoder(X=X, width=2, noise=none).solve()
    assert best.objective == pytest.approx(np.sum(s[2:] ** 2), rel=1e-3)
