"""The problem [[1, *], [epsilon, 1]] solved on paper: every critical point is on an explicit curve.

Let J swap the columns. At a critical point that is symmetric about the antidiagonal, A J =
[[x, a], [a, b]] has eigenvalues s_1 and -s_2 and a rotation angle t. With p = 2/L, setting the
derivative of C(A) + lam L (s_1^p + s_2^p) by (s_1, s_2, t) to zero and eliminating leaves

    x = epsilon + 2 cot 2t                     (the missing entry, for both ranks)
    rank 2, rho = s_2 / s_1 in (0, 1):  tan(t)^2 = rho^(1-p),  s_1 = x / (cos(t)^2 - rho sin(t)^2),
        lam = (1 - s_1 (1 + rho) sin(2t)/2) / (3 sin(2t) s_1^(p-1) (1 + rho^(p-1)))
    rank 1, x > 0:  s_1 = x / cos(t)^2,  k = (1 - s_1 sin(2t)/2) / (1.5 sin 2t),
        lam = k sin(t)^2 s_1^(1-p) / 2
    rank 1, x < 0:  s_1 = -x / sin(t)^2,  k as before,  lam = k cos(t)^2 s_1^(1-p) / 2

The last curve holds rank-1 minima with a negative missing entry and a negative fit of epsilon,
which go to infinity as lam -> 0 and never fit; the paper's list of three minima leaves them out.
So the critical points at a given lam are the roots of one function of one variable, and the
largest lam on a curve is where its minimum meets its saddle and both vanish. That critical points
outside the symmetry do not exist is observed (random search finds none), not proved.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from overt._check import Floats, InputError, number, whole
from overt.entries.entries import Entries


def two_by_two(epsilon: float) -> Entries:
    """Return [[1, *], [epsilon, 1]], whose rank-1 completion is 1 / epsilon."""
    epsilon = number("epsilon", epsilon, exclusive=True)
    truth = np.array([[1.0, 1 / epsilon], [epsilon, 1.0]])
    rows = [0, 1, 1]
    cols = [0, 0, 1]
    return Entries(rows, cols, truth[rows, cols], truth.shape, truth=truth)


def epsilon_of(problem: Entries) -> float | None:
    """Return epsilon if the problem is [[1, *], [epsilon, 1]], otherwise None."""
    if problem.shape != (2, 2) or len(problem) != 3:
        return None
    A = np.full((2, 2), np.nan)
    A[problem.rows, problem.cols] = problem.values
    epsilon = float(A[1, 0])
    if np.isnan(A[0, 1]) and A[0, 0] == A[1, 1] == 1 and epsilon > 0:
        return epsilon
    return None


def critical_points(
    epsilon: float, depth: int, weight_decay: float, rank: int
) -> list[Floats]:
    """Return the symmetric critical points of this rank (1 or 2): minima and saddles."""
    lam = number("weight_decay", weight_decay, exclusive=True)
    result = []
    for curve in _curves(epsilon, depth, rank):
        excess = curve.weight_decay(curve.grid) - lam
        for i in np.flatnonzero(excess[:-1] * excess[1:] < 0):
            low, high = curve.grid[i], curve.grid[i + 1]
            root = brentq(
                lambda q, c=curve: c.at(q) - lam, low, high, xtol=1e-15, rtol=1e-14
            )
            result.append(curve.matrix(root))
    return result


def existence(epsilon: float, depth: int, rank: int) -> float:
    """Return the largest weight decay for which a critical point of this rank exists."""
    largest = 0.0
    for curve in _curves(epsilon, depth, rank):
        k = int(np.argmax(curve.weight_decay(curve.grid)))
        bounds = curve.grid[max(k - 1, 0)], curve.grid[min(k + 1, len(curve.grid) - 1)]
        options = {"xatol": 1e-12}
        found = minimize_scalar(
            lambda q, c=curve: -c.at(q),
            bounds=bounds,
            method="bounded",
            options=options,
        )
        largest = max(largest, float(-found.fun))
    return largest


def _curves(epsilon: float, depth: int, rank: int) -> list[_Curve]:
    """Return the curves of a rank; the coordinate is log rho (rank 2) or log tan(t)^2 (rank 1)."""
    epsilon = number("epsilon", epsilon, exclusive=True)
    depth = whole("depth", depth, 3)
    zero = 2 * np.arcsinh(epsilon / 2)  # log tan(t)^2 where the missing entry is 0
    match rank:
        case 2:
            ends = {0: (-40.0, -1e-9)}
        case 1:
            ends = {1: (-40.0, zero - 1e-9), -1: (zero + 1e-9, 40.0)}
        case _:
            raise InputError(f"rank must be 1 or 2, got {rank!r}")
    return [
        _Curve(epsilon, 2 / depth, s, np.linspace(*at, 40_001))
        for s, at in ends.items()
    ]


class _Curve:
    """Critical points of rank 2 (sign 0), or of rank 1 with a missing entry of this sign."""

    def __init__(self, epsilon: float, p: float, sign: int, grid: Floats) -> None:
        self._epsilon = epsilon
        self._p = p
        self._sign = sign
        self.grid = grid

    def _parameters(self, q: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return A J's positive and minus its negative eigenvalue, t, and the missing entry."""
        exponent = 0.5 * q
        rho = 0 * q
        if self._sign == 0:
            exponent = exponent * (1 - self._p)
            rho = np.exp(q)
        t = np.arctan(np.exp(exponent))
        x = self._epsilon - 2 * np.sinh(exponent)  # 2 cot 2t = -2 sinh(log tan t)
        sin2 = np.sin(t) ** 2
        if self._sign < 0:
            return 0 * q, -x / sin2, t, x
        s_1 = x / (np.cos(t) ** 2 - rho * sin2)
        return s_1, rho * s_1, t, x

    def weight_decay(self, q: Floats) -> Floats:
        """Return the weight decay at which the point q of the curve is critical."""
        s_1, s_2, t, _ = self._parameters(q)
        double = np.sin(2 * t)
        k = (1 - (s_1 + s_2) * double / 2) / (1.5 * double)
        power = 1 - self._p
        if self._sign > 0:
            factor = np.sin(t) ** 2 * s_1**power
        elif self._sign < 0:
            factor = np.cos(t) ** 2 * s_2**power
        else:
            factor = 1 / (s_1**-power + s_2**-power)
        return np.asarray(k * factor / 2)

    def at(self, q: float) -> float:
        """Return the weight decay at one point."""
        return float(self.weight_decay(np.asarray(q)))

    def matrix(self, q: float) -> Floats:
        """Return the critical point itself."""
        s_1, s_2, t, x = self._parameters(np.asarray(q))
        a = (s_1 + s_2) * np.sin(2 * t) / 2
        b = s_1 * np.sin(t) ** 2 - s_2 * np.cos(t) ** 2
        return np.array([[a, x], [b, a]])
