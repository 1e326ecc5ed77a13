"""Rows with full covariances, stored as packed symmetric tables, of ratings and of rankings.

`learn_pairs` serves matrices in which every pair counts: what is not observed is zero. The sum over
all partners is one matrix for all rows, and a row adds a correction for what it observes.
It stands here because it calls `invert` and `sum_block`, and Numba's cache sees changes of one file
only.

Tables are packed by rows of their lower triangle: entry (i, j) with j <= i stands at
i (i + 1) / 2 + j.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._compiled import njit
from overt._types import Array
from overt.completion.kernels import OPTIONS, Blocks, Held, Learned, RowPrior

BLOCK = 256  # ratings summed in storage precision before they are added to a float64 total


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


class Sums(NamedTuple):
    """Of each row of a chunk: sum c_b T_b (packed), sum c_b y_b w_b, sum c_b y_b^2.

    `part` is the sum of the last `count` tables, in storage precision.
    """

    total: Array
    part: Array
    count: Array
    linear: Array
    square: Array


@njit(**OPTIONS)
def room(cuts: Array, held: Held) -> Sums:
    """Allocate the sums of the longest of the parts that rows are cut into."""
    most = 0
    for c in range(len(cuts) - 1):
        most = max(most, cuts[c + 1] - cuts[c])
    (_, width), (_, size) = held.means.shape, held.spread.shape
    part = np.empty((most, size), held.spread.dtype)
    count = np.empty(most, np.int64)
    return Sums(np.empty((most, size)), part, count, np.empty((most, width)), np.empty(most))


@njit(**OPTIONS)
def learn_rows(
    rows: Array,
    blocks: Blocks,
    held: Held,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    out: Learned,
    cuts: Array,
    moments: Array,
) -> None:
    """Update rows with full covariances (theory: learned noise).

    With T_b = w_b w_b' + S_b and c_b the partner's weight, summed over the row's entries,
    Prec = precision sum c_b T_b + P, w = Prec^-1 (precision sum c_b (y_b w_b - T_b[:, pinned]) +
    shift). Writes T = w w' + Prec^-1 and w; moments[c] gets the sum of T over the rows of chunk c.
    """
    width = held.means.shape[1]
    n = len(prior.free)
    sums = room(cuts, held)
    A = np.empty((n, n + 1))
    w = np.ones(width)
    S = np.zeros((width, width))
    for c in range(len(moments)):
        here = rows[cuts[c] : cuts[c + 1]]
        sum_block(blocks, c, held, sums)
        moments[c] = 0
        for s in range(len(here)):
            r = here[s]
            total = sums.total[s]
            linear = sums.linear[s]
            logdet = _solve_row(prior, total, linear, shifts[r], precisions[r], A, w, S)
            error = sums.square[s]
            t = 0
            for i in range(width):
                error -= 2 * w[i] * linear[i]
                for j in range(i + 1):
                    x = w[i] * w[j] + S[i, j]
                    error += (2 - (i == j)) * x * total[t]
                    out.spread[r, t] = x
                    moments[c, t] += x
                    t += 1
                out.means[r, i] = w[i]
            out.stats[r, 0] = error
            out.stats[r, 1] = logdet


@njit(**OPTIONS)
def _solve_row(
    prior: RowPrior,
    total: Array,
    linear: Array,
    shift: Array,
    precision: float,
    A: Array,
    w: Array,
    S: Array,
) -> float:
    """Write a row's mean and covariance (lower triangle) from its sums; returns log det S."""
    free = prior.free
    n = len(prior.free)
    for p in range(n):
        i = free[p]
        for q in range(p + 1):
            x = prior.precision[p, q] + precision * total[i * (i + 1) // 2 + free[q]]
            A[p, q] = x
            A[q, p] = x
        y = linear[i]
        if prior.pinned >= 0:
            y -= total[_at(i, prior.pinned)]
        A[p, n] = shift[p] + precision * y
    logdet = invert(A)
    for p in range(n):
        i = free[p]
        w[i] = A[p, n]
        for q in range(p + 1):
            S[i, free[q]] = -A[p, q]
    return logdet


@njit(**OPTIONS)
def sum_block(blocks: Blocks, c: int, held: Held, sums: Sums) -> None:
    """Sum over the entries of chunk c, partner after partner.

    Tables are summed in storage precision, BLOCK at a time, the rest in double: what is written
    most often is half as large.
    """
    size = held.spread.shape[1]
    width = held.means.shape[1]
    for array in (sums.total, sums.linear):
        array[:] = 0
    sums.part[:] = 0
    sums.count[:] = 0
    sums.square[:] = 0
    for e in range(blocks.starts[c], blocks.starts[c + 1]):
        s = blocks.slots[e]
        b = blocks.partners[e]
        y = float(blocks.values[e])
        weight = held.weights[b]
        T = held.spread[b]
        v = held.means[b]
        if sums.count[s] == BLOCK:
            _add(sums, s)
        sums.count[s] += 1
        part = sums.part[s]
        linear = sums.linear[s]
        scale = held.spread.dtype.type(weight)
        for t in range(size):
            part[t] += scale * T[t]
        for j in range(width):
            linear[j] += weight * y * v[j]
        sums.square[s] += weight * y * y
    for s in range(len(sums.count)):
        _add(sums, s)


@njit(**OPTIONS)
def _add(sums: Sums, s: int) -> None:
    """Add a row's last part to its total."""
    total = sums.total[s]
    part = sums.part[s]
    for t in range(len(total)):
        total[t] += part[t]
        part[t] = 0
    sums.count[s] = 0


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
    """Return the position of entry (i, j) in a packed table."""
    return i * (i + 1) // 2 + j if j <= i else j * (j + 1) // 2 + i


@njit(**OPTIONS)
def dot_variances(
    rows: Array, cols: Array, U: Array, V: Array, SU: Array, SV: Array, out: Array
) -> None:
    """out_e = Var(u.v) = u'S_v u + v'S_u v + tr(S_u S_v), covariances packed."""
    for e in range(len(rows)):
        u = U[rows[e]]
        v = V[cols[e]]
        su = SU[rows[e]]
        sv = SV[cols[e]]
        x = 0.0
        t = 0
        for i in range(U.shape[1]):
            for j in range(i + 1):
                both = sv[t] * (u[i] * u[j] + su[t]) + su[t] * v[i] * v[j]
                x += both if i == j else 2 * both
                t += 1
        out[e] = x


class Everyone(NamedTuple):
    """What all rows share: sum_b c_b T_b over all partners, C, P, P m and the noise."""

    total: Array  # packed
    weight: float
    precision: Array
    shift: Array
    noise: float


@njit(**OPTIONS)
def learn_pairs(
    rows: Array,
    blocks: Blocks,
    held: Held,
    shared: Everyone,
    own: Array,
    out: Learned,
    cuts: Array,
    moments: Array,
) -> None:
    """Update rows whose unobserved entries are zeros (theory: rankings).

    With T_b = v_b v_b' + S_b (packed in `held.spread`), partner b's weight c_b and the row's r,
    A = sum_all c_b T_b + (C - 1) sum_observed c_b T_b,
    S = (r A / noise + P)^-1, w = S (r C sum_observed c_b y_b v_b / noise + P m).
    Writes w and w w' + S; stats are r times the expected squared error, and log det S; moments[c]
    gets the sum of w w' + S over the rows of chunk c.
    """
    n = held.means.shape[1]
    sums = room(cuts, held)
    A = np.empty((n, n + 1))
    for c in range(len(moments)):
        here = rows[cuts[c] : cuts[c + 1]]
        sum_block(blocks, c, held, sums)
        moments[c] = 0
        for s in range(len(here)):
            r = here[s]
            total = sums.total[s]
            linear = sums.linear[s]
            scale = own[r] / shared.noise
            t = 0
            for i in range(n):
                linear[i] *= shared.weight
                A[i, n] = shared.shift[i] + scale * linear[i]
                for j in range(i + 1):
                    total[t] = shared.total[t] + (shared.weight - 1) * total[t]
                    A[i, j] = shared.precision[i, j] + scale * total[t]
                    A[j, i] = A[i, j]
                    t += 1
            logdet = invert(A)
            error = shared.weight * sums.square[s]
            t = 0
            for i in range(n):
                error -= 2 * A[i, n] * linear[i]
                out.means[r, i] = A[i, n]
                for j in range(i + 1):
                    x = A[i, n] * A[j, n] - A[i, j]
                    error += (2 - (i == j)) * x * total[t]
                    out.spread[r, t] = x
                    moments[c, t] += x
                    t += 1
            out.stats[r, 0] = own[r] * error
            out.stats[r, 1] = logdet


@njit(**OPTIONS)
def weighted_sum(weights: Array, tables: Array) -> Array:
    """sum_b weights_b tables_b, in double precision."""
    total = np.zeros(tables.shape[1])
    for b in range(len(tables)):
        for t in range(len(total)):
            total[t] += weights[b] * tables[b, t]
    return total
