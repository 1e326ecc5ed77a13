"""What users call rows and columns, and where they are: identifiers, indices, a row's entries."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, plain_array
from overt._types import Array, Floats, Ints
from overt.completion.forms.model import UNKNOWN
from overt.completion.storage.files import RatingsFile
from overt.entries import Entries, identifiers, index, pairs


class EntryIndex:
    """Translates what users call rows and columns into indices, and finds a row's entries."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._order: Array | None = None
        self._sorted: dict[tuple[str, bool], tuple[Array, Array]] = {}

    @cached_property
    def entered(self) -> Array:
        """Whether a column has entries, for each."""
        found = np.zeros(self._entries.shape[1], dtype=bool)
        found[self._entries.cols] = True
        return found

    def rows(self, names: Any) -> Array:
        """Return row indices; UNKNOWN for rows never seen."""
        return self._find("rows", names, self._entries.row_ids, self._entries.shape[0])

    def cols(self, names: Any) -> Array:
        """Return column indices; UNKNOWN for columns never seen."""
        return self._find("cols", names, self._entries.col_ids, self._entries.shape[1])

    def _find(self, name: str, names: Any, ids: Array | None, count: int) -> Array:
        given = np.atleast_1d(plain_array(name, names))
        if not given.size:
            return np.zeros(0, np.int64)
        if ids is None:
            return _within(name, given, count)
        given = identifiers(name, given)
        # Whole numbers and strings are compared as they are written.
        as_text = "U" in (given.dtype.kind, ids.dtype.kind)
        if (name, as_text) not in self._sorted:
            keys = ids.astype(str) if as_text else ids
            order = np.argsort(keys, kind="stable")
            self._sorted[name, as_text] = keys[order], order
        keys, order = self._sorted[name, as_text]
        given = given.astype(str) if as_text else given
        at = np.minimum(np.searchsorted(keys, given), len(keys) - 1)
        return np.where(keys[at] == given, order[at], UNKNOWN)

    def row(self, name: Any) -> int:
        """Return the index of one row that must be known."""
        return _known("row", name, self.rows)

    def col(self, name: Any) -> int:
        """Return the index of one column that must be known."""
        return _known("col", name, self.cols)

    def row_names(self, indices: Array) -> Array:
        """Return what users call these rows."""
        ids = self._entries.row_ids
        return indices if ids is None else ids[indices]

    def col_names(self, indices: Array) -> Array:
        """Return what users call these columns."""
        ids = self._entries.col_ids
        return indices if ids is None else ids[indices]

    def of_row(self, row: int) -> tuple[Array, Floats]:
        """Return the columns and values observed in a row."""
        if self._order is None:
            self._order = np.argsort(self._entries.rows, kind="stable")
        keys = self._entries.rows
        start, stop = np.searchsorted(keys, [row, row + 1], sorter=self._order)
        chosen = self._order[start:stop]
        return self._entries.cols[chosen], self._entries.values[chosen]

    def places(self, rows: Any, cols: Any = None) -> tuple[Array, Array]:
        """Return the indices of Entries (or pairs of a file), of pairs, or of rows and columns."""
        if cols is None and isinstance(rows, (Entries, RatingsFile)):
            return self._places_of(rows)
        if cols is None:
            rows, cols = pairs("without cols, rows", rows)
        a, b = self.rows(rows), self.cols(cols)
        if len(a) != len(b):
            raise InputError(f"rows and cols must have the same length, got {len(a)} and {len(b)}")
        return a, b

    def _places_of(self, given: Entries | RatingsFile) -> tuple[Array, Array]:
        if given.row_ids is None or given.col_ids is None:
            m, n = self._entries.shape
            return _within("rows", given.rows, m), _within("cols", given.cols, n)
        return self.rows(given.row_ids)[given.rows], self.cols(given.col_ids)[given.cols]

    def aligned(self, new: Entries) -> Entries:
        """Return new entries with our indices; what we never saw comes after all we have."""
        old = self._entries
        rows, m, row_ids = _align(new.rows, new.row_ids, new.shape[0], old.row_ids, self.rows)
        cols, n, col_ids = _align(new.cols, new.col_ids, new.shape[1], old.col_ids, self.cols)
        return Entries(rows, cols, new.values, (m, n), row_ids, col_ids)


def _align(
    places: Ints, names: Array | None, count: int, known: Array | None,
    locate: Callable[[Array], Array],
) -> tuple[Ints, int, Array | None]:  # fmt: skip
    """Return one side's indices, number of rows and identifiers in a numbering that exists."""
    if known is None:
        if names is None:
            return places, count, None
        names = index("identifiers of a model that was fitted by index", names)
        return names[places], int(names.max()) + 1, None
    if names is None:
        names, places = np.unique(places, return_inverse=True)
    at = locate(names)
    unseen = at == UNKNOWN
    at[unseen] = len(known) + np.arange(np.count_nonzero(unseen))
    if unseen.any() and known.dtype.kind != names.dtype.kind:
        known, names = known.astype(str), names.astype(str)
    ids = np.concatenate([known, names[unseen]])
    return at[places], len(ids), ids


def _within(name: str, given: Array, count: int) -> Array:
    """Return checked indices; UNKNOWN for those beyond what was fitted."""
    if given.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {given.shape}")
    if given.dtype.kind == "f" and np.all(given == np.floor(given)):
        given = given.astype(np.int64)
    if given.dtype.kind not in "iu":
        raise InputTypeError(f"{name} must be whole numbers, got {given.dtype}")
    if int(given.min()) < UNKNOWN:
        raise InputError(f"{name} must be indices (or -1 for unknown), got {int(given.min())}")
    return np.where(given < count, given, UNKNOWN)


def _known(name: str, value: Any, locate: Callable[[Any], Array]) -> int:
    if np.ndim(value):
        raise InputError(f"{name} must be a single index or identifier, got {value!r}")
    found = int(locate([value])[0])
    if found == UNKNOWN:
        raise InputError(f"{name} {value!r} was not among those fitted")
    return found
