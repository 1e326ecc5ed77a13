"""DropoutImputer: Gaussian rows, units of columns, scikit-learn's conventions."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import overt
from overt.completion import DropoutImputer
from overt.completion.kernels.full import fill_rows, unexplained


def holes(table, share, seed=0):
    missing = np.random.default_rng(seed).random(table.shape) < share
    return np.where(missing, np.nan, table), missing


def error(table, filled, missing):
    return np.sqrt(np.mean((((filled - table) / table.std(axis=0))[missing]) ** 2))


@parametrize_with_checks([DropoutImputer(max_sweeps=5)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_rows_are_conditional_gaussians():
    """Against the textbook formula with the covariance that was learned."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((80, 5)) @ rng.standard_normal((5, 5)) * [1, 10, 100, 0.1, 1]
    given, missing = holes(table, 0.3)
    model = DropoutImputer().fit(given)
    filled, std = model.transform(given, return_std=True)
    for a in range(0, 80, 7):
        m, o = missing[a], ~missing[a]
        C = model.covariance_
        gain = C[np.ix_(m, o)] @ np.linalg.inv(C[np.ix_(o, o)])
        expected = model.mean_[m] + gain @ (table[a, o] - model.mean_[o])
        np.testing.assert_allclose(filled[a, m], expected, rtol=1e-6)
        spread = np.diag(C[np.ix_(m, m)] - gain @ C[np.ix_(o, m)])
        np.testing.assert_allclose(std[a, m], model._wider * np.sqrt(spread), rtol=1e-6)
    assert np.array_equal(filled[~missing], given[~missing])
    assert np.all(std[~missing] == 0)


def test_the_objective_is_the_likelihood_and_never_rises():
    rng = np.random.default_rng(0)
    given, missing = holes(rng.standard_normal((60, 4)) @ rng.standard_normal((4, 4)), 0.4)
    model = DropoutImputer(tol=0, max_sweeps=40).fit(given)
    assert np.diff(model.objective_).max() <= 1e-12
    Z = (given - model.center_) / model.scale_
    m, C = model._mean, np.linalg.inv(model._precision)
    total, nu = 0.0, model.prior_rows_
    for row, absent in zip(Z, missing, strict=True):
        o = ~absent
        d, block = row[o] - m[o], C[np.ix_(o, o)]
        total += o.sum() * np.log(2 * np.pi) + np.linalg.slogdet(block)[1]
        total += d @ np.linalg.solve(block, d)
    total += nu * (np.linalg.slogdet(C)[1] + np.trace(np.linalg.inv(C)))
    assert model.objective_[-1] == pytest.approx(total / 2 / (~missing).sum(), rel=1e-6)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_as_good_as_what_scikit_learn_has(load, share):
    table = load().data
    given, missing = holes(table, share)
    model = DropoutImputer().fit(given)
    filled, std = model.transform(given, return_std=True)
    mine = error(table, filled, missing)
    assert mine < error(table, KNNImputer().fit_transform(given), missing)
    if load is load_wine:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert mine < error(
                table, IterativeImputer(random_state=0).fit_transform(given), missing
            )
    covered = np.abs(filled - table)[missing] <= 1.645 * std[missing]
    assert 0.85 < covered.mean() < 0.96


def test_how_much_is_shrunken_is_asked_of_the_data():
    """Columns that have nothing to do with each other are shrunken, columns of one are not."""
    rng = np.random.default_rng(0)
    alone = rng.standard_normal((100, 8))
    given, missing = holes(alone, 0.3)
    model = DropoutImputer().fit(given)
    assert model.prior_rows_ >= 30
    assert error(alone, model.transform(given), missing) < 1.05
    one = rng.standard_normal((150, 1)) @ np.ones((1, 5)) + 0.05 * rng.standard_normal((150, 5))
    assert DropoutImputer().fit(holes(one, 0.3)[0]).prior_rows_ <= 1
    assert DropoutImputer().fit(np.array([[1.0, np.nan], [np.nan, 2.0]])).prior_rows_ > 0


def test_a_scale_is_not_left():
    answers = np.random.default_rng(0).integers(1, 6, (60, 1)) * np.ones((1, 4))
    given, _ = holes(answers, 0.3)
    for filled in (
        DropoutImputer().fit_transform(given),
        *DropoutImputer().fit(given).impute(given, 3),
    ):
        assert filled.min() >= 1
        assert filled.max() <= 5


