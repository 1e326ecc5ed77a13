"""What `score` says of a fitted model: the error of entries, or how well they are ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import InputError, doubles
from overt._intervals import weighted_error
from overt._types import Floats
from overt.completion.evaluation import (
    RANKS,
    Known,
    best_columns,
    least_relevant,
    ranking_figures,
)
from overt.completion.forms.strengths import observed_pairs
from overt.entries import Entries, observed
from overt.entries.frames import is_frame, is_table

if TYPE_CHECKING:
    from overt.completion.estimator import DropoutCompletion

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
