"""Which rows and columns users mean, and the entries of a row."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats, Ints
from overt.completion.kernels import Csr, group
from overt.entries import Entries
from overt.entries.entries import find_pairs
from overt.entries.identifiers import IdentifierIndex, as_index


class EntryIndex:
    """Finds rows and columns by identifier or by position, and the entries of a row.

    See `overt.entries.identifiers` for the rule that decides between the two.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self.rows = IdentifierIndex("rows", entries.shape[0], entries.row_ids)
        self.cols = IdentifierIndex("cols", entries.shape[1], entries.col_ids)

    def by(self, keys: str) -> EntryIndex:
        """Return the index as it is addressed: by "id", by "index", or "auto"."""
        found = copy(self)
        found.rows = self.rows.by(keys)
        found.cols = self.cols.by(keys)
        return found

    @cached_property
    def entered(self) -> Array:
        """Whether a column has entries, for each."""
        found = np.zeros(self._entries.shape[1], dtype=bool)
        found[self._entries.cols] = True
        return found

    @cached_property
    def value_range(self) -> tuple[float, float]:
        """The least and the largest of the values."""
        values = self._entries.values
        return float(values.min()), float(values.max())

    def of_row(self, row: int) -> tuple[Array, Floats]:
        """Return the columns and values observed in a row."""
        some = slice(self._by_row.indptr[row], self._by_row.indptr[row + 1])
        return self._by_row.indices[some], self._by_row.values[some]

    @cached_property
    def _by_row(self) -> Csr:
        given = self._entries
        return Csr(*group(given.rows, given.cols, given.values, given.shape[0]))

    def find_pairs(self, rows: Any, cols: Any = None) -> tuple[tuple[Ints, Ints], tuple[Any, Any]]:
        """Return the positions of entries (UNKNOWN if never seen), and what users call them."""
        return find_pairs(self.rows, self.cols, rows, cols)

    def aligned(self, new: Entries, *, named: bool = False) -> Entries:
        """Return new entries at our positions; rows and columns never seen come after all others.

        `named` says that numbers without identifiers were given as pairs, by the rule of `predict`.
        """
        old = self._entries
        if not named and new.row_ids is None and old.row_ids is not None:
            raise InputError(
                "this model knows rows and columns by identifiers; give partial_fit a data frame "
                "of three columns, or pairs of identifiers and their values"
            )
        rows, m, row_ids = _align(self.rows, new.rows, new.row_ids, new.shape[0])
        cols, n, col_ids = _align(self.cols, new.cols, new.col_ids, new.shape[1])
        return Entries(rows, cols, new.values, (m, n), row_ids, col_ids, new.times)


def _align(
    side: IdentifierIndex, places: Ints, ids: Array | None, count: int
) -> tuple[Ints, int, Array | None]:
    """Return one side's positions, number of rows and identifiers in the model's numbering."""
    if side.ids is None:
        if ids is None:
            return places, count, None
        ids = as_index("identifiers of a model that was fitted by index", ids)
        return ids[places], int(ids.max()) + 1, None
    if ids is None:
        ids, places = np.unique(places, return_inverse=True)
    found, all_ids = side.extend(ids)
    return found[places], len(all_ids), all_ids
