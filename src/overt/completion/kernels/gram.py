"""Rows whose partners have independent noise in each column: Gram matrices and their solves.

With s_b the variance of the partner w_b in each column, a row has

    Prec = sum_b (w_b w_b' + diag s_b) / noise + P
    w = Prec^-1 (sum_b (y_b - pinned) w_b / noise + P m)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from overt._types import Array
from overt.completion.kernels import (
    BLOCK,
    NOT_PINNED,
    OPTIONS,
    Csr,
    Drawn,
    Held,
    Learned,
    RowPrior,
    Solved,
)

PIVOT = 1e-12
"""Part of its diagonal below which a pivot says that the others explain a coordinate."""


class Work(NamedTuple):
    """What a kernel writes on: total = sum w_b w_b', linear = sum y_b w_b, spread = sum s_b."""

    total: Array
    linear: Array
    spread: Array
    buffer: Array
    A: Array
    right: Array
    center: Array
    w: Array
    variance: Array


@njit(**OPTIONS)
def workspace(means: Array, n: int) -> Work:
    """Return room for rows of `n` unknowns whose partners are `means`."""
    width = means.shape[1]
    return Work(
        np.empty((width, width)), np.empty(width), np.zeros(width),
        np.empty((BLOCK, width), means.dtype), np.empty((n, n)), np.empty(n), np.empty(n),
        np.ones(width), np.zeros(width),
    )  # fmt: skip


@njit(**OPTIONS)
def solve_rows(rows: Array, csr: Csr, held: Held, prior: RowPrior, out: Solved) -> None:
    """Update rows whose partners are dropped: s_b = strength o w_b o w_b.

    Fixed dropout has noise = 1 and P = ridge I.
    """
    work = workspace(held.means, len(prior.free))
    still = np.zeros(len(prior.free))
    for r in rows:
        square = sum_gram(csr, r, held.means, work)
        for i in range(len(held.spread)):
            work.spread[i] = held.spread[i] * work.total[i, i]
        _equations(prior, work)
        logdet = solve(work.A, work.right, still, work.center)
        _write(work.right, prior.free, work.w, out.means[r])
        out.stats[r, 0] = _error(square, work)
        out.stats[r, 1] = logdet


@njit(**OPTIONS)
def draw_rows(
    rows: Array, csr: Csr, held: Held, prior: RowPrior, normals: Array, out: Drawn
) -> None:
    """Draw rows from N(w, Prec^-1) given their partners (s_b = 0): w + R^-1 normal, Prec = R'R."""
    work = workspace(held.means, len(prior.free))
    for r in rows:
        square = sum_gram(csr, r, held.means, work)
        _equations(prior, work)
        logdet = solve(work.A, work.right, normals[r], work.center)
        _write(work.center, prior.free, work.w, out.centers[r])
        _write(work.right, prior.free, work.w, out.means[r])
        out.stats[r, 0] = _error(square, work)
        out.stats[r, 1] = logdet


@njit(**OPTIONS)
def learn_variances(rows: Array, csr: Csr, held: Held, prior: RowPrior, out: Learned) -> None:
    """Update rows with a variance for each column, s = 1 / diag Prec."""
    n, width = len(prior.free), held.means.shape[1]
    work, still = workspace(held.means, n), np.zeros(n)
    for r in rows:
        square = sum_gram(csr, r, held.means, work)
        work.spread[:] = 0
        for b in csr.indices[csr.indptr[r] : csr.indptr[r + 1]]:
            for i in range(width):
                work.spread[i] += held.spread[b, i]
        _equations(prior, work)
        logdet = 0.0
        for p in range(n):
            work.variance[prior.free[p]] = 1 / work.A[p, p]
            logdet -= np.log(work.A[p, p])
        solve(work.A, work.right, still, work.center)
        _write(work.right, prior.free, work.w, out.means[r])
        for i in range(width):
            out.spread[r, i] = work.variance[i]
        out.stats[r, 0] = _error(square, work)
        out.stats[r, 1] = logdet


