"""Observed entries of a matrix, grouped by row and by column, from whatever the user has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt._check import InputError, InputTypeError

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DOUBLE_BELOW = 5_000_000
"""Ratings times columns of the factors below which float64 is stored; float32 above."""

CHUNKS = 64


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


def triplets(rows: Any, cols: Any, values: Any, shape: tuple[int, int] | None = None) -> Triplets:
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
    least = (int(a.max()) + 1, int(b.max()) + 1)
    if shape is None:
        shape = least
    elif shape[0] < least[0] or shape[1] < least[1]:
        raise InputError(f"shape must be at least {least} to hold the given indices, got {shape}")
    return Triplets(a, b, y, (int(shape[0]), int(shape[1])))


def identified(rows: Any, cols: Any, values: Any) -> Triplets:
    """Return triplets whose rows and columns are given by identifiers (numbers or strings)."""
    row_ids, a = np.unique(np.asarray(rows), return_inverse=True)
    col_ids, b = np.unique(np.asarray(cols), return_inverse=True)
    checked = triplets(a, b, values, (len(row_ids), len(col_ids)))
    return Triplets(checked.rows, checked.cols, checked.values, checked.shape, row_ids, col_ids)


def observed(X: Any, y: Any = None) -> Triplets:
    """Read the observed entries from what `fit` accepts.

    - scipy sparse, users x items: stored entries are observed, explicit zeros included;
    - a dense two-dimensional array with NaN for what is missing;
    - a data frame of three columns: row identifier, column identifier, value;
    - with `y`: an (n, 2) array of (row, col) pairs and their n values.
    """
    if y is not None:
        pairs = np.asarray(X)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise InputError(
                f"with y, X must be an (n, 2) array of (row, col) pairs, got shape {pairs.shape}"
            )
        return triplets(pairs[:, 0], pairs[:, 1], y)
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
        return triplets(entries.row, entries.col, entries.data, entries.shape)
    try:
        dense = np.asarray(X, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            "X must be a scipy sparse matrix, an array with NaN for missing entries, or a data "
            f"frame of three columns, got {type(X).__name__} ({error})"
        ) from None
    if dense.ndim != 2:
        raise InputError(f"X must be two-dimensional (users x items), got shape {dense.shape}")
    rows, cols = np.nonzero(~np.isnan(dense))
    return triplets(rows, cols, dense[rows, cols], dense.shape)


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
    return index.astype(np.int64, copy=False)
