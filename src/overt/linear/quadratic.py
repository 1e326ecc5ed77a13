"""The squared loss of a linear map in whitened coordinates: E|y - A x|^2 = residual + |T - A L|^2.

L (inputs x rank) is a root of the inputs' second moment, C = L L'; T = E[y x'] L^+' is the target
that A L can approach, and the residual is what no linear map explains. Roots come from singular
value decompositions, so small directions of the inputs keep their digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats
from overt.linear.bounds import Envelope


@dataclass(frozen=True)
class Leading:
    """Leading singular triplets of a target, and the sum of the other squared values."""

    left: Floats
    s: Floats
    right: Floats
    rest: float


class Quadratic:
    """E|y - A x|^2 for dense targets or data.

    Attributes
    ----------
    T, L, L_inverse
        Whitened target (outputs x rank), root of C (inputs x rank) and its pseudo-inverse; L is
        None for isotropic inputs, where it is the identity.
    residual
        The part of E|y|^2 outside the inputs' span.
    """

    def __init__(
        self,
        T: Floats,
        L: Floats | None = None,
        L_inverse: Floats | None = None,
        residual: float = 0.0,
    ) -> None:
        self.T, self.L, self.L_inverse, self.residual = T, L, L_inverse, residual
        self.outputs = T.shape[0]
        self.inputs = T.shape[1] if L is None else L.shape[0]

    @cached_property
    def svd(self) -> tuple[Floats, Floats, Floats]:
        """(left, s, right) with T = left diag(s) right'; computed once for every user."""
        left, s, right = np.linalg.svd(self.T, full_matrices=False)
        return left, s, right.T

    def leading(self, width: int, envelope: Envelope) -> Leading:
        """Return the leading singular triplets of T, at most `width`, and what the rest sums to."""
        left, s, right = self.svd
        return Leading(left[:, :width], s[:width], right[:, :width], float(np.sum(s[width:] ** 2)))

    @cached_property
    def scale(self) -> float:
        """E|y|^2, the loss of the zero map."""
        return self.residual + float(np.sum(self.T**2))

    @cached_property
    def input_variances(self) -> Floats:
        """diag(C)."""
        return np.ones(self.inputs) if self.L is None else np.sum(self.L**2, axis=1)

    def loss(self, U: Floats, V: Floats) -> float:
        """E|y - U V'x|^2."""
        return self.residual + float(np.sum((self.T - U @ self.whiten(V).T) ** 2))

    def whiten(self, V: Floats) -> Floats:
        """P = L'V, so that U V'L = U P'."""
        return V if self.L is None else self.L.T @ V

    def unwhiten(self, P: Floats) -> Floats:
        """V = L^+'P, the smallest V with L'V = P."""
        return P if self.L_inverse is None else self.L_inverse.T @ P


def from_target(target: Any, second_moment: Any = None) -> Quadratic:
    """Y = M x with E[x x'] = C: T = M C^(1/2), no residual."""
    M = np.asarray(_check.matrix("target", target), dtype=float)
    C = _check.second_moment(second_moment, M.shape[1])
    if C is None:
        return Quadratic(M)
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
    return Quadratic(M @ L, L, (vectors[:, kept] / root).T)


def from_data(X: Any, Y: Any) -> Quadratic:
    """Mean over samples: C = X'X/n; T = Y'P/sqrt(n) with P the left singular vectors of X."""
    X = np.asarray(_check.matrix("X", X), dtype=float)
    Y = np.asarray(_check.matrix("Y", Y), dtype=float)
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
    outside = Y / root_n - P @ T.T
    L = right.T * sigma
    return Quadratic(T, L, right / sigma[:, None], float(np.sum(outside**2)))
