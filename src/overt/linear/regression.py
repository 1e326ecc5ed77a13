"""What a network is asked to fit: the squared loss of a linear map, from a target or from data.

In whitened coordinates E|y - A x|^2 = residual + |T - A L|^2. L (inputs x rank) is a root of the
inputs' second moment, C = L L'; T = E[y x'] L^+' is the target that A L can approach, and the
residual is what no linear map explains. Roots come from singular value decompositions, so small
directions of the inputs keep their digits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats
from overt.linear.bounds import Envelope, Leading
from overt.linear.sampling import DATA, Samples, samples_of_target


class Regression(ABC):
    """E|y - A x|^2 for maps A = U V'.

    `residual` is its least value, `scale` is E|y|^2, `input_variances` are diag(C); `given` are
    the arrays that it was made from, where a proof may ask for them.
    """

    outputs: int
    inputs: int
    residual: float
    scale: float
    input_variances: Floats
    given: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def uncorrelated(self) -> bool:
        """Return whether C is diagonal."""

    @abstractmethod
    def leading(self, width: int, envelope: Envelope) -> Leading:
        """Return leading singular triplets of T, at most `width`, all that the envelope keeps."""

    @abstractmethod
    def loss(self, U: Floats, V: Floats) -> float:
        """E|y - U V'x|^2."""

    @abstractmethod
    def whiten(self, V: Floats) -> Floats:
        """P = L'V, so that U V'L = U P'."""

    @abstractmethod
    def unwhiten(self, P: Floats) -> Floats:
        """V = L^+'P, the smallest V with L'V = P."""

    @abstractmethod
    def dense(self, purpose: str) -> DenseRegression:
        """Return the regression if it holds dense matrices, which this purpose needs."""


class DenseRegression(Regression):
    """E|y - A x|^2 for dense targets or data.

    T (outputs x rank) is the whitened target, L (inputs x rank) the root of C and L_inverse its
    pseudo-inverse, both None for isotropic inputs. Training draws (x, y) from `samples`.
    """

    def __init__(
        self,
        samples: Samples,
        T: Floats,
        L: Floats | None = None,
        L_inverse: Floats | None = None,
        residual: float = 0.0,
    ) -> None:
        self.samples = samples
        self.T, self.L, self.L_inverse, self.residual = T, L, L_inverse, residual
        self.outputs = T.shape[0]
        self.inputs = T.shape[1] if L is None else L.shape[0]
        self.scale = residual + float(np.sum(T**2))
        self.input_variances = np.ones(self.inputs) if L is None else np.sum(L**2, axis=1)

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
        """Return whether C is diagonal, up to rounding."""
        if self.L is None:
            return True
        C = self.L @ self.L.T
        return bool(np.abs(C - np.diag(np.diag(C))).max() <= 1e-14 * np.abs(C).max())

    def leading(self, width: int, envelope: Envelope) -> Leading:
        """Return the `width` leading singular triplets of T."""
        left, s, right = self.svd
        return Leading(left[:, :width], s[:width], right[:, :width], float(np.sum(s[width:] ** 2)))

    def loss(self, U: Floats, V: Floats) -> float:
        """Residual + |T - U V'L|^2."""
        return self.residual + float(np.sum((self.T - U @ self.whiten(V).T) ** 2))

    def whiten(self, V: Floats) -> Floats:
        """L'V."""
        return V if self.L is None else self.L.T @ V

    def unwhiten(self, P: Floats) -> Floats:
        """L^+'P."""
        return P if self.L_inverse is None else self.L_inverse.T @ P

    def pull_back(self, gradient: Floats) -> Floats:
        """Return the gradient in V from that in P = L'V."""
        return gradient if self.L is None else self.L @ gradient

    def dense(self, purpose: str) -> DenseRegression:
        """Return itself."""
        return self


def from_target(target: Any, second_moment: Any = None) -> DenseRegression:
    """Y = M x with E[x x'] = C: T = M C^(1/2), no residual."""
    target = _check.matrix("target", target)
    M = np.asarray(target if isinstance(target, np.ndarray) else target.detach().cpu(), dtype=float)
    C = _check.second_moment(second_moment, M.shape[1])
    if C is None:
        return DenseRegression(samples_of_target(M, None), M)
    C = np.asarray(C, dtype=float)
    values, vectors = np.linalg.eigh((C + C.T) / 2)
    if values[0] < -1e-10 * max(values[-1], 0.0) or values[-1] <= 0:
        raise InputError(
            "second_moment must be positive semi-definite and not zero, got eigenvalues from "
            f"{values[0]:.3g} to {values[-1]:.3g}"
        )
    kept = values > 1e-13 * values[-1]
    root = np.sqrt(values[kept])
    L = vectors[:, kept] * root
    return DenseRegression(samples_of_target(M, L), M @ L, L, (vectors[:, kept] / root).T)


def from_data(X: Any, Y: Any) -> DenseRegression:
    """Mean over samples: C = X'X/n; T = Y'P/sqrt(n) with P the left singular vectors of X."""
    X = np.ascontiguousarray(_check.matrix("X", X), dtype=float)
    Y = np.ascontiguousarray(_check.matrix("Y", Y), dtype=float)
    if X.shape[0] != Y.shape[0]:
        raise InputError(
            "X and Y must have the same number of rows (samples x features), got "
            f"{X.shape[0]} and {Y.shape[0]}"
        )
    root_n = np.sqrt(X.shape[0])
    P, sigma, right = np.linalg.svd(X / root_n, full_matrices=False)
    kept = sigma > max(X.shape) * np.finfo(float).eps * sigma[0]
    if not kept.any():
        raise InputError("X must not be zero")
    P, sigma, right = P[:, kept], sigma[kept], right[kept]
    T = (Y / root_n).T @ P
    outside = float(np.sum((Y / root_n - P @ T.T) ** 2))
    samples = Samples(DATA, X, Y)
    return DenseRegression(samples, T, right.T * sigma, right / sigma[:, None], outside)
