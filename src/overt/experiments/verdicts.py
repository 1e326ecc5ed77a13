"""Findings: a claim holds, fails or is left open, by an interval where chance has a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import InputError
from overt._intervals import clopper_pearson

VERDICTS = ("holds", "fails", "inconclusive")


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, what the rows say of it, and what they show.

    The verdict is "holds", "fails" or "inconclusive", or the truth of what needs no interval.
    """

    claim: str
    verdict: Any
    measured: str
    reported: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.verdict, bool | np.bool_):
            object.__setattr__(self, "verdict", "holds" if self.verdict else "fails")
        elif not isinstance(self.verdict, str) or self.verdict not in VERDICTS:
            accepted = ", ".join(VERDICTS)
            raise InputError(f"a verdict must be a bool or one of {accepted}; got {self.verdict!r}")

    @property
    def holds(self) -> bool:
        """Whether the rows support the claim."""
        return bool(self.verdict == "holds")


Interval = tuple[float, float]


def mean_interval(values: Any, level: float = 0.95) -> Interval:
    """Return Student's interval for a mean; one value says nothing."""
    from scipy.stats import t

    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return -np.inf, np.inf
    half = t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def share_interval(count: int, of: int, level: float = 0.95) -> Interval:
    """Return the exact interval for a share."""
    low, high = clopper_pearson(count, of, level)
    return float(low), float(high)


def above(interval: Interval, limit: float) -> str:
    """Return whether a quantity known to lie in the interval exceeds the limit."""
    low, high = interval
    return "holds" if low > limit else "fails" if high <= limit else "inconclusive"


def below(interval: Interval, limit: float) -> str:
    """Return whether a quantity known to lie in the interval is below the limit."""
    return above((-interval[1], -interval[0]), -limit)


def together(*verdicts: Any) -> str:
    """Return the verdict on claims that must all hold."""
    found = {Finding("", verdict, "").verdict for verdict in verdicts}
    return next(name for name in ("fails", "inconclusive", "holds") if name in found)
