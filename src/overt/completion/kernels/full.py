"""Rows with full covariances, kept as packed symmetric tables.

Tables are packed by rows of their lower triangle: entry (i, j) with j <= i stands at
i (i + 1) / 2 + j.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from overt._types import Array
from overt.completion.kernels import BLOCK, NOT_PINNED, OPTIONS, Csr, Held, Learned, RowPrior


def pack(tables: Array) -> Array:
    """Keep the lower triangles of symmetric tables (..., d, d), row by row."""
    i, j = np.tril_indices(tables.shape[-1])
    return tables[..., i, j]


def unpack(packed: Array) -> Array:
    """Rebuild symmetric tables from their packed lower triangles."""
    d = int(np.sqrt(2 * packed.shape[-1]))
    i, j = np.tril_indices(d)
    tables = np.empty((*packed.shape[:-1], d, d), packed.dtype)
    tables[..., i, j] = packed
    tables[..., j, i] = packed
    return tables


@njit(**OPTIONS)
def learn_rows(
    rows: Array, csr: Csr, held: Held, prior: RowPrior, out: Learned, cuts: Array, moments: Array
) -> None:
    """Update rows with full covariances (theory: learned noise).

    With T_b = w_b w_b' + S_b summed over the row's entries,
    Prec = sum T_b / noise + P, w = Prec^-1 (sum (y_b w_b - T_b[:, pinned]) / noise + P m).
    Writes T = w w' + Prec^-1 and w; moments[c] gets the sum of T over the rows of chunk c.
    """
    width, size, n = held.means.shape[1], held.spread.shape[1], len(prior.free)
    free, pinned, noise = prior.free, prior.pinned, prior.noise
    total, linear = np.empty(size), np.empty(width)
    A, w = np.empty((n, n + 1)), np.empty(width)
    S = np.zeros((width, width))
    for c in range(len(moments)):
        moment = moments[c]
        moment[:] = 0
        for r in rows[cuts[c] : cuts[c + 1]]:
            error = sum_packed(csr, r, held, total, linear)
            for p in range(n):
                i = free[p]
                for q in range(p + 1):
                    x = prior.precision[p, q] + total[i * (i + 1) // 2 + free[q]] / noise
                    A[p, q] = x
                    A[q, p] = x
                y = linear[i]
                if pinned != NOT_PINNED:
                    y -= total[_at(i, pinned)]
                A[p, n] = prior.shift[p] + y / noise
            logdet = invert(A)
            for p in range(n):
                i = free[p]
                w[i] = A[p, n]
                for q in range(p + 1):
                    S[i, free[q]] = -A[p, q]
            if pinned != NOT_PINNED:
                w[pinned] = 1
            t = 0
            for i in range(width):
                error -= 2 * w[i] * linear[i]
                for j in range(i + 1):
                    x = w[i] * w[j] + S[i, j]
                    error += (2 - (i == j)) * x * total[t]
                    out.spread[r, t] = x
                    moment[t] += x
                    t += 1
                out.means[r, i] = w[i]
            out.stats[r, 0] = error
            out.stats[r, 1] = logdet


@njit(**OPTIONS)
def sum_packed(csr: Csr, r: int, held: Held, total: Array, linear: Array) -> float:
    """total = sum_b T_b (packed), linear = sum_b y_b w_b over entries; returns sum_b y_b^2."""
    here = slice(csr.indptr[r], csr.indptr[r + 1])
    indices, values, packed, means = csr.indices[here], csr.values[here], held.spread, held.means
    size, width, n = packed.shape[1], means.shape[1], len(indices)
    part = np.empty(size, packed.dtype)
    total[:] = 0
    linear[:] = 0
    square, e = 0.0, 0
    while e < n:
        end = min(n, e + BLOCK)
        part[:] = 0
        while e + 4 <= end:
            a, b = packed[indices[e]], packed[indices[e + 1]]
            c, d = packed[indices[e + 2]], packed[indices[e + 3]]
            for t in range(size):
                part[t] += (a[t] + b[t]) + (c[t] + d[t])
            e += 4
        while e < end:
            a = packed[indices[e]]
            for t in range(size):
                part[t] += a[t]
            e += 1
        for t in range(size):
            total[t] += part[t]
    for e in range(n):
        y = float(values[e])
        square += y * y
        w = means[indices[e]]
        for j in range(width):
            linear[j] += y * w[j]
    return square


@njit(**OPTIONS)
def invert(A: Array) -> float:
    """Sweep the pivots of [P | r] (n x (n+1)) into [-P^-1 | P^-1 r]; returns log det P^-1."""
    n, width = A.shape
    logdet = 0.0
    pivot_row = np.empty(width, A.dtype)
    for k in range(n):
        scale = 1 / A[k, k]
        logdet += np.log(scale)
        for j in range(width):
            pivot_row[j] = A[k, j]
        for i in range(n):
            Ai = A[i]
            s = Ai[k] * scale
            for j in range(width):
                Ai[j] -= s * pivot_row[j]
            Ai[k] = s
        for j in range(width):
            A[k, j] = pivot_row[j] * scale
        A[k, k] = -scale
    return logdet


@njit(**OPTIONS)
def _at(i: int, j: int) -> int:
    """Return where a packed table keeps entry (i, j)."""
    return i * (i + 1) // 2 + j if j <= i else j * (j + 1) // 2 + i


@njit(**OPTIONS)
def dot_variances(
    rows: Array, cols: Array, U: Array, V: Array, SU: Array, SV: Array, out: Array
) -> None:
    """out_e = Var(u.v) = u'S_v u + v'S_u v + tr(S_u S_v), covariances packed."""
    for e in range(len(rows)):
        u, v, su, sv = U[rows[e]], V[cols[e]], SU[rows[e]], SV[cols[e]]
        x, t = 0.0, 0
        for i in range(U.shape[1]):
            for j in range(i + 1):
                both = sv[t] * (u[i] * u[j] + su[t]) + su[t] * v[i] * v[j]
                x += both if i == j else 2 * both
                t += 1
        out[e] = x
