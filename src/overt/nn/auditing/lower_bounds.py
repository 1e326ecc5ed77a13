"""Lower bounds on the training objective of a network with noise before its last layer.

Let the output be f = U (m o g(x)) + b: m the multipliers of a noise, U and b the affine map behind
them, g(x) the units before the noise. Y and F hold targets and mean outputs as rows over the n
samples, divided by sqrt(n), and P subtracts means over samples. For the squared loss

    objective >= min over A of rank at most r: |P Y - A|^2 + w N(A),

(w, N) an envelope of the penalty and r the fewest units behind the noise. For cross-entropy, at a
nuclear norm t = |P F|_* of the centered logits, mean loss >= mean_n H(q_n) - e s_1(P Y) t for
q_n = (1 - e) y_n + e pi, whatever e. With units h fixed and C = E[h h'], the best last layer is a
ridge regression, U (Cov(h) + Gamma o C) = Cov(y, h). The guide on auditing has the proofs.

Data come as R of a decomposition Q R of the rows (1, ..., targets, ...), divided by sqrt(n). Its
rows below the first belong to the centered data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._types import Floats
from overt.linear.bounds import Envelope, NormCost
from overt.spectral import KSupport, Schatten, SquaredNuclear

WeighUnits = Callable[[Floats], Floats]
"""C -> Gamma o C, Gamma the covariance of the multipliers."""

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


def envelopes(Gamma: Floats) -> list[NormCost]:
    """Return weights and norms with <Gamma, U'U o G'G> >= weight * norm(U G').

    Gamma >= delta I in the positive semi-definite order, and U'U o G'G is positive semi-definite,
    so it is at least (delta/d) |U G'|_*^2. Moreover, if Gamma_ij = 0 for |i - j| >= b, it is a sum
    of z z' with at most b entries of z not zero; each adds |sum_i z_i u_i g_i'|_F^2, the square of
    a map of rank at most b, and these maps combine to U G', whence

        <Gamma, U'U o G'G> >= gamma ksupport_b(U G')^2,  gamma = 1 / (1' Gamma^-1 1),

    which is the Frobenius norm for b = d.
    """
    d = len(Gamma)
    values, vectors = np.linalg.eigh(Gamma)
    smallest = max(0.0, values[0] - 1e-13 * values[-1])
    live = values > 1e-10 * values[-1]
    ones = np.sum(vectors, axis=0)
    gamma = 0.0
    if np.allclose(ones[~live], 0.0, atol=1e-8):
        gamma = (1 - 1e-9) / float(np.sum(ones[live] ** 2 / values[live]))
    i, j = np.nonzero(Gamma)
    band = int(np.max(np.abs(i - j), initial=0)) + 1
    narrow = KSupport(band) if band < d else Schatten(2.0)
    return [NormCost(smallest / d, SquaredNuclear()), NormCost(gamma, narrow)]


def squared_bound(
    target: Target, rank: int, envelopes: list[Envelope]
) -> tuple[float, Floats]:
    """Return the largest bound, and the spectrum that would attain it."""
    m = target.spectrum[:rank]
    rest = float(np.sum(target.spectrum[rank:] ** 2))
    nothing: Envelope = NormCost(0.0, SquaredNuclear())
    envelope = max([nothing, *envelopes], key=lambda cost: cost.bound(m))
    return target.residual + envelope.bound(m) + rest, envelope.shrink(m)


def class_bound(
    frequencies: Floats,
    top: float,
    size: float,
    *,
    centered: bool,
    entropy: float = 0.0,
) -> float:
    """Return max over e of mean_n H((1 - e) y_n + e pi) - e s_1 t, for these class frequencies.

    `top` is s_1 of the targets minus pi, `size` is t; pi is uniform for logits without bias, which
    are not centered. `entropy` is the mean of H(y_n), 0 for one-hot targets; for others
    H((1 - e) y + e pi) >= (1 - e) H(y) + e H(pi) is used.
    """
    classes = len(frequencies)
    pi = frequencies if centered else np.full(classes, 1 / classes)

    def value(e: float) -> float:
        if entropy == 0:
            q = (1 - e) * np.eye(classes) + e * pi
            uncertainty = float(frequencies @ _entropy(q).sum(1))
        else:
            uncertainty = (1 - e) * entropy + e * class_entropy(pi)
        return uncertainty - e * top * size

    return max(0.0, _maximum(value))


def logistic_bound(
    means: Floats, pi: Floats, entropy: float, top: float, size: float
) -> float:
    """Return the same for logistic losses with targets in [0, 1], summed over outputs.

    `pi` are the means of the targets, or any other probabilities for logits without bias. `entropy`
    is the mean over samples of sum_o H(y_o), 0 for targets 0 and 1.
    """

    def value(e: float) -> float:
        if entropy == 0:
            ones = _binary_entropy((1 - e) + e * pi)
            zeros = _binary_entropy(e * pi)
            uncertainty = means @ ones + (1 - means) @ zeros
        else:
            uncertainty = (1 - e) * entropy + e * _binary_entropy(pi).sum()
        return float(uncertainty) - e * top * size

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

    found = minimize_scalar(
        lambda e: -value(e), bounds=(0, 1), method="bounded", options={"xatol": 1e-10}
    )
    return max(value(0.0), value(1.0), -float(found.fun))


def _entropy(q: Floats) -> Floats:
    return -q * np.log(np.where(q > 0, q, 1.0))


def _binary_entropy(q: Floats) -> Floats:
    return _entropy(q) + _entropy(1 - q)


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

    def solve(self, weigh: WeighUnits) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) under a noise."""
        A, B = self._normal_equations()
        return self._with_bias(_solve(A + weigh(self.C), B).T)

    def solve_path(self, strengths: Floats) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) for Gamma = strength I, along a first axis."""
        A, B = self._normal_equations()
        scale = np.sqrt(np.maximum(np.diag(self.C), 0.0))
        scale = np.where(_used(scale), scale, np.inf)
        A = A / scale / scale[:, None]
        values, vectors = np.linalg.eigh(A)
        positive = values > SINGULAR * max(float(np.trace(A)), 1e-300)
        values = values[positive]
        vectors = vectors[:, positive]
        projected = vectors.T @ (B / scale[:, None])
        shifted = values + strengths[:, None]
        U = (vectors @ (projected / shifted[:, :, None])) / scale[:, None]
        return self._with_bias(np.swapaxes(U, 1, 2))

    def error(self, U: Floats, b: Floats) -> Any:
        """Return E|y - b - U h|^2, for each (U, b) along leading axes."""
        d = self._units
        image = (U.reshape(-1, d) @ self.C).reshape(U.shape)
        fit = np.sum((image - 2 * self._second[d:, :d]) * U, (-2, -1))
        shift = np.sum((b + 2 * (U @ self._mean_h - self._mean_y)) * b, -1)
        return np.trace(self._second[d:, d:]) + fit + shift

    def objective(self, weigh: WeighUnits) -> float:
        """Return the least training objective that a last layer has under a noise."""
        U, b = self.solve(weigh)
        return float(self.error(U, b) + np.sum((U @ weigh(self.C)) * U))

    def _normal_equations(self) -> tuple[Floats, Floats]:
        """Return Cov(h) and Cov(h, y); second moments without a bias."""
        d = self._units
        A = self.C
        B = self._second[:d, d:]
        if self._bias:
            A = A - np.outer(self._mean_h, self._mean_h)
            B = B - np.outer(self._mean_h, self._mean_y)
        return A, B

    def _with_bias(self, U: Floats) -> tuple[Floats, Floats]:
        b = self._mean_y - U @ self._mean_h
        return U, b if self._bias else np.zeros_like(b)


def _solve(A: Floats, B: Floats) -> Floats:
    """Return A^+ B for a positive semi-definite A."""
    scale = np.sqrt(np.maximum(np.diag(A), 0.0))
    scale = np.where(_used(scale), scale, np.inf)
    A = A / scale / scale[:, None]
    B = B / scale[:, None]
    values, vectors = np.linalg.eigh(A)
    positive = values > SINGULAR * max(values[-1], 1e-300)
    vectors = vectors[:, positive]
    return np.asarray(vectors / values[positive] @ (vectors.T @ B) / scale[:, None])


def _used(scale: Floats) -> Any:
    """Return which units are not zero."""
    return scale > UNUSED * max(scale.max(initial=0.0), 1e-300)
