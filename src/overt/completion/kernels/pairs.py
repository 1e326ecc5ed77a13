"""Rows of a matrix in which every pair counts: those not observed are zeros.

The sum over all partners is one matrix for all rows; a row adds a correction for what it observes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from overt._types import Array
from overt.completion.kernels import OPTIONS, Csr, Held, Learned
from overt.completion.kernels.full import invert


class Everyone(NamedTuple):
    """What all rows share: sum_b c_b T_b over all partners, C, c, P, P m and the noise."""

    total: Array  # packed
    weight: float
    partners: Array
    precision: Array
    shift: Array
    noise: float


@njit(**OPTIONS)
def learn_pairs(
    rows: Array, csr: Csr, held: Held, shared: Everyone, own: Array, out: Learned, cuts: Array,
    moments: Array,
) -> None:  # fmt: skip
    """Update rows whose unobserved entries are zeros (theory: rankings).

    With T_b = v_b v_b' + S_b (packed in `held.spread`), partner b's weight c_b and the row's r,
    A = sum_all c_b T_b + (C - 1) sum_observed c_b T_b,
    S = (r A / noise + P)^-1, w = S (r C sum_observed c_b y_b v_b / noise + P m).
    Writes w and w w' + S; stats are r times the expected squared error, and log det S; moments[c]
    gets the sum of w w' + S over the rows of chunk c.
    """
    n, size = held.means.shape[1], held.spread.shape[1]
    observed, total = np.empty(size, held.spread.dtype), np.empty(size)
    linear, A = np.empty(n), np.empty((n, n + 1))
    for chunk in range(len(moments)):
        moment = moments[chunk]
        moment[:] = 0
        for r in rows[cuts[chunk] : cuts[chunk + 1]]:
            square = _sum_weighted(csr, r, held, shared.partners, observed, linear)
            scale, t = own[r, 0] / shared.noise, 0
            for i in range(n):
                linear[i] *= shared.weight
                A[i, n] = shared.shift[i] + scale * linear[i]
                for j in range(i + 1):
                    total[t] = shared.total[t] + (shared.weight - 1) * observed[t]
                    A[i, j] = shared.precision[i, j] + scale * total[t]
                    A[j, i] = A[i, j]
                    t += 1
            logdet = invert(A)
            error, t = shared.weight * square, 0
            for i in range(n):
                error -= 2 * A[i, n] * linear[i]
                out.means[r, i] = A[i, n]
                for j in range(i + 1):
                    x = A[i, n] * A[j, n] - A[i, j]
                    error += (2 - (i == j)) * x * total[t]
                    out.spread[r, t] = x
                    moment[t] += x
                    t += 1
            out.stats[r, 0] = own[r, 0] * error
            out.stats[r, 1] = logdet


@njit(**OPTIONS)
def _sum_weighted(
    csr: Csr, r: int, held: Held, partners: Array, observed: Array, linear: Array
) -> float:
    """observed = sum_b c_b T_b, linear = sum_b c_b y_b v_b; returns sum_b c_b y_b^2."""
    observed[:] = 0
    linear[:] = 0
    square = 0.0
    for e in range(csr.indptr[r], csr.indptr[r + 1]):
        b = csr.indices[e]
        table, v, c = held.spread[b], held.means[b], partners[b]
        y = c * float(csr.values[e])
        for t in range(len(observed)):
            observed[t] += c * table[t]
        for j in range(len(linear)):
            linear[j] += y * v[j]
        square += y * float(csr.values[e])
    return square
