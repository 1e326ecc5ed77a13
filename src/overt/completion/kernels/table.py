"""Compiled conditional distributions of Gaussian rows: missing entries given observed ones.

With d = z - mean, m the missing and o the observed entries of a row, and P the precision,

    z_m given z_o is Gaussian with mean mean_m - P_mm^-1 P_mo d_o and covariance S = P_mm^-1.

Everything comes from the inverse K of the Cholesky factor of P_mm: S = K'K, K'g is a sample for
standard normal g, and log det S = 2 sum log K_ii. This file calls no compiled function of another
file, because Numba's cache would not notice a change there.
"""

from __future__ import annotations

import numpy as np

from overt._check import Array
from overt._running import njit

OPTIONS = {"error_model": "numpy"}


@njit(**OPTIONS)
def inverse_factor(P: Array, at: Array) -> Array:
    """Return K, lower triangular, with K'K the inverse of P restricted to the entries `at`."""
    k = len(at)
    block = np.empty((k, k))
    for p in range(k):
        for q in range(k):
            block[p, q] = P[at[p], at[q]]
    L = np.linalg.cholesky(block)
    K = np.zeros((k, k))
    # Row p of L K = I. Adding rows of K vectorizes; dot products with its columns do not.
    for p in range(k):
        row = K[p]
        for i in range(p):
            factor = L[p, i]
            above = K[i]
            for q in range(i + 1):
                row[q] -= factor * above[q]
        row[p] = 1.0
        for q in range(p + 1):
            row[q] /= L[p, p]
    return K


@njit(**OPTIONS)
def fill_rows(
    Z: Array,
    missing: Array,
    mean: Array,
    P: Array,
    normals: Array,
    std: Array,
    total: Array,
) -> float:
    """Fill missing entries in place by conditional means, or by samples where there are `normals`.

    `normals` is shaped like Z, or empty for conditional means. Writes conditional standard
    deviations to `std`, adds the conditional covariances to `total`, returns the sum of log det S.
    """
    logdets = 0.0
    for a in range(len(Z)):
        at = np.flatnonzero(missing[a])
        if len(at) == 0:
            continue
        d = np.where(missing[a], 0.0, Z[a] - mean)
        K = inverse_factor(P, at)
        centered = -np.dot(K, np.dot(P, d)[at])
        if len(normals):
            centered += normals[a][at]
        filled = np.dot(K.T, centered)
        S = np.dot(K.T, K)
        for p in range(len(at)):
            logdets += 2 * np.log(K[p, p])
            Z[a, at[p]] = mean[at[p]] + filled[p]
            std[a, at[p]] = np.sqrt(S[p, p])
            row = total[at[p]]
            for q in range(len(at)):
                row[at[q]] += S[p, q]
    return logdets


@njit(**OPTIONS)
def leave_one_out(
    Z: Array, missing: Array, mean: Array, P: Array
) -> tuple[Array, Array]:
    """Return residuals z_j - E[z_j | the other observed entries of its row], and their std.

    Z has conditional means at its missing entries, where residuals are 0 and `std` is 1. There
    (P d)_o = Sigma_oo^-1 d_o, and a residual is this divided by the diagonal of
    Sigma_oo^-1 = P_oo - P_om P_mm^-1 P_mo.
    """
    residuals = np.zeros(Z.shape)
    std = np.ones(Z.shape)
    for a in range(len(Z)):
        at = np.flatnonzero(missing[a])
        explained = np.dot(inverse_factor(P, at), P[at])
        weighted = np.dot(P, Z[a] - mean)
        for j in range(Z.shape[1]):
            if not missing[a, j]:
                precision = P[j, j]
                for p in range(len(at)):
                    precision -= explained[p, j] ** 2
                residuals[a, j] = weighted[j] / precision
                std[a, j] = 1 / np.sqrt(precision)
    return residuals, std
