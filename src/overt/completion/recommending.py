"""What a fitted model is asked: recommendations, explanations, new rows, dense rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import InputError, InputTypeError, whole
from overt._types import Array, Floats
from overt.completion.forms.model import UNKNOWN, FactorModel, Row
from overt.completion.index import EntryIndex
from overt.entries import observed
from overt.results import Result

BLOCK = 1 << 22
"""Entries of a completed matrix that are computed at once."""


@dataclass(frozen=True, repr=False, eq=False)
class Recommendation(Result):
    """Columns, best first, and their predictions (or similarities)."""

    cols: Array
    values: Floats


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


@dataclass(frozen=True, repr=False, eq=False)
class NewRow:
    """A row that was not fitted, from its entries and a fitted model."""

    row: Row
    model: FactorModel
    index: EntryIndex
    seen: Array

    def __repr__(self) -> str:
        return f"NewRow(from {len(self.seen)} entries)"

    @property
    def vector(self) -> Floats:
        """Mean of the row's factors and biases."""
        return self.row.mean

    @property
    def covariance(self) -> Floats:
        """Their covariance."""
        return self.row.covariance

    def to_dict(self) -> dict[str, Any]:
        """Return the row's vector and covariance, without the model."""
        return {"vector": self.vector.tolist(), "covariance": self.covariance.tolist()}

    def predict(self, cols: Any, return_std: bool = False) -> Any:
        """Return the row's predictions for columns, and with `return_std` their spread."""
        b, model = self.index.cols(cols), self.model
        predicted = np.clip(model.products(self.row, b), model.low, model.high)
        if not return_std:
            return predicted
        # Var(u.v) = v'S_u v + tr(S_v (S_u + u u'))
        V = model.means[1][b].astype(np.float64)
        second = self.covariance + np.outer(self.vector, self.vector)
        variance = np.einsum("ei,ij,ej->e", V, self.covariance, V, optimize=True)
        variance += model.spread.traces(model.means, 1, b, second)
        noise = model.noise * self.row.variance * model.noises[1].variances[b]
        return predicted, np.sqrt(np.maximum(variance, 0) + noise)

    def recommend(self, n: int = 10, exclude_seen: bool = True) -> Recommendation:
        """Return the columns with the largest predictions, best first."""
        scores = self.model.products(self.row, np.arange(self.model.shape[1]))
        best = _best(self.index, scores, n, self.seen if exclude_seen else None)
        return _clipped(best, self.model)


def complete(model: FactorModel, rows: Array) -> Floats:
    """Return the dense predictions of some rows, filled block by block."""
    dense = np.empty((len(rows), model.shape[1]))
    step = max(1, BLOCK // model.shape[1])
    for start in range(0, len(rows), step):
        dense[start : start + step] = model.block(rows[start : start + step])
    return dense


def recommend(
    model: FactorModel, index: EntryIndex, row: Any, n: int, exclude_seen: bool
) -> Recommendation:
    """Return the columns with the largest predictions for a row."""
    a = index.row(row)
    seen = index.of_row(a)[0] if exclude_seen else None
    return _clipped(_best(index, model.block(np.array([a]), clip=False)[0], n, seen), model)


def similar(model: FactorModel, index: EntryIndex, col: Any, n: int) -> Recommendation:
    """Correlation over rows of two columns' predictions: v_i'C v_j, C the rows' covariance."""
    b, V = index.col(col), model.factors(1)
    k = V.shape[1]
    if model.spread.learned:
        C = model.priors[0].covariance[:k, :k]
    else:
        C = np.cov(model.factors(0), rowvar=False, bias=True).reshape(k, k)
    products = V @ (C @ V[b])
    norms = np.sqrt(np.maximum(np.einsum("ei,ij,ej->e", V, C, V), 0))
    scale = norms * norms[b]
    scores = np.divide(products, scale, where=scale > 0, out=np.zeros(len(V)))
    return _best(index, scores, n, np.array([b]))


def explain(model: FactorModel, index: EntryIndex, row: Any, col: Any) -> Explanation:
    """Take a prediction apart into a baseline and what each entry of the row adds."""
    a, b = index.row(row), index.col(col)
    cols, values = index.of_row(a)
    parts = model.parts(a, cols, values, b)
    added, signals, features = (parts[name] for name in ("entries", "signals", "features"))
    prediction = float(model.predict(np.array([a]), np.array([b]))[0])
    order = np.argsort(-np.abs(added), kind="stable")
    baseline = prediction - float(added.sum()) - signals - features
    names = index.col_names(cols[order])
    return Explanation(prediction, baseline, signals, features, names, values[order], added[order])


def fold_in(model: FactorModel, index: EntryIndex, entries: Any, features: Any = None) -> NewRow:
    """Solve for one new row with all columns held."""
    names, values = _row_entries(entries)
    cols = index.cols(names)
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputTypeError(f"entries must have numbers for values, got {values!r}") from None
    if cols.shape != numbers.shape or not np.all(np.isfinite(numbers)):
        raise InputError("entries must have one finite value for each column")
    known, encoder = cols != UNKNOWN, model.encoders[0]
    if features is not None:
        if encoder is None:
            raise InputError("features need a model that was fitted with row_features")
        features = encoder.encode(features)
        if features.shape[0] != 1:
            raise InputError(f"features must be those of one row, got {features.shape[0]}")
    row = model.fold(cols[known], numbers[known], features)
    return NewRow(row, model, index, cols[known])


def _row_entries(entries: Any) -> tuple[Any, Any]:
    """Return columns and values from a mapping, a series, a sparse row, or a pair of both."""
    if hasattr(entries, "tocoo"):
        row = observed(entries)
        if row.shape[0] != 1:
            raise InputError(f"a sparse row must have shape (1, columns), got {row.shape}")
        return row.cols, row.values
    if isinstance(entries, Mapping) or hasattr(entries, "items"):
        pairs = list(entries.items())  # also of a pandas Series
        return [name for name, _ in pairs], [value for _, value in pairs]
    try:
        names, values = entries
    except (TypeError, ValueError):
        raise InputError(
            "entries must be {column: value}, a sparse row or a pair (columns, values), got "
            f"{type(entries).__name__}"
        ) from None
    return names, values


def _best(index: EntryIndex, scores: Floats, n: int, left_out: Array | None) -> Recommendation:
    n = whole("n", n)
    scores = np.array(scores, dtype=float)
    if left_out is not None:
        scores[left_out] = -np.inf
    n = min(n, int(np.count_nonzero(scores > -np.inf)))
    best = np.argpartition(-scores, max(n - 1, 0))[:n] if n else np.zeros(0, np.int64)
    best = best[np.lexsort((best, -scores[best]))]
    return Recommendation(index.col_names(best), scores[best])


def _clipped(best: Recommendation, model: FactorModel) -> Recommendation:
    return Recommendation(best.cols, np.clip(best.values, model.low, model.high))
