"""The squared loss of a linear map, from a target or from data.

In whitened coordinates E|y - A x|^2 = residual + |T - A L|^2. L (inputs x rank) is a root of the
inputs' second moment, C = L L'; T = E[y x'] L^+' is the target that A L can approach, and the
residual is what no linear map explains. Solvers work there; what grades weights goes back to what
was given, by `hidden`: V'CV = H'H and E|y - U V'x|^2 = |G - U H'|^2 with H = X V / sqrt(n),
G = Y' / sqrt(n) for data.

Noise on the inputs, x o z, adds Gamma o E[x x'] to their second moment and nothing to E[y x']: rows
whose squares are that, with y = 0, stand for it beside the data.

Features are first divided by the root of their second moment, so that a change of units changes
nothing; directions that are zero up to rounding are removed. W = L^+' is then right up to the
inputs' condition, and one step with products that are exact mends it: X W, or W'C W, is nearly
orthogonal, and its triangular factor says what W lacks.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from overt import _check
from overt._check import Floats, InputError, InputTypeError
from overt.linear.bounds import Leading
from overt.noise import Noise

EPS = float(np.finfo(float).eps)


MENDED = 30.0
"""Condition of the scaled inputs above which products are taken exactly."""

UNSEEN = 1e-9
"""Share of the target that may lie in what was cut before that is worth a word."""


class Samples(NamedTuple):
    """Where (x, y) comes from; `noise`, if any, masks x before the network sees it.

    Of data a row of inputs, at random, and the same row of outputs; of a target x = inputs @ normal
    and y = outputs @ x, where inputs are the identity if they are None.
    """

    inputs: Floats | None
    outputs: Floats
    noise: Noise | None = None
    data: bool = False

    def batch(
        self,
        size: int,
        rng: np.random.Generator,
        masks: np.random.Generator | None = None,
    ) -> tuple[Floats, Floats]:
        """Sample `size` pairs at once, samples x features; masks of inputs from a stream apart."""
        if self.data and self.inputs is not None:
            rows = rng.integers(0, len(self.inputs), size)
            x = self.inputs[rows]
            y = self.outputs[rows]
        else:
            L = self.inputs
            count = self.outputs.shape[1] if L is None else L.shape[1]
            x = rng.standard_normal((size, count))
            x = x if L is None else x @ L.T
            y = x @ self.outputs.T
        if self.noise is not None and size:
            x = x * multipliers(
                self.noise, x.shape[1], size, rng if masks is None else masks
            )
        return x, y


def multipliers(
    noise: Noise, units: int, size: int, rng: np.random.Generator
) -> Floats:
    """Return sampled multipliers z / mu, `size` x units."""
    z = np.ascontiguousarray(noise.multipliers(units, size, rng), dtype=float)
    if z.shape != (size, units) or not np.isfinite(z).all():
        raise InputError(
            f"{type(noise).__name__} must draw finite masks of shape (size, width) = "
            f"({size}, {units}), got shape {z.shape}"
        )
    return z


class Whitening(NamedTuple):
    """C = L L' (inputs x rank), L_inverse L = I; `ill` inputs need products that are exact."""

    L: Floats
    L_inverse: Floats
    ill: bool


def root_of_data(X: Floats, n: int) -> tuple[Whitening, Floats]:
    """Return the root of C = X'X/n, and an orthonormal basis P of X's columns, X = sqrt(n) P L'."""
    root_n = np.sqrt(n)
    size = np.sqrt(np.sum(X**2, axis=0) / n)
    seen = size > 0
    if not seen.any():
        raise InputError("X must not be zero, nor so small that its squares vanish")
    size = np.where(seen, size, 1.0)
    basis, sigma, right = np.linalg.svd(X / (root_n * size), full_matrices=False)
    kept = sigma > max(X.shape) * EPS * sigma[0]
    basis = basis[:, kept]
    sigma = sigma[kept]
    right = right[kept] * seen
    W = right.T / (size[:, None] * sigma)
    L = size[:, None] * right.T * sigma
    ill = bool(sigma[0] > MENDED * sigma[-1])
    if ill:
        basis, R = np.linalg.qr(exact_product(X, W) / root_n)
        W = np.linalg.solve(R.T, W.T).T
        L = exact_product(X.T, basis) / root_n
    return Whitening(L, W.T, ill), basis


