"""Features of rows and columns: what they become, and what they tell of those without entries."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder

import overt
from overt import Entries, InputError
from overt.completion import DropoutCompletion


def generated(share=0.9, m=600, n=120, k=3, cold=100, seed=1):
    """Rows whose factors are partly a linear function of 8 features; the last are cold."""
    rng = np.random.default_rng(seed)
    X, B, V = rng.normal(size=(m, 8)), rng.normal(size=(8, k)), rng.normal(size=(n, k))
    expected = X @ B * np.sqrt(share / 8)
    U = expected + rng.normal(size=(m, k)) * np.sqrt(1 - share)
    Y = U @ V.T + 0.7 * rng.normal(size=(m, n))
    seen = rng.random((m, n)) < 0.15
    seen[m - cold :] = False
    rows, cols = np.nonzero(seen)
    return X, expected @ V.T, Y, Entries(rows, cols, Y[rows, cols], (m - cold, n))


def error(found, Y):
    return np.sqrt(np.mean((found - Y) ** 2))


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_cold_rows_are_predicted_as_well_as_by_the_true_regression(share):
    X, oracle, Y, entries = generated(share)
    model = DropoutCompletion(6, clip=False).fit(entries, row_features=X)
    a, b = (x.ravel() for x in np.indices(Y.shape))
    a, b = a[a >= 500], b[a >= 500]
    mean, std = model.predict(a, b, return_std=True)
    assert error(mean, Y[a, b]) < 1.03 * error(oracle[a, b], Y[a, b])
    assert np.std((Y[a, b] - mean) / std) == pytest.approx(1, abs=0.1)
    row = model.fold_in({}, features=X[550])
    found, spread = row.predict(np.arange(120), return_std=True)
    np.testing.assert_allclose(
        found, model.predict(np.full(120, 550), np.arange(120)), atol=1e-6
    )
    np.testing.assert_allclose(spread, std[a == 550], rtol=1e-5)


def test_features_of_columns_and_kinds_of_tables_agree():
    pandas = pytest.importorskip("pandas")
    X, _, Y, entries = generated()
    turned = Entries(entries.cols, entries.rows, entries.values, entries.shape[::-1])
    by_col = DropoutCompletion(6, clip=False, average=0).fit(turned, col_features=X)
    assert by_col.complete().shape == (120, 600)
    assert error(by_col.complete()[:, 500:], Y[500:].T) < 1.0
    frame = pandas.DataFrame(X)
    ids = np.array([f"r{i}" for i in range(600)])
    named = Entries.from_ids(ids[entries.rows], entries.cols, entries.values)
    models = [
        DropoutCompletion(6, clip=False, average=0).fit(
            named, row_features=(ids, table)
        )
        for table in (X, frame)
    ]
    assert len(models[0].row_ids_) == 600
    expected = models[0].predict(["r7", "r599"], [3, 4])
    np.testing.assert_allclose(models[1].predict(["r7", "r599"], [3, 4]), expected)
    stored = DropoutCompletion(6, clip=False, average=0).fit(
        entries, row_features=sparse.csr_array(X)
    )
    dense = stored.predict([7, 599], [3, 4])
    np.testing.assert_allclose(dense, expected, atol=1e-6)


def test_features_of_new_rows_survive_storage(tmp_path):
    X, _, _, entries = generated()
    model = DropoutCompletion(6, clip=False).fit(entries, row_features=X[:, :2])
    told = model.explain(3, 5)
    added = told.baseline + told.contributions.sum()
    assert added == pytest.approx(told.prediction)
    model.save(tmp_path)
    again = DropoutCompletion.load(tmp_path)
    new = [0.3, np.nan]
    here, there = (
        m.fold_in({3: 1.0}, features=new).predict([0]) for m in (model, again)
    )
    assert np.array_equal(here, there)
    assert again.explain(3, 5) == told


def test_categories_missing_values_and_units():
    """Scikit-learn encodes categories; a missing value counts as the mean; units do not matter."""
    X, _, _, entries = generated()
    jobs = np.where(X[:, 1] > 0, "cook", "poet")[:, None]
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(jobs)
    settings = {"n_factors": 6, "clip": False, "average": 0}
    model, other = (
        DropoutCompletion(**settings).fit(
            entries, row_features=np.column_stack([age, encoder.transform(jobs)])
        )
        for age in (X[:, 0], 40 + 7 * X[:, 0])
    )

    def cold(fitted, age, job):
        features = [age, *encoder.transform([[job]])[0]]
        return fitted.fold_in({}, features=features).predict(np.arange(120))

    np.testing.assert_allclose(
        cold(model, np.nan, "cook"), cold(model, X[:, 0].mean(), "cook")
    )
    assert np.abs(cold(model, 0, "cook") - cold(model, 0, "poet")).max() > 0.1
    np.testing.assert_allclose(
        cold(other, 40 + 7 * 1.5, "poet"), cold(model, 1.5, "poet"), atol=1e-6
    )


@pytest.mark.parametrize(
    ("features", "match"),
    [
        (np.full((3, 2), np.inf), "finite"),
        (np.full((6, 1), "poet"), "OneHotEncoder"),
        (np.zeros((2, 2, 2)), "two-dimensional"),
        ((["a", "b"], np.zeros((2, 1))), "whole numbers"),
        (([0, 1, 2], np.zeros((2, 1))), "2 rows and 3"),
        (([0, 0], np.zeros((2, 1))), "different"),
        (np.zeros((2, 1)), "each of 6"),
        (sparse.csr_array(np.full((6, 1), np.inf)), "finite"),
    ],
)
def test_bad_features_are_said(features, match):
    X = np.where(np.random.default_rng(0).random((6, 5)) < 0.7, 1.0, np.nan)
    with pytest.raises(overt.InputError, match=match):
        DropoutCompletion(2).fit(X, row_features=features)


def test_features_in_the_wrong_place_are_said():
    rng = np.random.default_rng(0)
    X, F = Entries.from_matrix(rng.normal(size=(6, 5))), rng.normal(size=(6, 2))
    with pytest.raises(overt.InputError, match="learn"):
        DropoutCompletion(2, 0.2).fit(X, row_features=F)
    with pytest.raises(overt.InputError, match="fitted with row_features"):
        DropoutCompletion(2, max_sweeps=1).fit(X).fold_in({}, features=F[0])
    model = DropoutCompletion(2, max_sweeps=1).fit(X, row_features=F)
    with pytest.raises(overt.InputError, match="columns of fit"):
        model.fold_in({}, features=[1.0])
    with pytest.raises(overt.InputError, match="one row"):
        model.fold_in({}, features=F)
    named = Entries.from_ids(["a", "b"], ["x", "y"], [1.0, 2.0])
    with pytest.raises(overt.InputError, match="pair"):
        DropoutCompletion(2).fit(named, row_features=F)


@pytest.mark.parametrize("unit", [1e-160, 1e-300])
def test_values_too_close_to_each_other_are_said(unit):
    with pytest.raises(overt.InputError, match="multiply them by a constant"):
        DropoutCompletion(2).fit(unit * np.eye(4))


def test_intervals_hold_for_a_new_row_without_features():
    """The average row's features were taken as if they were known: 40 % of 90 % intervals held."""
    inside = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((220, 4))
        U = X @ rng.standard_normal((4, 3)) / 2 + 0.3 * rng.standard_normal((220, 3))
        Y = U @ rng.standard_normal((3, 40)) + 0.3 * rng.standard_normal((220, 40))
        rows, cols = np.nonzero(rng.random((200, 40)) < 0.4)
        entries = Entries(rows, cols, Y[rows, cols], (200, 40))
        model = DropoutCompletion(average=0).fit(entries, row_features=X[:200])
        for row in range(200, 220):
            found = model.fold_in((np.arange(8), Y[row, :8]))
            mean, std = found.predict(np.arange(8, 40), return_std=True)
            inside.append(np.mean(np.abs(Y[row, 8:] - mean) < 1.645 * std))
    standard_error = np.std(inside) / np.sqrt(len(inside))
    assert abs(np.mean(inside) - 0.9) < 5 * standard_error
    assert np.mean(inside) > 0.8


