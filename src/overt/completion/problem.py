"""A completion problem as the kernels read it: factor columns, entries by row and by column.

Values are centered and, where noise is learned, divided by their standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from overt._check import Array, Floats, InputError, Ints
from overt.completion.kernels.rows import NOT_PINNED, Blocks, dots
from overt.completion.memory import moments, slices, sort_by_chunk, standardized
from overt.entries import Entries

DOUBLE_BELOW = 5_000_000
"""Ratings times columns of the factors below which float64 is stored; float32 above."""

CHUNKS = 32
"""Parts of a side's rows. More parts share the load better; each reads all partners."""

CACHE_BYTES = 4 << 20
"""Size of the sums of a chunk's rows: they should fit into a processor's cache."""

MAX_CHUNK_ROWS = 1 << 16
"""Rows of a chunk are numbered in 16 bits."""

MIN_RANGE = 1e-75
"""Range of values whose powers can still be distinguished from 0."""

BIAS_SHRINKAGE = 5
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

    @property
    def packed_size(self) -> int:
        """Number of entries of a packed table."""
        return self.width * (self.width + 1) // 2

    def pinned(self, side: int) -> int:
        """Return the column that is 1 in the rows (side 0) or the columns (side 1)."""
        return self.n_factors + 1 - side if self.biases else NOT_PINNED

    def free(self, side: int) -> Ints:
        """Return the columns that are unknowns of the rows (side 0) or of the columns (side 1)."""
        columns = np.arange(self.width)
        return columns[columns != self.pinned(side)]

    def fill(
        self, side: int, mean: Array, covariance: Any = 0.0
    ) -> tuple[Floats, Floats]:
        """Return mean and covariance of a row's unknowns among all columns."""
        free = self.free(side)
        w = np.ones(self.width)
        S = np.zeros((self.width, self.width))
        w[free] = mean
        S[np.ix_(free, free)] = covariance
        return w, S

    def units(self, scale: float) -> tuple[Floats, Floats]:
        """Return what multiplies the columns of both sides so that their product grows by scale."""
        k = self.n_factors
        U = np.full(self.width, np.sqrt(scale))
        V = U.copy()
        if self.biases:
            U[k:] = (scale, 1)
            V[k:] = (1, scale)
        return U, V


@dataclass(frozen=True, eq=False)
class Layout:
    """A side's entries as the kernel reads them, and its non-empty rows, heavy first, in chunks.

    Chunk c has rows[cuts[c]:cuts[c + 1]]; chunks do not depend on the engine.
    """

    entries: Blocks
    rows: Ints
    cuts: Ints

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.cuts) - 1

    def part(self, first: int, last: int) -> tuple[Ints, Ints, Blocks]:
        """Return rows, cuts and entries of the chunks from `first` up to `last`."""
        cuts = self.cuts[first : last + 1]
        entries = self.entries._replace(starts=self.entries.starts[first : last + 1])
        return self.rows[cuts[0] : cuts[-1]], cuts - cuts[0], entries

    def rows_of(self, chunks: Sequence[int]) -> Ints:
        """Return the rows of some chunks."""
        return np.concatenate(
            [self.rows[self.cuts[c] : self.cuts[c + 1]] for c in chunks]
        )

    def take(self, chunks: Sequence[int]) -> tuple[Ints, Blocks]:
        """Return the cuts of some chunks, and their entries alone."""
        starts = self.entries.starts
        at = np.concatenate([np.arange(starts[c], starts[c + 1]) for c in chunks])
        taken = (array[at] for array in self.entries[1:])
        sizes = np.diff(starts)[list(chunks)]
        return _ends(np.diff(self.cuts)[list(chunks)]), Blocks(_ends(sizes), *taken)


