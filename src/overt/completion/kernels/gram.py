"""Rows whose partners have independent noise in each column: Gram matrices and their solves.

With s_b the variance of the partner w_b in each column and c_b its weight, a row has

    Prec = precision sum_b c_b (w_b w_b' + diag s_b) + P
    w = Prec^-1 (precision sum_b c_b (y_b - pinned) w_b + shift)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._compiled import njit
from overt._types import Array
from overt.completion.kernels import (
    OPTIONS,
    Csr,
    Drawn,
    Held,
    Learned,
    RowPrior,
)

BLOCK = 256
"""Ratings summed in storage precision before they are added to a float64 total."""

PIVOT = 1e-12
"""Part of its diagonal below which a pivot says that the others explain a coordinate."""


class Work(NamedTuple):
    """Workspace of a kernel: sums over entries of w_b w_b', y_b w_b and s_b, weighted by c_b."""

    total: Array
    linear: Array
    spread: Array
    buffer: Array
    values: Array
    A: Array
    right: Array
    center: Array
    w: Array
    variance: Array


@njit(**OPTIONS)
def workspace(means: Array, n: int) -> Work:
    """Allocate a workspace for rows of `n` unknowns whose partners are `means`."""
    width = means.shape[1]
    return Work(
        np.empty((width, width)),
        np.empty(width),
        np.empty(width),
        np.empty((BLOCK, width), means.dtype),
        np.empty(BLOCK, means.dtype),
        np.empty((n, n)),
        np.empty(n),
        np.empty(n),
        np.ones(width),
        np.zeros(width),
    )


@njit(**OPTIONS)
def draw_rows(
    rows: Array,
    csr: Csr,
    held: Held,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    normals: Array,
    out: Drawn,
) -> None:
    """Draw rows from N(w, Prec^-1) given their partners: w + R^-1 normal, Prec = R'R.

    Partners are dropped, s_b = strength o w_b o w_b; samples have strength 0. Fixed dropout has
    normals 0, precision 1 and P = ridge I.
    """
    work = workspace(held.means, len(prior.free))
    for r in rows:
        square = sum_gram(csr, r, held, work)
        for i in range(len(held.spread)):
            work.spread[i] = held.spread[i] * work.total[i, i]
        _equations(prior, shifts[r], precisions[r], work)
        logdet = solve(work.A, work.right, normals[r], work.center)
        _write(work.center, prior.free, work.w, out.centers[r])
        _write(work.right, prior.free, work.w, out.means[r])
        out.stats[r, 0] = _error(square, work)
        out.stats[r, 1] = logdet


@njit(**OPTIONS)
def learn_variances(
    rows: Array,
    csr: Csr,
    held: Held,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    out: Learned,
) -> None:
    """Update rows with a variance for each column, s = 1 / diag Prec."""
    n = len(prior.free)
    width = held.means.shape[1]
    work = workspace(held.means, n)
    still = np.zeros(n)
    for r in rows:
        square = sum_gram(csr, r, held, work)
        work.spread[:] = 0
        for b in csr.indices[csr.indptr[r] : csr.indptr[r + 1]]:
            for i in range(width):
                work.spread[i] += held.weights[b] * held.spread[b, i]
        _equations(prior, shifts[r], precisions[r], work)
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
def sum_gram(csr: Csr, r: int, held: Held, work: Work) -> float:
    """total = sum_b c_b w_b w_b', linear = sum_b c_b y_b w_b of a row; returns sum_b c_b y_b^2.

    Blocks of rows are gathered, times sqrt(c_b), and multiplied by the BLAS.
    """
    start = csr.indptr[r]
    stop = csr.indptr[r + 1]
    total = work.total
    linear = work.linear
    buffer = work.buffer
    values = work.values
    width = len(linear)
    product = np.empty((width, width), buffer.dtype)
    total[:] = 0
    linear[:] = 0
    square = 0.0
    while start < stop:
        m = min(len(buffer), stop - start)
        for e in range(m):
            b = csr.indices[start + e]
            w = held.means[b]
            root = np.sqrt(held.weights[b])
            for j in range(width):
                buffer[e, j] = root * w[j]
            y = root * csr.values[start + e]
            values[e] = y
            square += y * y
        block = buffer[:m]
        np.dot(block.T, block, product)
        part = np.dot(values[:m], block)
        for i in range(width):
            linear[i] += part[i]
            for j in range(width):
                total[i, j] += product[i, j]
        start += m
    return square


@njit(**OPTIONS)
def _equations(prior: RowPrior, shift: Array, precision: float, work: Work) -> None:
    """Write A = Prec (its upper triangle) and right = precision sum (y_b - pinned) w_b + shift."""
    free = prior.free
    for p in range(len(free)):
        i = free[p]
        for q in range(p, len(free)):
            work.A[p, q] = prior.precision[p, q] + precision * work.total[i, free[q]]
        work.A[p, p] += precision * work.spread[i]
        y = work.linear[i]
        if prior.pinned >= 0:
            y -= work.total[i, prior.pinned]
        work.right[p] = shift[p] + precision * y


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
        x = right[k]
        y = right[k] + normal[k]
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
    w = work.w
    total = work.total
    for i in range(len(w)):
        error += w[i] * (work.spread[i] * w[i] - 2 * work.linear[i])
        error += work.variance[i] * (total[i, i] + work.spread[i])
        for j in range(len(w)):
            error += w[i] * w[j] * total[i, j]
    return error
