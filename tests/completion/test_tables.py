"""Dense tables: those for the imputer are refused or warned of, ratings and matrices are fitted."""

import numpy as np
import pytest

import overt
from overt.completion import DropoutCompletion, evaluate


def holes(X, share=0.25, seed=0):
    hidden = np.random.default_rng(seed).random(X.shape) < share
    return np.where(hidden, np.nan, X)


def measurements(rows=120):
    """Height, weight, age, income, shoe size: no matrix of one quantity."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=rows)
    center, scale = [170, 70, 40, 3e4, 42], [10, 12, 15, 1e4, 3]
    return center + scale * (0.7 * common[:, None] + 0.7 * rng.normal(size=(rows, 5)))


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_a_table_of_different_units_is_refused_and_the_imputer_named(share):
    """It was scaled by guess, and predicted worse than the column mean."""
    table = holes(measurements(), share)
    with pytest.raises(overt.InputError, match="DropoutImputer fills the holes"):
        DropoutCompletion().fit(table)
    with pytest.raises(overt.InputError, match="DropoutImputer fills the holes"):
        evaluate(DropoutCompletion(), table)
    assert DropoutCompletion(2).fit(
        overt.Entries.from_matrix(table)
    ).complete().shape == (120, 5)


def test_a_table_of_real_values_in_one_unit_is_warned_of():
    from sklearn.datasets import load_iris

    table = holes(load_iris().data)
    with pytest.warns(UserWarning, match="DropoutImputer fills the holes of tables"):
        DropoutCompletion(2, average=0).fit(table)


@pytest.mark.parametrize("values", ["stars", "clicks"])
def test_a_dense_matrix_of_ratings_is_fitted_without_a_word(values):
    rng = np.random.default_rng(0)
    stars = np.clip(
        np.round(3 + rng.normal(size=(60, 1)) + rng.normal(size=(60, 30))), 1, 5
    )
    table = holes(stars, 0.6) if values == "stars" else (stars > 3) * 1.0
    missing = "unknown" if values == "stars" else "negative"
    model = DropoutCompletion(2, max_sweeps=3, missing=missing).fit(table)
    assert model.complete().shape == (60, 30)


def test_evaluate_grades_what_fit_fits():
    """A table was graded in other units than fit took: the figures were those of another model."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 2)) @ rng.choice([-1.0, 1.0], (2, 10)) + rng.normal(
        size=(80, 10)
    )
    entries = overt.Entries.from_matrix(X)
    found = evaluate(DropoutCompletion(3, average=0), entries, seed=0)
    with pytest.warns(UserWarning, match="DropoutImputer"):
        dense = evaluate(DropoutCompletion(3, average=0), X, seed=0)
    assert found.figures["model"]["rmse"] == dense.figures["model"]["rmse"]


@pytest.mark.parametrize("rank", [1, 2])
def test_a_matrix_of_one_quantity_and_low_rank_is_no_table(rank):
    """Its columns differ as those of a table do, and it was refused."""
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((60, rank)) @ rng.standard_normal((rank, 30))
    Y += 0.05 * rng.standard_normal(Y.shape)
    Y[rng.random(Y.shape) < 0.3] = np.nan
    DropoutCompletion(2, max_sweeps=2, average=0).fit(Y)
    Y[:, ::3] *= 1000
    with pytest.raises(overt.InputError, match="different units"):
        DropoutCompletion(2, max_sweeps=2, average=0).fit(Y)
