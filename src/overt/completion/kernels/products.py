"""The matrix of observed entries times a dense one, row by row, and what factors leave of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._compiled import njit
from overt._types import Array
from overt.completion.kernels import OPTIONS, Csr


class Right(NamedTuple):
    """The dense matrix."""

    rows: Array


class Product(NamedTuple):
    """The product, a row for each row of the side."""

    rows: Array


@njit(**OPTIONS)
def multiply(rows: Array, csr: Csr, right: Right, out: Product) -> None:
    """out_a = sum of M_b over the b that row a has entries at, however often."""
    M = right.rows
    total = np.empty(right.rows.shape[1])
    met = np.full(len(M), -1)
    for r in rows:
        total[:] = 0
        for e in range(csr.indptr[r], csr.indptr[r + 1]):
            b = csr.indices[e]
            if met[b] == r:
                continue
            met[b] = r
            for i in range(len(total)):
                total[i] += M[b, i]
        for i in range(len(total)):  # in one go it takes longer to compile than all the rest
            out.rows[r, i] = total[i]
