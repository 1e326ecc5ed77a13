"""Tables of features as users have them, turned into numbers.

Numeric columns are divided by their standard deviation about the mean, categories become 0/1
columns about their frequency, and what is missing counts as the mean. A sparse matrix stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import InputError, plain_array
from overt._types import Array, Floats
from overt.entries.identifiers import is_missing

MOST = 500
"""Categories of a column that are distinguished, the most frequent; others count as missing."""

LARGEST = 1e75
"""Size of a number whose fourth power is finite."""


@dataclass(frozen=True)
class Column:
    """One column of a table: how many numbers it becomes is how many means it has."""

    name: str
    categories: list[str] | None  # None for a numeric column
    means: list[float]
    scale: float = 1.0

    @classmethod
    def learn(cls, name: str, values: Array) -> Column:
        """Read from a table's column what its numbers are measured from."""
        known = values[[not is_missing(x) for x in values.tolist()]]
        if not len(known):
            return cls(name, [], [])
        if _numeric(values):
            with np.errstate(over="ignore"):
                numbers = known.astype(float)
            if not np.all(np.abs(numbers) < LARGEST):
                raise InputError(
                    f"features must be finite and below {LARGEST:g}, or missing; {name!r} is not"
                )
            return cls(name, None, [float(numbers.mean())], float(numbers.std()) or 1.0)
        found, counts = np.unique(known.astype(str), return_counts=True)
        most = np.sort(np.argsort(-counts, kind="stable")[:MOST])
        return cls(name, found[most].tolist(), (counts[most] / len(known)).tolist())

    def encode(self, values: Array) -> Floats:
        """Return the column's numbers, (rows, numbers)."""
        known = np.array([not is_missing(x) for x in values.tolist()], dtype=bool)
        out = np.zeros((len(values), len(self.means)))
        if self.categories is None:
            try:
                out[known, 0] = (values[known].astype(float) - self.means[0]) / self.scale
            except (TypeError, ValueError):
                raise InputError(f"column {self.name!r} of the features must be numeric") from None
            return out
        names = values[known].astype(str)
        places = np.array(self.categories)
        out[known] = (names[:, None] == places) - np.array(self.means)
        out[known] *= np.isin(names, places)[:, None]
        return out


@dataclass(frozen=True)
class Encoder:
    """Encodes a table like the one it was learned from as numbers; sparse matrices stay."""

    width: int
    columns: list[Column] | None

    @classmethod
    def learn(cls, table: Any) -> Encoder:
        """Learn from a sparse matrix, an array, or a data frame."""
        if hasattr(table, "tocsr"):
            return cls(table.shape[1], None)
        columns = [Column.learn(name, values) for name, values in _columns(table)]
        if not any(column.means for column in columns):
            raise InputError("features must have a value that is not missing, got none")
        return cls(len(columns), columns)

    def encode(self, table: Any) -> Any:
        """Return (rows, numbers)."""
        if self.columns is None:
            rows = table.tocsr() if hasattr(table, "tocsr") else np.atleast_2d(table)
            values = rows.data if hasattr(rows, "indptr") else rows
            if np.iscomplexobj(values) or not np.all(np.abs(values) < LARGEST):
                raise InputError(
                    f"features in a sparse matrix must be real, finite and below {LARGEST:g}"
                )
            if rows.shape[1] != self.width:
                raise InputError(
                    f"features must have {self.width} columns as in fit, got {rows.shape[1]}"
                )
            return rows.astype(float)
        found = dict(_columns(table))
        names = [column.name for column in self.columns]
        if sorted(found) != sorted(names):
            raise InputError(
                f"features must have the columns of fit ({', '.join(names[:6])}), got "
                f"{', '.join(list(found)[:6]) or 'none'}"
            )
        parts = [column.encode(found[column.name]) for column in self.columns]
        return np.concatenate([np.zeros((len(next(iter(found.values()))), 0)), *parts], axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers."""
        columns = None if self.columns is None else [vars(column) for column in self.columns]
        return {"width": self.width, "columns": columns}

    @classmethod
    def from_dict(cls, kept: dict[str, Any] | None) -> Encoder | None:
        """Rebuild what `to_dict` gave."""
        if kept is None:
            return None
        columns = kept["columns"]
        return cls(kept["width"], None if columns is None else [Column(**c) for c in columns])


def _columns(table: Any) -> list[tuple[str, Array]]:
    """Return names and values of a table's columns: a data frame, a mapping, or an array."""
    if isinstance(table, dict) or hasattr(table, "columns"):
        names = list(table) if isinstance(table, dict) else list(table.columns)
        if not names:
            raise InputError("features must have at least one column, got none")
        return [(str(name), np.atleast_1d(plain_array("features", table[name]))) for name in names]
    values = plain_array("features", table)
    if values.ndim == 1:
        values = values[None]
    if values.ndim != 2 or not values.size or values.dtype.kind not in "biufOUS":
        raise InputError(
            "features must be a two-dimensional array, a sparse matrix or a data frame, got shape "
            f"{values.shape}, {values.dtype}"
        )
    return [(str(i), values[:, i]) for i in range(values.shape[1])]


def _numeric(values: Array) -> bool:
    if values.dtype.kind in "biuf":
        return True
    if values.dtype.kind != "O":
        return False
    numbers = (int, float, np.number, np.bool_)
    return all(isinstance(x, numbers) for x in values.tolist() if not is_missing(x))
