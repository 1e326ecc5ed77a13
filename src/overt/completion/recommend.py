"""Queries of a fitted model: recommendations, lists, explanations, new rows, scores."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from overt._check import Array, Floats, InputError, Ints, whole
from overt._running import meter
from overt.completion.fitting import Model
from overt.completion.implicit import (
    ImplicitModel,
    Strengths,
    observed_pairs,
    refuse_dislikes,
)
from overt.completion.model import Row
from overt.entries import Entries, observed
from overt.entries.entries import checked_values, find_pairs
from overt.entries.frames import is_frame, is_table
from overt.entries.identifiers import (
    UNKNOWN,
    IdentifierIndex,
    as_index,
    describe_unknown,
    warn_unknown,
)
from overt.results import Result

PREDICTIONS_AT_ONCE = 1 << 22
"""Entries of a completed matrix that are computed at once."""

BY = {
    "both": "how likely it is chosen and how it is expected to be rated",
    "value": "predicted value",
    "chosen": "how likely it is chosen",
}

LIKED_POWER = 0.25
"""Power with which the probability of being liked counts beside that of being chosen, tuned on
MovieLens 100K."""

NDCG_LENGTH = 10
"""Columns of a list that nDCG looks at."""

LIST_LENGTH = 20
"""Columns of a list that recall, reciprocal rank and average precision look at."""

RELEVANT_STRENGTH = 0.8
"""Strength from which a holdout value is relevant: 4 of 5 stars."""

MAX_CHANGED = 0.25
"""Share of known entries with other values from which a matrix has other rows than were fitted."""


class EntryIndex:
    """Finds rows and columns by identifier or by position, and the entries of a row.

    See `overt.entries.identifiers` for the rule that decides between the two.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self.rows = IdentifierIndex("rows", entries.shape[0], entries.row_ids)
        self.cols = IdentifierIndex("cols", entries.shape[1], entries.col_ids)

    def by(self, keys: str) -> EntryIndex:
        """Return the index as it is addressed: by "id", by "index", or "auto"."""
        found = copy(self)
        found.rows = self.rows.by(keys)
        found.cols = self.cols.by(keys)
        return found

    @cached_property
    def entered(self) -> Array:
        """Whether a column has entries, for each."""
        found = np.zeros(self._entries.shape[1], dtype=bool)
        found[self._entries.cols] = True
        return found

    @cached_property
    def value_range(self) -> tuple[float, float]:
        """The least and the largest of the values."""
        values = self._entries.values
        return float(values.min()), float(values.max())

    @cached_property
    def _by_row(self) -> tuple[Ints, Ints]:
        """The order of entries by row, and where each row starts."""
        order = np.argsort(self._entries.rows, kind="stable")
        rows = np.arange(self._entries.shape[0] + 1)
        return order, np.searchsorted(self._entries.rows, rows, sorter=order)

    def of_row(self, row: int) -> tuple[Array, Floats]:
        """Return the columns and values observed in a row."""
        order, starts = self._by_row
        some = order[starts[row] : starts[row + 1]]
        return self._entries.cols[some], self._entries.values[some]

    def cols_of_row(self, row: int) -> Array:
        """Return the columns observed in a row."""
        return self.of_row(row)[0]

    def find_pairs(
        self, rows: Any, cols: Any = None
    ) -> tuple[tuple[Ints, Ints], tuple[Any, Any]]:
        """Return the positions of entries (UNKNOWN if never seen), and what users call them."""
        return find_pairs(self.rows, self.cols, rows, cols)

    def align(self, new: Entries, *, named: bool = False) -> Entries:
        """Return new entries at our positions; rows and columns never seen come after all others.

        `named` says that numbers without identifiers were given as pairs, by the rule of `predict`.
        """
        old = self._entries
        if not named and new.row_ids is None and old.row_ids is not None:
            raise InputError(
                "this model knows rows and columns by identifiers; give partial_fit a data frame "
                "of three columns, or pairs of identifiers and their values"
            )
        rows, m, row_ids = _align_side(self.rows, new.rows, new.row_ids, new.shape[0])
        cols, n, col_ids = _align_side(self.cols, new.cols, new.col_ids, new.shape[1])
        return Entries(rows, cols, new.values, (m, n), row_ids, col_ids, new.times)


def _align_side(
    side: IdentifierIndex, places: Ints, ids: Array | None, count: int
) -> tuple[Ints, int, Array | None]:
    """Return one side's positions, number of rows and identifiers in the model's numbering."""
    if side.ids is None:
        if ids is None:
            return places, count, None
        ids = as_index("identifiers of a model that was fitted by index", ids)
        return ids[places], int(ids.max()) + 1, None
    if ids is None:
        ids, places = np.unique(places, return_inverse=True)
    found, all_ids = side.extend(ids)
    return found[places], len(all_ids), all_ids


