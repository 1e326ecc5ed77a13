"""Observed entries of a matrix, grouped by row and by column, from whatever the user has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt._check import InputError, InputTypeError, whole
from overt._types import Array, Floats, Ints

DOUBLE_BELOW = 5_000_000
"""Ratings times columns of the factors below which float64 is stored; float32 above."""

CHUNKS = 64

SPARSEST = 1000
"""Rows or columns for each entry above which indices are taken for identifiers by mistake."""


@dataclass(frozen=True)
class Triplets:
    """Entries (row, col, value) of a matrix of a given shape.

    `row_ids` and `col_ids`, where known, are the sorted identifiers that indices stand for.
    """

    rows: Ints
    cols: Ints
    values: Floats
    shape: tuple[int, int]
    row_ids: Array | None = None
    col_ids: Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, chosen: Array) -> Triplets:
        """Return some of the entries, in a matrix of the same shape."""
        return Triplets(
            self.rows[chosen],
            self.cols[chosen],
            self.values[chosen],
            self.shape,
            self.row_ids,
            self.col_ids,
        )


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


def triplets(rows: Any, cols: Any, values: Any, shape: Any = None) -> Triplets:
    """Check three parallel arrays; the shape is that of the largest indices if not given."""
    a, b = _index("rows", rows), _index("cols", cols)
    y = np.asarray(values)
    if y.ndim != 1 or not (np.issubdtype(y.dtype, np.number) or y.dtype == bool):
        raise InputTypeError(
            f"values must be a one-dimensional array of numbers, got shape {y.shape}, {y.dtype}"
        )
    if np.iscomplexobj(y):
        raise InputTypeError("values must be real numbers. Complex data not supported")
    y = y.astype(np.float64)
    if not len(a) == len(b) == len(y):
        raise InputError(
            f"rows, cols and values must have the same length, got {len(a)}, {len(b)}, {len(y)}"
        )
    if not len(y):
        raise InputError("there must be at least one observed entry, got 0")
    bad = np.count_nonzero(~np.isfinite(y))
    if bad:
        raise InputError(f"values must be finite, got {bad} NaN or infinite value(s)")
    return Triplets(a, b, y, _shape(shape, (int(a.max()) + 1, int(b.max()) + 1), len(y)))


def identified(rows: Any, cols: Any, values: Any) -> Triplets:
    """Return triplets whose rows and columns are given by identifiers (numbers or strings)."""
    row_ids, a = np.unique(identifiers("rows", rows), return_inverse=True)
    col_ids, b = np.unique(identifiers("cols", cols), return_inverse=True)
    checked = triplets(a, b, values, (len(row_ids), len(col_ids)))
    return replace(checked, row_ids=row_ids, col_ids=col_ids)


def identifiers(name: str, given: Any) -> Array:
    """Return identifiers as an array of whole numbers if all are, of strings otherwise."""
    ids = np.asarray(given)
    if ids.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {ids.shape}")
    if ids.dtype.kind in "iuU":
        return ids
    given = ids.tolist()
    missing = sum(map(_missing, given))
    if missing:
        raise InputError(f"{name} must not be missing, got {missing} missing identifier(s)")
    if ids.dtype.kind == "f" and np.all(ids == np.floor(ids)):
        return ids.astype(np.int64)
    if ids.dtype.kind in "bcf":
        raise InputTypeError(f"{name} must be whole numbers or strings, got {ids.dtype}")
    numbers = all(isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in given)
    return ids.astype(np.int64 if numbers else str)


def aligned(new: Triplets, old: Triplets, locate: Sequence[Callable[[Array], Array]]) -> Triplets:
    """Return new entries with the indices of `old`; what it never saw comes after all it has.

    `locate` finds names in `old`, of rows and of columns: their indices, or -1.
    """
    rows, m, row_ids = _align(new.rows, new.row_ids, new.shape[0], old.row_ids, locate[0])
    cols, n, col_ids = _align(new.cols, new.col_ids, new.shape[1], old.col_ids, locate[1])
    return Triplets(rows, cols, new.values, (m, n), row_ids, col_ids)


def _align(
    index: Ints, names: Array | None, count: int, known: Array | None, locate: Any
) -> tuple[Ints, int, Array | None]:
    """Return one side's indices, number of rows and identifiers in a numbering that exists."""
    if known is None:
        if names is None:
            return index, count, None
        names = _index("identifiers of a model that was fitted by index", names)
        return names[index], int(names.max()) + 1, None
    if names is None:
        names, index = np.unique(index, return_inverse=True)
    at = locate(names)
    unseen = at < 0
    at[unseen] = len(known) + np.arange(np.count_nonzero(unseen))
    if unseen.any() and known.dtype.kind != names.dtype.kind:
        known, names = known.astype(str), names.astype(str)
    ids = np.concatenate([known, names[unseen]])
    return at[index], len(ids), ids


