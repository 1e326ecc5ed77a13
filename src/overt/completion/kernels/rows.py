"""Row kernels: the updates of one side's rows given the other side, compiled by Numba.

Factors and biases are columns of the same arrays: a row is w = (factors, row bias, column bias), in
which the other side's bias is pinned to 1. There are two families:

- full covariances (`learn_rows`, and `learn_pairs` where every pair counts): the partner tables
  T_b = w_b w_b' + S_b are packed by rows of their lower triangle, entry (i, j) with j <= i at
  i (i + 1) / 2 + j, and entries are read as `Blocks`, because much is read of each partner;
- independent variances s_b (`learn_variances`, `sample_rows`): Gram matrices
  Prec = precision sum_b c_b (w_b w_b' + diag s_b) + P, and entries are read as `Csr`.

`overt.completion.kernels.reference` has the same functions in plain NumPy. Everything that a kernel
calls stands in this file, because Numba's cache does not notice a change in another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._compiled import njit
from overt._types import Array

OPTIONS = {"error_model": "numpy", "fastmath": {"contract", "nsz"}}

NOT_PINNED = -1
"""Stands for the pinned column where there are no biases."""

BLOCK = 256
"""Ratings summed in storage precision before they are added to a float64 total."""

PIVOT = 1e-12
"""Part of its diagonal below which a pivot says that the others explain a coordinate."""


class Csr(NamedTuple):
    """Entries by row: row r has values[indptr[r]:indptr[r + 1]] at columns `indices` likewise."""

    indptr: Array
    indices: Array
    values: Array


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
    """The fixed side: means, (count, width), and their covariances as a kernel needs them.

    `covariances` are packed second moments w w' + S in `learn_rows`, variances in
    `learn_variances`, the strength of dropout for each column in `sample_rows`. `weights` are the
    precisions c_b of the partners.
    """

    means: Array
    covariances: Array
    weights: Array


class RowPrior(NamedTuple):
    """What all rows share: P, their unknown columns, the pinned one."""

    precision: Array
    free: Array
    pinned: int


class LearnedRows(NamedTuple):
    """Rows with their covariances; `stats` are a row's expected squared error and log det S."""

    means: Array
    covariances: Array
    stats: Array


class SampledRows(NamedTuple):
    """Sampled rows, and the means of the laws that they were sampled from."""

    means: Array
    centers: Array
    stats: Array


@njit(**OPTIONS)
def group(
    keys: Array, others: Array, values: Array, count: int
) -> tuple[Array, Array, Array]:
    """Sort triplets by key, keeping their order within a key: (indptr, indices, values)."""
    indptr = np.zeros(count + 1, np.int64)
    for key in keys:
        indptr[key + 1] += 1
    for i in range(count):
        indptr[i + 1] += indptr[i]
    place = indptr[:-1].copy()
    indices = np.empty(len(keys), np.int32)
    sorted_values = np.empty(len(keys), values.dtype)
    for e in range(len(keys)):
        at = place[keys[e]]
        indices[at] = others[e]
        sorted_values[at] = values[e]
        place[keys[e]] += 1
    return indptr, indices, sorted_values


@njit(**OPTIONS)
def block(
    keys: Array,
    others: Array,
    values: Array,
    chunk: Array,
    slot: Array,
    n_chunks: int,
    n_others: int,
) -> tuple[Array, Array, Array, Array]:
    """Sort triplets by chunk[key], then by other, as `Blocks` has them."""
    n = len(keys)
    starts = np.zeros(n_chunks + 1, np.int64)
    place = np.zeros(n_others + 1, np.int64)
    order = np.empty(n, np.uint32)
    for e in range(n):
        place[others[e] + 1] += 1
        starts[chunk[keys[e]] + 1] += 1
    for counts in (place, starts):
        for i in range(1, len(counts)):
            counts[i] += counts[i - 1]
    for e in range(n):
        order[place[others[e]]] = e
        place[others[e]] += 1
    at = starts.copy()
    slots = np.empty(n, slot.dtype)
    partners = np.empty(n, np.int32)
    sorted_values = np.empty(n, values.dtype)
    for i in range(n):
        e = order[i]
        c = chunk[keys[e]]
        slots[at[c]] = slot[keys[e]]
        partners[at[c]] = others[e]
        sorted_values[at[c]] = values[e]
        at[c] += 1
    return starts, slots, partners, sorted_values


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
def allocate_sums(cuts: Array, fixed: FixedSide) -> Sums:
    """Allocate the sums of the longest of the parts that rows are cut into."""
    most = 0
    for c in range(len(cuts) - 1):
        most = max(most, cuts[c + 1] - cuts[c])
    (_, width), (_, size) = fixed.means.shape, fixed.covariances.shape
    part = np.empty((most, size), fixed.covariances.dtype)
    count = np.empty(most, np.int64)
    return Sums(
        np.empty((most, size)), part, count, np.empty((most, width)), np.empty(most)
    )


