"""Queries of a fitted model: recommendations, lists for everyone, explanations, new rows."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from overt._check import InputError, plain_array, whole
from overt._io import as_path, ready, replacing, write_whole
from overt._progress import meter
from overt._types import Array, Floats, Ints
from overt.completion.forms.averaged import Row
from overt.completion.forms.implicit import refuse_dislikes
from overt.completion.forms.model import FactorModel
from overt.completion.index import EntryIndex
from overt.completion.ratings_file import duckdb
from overt.entries import observed, pairs
from overt.entries.entries import checked_values
from overt.entries.identifiers import UNKNOWN, describe_unknown, warn_unknown
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
        """Return the row's predictions for columns, with `return_std` their standard deviations."""
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


def best_for_row(
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


def similar_columns(model: FactorModel, index: EntryIndex, col: Any, n: int) -> Recommendation:
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


def new_row(
    model: FactorModel,
    index: EntryIndex,
    entries: Any,
    ranking: Callable[[str], Ranking],
    features: Any = None,
) -> NewRow:
    """Solve for one new row with all columns fixed."""
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


HEADER = ("row", "column", "rank", "prediction", "score")
FULL = "No space left on device"


@dataclass(frozen=True, repr=False, eq=False)
class Recommendations(Result):
    """Lists for many rows: line i recommends cols[i] to rows[i] as number ranks[i], from 1."""

    rows: Array
    cols: Array
    ranks: Ints
    values: Floats
    scores: Floats
    by: str


class _Lines(NamedTuple):
    rows: Ints
    cols: Ints
    ranks: Ints
    values: Floats
    scores: Floats


class Lists:
    """Recommendations for many rows, block by block."""

    def __init__(
        self,
        ranking: Ranking,
        index: EntryIndex,
        n: int,
        exclude_seen: bool,
        exclude: Any,
        candidates: Any,
    ) -> None:
        self._ranking = ranking
        self._index = index
        self._seen = exclude_seen
        self._n = whole("n", n)
        paired = plain_array("exclude", exclude).ndim == 2 and len(exclude)
        self._pairs = _known_pairs(index, exclude) if paired else None
        self._mask = column_mask(index, () if paired else exclude, candidates)

    def collect(self, rows: Any = None) -> Recommendations:
        """Return all lists."""
        blocks = zip(*self._blocks(self._places(rows)), strict=True)
        found = _Lines(*map(np.concatenate, blocks))
        return Recommendations(*self._named(found), BY[self._ranking.by])

    def write(self, path: str | os.PathLike[str], rows: Any = None) -> None:
        """Write all lists to a CSV or Parquet file, which appears when it is whole."""
        path = as_path("path", path)
        places = self._places(rows)
        if path.suffix.lower() not in (".csv", ".parquet"):
            raise InputError(f"recommendations go to a .csv or a .parquet file, got {path}")
        if path.is_dir():
            raise InputError(f"{path} is a folder; a file is needed")
        ready(path.parent)
        if path.suffix.lower() == ".csv":
            write_whole(path, lambda file: self._write_csv(file, places))
        else:
            self._write_parquet(path, places)

    def _write_csv(self, file: IO[bytes], places: Ints) -> None:
        text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
        writer = csv.writer(text)
        writer.writerow(HEADER)
        for block in self._blocks(places):
            columns = self._named(block)
            y, x = ([f"{v:.6g}" for v in column] for column in columns[3:])
            writer.writerows(zip(*(c.tolist() for c in columns[:3]), y, x, strict=True))
        text.detach()

    def _write_parquet(self, path: Path, places: Ints) -> None:
        with duckdb().connect() as db, replacing(path) as temporary:
            for number, block in enumerate(self._blocks(places)):
                columns = zip(HEADER, self._named(block), strict=True)
                words = {n: c.astype(object) if c.dtype.kind == "U" else c for n, c in columns}
                db.register("given", words)
                start = "create table lists as" if number == 0 else "insert into lists"
                db.execute(f"{start} select * from given")  # noqa: S608
                db.unregister("given")
            target = os.fspath(temporary).replace("'", "''")
            try:
                db.execute(f"copy lists to '{target}' (format parquet)")
            except duckdb().IOException as error:
                raise OSError(FULL if FULL in str(error) else str(error)[:200]) from None

    def _named(self, block: _Lines) -> tuple[Any, Any, Any, Any, Any]:
        rows = self._index.rows.labels(block.rows)
        cols = self._index.cols.labels(block.cols)
        return rows, cols, *block[2:]

    def _places(self, rows: Any) -> Ints:
        if rows is None:
            return np.arange(self._ranking.model.shape[0])
        places = self._index.rows.find(rows)
        unknown = describe_unknown("rows", rows, places)
        if unknown:
            raise InputError(f"rows must have been fitted, but {unknown}")
        return places

    def _blocks(self, places: Ints) -> Iterator[_Lines]:
        step = max(1, BLOCK // max(1, self._ranking.model.shape[1]))
        low = self._ranking.model.low
        high = self._ranking.model.high
        with meter("rows", len(places)) as bar:
            for start in range(0, max(len(places), 1), step):
                rows = places[start : start + step]
                values, scores = self._ranking.of_rows(rows)
                scores = np.where(self._mask, scores, -np.inf)
                best = []
                for i, row in enumerate(rows):
                    if self._seen:
                        scores[i, self._index.of_row(row)[0]] = -np.inf
                    if self._pairs is not None:
                        scores[i, self._pairs.get(int(row), [])] = -np.inf
                    best.append(top(scores[i], self._n))
                counts = [len(found) for found in best]
                line = np.repeat(np.arange(len(rows)), counts)
                cols = np.concatenate([np.zeros(0, np.int64), *best])
                ranks = np.concatenate([cols[:0], *(np.arange(1, c + 1) for c in counts)])
                predicted = np.clip(values[line, cols], low, high)
                yield _Lines(rows[line], cols, ranks, predicted, scores[line, cols])
                bar.advance(len(rows))


def _known_pairs(index: EntryIndex, exclude: Any) -> dict[int, list[int]]:
    row_labels, col_labels = pairs("exclude", exclude)
    rows = index.rows.find(row_labels, "exclude")
    cols = index.cols.find(col_labels, "exclude")
    warn_unknown("rows to exclude", row_labels, rows, "nothing is excluded for them", 5)
    warn_unknown("columns to exclude", col_labels, cols, "nothing is excluded for them", 5)
    found: dict[int, list[int]] = {}
    for row, col in zip(rows.tolist(), cols.tolist(), strict=True):
        if UNKNOWN not in (row, col):
            found.setdefault(row, []).append(col)
    return found


SHOWN = 10
"""Entries of an explanation that its text shows."""


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(Result):
    """A prediction taken apart: baseline + signals + features + what each entry of the row adds.

    Entries are sorted by the size of their contribution; `signals` is what having entries there,
    and not elsewhere, tells beside their values, and `features` what the row's features do. The
    baseline is all the rest: mean, biases, prior, samples that were averaged, and what clipping to
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
