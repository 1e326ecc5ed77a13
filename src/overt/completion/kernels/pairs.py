"""Rows of a matrix in which every pair counts: those not observed are zeros.

The sum over all partners is one matrix for all rows; a row adds a correction for what it observes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._compiled import njit
from overt._types import Array
from overt.completion.kernels import OPTIONS, Blocks, Held, Learned
from overt.completion.kernels.full import invert, room, sum_block


class Everyone(NamedTuple):
    """What all rows share: sum_b c_b T_b over all partners, C, P, P m and the noise."""

    total: Array  # packed
    weight: float
    precision: Array
    shift: Array
    noise: float


@njit(**OPTIONS)
def learn_pairs(
    rows: Array, blocks: Blocks, held: Held, shared: Everyone, own: Array, out: Learned,
    cuts: Array, moments: Array,
) -> None:  # fmt: skip
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
            total, linear = sums.total[s], sums.linear[s]
            scale, t = own[r] / shared.noise, 0
            for i in range(n):
                linear[i] *= shared.weight
                A[i, n] = shared.shift[i] + scale * linear[i]
                for j in range(i + 1):
                    total[t] = shared.total[t] + (shared.weight - 1) * total[t]
                    A[i, j] = shared.precision[i, j] + scale * total[t]
                    A[j, i] = A[i, j]
                    t += 1
            logdet = invert(A)
            error, t = shared.weight * sums.square[s], 0
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
