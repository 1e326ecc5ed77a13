"""Standard deviations are those of the predictor; a status is judged by the reported objective."""

import warnings

import numpy as np
import pytest

from overt import Entries
from overt.completion import DropoutCompletion
from overt.entries import observed

SHAPES = {"days x hours": (200, 24), "years x months": (61, 12)}


def smooth(shape, seed=0):
    """A matrix of rank 4 with little noise, such as temperatures of days by hours."""
    rng = np.random.default_rng(seed)
    m, n = shape
    rows = np.cumsum(rng.normal(size=(m, 4)), axis=0) / np.sqrt(m)
    angle = 2 * np.pi * np.arange(n) / n
    cols = np.array([np.ones(n), np.cos(angle), np.sin(angle), np.cos(2 * angle)])
    return 50 + 8 * rows @ cols + 0.05 * rng.normal(size=shape)


def hidden(X, seed=0):
    hide = np.random.default_rng(seed).random(X.shape) < 0.3
    return np.where(hide, np.nan, X), *np.nonzero(hide)


@pytest.mark.parametrize("n_factors", [None, 12, 32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_fit_that_says_converged_has_stopped_to_fall(shape, n_factors):
    """It said so where the objective still fell by up to 2 nats a rating, or ran off to -1e287."""
    X, *_ = hidden(smooth(shape))
    model = DropoutCompletion(n_factors, average=0, tol=1e-3).fit(observed(X))
    falls = -np.diff(model.objective_)
    assert np.all(np.isfinite(model.objective_))
    assert model.objective_[-1] > -30
    assert np.all(falls[3:] > -1e-2)  # the first sweeps hold the noise down on purpose
    if model.status_ == "converged":
        assert abs(falls[-1]) <= 1e-3
    else:
        assert model.n_sweeps_ == 100


@pytest.mark.parametrize("average", [0, 40])
def test_intervals_cover_held_out_entries_of_low_noise_matrices(average):
    """With samples averaged, 50 per cent intervals covered 86 per cent."""
    inside = {0.5: [], 0.9: []}
    for seed in range(3):
        X = smooth((200, 24), seed)
        table, rows, cols = hidden(X, seed)
        model = DropoutCompletion(average=average).fit(observed(table))
        predicted, std = model.predict(rows, cols, return_std=True)
        z = np.abs(predicted - X[rows, cols]) / std
        inside[0.5] += (z <= 0.6745).tolist()
        inside[0.9] += (z <= 1.6449).tolist()
    # Errors of one row depend on each other: rows, not entries, count as independent.
    for level, found in inside.items():
        error = np.sqrt(level * (1 - level) / 600)
        assert abs(np.mean(found) - level) <= 5 * error


def test_a_new_row_has_the_standard_deviation_of_a_known_one():
    X = smooth((200, 24))
    table, rows, cols = hidden(X)
    model = DropoutCompletion(average=40).fit(observed(table))
    known = np.flatnonzero(~np.isnan(table[7]))
    mine = cols[rows == 7]
    new = model.fold_in((known, table[7, known])).predict(mine, return_std=True)[1]
    old = model.predict(np.full(len(mine), 7), mine, return_std=True)[1]
    assert 0.5 < np.mean(new) / np.mean(old) < 2  # 40 samples, and the row's own noise


def test_intervals_hold_for_new_rows_and_new_columns():
    """Between 30 and 87 of 100 values were inside of 90 % intervals; both new: 54."""
    inside = {"row": [], "column": [], "both": []}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        Y = rng.standard_normal((150, 3)) @ rng.standard_normal((3, 70))
        Y += rng.standard_normal((150, 1)) + rng.standard_normal((1, 70))
        Y += 0.5 * rng.standard_normal(Y.shape)
        rows, cols = np.nonzero(rng.random((120, 50)) < 0.3)
        entries = Entries(rows, cols, Y[rows, cols], (120, 50))
        model = DropoutCompletion(average=0).fit(entries)
        a, b = (x.ravel() for x in np.indices(Y.shape))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mean, std = model.predict(a, b, return_std=True)
        held = (np.abs(Y.ravel() - mean) < 1.645 * std).reshape(Y.shape)
        inside["row"] += held[120:, :50].mean(axis=1).tolist()
        inside["column"] += held[:120, 50:].mean(axis=0).tolist()
        inside["both"] += held[120:, 50:].mean(axis=1).tolist()
    for found in inside.values():
        standard_error = np.std(found) / np.sqrt(len(found))
        assert abs(np.mean(found) - 0.9) < max(5 * standard_error, 0.05)


def test_a_new_row_of_a_matrix_with_few_rows_is_not_far_off():
    """Which entries are observed explained any of 50 rows: a new one was off by 2.6 times sd."""
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 300))
    Y += 0.5 * rng.standard_normal(Y.shape)
    seen = rng.random(Y.shape) < 0.3
    rows, cols = np.nonzero(seen[:50])
    model = DropoutCompletion(average=0).fit(
        Entries(rows, cols, Y[rows, cols], (50, 300))
    )
    errors = []
    for row in range(50, 60):
        at = np.flatnonzero(seen[row])
        rest = np.flatnonzero(~seen[row])
        errors.append(model.fold_in((at, Y[row, at])).predict(rest) - Y[row, rest])
    assert np.sqrt(np.mean(np.concatenate(errors) ** 2)) < 1