def root_of_moment(C: Floats) -> tuple[Whitening, Floats]:
    """Return the root of a given second moment, and one of the most that was cut off it."""
    C = (C + C.T) / 2
    variances = np.diag(C)
    if not variances.min() >= 0 or not variances.any():
        raise InputError(
            "second_moment must be positive semi-definite and not zero, got variances from "
            f"{variances.min():.3g} to {variances.max():.3g}"
        )
    seen = variances > 0
    size = np.sqrt(np.where(seen, variances, 1.0))
    values, vectors = np.linalg.eigh(C / np.outer(size, size))
    vectors = vectors * seen[:, None]
    if values[0] < -1e-10 * values[-1]:
        raise InputError(
            "second_moment must be positive semi-definite and not zero, got eigenvalues from "
            f"{values[0]:.3g} to {values[-1]:.3g} once every variance is 1"
        )
    kept = values > 4 * len(C) * EPS * values[-1]
    cut = size[:, None] * vectors[:, ~kept] * np.sqrt(4 * len(C) * EPS * values[-1])
    root = np.sqrt(values[kept])
    vectors = vectors[:, kept]
    W = vectors / (size[:, None] * root)
    L = size[:, None] * vectors * root
    ill = bool(root[-1] > MENDED * root[0])
    if ill:
        K = np.linalg.cholesky(exact_product(W.T, exact_product(C, W)))
        W = np.linalg.solve(K, W.T).T
        L = exact_product(C, W)
    return Whitening(L, W.T, ill), cut


def exact_product(A: Floats, B: Floats) -> Floats:
    """Return A B rounded once: the factors are cut into slices whose products hold no rounding.

    A slice holds so few bits that sums of its products fit into a float (Ozaki et al., 2012);
    four slices a factor keep some ninety bits of the largest entry in a row of A, a column of B.
    """
    bits = int(53 - np.log2(max(A.shape[1], 1))) // 2
    left = _slices(A, bits, 1)
    right = _slices(B, bits, 0)
    high = np.zeros((A.shape[0], B.shape[1]))
    low = np.zeros((A.shape[0], B.shape[1]))
    for i, a in enumerate(left):
        for b in right[: len(left) - i]:
            term = a @ b
            total = high + term
            back = total - high
            low += (high - (total - back)) + (term - back)
            high = total
    return high + low


def _slices(A: Floats, bits: int, axis: int, count: int = 4) -> list[Floats]:
    slices: list[Floats] = []
    left = A
    for _ in range(count):
        largest = np.max(np.abs(left), axis=axis, keepdims=True, initial=0.0)
        unit = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))) - bits)
        slices.append(np.rint(left / unit) * unit)
        left = left - slices[-1]
    return slices


class Regression:
    """E|y - A x|^2 for maps A = U V', from a target or from data.

    `residual` is its least value, `scale` is E|y|^2, `input_variances` are diag(C); `given` are
    the arrays that it was made from, where a proof may ask for them. T (outputs x rank) is the
    whitened target, L (inputs x rank) the root of C and L_inverse its left inverse, both None for
    isotropic inputs. Training takes (x, y) from `samples`; `rows` are (X, Y, n) of a regression on
    data.
    """

    def __init__(
        self,
        samples: Samples,
        T: Floats,
        root: Whitening | None = None,
        residual: float = 0.0,
        rows: tuple[Floats, Floats, int] | None = None,
    ) -> None:
        self.samples = samples
        self.T = T
        self.residual = residual
        self._whitening = root
        self._rows = rows
        self.given: dict[str, Any] = {}
        self.L = None if root is None else root.L
        self.L_inverse = None if root is None else root.L_inverse
        self.outputs = T.shape[0]
        self.inputs = T.shape[1] if root is None else root.L.shape[0]
        self.scale = residual + float(np.sum(T**2))
        self.input_variances = (
            np.ones(self.inputs) if root is None else np.sum(root.L**2, axis=1)
        )

    @cached_property
    def svd(self) -> tuple[Floats, Floats, Floats]:
        """(left, s, right) with T = left diag(s) right'; computed once for every user."""
        left, s, right = np.linalg.svd(self.T, full_matrices=False)
        return left, s, right.T

    @property
    def root(self) -> Floats:
        """L, also where it is the identity."""
        return np.eye(self.inputs) if self.L is None else self.L

    def uncorrelated(self) -> bool:
        """Return whether C is diagonal, up to rounding: no correlation, in whatever units."""
        if self.L is None:
            return True
        size = np.sqrt(self.input_variances)[:, None]
        L = self.L / np.where(size > 0, size, 1.0)
        C = L @ L.T
        return bool(np.abs(C - np.diag(np.diag(C))).max() <= 1e-14)

    def leading(self, width: int) -> Leading:
        """Return the leading singular triplets of T, at most `width`."""
        left, s, right = self.svd
        rest = float(np.sum(s[width:] ** 2))
        return Leading(left[:, :width], s[:width], right[:, :width], rest)

    def loss(self, U: Floats, V: Floats) -> float:
        """E|y - U V'x|^2 = |G - U H'|^2: the residuals at the samples, or |(M - U V') L|^2."""
        return float(np.sum((self._goal - U @ self.hidden(V).T) ** 2))

    def hidden(self, V: Floats) -> Floats:
        """H with H'H = V'CV, from the inputs as they were given: X V / sqrt(n) for data, else L'V.

        Products are exact where the inputs are ill-conditioned.
        """
        if self._whitening is None:
            return V
        multiply = exact_product if self._whitening.ill else np.matmul
        if self._rows is not None:
            return multiply(self._rows[0], V) / np.sqrt(self._rows[2])
        return multiply(self._whitening.L.T, V)

    @property
    def _goal(self) -> Floats:
        return (
            self.T if self._rows is None else self._rows[1].T / np.sqrt(self._rows[2])
        )

    def rounding(self, bound: float, loss: float, nuclear: float) -> float:
        """Return what rounding may have added to a bound whose map has this loss and this |A|_*.

        Errors are in the singular values of T and in the basis of the data. A bound moves by
        2 (s_i - a_i) per singular value. A basis that leans by an angle takes
        2 angle |G - U H'| |A|_* of the residual for target.
        """
        samples = 0 if self._rows is None else len(self._rows[0])
        size = max(samples, *self.T.shape, self.inputs)
        error = 8 * EPS * np.sqrt(size)  # roundings add up as in a random walk
        largest = np.sqrt(self.scale) if self.residual > 0 else self.svd[1][0]
        values = 2 * largest * np.sqrt(min(self.T.shape) * loss)
        lean = 2 * MENDED * np.sqrt(self.residual) * nuclear
        return float(error * (bound + values + lean))

    def whiten(self, V: Floats) -> Floats:
        """P = L'V, so that U V'L = U P'."""
        return V if self.L is None else self.L.T @ V

    def unwhiten(self, P: Floats) -> Floats:
        """V = L^+'P, the smallest V with L'V = P."""
        return P if self.L_inverse is None else self.L_inverse.T @ P

    def pull_back(self, gradient: Floats) -> Floats:
        """Return the gradient in V from that in P = L'V."""
        return gradient if self.L is None else self.L @ gradient


