"""The law of the inputs as weighted points, in coordinates where its second moment is I."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import InputError, generator, matrix
from overt._types import Floats, Seed


def points(X: Any) -> Floats:
    """Return X in float64, scaled to a largest entry of 1 so that squares stay in range.

    Retentivity and complexity do not depend on the scale of the inputs.
    """
    X = np.asarray(matrix("X", X), dtype=np.float64)
    largest = np.abs(X).max()
    return np.asarray(X / largest if largest > 0 else X)


def probabilities(weights: Any, n: int) -> Floats:
    """Return the probabilities of n points; equal if `weights` is None."""
    if weights is None:
        return np.full(n, 1 / n)
    try:
        p = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"weights must be {n} numbers, got {weights!r}") from None
    if p.shape != (n,) or not np.isfinite(p).all() or p.min() < 0 or p.sum() <= 0:
        raise InputError(
            f"weights must be {n} numbers (one per row of X), none negative, not all zero, got "
            f"shape {p.shape}"
        )
    return np.asarray(p / p.sum())


def whiten(X: Floats, p: Floats) -> Floats:
    """Return Z = X C^(+/2) on the range of C = sum_i p_i x_i x_i': (points, rank), E[z z'] = I.

    From the SVD of the weighted points; those of weight 0 must lie in the range of the others.
    """
    _, s, Vt = np.linalg.svd(np.sqrt(p)[:, None] * X, full_matrices=False)
    rank = int(np.sum(s > s[0] * max(X.shape) * np.finfo(float).eps)) if s[0] > 0 else 0
    if rank == 0:
        raise InputError("X must have a row that is not zero, of positive weight")
    return np.asarray(X @ (Vt[:rank].T / s[:rank]))


def symmetrize(X: Floats, seed: Seed = None) -> Floats:
    """Return the rows of X with random signs: (zeta_i x_i), P(zeta_i = 1) = 1/2.

    The law of the result is symmetric, so its retentivity is 1/2 (thesis, section 4.3).
    """
    X = matrix("X", X)
    signs = generator(seed).choice((-1.0, 1.0), size=len(X))
    return np.asarray(signs[:, None] * X)
