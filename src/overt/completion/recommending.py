"""What a fitted model is asked: recommendations, explanations, new rows, dense rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overt._check import InputError, whole
from overt._types import Array, Floats
from overt.completion.forms.draws import Row
from overt.completion.forms.model import FactorModel
from overt.completion.forms.strengths import refuse_dislikes
from overt.completion.index import EntryIndex
from overt.entries import observed
from overt.entries.entries import checked_values
from overt.entries.identifiers import UNKNOWN, warn_unknown
from overt.results import Result

BLOCK = 1 << 22
"""Entries of a completed matrix that are computed at once."""


BY = {
    "both": "how likely it is chosen and how it is expected to be rated",
    "value": "predicted value",
    "chosen": "how likely it is chosen",
    "similarity": "correlation of predictions over rows",
}

LIKED = 0.25
"""Power with which the probability of being liked counts beside that of being chosen."""


def table_lines(header: tuple[str, str], names: Array, left: Floats, right: Floats) -> list[str]:
    """Return lines of names and two numbers each, below a header."""
    lines = [f"{'column':>20}  {header[0]:>10}  {header[1]:>10}"]
    cells = zip(names, left, right, strict=True)
    return lines + [f"{c!s:>20}  {x:>10.4g}  {y:>10.4g}" for c, x, y in cells]


@dataclass(frozen=True, repr=False, eq=False)
class Recommendation(Result):
    """Columns, best first.

    Attributes
    ----------
    cols
        Identifiers, or indices.
    values
        Predictions for them (or similarities).
    scores
        By what they are sorted, largest first.
    by
        What that is.
    """

    cols: Array
    values: Floats
    scores: Floats
    by: str

    def __repr__(self) -> str:
        kind = "similarity" if self.by == BY["similarity"] else "prediction"
        lines = table_lines((kind, "score"), self.cols, self.values, self.scores)
        return "\n".join([f"{len(self.cols)} columns by {self.by}:", *lines])


@dataclass(frozen=True, eq=False)
class Ranking:
    """By what columns are ranked: a model's values, another's choices, or both.

    Both is c P(y > t)^(1/4): c the score of a model in which all that is absent counts as zero, y a
    value of that row and column, t the mean of the values. Known rows are ranked by what they chose
    last, where times are known; see `forms.recent`.
    """

    by: str
    model: FactorModel
    chosen: FactorModel | None
    middle: float

    def scores(self, values: Floats, chosen: Floats | None) -> Floats:
        """Return what to sort by, from unclipped values and from scores of being chosen."""
        pairs = (self.model if self.chosen is None else self.chosen).pairs
        if chosen is None:
            return values if pairs is None else pairs.blended(values)
        chosen = chosen if pairs is None else pairs.blended(chosen)
        if self.by == "chosen":
            return chosen
        from scipy.special import ndtr

        spread = max(self.model.noise, 1e-12) ** 0.5
        liked = ndtr((values - self.middle) / spread) ** LIKED
        return np.where(chosen > 0, chosen * liked, chosen)

    def of_rows(self, rows: Array) -> tuple[Floats, Floats]:
        """Return unclipped values and scores of some rows for all known columns."""
        values = self.model.block(rows, clip=False)
        if self.chosen is None:
            return values, self.scores(values + _recent(self.model, rows), None)
        chosen = self.chosen.block(rows, clip=False) + _recent(self.chosen, rows)
        return values, self.scores(values, chosen)


def _recent(model: FactorModel, rows: Array) -> Any:
    """Return what choices that came last add for all known columns."""
    if model.pairs is None or not len(model.pairs.recent):
        return 0.0
    return model.pairs.recent[rows] @ model.means[1][:-1].T


@dataclass(frozen=True, repr=False, eq=False)
class NewRow:
    """A row that was not fitted, from its entries and a fitted model."""

    row: Row
    model: FactorModel
    index: EntryIndex
    seen: Array
    values: Floats
    ranking: Callable[[str], Ranking] = field(repr=False)

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
        b = self.index.cols.find(cols)
        model = self.model
        warn_unknown("columns", cols, b, "they get what is known of the row")
        predicted = np.clip(model.products(self.row, b), model.low, model.high)
        if not return_std:
            return predicted
        return predicted, np.sqrt(model.row_variance(self.row, b))

    def recommend(
        self,
        n: int = 10,
        exclude_seen: bool = True,
        *,
        by: str = "auto",
        exclude: Any = (),
        candidates: Any = None,
    ) -> Recommendation:
        """Return the columns that suit the row best, as `DropoutCompletion.recommend` does."""
        ranking = self.ranking(by)
        every = np.arange(self.model.shape[1])
        values = self.model.products(self.row, every)
        chosen = None
        if ranking.chosen is not None:
            row = ranking.chosen.fold(self.seen, self.values)
            chosen = ranking.chosen.products(row, every)
        open_to = column_mask(self.index, exclude, candidates)
        if exclude_seen:
            open_to[self.seen] = False
        return _best(self.index, ranking, values, ranking.scores(values, chosen), n, open_to)


def recommend(
    ranking: Ranking,
    index: EntryIndex,
    row: Any,
    n: int,
    exclude_seen: bool,
    exclude: Any,
    candidates: Any,
) -> Recommendation:
    """Return the columns that suit a row best."""
    a = index.rows.find_one(row)
    values, scores = ranking.of_rows(np.array([a]))
    open_to = column_mask(index, exclude, candidates)
    if exclude_seen:
        open_to[index.of_row(a)[0]] = False
    return _best(index, ranking, values[0], scores[0], n, open_to)


def similar(model: FactorModel, index: EntryIndex, col: Any, n: int) -> Recommendation:
    """Correlation over rows of two columns' predictions.

    v_i'C v_j / sqrt(E[v_i'C v_i] E[v_j'C v_j]) with C the rows' covariance: the expectation over
    what is not known of a column makes those with few entries less alike than they look.
    """
    b = index.cols.find_one(col)
    V = model.factors(1)
    if not index.entered[b]:
        raise InputError(f"col {col!r} has no entries: nothing says what it is similar to")
    k = V.shape[1]
    if model.spread.learned:
        C = model.priors[0].covariance[:k, :k]
    else:
        U = model.factors(0) - model.factors(0).mean(axis=0)
        C = U.T @ U / len(U)
    squares = np.einsum("ei,ei->e", V @ C, V)
    if model.spread.learned:
        padded = np.zeros((model.columns.width, model.columns.width))
        padded[:k, :k] = C
        squares = squares + model.spread.traces(model.means, 1, np.arange(len(V)), padded)
    scale = np.sqrt(np.maximum(squares, 0) * max(squares[b], 0))
    scores = np.divide(V @ (C @ V[b]), scale, where=scale > 0, out=np.zeros(len(V)))
    open_to = index.entered.copy()
    open_to[b] = False
    return _best(index, Ranking("similarity", model, None, 0.0), scores, scores, n, open_to)


def fold_in(
    model: FactorModel,
    index: EntryIndex,
    entries: Any,
    ranking: Callable[[str], Ranking],
    features: Any = None,
) -> NewRow:
    """Solve for one new row with all columns held."""
    names, values = _row_entries(entries)
    cols = index.cols.find(names)
    numbers = checked_values(values if len(cols) else np.zeros(0))
    if cols.shape != numbers.shape:
        raise InputError("entries must have one finite value for each column")
    known = cols != UNKNOWN
    encoder = model.encoders[0]
    warn_unknown("columns", names, cols, "they are left out", 4)
    _check_range(model, index, numbers[known])
    if features is not None:
        if encoder is None:
            raise InputError("features need a model that was fitted with row_features")
        features = encoder.encode(features)
        if features.shape[0] != 1:
            raise InputError(f"features must be those of one row, got {features.shape[0]}")
    row = model.fold(cols[known], numbers[known], features)
    return NewRow(row, model, index, cols[known], numbers[known], ranking)


def _check_range(model: FactorModel, index: EntryIndex, values: Floats) -> None:
    """Warn of values off the scale of those fitted; refuse dislikes where likes were fitted."""
    if model.pairs is not None:
        refuse_dislikes(values)
        return
    low, high = index.value_range
    # Values on a scale such as 1 to 5 never leave it; others may, but hardly by its whole width.
    slack = 0.0 if np.isfinite(model.low) and np.isfinite(model.high) else high - low
    outside = (values < low - slack) | (values > high + slack)
    if outside.any():
        warnings.warn(
            f"the value {values[outside][0]:g} lies outside of the fitted values, which are from "
            f"{low:g} to {high:g}: the new row may be in other units",
            stacklevel=4,
        )


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
    except Exception:
        raise InputError(
            "entries must be {column: value}, a sparse row or a pair (columns, values), got "
            f"{type(entries).__name__}"
        ) from None
    return names, values


def column_mask(index: EntryIndex, exclude: Any, candidates: Any) -> Array:
    """Return for each column whether it may be recommended; warn of columns never seen."""
    count = len(index.entered)
    chosen = np.ones(count, dtype=bool)
    if candidates is not None:
        at = index.cols.find(candidates, "candidates")
        if not np.any(at != UNKNOWN):
            raise InputError("none of the candidates is a column that was fitted")
        warn_unknown("candidates", candidates, at, "they are not recommended", 5)
        chosen[:] = False
        chosen[at[at != UNKNOWN]] = True
    at = index.cols.find(exclude, "exclude")
    warn_unknown("columns to exclude", exclude, at, "nothing is excluded for them", 5)
    chosen[at[at != UNKNOWN]] = False
    return chosen


def _best(
    index: EntryIndex, ranking: Ranking, values: Floats, scores: Floats, n: int, open_to: Array
) -> Recommendation:
    best = top(np.where(open_to, scores, -np.inf), whole("n", n))
    found = np.clip(values[best], ranking.model.low, ranking.model.high)
    values = values[best] if ranking.by == "similarity" else found
    return Recommendation(index.cols.labels(best), values, scores[best], BY[ranking.by])


def top(scores: Floats, n: int) -> Array:
    """Return where the n largest finite scores are, largest first, ties in order."""
    n = min(n, int(np.count_nonzero(scores > -np.inf)))
    if not n:
        return np.zeros(0, np.int64)
    last = -np.partition(-scores, n - 1)[n - 1]
    above = np.flatnonzero(scores > last)
    best = np.append(above, np.flatnonzero(scores == last)[: n - len(above)])
    return best[np.lexsort((best, -scores[best]))]