def from_target(
    target: Any, second_moment: Any = None, noise: Noise | None = None
) -> Regression:
    """Y = M x with E[x x'] = C: T = M C^(1/2), no residual unless noise masks the inputs."""
    M = _check.doubles("target", target, ndim=2)
    C = _check.second_moment(second_moment, M.shape[1])
    if C is None:
        if noise is not None:
            return _from_rows(np.eye(M.shape[1]), M.T, 1, Samples(None, M, noise))
        return Regression(Samples(None, M), M)
    C = _check.doubles("second_moment", C)
    root, cut = root_of_moment(C)
    T = M @ root.L
    unseen = float(np.sum((M @ cut) ** 2))
    seen = float(np.sum(T**2))
    if unseen > UNSEEN * seen:
        warnings.warn(
            "second_moment has directions that are zero up to rounding, and the target has weight "
            f"there: up to {unseen:.3g} of E|y|^2 beside {seen:.3g} is not seen. Give data (X, Y), "
            "or choose features that are less nearly dependent",
            stacklevel=5,
        )
    if noise is not None:
        return _from_rows(root.L.T, T.T, 1, Samples(root.L, M, noise))
    return Regression(Samples(root.L, M), T, root)


def from_data(X: Any, Y: Any, noise: Noise | None = None) -> Regression:
    """Mean over samples: C = X'X/n; T = Y'P/sqrt(n), P an orthonormal basis of X's columns."""
    X = np.ascontiguousarray(_check.doubles("X", X, ndim=2))
    Y = np.ascontiguousarray(_check.doubles("Y", Y, ndim=2))
    if X.shape[0] != Y.shape[0]:
        raise InputError(
            "X and Y must have the same number of rows (samples x features), got "
            f"{X.shape[0]} and {Y.shape[0]}"
        )
    return _from_rows(X, Y, len(X), Samples(X, Y, noise, data=True))


def _from_rows(X: Floats, Y: Floats, n: int, samples: Samples) -> Regression:
    """sum over rows |y - A x|^2 / n; noise on the inputs adds rows."""
    if samples.noise is not None:
        more = _noise_rows(X, samples.noise)
        X = np.vstack([X, more])
        Y = np.vstack([Y, np.zeros((len(more), Y.shape[1]))])
    root, P = root_of_data(X, n)
    T = (Y / np.sqrt(n)).T @ P
    outside = float(np.sum((Y / np.sqrt(n) - P @ T.T) ** 2))
    return Regression(samples, T, root, outside, (X, Y, n))


def _noise_rows(X: Floats, noise: Noise) -> Floats:
    """Return rows R with R'R = Gamma o X'X."""
    features = X.shape[1]
    size = np.sqrt(np.sum(X**2, axis=0))
    if not isinstance(noise, Noise) or noise.masks != "units":
        raise InputTypeError(f"input_noise must be a noise over inputs, got {noise!r}")
    if noise.independent:
        return np.diag(size * np.sqrt(noise.relative_variance(features)))
    scaled = X / np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(
        noise.characteristic(features) * (scaled.T @ scaled)
    )
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T * size)
