"""What `score` says of a fitted model: errors of entries, or how well they are ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overt._intervals import weighted_error
from overt.completion.evaluation import (
    RANKS,
    Answers,
    Known,
    best_columns,
    last_of_rows,
    ranking_figures,
)
from overt.completion.forms.units import chosen
from overt.entries import Entries, observed
from overt.entries.frames import is_table

if TYPE_CHECKING:
    from overt.completion.estimator import DropoutCompletion


def score(fitted: DropoutCompletion, X: Any, y: Any, sample_weight: Any) -> float:
    """Return the negative root mean squared error of entries, or nDCG@10 of what was chosen."""
    given, model = observed(X, y), fitted.model_
    matrix = y is None and not isinstance(X, Entries)
    sparse = matrix and hasattr(X, "tocoo")
    if (matrix and is_table(X)) or (sparse and given.shape[0] != model.shape[0]):
        return of_new_rows(fitted, given)
    if model.pairs is not None:
        return ndcg(fitted, fitted.index_.aligned(given, named=y is not None))
    error = fitted.predict(given if y is None else X) - given.values
    return -weighted_error(error, sample_weight)


def ndcg(fitted: DropoutCompletion, held: Entries) -> float:
    """Return nDCG@10 of entries, in a model's numbering, among all that rows do not have beside."""
    train, (m, n) = fitted.entries_, fitted.entries_.shape
    held = chosen(held.take(np.flatnonzero((held.rows < m) & (held.cols < n))))
    kept = ~np.isin(train.rows * n + train.cols, held.rows * n + held.cols)
    known, ranking = Known(train.rows[kept], train.cols[kept], (m, n)), fitted._ranking()
    rows = np.unique(held.rows)
    lists = best_columns(lambda some: ranking.of_rows(some)[1], known, rows)
    found = ranking_figures(lists, rows, held, train, held)
    return found.get(f"ndcg@{RANKS}", (0.0, 0.0))[0]


def of_new_rows(fitted: DropoutCompletion, table: Entries) -> float:
    """Return the score of rows never seen: of entries that are predicted from others of their row.

    The negative root mean squared error; with missing="negative", nDCG@10 of half of the entries.
    """
    if fitted.model_.pairs is None:
        return -table_error(fitted, table)
    table = chosen(table)
    out = last_of_rows(table.rows, np.random.default_rng(0).random(len(table)), 0.5)
    given, held = (table.take(np.flatnonzero(part)) for part in (~out, out))
    answers = Answers.of_new_rows(fitted, given, held)
    found = ranking_figures(answers.lists, answers.rows, table, fitted.entries_, held)
    return found.get(f"ndcg@{RANKS}", (0.0, 0.0))[0]


def table_error(model: DropoutCompletion, table: Entries, parts: int = 5) -> float:
    """Return the root mean squared error of entries predicted from the others of their row.

    A fifth of a row's entries is left out at a time.
    """
    errors = []
    order = np.argsort(table.rows, kind="stable")
    for mine in np.split(order, np.cumsum(np.bincount(table.rows))[:-1]):
        cols, values = model.index_.cols.labels(table.cols[mine]), table.values[mine]
        for part in range(min(parts, len(mine))):
            out = np.arange(len(mine)) % parts == part
            row = model.fold_in((cols[~out], values[~out]))
            errors.append(row.predict(cols[out]) - values[out])
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