def test_units_do_not_matter():
    table = load_wine().data
    given = holes(table, 0.3)[0]
    scale = np.logspace(-3, 3, table.shape[1])
    plain, scaled = (DropoutImputer().fit_transform(X) for X in (given, given * scale))
    np.testing.assert_allclose(scaled, plain * scale, rtol=1e-6)


def test_draws_have_the_spread_that_is_told():
    table = load_wine().data[:, :6]
    given, missing = holes(table, 0.3)
    model = DropoutImputer().fit(given)
    filled, std = model.transform(given, return_std=True)
    draws = np.array(model.impute(given, 400, seed=1))
    assert np.array_equal(draws[0][~missing], given[~missing])
    se = std[missing] / np.sqrt(400)
    assert np.mean(np.abs(draws.mean(axis=0)[missing] - filled[missing]) <= 3 * se) > 0.98
    np.testing.assert_allclose(draws.std(axis=0)[missing], std[missing], rtol=0.2)
    again = model.impute(given, 2, seed=1)
    assert np.array_equal(again[1], draws[1])


def test_in_a_pipeline_and_by_name():
    data = load_wine()
    given, _ = holes(data.data, 0.2)
    pipe = make_pipeline(DropoutImputer(), StandardScaler(), LogisticRegression())
    assert pipe.fit(given, data.target).score(given, data.target) > 0.9
    assert list(DropoutImputer().fit(given).get_feature_names_out()) == [f"x{i}" for i in range(13)]


def test_empty_columns_are_told():
    given = np.column_stack([np.arange(5.0), np.full(5, np.nan)])
    with pytest.warns(UserWarning, match="no entry"):
        filled = DropoutImputer().fit_transform(given)
    assert np.all(filled[:, 1] == 0)


def test_what_cannot_be_used_is_refused():
    with pytest.raises(overt.InputError, match="max_sweeps"):
        DropoutImputer(max_sweeps=0).fit(np.eye(3))
    with pytest.raises(ValueError, match="2 features"):
        DropoutImputer().fit(np.eye(3)).transform(np.eye(2))


def test_what_the_others_do_not_tell_is_left_out_regression():
    """Against regressions of each observed entry on the others of its row."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((20, 5)) @ rng.standard_normal((5, 5))
    missing = rng.random(table.shape) < 0.3
    C = np.cov(table, rowvar=False) + np.eye(5)
    mean, P, Z = table.mean(axis=0), np.linalg.inv(C), table.copy()
    fill_rows(Z, missing, mean, P, np.empty((0, 0)), np.zeros_like(Z), np.zeros_like(P))
    found = unexplained(Z, missing, mean, P)
    assert not found[missing].any()
    for a, j in zip(*np.nonzero(~missing), strict=True):
        o = ~missing[a] & (np.arange(5) != j)
        told = C[j, o] @ np.linalg.solve(C[np.ix_(o, o)], (table[a] - mean)[o])
        assert found[a, j] == pytest.approx(table[a, j] - mean[j] - told)


def test_similar_rows_are_asked_where_they_tell_more():
    """Clusters, which one covariance cannot hold; a Gaussian table, to which they add nothing."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((6, 12))
    clusters = centers[rng.integers(6, size=300)] + 0.3 * rng.standard_normal((300, 12))
    given, missing = holes(clusters, 0.3)
    model = DropoutImputer().fit(given)
    filled, std = model.transform(given, return_std=True)
    knn = KNNImputer().fit_transform(given)
    assert model.neighbor_weights_.any()
    assert error(clusters, filled, missing) < min(0.4, error(clusters, knn, missing))
    assert 0.85 < np.mean((np.abs(filled - clusters) <= 1.645 * std)[missing]) < 0.99
    draws = np.stack(model.impute(given, 30, seed=0))
    off = (draws.mean(axis=0) - filled)[missing] / std[missing]
    assert np.abs(off).max() < 6 / np.sqrt(30)
    gaussian = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 8))
    gaussian += rng.standard_normal((300, 8))
    assert not DropoutImputer().fit(holes(gaussian, 0.3)[0]).neighbor_weights_.any()
