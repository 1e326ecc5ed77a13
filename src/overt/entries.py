"""Observed entries of a matrix: the one type that estimators take, from whatever users have."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from overt import _frames
from overt._check import InputError, InputTypeError, doubles, generator, number, plain_array, whole
from overt._identifiers import factorized, identifiers, index
from overt._types import Array, Floats, Ints, Seed

SPARSEST, ROOMY = 1000, 10_000_000
"""Rows (or columns) for each entry, and in all, beyond which indices must be identifiers."""

HUGE = 1e75
"""Size of values beyond which fourth powers leave the range of floating point."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Entries:
    """Observed entries (rows[n], cols[n]) of a matrix, with their values.

    Parameters
    ----------
    rows, cols
        Indices from 0.
    values
        Finite numbers; an entry may be observed more than once and then counts as often.
    shape
        Of the matrix, (rows, columns); the smallest that holds the indices if None.
    row_ids, col_ids
        The identifiers that indices stand for, where they are known.
    times
        When each entry was observed, where that is known.
    truth
        The whole matrix, if it is known; it serves to grade, never to fit.

    Examples
    --------
    >>> import overt
    >>> overt.Entries([0, 0, 1], [0, 1, 1], [5, 3, 4])
    Entries(3 of 2 x 2)
    """

    rows: Ints
    cols: Ints
    values: Floats
    shape: tuple[int, int]
    row_ids: Array | None
    col_ids: Array | None
    times: Array | None
    truth: Floats | None

    def __init__(
        self, rows: Any, cols: Any, values: Any, shape: Any = None, row_ids: Any = None,
        col_ids: Any = None, times: Any = None, truth: Any = None,
    ) -> None:  # fmt: skip
        rows, cols, values = index("rows", rows), index("cols", cols), _values(values)
        if not len(rows) == len(cols) == len(values):
            raise InputError(
                "rows, cols and values must have the same length, got "
                f"{len(rows)}, {len(cols)}, {len(values)}"
            )
        if not len(values):
            raise InputError("there must be at least one observed entry, got 0")
        shape = _shape(shape, (int(rows.max()) + 1, int(cols.max()) + 1), len(values))
        row_ids = _one_each("row_ids", row_ids, shape[0])
        col_ids = _one_each("col_ids", col_ids, shape[1])
        times = _one_each("times", times, len(values))
        truth = None if truth is None else doubles("truth", truth, ndim=2)
        if truth is not None and truth.shape != shape:
            raise InputError(f"truth must have the shape {shape}, got {truth.shape}")
        checked = (rows, cols, values, shape, row_ids, col_ids, times, truth)
        for f, value in zip(fields(self), checked, strict=True):
            object.__setattr__(self, f.name, value)

    @classmethod
    def from_matrix(cls, A: Any) -> Self:
        """Take what a sparse matrix stores, or what is neither NaN nor masked in a dense one."""
        if hasattr(A, "tocoo"):
            entries = A.tocoo()
            if len(entries.shape) != 2:
                raise InputError(f"the matrix must be two-dimensional, got {entries.shape}")
            return cls(entries.row, entries.col, entries.data, entries.shape)
        if hasattr(A, "detach"):
            A = plain_array("the matrix", A)
        try:
            if np.iscomplexobj(A):
                raise TypeError("Complex data not supported")
            dense: Floats = np.ma.filled(np.ma.asarray(A, dtype=float), np.nan)
        except (TypeError, ValueError) as error:
            raise InputTypeError(
                "observed entries must be overt.Entries, a scipy sparse matrix, an array with NaN "
                f"for what is missing, or a data frame, got {type(A).__name__} ({error})"
            ) from None
        if dense.ndim != 2:
            raise InputError(f"the matrix must be two-dimensional, got shape {dense.shape}")
        rows, cols = np.nonzero(~np.isnan(dense))
        return cls(rows, cols, dense[rows, cols], dense.shape)

    @classmethod
    def from_ids(cls, rows: Any, cols: Any, values: Any, times: Any = None) -> Self:
        """Take rows and columns that are named by identifiers (whole numbers or strings)."""
        row_ids, a = factorized(identifiers("rows", rows))
        col_ids, b = factorized(identifiers("cols", cols))
        return cls(a, b, values, (len(row_ids), len(col_ids)), row_ids, col_ids, times)

    @classmethod
    def from_frame(
        cls, frame: Any, *, row: Any = None, col: Any = None, value: Any = None, time: Any = None
    ) -> Self:
        """Take a frame of pandas or polars (lazy too), an Arrow table or a DuckDB relation.

        It holds entries, where columns are named (`row`, `col`, `value`, `time`), have known names
        (user, item, rating, timestamp and the like), or are three of which two are identifiers; it
        is a table with a row of the matrix on each line otherwise, NaN or null where missing. A
        guess is announced by a warning.
        """
        if not _frames.is_frame(frame):
            raise InputTypeError(f"frame must be a data frame, got {type(frame).__name__}")
        columns = _frames.columns_of(frame)
        said = {"row": row, "col": col, "value": value, "time": time}
        places = _frames.entry_columns(columns, said)
        if places is None:
            if len(columns) < 3:
                raise InputError(
                    "a data frame must have three columns (row, column, value) or be a table, got "
                    f"{len(columns)}: {', '.join(map(str, columns))}"
                )
            dense = _frames.dense(columns)
            return replace(cls.from_matrix(dense), col_ids=np.array(list(map(str, columns))))
        found = {role: columns[name] for role, name in places.items()}
        values = found.get("value", np.ones(len(found["row"])))
        return cls.from_ids(found["row"], found["col"], values, found.get("time"))

    @classmethod
    def sample(cls, truth: Any, count: int, seed: Seed = 0) -> Self:
        """Observe `count` different entries of a known matrix, drawn uniformly."""
        truth = doubles("truth", truth, ndim=2)
        count = whole("count", count)
        if count > truth.size:
            raise InputError(f"count must be at most {truth.size} (all entries), got {count}")
        chosen = generator(seed).choice(truth.size, size=count, replace=False)
        rows, cols = np.divmod(np.sort(chosen), truth.shape[1])
        return cls(rows, cols, truth[rows, cols], truth.shape, truth=truth)

    def __repr__(self) -> str:
        return f"Entries({len(self)} of {self.shape[0]} x {self.shape[1]})"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def missing(self) -> tuple[Ints, Ints]:
        """Rows and columns of the entries that are never observed, row by row."""
        seen = np.zeros(self.shape, dtype=bool)
        seen[self.rows, self.cols] = True
        rows, cols = np.nonzero(~seen)
        return rows, cols

    def take(self, chosen: Array) -> Self:
        """Return some of the entries (numbers, or a mask), in a matrix of the same shape."""
        chosen = plain_array("chosen", chosen)
        try:
            chosen = np.arange(len(self))[chosen if chosen.size else chosen.astype(int)]
        except IndexError as error:
            raise InputError(f"chosen must be some of {len(self)} entries: {error}") from None
        rows, cols, values = self.rows[chosen], self.cols[chosen], self.values[chosen]
        times = None if self.times is None else self.times[chosen]
        return replace(self, rows=rows, cols=cols, values=values, times=times)

    def repeated(self, weights: Any, *, by_row: bool = False) -> Self:
        """Return each entry (or those of each row) as often as whole weights say."""
        often = doubles("sample_weight", weights, ndim=1)
        count = self.shape[0] if by_row else len(self)
        whole_numbers = np.array_equal(often, np.floor(np.abs(often)))
        if len(often) != count or not whole_numbers or not often.any():
            raise InputError(
                f"sample_weight must be {count} whole numbers from 0, not all zero: how often each "
                f"{'row' if by_row else 'entry'} counts, got {weights!r:.100}"
            )
        times: Ints = (often[self.rows] if by_row else often).astype(np.int64)
        return self.take(np.repeat(np.arange(len(self)), times))

    def split(self, holdout: float = 0.1, seed: Seed = 0) -> tuple[Self, Self]:
        """Return (train, held out): held out is the start of a random permutation."""
        share = number("holdout", holdout, exclusive=True)
        count = int(share * len(self))
        if not 0 < count < len(self):
            raise InputError(
                f"holdout must leave entries on both sides, got {holdout} of {len(self)} entries"
            )
        order = generator(seed).permutation(len(self))
        return self.take(order[count:]), self.take(order[:count])

    def to_sparse(self) -> Any:
        """Return the entries as a scipy CSR matrix; those observed more than once are summed."""
        from scipy.sparse import coo_array

        return coo_array((self.values, (self.rows, self.cols)), shape=self.shape).tocsr()


