"""The exact optimum of dropout after a ReLU with one output."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize

from overt import Dropout, InputError, penalty
from overt.relu import one_output_optimum


def expected_error(y, activations, U, drop_prob):
    """Mean squared error, averaged over every mask of the units."""
    total = 0.0
    for mask in product((0, 1), repeat=U.shape[1]):
        mask = np.array(mask)
        weight = np.prod(np.where(mask, 1 - drop_prob, drop_prob))
        output = activations @ (U[0] * mask / (1 - drop_prob))
        total += weight * np.mean((y - output) ** 2)
    return total


def descend(y, width, lam, rng):
    """Minimize over weights and features z^2 by SciPy from random ones."""
    n = len(y)

    def value(theta):
        u = theta[:width]
        z = theta[width:].reshape(n, width)
        q = z**2
        off = q @ u - y
        loss = np.sum(off**2) + lam * np.sum(u**2 * np.sum(q**2, axis=0))
        by_u = 2 * off @ q + 2 * lam * u * np.sum(q**2, axis=0)
        by_q = 2 * np.outer(off, u) + 2 * lam * u**2 * q
        return loss / n, np.concatenate([by_u, (by_q * 2 * z).ravel()]) / n

    start = rng.standard_normal(width + n * width)
    return minimize(
        value, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000}
    ).fun


@pytest.mark.parametrize("seed", range(6))
def test_the_objective_is_attained_and_never_beaten(seed):
    rng = np.random.default_rng(seed)
    width = int(rng.integers(1, 6))
    drop_prob = rng.uniform(0.1, 0.8)
    y = rng.standard_normal(rng.integers(1, 7)) + rng.uniform(-1, 1)
    best = one_output_optimum(y, width, drop_prob)
    assert best.status == "optimal"
    assert best.activations.min() >= 0
    found = expected_error(y, best.activations, best.U, drop_prob)
    assert found == pytest.approx(best.objective, rel=1e-12)
    explicit = penalty.hidden(best.U, best.activations, Dropout(drop_prob))
    error = np.mean((y - best.prediction) ** 2)
    assert error + explicit == pytest.approx(best.objective, rel=1e-12)
    np.testing.assert_allclose(best.prediction, best.activations @ best.U[0])
    lam = drop_prob / (1 - drop_prob)
    descents = np.array([descend(y, width, lam, rng) for _ in range(30)])
    assert np.all(descents >= best.objective - 1e-9)
    assert descents.min() == pytest.approx(
        best.objective, rel=1e-4
    )  # descents stop early


def test_balanced_labels_count_the_rate_twice():
    y = np.array([1.0, -1.0] * 5)
    for width in (2, 4, 10):
        for drop_prob in (0.2, 0.5, 0.7):
            lam = drop_prob / (1 - drop_prob)
            best = one_output_optimum(y, width, drop_prob)
            assert best.objective == pytest.approx(2 * lam / (width + 2 * lam))
            assert best.unsigned_objective == pytest.approx(lam / (width + lam))
            assert best.positive_units == width // 2


def test_one_sign_needs_no_second_kind_of_unit():
    best = one_output_optimum([1.0, 2.0, 0.0], 3, 0.5)
    assert best.positive_units == 3
    assert best.objective == pytest.approx(best.unsigned_objective)
    flipped = one_output_optimum([-1.0, -2.0, 0.0], 3, 0.5)
    assert (flipped.positive_units, flipped.objective) == (0, best.objective)


def test_no_noise_and_no_signal():
    assert one_output_optimum([1.0, -2.0], 2, 0.0).objective == 0
    np.testing.assert_allclose(
        one_output_optimum([1.0, -2.0], 2, 0.0).prediction, [1, -2]
    )
    assert one_output_optimum([1.0, -2.0], 1, 0.0).objective == pytest.approx(
        0.5
    )  # one sign only
    assert one_output_optimum([0.0, 0.0], 2, 0.5).objective == 0


def test_wrong_arguments_are_named():
    for arguments, name in (
        (([[1.0]], 2), "y"),
        (([1.0], 0), "width"),
        (([1.0], 2, 1.0), "drop_prob"),
        (([np.nan], 2), "y"),
    ):
        with pytest.raises(InputError, match=name):
            one_output_optimum(*arguments)
