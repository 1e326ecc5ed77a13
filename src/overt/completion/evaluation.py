"""How good a model is: entries are held out, predicted and ranked, beside simple baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overt._check import InputError, InputTypeError, choice, doubles, number, whole
from overt._intervals import weighted_error
from overt._types import Array, Floats, Ints
from overt.completion.forms.implicit import Strengths, observed_pairs
from overt.completion.recommend import BLOCK, top
from overt.completion.tables import read_entries
from overt.entries import Entries, observed
from overt.entries.frames import is_frame, is_table
from overt.results import Result

if TYPE_CHECKING:
    from overt.completion.estimator import DropoutCompletion

SPLITS = ("random", "time", "last", "rows")

RANKS = 10
REACH = 20
"""Columns that nDCG looks at, and that recall, reciprocal rank and average precision look at."""

LIKED = 0.8
"""Strength from which a held-out value is relevant: 4 of 5 stars."""

COVERS = 1.6448536269514722
"""Standard deviations to both sides that hold nine tenths of a Gaussian."""

SHRINK = 5
"""Entries at 0 that biases of the baseline are averaged with."""


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(Result):
    """Figures measured on held-out entries.

    Attributes
    ----------
    split
        How entries were held out.
    n_train, n_holdout
        Entries that were fitted, and that were judged.
    figures
        {who: {measure: (figure, its standard error)}}; the model first, then the baselines.
    relevant
        The value from which a held-out entry counts as relevant for lists; None: every entry does.
    """

    split: str
    n_train: int
    n_holdout: int
    figures: dict[str, dict[str, tuple[float, float]]]
    relevant: float | None = None

    def __repr__(self) -> str:
        head = f"{self.n_train} entries fitted, {self.n_holdout} held out ({self.split}); "
        head += "lists are judged by "
        least = self.relevant
        head += "every entry" if least is None else f"values of at least {least:g}"
        names = list(dict.fromkeys(name for found in self.figures.values() for name in found))
        lines = [head, " ".join([f"{'':12}", *(f"{name:>16}" for name in names)])]
        for who, found in self.figures.items():
            cells = (f"{found[n][0]:.4f} ± {found[n][1]:.4f}" if n in found else "" for n in names)
            lines.append(" ".join([f"{who:12}", *(f"{cell:>16}" for cell in cells)]))
        return "\n".join(lines)


def evaluate(
    model: DropoutCompletion,
    data: Any,
    *,
    split: str = "random",
    holdout: float = 0.1,
    seed: int = 0,
    relevant: float | None = None,
) -> Evaluation:
    """Hold entries out, fit a copy of the model to the others, and judge it beside baselines.

    Parameters
    ----------
    model
        An estimator; it is not changed.
    data
        Observed entries, as `fit` takes them.
    split
        "random" holds out any entries; "time" the latest of all; "last" the latest of each row (at
        least one of two or more); "rows" whole rows, of which half the entries are then given to
        `fold_in`. Times come from `overt.Entries`; without them the order of entries counts.
    holdout
        Share of entries (or rows) that is held out.
    relevant
        Lists are judged by held-out entries with at least this value. None takes 4 of 5 stars
        (four fifths of the way from nothing to the largest value), and every entry of counts and
        clicks.
    """
    from sklearn.base import clone

    if isinstance(model, type) or not hasattr(model, "fit_entries"):
        raise InputTypeError(f"model must be a DropoutCompletion, got {model!r:.60}")
    entries = read_entries(data, None, model.missing)
    train, held, given = divide(entries, split, holdout, seed)
    fitted = clone(model).fit_entries(train).prepare_ranking()
    if given is None:
        answers = Answers.of_rows(fitted, train, held)
    else:
        answers = Answers.of_new_rows(fitted, given, held)
    values = fitted.model_.pairs is None
    least = least_relevant(entries.values)
    if relevant is not None:
        least = number("relevant", relevant, minimum=-np.inf)
    found = {"model": answers.figures(train, held, values, least)}
    known = train if given is None else given
    counts = np.bincount(train.cols, minlength=train.shape[1])
    lists = best_columns(lambda rows: np.tile(counts, (len(rows), 1)), known, answers.rows)
    found["popularity"] = ranking_figures(lists, answers.rows, train, held, least)
    if values:
        rows, cols = _biases(train, known)
        predicted = train.values.mean() + rows[held.rows] + cols[held.cols]
        found["biases"] = _errors(held.values, predicted, None)
        found["mean"] = _errors(held.values, np.full(len(held), train.values.mean()), None)
    return Evaluation(split, len(train), len(held), found, least if np.isfinite(least) else None)


def divide(
    entries: Entries, split: str, holdout: float, seed: int
) -> tuple[Entries, Entries, Entries | None]:
    """Return what is fitted, what is judged and, of whole rows, what is given of them."""
    choice("split", split, SPLITS)
    holdout = number("holdout", holdout, exclusive=True)
    rng = np.random.default_rng([whole("seed", seed, 0), 2])
    count = len(entries)
    times = np.arange(count, dtype=float) if entries.times is None else entries.times
    if split in ("random", "time"):
        order = rng.permutation(count) if split == "random" else np.argsort(-times)
        held = np.zeros(count, dtype=bool)
        held[order[: int(holdout * count)]] = True
    elif split == "last":
        held = last_of_rows(entries.rows, times, holdout)
    else:
        rows = np.unique(entries.rows)
        new = np.isin(entries.rows, rng.permutation(rows)[: max(1, int(holdout * len(rows)))])
        held = new & last_of_rows(entries.rows, rng.random(count), 0.5)
        if not np.count_nonzero(held) > 0 or new.all():
            raise InputError("there are too few rows to hold some out")
        parts = (~new, held, new & ~held)
        return tuple(entries.take(np.flatnonzero(part)) for part in parts)  # type: ignore[return-value]
    if not 0 < np.count_nonzero(held) < count:
        raise InputError(f"holdout must leave entries on both sides, got {holdout} of {count}")
    return entries.take(np.flatnonzero(~held)), entries.take(np.flatnonzero(held)), None


def last_of_rows(rows: Ints, times: Floats, share: float) -> Array:
    """Return whether an entry is among the last of its row."""
    order = np.lexsort((times, rows))
    counts = np.bincount(rows)
    starts = np.cumsum(counts) - counts
    place = np.arange(len(rows)) - np.repeat(starts, counts)
    kept = counts - np.maximum((share * counts).astype(int), counts > 1)
    late = np.zeros(len(rows), dtype=bool)
    late[order] = place >= np.repeat(kept, counts)
    return late


class Known(NamedTuple):
    """Entries, or none, that lists leave out."""

    rows: Ints
    cols: Ints
    shape: tuple[int, int]


def best_columns(scores: Callable[[Ints], Floats], known: Entries | Known, rows: Ints) -> Ints:
    """Return the REACH best columns of each row among those it does not have; -1 where fewer."""
    order = np.argsort(known.rows, kind="stable")
    starts = np.searchsorted(known.rows, np.arange(known.shape[0] + 1), sorter=order)
    found = np.full((len(rows), REACH), -1)
    step = max(1, BLOCK // known.shape[1])
    for start in range(0, len(rows), step):
        block = np.array(scores(rows[start : start + step]), dtype=float)
        for i, row in enumerate(rows[start : start + step]):
            block[i, known.cols[order[starts[row] : starts[row + 1]]]] = -np.inf
            best = top(block[i], REACH)
            found[start + i, : len(best)] = best
    return found


@dataclass(frozen=True, eq=False)
class Answers:
    """A model's predictions for held-out entries, and its lists for their rows."""

    predicted: Floats
    std: Floats | None
    rows: Ints
    lists: Ints

    @classmethod
    def of_rows(cls, fitted: DropoutCompletion, train: Entries, held: Entries) -> Answers:
        """Ask about rows that were fitted."""
        predicted = fitted.model_.predict(held.rows, held.cols)
        std = None
        if fitted.model_.has_std:
            std = np.sqrt(fitted.model_.variance(held.rows, held.cols))
        ranking = fitted._ranking()
        rows = np.unique(held.rows)
        lists = best_columns(lambda some: ranking.of_rows(some)[1], train, rows)
        return cls(predicted, std, rows, lists)

    @classmethod
    def of_new_rows(cls, fitted: DropoutCompletion, given: Entries, held: Entries) -> Answers:
        """Fold in what is given of rows, and ask about them."""
        predicted = np.empty(len(held))
        rows = np.unique(held.rows)
        std = np.empty(len(held)) if fitted.model_.has_std else None
        lists = np.full((len(rows), REACH), -1)
        name = fitted.index_.cols.labels
        index = fitted.index_
        for i, row in enumerate(rows):
            mine = given.rows == row
            asked = held.rows == row
            new = fitted.fold_in((name(given.cols[mine]), given.values[mine]))
            if std is None:
                predicted[asked] = new.predict(name(held.cols[asked]))
            else:
                predicted[asked], std[asked] = new.predict(name(held.cols[asked]), return_std=True)
            best = index.cols.find(new.recommend(REACH).cols)
            lists[i, : len(best)] = best
        return cls(predicted, std, rows, lists)

    def figures(
        self, train: Entries, held: Entries, values: bool, least: float
    ) -> dict[str, tuple[float, float]]:
        """Return the figures of what was answered."""
        found = _errors(held.values, self.predicted, self.std) if values else {}
        return found | ranking_figures(self.lists, self.rows, train, held, least)


