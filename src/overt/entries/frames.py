"""Data frames of any library: their columns, and which are row, column, value and time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import Array, InputError, plain_array
from overt.entries.identifiers import as_identifiers, holds_whole, is_missing

ROW_NAMES = """user userid user_id row row_id customer customer_id customerid member member_id
visitor visitorid visitor_id session session_id"""

COL_NAMES = """item itemid item_id movie movieid movie_id col column product product_id productid
sku article article_id book book_id track track_id song song_id business_id"""

ROLES = {
    "row": ROW_NAMES.split(),
    "col": COL_NAMES.split(),
    "value": ["rating", "value", "score", "stars", "count", "plays", "quantity"],
    "time": ["time", "timestamp", "date", "datetime", "at", "ts", "created_at"],
}
"""Names by which columns are known for what they are."""

MIN_PAIRS = 20
"""Lines from which different pairs in two columns are no accident."""


@dataclass(frozen=True)
class Frame:
    """The columns of a data frame as arrays, and its index if its library has one (pandas)."""

    columns: dict[Any, Array]
    index: Any = None


def is_frame(X: Any) -> bool:
    """Return whether this is a data frame, an Arrow table, a lazy frame or a relation."""
    if isinstance(X, (np.ndarray, list, tuple)):
        return False
    # Asked of the class, where nothing is computed.
    return hasattr(type(X), "columns") or hasattr(X, "columns")


def _narwhals(X: Any) -> Any:
    """Return a frame of any library as one of narwhals, None for anything else."""
    import narwhals

    found = narwhals.from_native(X, pass_through=True)
    return (
        found if isinstance(found, (narwhals.DataFrame, narwhals.LazyFrame)) else None
    )


def read_frame(X: Any) -> Frame:
    """Return the columns of a pandas or polars frame, an Arrow table or a DuckDB relation."""
    import narwhals

    if hasattr(X, "fetchnumpy"):  # a relation of DuckDB, without need of pyarrow
        found = X.fetchnumpy()
        for name, column in found.items():
            if np.ma.is_masked(column):
                mask = np.ma.getmaskarray(column)
                found[name] = np.where(mask, None, column.data.astype(object))
        return Frame(found)
    names = list(getattr(X, "columns", ())) if not hasattr(X, "collect_schema") else []
    if len(set(names)) < len(names):
        raise InputError(
            f"columns must have different names, got {', '.join(map(str, names))}"
        )
    found = _narwhals(X)
    if found is None:  # of a library that narwhals does not know
        return Frame({name: np.asarray(X[name]) for name in names})
    if isinstance(found, narwhals.LazyFrame):
        found = found.collect()
    # By place: a column of pandas may be named by a number.
    names = found.columns
    columns = dict(
        zip(names, (column.to_numpy() for column in found.iter_columns()), strict=True)
    )
    return Frame(columns, narwhals.maybe_get_index(found))


def role_of(name: Any) -> str | None:
    """Return the role that a column's name says, if any."""
    word = str(name).strip().lower()
    return next((role for role, names in ROLES.items() if word in names), None)


def find_roles(
    names: Sequence[Any], given: Mapping[str, Any], what: str = "the data"
) -> tuple[dict[str, int], list[str]]:
    """Return where row, col, value and time stand, and which of these were guessed by place.

    Names that are given count first, then known names, then the order of the other columns. A
    column whose name says another role is not guessed.
    """
    places: dict[str, int] = {}
    for role, name in given.items():
        if name is None:
            continue
        if not isinstance(name, (str, int, float, tuple)):
            raise InputError(f"{role} must be the name of a column, got {name!r:.60}")
        if name not in names:
            have = ", ".join(map(str, names))
            raise InputError(
                f"{what} has no column {name!r} for {role}; its columns are {have}"
            )
        places[role] = list(names).index(name)
    if len(set(places.values())) < len(places):
        raise InputError(
            f"{what} needs different columns for {', '.join(places)}, got {given}"
        )
    for place, name in enumerate(names):
        known = role_of(name)
        if known is not None and known not in places and place not in places.values():
            places[known] = place
    guessed = []
    left = [
        place
        for place, name in enumerate(names)
        if place not in places.values() and role_of(name) is None
    ]
    for role in ("row", "col", "value"):
        if role not in places and left:
            places[role] = left.pop(0)
            guessed.append(role)
    return places, guessed