def _ends(sizes: Ints) -> Ints:
    """Return where parts of these sizes start, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)])


@dataclass(frozen=True, eq=False)
class Grouped:
    """Entries (keys[e], others[e]) of one side's rows `keys`, as the kernel reads them."""

    keys: Array
    others: Array
    values: Array
    counts: Ints
    n_others: int
    width: int
    memory_limit: int | None = None  # bytes; None: the layout is stored in memory

    @cached_property
    def rows(self) -> Ints:
        """Rows with entries, those with most entries first."""
        order = np.argsort(-self.counts, kind="stable")
        return order[: int(np.count_nonzero(self.counts))]

    @cached_property
    def sums(self) -> Floats:
        """Sum of each row's values."""
        return np.bincount(self.keys, self.values, len(self.counts)).astype(float)

    @cached_property
    def square_sums(self) -> Floats:
        """Sum of each row's squared values."""
        squares = self.values.astype(float) ** 2
        return np.bincount(self.keys, squares, len(self.counts)).astype(float)

    def misfit(self, means: Sequence[Array]) -> float:
        """Sum over entries of (y - u_a . v_b)^2."""
        total = 0.0
        for some in slices(len(self.values), self.keys, self.others, self.values):
            fitted = np.empty(some.stop - some.start)
            dots(self.keys[some], self.others[some], *means, fitted)
            total += float(np.sum((self.values[some] - fitted) ** 2))
        return total

    @cached_property
    def layout(self) -> Layout:
        """Each chunk's entries sorted by partner; a chunk's sums fit into a cache."""
        packed = self.width * (self.width + 1) // 2 * self.values.dtype.itemsize
        cuts = self._cuts(min(max(1, CACHE_BYTES // packed), MAX_CHUNK_ROWS))
        sizes = np.diff(cuts)
        # Numbers of 16 bits are sorted in linear time.
        chunk = np.zeros(len(self.counts), np.min_scalar_type(len(sizes)))
        slot = np.zeros(len(self.counts), np.uint16)
        chunk[self.rows] = np.repeat(np.arange(len(sizes)), sizes)
        first = np.repeat(cuts[:-1], sizes)
        slot[self.rows] = np.arange(len(self.rows)) - first
        given = (self.keys, self.others, self.values, chunk, slot)
        blocks = Blocks(*sort_by_chunk(*given, self.memory_limit))
        return Layout(blocks, self.rows, cuts)

    def _cuts(self, most: int) -> Ints:
        """Cut rows into parts of about the same cost, with at most `most` rows."""
        cost = np.cumsum(self.counts[self.rows] + self.width)
        parts = np.linspace(0, cost[-1], CHUNKS + 1)
        cuts = np.searchsorted(cost, parts[1:-1])
        cuts = np.unique([0, *cuts, len(self.rows)])
        pieces = [np.arange(a, b, most) for a, b in pairwise(cuts.tolist())]
        return np.append(np.concatenate(pieces), len(self.rows))


@dataclass(frozen=True, eq=False)
class CompletionProblem:
    """Explain (value - center) / scale by u_a . v_b; `sides` are entries by row and by column."""

    sides: tuple[Grouped, Grouped]
    columns: Columns
    center: float
    scale: float

    @classmethod
    def build(
        cls,
        entries: Entries,
        columns: Columns,
        *,
        standard: bool,
        precise: bool = False,
        memory_limit: int | None = None,
    ) -> CompletionProblem:
        """Group the entries, on disk with a `memory_limit`; `standard` gives values unit variance.

        Small problems are stored in double precision, and large ones where `precise` asks for it.
        """
        y = entries.values
        extent = float(np.ptp(y))
        if 0 < extent < MIN_RANGE:
            raise InputError(
                f"values must differ by at least {MIN_RANGE:g} or not at all, as their squares are "
                f"summed, got {extent:g}; multiply them by a constant"
            )
        mean, std = moments(y)
        center = mean if columns.biases else 0.0
        scale = std if standard and std else 1.0
        double = precise or len(y) * columns.width <= DOUBLE_BELOW
        dtype = np.float64 if double else np.float32
        values = standardized(y, center, scale, dtype, memory_limit)
        keys = (np.asarray(entries.rows), np.asarray(entries.cols))
        m, n = entries.shape
        by_row, by_col = (
            Grouped(
                keys[side],
                keys[1 - side],
                values,
                np.bincount(keys[side], minlength=(m, n)[side]),
                (n, m)[side],
                columns.width,
                memory_limit,
            )
            for side in (0, 1)
        )
        return cls((by_row, by_col), columns, center, scale)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.sides[0].counts), len(self.sides[1].counts)

    @property
    def n_ratings(self) -> int:
        """Number of observed entries."""
        return len(self.sides[0].values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage format of the values and factors."""
        return self.sides[0].values.dtype

    def zeroed(self, at: Ints) -> CompletionProblem:
        """Return the problem in which some of the entries have the value 0."""
        by_row, by_col = self.sides
        values = standardized(by_row.values, 0, 1, self.dtype, by_row.memory_limit)
        values[at] = 0
        sides = (replace(by_row, values=values), replace(by_col, values=values))
        return replace(self, sides=sides)

    def start(self, rng: np.random.Generator, std: float) -> list[Array]:
        """Return the two sides at the start: column biases shrunken, column factors random."""
        U, V = (
            np.zeros((count, self.columns.width), self.dtype) for count in self.shape
        )
        k = self.columns.n_factors
        V[:, :k] = rng.normal(0, std, (self.shape[1], k))
        if self.columns.biases:
            by_col = self.sides[1]
            U[:, k + 1] = 1
            V[:, k] = 1
            V[:, k + 1] = by_col.sums / (by_col.counts + BIAS_SHRINKAGE)
        else:
            V[:, 0] += np.sqrt(std)
        return [U, V]