def _errors(y: Floats, predicted: Floats, std: Floats | None) -> dict[str, tuple[float, float]]:
    error = y - predicted
    rmse = float(np.sqrt(np.mean(error**2)))
    spread = float(np.std(error**2)) / (2 * rmse * np.sqrt(len(y))) if rmse else 0.0
    found = {"rmse": (rmse, spread), "mae": _mean(np.abs(error))}
    return found if std is None else found | {"coverage_90": _mean(np.abs(error) <= COVERS * std)}


def least_relevant(values: Floats) -> float:
    """Return the value from which entries are liked: 4 of 5 stars; of clicks and counts, any."""
    strengths = Strengths.of(values)
    if strengths.log or np.ptp(values) == 0:
        return -np.inf
    return strengths.zero + LIKED * strengths.scale


def ranking_figures(
    lists: Ints, rows: Ints, train: Entries, held: Entries, least: float = -np.inf
) -> dict[str, tuple[float, float]]:
    """Return figures of lists: means over rows with a held-out value of at least `least`."""
    rounding = 1e-9 * abs(least) if np.isfinite(least) else 0.0
    good = held.values >= least - rounding
    at = np.searchsorted(rows, held.rows[good])
    counts = np.bincount(at, minlength=len(rows))
    wanted = set(zip(at.tolist(), held.cols[good].tolist(), strict=True))
    hits = np.array([[(i, c) in wanted for c in line] for i, line in enumerate(lists.tolist())])
    judged = counts > 0
    if not judged.any():
        return {}
    hits = hits[judged].astype(float)
    counts = counts[judged]
    lists = lists[judged]
    discount = 1 / np.log2(np.arange(2, RANKS + 2))
    ideal = np.cumsum(discount)[np.minimum(counts, RANKS) - 1]
    ranks = np.arange(1, REACH + 1)
    shares = np.bincount(train.cols, minlength=train.shape[1]) / max(1, len(np.unique(train.rows)))
    seen = lists[lists >= 0]
    return {
        f"ndcg@{RANKS}": _mean(hits[:, :RANKS] @ discount / ideal),
        f"recall@{REACH}": _mean(hits.sum(axis=1) / counts),
        "mrr": _mean((hits / ranks).max(axis=1)),
        "map": _mean(
            (hits * np.cumsum(hits, axis=1) / ranks).sum(axis=1) / np.minimum(counts, REACH)
        ),
        "columns_shown": (len(np.unique(seen)) / train.shape[1], 0.0),
        "novelty": _mean(-np.log2(np.maximum(shares[seen], 1e-9))),
    }


