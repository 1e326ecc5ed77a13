"""The row kernel: updates of one side's rows given the other side, compiled by Numba.

Factors and biases are columns of the same arrays: a row is w = (factors, row bias, column bias), in
which the other side's bias is pinned to 1. Every kind of fit solves the same equations,

    Prec = precision M + P,  w = Prec^-1 (precision (l - M[:, pinned]) + shift),
    M = background + table_weight sum_b c_b T_b,  l = value_weight sum_b c_b y_b w_b,

with the second moments T_b of its partners: w_b w_b' + S_b where their covariances are stored, and
w_b w_b' + diag(strength o w_b o w_b) otherwise, the noise of dropout.

Symmetric tables are packed by rows of their lower triangle, entry (i, j) with j <= i at
i (i + 1) / 2 + j. `tests/completion/test_kernels.py` has the kernel in plain NumPy. Everything that
it calls stands in this file, because Numba's cache does not notice a change in another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._check import Array
from overt._running import njit

OPTIONS = {"error_model": "numpy", "fastmath": {"contract", "nsz"}}

NOT_PINNED = -1
"""Stands for the pinned column where there are no biases."""

BLOCK = 256
"""Entries summed in storage precision before they are added to a float64 total."""

PIVOT = 1e-12
"""Part of its diagonal below which a pivot says that the others explain a coordinate."""


class Blocks(NamedTuple):
    """Entries by chunk of rows; the entries of a chunk are sorted by partner.

    Entry e of chunk c, starts[c] <= e < starts[c + 1], lies in the chunk's row number slots[e]. A
    partner's table is then read once for all rows of a chunk, and tables in the order of memory.
    """

    starts: Array
    slots: Array
    partners: Array
    values: Array


class FixedSide(NamedTuple):
    """The fixed side: means, (count, width), their T (packed; no columns: not stored), and c_b."""

    means: Array
    tables: Array
    weights: Array
    strength: Array  # of dropout, for each column


class RowPrior(NamedTuple):
    """What all rows share: P, their unknown columns, the pinned one, and how sums are weighted."""

    precision: Array
    free: Array
    pinned: int
    background: Array  # packed
    table_weight: float = 1.0
    value_weight: float = 1.0


class Rows(NamedTuple):
    """Results of the kernel for each row.

    With stored covariances `tables` are w w' + Prec^-1; without, `means` are samples from
    N(w, Prec^-1) and `centers` are w. `stats` are the expected squared error and log det Prec^-1.
    """

    means: Array
    centers: Array
    tables: Array
    stats: Array


@njit(**OPTIONS)
def dots(rows: Array, cols: Array, U: Array, V: Array, out: Array) -> None:
    """out_e = u_(rows e) . v_(cols e)."""
    for e in range(len(rows)):
        u = U[rows[e]]
        v = V[cols[e]]
        x = 0.0
        for i in range(U.shape[1]):
            x += float(u[i]) * float(v[i])
        out[e] = x


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
def allocate_sums(cuts: Array, means: Array) -> Sums:
    """Allocate the sums of the longest of the parts that rows are cut into."""
    most = 0
    for c in range(len(cuts) - 1):
        most = max(most, cuts[c + 1] - cuts[c])
    width = means.shape[1]
    size = width * (width + 1) // 2
    return Sums(
        np.empty((most, size)),
        np.empty((most, size), means.dtype),
        np.empty(most, np.int64),
        np.empty((most, width)),
        np.empty(most),
    )


@njit(**OPTIONS)
def update_rows(
    rows: Array,
    blocks: Blocks,
    fixed: FixedSide,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    normals: Array,
    out: Rows,
    cuts: Array,
    moments: Array,
) -> None:
    """Solve for rows, or sample them where no covariances are stored.

    `normals` are standard normal numbers for samples (0: the means). Where tables are stored,
    moments[c] gets their sum over the rows of chunk c.
    """
    width = fixed.means.shape[1]
    n = len(prior.free)
    uncertain = fixed.tables.shape[1] > 0
    sums = allocate_sums(cuts, fixed.means)
    A = np.empty((n, n + 1))
    center = np.empty(n)
    w = np.ones(width)
    S = np.zeros((width, width))
    for c in range(len(cuts) - 1):
        here = rows[cuts[c] : cuts[c + 1]]
        sum_block(blocks, c, fixed, sums)
        moments[c] = 0
        for s in range(len(here)):
            r = here[s]
            total = sums.total[s]
            linear = sums.linear[s]
            _write_equations(
                prior, fixed.strength, total, linear, shifts[r], precisions[r], A
            )
            if uncertain:
                logdet = invert(A)
                for p in range(n):
                    for q in range(p + 1):
                        S[prior.free[p], prior.free[q]] = -A[p, q]
            else:
                logdet = solve(A, normals[r], center)
                for p in range(n):
                    w[prior.free[p]] = center[p]
                for i in range(width):
                    out.centers[r, i] = w[i]
            for p in range(n):
                w[prior.free[p]] = A[p, n]
            error = prior.value_weight * sums.square[s]
            t = 0
            for i in range(width):
                error -= 2 * w[i] * linear[i]
                out.means[r, i] = w[i]
                for j in range(i + 1):
                    x = w[i] * w[j] + S[i, j]
                    error += (2 - (i == j)) * x * total[t]
                    if uncertain:
                        out.tables[r, t] = x
                        moments[c, t] += x
                    t += 1
            out.stats[r, 0] = error
            out.stats[r, 1] = logdet


@njit(**OPTIONS)
def _write_equations(
    prior: RowPrior,
    strength: Array,
    total: Array,
    linear: Array,
    shift: Array,
    precision: float,
    A: Array,
) -> None:
    """Turn a row's sums into M and l in place, and write [Prec | right side] to A."""
    free = prior.free
    n = len(free)
    t = 0
    for i in range(len(linear)):
        linear[i] *= prior.value_weight
        for _ in range(i + 1):
            total[t] = prior.background[t] + prior.table_weight * total[t]
            t += 1
        total[t - 1] *= 1 + strength[i]
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


