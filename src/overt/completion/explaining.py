"""Predictions taken apart: what each entry of a row adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._types import Array, Floats
from overt.completion.forms.model import FactorModel
from overt.completion.index import EntryIndex
from overt.completion.recommending import table_lines
from overt.results import Result

SHOWN = 10
"""Entries of an explanation that are printed."""


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(Result):
    """A prediction taken apart: baseline + signals + features + what each entry of the row adds.

    Entries are sorted by the size of their contribution; `signals` is what having entries there,
    and not elsewhere, tells beside their values, and `features` what the row's features do. The
    baseline is all the rest: mean, biases, prior, draws that were averaged, and what clipping to
    the scale took away.
    """

    prediction: float
    baseline: float
    signals: float
    features: float
    cols: Array
    values: Floats
    contributions: Floats

    def __repr__(self) -> str:
        parts = ("prediction", "baseline", "signals", "features")
        head = ", ".join(f"{name} {getattr(self, name):.4g}" for name in parts)
        lines = table_lines(("value", "adds"), self.cols, self.values, self.contributions)
        more = [f"... and {len(self.cols) - SHOWN} more"] if len(self.cols) > SHOWN else []
        return "\n".join([head, *lines[: SHOWN + 1], *more])


def explain(model: FactorModel, index: EntryIndex, row: Any, col: Any) -> Explanation:
    """Take a prediction apart into a baseline and what each entry of the row adds."""
    a = index.rows.find_one(row)
    b = index.cols.find_one(col)
    cols, values = index.of_row(a)
    parts = model.parts(a, cols, values, b)
    added, signals, features = (parts[name] for name in ("entries", "signals", "features"))
    prediction = float(model.predict(np.array([a]), np.array([b]))[0])
    order = np.argsort(-np.abs(added), kind="stable")
    baseline = prediction - float(added.sum()) - signals - features
    names = index.cols.labels(cols[order])
    return Explanation(prediction, baseline, signals, features, names, values[order], added[order])