def table_lines(
    header: tuple[str, str], names: Array, left: Floats, right: Floats
) -> list[str]:
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
        Predictions for them.
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
        header = ("prediction", "score")
        lines = table_lines(header, self.cols, self.values, self.scores)
        return "\n".join([f"{len(self.cols)} columns by {self.by}:", *lines])


@dataclass(frozen=True, eq=False)
class Ranking:
    """By what columns are ranked: a model's values, another's choices, or both.

    Both is c P(y > t)^(1/4): c the score of a model in which all that is absent counts as zero, y a
    value of that row and column, t the mean of the values.
    """

    by: str
    model: Model
    chosen: ImplicitModel | None
    middle: float

    def of_rows(self, rows: Array) -> tuple[Floats, Floats]:
        """Return unclipped values and scores of some rows for all known columns."""
        values = self.model.block(rows)[:, :-1]
        if self.chosen is None:
            return values, values
        return values, self._combine(values, self.chosen.rank_rows(rows))

    def of_row(self, model: Model, cols: Array, values: Floats) -> Ranking:
        """Return the ranking of a new row with these entries, of which `model` predicts values."""
        if self.chosen is None:
            return replace(self, model=model)
        chosen = self.chosen.of_row(self.chosen.fold(cols, values))
        return replace(self, model=model, chosen=chosen)

    def _combine(self, values: Floats, chosen: Floats) -> Floats:
        if self.by == "chosen":
            return chosen
        from scipy.special import ndtr

        base = self.model.base
        std = base.scale * max(base.noise, 1e-12) ** 0.5
        liked = ndtr((values - self.middle) / std) ** LIKED_POWER
        return np.where(chosen > 0, chosen * liked, chosen)


@dataclass(frozen=True, repr=False, eq=False)
class NewRow:
    """A row that was not fitted, from its entries and a fitted model.

    `row.mean` and `row.covariance` are those of its factors and biases, for standardized values.
    """

    row: Row
    model: Model  # of this row alone
    index: EntryIndex
    seen: Array
    values: Floats
    ranking: Callable[[str], Ranking] = field(repr=False)

    def __repr__(self) -> str:
        return f"NewRow(from {len(self.seen)} entries)"

    def predict(self, cols: Any, return_std: bool = False) -> Any:
        """Return the row's predictions for columns, with `return_std` their standard deviations."""
        b = self.index.cols.find(cols)
        model = self.model
        warn_unknown("columns", cols, b, "they get what is known of the row")
        row = np.zeros(len(b), np.int64)
        predicted = model.predict(row, b)
        if not return_std:
            return predicted
        return predicted, np.sqrt(model.variance(row, b))

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
        ranking = self.ranking(by).of_row(self.model, self.seen, self.values)
        allowed = column_mask(self.index, exclude, candidates)
        if exclude_seen:
            allowed[self.seen] = False
        lists = best_columns(ranking.of_rows, nothing_known, [0], n, allowed)
        best, values, scores = next(lists)
        cols = self.index.cols.labels(best)
        values = self.model.base.clip(values)
        return Recommendation(cols, values, scores, BY[ranking.by])


def nothing_known(row: int) -> Array:
    """Return no columns."""
    return np.zeros(0, np.int64)