@njit(**OPTIONS)
def _at(i: int, j: int) -> int:
    """Return the position of entry (i, j) in a packed table."""
    return i * (i + 1) // 2 + j if j <= i else j * (j + 1) // 2 + i


@njit(**OPTIONS)
def sum_block(blocks: Blocks, c: int, fixed: FixedSide, sums: Sums) -> None:
    """Sum over the entries of chunk c, partner after partner.

    Tables are summed in storage precision, BLOCK at a time, the rest in double: the
    array that is written most often is half as large.
    """
    size = fixed.tables.shape[1]
    width = fixed.means.shape[1]
    sums.total[:] = 0
    sums.part[:] = 0
    sums.count[:] = 0
    sums.linear[:] = 0
    sums.square[:] = 0
    for e in range(blocks.starts[c], blocks.starts[c + 1]):
        s = blocks.slots[e]
        b = blocks.partners[e]
        y = float(blocks.values[e])
        weight = fixed.weights[b]
        T = fixed.tables[b]
        v = fixed.means[b]
        if sums.count[s] == BLOCK:
            _add(sums, s)
        sums.count[s] += 1
        part = sums.part[s]
        linear = sums.linear[s]
        scale = fixed.means.dtype.type(weight)
        for t in range(size):
            part[t] += scale * T[t]
        if size == 0:
            for i in range(width):
                row = part[i * (i + 1) // 2 :]
                x = scale * v[i]
                for j in range(i + 1):
                    row[j] += x * v[j]
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
def solve(A: Array, normal: Array, center: Array) -> float:
    """From [P | r] (n x (n+1)), center = P^-1 r and the last column center + R^-1 normal, P = R'R.

    The upper triangle of P is overwritten by R; returns log det P^-1. A coordinate that the others
    already explain gets 0.
    """
    n = len(center)
    logdet = 0.0
    for k in range(n):
        Ak = A[k]
        # The diagonal at the start is rebuilt from R, column by column.
        original = Ak[k]
        for i in range(k):
            original += A[i, k] * A[i, k]
        scale = 0.0
        if Ak[k] > PIVOT * original:
            scale = 1 / np.sqrt(Ak[k])
            logdet += 2 * np.log(scale)
        for j in range(k, n + 1):
            Ak[j] *= scale
        for i in range(k + 1, n):
            Ai = A[i]
            s = Ak[i]
            for j in range(i, n + 1):
                Ai[j] -= s * Ak[j]
    for k in range(n - 1, -1, -1):
        Ak = A[k]
        x = Ak[n]
        y = Ak[n] + normal[k]
        for j in range(k + 1, n):
            x -= Ak[j] * center[j]
            y -= Ak[j] * A[j, n]
        center[k] = x / Ak[k] if Ak[k] > 0 else 0.0
        Ak[n] = y / Ak[k] if Ak[k] > 0 else 0.0
    return logdet


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


@njit(**OPTIONS)
def weighted_sum(weights: Array, tables: Array) -> Array:
    """sum_b weights_b tables_b, in double precision."""
    total = np.zeros(tables.shape[1])
    for b in range(len(tables)):
        for t in range(len(total)):
            total[t] += weights[b] * tables[b, t]
    return total
