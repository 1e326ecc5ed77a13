"""Lower bounds on the squared objective of a network with noise before its last layer.

Let the output be f = U (m o g(x)) + b: m the multipliers of a noise, U and b the affine map behind
them, g(x) the units before the noise. Y holds targets as rows over the n samples, divided by
sqrt(n), and P subtracts means over samples. For the squared loss

    objective >= min over A of rank at most r: |P Y - A|^2 + w N(A),

(w, N) an envelope of the penalty and r the fewest units behind the noise. With units h fixed and
C = E[h h'], the best last layer is a ridge regression, U (Cov(h) + Gamma o C) = Cov(y, h). The
guide on auditing has the proofs.

Data come as R of a decomposition Q R of the rows (1, ..., targets, ...), divided by sqrt(n). Its
rows below the first belong to the centered data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_solve

from overt._check import Floats
from overt.linear.bounds import NormCost
from overt.spectral import KSupport, SquaredNuclear

UNUSED = 1e-12
"""A unit whose root mean square is this fraction of the largest one counts as zero."""

SPANNED = 1e-14
"""Singular values of the scaled inputs below this fraction of the largest are zero.

A direction too many only lowers the bound.
"""

SINGULAR = 1e-11
"""Eigenvalues below this fraction of the trace are rounding errors of zero."""


@dataclass(frozen=True, eq=False)
class Target:
    """The target of a last layer: singular values, and the squared error outside."""

    spectrum: Floats
    residual: float


def singular_values(A: Floats) -> Floats:
    """Return the singular values of A in decreasing order."""
    return np.asarray(np.linalg.svd(A, compute_uv=False), dtype=np.float64)


def free_target(R: Floats, targets: slice, *, centered: bool) -> Target:
    """Return the target of a last layer whose features are free."""
    rows = R[1:, targets] if centered else R[:, targets]
    return Target(singular_values(rows), 0.0)


def affine_target(
    R: Floats, inputs: slice, targets: slice, *, centered: bool, shifted: bool
) -> Target:
    """Return the target projected on the span of the inputs (and of a constant, if `shifted`)."""
    rows = R[1:] if centered else R
    X = rows[:, inputs]
    if shifted and not centered:
        X = np.concatenate([rows[:, :1], X], 1)
    Y = rows[:, targets]
    size = np.linalg.norm(X, axis=0)
    left, s, _ = np.linalg.svd(X[:, size > 0] / size[size > 0], full_matrices=False)
    left = left[:, s > SPANNED * s.max(initial=0.0)]
    spanned = left.T @ Y
    spectrum = singular_values(spanned) if spanned.size else np.zeros(1)
    return Target(spectrum, float(np.sum((Y - left @ spanned) ** 2)))


def envelopes(Gamma: Floats) -> list[tuple[float, int]]:
    """Return pairs (w, k) with <Gamma, U'U o G'G> >= w |U G'|^2 in the k-support norm.

    Gamma >= delta I in the positive semi-definite order, and U'U o G'G is positive semi-definite,
    so it is at least (delta/d) |U G'|_*^2, which is k = 1. Moreover, if Gamma_ij = 0 for
    |i - j| >= k, it is a sum of z z' with at most k entries of z not zero; each adds
    |sum_i z_i u_i g_i'|_F^2, the square of a map of rank at most k, and these maps combine to
    U G', whence

        <Gamma, U'U o G'G> >= w ksupport_k(U G')^2,  w = 1 / (1' Gamma^-1 1).
    """
    d = len(Gamma)
    values, vectors = np.linalg.eigh(Gamma)
    smallest = max(0.0, values[0] - 1e-13 * values[-1])
    live = values > 1e-10 * values[-1]
    ones = np.sum(vectors, axis=0)
    weight = 0.0
    if np.allclose(ones[~live], 0.0, atol=1e-8):
        weight = (1 - 1e-9) / float(np.sum(ones[live] ** 2 / values[live]))
    i, j = np.nonzero(Gamma)
    band = int(np.max(np.abs(i - j), initial=0)) + 1
    return [(smallest / d, 1), (weight, band)]


def norm_cost(weight: float, k: int) -> NormCost:
    """Return a cost by the squared k-support norm, which for k = 1 is the squared nuclear norm."""
    return NormCost(weight, SquaredNuclear() if k == 1 else KSupport(k))


def squared_bound(
    target: Target, rank: int, envelopes: list[NormCost]
) -> tuple[float, Floats]:
    """Return the largest bound, and the spectrum that would attain it."""
    m = target.spectrum[:rank]
    rest = float(np.sum(target.spectrum[rank:] ** 2))
    costs = envelopes or [norm_cost(0.0, 1)]
    bounds = [cost.bound(m) for cost in costs]
    best = int(np.argmax(bounds))
    return target.residual + bounds[best] + rest, costs[best].shrink(m)


class LastLayerProblem:
    """The best last layer on fixed units: a ridge regression.

    `moments` is the mean over rows of the outer products of (1, h, y).
    """

    def __init__(self, moments: Floats, units: int, *, bias: bool) -> None:
        self._second = moments[1:, 1:]
        self._units = units
        self._bias = bias
        self.C = self._second[:units, :units]
        self._mean_h = moments[0, 1 : 1 + units]
        self._mean_y = moments[0, 1 + units :]
        size = np.sqrt(np.maximum(np.diag(self.C), 0.0))
        self._used = size > UNUSED * max(size.max(initial=0.0), 1e-300)
        self._scale = np.where(self._used, size, np.inf)

    def solve(self, Gamma: Any) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) under a noise with this covariance of the multipliers."""
        A, B = self._normal_equations()
        A = A + Gamma * (self.C / self._scale / self._scale[:, None])
        return self._with_bias((_solve(A, B) / self._scale[:, None]).T)

    def solve_path(self, strengths: Floats) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) for Gamma = strength I, along a first axis."""
        A, B = self._normal_equations()
        values, vectors = _live_eigenpairs(A)
        shifted = values + strengths[:, None]
        U = vectors @ (vectors.T @ B / shifted[:, :, None]) / self._scale[:, None]
        return self._with_bias(np.swapaxes(U, 1, 2))

    def error(self, U: Floats, b: Floats) -> Any:
        """Return E|y - b - U h|^2, for each (U, b) along leading axes."""
        d = self._units
        image = (U.reshape(-1, d) @ self.C).reshape(U.shape)
        fit = np.sum((image - 2 * self._second[d:, :d]) * U, (-2, -1))
        shift = np.sum((b + 2 * (U @ self._mean_h - self._mean_y)) * b, -1)
        return np.trace(self._second[d:, d:]) + fit + shift

    def objective(self, Gamma: Any) -> float:
        """Return the least training objective that a last layer has under a noise."""
        U, b = self.solve(Gamma)
        return float(self.error(U, b) + np.sum((U @ (Gamma * self.C)) * U))

    def _normal_equations(self) -> tuple[Floats, Floats]:
        """Return Cov(h) and Cov(h, y) of scaled units; second moments without a bias."""
        d = self._units
        A = self.C
        B = self._second[:d, d:]
        if self._bias:
            A = A - np.outer(self._mean_h, self._mean_h)
            B = B - np.outer(self._mean_h, self._mean_y)
        A = A / self._scale / self._scale[:, None]
        return A + np.diag(~self._used), B / self._scale[:, None]

    def _with_bias(self, U: Floats) -> tuple[Floats, Floats]:
        b = self._mean_y - U @ self._mean_h
        return U, b if self._bias else np.zeros_like(b)


def _solve(A: Floats, B: Floats) -> Floats:
    """Return A^+ B for a positive semi-definite A."""
    try:
        L = np.linalg.cholesky(A)
        if np.diag(L).min() ** 2 > SINGULAR * np.trace(A):
            return np.asarray(cho_solve((L, True), B))
    except np.linalg.LinAlgError:
        pass
    values, vectors = _live_eigenpairs(A)
    return np.asarray(vectors @ (vectors.T @ B / values[:, None]))


def _live_eigenpairs(A: Floats) -> tuple[Floats, Floats]:
    """Return eigenvalues and eigenvectors but for rounding errors of zero."""
    values, vectors = np.linalg.eigh(A)
    live = values > SINGULAR * max(float(np.trace(A)), 1e-300)
    return values[live], vectors[:, live]
