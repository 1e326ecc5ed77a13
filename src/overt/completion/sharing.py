"""Entries that workers of a cluster keep: the client has identifiers and sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion.engines.dask import DaskEngine
from overt.completion.engines.shares import Share, SharedLayout
from overt.completion.forms.problem import (
    CHUNKS,
    Columns,
    CompletionProblem,
    entered,
    heavy_first,
    stored,
)
from overt.completion.kernels.products import Product, Right, misfits
from overt.completion.storage import blocks
from overt.completion.storage.blocks import Aside, Spec, Told
from overt.completion.storage.folders import FiledEntries
from overt.entries import Entries

FAN = 8
"""Results that are put together at once."""


class SharedEntries:
    """Entries in blocks of rows and of columns that workers keep, without those kept aside."""

    def __init__(
        self, engine: DaskEngine, kept: tuple[list[Any], list[Any]], filed: FiledEntries,
        aside: Aside | None,
    ) -> None:  # fmt: skip
        self.engine, self._kept, self._aside = engine, kept, aside
        found = [
            engine.gathered([engine.submit(blocks.counts, b, side, aside) for b in kept[side]])
            for side in (0, 1)
        ]
        self.rows_of = [[rows for rows, *_ in side] for side in found]
        self.counts = []
        for side, ids in zip(found, (filed.row_ids, filed.col_ids), strict=True):
            counts = np.zeros(len(ids), np.int64)
            for rows, often, *_ in side:
                counts[rows] = often
            self.counts.append(counts)
        self.repeated = sum(repeated for *_, repeated, _ in found[0])
        self.example = next((e for *_, repeated, e in found[0] if repeated), (0, 0))
        told = tree(
            engine, blocks.tell_all, [engine.submit(blocks.tell, b, aside) for b in kept[0]]
        )
        self.told: Told = engine.gathered([told])[0]
        self.filed = replace(filed, count=self.told.n, mark=self.told.mark)

    def __len__(self) -> int:
        return self.told.n

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.filed.shape

    @property
    def mark(self) -> int:
        """A number that the same entries have anywhere."""
        return self.told.mark

    @property
    def values(self) -> Floats:
        """The different values, sorted."""
        return self.told.values[0]

    def put_aside(self, count: int, seed: Any) -> tuple[SharedEntries, Entries]:
        """Return these without some entries, and those, the same wherever they are kept."""
        found = [self.engine.submit(blocks.held, b, count, seed) for b in self._kept[0]]
        best = tree(self.engine, blocks.hold_all, found, count)
        marks, rows, cols, values = self.engine.gathered([best])[0]
        aside, ids = Aside(seed, int(marks[-1])), (self.filed.row_ids, self.filed.col_ids)
        less = SharedEntries(self.engine, self._kept, self.filed, aside)
        return less, Entries(rows, cols, values, self.shape, *ids)

    def problem(
        self, n_factors: int, *, biases: bool, standard: bool, precise: bool = False
    ) -> CompletionProblem:
        """Return the problem as `CompletionProblem.build` does, its entries with the workers."""
        told, columns = self.told, Columns(n_factors, biases)
        spread, apart = float(np.sqrt(told.square / told.n)), float(np.ptp(self.values))
        units = entered(told.mean, spread, apart, biases=biases, standard=standard)
        dtype = stored(told.n, columns.width, precise)
        chunks = max(1, CHUNKS // len(self._kept[0]))
        sides: list[Any] = []
        for side in (0, 1):
            partners = self.shape[1 - side]
            name = np.dtype(dtype).name
            spec = Spec(side, *units, name, columns.width, partners, chunks, self._aside)
            sides.append(SharedSide(self, side, spec, self._kept[side]))
        return CompletionProblem(sides[0], sides[1], self.shape, columns, *units)


class SharedSide:
    """One side's entries, as `Grouped` has them."""

    mapped = 0

    def __init__(self, entries: SharedEntries, side: int, spec: Spec, kept: list[Any]) -> None:
        self._entries, self._spec = entries, spec
        self.counts, self.n_others = entries.counts[side], spec.n_others
        self.width, self.n_ratings = spec.width, len(entries)
        self.dtype = np.dtype(spec.dtype)
        used = zip(kept, entries.rows_of[side], strict=True)
        self._kept = [block for block, rows in used if self.counts[rows].any()]

    @cached_property
    def rows(self) -> Ints:
        """Rows with entries, heavy first."""
        return heavy_first(self.counts)

    @cached_property
    def gathered(self) -> SharedLayout:
        """Each row's entries together."""
        return self._laid("gathered")

    @cached_property
    def blocked(self) -> SharedLayout:
        """Each chunk's entries sorted by partner."""
        return self._laid("blocked")

    def _laid(self, kind: str) -> SharedLayout:
        engine = self._entries.engine
        laid = [engine.submit(blocks.laid, block, self._spec, kind) for block in self._kept]
        outlines = engine.gathered([engine.submit(blocks.outline, one) for one in laid])
        ends = np.cumsum([0, *(n_chunks for _, n_chunks in outlines)])
        shares = [
            Share(rows, range(ends[i], ends[i + 1]), built=laid[i])
            for i, (rows, _) in enumerate(outlines)
        ]
        return SharedLayout(shares, int(ends[-1]))

    @cached_property
    def _sums(self) -> tuple[Floats, float]:
        engine, total, square = self._entries.engine, np.zeros(len(self.counts)), 0.0
        tasks = [engine.submit(blocks.sums, block, self._spec) for block in self._kept]
        for rows, some, squares in engine.gathered(tasks):
            total[rows] = some
            square += squares
        return total, square

    @property
    def sums(self) -> Floats:
        """Sum of each row's values."""
        return self._sums[0]

    @property
    def square(self) -> float:
        """Sum of all squared values."""
        return self._sums[1]

    def sample(self, count: int) -> tuple[Array, Array]:
        """Return rows and columns of entries that stand for all."""
        _, rows, cols = self._entries.told.sample
        return np.resize(rows[:count], count), np.resize(cols[:count], count)

    def misfit(self, means: Sequence[Array]) -> float:
        """Sum over entries of (y - u_a . v_b)^2."""
        out = Product(np.zeros((len(self.counts), 1)))
        right = Right(means[1])
        self._entries.engine.run(misfits, self.gathered, (right,), (means[0],), out)
        return float(out.rows.sum())


def tree(engine: DaskEngine, join: Any, futures: list[Any], *first: Any) -> Any:
    """Return a future of join(*first, *results), a few at a time."""
    while len(futures) > 1:
        parts = [futures[i : i + FAN] for i in range(0, len(futures), FAN)]
        futures = [engine.submit(join, *first, *part) for part in parts]
    return futures[0]