@njit(**OPTIONS)
def sum_gram(csr: Csr, r: int, means: Array, work: Work) -> float:
    """total = sum_b w_b w_b', linear = sum_b y_b w_b over a row's entries; returns sum_b y_b^2.

    Blocks of rows are gathered and multiplied by the BLAS.
    """
    start, stop = csr.indptr[r], csr.indptr[r + 1]
    total, linear, buffer, width = work.total, work.linear, work.buffer, means.shape[1]
    product = np.empty((width, width), means.dtype)
    total[:] = 0
    linear[:] = 0
    square = 0.0
    while start < stop:
        m = min(len(buffer), stop - start)
        for e in range(m):
            w = means[csr.indices[start + e]]
            for j in range(width):
                buffer[e, j] = w[j]
            y = float(csr.values[start + e])
            square += y * y
        block = buffer[:m]
        np.dot(block.T, block, product)
        part = np.dot(csr.values[start : start + m], block)
        for i in range(width):
            linear[i] += part[i]
            for j in range(width):
                total[i, j] += product[i, j]
        start += m
    return square


@njit(**OPTIONS)
def _equations(prior: RowPrior, work: Work) -> None:
    """Write A = Prec (its upper triangle) and right = sum (y_b - pinned) w_b / noise + P m."""
    free, noise = prior.free, prior.noise
    for p in range(len(free)):
        i = free[p]
        for q in range(p, len(free)):
            work.A[p, q] = prior.precision[p, q] + work.total[i, free[q]] / noise
        work.A[p, p] += work.spread[i] / noise
        y = work.linear[i]
        if prior.pinned != NOT_PINNED:
            y -= work.total[i, prior.pinned]
        work.right[p] = prior.shift[p] + y / noise


@njit(**OPTIONS)
def solve(A: Array, right: Array, normal: Array, center: Array) -> float:
    """center = P^-1 right, right = center + R^-1 normal, P = R'R; returns log det P^-1.

    P is the upper triangle of A, which is overwritten by R. A coordinate that the others already
    explain gets 0.
    """
    n = len(right)
    logdet = 0.0
    for k in range(n):
        right_k = right[k]
        Ak = A[k]
        # The diagonal at the start is rebuilt from R, column by column.
        original = Ak[k]
        for i in range(k):
            original += A[i, k] * A[i, k]
        scale = 0.0
        if Ak[k] > PIVOT * original:
            scale = 1 / np.sqrt(Ak[k])
            logdet += 2 * np.log(scale)
        for j in range(k, n):
            Ak[j] *= scale
        right_k *= scale
        right[k] = right_k
        for i in range(k + 1, n):
            Ai = A[i]
            s = Ak[i]
            right[i] -= s * right_k
            for j in range(i, n):
                Ai[j] -= s * Ak[j]
    for k in range(n - 1, -1, -1):
        Ak = A[k]
        x, y = right[k], right[k] + normal[k]
        for j in range(k + 1, n):
            x -= Ak[j] * center[j]
            y -= Ak[j] * right[j]
        center[k] = x / Ak[k] if Ak[k] > 0 else 0.0
        right[k] = y / Ak[k] if Ak[k] > 0 else 0.0
    return logdet


@njit(**OPTIONS)
def _write(unknowns: Array, free: Array, w: Array, out: Array) -> None:
    """Put a row's unknowns beside the pinned 1."""
    for p in range(len(free)):
        w[free[p]] = unknowns[p]
    for i in range(len(w)):
        out[i] = w[i]


@njit(**OPTIONS)
def _error(error: float, work: Work) -> float:
    """Add E (u.v)^2 - 2 y E u.v, summed over a row's entries, to the sum of y^2."""
    w, total = work.w, work.total
    for i in range(len(w)):
        error += w[i] * (work.spread[i] * w[i] - 2 * work.linear[i])
        error += work.variance[i] * (total[i, i] + work.spread[i])
        for j in range(len(w)):
            error += w[i] * w[j] * total[i, j]
    return error