def observed(X: Any, y: Any = None) -> Entries:
    """Read the observed entries from what `fit` accepts.

    - Entries, as they are;
    - scipy sparse, rows x columns: stored entries are observed, explicit zeros included;
    - a dense two-dimensional array with NaN for what is missing;
    - a data frame of entries or a whole table, see `Entries.from_frame`;
    - with `y`: an (n, 2) array (or data frame) of (row, col) pairs and their n values.
    """
    if y is not None:
        rows, cols = pairs("with y, X", X)
        if not {rows.dtype.kind, cols.dtype.kind} <= set("iu"):
            return Entries.from_ids(rows, cols, y)
        return Entries(rows, cols, y)
    if isinstance(X, Entries):
        return X
    if _frames.is_frame(X):
        return Entries.from_frame(X)
    return Entries.from_matrix(X)


def pairs(name: str, given: Any) -> tuple[Array, Array]:
    """Return the two columns of an (n, 2) array or data frame of (row, col) pairs."""
    both = plain_array(name, given)
    if both.ndim != 2 or both.shape[1] != 2:
        raise InputError(
            f"{name} must be an (n, 2) array of (row, col) pairs, got shape {both.shape}"
        )
    return identifiers("rows", both[:, 0]), identifiers("cols", both[:, 1])


