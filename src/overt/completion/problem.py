"""A completion problem ready for the kernels: both groupings, storage format, columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._types import Array, Ints
from overt.completion.ratings import DOUBLE_BELOW, Grouped, regroup
from overt.entries import Entries


@dataclass(frozen=True)
class Problem:
    """min over rows u_a and v_b of how well u_a . v_b explains (value - center) / scale.

    With biases there are two columns beyond the factors: the row's bias, which the other side
    multiplies by 1, and the column's bias, likewise.
    """

    by_row: Grouped
    by_col: Grouped
    shape: tuple[int, int]
    n_factors: int
    biases: bool
    center: float
    scale: float

    @classmethod
    def build(
        cls,
        entries: Entries,
        n_factors: int,
        *,
        biases: bool,
        standard: bool,
        precise: bool = False,
    ) -> Problem:
        """Group the entries; `standard` divides the values by their spread.

        Small problems are stored in double precision, and large ones where `precise` asks for it.
        """
        y = entries.values
        center = float(y.mean()) if biases else 0.0
        scale = (float(y.std()) or 1.0) if standard else 1.0
        width = n_factors + 2 * biases
        double = precise or len(y) * width <= DOUBLE_BELOW
        values = ((y - center) / scale).astype(np.float64 if double else np.float32)
        m, n = entries.shape
        return cls(
            regroup(entries.rows, entries.cols, values, m, width),
            regroup(entries.cols, entries.rows, values, n, width),
            (m, n),
            n_factors,
            biases,
            center,
            scale,
        )

    @property
    def n_ratings(self) -> int:
        """Number of observed entries."""
        return len(self.by_row.values)

    @property
    def width(self) -> int:
        """Number of columns, biases included."""
        return self.n_factors + 2 * self.biases

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage format of the values and factors."""
        return self.by_row.values.dtype

    def free(self, side: int) -> Ints:
        """Return the columns that are unknowns of the rows (side 0) or of the columns (side 1)."""
        columns = np.arange(self.width)
        return np.delete(columns, self.n_factors + 1 - side) if self.biases else columns

    def grouped(self, side: int) -> Grouped:
        """Return the entries grouped by row (side 0) or by column (side 1)."""
        return (self.by_row, self.by_col)[side]

    def start(self, rng: np.random.Generator, spread: float) -> tuple[Array, Array]:
        """Return the two sides at the start: column biases shrunken, column factors random."""
        U, V = (np.zeros((count, self.width), self.dtype) for count in self.shape)
        k = self.n_factors
        V[:, :k] = rng.normal(0, spread, (self.shape[1], k))
        if self.biases:
            U[:, k + 1], V[:, k] = 1, 1
            group = self.by_col
            sums = np.add.reduceat(np.append(group.values.astype(float), 0.0), group.indptr[:-1])
            V[:, k + 1] = np.where(group.counts > 0, sums, 0.0) / (group.counts + 5)
        else:
            V[:, 0] += np.sqrt(spread)
        return U, V
