"""Roots of the inputs' second moment, C = L L', that depend neither on units nor on conditioning.

Features are first divided by the root of their second moment, so that a change of units changes
nothing; directions that are zero up to rounding are removed. W = L^+' is then right up to the
inputs' condition, and one step with products that are exact mends it: X W, or W'C W, is nearly
orthogonal, and its triangular factor says what W lacks.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from overt._check import InputError
from overt._types import Floats

EPS = float(np.finfo(float).eps)

MENDED = 30.0
"""Condition of the scaled inputs above which products are taken exactly."""

UNSEEN = 1e-9
"""Share of the target that may lie in what was cut before that is worth a word."""


class Whitening(NamedTuple):
    """C = L L' (inputs x rank), L_inverse L = I; `ill` inputs need products that are exact."""

    L: Floats
    L_inverse: Floats
    ill: bool


def of_data(X: Floats, n: int) -> tuple[Whitening, Floats]:
    """Return the root of C = X'X/n, and an orthonormal basis P of X's columns, X = sqrt(n) P L'."""
    root_n, size = np.sqrt(n), np.sqrt(np.sum(X**2, axis=0) / n)
    seen = size > 0
    if not seen.any():
        raise InputError("X must not be zero, nor so small that its squares vanish")
    size = np.where(seen, size, 1.0)
    basis, sigma, right = np.linalg.svd(X / (root_n * size), full_matrices=False)
    kept = sigma > max(X.shape) * EPS * sigma[0]
    basis, sigma, right = basis[:, kept], sigma[kept], right[kept] * seen
    W, L = right.T / (size[:, None] * sigma), size[:, None] * right.T * sigma
    ill = bool(sigma[0] > MENDED * sigma[-1])
    if ill:
        basis, R = np.linalg.qr(product(X, W) / root_n)
        W = np.linalg.solve(R.T, W.T).T
        L = product(X.T, basis) / root_n
    return Whitening(L, W.T, ill), basis


def of_moment(C: Floats) -> tuple[Whitening, Floats]:
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
    root, vectors = np.sqrt(values[kept]), vectors[:, kept]
    W, L = vectors / (size[:, None] * root), size[:, None] * vectors * root
    ill = bool(root[-1] > MENDED * root[0])
    if ill:
        K = np.linalg.cholesky(product(W.T, product(C, W)))
        W = np.linalg.solve(K, W.T).T
        L = product(C, W)
    return Whitening(L, W.T, ill), cut


def tell_of_what_was_cut(unseen: float, seen: float) -> None:
    """Warn where a target may hold more than rounding in directions that the inputs lack."""
    if unseen > UNSEEN * seen:
        warnings.warn(
            "second_moment has directions that are zero up to rounding, and the target has weight "
            f"there: up to {unseen:.3g} of E|y|^2 beside {seen:.3g} is not seen. Give data (X, Y), "
            "or choose features that are less nearly dependent",
            stacklevel=6,
        )


def product(A: Floats, B: Floats) -> Floats:
    """Return A B rounded once: the factors are cut into slices whose products hold no rounding.

    A slice holds so few bits that sums of its products fit into a float (Ozaki et al., 2012);
    four slices a factor keep some ninety bits of the largest entry in a row of A, a column of B.
    """
    bits = int(53 - np.log2(max(A.shape[1], 1))) // 2
    left, right = _slices(A, bits, 1), _slices(B, bits, 0)
    high, low = np.zeros((A.shape[0], B.shape[1])), np.zeros((A.shape[0], B.shape[1]))
    for i, a in enumerate(left):
        for b in right[: len(left) - i]:
            term = a @ b
            total = high + term
            back = total - high
            low += (high - (total - back)) + (term - back)
            high = total
    return high + low


def _slices(A: Floats, bits: int, axis: int, count: int = 4) -> list[Floats]:
    slices, left = [], A
    for _ in range(count):
        largest = np.max(np.abs(left), axis=axis, keepdims=True, initial=0.0)
        unit = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))) - bits)
        slices.append(np.rint(left / unit) * unit)
        left = left - slices[-1]
    return slices
