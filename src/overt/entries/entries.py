"""Observed entries of a matrix: the one type that estimators take, from whatever users have."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np

from overt._check import (
    Array,
    Floats,
    InputError,
    InputTypeError,
    Ints,
    Seed,
    choice,
    doubles,
    generator,
    number,
    plain_array,
    whole,
)
from overt.entries import frames
from overt.entries.identifiers import (
    IdentifierIndex,
    as_identifiers,
    as_index,
    factorize,
    is_missing,
)

MAX_ROWS_PER_ENTRY = 1000
"""Rows (or columns) for each entry beyond which indices must be identifiers."""

MAX_UNCHECKED_SIZE = 10_000_000
"""Rows (or columns) up to which the shape is never in doubt."""

MAX_VALUE = 1e75
"""Size of values beyond which fourth powers leave the range of floating point."""

DUPLICATES = ("mean", "last", "error")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Entries:
    """Observed entries (rows[n], cols[n]) of a matrix, with their values.

    Parameters
    ----------
    rows, cols
        Indices from 0, also where there are identifiers.
    values
        Finite numbers; an entry may be observed more than once and then counts as often.
    shape
        Of the matrix, (rows, columns); the smallest that holds the indices if None.
    row_ids, col_ids
        The identifier of each index, where rows or columns have one. A model that is fitted to
        entries with identifiers takes and returns identifiers.
    times
        When each entry was observed, where that is known: numbers, dates, or dates as text.
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
        self,
        rows: Any,
        cols: Any,
        values: Any,
        shape: Any = None,
        row_ids: Any = None,
        col_ids: Any = None,
        times: Any = None,
        truth: Any = None,
    ) -> None:
        rows = as_index("rows", rows)
        cols = as_index("cols", cols)
        values = checked_values(values)
        if not len(rows) == len(cols) == len(values):
            raise InputError(
                "rows, cols and values must have the same length, got "
                f"{len(rows)}, {len(cols)}, {len(values)}"
            )
        if not len(values):
            raise InputError("there must be at least one observed entry, got 0")
        shape = _checked_shape(
            shape, (int(rows.max()) + 1, int(cols.max()) + 1), len(values)
        )
        row_ids = _checked_ids("row_ids", row_ids, shape[0])
        col_ids = _checked_ids("col_ids", col_ids, shape[1])
        times = _checked_times(times, len(values))
        truth = None if truth is None else doubles("truth", truth, ndim=2)
        if truth is not None and truth.shape != shape:
            raise InputError(f"truth must have the shape {shape}, got {truth.shape}")
        checked = (rows, cols, values, shape, row_ids, col_ids, times, truth)
        for name, value in zip(self.__dataclass_fields__, checked, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def from_matrix(cls, A: Any) -> Self:
        """Take what a sparse matrix stores, or what is neither NaN nor masked in a dense one."""
        if hasattr(A, "tocoo"):
            entries = A.tocoo()
            if len(entries.shape) != 2:
                raise InputError(
                    f"the matrix must be two-dimensional, got {entries.shape}"
                )
            return cls(entries.row, entries.col, entries.data, entries.shape)
        if hasattr(A, "detach"):
            A = plain_array("the matrix", A)
        try:
            if np.iscomplexobj(A):
                raise TypeError("Complex data not supported")
            with np.errstate(
                over="ignore"
            ):  # numbers beyond float64 are refused as infinite
                dense: Floats = np.ma.filled(np.ma.asarray(A, dtype=float), np.nan)
        except Exception as error:
            raise InputTypeError(
                "observed entries must be overt.Entries, a scipy sparse matrix, an array with NaN "
                f"for what is missing, or a data frame, got {type(A).__name__} ({error})"
            ) from None
        if dense.ndim != 2:
            raise InputError(
                f"the matrix must be two-dimensional, got shape {dense.shape}"
            )
        rows, cols = np.nonzero(~np.isnan(dense))
        return cls(rows, cols, dense[rows, cols], dense.shape)

    @classmethod
    def from_ids(cls, rows: Any, cols: Any, values: Any, times: Any = None) -> Self:
        """Take rows and columns that are named by identifiers: whole numbers, strings or dates."""
        row_ids, row_codes = factorize(as_identifiers("rows", rows))
        col_ids, col_codes = factorize(as_identifiers("cols", cols))
        shape = (len(row_ids), len(col_ids))
        return cls(row_codes, col_codes, values, shape, row_ids, col_ids, times)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        row: Any = None,
        col: Any = None,
        value: Any = None,
        time: Any = None,
        duplicates: str = "mean",
    ) -> Self:
        """Take a frame of pandas or polars (lazy too), an Arrow table or a DuckDB relation.

        It holds entries if columns are named (`row`, `col`, `value`, `time`), have known names
        (user, item, rating, timestamp and the like), or are three of which two are identifiers.
        Otherwise it is a table with a row of the matrix on each line, NaN or null where missing:
        its columns are identified by their names, and its rows by the column `row`, by a column
        with a known name, or by the index of a pandas frame. A guess is announced by a warning.

        `duplicates` says what becomes of an entry given more than once, as in a file: "mean"
        averages, "last" keeps the latest one, or without times the last, "error" refuses.
        """
        choice("duplicates", duplicates, DUPLICATES)
        if not frames.is_frame(frame):
            raise InputTypeError(
                f"frame must be a data frame, got {type(frame).__name__}"
            )
        read = frames.read_frame(frame)
        columns = read.columns
        places = frames.entry_columns(
            columns, {"row": row, "col": col, "value": value, "time": time}
        )
        if places is None:
            return cls._from_table(read, row)
        found = {role: columns[name] for role, name in places.items()}
        clicks = "value" not in found
        values = np.ones(len(found["row"])) if clicks else found["value"]
        times = found.get("time")
        if times is not None and any(map(is_missing, times.tolist())):
            warnings.warn(
                f"{places['time']} is not given on every line, and is left out",
                stacklevel=2,
            )
            times = None
        entries = cls.from_ids(found["row"], found["col"], values, times)
        return entries._merged(
            "count" if clicks and duplicates != "error" else duplicates
        )

    @classmethod
    def _from_table(cls, read: frames.Frame, row: Any) -> Self:
        names = ", ".join(map(str, read.columns))
        if len(read.columns) < 3:
            raise InputError(
                "a data frame must have three columns (row, column, value) or be a table, got "
                f"{len(read.columns)}: {names}"
            )
        values, row_ids, col_ids = frames.read_table(read, row)
        return replace(cls.from_matrix(values), row_ids=row_ids, col_ids=col_ids)

    @classmethod
    def sample(cls, truth: Any, count: int, seed: Seed = 0) -> Self:
        """Observe `count` different entries of a known matrix, sampled uniformly."""
        truth = doubles("truth", truth, ndim=2)
        count = whole("count", count)
        if count > truth.size:
            raise InputError(
                f"count must be at most {truth.size} (all entries), got {count}"
            )
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
        chosen = np.atleast_1d(plain_array("chosen", chosen))
        if not chosen.size:
            chosen = chosen.astype(int)
        found: dict[str, Any] = {}
        try:
            for name in ("rows", "cols", "values", "times"):
                array = getattr(self, name)
                found[name] = None if array is None else array[chosen]
        except (IndexError, OverflowError) as error:
            raise InputError(
                f"chosen must be some of {len(self)} entries: {error}"
            ) from None
        return replace(self, **found)

    def _merged(self, how: str) -> Self:
        """Merge entries that are given more than once: first ones stay, with the latest time.

        `how` is "mean", "last", "error" or "count" (the value is how often an entry was given).
        """
        keys = self.rows * self.shape[1] + self.cols
        _, first, place, sizes = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        count = len(self) - len(first)
        if not count:
            return self
        if how == "error":
            raise InputError(
                f"there are {count} duplicate entries; duplicates 'mean' or 'last' merges them"
            )
        in_order = np.argsort(first)
        first = first[in_order]
        times = None
        by_time = np.arange(len(self))
        if self.times is not None:
            by_time = np.argsort(self.times, kind="stable")
            latest = np.full(len(first), -np.inf)
            np.maximum.at(latest, place, self.times)
            times = latest[in_order]
        values = sizes.astype(float)
        done = "averaged"
        if how == "mean":
            values = np.bincount(place, self.values) / sizes
        elif how == "last":
            values[place[by_time]] = self.values[by_time]  # the last one written stays
            done = "the last one is used"
        if how != "count":
            warnings.warn(f"{count} duplicate entries: {done}", stacklevel=3)
        rows = self.rows[first]
        cols = self.cols[first]
        return replace(self, rows=rows, cols=cols, values=values[in_order], times=times)

    def split(self, holdout: float = 0.1, seed: Seed = 0) -> tuple[Self, Self]:
        """Return (train, holdout); the holdout is the start of a random permutation."""
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

        return coo_array(
            (self.values, (self.rows, self.cols)), shape=self.shape
        ).tocsr()


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
        if not rows.dtype.kind == cols.dtype.kind == "i":
            return Entries.from_ids(rows, cols, y)
        return Entries(rows, cols, y)
    if isinstance(X, Entries):
        return X
    if frames.is_frame(X):
        return Entries.from_frame(X)
    return Entries.from_matrix(X)


