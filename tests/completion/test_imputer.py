"""DropoutImputer: conditional Gaussians, calibration, multiple imputation, conventions."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
)
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import overt
from overt.completion import DropoutImputer


def with_holes(table, share, seed=0):
    missing = np.random.default_rng(seed).random(table.shape) < share
    return np.where(missing, np.nan, table), missing


def rmse(table, filled, missing):
    """Error of filled entries in units of the columns' standard deviations."""
    return np.sqrt(np.mean((((filled - table) / table.std(axis=0))[missing]) ** 2))


def gaussian(n=80, p=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, p)) @ rng.standard_normal((p, p)) + 3


def clusters():
    """Rows near one of six centers, which one covariance cannot describe."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((6, 12))
    return centers[rng.integers(6, size=300)] + 0.3 * rng.standard_normal((300, 12))


def answers():
    """A survey: columns of whole numbers from 1 to 5, some with the same counts."""
    return np.random.default_rng(0).integers(1, 6, (60, 1)) * np.ones((1, 4))


TABLES = {
    "gaussian": gaussian,
    "iris": lambda: load_iris().data,
    "wine": lambda: load_wine().data,
    "diabetes": lambda: load_diabetes().data,
    "digits": lambda: load_digits().data[:200, 2:20],
    "survey": answers,
    "two values": lambda: np.random.default_rng(0).integers(0, 2, (60, 5)) * 1.0,
    "clusters": clusters,
}


@parametrize_with_checks([DropoutImputer(max_sweeps=5)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_transformer_get_feature_names_out,
        estimator_checks.check_transformer_get_feature_names_out_pandas,
        estimator_checks.check_set_output_transform,
        estimator_checks.check_set_output_transform_pandas,
        estimator_checks.check_global_output_transform_pandas,
        estimator_checks.check_dataframe_column_names_consistency,
    ],
)
def test_further_checks_of_scikit_learn(check):
    check("DropoutImputer", DropoutImputer(max_sweeps=5))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("test_iterative_imputer_rank_one", ()),
        ("test_iterative_imputer_transform_recovery", (3,)),
        ("test_iterative_imputer_transform_recovery", (5,)),
        ("test_iterative_imputer_additive_matrix", ()),
        ("test_iterative_imputer_catch_warning", ()),
    ],
)
def test_scikit_learns_own_tests_of_imputers(name, arguments, monkeypatch):
    """Run tests of IterativeImputer with this imputer in its place."""
    theirs = pytest.importorskip("sklearn.impute.tests.test_impute")
    monkeypatch.setattr(theirs, "IterativeImputer", lambda **_: DropoutImputer())
    getattr(theirs, name)(*arguments)


def test_filled_entries_are_conditional_means_of_the_learned_gaussian():
    """Against the textbook formula, on a table where nothing else is learned."""
    table = gaussian() * [1, 10, 100, 0.1, 1]
    given, missing = with_holes(table, 0.3)
    model = DropoutImputer().fit(given)
    filled, std = model.transform(given, return_std=True)
    assert not model.neighbor_weights_.any()
    C = model.covariance_
    ratios = []
    for a in np.flatnonzero(missing.any(axis=1)):
        m, o = missing[a], ~missing[a]
        gain = C[np.ix_(m, o)] @ np.linalg.inv(C[np.ix_(o, o)])
        expected = model.mean_[m] + gain @ (table[a, o] - model.mean_[o])
        # Columns are shrunken a little towards their centers where that predicts better.
        np.testing.assert_allclose(
            filled[a, m], expected, atol=0.05 * model.scale_.max()
        )
        variance = np.diag(C[np.ix_(m, m)] - gain @ C[np.ix_(o, m)])
        ratios.append(std[a, m] / np.sqrt(variance))
    ratio = np.concatenate(ratios)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    assert np.array_equal(filled[~missing], given[~missing])
    assert np.all(std[~missing] == 0)


def test_the_objective_is_the_penalized_likelihood_and_never_rises():
    given, missing = with_holes(gaussian(60, 4), 0.4)
    model = DropoutImputer(tol=1e-9, max_sweeps=2000).fit(given)
    assert np.diff(model.objective_).max() <= 1e-12
    Z = (given - model.center_) / model.scale_
    m = (model.mean_ - model.center_) / model.scale_
    C = model.covariance_ / np.outer(model.scale_, model.scale_)
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
def test_at_least_as_good_as_scikit_learn(load, share):
    table = load().data
    given, missing = with_holes(table, share)
    filled, std = DropoutImputer().fit(given).transform(given, return_std=True)
    mine = rmse(table, filled, missing)
    assert mine < rmse(table, KNNImputer().fit_transform(given), missing)
    if load is load_wine:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = IterativeImputer(random_state=0).fit_transform(given)
        assert mine < rmse(table, theirs, missing)
    covered = np.abs(filled - table)[missing] <= 1.645 * std[missing]
    # Five standard errors of a share of .9 among the fewest cells here, about 460.
    assert abs(covered.mean() - 0.9) < 5 * np.sqrt(0.09 / 460)


@pytest.mark.parametrize("name", TABLES)
def test_the_order_of_rows_and_columns_does_not_matter(name):
    given, _ = with_holes(TABLES[name](), 0.25)
    filled, std = DropoutImputer().fit(given).transform(given, return_std=True)
    rng = np.random.default_rng(1)
    for _ in range(2):
        order = np.ix_(rng.permutation(len(given)), rng.permutation(given.shape[1]))
        again, again_std = (
            DropoutImputer().fit(given[order]).transform(given[order], True)
        )
        assert np.array_equal(again, filled[order])
        assert np.array_equal(again_std, std[order])


@pytest.mark.parametrize("name", TABLES)
def test_units_of_columns_do_not_matter(name):
    given, _ = with_holes(TABLES[name](), 0.25)
    scale = np.logspace(-3, 3, given.shape[1])
    plain, scaled = (DropoutImputer().fit_transform(X) for X in (given, given * scale))
    np.testing.assert_allclose(
        scaled, plain * scale, rtol=1e-8, atol=1e-8 * scale.max()
    )


@pytest.mark.parametrize("unit", [1e-300, 1e160, 1e300])
def test_very_large_and_small_numbers_are_filled_like_others(unit):
    given, _ = with_holes(
        np.random.default_rng(3).standard_normal((40, 2)) @ np.eye(2, 5) + 1, 0.2
    )
    plain = DropoutImputer().fit_transform(given)
    np.testing.assert_allclose(
        DropoutImputer().fit_transform(given * unit) / unit, plain, 1e-9
    )


def test_any_tolerance_is_taken():
    given, _ = with_holes(np.random.default_rng(3).standard_normal((20, 4)), 0.2)
    assert DropoutImputer(tol=1e300).fit(given).status_ == "converged"


def pooled(tables):
    """Mean and slopes of column 0 on the others, pooled by Rubin's rules, and standard errors."""
    estimates, variances = [], []
    for table in tables:
        n = len(table)
        A = np.column_stack([np.ones(n), table[:, 1:]])
        G = np.linalg.inv(A.T @ A)
        slopes = G @ A.T @ table[:, 0]
        residuals = table[:, 0] - A @ slopes
        noise = residuals @ residuals / (n - A.shape[1])
        estimates.append([table[:, 0].mean(), *slopes[1:]])
        variances.append([table[:, 0].var(ddof=1) / n, *(noise * np.diag(G))[1:]])
    between = (1 + 1 / len(tables)) * np.var(estimates, axis=0, ddof=1)
    return np.mean(estimates, axis=0), np.sqrt(np.mean(variances, axis=0) + between)


