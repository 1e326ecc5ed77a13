"""How values enter a model and predictions leave it.

same       as they are
columns    (value - center_b) / scale_b for column b of a table whose columns have different
           units; predictions are brought back
strength   from .2 to 1: how much a chosen pair is wanted, where what is not chosen counts as
           0; predictions stay between 0 and 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overt._check import InputError
from overt._types import Array, Floats
from overt.entries import Entries

LEAST = 0.2
"""Strength of the smallest value: chosen, though not liked, is more than not chosen."""

SKEWED = 4
"""Values that reach so many times their median are counts, of which logarithms are taken."""

FEWEST = 5
"""Columns with fewer entries do not say what their unit is."""

DIFFERENT = 3
"""Units differ where so many times another column's spread is met, or lies between two columns."""


@dataclass(frozen=True, eq=False)
class Units:
    """Centers and scales, one for all columns or one for each and for a column never seen."""

    kind: str
    center: Floats
    scale: Floats
    log: bool = False

    def inward(self, cols: Array, values: Any) -> Floats:
        """Return values as the model takes them."""
        y = np.asarray(values, dtype=float)
        if self.kind == "same":
            return y
        if self.log:
            y = np.log1p(np.maximum(y, 0))
        y = (y - self._of(self.center, cols)) / self._of(self.scale, cols)
        return np.clip(y, LEAST, 1) if self.kind == "strength" else y

    def outward(self, cols: Array, predicted: Floats) -> Floats:
        """Return predictions as users want them."""
        if self.kind != "columns":
            return predicted
        return self._of(self.center, cols) + self._of(self.scale, cols) * predicted

    def spread(self, cols: Array) -> Any:
        """Return what standard deviations of predictions are multiplied by."""
        return self._of(self.scale, cols) if self.kind == "columns" else 1.0

    def enter(self, entries: Entries) -> Entries:
        """Return entries as the model takes them; zeros are what absent strengths are."""
        if self.kind == "same":
            return entries
        if self.kind == "strength":
            entries = chosen(entries)
        return replace(entries, values=self.inward(entries.cols, entries.values))

    def grown(self, count: int) -> Units:
        """Return units for `count` columns; new ones have those of a column never seen."""
        if len(self.scale) == 1:
            return self
        center, scale = (
            np.append(x[:-1], np.full(count + 2 - len(x), x[-1])) for x in (self.center, self.scale)
        )
        return replace(self, center=center, scale=scale)

    def arrays(self) -> dict[str, Array]:
        """Return what storage keeps beside `kind` and `log`."""
        return {"unit_center": self.center, "unit_scale": self.scale}

    @staticmethod
    def from_arrays(kind: str, log: bool, arrays: Mapping[str, Array]) -> Units:
        """Take back what storage kept."""
        return Units(kind, arrays["unit_center"], arrays["unit_scale"], log)

    @staticmethod
    def _of(numbers: Floats, cols: Array) -> Any:
        return numbers[0] if len(numbers) == 1 else numbers[cols]


def chosen(entries: Entries) -> Entries:
    """Return entries without zeros, which are what absent strengths are, unless all are."""
    y = entries.values
    drops = y.min() == 0 and y.max() > 0
    return entries.take(np.flatnonzero(y != 0)) if drops else entries


def refuse_dislikes(values: Floats) -> None:
    """Refuse negative values for missing="negative", where they would count as weak likes."""
    if len(values) and values.min() < 0:
        raise InputError(
            'missing="negative" takes values as strengths of a choice, from 0, and what is absent '
            f'as 0; got {values.min():g}. Leave out what was rejected, or use missing="unknown"'
        )


SAME = Units("same", np.zeros(1), np.ones(1))


def choose(missing: str, scale: Any, entries: Entries, table: bool) -> Units:
    """Return the units of a fit; "auto" gives columns of a table their own where they differ."""
    if missing == "negative":
        return strengths(entries.values)
    if scale is False or not (table or scale is True):
        return SAME
    units = by_column(entries)
    return units if scale is True or units_differ(entries, units) else SAME


def strengths(values: Floats) -> Units:
    """Return units in which the smallest value is .2 and the largest 1; one value alone is 1.

    Counts, of which some are many times larger than most, enter by their logarithms.
    """
    y = values[values != 0] if values.min() == 0 and values.max() > 0 else values
    log = bool(y.min() >= 0 and np.quantile(y, 0.995) >= SKEWED * np.median(y) > 0)
    if log:
        y = np.log1p(y)
    low, high = float(y.min()), float(np.quantile(y, 0.995) if log else y.max())
    if low == high:
        return Units("strength", np.array([low - 1]), np.ones(1), log)
    scale = (high - low) / (1 - LEAST)
    return Units("strength", np.array([low - LEAST * scale]), np.array([scale]), log)


def by_column(entries: Entries) -> Units:
    """Return a robust center and scale for each column: mean and spread of what is no outlier."""
    n = entries.shape[1]
    center, scale = np.empty((2, n + 1))
    order = np.argsort(entries.cols, kind="stable")
    counts = np.bincount(entries.cols, minlength=n)
    parts = np.split(entries.values[order], np.cumsum(counts)[:-1])
    for b, y in enumerate(parts):
        if len(y):
            center[b], scale[b] = _robust(y)
    seen = counts > 0
    center[-1], scale[-1] = np.median(center[:-1][seen]), np.median(scale[:-1][seen])
    center[:-1][~seen], scale[:-1][~seen] = center[-1], scale[-1]
    return Units("columns", center, scale)


def units_differ(entries: Entries, units: Units) -> bool:
    """Return whether the columns of a table have different units, as far as they say."""
    told = np.bincount(entries.cols, minlength=entries.shape[1]) >= FEWEST
    if np.count_nonzero(told) < max(2, len(told) // 2):
        return False
    center, scale = units.center[:-1][told], units.scale[:-1][told]
    typical = np.median(scale)
    low, high = np.quantile(scale, [0.1, 0.9])
    return bool(high > DIFFERENT * low or np.ptp(center) > DIFFERENT * DIFFERENT * typical)


def _robust(y: Floats) -> tuple[float, float]:
    """Mean and standard deviation of what lies within 5 quartile distances of the quartiles."""
    low, high = np.quantile(y, [0.25, 0.75])
    reach = 5 * (high - low)
    if reach > 0:
        y = np.clip(y, low - reach, high + reach)
    spread = float(y.std())
    return float(y.mean()), spread if spread > 0 else 1.0