def entry_columns(
    columns: Mapping[Any, Array], given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the names of a frame's row, col, value and time columns, or None if it is a table."""
    names = list(columns)
    places, guessed = find_roles(names, given, "the data frame")
    found = {role: names[place] for role, place in places.items()}
    if {"row", "col"} <= found.keys() and not {"row", "col"} & set(guessed):
        if "value" in guessed and len(names) != 3:
            del found["value"]  # another column need not hold values
        return found
    if len(names) > 3 and not found.keys() & {"row", "col", "value"} - set(guessed):
        _refuse_nameless_entries(columns)
    if len(names) != 3 or any(
        given.get(role) is not None for role in ("row", "col", "value")
    ):
        return None
    row, col, value = names
    first = [columns[row], columns[col]]
    is_value = role_of(value) == "value"
    gaps = any(map(_lacks_identifiers, first)) and not _has_missing(columns[value])
    if gaps and not is_value:
        raise InputError(
            f"the columns {row}, {col}, {value} look like row, column and value of entries, and "
            "identifiers are missing: leave these lines out (or, if this is a table, pass an array)"
        )
    if not is_value and not all(_may_identify(column) for column in first):
        return None
    if not is_value and not any(_is_text(column) for column in first):
        warnings.warn(
            f"the columns {row}, {col}, {value} are taken for row, column and value of entries; "
            "overt.Entries.from_frame(frame, row=..., col=..., value=...) avoids this warning, and "
            "an array is taken for a table",
            stacklevel=5,
        )
    return {"row": row, "col": col, "value": value}


def _refuse_nameless_entries(columns: Mapping[Any, Array]) -> None:
    """Refuse a frame whose first two columns are different pairs of whole numbers, none missing.

    Lines of a table repeat such pairs; entries, of which each is given once, do not.
    """
    row, col, *_ = columns
    pairs = [columns[row], columns[col]]
    if any(map(_has_missing, columns.values())) or not all(map(holds_numbers, pairs)):
        return
    different = len(set(zip(*(column.tolist() for column in pairs), strict=True)))
    if different == len(pairs[0]) >= MIN_PAIRS:
        raise InputError(
            f"no name says which of the columns {', '.join(map(str, columns))} are row, column "
            f"and value, and no cell is missing as in a table, but {row} and {col} look like "
            "entries: use overt.Entries.from_frame(frame, row=..., col=..., value=...), or pass "
            "a table as an array"
        )


def is_table(X: Any) -> bool:
    """Return whether this is a dense table: an array, lists, or a frame that holds no entries."""
    if is_frame(X):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return entry_columns(read_frame(X).columns, {}) is None
    X = X.data if isinstance(X, np.ma.MaskedArray) else X
    return not hasattr(X, "tocoo") and plain_array("X", X).ndim == 2


def read_table(frame: Frame, row: Any = None) -> tuple[Array, Array | None, Array]:
    """Return the values of a frame with a row of the matrix on each line, and identifiers.

    Values are NaN where missing. Rows are identified by the column `row`, by a column with a known
    name such as user, or by the index of a pandas frame; None stands for no identifiers.
    """
    columns = dict(frame.columns)
    key = (
        row
        if row is not None
        else next((c for c in columns if role_of(c) == "row"), None)
    )
    row_ids = None
    if key is not None:
        row_ids = as_identifiers(f"the column {key}", columns.pop(key))
    elif frame.index is not None:
        row_ids = _index_identifiers(frame.index)
    _check_different("rows", row_ids)
    col_ids = as_identifiers("names of columns", list(map(_plain_name, columns)))
    numbers: list[Array] = []
    for name, column in columns.items():
        try:
            numbers.append(np.ma.filled(np.ma.asarray(column, dtype=float), np.nan))
        except (TypeError, ValueError):
            raise InputError(
                f"a data frame of more than entries must hold numbers only, and {name} does not; "
                "name the columns with overt.Entries.from_frame(frame, row=..., col=..., "
                "value=...), or the one that names rows with row=... alone"
            ) from None
    return np.column_stack(numbers), row_ids, col_ids


def _plain_name(name: Any) -> Any:
    if isinstance(name, tuple):
        raise InputError(
            f"columns must have one name each, got {name!r}: flatten them first"
        )
    return name


def _index_identifiers(index: Any) -> Array:
    """Return the identifiers in the index of a pandas frame."""
    if getattr(index, "nlevels", 1) > 1:
        raise InputError(
            "the index of a data frame must have one level; use reset_index first"
        )
    return as_identifiers("the index of the data frame", np.asarray(index))


def _check_different(name: str, ids: Array | None) -> None:
    if ids is None or len(set(ids.tolist())) == len(ids):
        return
    values, counts = np.unique(ids, return_counts=True)
    raise InputError(
        f"{name} of a table must have different identifiers, got {values[counts.argmax()]!r} "
        f"{counts.max()} times; if the index means nothing, use reset_index(drop=True)"
    )


def _is_text(ids: Array) -> bool:
    return ids.dtype.kind in "UTO" and any(isinstance(x, str) for x in ids.tolist())


def _may_identify(ids: Array) -> bool:
    """Return whether a column may hold identifiers: strings, dates or whole numbers."""
    return ids.dtype.kind in "iuUTOM" or holds_whole(ids)


def holds_numbers(ids: Array) -> bool:
    """Return whether a column holds whole numbers."""
    return ids.dtype.kind in "iu" or holds_whole(ids)


def _has_missing(column: Array) -> bool:
    return column.dtype.kind in "fOM" and any(map(is_missing, column.tolist()))


def _lacks_identifiers(column: Array) -> bool:
    """Return whether a column of whole numbers has gaps."""
    if column.dtype.kind != "f" or not _has_missing(column):
        return False
    return holds_whole(column[~np.isnan(column)])
