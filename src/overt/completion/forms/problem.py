"""A completion problem ready for the kernels: columns of the factors, both groupings, storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats, Ints
from overt.completion.kernels import NOT_PINNED, Blocks, Csr, block, dots, group
from overt.completion.memory import SLICE, arranged, lowest, moments, room, slices, standardized
from overt.entries import Entries

DOUBLE_BELOW = 5_000_000
"""Ratings times columns of the factors below which float64 is stored; float32 above."""

CHUNKS = 32
"""Parts that a side's rows are cut into: more share the load better; each reads all partners."""

CACHE = 4 << 20
MOST = 1 << 16
"""Bytes that the sums of a chunk's rows may take, and how many there may be."""

SMALLEST = 1e-75
"""Range of values whose powers can still be distinguished from 0."""

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
        free = self.free(side)
        w = np.ones(self.width)
        S = np.zeros((self.width, self.width))
        w[free] = mean
        S[np.ix_(free, free)] = covariance
        return w, S

    def units(self, scale: float) -> tuple[Floats, Floats]:
        """Return what multiplies the columns of both sides so that their product grows by scale."""
        k = self.n_factors
        U, V = np.full((2, self.width), np.sqrt(scale))
        if self.biases:
            U[k:] = (scale, 1)
            V[k:] = (1, scale)
        return U, V


@dataclass(frozen=True, eq=False)
class Layout:
    """A side's entries as a kernel reads them, and its non-empty rows, heavy first, in chunks.

    Chunk c are rows[cuts[c]:cuts[c + 1]]; they do not depend on who handles them.
    """

    entries: Csr | Blocks
    rows: Ints
    cuts: Ints

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.cuts) - 1

    def part(self, first: int, last: int) -> tuple[Ints, Ints, Csr | Blocks]:
        """Return rows, cuts and entries of the chunks from `first` up to `last`."""
        cuts = self.cuts[first : last + 1]
        entries = self.entries
        if isinstance(entries, Blocks):
            entries = entries._replace(starts=entries.starts[first : last + 1])
        return self.rows[cuts[0] : cuts[-1]], cuts - cuts[0], entries

    def rows_of(self, chunks: Sequence[int]) -> Ints:
        """Return the rows of some chunks."""
        return np.concatenate([self.rows[self.cuts[c] : self.cuts[c + 1]] for c in chunks])

    def take(self, chunks: Sequence[int]) -> tuple[Ints, Ints, Csr | Blocks]:
        """Return some chunks with their entries alone; the rows of a Csr are numbered anew."""
        rows = self.rows_of(chunks)
        e = self.entries
        sizes = np.diff(self.cuts)[list(chunks)]
        starts, units = (e.starts, np.array(chunks)) if isinstance(e, Blocks) else (e.indptr, rows)
        ends = np.concatenate([[0], np.cumsum(starts[units + 1] - starts[units])])
        at = np.repeat(starts[units] - ends[:-1], np.diff(ends)) + np.arange(ends[-1])
        taken = type(e)(ends, *(array[at] for array in e[1:]))
        return rows, np.concatenate([[0], np.cumsum(sizes)]), taken