def test_intervals_of_new_rows_with_few_entries_hold():
    """With 3 entries 84 of 100 values were inside of 90 % intervals, and of one seed 80."""
    inside = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        Y = rng.standard_normal((90, 4)) @ rng.standard_normal((4, 250))
        Y += 0.5 * rng.standard_normal(Y.shape)
        rows, cols = np.nonzero(rng.random((50, 250)) < 0.3)
        entries = Entries(rows, cols, Y[rows, cols], (50, 250))
        model = DropoutCompletion(average=0).fit(entries)
        for row in range(50, 90):
            at = rng.choice(250, 3, replace=False)
            rest = np.setdiff1d(np.arange(250), at)
            mean, std = model.fold_in((at, Y[row, at])).predict(rest, return_std=True)
            inside.append(np.mean(np.abs(mean - Y[row, rest]) < 1.645 * std))
    # Rows of one matrix share the errors of its columns: 4 matrices, no standard error.
    assert np.mean(inside) > 0.865


@pytest.mark.parametrize("side", [0, 1])
def test_averaged_rows_without_features_are_as_uncertain_as_others(side):
    """They took the average's features with certainty where samples are averaged."""
    inside = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        features = rng.standard_normal((200, 3))
        Y = features @ rng.standard_normal((3, 4)) @ rng.standard_normal((4, 60))
        Y += 0.5 * rng.standard_normal(Y.shape)
        seen = rng.random(Y.shape) < 0.3
        seen[:60] = False
        for row in range(60):
            seen[row, rng.choice(60, rng.integers(1, 6), replace=False)] = True
        features[:60] = np.nan
        rows, cols = np.nonzero(seen)
        places = (rows, cols) if side == 0 else (cols, rows)
        entries = Entries(*places, Y[rows, cols])
        given = {("row_features", "col_features")[side]: features}
        model = DropoutCompletion(average=30).fit(entries, **given)
        rows, cols = np.nonzero(~seen[:60])
        places = (rows, cols) if side == 0 else (cols, rows)
        mean, std = model.predict(*places, return_std=True)
        held = np.abs(mean - Y[rows, cols]) < 1.645 * std
        inside += [held[rows == row].mean() for row in range(60)]
    assert np.mean(inside) > 0.8


def test_averaging_does_not_fit_noise_with_factors_that_are_not_needed():
    """Errors grew by a quarter; 90 % intervals of new values at seen entries covered 64 %."""
    inside = []
    differences = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
        truth += rng.standard_normal((60, 1)) + rng.standard_normal((1, 40))
        seen = rng.random(truth.shape) < 0.45
        first, second = truth + 0.3 * rng.standard_normal((2, *truth.shape))
        table = np.where(seen, first, np.nan)
        averaged = DropoutCompletion(average=60).fit(table)
        plain = DropoutCompletion(average=0).fit(table)
        rows, cols = np.nonzero(seen)
        mean, std = averaged.predict(rows, cols, return_std=True)
        held = np.abs(second[seen] - mean) < 1.645 * std
        inside += [held[rows == row].mean() for row in range(60)]
        squares = [(model.complete() - truth) ** 2 for model in (averaged, plain)]
        unseen = ~seen
        more = np.where(unseen, squares[0] - squares[1], 0)
        differences += (more.sum(axis=1) / unseen.sum(axis=1)).tolist()
    # Errors of one row depend on each other: rows count as independent.
    cover_error = np.std(inside) / np.sqrt(len(inside))
    assert abs(np.mean(inside) - 0.9) < 5 * cover_error
    difference_error = np.std(differences) / np.sqrt(len(differences))
    assert np.mean(differences) < 3 * difference_error
