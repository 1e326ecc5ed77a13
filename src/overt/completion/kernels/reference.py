"""The kernels in plain NumPy, to read and to test against."""

from __future__ import annotations

import numpy as np

from overt._types import Array, Floats
from overt.completion.kernels.rows import (
    Blocks,
    Csr,
    FixedSide,
    LearnedRows,
    RowPrior,
    SampledRows,
    pack,
    unpack,
)


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
    """Prec = precision sum c_b T_b + P, its right side with sum c_b (y_b w_b - T_b[:, pinned])."""
    T = unpack(fixed.covariances.astype(float))
    for c in range(len(moments)):
        here = slice(blocks.starts[c], blocks.starts[c + 1])
        slots = blocks.slots[here]
        partners = blocks.partners[here]
        values = blocks.values[here]
        for s, r in enumerate(rows[cuts[c] : cuts[c + 1]]):
            b = partners[slots == s]
            y = values[slots == s].astype(float)
            total = (fixed.weights[b, None, None] * T[b]).sum(axis=0)
            linear = (fixed.weights[b] * y) @ fixed.means[b]
            w, P = _solve(total, linear, prior, shifts[r], precisions[r])
            S = np.zeros_like(total)
            S[np.ix_(prior.free, prior.free)] = np.linalg.inv(P)
            second = np.outer(w, w) + S
            out.means[r] = w
            out.covariances[r] = pack(second)
            square = fixed.weights[b] @ y**2
            out.stats[r] = (
                _error(square, w, second, total, linear),
                -np.linalg.slogdet(P)[1],
            )
        moments[c] = out.covariances[rows[cuts[c] : cuts[c + 1]]].sum(axis=0)


def learn_variances(
    rows: Array,
    csr: Csr,
    fixed: FixedSide,
    prior: RowPrior,
    shifts: Array,
    precisions: Array,
    out: LearnedRows,
) -> None:
    """Prec = precision sum_b c_b (w_b w_b' + diag s_b) + P, s = 1 / diag Prec."""
    for r in rows:
        W, linear, square, b = _sums(csr, r, fixed)
        total = W.T @ W + np.diag(fixed.weights[b] @ fixed.covariances[b])
        w, P = _solve(total, linear, prior, shifts[r], precisions[r])
        s = np.zeros_like(w)
        s[prior.free] = 1 / np.diag(P)
        out.means[r] = w
        out.covariances[r] = s
        second = np.outer(w, w) + np.diag(s)
        out.stats[r] = (
            _error(square, w, second, total, linear),
            np.log(s[prior.free]).sum(),
        )


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
    """Prec = precision sum_b c_b (w_b w_b' + diag(strength o w_b o w_b)) + P = R'R, R^-1 normal."""
    for r in rows:
        W, linear, square, _ = _sums(csr, r, fixed)
        total = W.T @ W + np.diag(fixed.covariances * (W**2).sum(axis=0))
        w, P = _solve(total, linear, prior, shifts[r], precisions[r])
        out.centers[r] = w
        w[prior.free] += np.linalg.solve(np.linalg.cholesky(P).T, normals[r])
        out.means[r] = w
        out.stats[r] = (
            _error(square, w, np.outer(w, w), total, linear),
            -np.linalg.slogdet(P)[1],
        )


def dots(rows: Array, cols: Array, U: Array, V: Array, out: Array) -> None:
    """u_a . v_b."""
    out[:] = np.sum(U[rows].astype(float) * V[cols], axis=1)


def dot_variances(
    rows: Array, cols: Array, U: Array, V: Array, SU: Array, SV: Array, out: Array
) -> None:
    """Var(u.v) = u'S_v u + v'S_u v + tr(S_u S_v)."""
    u = U[rows].astype(float)
    v = V[cols].astype(float)
    su = unpack(SU[rows].astype(float))
    sv = unpack(SV[cols].astype(float))
    pairs = (u, sv, u), (v, su, v)
    out[:] = sum(np.einsum("ei,eij,ej->e", *each) for each in pairs) + np.sum(
        su * sv, axis=(1, 2)
    )


def _sums(csr: Csr, r: int, fixed: FixedSide) -> tuple[Floats, Floats, float, Array]:
    """Return partners times sqrt(c_b), sum c_b y_b w_b, sum c_b y_b^2 and who they are."""
    here = slice(csr.indptr[r], csr.indptr[r + 1])
    b = csr.indices[here]
    y = csr.values[here].astype(float)
    root = np.sqrt(fixed.weights[b])
    W = root[:, None] * fixed.means[b]
    y = root * y
    return W, W.T @ y, float(y @ y), b


def _solve(
    total: Floats, linear: Floats, prior: RowPrior, shift: Floats, precision: float
) -> tuple[Floats, Floats]:
    """Prec = precision total + P, w = Prec^-1 (precision (linear - total[:, pinned]) + shift)."""
    free = prior.free
    width = len(linear)
    pinned = [i for i in range(width) if i not in free]
    P = prior.precision + precision * total[np.ix_(free, free)]
    right = precision * (linear - total[:, pinned].sum(axis=1))[free] + shift
    w = np.ones(width)
    w[free] = np.linalg.solve(P, right)
    return w, P


def _error(
    square: float, w: Floats, second: Floats, total: Floats, linear: Floats
) -> float:
    """Sum of c_b E (y_b - w . w_b)^2."""
    return float(square - 2 * w @ linear + np.sum(second * total))
