"""Rows of a table, each Gaussian: what is missing given what is observed."""

from __future__ import annotations

import numpy as np

from overt._compiled import njit
from overt._types import Array
from overt.completion.kernels import OPTIONS
from overt.completion.kernels.full import invert


@njit(**OPTIONS)
def fill_rows(
    Z: Array, missing: Array, mean: Array, P: Array, normals: Array, std: Array, total: Array
) -> float:
    """Fill missing entries by their conditional means, in place (plus S^1/2 times `normals`).

    With d = z - mean, o observed and m missing, z_m = mean_m - P_mm^-1 P_mo d_o with covariance
    S = P_mm^-1, which is added to `total`; `std` gets its deviations. Returns the sum of log det S.
    """
    n = Z.shape[1]
    d, at = np.empty(n), np.empty(n, np.int64)
    logdets = 0.0
    for a in range(len(Z)):
        k = 0
        for j in range(n):
            d[j] = 0.0 if missing[a, j] else Z[a, j] - mean[j]
            if missing[a, j]:
                at[k] = j
                k += 1
        if k == 0:
            continue
        A = np.empty((k, k + 1))
        for p in range(k):
            right = 0.0
            row = P[at[p]]
            for j in range(n):
                right -= row[j] * d[j]
            A[p, k] = right
            for q in range(k):
                A[p, q] = row[at[q]]
        logdets += invert(A)
        for p in range(k):
            Z[a, at[p]] = mean[at[p]] + A[p, k]
            std[a, at[p]] = np.sqrt(-A[p, p])
            for q in range(k):
                total[at[p], at[q]] -= A[p, q]
        if len(normals):
            L = np.linalg.cholesky(-A[:, :k].copy())
            for p in range(k):
                for q in range(p + 1):
                    Z[a, at[p]] += L[p, q] * normals[a, at[q]]
    return logdets


@njit(**OPTIONS)
def unexplained(Z: Array, missing: Array, mean: Array, P: Array) -> Array:
    """Return z_j - E[z_j | the other observed entries of its row], 0 where z_j is missing.

    At the conditional mean, (P d)_o = Sigma_oo^-1 d_o, and a residual is that over the diagonal of
    Sigma_oo^-1 = P_oo - P_om P_mm^-1 P_mo.
    """
    n, out = Z.shape[1], np.zeros(Z.shape)
    at = np.empty(n, np.int64)
    for a in range(len(Z)):
        k = 0
        for j in range(n):
            if missing[a, j]:
                at[k] = j
                k += 1
        A = np.zeros((k, k + 1))
        for p in range(k):
            for q in range(k):
                A[p, q] = P[at[p], at[q]]
        invert(A)
        for j in range(n):
            if missing[a, j]:
                continue
            row, told, diagonal = P[j], 0.0, P[j, j]
            for i in range(n):
                told += row[i] * (Z[a, i] - mean[i])
            for p in range(k):
                x = 0.0
                for q in range(k):
                    x += A[p, q] * row[at[q]]
                diagonal += row[at[p]] * x
            out[a, j] = told / diagonal
    return out
