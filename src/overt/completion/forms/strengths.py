"""How much an observed pair is wanted, from .2 to 1, where what is not observed counts as 0.

The smallest value has the strength .2, the largest 1. Counts, of which some are many times larger
than most, enter by their logarithms.
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
"""Strength of the smallest value: observed, though not liked, is more than not observed."""

SKEWED = 4
"""Values that reach this many times their median are counts, of which logarithms are taken."""

HIGH = 0.995
"""Quantile of counts that has the strength 1; the few above it do not set the scale."""


@dataclass(frozen=True)
class Strengths:
    """(value - zero) / scale, of log(1 + value) where `log`, clipped to [.2, 1]."""

    zero: float
    scale: float
    log: bool

    @classmethod
    def of(cls, values: Floats) -> Strengths:
        """Return the strengths of such values; one value alone has the strength 1."""
        y = values[values != 0] if values.min() == 0 and values.max() > 0 else values
        log = bool(y.min() >= 0 and np.quantile(y, HIGH) >= SKEWED * np.median(y) > 0)
        if log:
            y = np.log1p(y)
        low = float(y.min())
        high = float(np.quantile(y, HIGH) if log else y.max())
        if low == high:
            return cls(low - 1, 1.0, log)
        scale = (high - low) / (1 - LEAST)
        return cls(low - LEAST * scale, scale, log)

    def __call__(self, values: Any) -> Floats:
        """Return the strengths of values."""
        y = np.asarray(values, dtype=float)
        if self.log:
            y = np.log1p(np.maximum(y, 0))
        return np.clip((y - self.zero) / self.scale, LEAST, 1)

    def enter(self, entries: Entries) -> Entries:
        """Return observed pairs with their strengths; zeros are not observed."""
        entries = observed_pairs(entries)
        return replace(entries, values=self(entries.values))

    def arrays(self) -> dict[str, Array]:
        """Return what storage keeps."""
        return {"strengths": np.array([self.zero, self.scale, self.log], dtype=float)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Strengths:
        """Take back what storage kept."""
        zero, scale, log = arrays["strengths"].tolist()
        return cls(zero, scale, bool(log))


UNIT = Strengths(0.0, 1.0, log=False)
"""Strengths of values that are strengths already."""


def refuse_dislikes(values: Floats) -> None:
    """Refuse negative values for missing="negative", where they would count as weak likes."""
    if len(values) and values.min() < 0:
        raise InputError(
            'missing="negative" takes values as strengths of a choice, from 0, and what is absent '
            f'as 0; got {values.min():g}. Leave out what was rejected, or use missing="unknown"'
        )


def observed_pairs(entries: Entries) -> Entries:
    """Return entries without zeros, which are what absent strengths are, unless all are."""
    y = entries.values
    drops = y.min() == 0 and y.max() > 0
    return entries.take(np.flatnonzero(y != 0)) if drops else entries
