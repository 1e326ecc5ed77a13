"""The row kernel in plain NumPy, to read and to test against."""

from __future__ import annotations

import numpy as np

from overt._check import Array
from overt.completion.kernels.rows import (
    Blocks,
    FixedSide,
    RowPrior,
    Rows,
    pack,
    unpack,
)


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
    """Solve for rows, or sample them where no covariances are stored."""
    uncertain = fixed.tables.shape[1] > 0
    if uncertain:
        T = unpack(fixed.tables.astype(float))
    else:
        dropout = fixed.strength * np.eye(len(fixed.strength))
        T = np.einsum("bi,bj,ij->bij", fixed.means, fixed.means, 1 + dropout)
    free = prior.free
    pinned = np.setdiff1d(np.arange(len(fixed.strength)), free)
    for c in range(len(cuts) - 1):
        here = slice(blocks.starts[c], blocks.starts[c + 1])
        for s, r in enumerate(rows[cuts[c] : cuts[c + 1]]):
            mine = blocks.slots[here] == s
            b = blocks.partners[here][mine]
            y = blocks.values[here][mine].astype(float)
            weights = fixed.weights[b]
            observed = np.einsum("b,bij->ij", weights, T[b])
            M = unpack(prior.background) + prior.table_weight * observed
            linear = prior.value_weight * (weights * y) @ fixed.means[b]
            P = prior.precision + precisions[r] * M[np.ix_(free, free)]
            right = precisions[r] * (linear - M[:, pinned].sum(axis=1))[free]
            w = np.ones(len(linear))
            w[free] = np.linalg.solve(P, right + shifts[r])
            S = np.zeros_like(M)
            if uncertain:
                S[np.ix_(free, free)] = np.linalg.inv(P)
                out.tables[r] = pack(np.outer(w, w) + S)
            else:
                out.centers[r] = w
                w[free] += np.linalg.solve(np.linalg.cholesky(P).T, normals[r])
            out.means[r] = w
            square = prior.value_weight * weights @ y**2
            error = square - 2 * w @ linear + np.sum((np.outer(w, w) + S) * M)
            out.stats[r] = (error, -np.linalg.slogdet(P)[1])
        if uncertain:
            moments[c] = out.tables[rows[cuts[c] : cuts[c + 1]]].sum(axis=0)
