"""Observed entries that grow: those of some rows or columns are found at what they cost."""

from __future__ import annotations

import warnings

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion.kernels import group
from overt.entries import Entries

SHARE = 0.1
"""Part of all entries that may be new before everything is sorted again."""


class Ledger:
    """Entries, sorted by row and by column when first asked, and what was added since."""

    def __init__(self, entries: Entries) -> None:
        self.source = entries
        self._orders: dict[int, tuple[Array, Array]] = {}
        self._replaced = np.zeros(0, dtype=bool)  # of the base, once something was
        none = np.zeros(0, np.int64)
        self._more: tuple[Ints, Ints, Floats] = none, none, np.zeros(0)
        self._times: Floats | None = np.zeros(0)  # of those; None once some were not told
        self.shape, self.row_ids, self.col_ids = entries.shape, entries.row_ids, entries.col_ids

    @property
    def _base(self) -> Entries:
        return self.source

    def __len__(self) -> int:
        return len(self.source) - int(self._replaced.sum()) + len(self._more[0])

    @property
    def entries(self) -> Entries:
        """All entries."""
        if len(self._more[0]) or self.source.shape != self.shape:
            kept = ~self._replaced if len(self._replaced) else slice(None)
            base = (array[kept] for array in (self._base.rows, self._base.cols, self._base.values))
            rows, cols, values = map(np.concatenate, zip(base, self._more, strict=True))
            times = self._base.times
            if times is not None:
                told = self._times
                times = None if told is None else np.concatenate([times[kept], told])
            merged = Entries(rows, cols, values, self.shape, self.row_ids, self.col_ids, times)
            self.__init__(merged)  # type: ignore[misc]
        return self._base

    def of(self, side: int, rows: Ints) -> tuple[Array, Array, Floats]:
        """Return (rows, other sides, values) of the entries in some rows of a side."""
        at, base, keys = self._places(side, rows), self._base, (self._base.rows, self._base.cols)
        if len(self._replaced):
            at = at[~self._replaced[at]]
        more = np.flatnonzero(np.isin(self._more[side], rows))
        return (
            np.concatenate([keys[side][at], self._more[side][more]]),
            np.concatenate([keys[1 - side][at], self._more[1 - side][more]]),
            np.concatenate([base.values[at], self._more[2][more]]),
        )

    def _places(self, side: int, rows: Ints) -> Ints:
        """Return where the base has entries in some rows of a side."""
        if side not in self._orders:
            base, keys = self._base, (self._base.rows, self._base.cols)[side]
            indptr, order, _ = group(keys, np.arange(len(base)), base.values, base.shape[side])
            self._orders[side] = indptr, order
        indptr, order = self._orders[side]
        rows = rows[rows < len(indptr) - 1]
        counts = indptr[rows + 1] - indptr[rows]
        ends = np.concatenate([[0], np.cumsum(counts)])
        places: Ints = order[np.repeat(indptr[rows] - ends[:-1], counts) + np.arange(ends[-1])]
        return places

    def of_either(self, rows: Ints, cols: Ints) -> tuple[Array, Array, Floats]:
        """Return (rows, columns, values) of the entries in some rows or in some columns."""
        a, b, y = self.of(0, rows)
        d, c, z = self.of(1, cols)
        beyond = ~np.isin(c, rows)
        parts = ((a, c[beyond]), (b, d[beyond]), (y, z[beyond]))
        left, right, values = (np.concatenate(pair) for pair in parts)
        return left, right, values

    def add(self, new: Entries) -> None:
        """Take in new entries; those that were known are replaced."""
        shape = (max(self.shape[0], new.shape[0]), max(self.shape[1], new.shape[1]))
        width = shape[1]
        key = np.unique(new.rows * width + new.cols)
        old = ~np.isin(self._more[0] * width + self._more[1], key)
        more = zip(self._more, (new.rows, new.cols, new.values), strict=True)
        rows, cols, values = (np.concatenate([a[old], b]) for a, b in more)
        if self._times is not None and new.times is not None:
            self._times = np.append(self._times[old], new.times)
        elif self._times is not None:
            self._times = None
            if self._base.times is not None:
                warnings.warn(
                    f"the {len(new)} new entries have no times: lists no longer follow what their "
                    "rows chose last",
                    stacklevel=2,
                )
        at = self._places(0, np.unique(new.rows))
        at = at[np.isin(self._base.rows[at] * width + self._base.cols[at], key)]
        if len(at) and not len(self._replaced):
            self._replaced = np.zeros(len(self._base), dtype=bool)
        self._replaced[at] = True
        self._more, self.shape = (rows, cols, values), shape
        self.row_ids = self.row_ids if new.row_ids is None else new.row_ids
        self.col_ids = self.col_ids if new.col_ids is None else new.col_ids
        if len(rows) > SHARE * len(self._base):
            self.entries  # noqa: B018
