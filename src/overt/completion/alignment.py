"""Whose features a table's rows are: its rows brought into the order of the entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from overt._check import InputError
from overt._types import Array
from overt.completion.forms.encoding import Encoder
from overt.entries import Entries
from overt.entries.frames import is_frame, read_frame
from overt.entries.identifiers import UNKNOWN, IdentifierIndex, as_identifiers, as_index


def with_features(
    entries: Entries, tables: Sequence[Any], *, allowed: bool
) -> tuple[Entries, tuple[Any, Any], tuple[Encoder | None, Encoder | None]]:
    """Bring tables of the rows' and of the columns' features into the order of the entries.

    A table has a row for each index, or comes as a pair (identifiers, table), or as a data frame
    whose index holds them. Rows that the entries do not have make the matrix larger.
    """
    if not allowed and any(table is not None for table in tables):
        raise InputError('row_features and col_features need drop_prob="learn"')
    given: list[Any] = []
    encoders: list[Encoder | None] = []
    for side, table in enumerate(tables):
        name = ("row_features", "col_features")[side]
        if table is None:
            given.append(None)
            encoders.append(None)
            continue
        ids, table = _identified(name, table)
        known = (entries.row_ids, entries.col_ids)[side]
        encoder = Encoder.learn(table)
        numbers = encoder.encode(table)
        order, entries = _places(name, ids, known, entries, side, numbers.shape[0])
        blank = numbers[:1] * 0 if numbers.shape[0] else numbers
        stacked = _stack(numbers, blank)
        given.append(stacked[np.where(order < 0, numbers.shape[0], order)])
        encoders.append(encoder)
    return entries, (given[0], given[1]), (encoders[0], encoders[1])


def _identified(name: str, table: Any) -> tuple[Array | None, Any]:
    """Return the identifiers of a table's rows, None where they are indices, and the table."""
    if isinstance(table, tuple) and len(table) == 2:
        return as_identifiers(f"identifiers of {name}", table[0]), table[1]
    index = read_frame(table).index if is_frame(table) else None
    if index is None:
        return None, table
    ids = as_identifiers(f"the index of {name}", np.asarray(index))
    counts_up = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids)))
    return (None if counts_up else ids), table


def _places(
    name: str, ids: Array | None, known: Array | None, entries: Entries, side: int, count: int
) -> tuple[Array, Entries]:
    """Return which row of the table each row of a side is (-1 for none), and entries with all."""
    size = entries.shape[side]
    if ids is not None and len(ids) != count:
        raise InputError(f"{name} has {count} rows and {len(ids)} identifiers")
    if known is None:
        if ids is None and count < size:
            raise InputError(f"{name} must have a row for each of {size} indices, got {count}")
        at = np.arange(count) if ids is None else as_index(f"identifiers of {name}", ids)
        all_ids = None
        size = max(size, int(at.max(initial=-1)) + 1)
    elif ids is None:
        raise InputError(
            f"entries have identifiers, so {name} must be a pair (identifiers, table), or a data "
            "frame whose index holds them"
        )
    else:
        at, all_ids = IdentifierIndex(name, size, known).extend(ids)
        size = len(all_ids)
    if len(np.unique(at)) < len(at):
        raise InputError(f"{name} must have different identifiers")
    order = np.full(size, UNKNOWN)
    order[at] = np.arange(count)
    return order, _sized(entries, side, size, all_ids)


def _sized(entries: Entries, side: int, count: int, ids: Array | None = None) -> Entries:
    m, n = entries.shape
    shape = (count, n) if side == 0 else (m, count)
    named = {} if ids is None else {("row_ids", "col_ids")[side]: ids}
    return replace(entries, shape=shape, truth=None, **named)


def _stack(numbers: Any, blank: Any) -> Any:
    """Return the numbers with a row of zeros, that of rows without features."""
    if hasattr(numbers, "tocsr"):
        from scipy import sparse

        return sparse.vstack([numbers, blank]).tocsr()
    return np.concatenate([numbers, np.zeros((1, numbers.shape[1]))])
