"""The margin of Assumption 2, and what Theorems 14 and 15 ask for."""

import math

import cvxpy
import numpy as np
import pytest

from overt import InputError
from overt.papers.relu_lazy import guarantee, margin, required


def problem(seed, n=10):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.sign(X[:, 0])


@pytest.mark.parametrize("angle", [0.2, 1.0, math.pi / 2, 3.0])
def test_margin_of_two_points(angle):
    X = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    found = margin(X, [1, -1], drop_prob=0.5)
    exact = (angle + (math.pi - angle) * math.sin(angle / 2)) / (4 * math.pi)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 0.02


def test_margin_of_one_point_is_three_standard_errors_off():
    """psi = x, and both sides are the share of z with z.x >= 0 on the same samples."""
    found = margin(np.array([[0.6, 0.8]]), [1], features=1000)
    error = math.sqrt(0.25 / 20_000)
    assert found.upper - found.lower == pytest.approx(6 * error, rel=0.01)
    assert (found.upper + found.lower) / 2 == pytest.approx(0.5, abs=5 * error)


def test_margin_against_a_cone_program():
    X, y = problem(0, 6)
    found = margin(X, y, features=2000)
    signed = y[:, None] * X
    gates = np.random.default_rng(1).normal(size=(300, 3)) @ X.T >= 0
    psi = cvxpy.Variable((300, 3))
    margins = cvxpy.sum(cvxpy.multiply(gates, psi @ signed.T), axis=0) / 300
    bounded = [cvxpy.norm(psi, 2, axis=1) <= 1]
    best = cvxpy.Problem(cvxpy.Maximize(cvxpy.min(margins)), bounded).solve()
    # 300 features overfit by about a standard error, 1/sqrt(300), of what the margin is.
    assert found.lower - 0.01 <= best <= found.upper + 5 / math.sqrt(300)


def test_margin_scales_with_the_kept_share():
    full, half = (margin(*problem(4), drop_prob=prob) for prob in (0.0, 0.5))
    assert half.lower == pytest.approx(full.lower / 2)
    assert full.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("delta", [None, 0.01])
@pytest.mark.parametrize("gamma", [0.02, 0.4])
def test_requirements_are_met_and_tight(gamma, delta):
    found = required(epsilon=0.05, margin=gamma, dimension=64, delta=delta)
    settings = {"margin": gamma, "dimension": 64, "delta": delta or 0.05}
    at = guarantee(**settings, width=found.width, steps=found.steps)
    name = "full_error" if delta is None else "subnetwork_error"
    assert at.applies
    assert not at.vacuous
    assert getattr(at, name) <= 0.05
    narrower = guarantee(**settings, width=0.99 * found.width, steps=found.steps)
    assert not narrower.applies
    fewer = guarantee(**settings, width=found.width, steps=0.99 * found.steps)
    assert getattr(fewer, name) > 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: margin(2 * X, y), "norm 1"),
        (lambda X, y: margin(X, (y + 1) / 2), "got 0.0, 1.0"),
        (lambda X, y: required(epsilon=0.1, margin=0.0, dimension=3), "margin must be"),
        (
            lambda X, y: required(
                epsilon=0.1, margin=0.5, dimension=3, learning_rate=1.0
            ),
            "ln 2",
        ),
        (
            lambda X, y: required(epsilon=0.1, margin=0.5, dimension=3, delta=0.0),
            "delta",
        ),
        (
            lambda X, y: required(epsilon=0.1, margin=1e-60, dimension=3),
            "between 1e-30 and 1",
        ),
        (
            lambda X, y: required(epsilon=1e-300, margin=1e-30, dimension=3),
            "no width and steps",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(*problem(5))