def bayesian_regression(given, rng):
    """Fill column 0, the only one with holes, by exact posterior samples."""
    seen = ~np.isnan(given[:, 0])
    A = np.column_stack([np.ones(len(given)), given[:, 1:]])
    G = np.linalg.inv(A[seen].T @ A[seen])
    slopes = G @ A[seen].T @ given[seen, 0]
    residuals = given[seen, 0] - A[seen] @ slopes
    noise = residuals @ residuals / rng.chisquare(seen.sum() - A.shape[1])
    slopes = rng.multivariate_normal(slopes, noise * G)
    table = given.copy()
    table[~seen, 0] = A[~seen] @ slopes + np.sqrt(noise) * rng.standard_normal(
        (~seen).sum()
    )
    return table


def test_multiple_imputation_is_proper():
    """A slope of 1 was estimated at .77, and standard errors were 13 % too small."""
    slopes = np.array([1.0, 0.5, -0.5, 0.0])
    estimates, ratios = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((60, 4))
        y = X @ slopes + rng.standard_normal(60)
        y[rng.random(60) < 0.5] = np.nan
        given = np.column_stack([y, X])
        model = DropoutImputer().fit(given)
        estimate, error = pooled(model.impute(given, 20, seed=seed))
        exact, exact_error = pooled(
            [bayesian_regression(given, rng) for _ in range(20)]
        )
        estimates.append(estimate - exact)
        ratios.append(np.log(error / exact_error))
    for differences in (np.array(estimates), np.array(ratios)):
        standard_error = differences.std(axis=0) / np.sqrt(len(differences))
        # The prior is weak, not absent: 3 % of a slope of 1 beside the standard errors.
        assert np.all(np.abs(differences.mean(axis=0)) < 5 * standard_error + 0.03)


