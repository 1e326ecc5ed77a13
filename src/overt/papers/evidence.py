"""The measurements of a check: a residual and its tolerance, beside the printed form and a null."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import InputError

Rng = np.random.Generator

EXACT = 1e-10
"""Tolerance on a relative difference of two sums that agree but for rounding."""

DESCENT = 1e-7
"""Tolerance on a relative difference of objectives where one of them was reached by descent."""

STRICT = 0.01
"""Least relative excess that shows that a bound is not attained."""


@dataclass(frozen=True)
class Evidence:
    """The measurements of one check.

    Attributes
    ----------
    residual
        How far the statement is from its independent oracle.
    tolerance
        The largest residual with which the statement holds.
    detail
        What was compared, in a few words.
    printed
        The residual of the paper's own form, where it is corrected. It must exceed the tolerance:
        a correction that is not needed is an error too.
    null
        The residual of a version that must fail: no attack, no event, a bound ten times smaller.
        If it is within the tolerance, the check has no power.
    """

    residual: float
    tolerance: float
    detail: str
    printed: float | None = None
    null: float | None = None

    @property
    def verdict(self) -> str:
        """One of "holds", "fails" and "no power"; NaN never holds."""
        for name in ("printed", "null"):
            value = getattr(self, name)
            if value is not None and math.isnan(value):
                raise InputError(
                    f"the residual of the {name} form is NaN: it was not measured"
                )
        if self.null is not None and self.null <= self.tolerance:
            return "no power"
        needed = self.printed is None or self.printed > self.tolerance
        return "holds" if self.residual <= self.tolerance and needed else "fails"


def relative(measured: Any, expected: Any) -> float:
    """|measured - expected| / |expected|, Frobenius norms."""
    expected = np.asarray(expected, dtype=float)
    error = np.linalg.norm(measured - expected)
    return float(error / np.linalg.norm(expected))
