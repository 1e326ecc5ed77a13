"""Compiled row updates: pure functions of arrays, serial, releasing the GIL.

One side's rows are updated while the other side is held. Factors and biases are columns of the same
arrays: a row is w = (factors, row bias, column bias), in which the other side's bias is pinned to 1
(`free` lists the columns that are not). Symmetric tables are packed by rows of their lower
triangle: entry (i, j) with j <= i stands at i (i + 1) / 2 + j. `overt.completion.reference` holds
the same functions in plain NumPy.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from overt._types import Array

BLOCK = 256
"""Ratings summed in storage precision before they are added to a float64 total."""

_OPTIONS = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}


@njit(**_OPTIONS)
def group(keys: Array, others: Array, values: Array, count: int) -> tuple[Array, Array, Array]:
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


@njit(**_OPTIONS)
def sum_packed(
    indices: Array,
    values: Array,
    packed: Array,
    means: Array,
    total: Array,
    linear: Array,
) -> float:
    """total = sum_b T_b (packed), linear = sum_b y_b w_b; returns sum_b y_b^2."""
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


@njit(**_OPTIONS)
def sum_gram(
    indices: Array,
    values: Array,
    means: Array,
    total: Array,
    linear: Array,
    buffer: Array,
) -> float:
    """total = sum_b w_b w_b' (square), linear = sum_b y_b w_b; returns sum_b y_b^2.

    Blocks of rows are gathered and multiplied by the BLAS.
    """
    width, n = means.shape[1], len(indices)
    product = np.empty((width, width), means.dtype)
    total[:] = 0
    linear[:] = 0
    square, start = 0.0, 0
    while start < n:
        m = min(len(buffer), n - start)
        for e in range(m):
            w = means[indices[start + e]]
            for j in range(width):
                buffer[e, j] = w[j]
            y = float(values[start + e])
            square += y * y
        block, y_block = buffer[:m], values[start : start + m]
        np.dot(block.T, block, product)
        part = np.dot(y_block, block)
        for i in range(width):
            linear[i] += part[i]
            for j in range(width):
                total[i, j] += product[i, j]
        start += m
    return square


@njit(**_OPTIONS)
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


@njit(**_OPTIONS)
def solve(A: Array, right: Array, normal: Array, center: Array) -> float:
    """center = P^-1 right, right = center + R^-1 normal, P = R'R; returns log det P^-1.

    P is the upper triangle of A, which is overwritten by R. A coordinate that the others already
    explain (pivot below 1e-12 of its diagonal) gets 0.
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
        if Ak[k] > 1e-12 * original:
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