def pairs(name: str, given: Any) -> tuple[Array, Array]:
    """Return rows and columns of an (n, 2) array of pairs, or of a frame, by known names."""
    if frames.is_frame(given):
        named = frames.read_frame(given).columns
        columns = list(named.values())
        shape = (len(columns[0]) if columns else 0, len(columns))
        places, guessed = frames.find_roles(list(named), {})
        is_known = len(columns) <= 3 or not {"row", "col"} & set(guessed)
        if is_known and {"row", "col"} <= places.keys():
            columns = [columns[places["row"]], columns[places["col"]]]
    else:
        both = plain_array(name, given)
        shape = both.shape
        columns = list(both.T) if both.ndim == 2 else []
    if len(columns) != 2:
        raise InputError(
            f"{name} must be an (n, 2) array of (row, col) pairs, got shape {shape}"
        )
    return as_identifiers("rows", columns[0]), as_identifiers("cols", columns[1])


def find_pairs(
    row_index: IdentifierIndex, col_index: IdentifierIndex, rows: Any, cols: Any = None
) -> tuple[tuple[Ints, Ints], tuple[Any, Any]]:
    """Return the positions of entries (UNKNOWN if never seen), and what users call them.

    `rows` alone may be Entries, the pairs of a file, or an (n, 2) array or frame of pairs. Entries
    mean what they say: identifiers where they have them, positions otherwise.
    """
    if cols is None and hasattr(rows, "row_ids"):
        a, row_labels = _find_side(row_index, rows.rows, rows.row_ids)
        b, col_labels = _find_side(col_index, rows.cols, rows.col_ids)
        return (a, b), (row_labels, col_labels)
    if cols is None:
        rows, cols = pairs("without cols, rows", rows)
    a = row_index.find(rows)
    b = col_index.find(cols)
    if len(a) != len(b):
        raise InputError(
            f"rows and cols must have the same length, got {len(a)} and {len(b)}"
        )
    return (a, b), (rows, cols)


