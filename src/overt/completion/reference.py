"""The kernels in plain NumPy: what they compute, in a form to read and to test against."""

from __future__ import annotations

import numpy as np

from overt._types import Array


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
    """prec = sum T_b / noise + P, w = Prec^-1 (sum (y_b w_b - T_b[:, pinned]) / noise + P m)."""
    T, width = unpack(packed.astype(float)), means.shape[1]
    pinned = [i for i in range(width) if i not in free]
    moment[:] = 0
    for r in rows:
        b, y = indices[indptr[r] : indptr[r + 1]], values[indptr[r] : indptr[r + 1]].astype(float)
        total, linear = T[b].sum(axis=0), y @ means[b]
        P = precision + total[np.ix_(free, free)] / noise
        w, S = np.ones(width), np.zeros((width, width))
        right = (linear - total[:, pinned].sum(axis=1))[free] / noise + shift
        w[free], S[np.ix_(free, free)] = np.linalg.solve(P, right), np.linalg.inv(P)
        second = np.outer(w, w) + S
        packed_out[r], means_out[r] = pack(second), w
        stats[r] = y @ y - 2 * w @ linear + np.sum(second * total), -np.linalg.slogdet(P)[1]
        moment += pack(second)


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
    """prec = sum_b (w_b w_b' + diag s_b) / noise + P, s_b = strength o w_b o w_b + variances_b."""
    width = means.shape[1]
    pinned = [i for i in range(width) if i not in free]
    for r in rows:
        b, y = indices[indptr[r] : indptr[r + 1]], values[indptr[r] : indptr[r + 1]].astype(float)
        W = means[b].astype(float)
        s = strength * W**2 + (variances[b] if len(variances) else 0)
        total, linear = W.T @ W + np.diag(s.sum(axis=0)), W.T @ y
        P = precision + total[np.ix_(free, free)] / noise
        right = W[:, free].T @ (y - W[:, pinned].sum(axis=1)) / noise + shift
        w, var = np.ones(width), np.zeros(width)
        w[free] = np.linalg.solve(P, right)
        if len(centers_out):
            centers_out[r] = w
        if len(variances_out):
            var[free] = 1 / np.diag(P)
            logdet = np.log(var[free]).sum()
            variances_out[r] = var
        else:
            logdet = -np.linalg.slogdet(P)[1]
            if len(normals):
                w[free] += np.linalg.solve(np.linalg.cholesky(P).T, normals[r])
        means_out[r] = w
        second = np.outer(w, w) + np.diag(var)
        stats[r] = y @ y - 2 * w @ linear + np.sum(second * total), logdet


def dots(rows: Array, cols: Array, U: Array, V: Array, out: Array) -> None:
    """u_a . v_b."""
    out[:] = np.sum(U[rows].astype(float) * V[cols], axis=1)


def spreads(
    rows: Array,
    cols: Array,
    U: Array,
    V: Array,
    SU: Array,
    SV: Array,
    out: Array,
) -> None:
    """Var(u.v) = u'S_v u + v'S_u v + tr(S_u S_v)."""
    u, v = U[rows].astype(float), V[cols].astype(float)
    su, sv = unpack(SU[rows].astype(float)), unpack(SV[cols].astype(float))
    out[:] = (
        np.einsum("ei,eij,ej->e", u, sv, u)
        + np.einsum("ei,eij,ej->e", v, su, v)
        + np.sum(su * sv, axis=(1, 2))
    )
