"""Data frames of any library: their columns, and which of these are row, column, value and time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from overt._check import InputError, plain_array
from overt._types import Array

ROLES: dict[str, tuple[str, ...]] = {
    "row": ("user", "userid", "user_id", "row", "row_id", "customer", "customer_id", "customerid",
            "member", "member_id", "visitor", "visitorid", "visitor_id", "session", "session_id"),
    "col": ("item", "itemid", "item_id", "movie", "movieid", "movie_id", "col", "column", "product",
            "product_id", "productid", "sku", "article", "article_id", "book", "book_id", "track",
            "track_id", "song", "song_id", "business_id"),
    "value": ("rating", "value", "score", "stars", "count", "plays", "quantity"),
    "time": ("time", "timestamp", "date", "datetime", "at", "ts", "created_at"),
}  # fmt: skip
"""Names by which columns are known for what they are."""


def is_frame(X: Any) -> bool:
    """Return whether this is a data frame, an Arrow table, a lazy frame or a relation."""
    if isinstance(X, np.ndarray) or hasattr(X, "collect_schema"):  # lazy: it would have to look
        return not isinstance(X, np.ndarray)
    return hasattr(X, "columns") or hasattr(X, "column_names")


def columns_of(frame: Any) -> dict[str, Array]:
    """Return the columns of a pandas or polars frame, an Arrow table or a DuckDB relation."""
    if hasattr(frame, "fetchnumpy"):
        return {name: _told(column) for name, column in frame.fetchnumpy().items()}
    if hasattr(frame, "collect") and hasattr(frame, "lazy"):
        frame = frame.collect()
    names = frame.column_names if hasattr(frame, "column_names") else list(frame.columns)
    if len(set(names)) < len(names):
        raise InputError(f"columns must have different names, got {', '.join(map(str, names))}")
    return {name: np.asarray(frame[name]) for name in names}


def _told(column: Any) -> Array:
    """Return a column with NaN or None where a mask says that nothing is known."""
    if not np.ma.is_masked(column):
        return np.asarray(column)
    missing: Any = np.nan if column.dtype.kind in "biuf" else None
    return np.where(np.ma.getmaskarray(column), missing, np.asarray(column))


def role_of(name: Any) -> str | None:
    """Return the role that a column's name says, if any."""
    return next((role for role, names in ROLES.items() if str(name).strip().lower() in names), None)


def find_roles(
    names: Sequence[Any], said: Mapping[str, Any], what: str = "the data"
) -> tuple[dict[str, int], list[str]]:
    """Return where row, col, value and time stand, and which of these were guessed by place.

    What is said counts first, then known names, then the order of what is left; a column whose name
    says another role is not taken by place.
    """
    places: dict[str, int] = {}
    for role, name in said.items():
        if name is None:
            continue
        if not isinstance(name, (str, int, float, tuple)):
            raise InputError(f"{role} must be the name of a column, got {name!r:.60}")
        if name not in names:
            have = ", ".join(map(str, names))
            raise InputError(f"{what} has no column {name!r} for {role}; its columns are {have}")
        places[role] = list(names).index(name)
    if len(set(places.values())) < len(places):
        raise InputError(f"{what} needs different columns for {', '.join(places)}, got {said}")
    for i, name in enumerate(names):
        known = role_of(name)
        if known is not None and known not in places and i not in places.values():
            places[known] = i
    guessed = []
    left = [i for i, name in enumerate(names) if i not in places.values() and role_of(name) is None]
    for role in ("row", "col", "value"):
        if role not in places and left:
            places[role] = left.pop(0)
            guessed.append(role)
    return places, guessed


def entry_columns(columns: Mapping[Any, Array], said: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the names of a frame's row, col, value and time columns, or None if it is a table."""
    names = list(columns)
    places, guessed = find_roles(names, said, "the data frame")
    found = {role: names[place] for role, place in places.items()}
    if {"row", "col"} <= found.keys() and not {"row", "col"} & set(guessed):
        if "value" in guessed and len(names) != 3:
            del found["value"]  # what else stands there is not known to be a value
        return found
    if len(names) != 3:
        return None
    row, col, value = names
    first = [np.asarray(columns[name]) for name in (row, col)]
    certain = role_of(value) == "value"
    if not (certain or all(_identifying(ids) for ids in first)):
        return None
    if not certain and not any(_text(ids) for ids in first):
        warnings.warn(
            f"the columns {row}, {col}, {value} are taken for row, column and value of entries; "
            "overt.Entries.from_frame(frame, row=..., col=..., value=...) says so, and an array "
            "says that it is a table",
            stacklevel=5,
        )
    return {"row": row, "col": col, "value": value}


def is_table(X: Any) -> bool:
    """Return whether this is a dense table: an array, lists, or a frame that holds no entries."""
    if is_frame(X):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return entry_columns(columns_of(X), {}) is None
    X = X.data if isinstance(X, np.ma.MaskedArray) else X
    return not hasattr(X, "tocoo") and plain_array("X", X).ndim == 2


def dense(columns: Mapping[Any, Array]) -> Array:
    """Return the numbers of a table, NaN where they are missing."""
    found: list[Array] = []
    for name, column in columns.items():
        try:
            found.append(np.ma.filled(np.ma.asarray(column, dtype=float), np.nan))
        except (TypeError, ValueError):
            raise InputError(
                f"a data frame of more than entries must hold numbers only, and {name} does not; "
                "name the columns with overt.Entries.from_frame(frame, row=..., col=..., value=...)"
            ) from None
    return np.column_stack(found)


def _text(ids: Array) -> bool:
    return ids.dtype.kind in "UTO" and any(isinstance(x, str) for x in ids.tolist())


def _identifying(ids: Array) -> bool:
    """Return whether a column may hold identifiers: strings or whole numbers."""
    if ids.dtype.kind == "f":
        return bool(np.all(ids == np.floor(ids)))
    return ids.dtype.kind in "iuUTO"
