"""How much a pair of row and column says where every pair counts; see `negative`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt._types import Array, Floats
from overt.completion.forms.popular import blended
from overt.completion.forms.strengths import UNIT, Strengths

WEIGHT = 2.0
"""Precision of an observed pair beside that of a zero."""

FLOOR = 0.3
"""Part of the mean sum of squares that is added to every row's, so that few entries say enough."""


@dataclass(frozen=True, eq=False)
class Precisions:
    """r(x) = ((FLOOR t + x) / t)^-1/2 / level for a row with sum of squares x; t is the mean x."""

    typical: float
    level: float

    @classmethod
    def of(cls, sums: Floats) -> Precisions:
        """Return r with mean 1 over the rows that have entries."""
        typical = float(sums[sums > 0].mean())
        return cls(typical, float(cls(typical, 1.0)(sums[sums > 0]).mean()))

    def __call__(self, sums: Floats) -> Floats:
        """Return r for sums of squares."""
        return np.asarray((FLOOR + sums / self.typical) ** -0.5 / self.level, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class AllPairs:
    """What a model needs to solve for a row: precisions r and c, and c of every known column.

    Beside it what ranking does with popularity, and with what came last; see `popular`, `recent`.
    """

    rows: Precisions
    cols: Precisions
    partners: Floats  # 0 for columns without entries
    shares: Floats  # of the entries
    popular: float
    recent: Floats  # what rows chose last changes of their means, where that is known; see `recent`
    strengths: Strengths = UNIT  # of values

    def blended(self, x: Floats) -> Floats:
        """Return scores, from predictions for all known columns; what nobody chose comes last."""
        scores = blended(x, self.shares, self.popular)
        chosen = self.shares > 0
        if chosen.all() or not chosen.any():
            return scores
        lowest = scores[..., chosen].min(axis=-1, keepdims=True)
        return np.where(chosen, scores, np.minimum(scores, lowest - 1e-9 * abs(lowest)))

    def arrays(self) -> dict[str, Array]:
        """Return what storage keeps."""
        rules = [[rule.typical, rule.level] for rule in (self.rows, self.cols)]
        return {
            "pairs_rules": np.array(rules),
            "pairs_partners": self.partners,
            "pairs_shares": self.shares,
            "pairs_popular": np.array([self.popular]),
            "pairs_recent": self.recent,
        } | self.strengths.arrays()

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> AllPairs | None:
        """Take back what storage kept, if anything."""
        if "pairs_rules" not in arrays:
            return None
        rows, cols = (Precisions(*rule) for rule in arrays["pairs_rules"].tolist())
        popular = float(arrays["pairs_popular"][0])
        recent = arrays.get("pairs_recent", np.zeros((0, 0)))
        given = arrays["pairs_partners"], arrays["pairs_shares"], popular, recent
        return cls(rows, cols, *given, Strengths.from_arrays(arrays))
