"""What users call rows and columns, and where they are: identifiers, indices, a row's entries."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, plain_array
from overt._identifiers import Indices, holds_whole, identifiers, index
from overt._types import Array, Floats, Ints
from overt.completion.entry_store import EntryStore
from overt.completion.forms.model import UNKNOWN
from overt.completion.storage.collecting import RatingsFile
from overt.entries import Entries, pairs


class EntryIndex:
    """Translates what users call rows and columns into indices, and finds a row's entries."""

    def __init__(self, entries: EntryStore) -> None:
        self._entries = entries
        self._sorted: dict[str, tuple[Array, Array]] = {}
        self._words: dict[str, dict[str, int]] = {}

    @cached_property
    def entered(self) -> Array:
        """Whether a column has entries, for each."""
        found = np.zeros(self._entries.shape[1], dtype=bool)
        found[self._entries.entries.cols] = True
        return found

    def rows(self, names: Any) -> Array:
        """Return row indices; UNKNOWN for rows never seen."""
        return self._find("rows", names, self._entries.row_ids, self._entries.shape[0])

    def cols(self, names: Any) -> Array:
        """Return column indices; UNKNOWN for columns never seen."""
        return self._find("cols", names, self._entries.col_ids, self._entries.shape[1])

    def _find(self, name: str, names: Any, ids: Array | None, count: int) -> Array:
        as_is = isinstance(names, list) and ids is not None
        if isinstance(names, Indices) and names.ids is not None and ids is not None:
            names = names.ids[np.asarray(names)]
        given = names if as_is else np.atleast_1d(plain_array(name, names))
        if not len(given):
            return np.zeros(0, np.int64)
        if ids is None:
            return _within(name, given, count)
        given = identifiers(name, given)
        if {given.dtype.kind, ids.dtype.kind} <= set("iu"):
            if name not in self._sorted:
                order = np.argsort(ids, kind="stable")
                self._sorted[name] = ids[order], order
            keys, order = self._sorted[name]
            at = np.minimum(np.searchsorted(keys, given), len(keys) - 1)
            return np.where(keys[at] == given, order[at], UNKNOWN)
        # Whole numbers and strings are compared as they are written.
        if name not in self._words:
            self._words[name] = {word: i for i, word in enumerate(map(str, ids.tolist()))}
        place, count = self._words[name], len(given)
        words = map(str, given.tolist())
        return np.fromiter((place.get(word, UNKNOWN) for word in words), np.int64, count)

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
        return self._entries.of_row(row)

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

    def aligned(self, new: Entries, *, named: bool = False) -> Entries:
        """Return new entries with our indices; what we never saw comes after all we have."""
        old = self._entries
        if not named and new.row_ids is None and old.row_ids is not None:
            raise InputError(
                "this model knows rows and columns by identifiers; give partial_fit a data frame "
                "of three columns, or pairs of identifiers and their values"
            )
        rows, m, row_ids = _align(new.rows, new.row_ids, new.shape[0], old.row_ids, self.rows)
        cols, n, col_ids = _align(new.cols, new.col_ids, new.shape[1], old.col_ids, self.cols)
        return Entries(rows, cols, new.values, (m, n), row_ids, col_ids, new.times)


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
        known, names = (np.array([str(x) for x in ids.tolist()]) for ids in (known, names))
    ids = np.concatenate([known, names[unseen]])
    return at[places], len(ids), ids


def _within(name: str, given: Array, count: int) -> Array:
    """Return checked indices; UNKNOWN for those beyond what was fitted."""
    if given.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {given.shape}")
    if holds_whole(given):
        given = given.astype(np.int64)
    if given.dtype.kind == "U" and np.char.isdecimal(given).all():  # as in an address
        given = np.minimum(given.astype(float), 2**62).astype(np.int64)
    if given.dtype.kind not in "iu":
        raise InputTypeError(f"{name} must be whole numbers, got {given.dtype}")
    if int(given.min()) < UNKNOWN:
        raise InputError(f"{name} must be indices (or -1 for unknown), got {int(given.min())}")
    return np.where(given < count, given.astype(np.int64), UNKNOWN)


def _known(name: str, value: Any, locate: Callable[[Any], Array]) -> int:
    if value is np.ma.masked or plain_array(name, value).ndim:
        raise InputError(f"{name} must be a single index or identifier, got {value!r}")
    found = int(locate([value])[0])
    if found == UNKNOWN:
        raise InputError(f"{name} {value!r} was not among those fitted")
    return found