def _biases(train: Entries, known: Entries) -> tuple[Floats, Floats]:
    """Return row biases (of what is known) and column biases, shrunken, columns first."""
    mean = train.values.mean()
    cols = _shrunken(train.cols, train.values - mean, train.shape[1])
    return _shrunken(known.rows, known.values - mean - cols[known.cols], known.shape[0]), cols


def _shrunken(keys: Ints, values: Floats, count: int) -> Floats:
    sums = np.bincount(keys, values, count)
    return np.asarray(sums / (np.bincount(keys, minlength=count) + SHRINK))


def _mean(values: Array) -> tuple[float, float]:
    x = np.asarray(values, dtype=float)
    return float(x.mean()), float(x.std(ddof=min(1, len(x) - 1)) / np.sqrt(len(x)))


MAX_CHANGED = 0.25
"""Share of known entries with other values from which a matrix has other rows than were fitted."""


def score(fitted: DropoutCompletion, X: Any, y: Any, sample_weight: Any) -> float:
    """Return the negative root mean squared error of entries, or nDCG@10 of what was chosen."""
    given = observed(X, y)
    model = fitted.model_
    if model.pairs is not None and sample_weight is not None:
        raise InputError('with missing="negative" the score ranks, and takes no sample_weight')
    matrix = y is None and not isinstance(X, Entries) and (is_table(X) or not is_frame(X))
    if matrix and given.row_ids is None:
        _check_rows(given, fitted.entries_)
    if matrix and sample_weight is not None:
        sample_weight = _weights_of_rows(sample_weight, given)
    if model.pairs is not None:
        return ndcg(fitted, fitted.index_.aligned(given, named=y is not None))
    error = fitted.predict(given if y is None else X) - given.values
    return -weighted_error(error, sample_weight)


def _check_rows(given: Entries, known: Entries) -> None:
    """Refuse a matrix whose rows are not those that were fitted, as far as that shows."""
    hint = "new rows are judged by evaluate(model, data, split='rows'), or one by one by fold_in"
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


def _weights_of_rows(weights: Any, given: Entries) -> Floats:
    """Return weights of the entries of a matrix, whose rows have weights, as in `fit`."""
    w = doubles("sample_weight", weights, ndim=1)
    if len(w) != given.shape[0]:
        raise InputError(
            f"sample_weight must be one number for each of the {given.shape[0]} rows, got {len(w)}"
        )
    return w[given.rows]


def ndcg(fitted: DropoutCompletion, held: Entries) -> float:
    """Return nDCG@10 of entries, in a model's numbering, among all that rows do not have beside."""
    train, (m, n) = fitted.entries_, fitted.entries_.shape
    held = observed_pairs(held.take(np.flatnonzero((held.rows < m) & (held.cols < n))))
    kept = ~np.isin(train.rows * n + train.cols, held.rows * n + held.cols)
    known = Known(train.rows[kept], train.cols[kept], (m, n))
    ranking = fitted._ranking()
    rows = np.unique(held.rows)
    lists = best_columns(lambda some: ranking.of_rows(some)[1], known, rows)
    found = ranking_figures(lists, rows, train, held, least_relevant(held.values))
    return found.get(f"ndcg@{RANKS}", (0.0, 0.0))[0]