@njit(**OPTIONS)
def learn_rows(
    rows: Array,
    blocks: Blocks,
    fixed: FixedSide,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    out: LearnedRows,
    cuts: Array,
    moments: Array,
) -> None:
    """Update rows with full covariances (theory: learned noise).

    With T_b = w_b w_b' + S_b and c_b the partner's weight, summed over the row's entries,
    Prec = precision sum c_b T_b + P, w = Prec^-1 (precision sum c_b (y_b w_b - T_b[:, pinned]) +
    shift). Writes T = w w' + Prec^-1 and w; moments[c] gets the sum of T over the rows of chunk c.
    """
    width = fixed.means.shape[1]
    n = len(prior.free)
    sums = allocate_sums(cuts, fixed)
    A = np.empty((n, n + 1))
    w = np.ones(width)
    S = np.zeros((width, width))
    for c in range(len(moments)):
        here = rows[cuts[c] : cuts[c + 1]]
        sum_block(blocks, c, fixed, sums)
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
                    out.covariances[r, t] = x
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
def sum_block(blocks: Blocks, c: int, fixed: FixedSide, sums: Sums) -> None:
    """Sum over the entries of chunk c, partner after partner.

    Tables are summed in storage precision, BLOCK at a time, the rest in double: what is written
    most often is half as large.
    """
    size = fixed.covariances.shape[1]
    width = fixed.means.shape[1]
    for array in (sums.total, sums.linear):
        array[:] = 0
    sums.part[:] = 0
    sums.count[:] = 0
    sums.square[:] = 0
    for e in range(blocks.starts[c], blocks.starts[c + 1]):
        s = blocks.slots[e]
        b = blocks.partners[e]
        y = float(blocks.values[e])
        weight = fixed.weights[b]
        T = fixed.covariances[b]
        v = fixed.means[b]
        if sums.count[s] == BLOCK:
            _add(sums, s)
        sums.count[s] += 1
        part = sums.part[s]
        linear = sums.linear[s]
        scale = fixed.covariances.dtype.type(weight)
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


class AllPartners(NamedTuple):
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
    fixed: FixedSide,
    shared: AllPartners,
    own: Array,
    out: LearnedRows,
    cuts: Array,
    moments: Array,
) -> None:
    """Update rows whose unobserved entries are zeros (theory: rankings).

    With T_b = v_b v_b' + S_b (packed in `fixed.covariances`), partner weights c_b, the row's r,
    A = sum_all c_b T_b + (C - 1) sum_observed c_b T_b,
    S = (r A / noise + P)^-1, w = S (r C sum_observed c_b y_b v_b / noise + P m).
    Writes w and w w' + S; stats are r times the expected squared error, and log det S; moments[c]
    gets the sum of w w' + S over the rows of chunk c.
    """
    n = fixed.means.shape[1]
    sums = allocate_sums(cuts, fixed)
    A = np.empty((n, n + 1))
    for c in range(len(moments)):
        here = rows[cuts[c] : cuts[c + 1]]
        sum_block(blocks, c, fixed, sums)
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
                    out.covariances[r, t] = x
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


class Work(NamedTuple):
    """Workspace of a kernel: sums over entries of w_b w_b', y_b w_b and s_b, weighted by c_b."""

    total: Array
    linear: Array
    covariances: Array
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
def sample_rows(
    rows: Array,
    csr: Csr,
    fixed: FixedSide,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    normals: Array,
    out: SampledRows,
) -> None:
    """Sample rows from N(w, Prec^-1) given their partners: w + R^-1 normal, Prec = R'R.

    Partners are dropped, s_b = strength o w_b o w_b; samples have strength 0. Fixed dropout has
    normals 0, precision 1 and P = ridge I.
    """
    work = workspace(fixed.means, len(prior.free))
    for r in rows:
        square = sum_gram(csr, r, fixed, work)
        for i in range(len(fixed.covariances)):
            work.covariances[i] = fixed.covariances[i] * work.total[i, i]
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
    fixed: FixedSide,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    out: LearnedRows,
) -> None:
    """Update rows with a variance for each column, s = 1 / diag Prec."""
    n = len(prior.free)
    width = fixed.means.shape[1]
    work = workspace(fixed.means, n)
    still = np.zeros(n)
    for r in rows:
        square = sum_gram(csr, r, fixed, work)
        work.covariances[:] = 0
        for b in csr.indices[csr.indptr[r] : csr.indptr[r + 1]]:
            for i in range(width):
                work.covariances[i] += fixed.weights[b] * fixed.covariances[b, i]
        _equations(prior, shifts[r], precisions[r], work)
        logdet = 0.0
        for p in range(n):
            work.variance[prior.free[p]] = 1 / work.A[p, p]
            logdet -= np.log(work.A[p, p])
        solve(work.A, work.right, still, work.center)
        _write(work.right, prior.free, work.w, out.means[r])
        for i in range(width):
            out.covariances[r, i] = work.variance[i]
        out.stats[r, 0] = _error(square, work)
        out.stats[r, 1] = logdet


@njit(**OPTIONS)
def sum_gram(csr: Csr, r: int, fixed: FixedSide, work: Work) -> float:
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
            w = fixed.means[b]
            root = np.sqrt(fixed.weights[b])
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
        work.A[p, p] += precision * work.covariances[i]
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
        error += w[i] * (work.covariances[i] * w[i] - 2 * work.linear[i])
        error += work.variance[i] * (total[i, i] + work.covariances[i])
        for j in range(len(w)):
            error += w[i] * w[j] * total[i, j]
    return error