def _values(value: Any) -> Floats:
    values = plain_array("values", value)
    if values.ndim != 1 or not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
        raise InputTypeError(
            "values must be a one-dimensional array of numbers, got shape "
            f"{values.shape}, {values.dtype}"
        )
    if np.iscomplexobj(values):
        raise InputTypeError("values must be real numbers. Complex data not supported")
    values = values.astype(np.float64, copy=False)
    bad = np.count_nonzero(~np.isfinite(values))
    if bad:
        raise InputError(f"values must be finite, got {bad} NaN or infinite value(s)")
    if len(values) and max(values.max(), -values.min()) > HUGE:
        raise InputError(
            f"values must be at most {HUGE:g} in size, as their powers are summed, got "
            f"{max(values.max(), -values.min()):g}; divide them by a constant"
        )
    return values


def _one_each(name: str, given: Any, count: int) -> Array | None:
    """Return an array of `count` things, or None."""
    found = None if given is None else plain_array(name, given)
    if found is not None and found.shape != (count,):
        raise InputError(f"{name} must have shape ({count},), got {found.shape}")
    return found


def _shape(given: Any, least: tuple[int, int], count: int) -> tuple[int, int]:
    if given is None:
        if max(least) > max(SPARSEST * count, ROOMY):
            raise InputError(
                f"rows and cols are indices from 0, and {count} entries would make a matrix of "
                f"{least[0]} x {least[1]}; if they are identifiers, use overt.Entries.from_ids"
            )
        return least
    try:
        m, n = (whole("shape", size) for size in given)
    except (TypeError, ValueError) as error:
        raise InputError(f"shape must be (rows, columns), got {given!r} ({error})") from None
    if m < least[0] or n < least[1]:
        raise InputError(f"shape must be at least {least} to hold the given indices, got {(m, n)}")
    return m, n
