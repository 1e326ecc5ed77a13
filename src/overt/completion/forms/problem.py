"""A completion problem ready for the kernels: columns of the factors, both groupings, storage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion.kernels import NOT_PINNED, Csr, dots, group
from overt.entries import Entries

DOUBLE_BELOW = 5_000_000
"""Ratings times columns of the factors below which float64 is stored; float32 above."""

CHUNKS = 64
"""Parts that a side's rows are cut into: more share the load better and cost more to start."""

SHRINK = 5
"""Ratings at 0 that each column's bias is averaged with at the start."""


@dataclass(frozen=True)
class Columns:
    """Columns of both sides' rows: the factors and, with biases, the row's bias and the column's.

    Each side multiplies the other's bias by 1: that column is pinned, the others are unknowns.
    """

    n_factors: int
    biases: bool

    @property
    def width(self) -> int:
        """Number of columns, biases included."""
        return self.n_factors + 2 * self.biases

    def pinned(self, side: int) -> int:
        """Return the column that is 1 in the rows (side 0) or the columns (side 1)."""
        return self.n_factors + 1 - side if self.biases else NOT_PINNED

    def free(self, side: int) -> Ints:
        """Return the columns that are unknowns of the rows (side 0) or of the columns (side 1)."""
        columns = np.arange(self.width)
        return columns[columns != self.pinned(side)]

    def filled(self, side: int, mean: Array, covariance: Any = 0.0) -> tuple[Floats, Floats]:
        """Return mean and covariance of a row's unknowns among all columns."""
        free, w, S = self.free(side), np.ones(self.width), np.zeros((self.width, self.width))
        w[free], S[np.ix_(free, free)] = mean, covariance
        return w, S

    def units(self, scale: float) -> tuple[Floats, Floats]:
        """Return what multiplies the columns of both sides so that their product grows by scale."""
        k = self.n_factors
        U, V = (np.full(self.width, np.sqrt(scale)) for _ in (0, 1))
        if self.biases:
            U[k:], V[k:] = (scale, 1), (1, scale)
        return U, V


@dataclass(frozen=True, eq=False)
class Grouped:
    """Entries grouped by one side, and its non-empty rows, heavy first, in chunks.

    Chunk c are rows[cuts[c]:cuts[c + 1]]; they do not depend on who handles them.
    """

    csr: Csr
    rows: Ints
    cuts: Ints

    @classmethod
    def build(cls, keys: Array, others: Array, values: Array, count: int, width: int) -> Grouped:
        """Group entries by `keys`; `width` says how costly a row's own solve is."""
        csr = Csr(*group(keys, others, values, count))
        counts = np.diff(csr.indptr)
        order = np.argsort(-counts, kind="stable")
        order = order[: int(np.count_nonzero(counts))]
        cost = np.cumsum(counts[order] + width)
        cuts = np.searchsorted(cost, np.linspace(0, cost[-1], CHUNKS + 1)[1:-1])
        return cls(csr, order, np.unique([0, *cuts, len(order)]))

    def only(self, rows: Ints) -> Grouped:
        """Return the same entries with only these rows, in one chunk."""
        return Grouped(self.csr, rows, np.array([0, len(rows)]))

    @cached_property
    def counts(self) -> Ints:
        """Number of entries of each row."""
        return np.diff(self.csr.indptr)

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.cuts) - 1


@dataclass(frozen=True, eq=False)
class CompletionProblem:
    """min over rows u_a and v_b of how well u_a . v_b explains (value - center) / scale."""

    by_row: Grouped
    by_col: Grouped
    shape: tuple[int, int]
    columns: Columns
    center: float
    scale: float

    @classmethod
    def build(
        cls, entries: Entries, n_factors: int, *, biases: bool, standard: bool,
        precise: bool = False,
    ) -> CompletionProblem:  # fmt: skip
        """Group the entries; `standard` divides the values by their spread.

        Small problems are stored in double precision, and large ones where `precise` asks for it.
        """
        y, columns = entries.values, Columns(n_factors, biases)
        center = float(y.mean()) if biases else 0.0
        scale = (float(y.std()) or 1.0) if standard else 1.0
        double = precise or len(y) * columns.width <= DOUBLE_BELOW
        values = ((y - center) / scale).astype(np.float64 if double else np.float32)
        m, n = entries.shape
        return cls(
            Grouped.build(entries.rows, entries.cols, values, m, columns.width),
            Grouped.build(entries.cols, entries.rows, values, n, columns.width), (m, n), columns,
            center, scale,
        )  # fmt: skip

    @property
    def n_ratings(self) -> int:
        """Number of observed entries."""
        return len(self.by_row.csr.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage format of the values and factors."""
        return self.by_row.csr.values.dtype

    def grouped(self, side: int) -> Grouped:
        """Return the entries grouped by row (side 0) or by column (side 1)."""
        return (self.by_row, self.by_col)[side]

    def start(self, rng: np.random.Generator, spread: float) -> list[Array]:
        """Return the two sides at the start: column biases shrunken, column factors random."""
        U, V = (np.zeros((count, self.columns.width), self.dtype) for count in self.shape)
        k = self.columns.n_factors
        V[:, :k] = rng.normal(0, spread, (self.shape[1], k))
        if self.columns.biases:
            U[:, k + 1], V[:, k] = 1, 1
            csr, counts = self.by_col.csr, self.by_col.counts
            sums = np.add.reduceat(np.append(csr.values.astype(float), 0.0), csr.indptr[:-1])
            V[:, k + 1] = np.where(counts > 0, sums, 0.0) / (counts + SHRINK)
        else:
            V[:, 0] += np.sqrt(spread)
        return [U, V]

    def residual_variance(self, means: list[Array]) -> float:
        """Return the mean squared residual of u_a . v_b over the entries."""
        csr, fitted = self.by_row.csr, np.empty(self.n_ratings)
        dots(np.repeat(np.arange(self.shape[0]), self.by_row.counts), csr.indices, *means, fitted)
        return float(np.mean((csr.values - fitted) ** 2))