def test_features_that_are_partly_known_narrow_a_new_row():
    X, _, _, entries = generated(m=200, n=40, cold=20)
    model = DropoutCompletion(6, average=0, clip=False).fit(
        entries, row_features=X[:180]
    )
    half = np.where(np.arange(8) < 4, X[190], np.nan)
    cols = np.arange(40)
    known, partly, unknown = (
        model.fold_in({}, features=f).predict(cols, return_std=True)[1].mean()
        for f in (X[190], half, np.full(8, np.nan))
    )
    without = model.fold_in({}).predict(cols, return_std=True)[1].mean()
    assert known < partly < unknown
    assert unknown == pytest.approx(without)


def test_rows_without_features_are_less_certain_than_with_the_average():
    X, _, _, entries = generated(m=200, n=40, cold=20)
    table = X[:180].copy()
    table[:60] = np.nan
    missing = DropoutCompletion(6, average=0).fit(entries, row_features=table)
    table[:60] = X[60:180].mean(axis=0)
    average = DropoutCompletion(6, average=0).fit(entries, row_features=table)
    rows, cols = (x.ravel() for x in np.indices((60, 40)))
    wide, narrow = (
        model.predict(rows, cols, return_std=True)[1] for model in (missing, average)
    )
    assert wide.mean() > 1.02 * narrow.mean()


def test_columns_of_a_frame_of_features_go_by_their_names():
    """They were read by position: two names swapped gave another prediction, and no error."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((60, 3)), columns=list("abc"))
    truth = table.to_numpy() @ rng.standard_normal((3, 20))
    seen = rng.random(truth.shape) < 0.5
    model = DropoutCompletion(4, average=0)
    model.fit(np.where(seen, truth, np.nan), row_features=table)
    new = pd.DataFrame([[1.0, 2.0, 3.0]], columns=list("abc"))
    expected = model.fold_in({}, new).predict([0, 1, 2])
    swapped = model.fold_in({}, new[["c", "a", "b"]]).predict([0, 1, 2])
    np.testing.assert_array_equal(swapped, expected)
    with pytest.raises(InputError, match="columns of fit, a, b, c, got x, y, z"):
        model.fold_in({}, new.set_axis(list("xyz"), axis=1))
