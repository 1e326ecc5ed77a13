"""What `score` says of a fitted model: errors of entries, or how well they are ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import InputError, doubles
from overt._frames import is_table
from overt._intervals import weighted_error
from overt._types import Floats
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

if TYPE_CHECKING:
    from overt.completion.estimator import DropoutCompletion


def score(fitted: DropoutCompletion, X: Any, y: Any, sample_weight: Any) -> float:
    """Return the negative root mean squared error of entries, or nDCG@10 of what was chosen."""
    given, model = observed(X, y), fitted.model_
    if model.pairs is not None and sample_weight is not None:
        raise InputError('with missing="negative" the score ranks, and takes no sample_weight')
    matrix = y is None and not isinstance(X, Entries) and given.row_ids is None
    if matrix and sample_weight is not None:
        sample_weight = _of_entries(sample_weight, given)
    if matrix and (is_table(X) or given.shape[0] != model.shape[0]):
        return of_new_rows(fitted, given, sample_weight)
    if model.pairs is not None:
        return ndcg(fitted, fitted.index_.aligned(given, named=y is not None))
    error = fitted.predict(given if y is None else X) - given.values
    return -weighted_error(error, sample_weight)


def _of_entries(weights: Any, given: Entries) -> Floats:
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
    held = chosen(held.take(np.flatnonzero((held.rows < m) & (held.cols < n))))
    kept = ~np.isin(train.rows * n + train.cols, held.rows * n + held.cols)
    known, ranking = Known(train.rows[kept], train.cols[kept], (m, n)), fitted._ranking()
    rows = np.unique(held.rows)
    lists = best_columns(lambda some: ranking.of_rows(some)[1], known, rows)
    found = ranking_figures(lists, rows, held, train, held)
    return found.get(f"ndcg@{RANKS}", (0.0, 0.0))[0]


def of_new_rows(fitted: DropoutCompletion, table: Entries, weights: Floats | None = None) -> float:
    """Return the score of rows never seen: of entries that are predicted from others of their row.

    The negative root mean squared error; with missing="negative", nDCG@10 of half of the entries.
    """
    if fitted.model_.pairs is None:
        return -table_error(fitted, table, weights)
    table = chosen(table)
    out = last_of_rows(table.rows, np.random.default_rng(0).random(len(table)), 0.5)
    given, held = (table.take(np.flatnonzero(part)) for part in (~out, out))
    answers = Answers.of_new_rows(fitted, given, held)
    found = ranking_figures(answers.lists, answers.rows, table, fitted.entries_, held)
    return found.get(f"ndcg@{RANKS}", (0.0, 0.0))[0]


def table_error(
    model: DropoutCompletion, table: Entries, weights: Floats | None = None, parts: int = 5
) -> float:
    """Return the root mean squared error of entries predicted from the others of their row.

    A fifth of a row's entries is left out at a time.
    """
    errors = np.empty(len(table))
    order = np.argsort(table.rows, kind="stable")
    for mine in np.split(order, np.cumsum(np.bincount(table.rows))[:-1]):
        cols, values = model.index_.col_names(table.cols[mine]), table.values[mine]
        for part in range(min(parts, len(mine))):
            out = np.arange(len(mine)) % parts == part
            row = model.fold_in((cols[~out], values[~out]))
            errors[mine[out]] = row.predict(cols[out]) - values[out]
    return weighted_error(errors, weights)
