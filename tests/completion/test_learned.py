"""Learned noise: the bound falls, rank and noise are found, missingness tells where it can."""

import numpy as np
import pytest

from overt import Entries, datasets
from overt.completion import DropoutCompletion


def preferences(seed, m=120, n=80, k=3, liking=1.5, rare=2.2, noise=0.7):
    """Ratings that are given more often where they are high; (train, test)."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(m, k)), rng.normal(size=(n, k))
    seen = rng.random((m, n)) < 1 / (1 + np.exp(rare - liking * (U @ V.T)))
    rows, cols = np.nonzero(seen)
    values = (U @ V.T)[rows, cols] + noise * rng.normal(size=len(rows))
    test = rng.random(len(rows)) < 0.2
    return (Entries(rows[at], cols[at], values[at], (m, n)) for at in (~test, test))


@pytest.mark.parametrize("signals", [False, True])
def test_the_objective_never_rises(signals):
    train, _ = preferences(0)
    model = DropoutCompletion(
        5, signals=signals, average=0, tol=0.0, max_sweeps=25
    ).fit(train)
    assert len(model.objective_) == 25
    assert np.all(
        np.diff(model.objective_[3:]) <= 1e-8
    )  # features are used from sweep 4


def test_learned_finds_rank_and_noise():
    ratings, truth = datasets.generate_ratings(
        300, 200, 18_000, noise=0.5, scale=None, seed=1
    )
    model = DropoutCompletion(12).fit_triplets(
        ratings.rows, ratings.cols, ratings.values
    )
    assert model.noise_variance_ == pytest.approx(0.25, rel=0.08)
    assert np.sum(model.learned_drop_prob_ < 0.5) == 4
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 300, 20_000), rng.integers(0, 200, 20_000)
    error = model.predict(rows, cols) - truth(rows, cols)
    assert np.sqrt(np.mean(error**2)) < 0.3


def test_averaged_samples_are_no_worse_than_the_learned_means():
    ratings, truth = datasets.generate_ratings(300, 200, 10_000, scale=None, seed=4)
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 300, 5000), rng.integers(0, 200, 5000)
    error = {}
    for average in (0, 30):
        model = DropoutCompletion(16, average=average).fit(ratings)
        error[average] = np.sqrt(
            np.mean((model.predict(rows, cols) - truth(rows, cols)) ** 2)
        )
    assert error[30] < 1.05 * error[0]


def test_who_rated_what_helps_where_it_tells_something():
    train, test = preferences(3, 300, 150, rare=3.5)
    without, auto = (
        DropoutCompletion(6, signals=signals, clip=False).fit(train)
        for signals in (False, "auto")
    )
    assert auto.score(test) > 0.98 * without.score(test)


def test_where_it_tells_nothing_auto_leaves_it():
    train, test = preferences(4, liking=0.0)
    without, auto = (
        DropoutCompletion(6, signals=signals, clip=False).fit(train)
        for signals in (False, "auto")
    )
    assert np.array_equal(auto.predict(test), without.predict(test))


def test_noise_of_rows_and_columns_is_found():
    rng = np.random.default_rng(0)
    m, n = 150, 100
    loud = np.where(np.arange(m) % 2 == 0, 0.3, 1.2)
    truth = rng.normal(size=(m, 2)) @ rng.normal(size=(2, n))
    seen = rng.random((m, n)) < 0.4
    values = truth + loud[:, None] * rng.normal(size=(m, n))
    model = DropoutCompletion(4, clip=False).fit(np.where(seen, values, np.nan))
    ratio = model.row_noise_[1::2].mean() / model.row_noise_[::2].mean()
    assert ratio == pytest.approx(16, rel=0.3)
    rows, cols = np.nonzero(~seen)
    mean, std = model.predict(rows, cols, return_std=True)
    inside = np.abs(values[rows, cols] - mean) <= 1.6449 * std
    for part in (0, 1):
        assert inside[rows % 2 == part].mean() == pytest.approx(0.9, abs=0.035)


def test_one_noise_for_all_is_found_too():
    train, _ = preferences(5, liking=0.0, rare=0.0)
    model = DropoutCompletion(4).fit(train)
    assert np.std(model.row_noise_) < 0.15 * np.mean(model.row_noise_)


def test_fold_in_agrees_with_predict_after_averaging():
    train, _ = preferences(6)
    model = DropoutCompletion(4, average=40, clip=False, tol=1e-6).fit(train)
    here, cols = train.rows == 5, np.arange(train.shape[1])
    row = model.fold_in((train.cols[here], train.values[here]))
    expected, spread = model.predict(np.full(len(cols), 5), cols, return_std=True)
    found, std = row.predict(cols, return_std=True)
    # A new row's prior is wider by 4 unknowns and a bias among 120 rows.
    assert np.all(np.abs(found - expected) <= 5 / 120 * std)
    # Of a known row the variance is that of 40 samples, of a new one it is known for each sample.
    noise = model.noise_variance_ * model.row_noise_[5] * model.col_noise_
    factors = std**2 - 0.9 * noise
    assert np.all(factors > 0)
    assert np.all(np.abs(spread**2 - std**2) <= 5 * np.sqrt(2 / 40) * factors)


def test_models_with_signals_and_draws_are_kept(tmp_path):
    train, test = preferences(7)
    model = DropoutCompletion(4, average=3, max_sweeps=6, signals=True).fit(train)
    model.save(tmp_path)
    again = DropoutCompletion.load(tmp_path)
    for mine, theirs in zip(
        model.predict(test, return_std=True),
        again.predict(test, return_std=True),
        strict=True,
    ):
        assert np.array_equal(mine, theirs)
    entries = {3: 1.0, 5: -1.0}
    assert np.array_equal(
        model.fold_in(entries).predict([0, 1]), again.fold_in(entries).predict([0, 1])
    )
    assert again.explain(2, 3) == model.explain(2, 3)


@pytest.mark.parametrize(
    ("rank", "shape", "observed"), [(2, (40, 30), 0.4), (3, (50, 50), 0.3)]
)
def test_few_entries_with_little_noise_are_fitted(rank, shape, observed):
    """Fits of 700 entries ended as "converged" at six times the noise and more."""
    for seed in (1, 102, 103):
        rng = np.random.default_rng(seed)
        truth = rng.standard_normal((shape[0], rank))
        truth = truth @ rng.standard_normal((rank, shape[1])) + 3
        seen = rng.random(shape) < observed
        values = truth + 0.1 * rng.standard_normal(shape)
        model = DropoutCompletion(average=0, n_jobs=1)
        model.fit_triplets(*np.nonzero(seen), values[seen], shape=shape)
        errors = model.predict(*np.nonzero(~seen)) - truth[~seen]
        assert np.sqrt(np.mean(errors**2)) < 0.2
        assert np.sqrt(model.noise_variance_) == pytest.approx(0.1, rel=0.2)
