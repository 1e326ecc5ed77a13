"""The best last layer on fixed units, against least squares."""

import numpy as np
import pytest

import overt
from overt.nn.auditing.lower_bounds import LastLayerProblem, envelopes


def least_squares(h, y, strength, *, bias):
    """Minimize |y - U h - b|^2 + strength sum_j |u_j|^2 mean(h_j^2) by appended rows."""
    n, d = h.shape
    extra = np.diag(np.sqrt(strength * (h**2).sum(0)))
    one = np.ones((n, 1)) if bias else np.zeros((n, 1))
    A = np.block([[h, one], [extra, np.zeros((d, 1))]])
    W = np.linalg.lstsq(A, np.vstack([y, np.zeros((d, y.shape[1]))]), rcond=None)[0]
    return W[:d].T, W[d]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [30, 4], ids=["many rows", "fewer rows than units"])
def test_the_best_last_layer_is_a_ridge_regression(bias, rows):
    rng = np.random.default_rng(0)
    h, y = rng.standard_normal((rows, 5)) + 1, rng.standard_normal((rows, 2))
    h[:, 2] = 0  # a dead unit has no weight
    data = np.hstack([np.ones((rows, 1)), h, y])
    problem = LastLayerProblem(data.T @ data / rows, 5, bias=bias)
    strengths = np.array([0.05, 1.0, 9.0])
    U_path, b_path = problem.solve_path(strengths)
    for i, strength in enumerate(strengths):
        U, b = problem.solve(lambda C, s=strength: s * np.diag(np.diag(C)))
        expected_U, expected_b = least_squares(h, y, strength, bias=bias)
        for found_U, found_b in ((U, b), (U_path[i], b_path[i])):
            np.testing.assert_allclose(found_U, expected_U, atol=1e-9)
            np.testing.assert_allclose(found_b, expected_b, atol=1e-9)
        error = np.mean(np.sum((y - b - h @ U.T) ** 2, 1))
        assert problem.error(U, b) == pytest.approx(error)


def test_without_noise_a_singular_problem_is_fitted():
    """More units than rows: the fit is perfect, whatever solution is taken."""
    rng = np.random.default_rng(0)
    h, y = rng.standard_normal((4, 9)), rng.standard_normal((4, 2))
    data = np.hstack([np.ones((4, 1)), h, y])
    problem = LastLayerProblem(data.T @ data / 4, 9, bias=False)
    U, b = problem.solve_path(np.zeros(1))
    np.testing.assert_allclose(h @ U[0].T + b[0], y, atol=1e-9)


@pytest.mark.parametrize(
    "noise",
    [
        overt.KeepExactly(3),
        overt.DropBlock(0.4, 2, "sliding"),
        overt.CovarianceNoise(np.full(4, 0.9), 0.2 * np.eye(4) + 0.1),
    ],
    ids=["keep exactly", "sliding", "covariance"],
)
@pytest.mark.parametrize("seed", range(20))
def test_envelopes_are_below_the_penalty(noise, seed):
    rng = np.random.default_rng(seed)
    U, V = rng.standard_normal((5, 4)), rng.standard_normal((6, 4))
    s = np.linalg.svd(U @ V.T, compute_uv=False)
    for weight, norm in envelopes(noise.characteristic(4)):
        assert weight * norm.value(s) <= overt.penalty.shallow(U, V, noise) * (1 + 1e-9)