def observed(X: Any, y: Any = None) -> Triplets:
    """Read the observed entries from what `fit` accepts.

    - scipy sparse, users x items: stored entries are observed, explicit zeros included;
    - a dense two-dimensional array with NaN for what is missing;
    - a data frame of three columns: row identifier, column identifier, value;
    - with `y`: an (n, 2) array (or data frame) of (row, col) pairs and their n values.
    """
    if y is not None:
        rows, cols = pairs("with y, X", X)
        if "U" in (rows.dtype.kind, cols.dtype.kind):
            return identified(rows, cols, y)
        return triplets(rows, cols, y)
    if isinstance(X, Triplets):
        return X
    if hasattr(X, "columns") and not isinstance(X, np.ndarray):
        names = list(X.columns)
        if len(names) != 3:
            raise InputError(
                "a data frame must have three columns (row, column, value), got "
                f"{len(names)}: {', '.join(map(str, names[:6]))}"
            )
        return identified(*(np.asarray(X[name]) for name in names))
    if hasattr(X, "tocoo"):
        entries = X.tocoo()
        if len(entries.shape) != 2:
            raise InputError(f"X must be two-dimensional (users x items), got {entries.shape}")
        return triplets(entries.row, entries.col, entries.data, entries.shape)
    try:
        if np.iscomplexobj(X):
            raise TypeError("Complex data not supported")
        dense: Floats = np.ma.filled(np.ma.asarray(X, dtype=float), np.nan)
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            "X must be a scipy sparse matrix, an array with NaN for missing entries, or a data "
            f"frame of three columns, got {type(X).__name__} ({error})"
        ) from None
    if dense.ndim != 2:
        raise InputError(f"X must be two-dimensional (users x items), got shape {dense.shape}")
    rows, cols = np.nonzero(~np.isnan(dense))
    return triplets(rows, cols, dense[rows, cols], dense.shape)


def pairs(name: str, given: Any) -> tuple[Array, Array]:
    """Return the two columns of an (n, 2) array or data frame of (row, col) pairs."""
    both = np.asarray(given)
    if both.ndim != 2 or both.shape[1] != 2:
        raise InputError(
            f"{name} must be an (n, 2) array of (row, col) pairs, got shape {both.shape}"
        )
    return identifiers("rows", both[:, 0]), identifiers("cols", both[:, 1])


def _missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT (unequal to itself) or NA (equal to nothing)."""
    try:
        return value is None or not bool(value == value)
    except TypeError:
        return True


def _shape(given: Any, least: tuple[int, int], count: int) -> tuple[int, int]:
    if given is None:
        if max(least) > max(SPARSEST * count, 10_000_000):
            raise InputError(
                f"rows and cols are indices from 0, and {count} entries would make a matrix of "
                f"{least[0]} x {least[1]}; if they are identifiers, give fit a data frame of three "
                "columns (row, column, value)"
            )
        return least
    try:
        m, n = (whole("shape", size) for size in given)
    except (TypeError, ValueError) as error:
        raise InputError(f"shape must be (rows, columns), got {given!r} ({error})") from None
    if m < least[0] or n < least[1]:
        raise InputError(f"shape must be at least {least} to hold the given indices, got {(m, n)}")
    return m, n


def _index(name: str, value: Any) -> Ints:
    index = np.asarray(value)
    if index.ndim != 1:
        raise InputError(f"{name} must be a one-dimensional array, got shape {index.shape}")
    if index.dtype.kind == "f" and np.all(index == np.floor(index)):
        index = index.astype(np.int64)
    if index.dtype.kind not in "iu":
        raise InputTypeError(f"{name} must be an array of whole numbers, got {index.dtype}")
    if len(index) and int(index.min()) < 0:
        raise InputError(f"{name} must not be negative, got {int(index.min())}")
    if len(index) and int(index.max()) >= np.iinfo(np.int32).max:
        raise InputError(f"{name} must be indices below 2^31, got {int(index.max())}")
    return index.astype(np.int64, copy=False)