def _find_side(
    side: IdentifierIndex, positions: Ints, ids: Array | None
) -> tuple[Ints, Array]:
    if ids is None:
        return side.by("index").find(positions), positions
    return side.find(ids)[positions], ids[positions]


def checked_values(value: Any) -> Floats:
    """Return finite numbers, of any library or as text."""
    values = plain_array("values", value)
    if values.dtype.kind in "OUT":  # numbers of any library, or as text
        with suppress(TypeError, ValueError):
            values = values.astype(np.float64)
    if values.ndim != 1 or not (
        np.issubdtype(values.dtype, np.number) or values.dtype == bool
    ):
        raise InputTypeError(
            "values must be a one-dimensional array of numbers, got shape "
            f"{values.shape}, {values.dtype}{_not_a_number(values)}"
        )
    if np.iscomplexobj(values):
        raise InputTypeError("values must be real numbers. Complex data not supported")
    with np.errstate(over="ignore"):
        values = values.astype(np.float64, copy=False)
    is_bad = ~np.isfinite(values)
    if is_bad.any():
        raise InputError(
            f"values must be finite, got {np.count_nonzero(is_bad)} NaN or infinite value(s), the "
            f"first at position {int(is_bad.argmax())}"
        )
    largest = max(values.max(), -values.min()) if len(values) else 0.0
    if largest > MAX_VALUE:
        raise InputError(
            f"values must be at most {MAX_VALUE:g} in size, as their powers are summed, got "
            f"{largest:g}; divide them by a constant"
        )
    return values