@njit(**_OPTIONS)
def learn_rows(
    rows: Array,
    indptr: Array,
    indices: Array,
    values: Array,
    packed: Array,
    means: Array,
    precision: Array,
    shift: Array,
    noise: float,
    free: Array,
    packed_out: Array,
    means_out: Array,
    stats: Array,
    moment: Array,
) -> None:
    """Update rows with full covariances (theory: learned noise).

    With T_b = w_b w_b' + S_b summed over the row's entries,
    Prec = sum T_b / noise + P, w = Prec^-1 (sum (y_b w_b - T_b[:, pinned]) / noise + P m).
    Writes T = w w' + Prec^-1 and w; stats gets the row's expected squared error and
    log det Prec^-1; moment gets the sum of T over the rows.
    """
    width, size, n = means.shape[1], packed.shape[1], len(free)
    pinned = _pinned(free, width)
    total, linear = np.empty(size), np.empty(width)
    A, w = np.empty((n, n + 1)), np.empty(width)
    S = np.zeros((width, width))
    moment[:] = 0
    for r in rows:
        here = slice(indptr[r], indptr[r + 1])
        error = sum_packed(indices[here], values[here], packed, means, total, linear)
        for p in range(n):
            i = free[p]
            for q in range(p + 1):
                x = precision[p, q] + total[i * (i + 1) // 2 + free[q]] / noise
                A[p, q] = x
                A[q, p] = x
            y = linear[i]
            if pinned >= 0:
                y -= total[_at(i, pinned)]
            A[p, n] = shift[p] + y / noise
        logdet = invert(A)
        for p in range(n):
            i = free[p]
            w[i] = A[p, n]
            for q in range(p + 1):
                S[i, free[q]] = -A[p, q]
        if pinned >= 0:
            w[pinned] = 1
        t = 0
        for i in range(width):
            error -= 2 * w[i] * linear[i]
            for j in range(i + 1):
                x = w[i] * w[j] + S[i, j]
                error += (2 - (i == j)) * x * total[t]
                packed_out[r, t] = x
                moment[t] += x
                t += 1
            means_out[r, i] = w[i]
        stats[r, 0] = error
        stats[r, 1] = logdet


@njit(**_OPTIONS)
def solve_rows(
    rows: Array,
    indptr: Array,
    indices: Array,
    values: Array,
    means: Array,
    variances: Array,
    strength: Array,
    precision: Array,
    shift: Array,
    noise: float,
    free: Array,
    normals: Array,
    means_out: Array,
    centers_out: Array,
    variances_out: Array,
    stats: Array,
) -> None:
    """Update rows whose partners have independent noise in each column.

    With s_b = strength o w_b o w_b + variances_b, Prec = sum (w_b w_b' + diag s_b) / noise + P and
    w = Prec^-1 (sum (y_b - pinned) w_b / noise + P m) + R^-1 normal, Prec = R'R.
    Fixed dropout has noise = 1, P = ridge I and no variances; a Gibbs draw has standard `normals`
    and writes w without them to `centers_out`; the diagonal learned form reads and writes
    variances. `normals`, `centers_out`, `variances` and `variances_out` may have no rows.
    """
    width, n = means.shape[1], len(free)
    pinned = _pinned(free, width)
    total, linear = np.empty((width, width)), np.empty(width)
    spread = np.empty(width)
    buffer = np.empty((BLOCK, width), means.dtype)
    A, right, center = np.empty((n, n)), np.empty(n), np.empty(n)
    still, w, var = np.zeros(n), np.ones(width), np.zeros(width)
    for r in rows:
        here = slice(indptr[r], indptr[r + 1])
        error = sum_gram(indices[here], values[here], means, total, linear, buffer)
        for i in range(width):
            spread[i] = strength[i] * total[i, i]
        if len(variances):
            for b in indices[here]:
                for i in range(width):
                    spread[i] += variances[b, i]
        for p in range(n):
            i = free[p]
            for q in range(p, n):
                A[p, q] = precision[p, q] + total[i, free[q]] / noise
            A[p, p] += spread[i] / noise
            y = linear[i]
            if pinned >= 0:
                y -= total[i, pinned]
            right[p] = shift[p] + y / noise
        if len(variances_out):
            logdet = 0.0
            for p in range(n):
                var[free[p]] = 1 / A[p, p]
                logdet -= np.log(A[p, p])
            solve(A, right, still, center)
        else:
            logdet = solve(A, right, normals[r] if len(normals) else still, center)
        if len(centers_out):
            for p in range(n):
                w[free[p]] = center[p]
            for i in range(width):
                centers_out[r, i] = w[i]
        for p in range(n):
            w[free[p]] = right[p]
        for i in range(width):
            error += w[i] * (spread[i] * w[i] - 2 * linear[i])
            error += var[i] * (total[i, i] + spread[i])
            for j in range(width):
                error += w[i] * w[j] * total[i, j]
            means_out[r, i] = w[i]
            if len(variances_out):
                variances_out[r, i] = var[i]
        stats[r, 0] = error
        stats[r, 1] = logdet


@njit(**_OPTIONS)
def dots(rows: Array, cols: Array, U: Array, V: Array, out: Array) -> None:
    """out_e = u_(rows e) . v_(cols e)."""
    for e in range(len(rows)):
        u, v = U[rows[e]], V[cols[e]]
        x = 0.0
        for i in range(U.shape[1]):
            x += float(u[i]) * float(v[i])
        out[e] = x


@njit(**_OPTIONS)
def spreads(
    rows: Array,
    cols: Array,
    U: Array,
    V: Array,
    SU: Array,
    SV: Array,
    out: Array,
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


@njit(**_OPTIONS)
def _pinned(free: Array, width: int) -> int:
    """Return the column that is not free, or -1."""
    if len(free) == width:
        return -1
    for p in range(len(free)):
        if free[p] != p:
            return p
    return width - 1


@njit(**_OPTIONS)
def _at(i: int, j: int) -> int:
    """Return where a packed table keeps entry (i, j)."""
    return i * (i + 1) // 2 + j if j <= i else j * (j + 1) // 2 + i
