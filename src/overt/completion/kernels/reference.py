"""The kernels in plain NumPy: what they compute, in a form to read and to test against."""

from __future__ import annotations

import numpy as np

from overt._types import Array, Floats
from overt.completion.kernels import Csr, Drawn, Held, Learned, RowPrior, Solved
from overt.completion.kernels.full import pack, unpack


def learn_rows(
    rows: Array, csr: Csr, held: Held, prior: RowPrior, out: Learned, cuts: Array, moments: Array
) -> None:
    """Prec = sum T_b / noise + P, w = Prec^-1 (sum (y_b w_b - T_b[:, pinned]) / noise + P m)."""
    T = unpack(held.spread.astype(float))
    for r in rows:
        b, y = _entries(csr, r)
        total, linear = T[b].sum(axis=0), y @ held.means[b]
        w, P = _solve(total, linear, prior)
        S = np.zeros_like(total)
        S[np.ix_(prior.free, prior.free)] = np.linalg.inv(P)
        second = np.outer(w, w) + S
        out.means[r], out.spread[r] = w, pack(second)
        out.stats[r] = _error(y, w, second, total, linear), -np.linalg.slogdet(P)[1]
    for c in range(len(moments)):
        moments[c] = out.spread[rows[cuts[c] : cuts[c + 1]]].sum(axis=0)


def learn_variances(rows: Array, csr: Csr, held: Held, prior: RowPrior, out: Learned) -> None:
    """Prec = sum_b (w_b w_b' + diag s_b) / noise + P, s = 1 / diag Prec."""
    for r in rows:
        b, y = _entries(csr, r)
        W = held.means[b].astype(float)
        total, linear = W.T @ W + np.diag(held.spread[b].sum(axis=0)), W.T @ y
        w, P = _solve(total, linear, prior)
        s = np.zeros_like(w)
        s[prior.free] = 1 / np.diag(P)
        out.means[r], out.spread[r] = w, s
        second = np.outer(w, w) + np.diag(s)
        out.stats[r] = _error(y, w, second, total, linear), np.log(s[prior.free]).sum()


def solve_rows(rows: Array, csr: Csr, held: Held, prior: RowPrior, out: Solved) -> None:
    """Prec = sum_b (w_b w_b' + diag(strength o w_b o w_b)) / noise + P."""
    for r in rows:
        b, y = _entries(csr, r)
        W = held.means[b].astype(float)
        total, linear = W.T @ W + np.diag(held.spread * (W**2).sum(axis=0)), W.T @ y
        w, P = _solve(total, linear, prior)
        out.means[r] = w
        out.stats[r] = _error(y, w, np.outer(w, w), total, linear), -np.linalg.slogdet(P)[1]


def draw_rows(
    rows: Array, csr: Csr, held: Held, prior: RowPrior, normals: Array, out: Drawn
) -> None:
    """Prec = sum_b w_b w_b' / noise + P = R'R, w + R^-1 normal."""
    for r in rows:
        b, y = _entries(csr, r)
        W = held.means[b].astype(float)
        total, linear = W.T @ W, W.T @ y
        w, P = _solve(total, linear, prior)
        out.centers[r] = w
        w[prior.free] += np.linalg.solve(np.linalg.cholesky(P).T, normals[r])
        out.means[r] = w
        out.stats[r] = _error(y, w, np.outer(w, w), total, linear), -np.linalg.slogdet(P)[1]


def dots(rows: Array, cols: Array, U: Array, V: Array, out: Array) -> None:
    """u_a . v_b."""
    out[:] = np.sum(U[rows].astype(float) * V[cols], axis=1)


def dot_variances(
    rows: Array, cols: Array, U: Array, V: Array, SU: Array, SV: Array, out: Array
) -> None:
    """Var(u.v) = u'S_v u + v'S_u v + tr(S_u S_v)."""
    u, v = U[rows].astype(float), V[cols].astype(float)
    su, sv = unpack(SU[rows].astype(float)), unpack(SV[cols].astype(float))
    pairs = (u, sv, u), (v, su, v)
    out[:] = sum(np.einsum("ei,eij,ej->e", *each) for each in pairs) + np.sum(su * sv, axis=(1, 2))


def _entries(csr: Csr, r: int) -> tuple[Array, Floats]:
    here = slice(csr.indptr[r], csr.indptr[r + 1])
    return csr.indices[here], csr.values[here].astype(float)


def _solve(total: Floats, linear: Floats, prior: RowPrior) -> tuple[Floats, Floats]:
    """Prec = total / noise + P, w = Prec^-1 ((linear - total[:, pinned]) / noise + P m)."""
    free, width = prior.free, len(linear)
    pinned = [i for i in range(width) if i not in free]
    P = prior.precision + total[np.ix_(free, free)] / prior.noise
    right = (linear - total[:, pinned].sum(axis=1))[free] / prior.noise + prior.shift
    w = np.ones(width)
    w[free] = np.linalg.solve(P, right)
    return w, P


def _error(y: Floats, w: Floats, second: Floats, total: Floats, linear: Floats) -> float:
    """Sum of E (y_b - w . w_b)^2."""
    return float(y @ y - 2 * w @ linear + np.sum(second * total))
