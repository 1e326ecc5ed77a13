"""Observed entries grouped by row and by column, and brought to a numbering that exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt._types import Array, Ints
from overt.entries import Entries, index

DOUBLE_BELOW = 5_000_000
"""Ratings times columns of the factors below which float64 is stored; float32 above."""

CHUNKS = 64


@dataclass(frozen=True)
class Grouped:
    """Entries grouped by one side: CSR arrays, and the non-empty rows in chunks, heavy first.

    The chunks do not depend on the number of threads, and rows in one chunk are handled by one.
    """

    indptr: Ints
    indices: NDArray[np.int32]
    values: Array
    chunks: list[Ints]

    @property
    def counts(self) -> Ints:
        """Number of entries of each row."""
        return np.diff(self.indptr)

    @property
    def n_active(self) -> int:
        """Number of rows that have an entry."""
        return sum(map(len, self.chunks))


def regroup(keys: Array, others: Array, values: Array, count: int, width: int) -> Grouped:
    """Group entries by `keys`; `width` says how costly a row's own solve is."""
    from overt.completion.kernels import group

    indptr, indices, sorted_values = group(keys, others, values, count)
    counts = np.diff(indptr)
    order = np.argsort(-counts, kind="stable")
    order = order[: int(np.count_nonzero(counts))]
    cost = np.cumsum(counts[order] + width)
    cuts = np.searchsorted(cost, np.linspace(0, cost[-1], CHUNKS + 1)[1:-1])
    chunks = [chunk for chunk in np.split(order, cuts) if len(chunk)]
    return Grouped(indptr, indices, sorted_values, chunks)


def aligned(new: Entries, old: Entries, locate: Sequence[Callable[[Array], Array]]) -> Entries:
    """Return new entries with the indices of `old`; what it never saw comes after all it has.

    `locate` finds names in `old`, of rows and of columns: their indices, or -1.
    """
    rows, m, row_ids = _align(new.rows, new.row_ids, new.shape[0], old.row_ids, locate[0])
    cols, n, col_ids = _align(new.cols, new.col_ids, new.shape[1], old.col_ids, locate[1])
    return Entries(rows, cols, new.values, (m, n), row_ids, col_ids)


def _align(
    places: Ints, names: Array | None, count: int, known: Array | None, locate: Any
) -> tuple[Ints, int, Array | None]:
    """Return one side's indices, number of rows and identifiers in a numbering that exists."""
    if known is None:
        if names is None:
            return places, count, None
        names = index("identifiers of a model that was fitted by index", names)
        return names[places], int(names.max()) + 1, None
    if names is None:
        names, places = np.unique(places, return_inverse=True)
    at = locate(names)
    unseen = at < 0
    at[unseen] = len(known) + np.arange(np.count_nonzero(unseen))
    if unseen.any() and known.dtype.kind != names.dtype.kind:
        known, names = known.astype(str), names.astype(str)
    ids = np.concatenate([known, names[unseen]])
    return at[places], len(ids), ids
