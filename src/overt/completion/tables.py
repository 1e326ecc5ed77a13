"""Dense tables that are no matrix of one quantity belong to `DropoutImputer`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats
from overt.completion.settings import rating_scale
from overt.entries import Entries, observed
from overt.entries.frames import is_table

MIN_ENTRIES = 5
"""Columns with fewer entries do not show their unit."""

MAX_RATIO = 3.0
"""Columns have different units where their standard deviations differ by more than this (their
first and last tenth left out), or their centers by its square times a typical one. Hours of a day
and questions of a survey stay below it; the columns of wine and penguins are far above it."""


MAX_LEVELS = 20
"""Different values up to which a table may hold ratings, answers or clicks."""

MAX_COLUMNS = 10
"""Columns up to which real values are a table rather than a matrix. The real tables on which
completion was no better than the column mean (iris, penguins, wages of males) have at most 5."""


def read_entries(X: Any, y: Any, missing: str) -> Entries:
    """Return the observed entries of what users give, unless it is a table for the imputer."""
    entries = observed(X, y)
    matrix = y is None and not isinstance(X, Entries)
    if matrix and missing == "unknown" and is_table(X):
        check_table(entries)
    return entries


def check_table(entries: Entries) -> None:
    """Refuse a dense table whose columns have different units; warn of one with real values."""
    if different_units(entries):
        raise InputError(
            "the columns of X have different units or levels: DropoutImputer fills the holes of "
            "such tables; DropoutCompletion is for a matrix of one quantity (if X is one, pass "
            "overt.Entries.from_matrix(X))"
        )
    real = len(np.unique(entries.values)) > MAX_LEVELS and not rating_scale(entries.values)
    if real and entries.shape[1] <= MAX_COLUMNS and _unnamed(entries.row_ids):
        warnings.warn(
            "X is a dense table of real values: DropoutImputer fills the holes of tables, often "
            "with smaller errors. If X is a matrix of one quantity, overt.Entries.from_matrix(X) "
            "says so without this warning",
            stacklevel=4,
        )


def _unnamed(row_ids: Array | None) -> bool:
    """Return whether rows are only numbered; the rows of a pivoted frame have names."""
    return row_ids is None or np.array_equal(row_ids, np.arange(len(row_ids)))


def different_units(entries: Entries) -> bool:
    """Return whether the columns of a table have different units, as far as they show."""
    counts = np.bincount(entries.cols, minlength=entries.shape[1])
    shown = counts >= MIN_ENTRIES
    if np.count_nonzero(shown) < max(2, len(shown) // 2):
        return False
    order = np.argsort(entries.cols, kind="stable")
    parts = np.split(entries.values[order], np.cumsum(counts)[:-1])
    moments = np.array([_robust(y) for y, many in zip(parts, shown, strict=True) if many])
    center, scale = moments.T
    low, high = np.quantile(scale, [0.1, 0.9])
    apart = np.ptp(center) > MAX_RATIO**2 * np.median(scale)
    return bool(high > MAX_RATIO * low or apart)


def _robust(y: Floats) -> tuple[float, float]:
    """Mean and standard deviation, values clipped at 5 quartile distances from the quartiles."""
    low, high = np.quantile(y, [0.25, 0.75])
    reach = 5 * (high - low)
    if reach > 0:
        y = np.clip(y, low - reach, high + reach)
    return float(y.mean()), float(y.std()) or 1.0