@dataclass(frozen=True, eq=False)
class Grouped:
    """Entries (keys[e], others[e]) of one side's rows `keys`, in the layouts that kernels read."""

    keys: Array
    others: Array
    values: Array
    counts: Ints
    n_others: int
    width: int
    mapped: int = 0  # bytes of memory, where layouts are stored on disk
    chunks: int = CHUNKS

    @classmethod
    def build(
        cls,
        keys: Array,
        others: Array,
        values: Array,
        shape: tuple[int, int],
        width: int,
        mapped: int = 0,
    ) -> Grouped:
        """Take the entries of `shape[0]` rows whose solves are as costly as `width` says."""
        counts = np.bincount(keys, minlength=shape[0])
        return cls(keys, others, values, counts, shape[1], width, mapped)

    @cached_property
    def rows(self) -> Ints:
        """Rows with entries, heavy first."""
        return heavy_first(self.counts)

    n_ratings = property(lambda self: len(self.values), doc="Number of entries.")
    dtype = property(lambda self: self.values.dtype, doc="Storage format of the values.")

    @cached_property
    def sums(self) -> Floats:
        """Sum of each row's values."""
        return np.bincount(self.keys, self.values, len(self.counts)).astype(float)

    @cached_property
    def square(self) -> float:
        """Sum of all squared values."""
        parts = slices(self.n_ratings, self.values)
        return sum(float(np.sum(self.values[some].astype(np.float64) ** 2)) for some in parts)

    def sample(self, count: int) -> tuple[Array, Array]:
        """Return rows and columns of entries that stand for all of a side of rows."""
        at = lowest(self.keys, self.others, count)[0]
        return np.resize(self.keys[at], count), np.resize(self.others[at], count)

    def misfit(self, means: Sequence[Array]) -> float:
        """Sum over entries of (y - u_a . v_b)^2."""
        total = 0.0
        for some in slices(self.n_ratings, self.keys, self.others, self.values):
            fitted = np.empty(some.stop - some.start)
            dots(self.keys[some], self.others[some], *means, fitted)
            total += float(np.sum((self.values[some] - fitted) ** 2))
        return total

    def only(self, rows: Ints) -> Grouped:
        """Return the entries of these rows alone."""
        at = np.flatnonzero(np.isin(self.keys, rows))
        keys = self.keys[at]
        others = self.others[at]
        values = self.values[at]
        counts = np.bincount(keys, minlength=len(self.counts))
        return replace(self, keys=keys, others=others, values=values, counts=counts)

    @cached_property
    def gathered(self) -> Layout:
        """Each row's entries together."""
        if self.mapped:
            ends = np.concatenate([[0], np.cumsum(self.counts)])
            bucket = ends[:-1] // SLICE
            given = (self.keys, self.others, self.values, bucket, int(bucket[-1]) + 1, True)
            found = Csr(ends, *arranged(*given)[2:])
            return Layout(found, self.rows, self._cuts(len(self.rows)))
        csr = Csr(*group(self.keys, self.others, self.values, len(self.counts)))
        return Layout(csr, self.rows, self._cuts(len(self.rows)))

    @cached_property
    def blocked(self) -> Layout:
        """Each chunk's entries sorted by partner; a chunk's sums fit into a cache."""
        packed = self.width * (self.width + 1) // 2 * self.dtype.itemsize
        cuts = self._cuts(min(max(1, CACHE // packed), MOST))
        chunk, slot = np.zeros((2, len(self.counts)), np.int32)
        sizes = np.diff(cuts)
        chunk[self.rows] = np.repeat(np.arange(len(sizes)), sizes)
        slot[self.rows] = np.arange(len(self.rows)) - np.repeat(cuts[:-1], sizes)
        given = (self.keys, self.others, self.values, chunk)
        if self.mapped:
            starts, keys, partners, values = arranged(*given, len(sizes), False)
            slots = room(len(keys), np.uint16)
            for some in slices(len(keys), keys, slots):
                slots[some] = slot[keys[some]]
            return Layout(Blocks(starts, slots, partners, values), self.rows, cuts)
        numbers = slot.astype(np.uint16)
        return Layout(Blocks(*block(*given, numbers, len(sizes), self.n_others)), self.rows, cuts)

    def _cuts(self, most: int) -> Ints:
        """Cut rows into parts of about the same cost, with at most `most` rows."""
        cost = np.cumsum(self.counts[self.rows] + self.width)
        cuts = np.searchsorted(cost, np.linspace(0, cost[-1], self.chunks + 1)[1:-1])
        cuts = np.unique([0, *cuts, len(self.rows)])
        pieces = [np.arange(a, b, most) for a, b in pairwise(cuts.tolist())]
        return np.append(np.concatenate(pieces), len(self.rows))


def heavy_first(counts: Ints) -> Ints:
    """Return the rows that have entries, those with most first."""
    order = np.argsort(-counts, kind="stable")
    return order[: int(np.count_nonzero(counts))]


def entered(
    mean: float, spread: float, apart: float, *, biases: bool, standard: bool
) -> tuple[float, float]:
    """Return center and scale of values with such moments, the ends of which lie so far apart."""
    if 0 < apart < SMALLEST:
        least = f"values must differ by at least {SMALLEST:g} or not at all, as their squares are"
        raise InputError(f"{least} summed, got {apart:g}; multiply them by a constant")
    return mean if biases else 0.0, (spread or 1.0) if standard else 1.0


def stored(count: int, width: int, precise: bool) -> Any:
    """Return the storage format of values and factors."""
    return np.float64 if precise or count * width <= DOUBLE_BELOW else np.float32


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
        cls,
        entries: Entries,
        n_factors: int,
        *,
        biases: bool,
        standard: bool,
        precise: bool = False,
        mapped: int = 0,
    ) -> CompletionProblem:
        """Group the entries, on disk if `mapped`; `standard` gives the values unit variance.

        Small problems are stored in double precision, and large ones where `precise` asks for it.
        """
        y = entries.values
        columns = Columns(n_factors, biases)
        mean, spread = moments(y) if mapped else (float(y.mean()), float(y.std()))
        center, scale = entered(mean, spread, float(np.ptp(y)), biases=biases, standard=standard)
        dtype = stored(len(y), columns.width, precise)
        if mapped:
            values = standardized(y, center, scale, dtype)
        else:
            values = ((y - center) / scale).astype(dtype)
        (m, n), how = entries.shape, (columns.width, mapped)
        rows = np.asarray(entries.rows)
        cols = np.asarray(entries.cols)
        return cls(
            Grouped.build(rows, cols, values, (m, n), *how),
            Grouped.build(cols, rows, values, (n, m), *how),
            (m, n),
            columns,
            center,
            scale,
        )

    @property
    def n_ratings(self) -> int:
        """Number of observed entries."""
        return self.by_row.n_ratings

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage format of the values and factors."""
        return self.by_row.dtype

    def zeroed(self, at: Ints) -> CompletionProblem:
        """Return the problem in which some of the entries have the value 0."""
        values = self.by_row.values
        if self.by_row.mapped:
            kept = room(len(values), values.dtype)
            for some in slices(len(values), values, kept):
                kept[some] = values[some]
        else:
            kept = values.copy()
        kept[at] = 0
        by_row, by_col = (replace(group, values=kept) for group in (self.by_row, self.by_col))
        return replace(self, by_row=by_row, by_col=by_col)

    def grouped(self, side: int) -> Grouped:
        """Return the entries grouped by row (side 0) or by column (side 1)."""
        return (self.by_row, self.by_col)[side]

    def start(self, rng: np.random.Generator, spread: float) -> list[Array]:
        """Return the two sides at the start: column biases shrunken, column factors random."""
        U, V = (np.zeros((count, self.columns.width), self.dtype) for count in self.shape)
        k = self.columns.n_factors
        V[:, :k] = rng.normal(0, spread, (self.shape[1], k))
        if self.columns.biases:
            U[:, k + 1] = 1
            V[:, k] = 1
            V[:, k + 1] = self.by_col.sums / (self.by_col.counts + SHRINK)
        else:
            V[:, 0] += np.sqrt(spread)
        return [U, V]

    def residual_variance(self, means: list[Array]) -> float:
        """Return the mean squared residual of u_a . v_b over the entries."""
        return self.by_row.misfit(means) / self.n_ratings
