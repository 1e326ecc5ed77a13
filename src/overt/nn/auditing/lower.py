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

from overt._types import Floats
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
    """The problem on some rows: their second moments of (1, h, y), as sums over n rows.

    There may be several sets of rows, `total` (..., size, size) and `n` (...,): all results are.
    """

    def __init__(self, total: Floats, n: Any, units: int, *, bias: bool) -> None:
        mean = total / np.asarray(n)[..., None, None]
        self.first, self._second = mean[..., 0, 1:], mean[..., 1:, 1:]
        self._units, self._bias = units, bias
        self.C = self._second[..., :units, :units]

    def best(self, weigh: Weigh) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) under the noise, of one set of rows."""
        d, centered = self._units, self._second
        if self._bias:
            centered = centered - np.outer(self.first, self.first)
        U = _solve(centered[:d, :d] + weigh(self.C), centered[:d, d:]).T
        b = self.first[d:] - U @ self.first[:d] if self._bias else np.zeros(len(U))
        return U, b

    def objective(self, U: Floats, b: Floats) -> Any:
        """E|y - b - U h|^2."""
        d = self._units
        S, h, y = self._second, self.first[..., :d], self.first[..., d:]
        fit = np.sum((U @ self.C - 2 * S[..., d:, :d]) * U, (-2, -1))
        loss = np.trace(S[..., d:, d:], axis1=-2, axis2=-1) + fit
        return loss + b @ b + 2 * (h @ U.T - y) @ b


def holdout_curve(
    parts: Parts, weigh: Callable[[float], Weigh | None], *, bias: bool, chosen: Floats = CANDIDATES
) -> tuple[Floats, Floats] | None:
    """Return the held-out squared error at each drop probability, and its standard error.

    None where there are too few rows, or where the noise has no drop probability to vary.
    """
    tests = [parts.moments([p]) for p in range(1, parts.PARTS)]
    total, n = parts.moments([0])
    if n < 2 or min(rows for _, rows in tests) < 1:
        return None
    problem = Ridge(total, n, parts.units, bias=bias)
    sums, counts = zip(*tests, strict=True)
    groups = Ridge(np.stack(sums), np.array(counts), parts.units, bias=bias)
    errors = []
    for p in chosen:
        weighed = weigh(float(p))
        if weighed is None:
            return None
        errors.append(groups.objective(*problem.best(weighed)))
    table = np.array(errors)
    return table.mean(1), table.std(1, ddof=1) / np.sqrt(table.shape[1])


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