def best_columns(
    of_rows: Callable[[Ints], tuple[Floats, Floats]],
    known: Callable[[int], Array],
    rows: Any,
    n: int,
    allowed: Array,
) -> Iterator[tuple[Ints, Floats, Floats]]:
    """Yield the best allowed columns of each row that it does not know, values and scores.

    `of_rows` returns values and scores of rows for all columns.
    """
    n = whole("n", n)
    step = max(1, PREDICTIONS_AT_ONCE // max(1, len(allowed)))
    with meter("rows", len(rows), show=len(rows) > 1) as bar:
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            for row, values, scores in zip(some, *of_rows(some), strict=True):
                open_scores = np.where(allowed, scores, -np.inf)
                open_scores[known(row)] = -np.inf
                best = top(open_scores, n)
                yield best, values[best], scores[best]
            bar.advance(len(some))


def new_row(
    model: Model,
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
    encoder = model.base.encoders[0]
    warn_unknown("columns", names, cols, "they are left out", 4)
    _check_range(model, index, numbers[known])
    if features is not None:
        if encoder is None:
            raise InputError("features need a model that was fitted with row_features")
        features = encoder.encode(features)
        if features.shape[0] != 1:
            raise InputError(
                f"features must belong to one row, got {features.shape[0]}"
            )
    row = model.fold(cols[known], numbers[known], features)
    one = model.of_row(row)
    return NewRow(row, one, index, cols[known], numbers[known], ranking)


def _check_range(model: Model, index: EntryIndex, values: Floats) -> None:
    """Warn of values off the scale of those fitted; refuse dislikes where likes were fitted."""
    if isinstance(model, ImplicitModel):
        refuse_dislikes(values)
        return
    low, high = index.value_range
    # Values on a scale such as 1 to 5 never leave it; others may, but hardly by its whole width.
    slack = 0.0 if np.isfinite(model.base.low) else high - low
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
            raise InputError(
                f"a sparse row must have shape (1, columns), got {row.shape}"
            )
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


def top(scores: Floats, n: int) -> Array:
    """Return where the n largest finite scores are, largest first, ties in order."""
    n = min(n, int(np.count_nonzero(scores > -np.inf)))
    if not n:
        return np.zeros(0, np.int64)
    last = -np.partition(-scores, n - 1)[n - 1]
    above = np.flatnonzero(scores > last)
    best = np.append(above, np.flatnonzero(scores == last)[: n - len(above)])
    return best[np.lexsort((best, -scores[best]))]


@dataclass(frozen=True, repr=False, eq=False)
class Recommendations(Result):
    """Lists for many rows: line i recommends cols[i] to rows[i] as number ranks[i], from 1."""

    rows: Array
    cols: Array
    ranks: Ints
    values: Floats
    scores: Floats
    by: str


def best_for_rows(
    ranking: Ranking,
    index: EntryIndex,
    rows: Any,
    n: int,
    exclude_seen: bool,
    exclude: Any,
    candidates: Any,
) -> Recommendations:
    """Return the columns that suit many rows best (None: all rows), block by block."""
    left_out: dict[int, list[int]] = defaultdict(list)
    if getattr(exclude, "ndim", 1) == 2:
        at, _ = index.find_pairs(exclude)
        least = np.minimum(*at)
        then = "nothing is excluded for them"
        warn_unknown("pairs to exclude", exclude, least, then, 4)
        for row, col in np.transpose(at)[least != UNKNOWN].tolist():
            left_out[row].append(col)
        exclude = ()
    allowed = column_mask(index, exclude, candidates)
    places = np.arange(index.rows.count) if rows is None else index.rows.find(rows)
    unknown = describe_unknown("rows", rows, places)
    if unknown:
        raise InputError(f"rows must have been fitted, but {unknown}")
    seen = index.cols_of_row if exclude_seen else nothing_known

    def known(row: int) -> Array:
        return np.append(seen(row), np.array(left_out[row], np.int64))

    nothing = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    lists = [nothing, *best_columns(ranking.of_rows, known, places, n, allowed)]
    best, values, scores = zip(*lists, strict=True)
    counts = [len(found) for found in best[1:]]
    ranks = [np.arange(1, count + 1) for count in counts]
    return Recommendations(
        index.rows.labels(np.repeat(places, counts)),
        index.cols.labels(np.concatenate(best)),
        np.concatenate([nothing[0], *ranks]),
        ranking.model.base.clip(np.concatenate(values)),
        np.concatenate(scores),
        BY[ranking.by],
    )


SHOWN = 10
"""Entries of an explanation that its text shows."""


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(Result):
    """A prediction taken apart: a baseline, and what the value of each entry of the row adds.

    Entries are sorted by the size of their contribution. The baseline is all the rest: mean,
    biases, prior, which entries are observed, features, samples that were averaged, and what
    clipping to the scale took away.
    """

    prediction: float
    baseline: float
    cols: Array
    values: Floats
    contributions: Floats

    def __repr__(self) -> str:
        parts = ("prediction", "baseline")
        head = ", ".join(f"{name} {getattr(self, name):.4g}" for name in parts)
        lines = table_lines(
            ("value", "adds"), self.cols, self.values, self.contributions
        )
        more = (
            [f"... and {len(self.cols) - SHOWN} more"] if len(self.cols) > SHOWN else []
        )
        return "\n".join([head, *lines[: SHOWN + 1], *more])


def explain(model: Model, index: EntryIndex, row: Any, col: Any) -> Explanation:
    """Take a prediction apart into a baseline and what each entry of the row adds."""
    a = index.rows.find_one(row)
    b = index.cols.find_one(col)
    cols, values = index.of_row(a)
    base = model.base
    sums = (model if isinstance(model, ImplicitModel) else base).row_sums(cols, values)
    added = base.contributions(a, b, sums)
    predicted = model.predict(np.array([a]), np.array([b]))
    prediction = float(predicted[0])
    order = np.argsort(-np.abs(added), kind="stable")
    baseline = prediction - float(added.sum())
    names = index.cols.labels(cols[order])
    return Explanation(prediction, baseline, names, values[order], added[order])


def least_relevant(values: Floats) -> float:
    """Return the value from which entries are liked: 4 of 5 stars; of clicks and counts, any."""
    strengths = Strengths.of(values)
    if strengths.log or np.ptp(values) == 0:
        return -np.inf
    return strengths.zero + RELEVANT_STRENGTH * strengths.scale


def long_lists(
    scores: Callable[[Ints], Floats],
    known: Callable[[int], Array],
    rows: Ints,
    n_cols: int,
) -> Ints:
    """Return the LIST_LENGTH best columns of each row that it does not know; -1 where fewer."""
    found = np.full((len(rows), LIST_LENGTH), -1)
    allowed = np.ones(n_cols, dtype=bool)

    def of_rows(some: Ints) -> tuple[Floats, Floats]:
        return (scores(some),) * 2

    lists = best_columns(of_rows, known, rows, LIST_LENGTH, allowed)
    for line, (best, *_) in zip(found, lists, strict=True):
        line[: len(best)] = best
    return found


class JudgedLists(NamedTuple):
    """Lists of rows with relevant entries: which places hit one, and how many there are."""

    lists: Ints
    hits: Floats
    counts: Ints

    @classmethod
    def of(cls, lists: Ints, rows: Ints, holdout: Entries, least: float) -> JudgedLists:
        """Judge lists by holdout values of at least `least`."""
        rounding = 1e-9 * abs(least) if np.isfinite(least) else 0.0
        good = holdout.values >= least - rounding
        at = np.searchsorted(rows, holdout.rows[good])
        counts = np.bincount(at, minlength=len(rows))
        wanted = set(zip(at.tolist(), holdout.cols[good].tolist(), strict=True))
        hits = [
            [(i, col) in wanted for col in line]
            for i, line in enumerate(lists.tolist())
        ]
        judged = counts > 0
        return cls(lists[judged], np.array(hits, dtype=float)[judged], counts[judged])

    def ndcg(self) -> Floats:
        """Return nDCG@10 of each list."""
        discount = 1 / np.log2(np.arange(2, NDCG_LENGTH + 2))
        ideal = np.cumsum(discount)[np.minimum(self.counts, NDCG_LENGTH) - 1]
        return self.hits[:, :NDCG_LENGTH] @ discount / ideal


def score_entries(fitted: Any, X: Any, y: Any) -> float:
    """Return the negative root mean squared error of entries, or nDCG@10 of what was chosen."""
    given = observed(X, y)
    matrix = (
        y is None and not isinstance(X, Entries) and (is_table(X) or not is_frame(X))
    )
    if matrix and given.row_ids is None:
        _check_rows(given, fitted.entries_)
    if isinstance(fitted.model_, ImplicitModel):
        return _ndcg_of_entries(fitted, fitted.index_.align(given, named=y is not None))
    error = fitted.predict(given if y is None else X) - given.values
    return -float(np.sqrt(np.mean(error**2)))


def _check_rows(given: Entries, known: Entries) -> None:
    """Refuse a matrix whose rows are not those that were fitted, as far as that shows."""
    hint = "new rows are predicted by fold_in"
    if given.shape[0] != known.shape[0]:
        raise InputError(
            f"X must have the {known.shape[0]} rows that were fitted, got {given.shape[0]}; {hint}"
        )
    width = max(given.shape[1], known.shape[1])
    keys, at = np.unique(known.rows * width + known.cols, return_index=True)
    mine = given.rows * width + given.cols
    place = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
    same = keys[place] == mine
    changed = given.values[same] != known.values[at[place[same]]]
    if np.count_nonzero(changed) > MAX_CHANGED * max(len(changed), 1):
        raise InputError(
            f"X has other values than were fitted at {np.count_nonzero(changed)} of "
            f"{len(changed)} known entries, as if its rows were others; {hint}"
        )


def _ndcg_of_entries(fitted: Any, entries: Entries) -> float:
    """Return nDCG@10 of entries, in a model's numbering, among all that rows do not have beside."""
    train = fitted.entries_
    m, n = train.shape
    inside = np.flatnonzero((entries.rows < m) & (entries.cols < n))
    entries = observed_pairs(entries.take(inside))
    rows = np.unique(entries.rows)
    test = EntryIndex(entries)

    def known(row: int) -> Array:
        return np.setdiff1d(fitted.index_.of_row(row)[0], test.of_row(row)[0])

    lists = long_lists(fitted.model_.rank_rows, known, rows, n)
    judged = JudgedLists.of(lists, rows, entries, least_relevant(entries.values))
    return float(judged.ndcg().mean()) if len(judged.counts) else 0.0