def test_multiple_imputation_of_other_rows_and_repeated():
    given, missing = with_holes(gaussian(), 0.3)
    model = DropoutImputer().fit(given[:60])
    tables = model.impute(given[60:], 300, seed=1)
    filled, std = model.transform(given[60:], return_std=True)
    holes = missing[60:]
    spread = np.std(tables, axis=0)[holes]
    # The standard deviation of 300 samples has a relative standard error of 4 %; samples of the
    # mean and covariance widen it, the weaker prior narrows it.
    assert np.median(spread / std[holes]) == pytest.approx(1, abs=0.3)
    off = (np.mean(tables, axis=0) - filled)[holes] / spread
    assert np.median(np.abs(off)) < 0.3
    assert np.array_equal(tables[0][~holes], given[60:][~holes])
    assert np.array_equal(
        model.impute(given[60:], 2, seed=1)[0], model.impute(given[60:], seed=1)[0]
    )
    assert not np.array_equal(model.impute(given)[0], model.impute(given)[1])


@pytest.mark.parametrize(("rows", "columns"), [(60, 40), (500, 40), (3000, 40)])
def test_intervals_cover_whatever_the_number_of_rows(rows, columns):
    """With 5,000 rows, 90 per cent intervals covered 78: widths came from 500 of the rows."""
    rng = np.random.default_rng(rows)
    table = rng.standard_normal((rows, 3)) @ rng.standard_normal((3, columns))
    table += rng.standard_normal(table.shape)
    given, missing = with_holes(table, 0.3)
    filled, std = DropoutImputer().fit(given).transform(given, return_std=True)
    inside = np.abs(filled - table)[missing] <= 1.645 * std[missing]
    # Errors of one row or column go together: the effective number of entries is at least `rows`.
    assert abs(inside.mean() - 0.9) < 5 * np.sqrt(0.9 * 0.1 / rows) + 0.01


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_clean_low_rank_tables_are_recovered(rank):
    """The default `tol` stopped thirty times short of what the model can do."""
    rng = np.random.default_rng(0)
    table = rng.random((70, rank)) @ rng.random((rank, 70))
    given, missing = with_holes(table, 0.5)
    model = DropoutImputer().fit(given)
    assert model.status_ == "converged"
    assert rmse(table, model.transform(given), missing) < 1e-3
    half = DropoutImputer().fit(given[:35]).transform(given[35:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = IterativeImputer(random_state=0).fit(given[:35]).transform(given[35:])
    assert rmse(table[35:], half, missing[35:]) < rmse(table[35:], theirs, missing[35:])


def test_converged_means_that_going_on_changes_little():
    for name in ("wine", "survey", "clusters"):
        given, missing = with_holes(TABLES[name](), 0.3)
        model = DropoutImputer().fit(given)
        filled, std = model.transform(given, return_std=True)
        further = DropoutImputer(tol=1e-7, max_sweeps=5000).fit(given).transform(given)
        assert model.status_ == "converged"
        change = np.sqrt(np.mean((further - filled)[missing] ** 2))
        # Changes shrink by a factor of at worst about .97 per sweep: 30 times the last one.
        assert change < 30 * model.tol * np.sqrt(np.mean(std[missing] ** 2))


def test_running_out_of_sweeps_is_reported():
    given, _ = with_holes(load_wine().data, 0.3)
    with pytest.warns(ConvergenceWarning, match="max_sweeps=2"):
        model = DropoutImputer(max_sweeps=2).fit(given)
    assert model.status_ == "finished"


def test_masked_entries_are_missing():
    table = np.arange(12.0).reshape(6, 2)
    table[1, 1] = 1e6
    masked = np.ma.masked_array(table, table == 1e6)
    expected = DropoutImputer().fit_transform(np.where(table == 1e6, np.nan, table))
    assert np.array_equal(DropoutImputer().fit_transform(masked), expected)
    assert np.array_equal(DropoutImputer().fit(masked).transform(masked), expected)
    whole = np.ma.masked_array(np.arange(12).reshape(6, 2), table == 1e6)
    assert DropoutImputer().fit_transform(whole)[1, 1] < 100


def test_columns_keep_their_range():
    given, _ = with_holes(answers(), 0.3)
    model = DropoutImputer().fit(given)
    for filled in (model.transform(given), *model.impute(given, 3)):
        assert filled.min() >= 1
        assert filled.max() <= 5
    rng = np.random.default_rng(0)
    z = rng.standard_normal((100, 1))
    incomes = np.exp(z + 0.5 * rng.standard_normal((100, 3)))
    given, _ = with_holes(incomes, 0.3)
    model = DropoutImputer().fit(given)
    for filled in (model.transform(given), *model.impute(given, 3)):
        assert filled.min() >= 0


def test_twenty_different_values_are_no_scale():
    """Clipping to the observed range would shrink slopes in small tables."""
    rng = np.random.default_rng(0)
    table = np.linspace(-1, 1, 20)[:, None] * [1.0, 2.0, 3.0]
    table += 1e-3 * rng.standard_normal(table.shape)
    given = table.copy()
    given[-1, 2] = np.nan
    assert DropoutImputer().fit_transform(given)[-1, 2] > np.nanmax(given[:, 2])


def test_similar_rows_are_used_where_they_predict_better():
    table = clusters()
    given, missing = with_holes(table, 0.3)
    model = DropoutImputer().fit(given)
    filled, std = model.transform(given, return_std=True)
    knn = KNNImputer().fit_transform(given)
    assert model.neighbor_weights_.any()
    assert rmse(table, filled, missing) < min(0.4, rmse(table, knn, missing))
    covered = np.abs(filled - table)[missing] <= 1.645 * std[missing]
    assert 0.85 < covered.mean() < 0.96
    one_gaussian = gaussian(300, 8) + np.random.default_rng(1).standard_normal((300, 8))
    assert (
        not DropoutImputer()
        .fit(with_holes(one_gaussian, 0.3)[0])
        .neighbor_weights_.any()
    )


def test_the_strength_of_the_prior_follows_the_data():
    """Unrelated columns get a strong prior, copies of one column a weak one."""
    rng = np.random.default_rng(0)
    unrelated = rng.standard_normal((100, 8))
    given, missing = with_holes(unrelated, 0.3)
    model = DropoutImputer().fit(given)
    assert model.prior_rows_ >= 30
    assert rmse(unrelated, model.transform(given), missing) < 1.05
    one = rng.standard_normal((150, 1)) + 0.05 * rng.standard_normal((150, 5))
    assert DropoutImputer().fit(with_holes(one, 0.3)[0]).prior_rows_ <= 1


@pytest.mark.parametrize(
    "table",
    [
        [[1.0, np.nan], [np.nan, 2.0]],
        [[1.0, 2.0]],
        [[3.0], [np.nan], [4.0]],
        [[2.0, np.nan], [2.0, 2.0], [2.0, 2.0]],
        [[0.0, 0.0], [0.0, np.nan]],
    ],
)
def test_tiny_and_constant_tables(table):
    filled, std = DropoutImputer().fit(table).transform(table, return_std=True)
    assert np.all(np.isfinite(filled))
    assert np.all(std[~np.isnan(table)] == 0)


def test_data_frames_names_and_pipelines():
    data = load_wine()
    given, missing = with_holes(data.data, 0.2)
    expected = DropoutImputer().fit_transform(given)
    frame = pd.DataFrame(given, columns=data.feature_names)
    model = DropoutImputer().fit(frame)
    assert list(model.get_feature_names_out()) == list(data.feature_names)
    assert np.array_equal(model.transform(frame), expected)
    named = model.set_output(transform="pandas").transform(frame)
    assert list(named.columns) == list(data.feature_names)
    nullable = frame.mask(missing).convert_dtypes()
    assert np.array_equal(DropoutImputer().fit_transform(nullable), expected)
    with pytest.raises(ValueError, match="input_features"):
        model.get_feature_names_out(list("abcd"))
    with pytest.raises(NotFittedError):
        DropoutImputer().get_feature_names_out()
    pipe = make_pipeline(DropoutImputer(), StandardScaler(), LogisticRegression())
    assert pipe.fit(given, data.target).score(given, data.target) > 0.9


def test_empty_columns_are_named_and_filled_with_zero():
    given = pd.DataFrame({"a": np.arange(5.0), "b": np.full(5, np.nan)})
    with pytest.warns(UserWarning, match=r"no entry \(b\)"):
        filled = DropoutImputer().fit_transform(given)
    assert np.all(filled[:, 1] == 0)


def test_copies_and_pickles_give_the_same():
    given, _ = with_holes(load_iris().data, 0.2)
    model = DropoutImputer(random_state=3).fit(given)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert np.array_equal(again.impute(given)[0], model.impute(given)[0])
    assert np.array_equal(
        clone(model).fit(given).impute(given)[0], model.impute(given)[0]
    )


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"max_sweeps": 0}, "max_sweeps"),
        ({"tol": -1}, "tol"),
        ({"seed": -1}, "seed"),
        ({"random_state": "a"}, "random_state"),
    ],
)
def test_wrong_parameters_are_refused(parameters, match):
    with pytest.raises(overt.InputError, match=match):
        DropoutImputer(**parameters).fit(np.eye(3))


def test_wrong_tables_are_refused():
    with pytest.raises(ValueError, match="2 features"):
        DropoutImputer().fit(np.eye(3)).transform(np.eye(2))
    with pytest.raises(overt.InputError, match="table of numbers"):
        DropoutImputer().fit([["a", "b"]])
    with pytest.raises(overt.InputError, match="n must be"):
        DropoutImputer().fit(np.eye(3)).impute(np.eye(3), 0)


@pytest.mark.parametrize("factor", [1e200, 1e300])
def test_a_value_beyond_all_others_leaves_fills_finite(factor):
    """Rounding it overflowed, and what was missing beside it was filled with NaN."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(40, 3))
    model = DropoutImputer().fit(table)
    rows = table[:2].copy()
    rows[0, 0] = factor
    rows[0, 1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled = model.transform(rows)
    assert np.isfinite(filled).all()
    assert filled[0, 0] == factor
