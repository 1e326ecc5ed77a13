"""Proved lower bounds on the training objective of a network with noise before its last layers.

Let the output be f = U (m o g(x)) + b, m the multipliers of a noise, U and b what the affine tail
makes of them, g(x) the units before the noise; Y, F hold targets and mean outputs as rows over the
n samples, divided by sqrt(n), and P takes off means over samples. For the squared loss

    objective >= min over A of rank at most r: |P Y - A|^2 + w N(A),

(w, N) an envelope of the penalty and r the narrowest place in the tail; for cross-entropy, at a
size t = |P F|_* of the centered logits, mean loss >= mean_n H(q_n) - e s_1(P Y) t for
q_n = (1 - e) y_n + e pi, whatever e. With units h as they are and C = E[h h'], the best last layer
is a ridge regression, U (Cov(h) + Gamma o C) = Cov(y, h). The guide on auditing has the proofs, and
what they assume.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._types import Floats, Ints
from overt.linear.bounds import Envelope, shrink, spectral_bound
from overt.linear.regression import from_data
from overt.nn.auditing.sums import Parts
from overt.spectral import SquaredNuclear

Weigh = Callable[[Floats], Floats]
"""C -> Gamma o C."""

CANDIDATES = np.round(np.arange(0, 0.96, 0.05), 2)


@dataclass(frozen=True, eq=False)
class Target:
    """What a last layer can approach: singular values, and the squared error outside."""

    spectrum: Floats
    residual: float


def singular_values(A: Floats) -> Floats:
    """Return the singular values of A in decreasing order."""
    return np.asarray(np.linalg.svd(A, compute_uv=False), dtype=np.float64)


def free_target(R: Floats, targets: slice, *, centered: bool) -> Target:
    """Targets that any features may fit, from the triangle of (1, ..., targets, ...)."""
    rows = R[1:, targets] if centered else R[:, targets]
    return Target(singular_values(rows), 0.0)


def affine_target(
    R: Floats, inputs: slice, targets: slice, *, centered: bool, shifted: bool
) -> Target:
    """Targets projected on the span of the inputs (and of a constant, if `shifted`)."""
    rows = R[1:] if centered else R
    X = rows[:, inputs]
    if shifted and not centered:
        X = np.concatenate([rows[:, :1], X], 1)
    if not np.any(X):
        return Target(np.zeros(1), float(np.sum(rows[:, targets] ** 2)))
    scale = math.sqrt(len(rows))  # from_data takes the mean over rows; R holds the sum already
    quadratic = from_data(X * scale, rows[:, targets] * scale)
    return Target(quadratic.svd[1], quadratic.residual)


def squared_bound(target: Target, rank: int, envelopes: list[Envelope]) -> tuple[float, Floats]:
    """Return the tightest bound, and the spectrum that would attain it."""
    m, rest = target.spectrum[:rank], float(np.sum(target.spectrum[rank:] ** 2))
    found = [(spectral_bound(m, rest, envelope), envelope) for envelope in envelopes]
    best, envelope = max(found, key=lambda pair: pair[0], default=(rest, (0.0, SquaredNuclear())))
    return target.residual + max(best, rest), shrink(m, envelope)


def surviving(m: Floats, weights: Floats) -> Ints:
    """Return how many of m (decreasing) are left by |m - a|^2 + weight |a|_1^2, for each weight.

    They are those above alpha = w h_j / (1 + w j), h_j = m_1 + ... + m_j, and what they sum to.
    """
    j, h, w = np.arange(1, len(m) + 1), np.cumsum(m), weights[:, None]
    rho = np.maximum(np.sum(m > w * (h - j * m), 1, keepdims=True), 1)
    kept = h[rho - 1] / (1 + w * rho)
    left = np.minimum(np.maximum(m - w * kept, 0.0), kept)
    return np.sum(left > 1e-7 * left[:, :1], 1)


def class_bound(
    frequencies: Floats, top: float, size: float, *, centered: bool, entropy: float = 0.0
) -> float:
    """max over e of mean_n H((1 - e) y_n + e pi) - e s_1 t, for classes with these frequencies.

    `top` is s_1 of the targets minus pi, `size` is t; pi is uniform for logits without bias, which
    are not centered. `entropy` is the mean of H(y_n), 0 for one-hot targets; for others
    H((1 - e) y + e pi) >= (1 - e) H(y) + e H(pi) is taken.
    """
    classes = len(frequencies)
    pi = frequencies if centered else np.full(classes, 1 / classes)

    def value(e: float) -> float:
        if entropy == 0:
            q = (1 - e) * np.eye(classes) + e * pi
            kept = float(frequencies @ _entropy(q).sum(1))
        else:
            kept = (1 - e) * entropy + e * class_entropy(pi)
        return kept - e * top * size

    return max(0.0, _maximum(value))


def logistic_bound(means: Floats, pi: Floats, entropy: float, top: float, size: float) -> float:
    """Return the same for outputs with logistic losses and targets in [0, 1], summed over outputs.

    `pi` are the means of the targets, or any other for logits without bias. Entropy is concave,
    H((1 - e) y + e pi) >= (1 - e) H(y) + e H(pi); for targets 0 and 1 the left side itself is
    taken. `entropy` is the mean over samples of sum_o H(y_o).
    """

    def value(e: float) -> float:
        if entropy == 0:
            ones, zeros = (1 - e) + e * pi, e * pi
            kept = means @ _binary_entropy(ones) + (1 - means) @ _binary_entropy(zeros)
        else:
            kept = (1 - e) * entropy + e * _binary_entropy(pi).sum()
        return float(kept) - e * top * size

    return max(0.0, _maximum(value))


def class_entropy(frequencies: Floats) -> float:
    """Return the entropy of class frequencies, the least loss of a constant output."""
    return float(_entropy(frequencies).sum())


def binary_entropy(means: Floats) -> float:
    """Return the least logistic loss of constant outputs, summed over outputs."""
    return float(_binary_entropy(means).sum())


def _maximum(value: Callable[[float], float]) -> float:
    """Return the largest value of a concave function on [0, 1].

    Every point gives a valid bound, so the accuracy of the search does not matter to the proof.
    """
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(lambda e: -value(e), bounds=(0, 1), method="bounded",
                            options={"xatol": 1e-10})  # fmt: skip
    return max(value(0.0), value(1.0), -float(found.fun))


def _entropy(q: Floats) -> Floats:
    return -q * np.log(np.where(q > 0, q, 1.0))


def _binary_entropy(q: Floats) -> Floats:
    return _entropy(q) + _entropy(1 - q)


class Ridge:
    """The problem on some rows: their second moments of (1, h, y), as sums over n rows."""

    def __init__(self, total: Floats, n: float, units: int, *, bias: bool) -> None:
        mean = total / n
        self.first, self._second = mean[0, 1:], mean[1:, 1:]
        self._units, self._bias = units, bias
        self.C = self._second[:units, :units]

    def best(self, weigh: Weigh) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) under the noise."""
        d, S = self._units, self._centered
        return self._with_bias(_solve(S[:d, :d] + weigh(self.C), S[:d, d:]).T)

    def path(self, strengths: Floats) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) for Gamma = strength I, (strengths, outputs, units)."""
        d, S, scale = self._units, self._centered, np.sqrt(np.maximum(np.diag(self.C), 0.0))
        scale = np.where(scale > 1e-12 * max(scale.max(initial=0.0), 1e-300), scale, np.inf)
        M = S[:d, :d] / scale / scale[:, None]
        found = shifted(M, S[:d, d:] / scale[:, None], strengths) / scale[:, None]
        return self._with_bias(np.swapaxes(found, 1, 2))

    def objective(self, U: Floats, b: Floats) -> Any:
        """E|y - b - U h|^2, for each (U, b) along leading axes."""
        d, S = self._units, self._second
        h, y = self.first[:d], self.first[d:]
        image = (U.reshape(-1, d) @ self.C).reshape(U.shape)
        fit = np.sum((image - 2 * S[d:, :d]) * U, (-2, -1))
        return np.trace(S[d:, d:]) + fit + np.sum((b + 2 * (U @ h - y)) * b, -1)

    @property
    def _centered(self) -> Floats:
        first = self.first
        return self._second - np.outer(first, first) if self._bias else self._second

    def _with_bias(self, U: Floats) -> tuple[Floats, Floats]:
        d = self._units
        b = self.first[d:] - U @ self.first[:d]
        return U, b if self._bias else np.zeros_like(b)


def few_rows(rows: Floats, units: int, strengths: Floats, *, bias: bool) -> tuple[Floats, Floats]:
    """Return what `Ridge.path` does, from fewer rows (1, h, y) than units: as many unknowns."""
    h, y = rows[:, 1 : 1 + units], rows[:, 1 + units :]
    scale = np.sqrt(np.mean(h * h, 0))
    scale = np.where(scale > 1e-12 * scale.max(initial=1e-300), scale, np.inf)
    first = rows.mean(0) if bias else np.zeros(rows.shape[1])
    X = (h - first[1 : 1 + units]) / scale
    found = shifted(X @ X.T / len(rows), (y - first[1 + units :]) / len(rows), strengths)
    U = np.swapaxes((X.T @ found) / scale[:, None], 1, 2)
    return U, first[1 + units :] - U @ first[1 : 1 + units]


def shifted(M: Floats, B: Floats, shifts: Floats) -> Floats:
    """Return (M + s I)^-1 B for each shift, M positive semi-definite with a diagonal up to 1.

    M becomes tridiagonal once. A shift is at least rounding, which gives M^+ B where M is singular.
    """
    from scipy.linalg.lapack import dormqr, dptsv, dsytrd

    n, floor = len(M), 1e-11 * max(float(np.trace(M)), 1e-300)
    if n < 3:
        return np.stack([np.linalg.solve(M + max(s, floor) * np.eye(n), B) for s in shifts])
    Q, diagonal, off, tau, _ = dsytrd(M.T, lower=1, lwork=32 * n)
    work = 64 * n * len(shifts)

    def turn(X: Floats, way: str) -> Floats:
        return np.concatenate([X[:1], dormqr("L", way, Q[1:, :-1], tau, X[1:], work)[0]])

    def solved(shift: float) -> Floats:
        found = dptsv(diagonal + shift, off, right)  # fails where rounding made M indefinite
        return found[2] if not found[3] or shift > 1 else solved(10 * shift)

    right = turn(B, "T")
    found = [solved(max(float(s), floor)) for s in shifts]
    joined = turn(np.concatenate(found, 1), "N")
    return np.moveaxis(joined.reshape(n, len(shifts), -1), 1, 0)


def holdout_curve(
    parts: Parts, weigh: Callable[[float], Weigh | None], strengths: Floats | None, *, bias: bool
) -> tuple[Floats, Floats] | None:
    """Return the held-out squared error at each drop probability, and its standard error.

    `strengths` are Gamma_ii at each, None where Gamma is not diagonal. None where there are too few
    rows, or where the noise has no drop probability to vary.
    """
    if parts.counts[0] < 2 or min(parts.counts) < 1:
        return None
    rows = parts.rows(0)
    if strengths is not None and rows is not None:
        U, b = few_rows(rows, parts.units, strengths, bias=bias)
    else:
        problem = Ridge(*parts.moments([0]), parts.units, bias=bias)
        if strengths is not None:
            U, b = problem.path(strengths)
        else:
            laws = [weigh(float(p)) for p in CANDIDATES]
            if None in laws:
                return None
            U, b = (np.stack(x) for x in zip(*(problem.best(w) for w in laws if w), strict=True))
    table = np.stack([_error(parts, p, U, b, bias=bias) for p in range(1, parts.PARTS)])
    return table.mean(0), table.std(0, ddof=1) / np.sqrt(len(table))


def _error(parts: Parts, p: int, U: Floats, b: Floats, *, bias: bool) -> Any:
    """Return the mean squared error of each (U, b) on a part of the rows."""
    rows, d = parts.rows(p), parts.units
    if rows is None:
        return Ridge(*parts.moments([p]), d, bias=bias).objective(U, b)
    f = (rows[:, 1 : 1 + d] @ U.reshape(-1, d).T).reshape(-1, *b.shape) + b
    return np.square(f - rows[:, None, 1 + d :]).sum(2).mean(0)


def _solve(A: Floats, B: Floats) -> Any:
    """Return A^+ B for a positive semi-definite A."""
    from scipy.linalg.lapack import dposv

    scale = np.sqrt(np.maximum(np.diag(A), 0.0))
    used = scale > 1e-12 * max(scale.max(initial=0.0), 1e-300)
    result = np.zeros_like(B)
    if not used.any():
        return result
    if not used.all():
        result[used] = _solve(A[np.ix_(used, used)], B[used])
        return result
    inner, right = A / np.outer(scale, scale), B / scale[:, None]
    root, found, failed = dposv(inner.T, right, lower=1)
    if failed or np.abs(np.diag(root)).min() < 1e-6:
        values, vectors = np.linalg.eigh(inner)
        kept = values > 1e-11 * max(values[-1], 1e-300)
        found = vectors[:, kept] / values[kept] @ (vectors[:, kept].T @ right)
    return found / scale[:, None]
