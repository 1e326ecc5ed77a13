"""Low-rank fits by alternating least squares: a dominating part of a matrix, and its refinement.

    min over U, V of  sum_n (u_i . v_j - y_n)^2 + noise sum_(i, k) (U_ik - mean U_k)^2 / var U_k

and the same sum for V.
One side is solved exactly while the other is fixed. Each row is drawn towards the mean row, with
the weight that the mean squared residual and the spread of the rows give it. A row without entries
gets the mean row, and exact entries are fitted exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.linalg import svds

from overt._check import Floats
from overt.entries.entries import Entries

LEADING_REST = 0.1
"""A rank-one fit dominates if it leaves less than this share of the mean square. The descent on
single entries loses ranks at a tenth of that share and less (matrices A + c, A of rank 3)."""

SWEEPS = 100
"""Random 40 x 40 matrices of rank 4, half observed, are then exact to six digits."""

ROUNDING = 1e-20
"""Relative to the mean square: below it there is nothing left to fit."""


def leading_factors(entries: Entries) -> tuple[Floats, Floats] | None:
    """Return the factors of a rank-one fit that dominates the entries; None if none does."""
    smaller_side = min(entries.shape)
    if smaller_side < 3 or not np.any(entries.values):
        return None
    U, s, Vt = svds(entries.to_sparse(), k=1, v0=np.ones(smaller_side))
    # Missing entries count as 0 there, which makes it too small.
    guess = (U * s @ Vt)[entries.rows, entries.cols]
    factor = guess @ entries.values / (guess @ guess)
    root = np.sqrt(s * factor)
    U, V = refine(entries, U * root, Vt.T * root)
    share = mean_square_residual(entries, U, V) / np.mean(entries.values**2)
    return (U, V) if ROUNDING < share < LEADING_REST else None


def refine(entries: Entries, U: Floats, V: Floats) -> tuple[Floats, Floats]:
    """Return the factors after sweeps of least squares over both sides."""
    at = (entries.rows, entries.cols)
    ones = np.ones(len(entries))
    counts = coo_array((ones, at), shape=entries.shape).tocsr()
    sums = entries.to_sparse()
    for _ in range(SWEEPS):
        noise = mean_square_residual(entries, U, V)
        U = _solve_rows(counts, sums, U, V, noise)
        V = _solve_rows(counts.T, sums.T, V, U, noise)
    return U, V


def mean_square_residual(entries: Entries, U: Floats, V: Floats) -> float:
    """Return the mean squared residual of U V' over the entries."""
    fitted = np.sum(U[entries.rows] * V[entries.cols], axis=1)
    return float(np.mean((fitted - entries.values) ** 2))


def _solve_rows(counts: Any, sums: Any, U: Floats, V: Floats, noise: float) -> Floats:
    """Return the best U for this V, in units of the standard deviation of each column of U."""
    rank = V.shape[1]
    mean = U.mean(axis=0)
    deviation = np.sqrt(U.var(axis=0) + ROUNDING * np.mean(U**2))
    V = V * deviation
    products = V[:, :, None] * V[:, None, :]
    gram = counts @ products.reshape(len(V), -1)
    gram = gram.reshape(-1, rank, rank)
    right = sums @ V - gram @ (mean / deviation)
    weight = noise + 1e-14 * gram.max()  # invertible, also where columns are equal
    system = gram + weight * np.eye(rank)
    change = np.linalg.solve(system, right[..., None])
    return np.asarray(mean + deviation * change[..., 0])