def _not_a_number(values: Array) -> str:
    """Return the first object that is no number, as a part of a sentence."""
    for x in values.ravel().tolist() if values.dtype.kind in "OUT" else ():
        try:
            float(x)
        except (TypeError, ValueError):
            return f", such as {x!r:.60}"
    return ""


def _checked_times(given: Any, count: int) -> Array | None:
    """Return when entries were observed as numbers: those given, or seconds since 1970."""
    times = _one_each("times", given, count)
    if times is None:
        return None
    if times.dtype.kind not in "iufM":
        try:
            times = np.array([_moment(t) for t in times.tolist()])
        except (TypeError, ValueError) as error:
            raise InputError(f"times must be numbers or dates ({error})") from None
    if times.dtype.kind in "fM":
        missing = np.count_nonzero(times != times)
        if missing:
            raise InputError(
                f"times must be given for all entries, got {missing} missing"
            )
    if times.dtype.kind == "M":
        return times.astype("datetime64[us]").astype(float) / 1e6
    return times


def _moment(when: Any) -> Any:
    """Return a date as datetime64, in universal time where it has a zone."""
    when = datetime.fromisoformat(when) if isinstance(when, str) else when
    if getattr(when, "tzinfo", None) is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(when, "us")


def _one_each(name: str, given: Any, count: int) -> Array | None:
    """Return an array of `count` things, or None."""
    found = None if given is None else plain_array(name, given)
    if found is not None and found.shape != (count,):
        raise InputError(f"{name} must have shape ({count},), got {found.shape}")
    return found


def _checked_ids(name: str, given: Any, count: int) -> Array | None:
    """Return an identifier for each of `count` rows or columns, all different, or None."""
    if given is None:
        return None
    _one_each(name, given, count)
    ids = as_identifiers(name, given)
    if len(set(ids.tolist())) < len(ids):
        raise InputError(f"{name} must all be different")
    return ids


def _checked_shape(given: Any, least: tuple[int, int], count: int) -> tuple[int, int]:
    """Return (rows, columns) of a matrix that holds the entries."""
    if given is None:
        if max(least) > max(MAX_ROWS_PER_ENTRY * count, MAX_UNCHECKED_SIZE):
            raise InputError(
                f"rows and cols are indices from 0, and {count} entries would make a matrix of "
                f"{least[0]} x {least[1]}; if they are identifiers, use overt.Entries.from_ids"
            )
        return least
    try:
        m, n = (whole("shape", size) for size in given)
    except Exception as error:
        raise InputError(
            f"shape must be (rows, columns), got {given!r} ({error})"
        ) from None
    if m < least[0] or n < least[1]:
        raise InputError(
            f"shape must be at least {least} to hold the given indices, got {(m, n)}"
        )
    return m, n
