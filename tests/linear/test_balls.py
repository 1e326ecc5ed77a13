"""Proposals of many digits, against what they are proposals of."""

from fractions import Fraction

import numpy as np
import pytest

flint = pytest.importorskip("flint")

from overt.linear import balls  # noqa: E402
from overt.linear.checker import RefusedError  # noqa: E402


def test_relations_are_all_that_hold_exactly():
    x, y = np.array([0.1, 0.7, 1e-9]), np.array([3.0, 2e-7, 5.0])
    for X, expected in (
        (np.c_[x, 2 * x, y], [[2, -1, 0]]),
        (np.c_[x, y], []),
        (np.c_[x, x, y, -4 * y], 2),
        (np.c_[0 * x, y], [[1, 0]]),
        (np.array([[0.5, 0.25, 3.0]]), 2),
    ):
        found = balls.relations(X)
        for z in found:
            assert any(z)
            for row in X.tolist():
                assert sum(Fraction(a) * b for a, b in zip(row, z, strict=True)) == 0
        assert len(found) == (expected if isinstance(expected, int) else len(expected))
        assert not found or np.linalg.matrix_rank(np.array(found, float)) == len(found)


@pytest.mark.parametrize(("steep", "unit"), [(0, 1.0), (6, 1.0), (0, 1e-60)])
def test_roots_of_data_are_right_to_many_digits(steep, unit):
    rng = np.random.default_rng(20)
    X = np.linalg.qr(rng.standard_normal((6, 3)))[0] * np.logspace(0, -steep, 3)
    X = X @ rng.standard_normal((3, 3)) * [1.0, unit, unit]
    with flint.ctx.workprec(384):
        R = balls.inverse_root(X, 3)
        XR = balls.balls(X) * R
        gap = XR.transpose() * XR
        away = max(
            abs(float((gap[i, j] - (i == j)).mid())) for i in range(3) for j in range(3)
        )
    assert away < 1e-25


@pytest.mark.parametrize(
    "values",
    [
        [3.0, 1.0, 0.5],
        [2.0, 2.0 + 1e-10, 1.0],
        [1.0, 1.0, 1.0],
        [0.0, 0.0],
        [5.0, 5.0, 1.0, 1.0 + 1e-9, -1.0, -2.0, -2.0, -2.0 - 1e-10],
    ],
)
def test_eigenvectors_are_right_to_many_digits(values):
    rng, n = np.random.default_rng(21), len(values)
    with flint.ctx.workprec(256):
        Q = balls._orthogonal(
            balls._orthogonal(balls.balls(np.linalg.qr(rng.standard_normal((n, n)))[0]))
        )
        K = Q * balls.balls(np.diag(values)) * Q.transpose()
        X = balls.eigenvectors(K)
        D, unit = X.transpose() * K * X, X.transpose() * X
        off = max(
            abs(float(D[i, j].mid())) for i in range(n) for j in range(n) if i != j
        )
        away = max(
            abs(float((unit[i, j] - (i == j)).mid()))
            for i in range(n)
            for j in range(n)
        )
    assert away < 1e-25
    assert off < 1e-20
    assert sorted(float(D[i, i].mid()) for i in range(n)) == pytest.approx(
        sorted(values)
    )


def test_exact_matrices_become_balls_and_are_multiplied():
    A = balls.Exact([[3, -5], [7, 1]], -2)
    np.testing.assert_array_equal(
        balls._floats(balls.around(A)), [[0.75, -1.25], [1.75, 0.25]]
    )
    square = A @ A
    assert (square.rows, square.exponent) == ([(-26, -20), (28, -34)], -4)
    assert balls.hexadecimal(flint.arb(-0.75)) == "-0x3p-2"
    with pytest.raises(RefusedError, match="shapes do not fit"):
        _ = A @ balls.Exact([[1, 2]], 0)
