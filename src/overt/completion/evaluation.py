"""How good a model is: a part of the entries is predicted and ranked, beside simple baselines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import (
    Array,
    Floats,
    InputError,
    InputTypeError,
    Ints,
    choice,
    number,
    whole,
)
from overt.completion.estimator import DropoutCompletion, read_entries
from overt.completion.implicit import ImplicitModel
from overt.completion.recommend import (
    LIST_LENGTH,
    NDCG_LENGTH,
    JudgedLists,
    least_relevant,
    long_lists,
)
from overt.entries import Entries
from overt.results import Result

SPLITS = ("random", "time", "last")

NINE_TENTHS = 1.6448536269514722
"""Standard deviations to both sides that contain nine tenths of a Gaussian."""

BIAS_SHRINKAGE = 5
"""Entries at 0 that biases of the baseline are averaged with."""

Figures = dict[str, tuple[float, float]]
"""{measure: (figure, its standard error)}."""


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(Result):
    """Figures measured on entries that were not fitted.

    Attributes
    ----------
    split
        How entries were divided.
    n_train, n_holdout
        Entries that were fitted, and that were judged.
    figures
        {who: {measure: (figure, its standard error)}}; the model first, then the baselines.
    relevant
        The value from which a holdout entry counts as relevant for lists; None: every entry does.
    """

    split: str
    n_train: int
    n_holdout: int
    figures: dict[str, Figures]
    relevant: float | None = None

    def __repr__(self) -> str:
        head = (
            f"{self.n_train} entries fitted, {self.n_holdout} left out ({self.split}); "
        )
        head += "lists are judged by "
        least = self.relevant
        head += "every entry" if least is None else f"values of at least {least:g}"
        names = list(
            dict.fromkeys(name for found in self.figures.values() for name in found)
        )
        lines = [head, " ".join([f"{'':12}", *(f"{name:>16}" for name in names)])]
        for who, found in self.figures.items():
            cells = (
                f"{found[n][0]:.4f} ± {found[n][1]:.4f}" if n in found else ""
                for n in names
            )
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
        least one of two or more). Times come from `overt.Entries`; without them the order of
        entries counts.
    holdout
        Share of entries that is not fitted.
    relevant
        Lists are judged by holdout entries with at least this value. None takes 4 of 5 stars
        (four fifths of the way from nothing to the largest value), and every entry of counts and
        clicks.
    """
    from sklearn.base import clone

    if isinstance(model, type) or not hasattr(model, "fit_entries"):
        raise InputTypeError(f"model must be a DropoutCompletion, got {model!r:.60}")
    entries = read_entries(data, None, model.missing)
    least = least_relevant(entries.values)
    if relevant is not None:
        least = number("relevant", relevant, minimum=-np.inf)
    train, test = divide(entries, split, holdout, seed)
    fitted = clone(model).fit_entries(train).prepare_ranking()
    rows = np.unique(test.rows)
    m, n = train.shape
    ranking = fitted._ranking()
    index = fitted.index_
    counts = np.bincount(train.cols, minlength=n)
    rankings: dict[str, Callable[[Ints], Floats]] = {
        "model": lambda some: ranking.of_rows(some)[1],
        "popularity": lambda some: np.tile(counts, (len(some), 1)),
    }
    found: dict[str, Figures] = {}
    for who, scores in rankings.items():
        lists = long_lists(scores, index.cols_of_row, rows, n)
        found[who] = list_figures(lists, rows, train, test, least)
    if not isinstance(fitted.model_, ImplicitModel):
        predicted = fitted.model_.predict(test.rows, test.cols)
        std = None
        if fitted.model_.has_std:
            std = np.sqrt(fitted.model_.variance(test.rows, test.cols))
        errors = error_figures(test.values, predicted, std)
        found["model"] = errors | found["model"]
        mean = float(train.values.mean())
        col_bias = _shrunken_means(train.cols, train.values - mean, n)
        residual = train.values - mean - col_bias[train.cols]
        row_bias = _shrunken_means(train.rows, residual, m)
        biases = mean + row_bias[test.rows] + col_bias[test.cols]
        found["biases"] = error_figures(test.values, biases, None)
        found["mean"] = error_figures(test.values, np.full(len(test), mean), None)
    return Evaluation(
        split, len(train), len(test), found, least if np.isfinite(least) else None
    )


def divide(
    entries: Entries, split: str, holdout: float, seed: int
) -> tuple[Entries, Entries]:
    """Return what is fitted and what is judged."""
    choice("split", split, SPLITS)
    holdout = number("holdout", holdout, exclusive=True)
    rng = np.random.default_rng([whole("seed", seed, 0), 2])
    count = len(entries)
    times = np.arange(count, dtype=float) if entries.times is None else entries.times
    if split in ("random", "time"):
        order = rng.permutation(count) if split == "random" else np.argsort(-times)
        held = np.zeros(count, dtype=bool)
        held[order[: int(holdout * count)]] = True
    else:
        held = last_of_rows(entries.rows, times, holdout)
    if not 0 < np.count_nonzero(held) < count:
        raise InputError(
            f"holdout must leave entries on both sides, got {holdout} of {count}"
        )
    return entries.take(np.flatnonzero(~held)), entries.take(np.flatnonzero(held))


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


def error_figures(y: Floats, predicted: Floats, std: Floats | None) -> Figures:
    """Return errors of predictions, and how many values lie within their nine-tenths interval."""
    error = y - predicted
    rmse = float(np.sqrt(np.mean(error**2)))
    rmse_error = 0.0
    if rmse:
        rmse_error = float(np.std(error**2)) / (2 * rmse * np.sqrt(len(y)))
    found = {"rmse": (rmse, rmse_error), "mae": _mean(np.abs(error))}
    if std is not None:
        found["coverage_90"] = _mean(np.abs(error) <= NINE_TENTHS * std)
    return found


def list_figures(
    lists: Ints, rows: Ints, train: Entries, test: Entries, least: float = -np.inf
) -> Figures:
    """Return figures of lists: means over rows with a holdout value of at least `least`."""
    judged = JudgedLists.of(lists, rows, test, least)
    if not len(judged.counts):
        return {}
    hits = judged.hits
    ranks = np.arange(1, LIST_LENGTH + 1)
    precision = np.cumsum(hits, axis=1) / ranks
    average = (hits * precision).sum(axis=1) / np.minimum(judged.counts, LIST_LENGTH)
    shown = judged.lists[judged.lists >= 0]
    return {
        f"ndcg@{NDCG_LENGTH}": _mean(judged.ndcg()),
        f"recall@{LIST_LENGTH}": _mean(hits.sum(axis=1) / judged.counts),
        "mrr": _mean((hits / ranks).max(axis=1)),
        "map": _mean(average),
        "columns_shown": (len(np.unique(shown)) / train.shape[1], 0.0),
    }


def _shrunken_means(keys: Ints, values: Floats, count: int) -> Floats:
    sums = np.bincount(keys, values, count)
    return np.asarray(sums / (np.bincount(keys, minlength=count) + BIAS_SHRINKAGE))


def _mean(values: Array) -> tuple[float, float]:
    x = np.asarray(values, dtype=float)
    count = len(x)
    std = x.std(ddof=min(1, count - 1))
    return float(x.mean()), float(std / np.sqrt(count))
