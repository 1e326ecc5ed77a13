"""The defaults, untouched, on data of other shapes and scales; calibration."""

import dataclasses

import numpy as np
import pytest

from overt import datasets
from overt.completion import DropoutCompletion


def student(rng, count):
    return rng.standard_t(4, count) / np.sqrt(2)


SHAPES = {  # rows, columns, ratings, rank, noise, popularity, scale, law of the noise
    "few columns, dense, -10..10": (800, 100, 56_000, 5, 0.5, 0.0, None, None),
    "heavy tails": (500, 300, 30_000, 4, 0.8, 1.0, None, student),
    "20 ratings a row": (2000, 500, 40_000, 4, 0.5, 0.5, None, None),
    "long tail of 4,000 columns": (300, 4000, 12_000, 2, 0.5, 1.8, (1.0, 5.0), None),
}


@pytest.mark.parametrize("name", SHAPES)
def test_defaults_do_well_on_other_data(name):
    m, n, count, rank, noise, popularity, scale, law = SHAPES[name]
    ratings, truth = datasets.generate_ratings(
        m, n, count, rank=rank, noise=noise, popularity=popularity, scale=scale
    )
    if law is not None:
        errors = noise * law(np.random.default_rng(0), count)
        values = truth(ratings.rows, ratings.cols) + errors
        ratings = dataclasses.replace(ratings, values=values)
    if "-10..10" in name:
        ratings = dataclasses.replace(ratings, values=3 * (ratings.values - 3.5))
    train, test = ratings.split(0.1, seed=0)
    error = {}
    for which, model in (
        ("defaults", DropoutCompletion()),
        ("told the rank", DropoutCompletion(rank)),
        ("tuned dropout", DropoutCompletion(rank, "auto", max_sweeps=20)),
        ("biases", DropoutCompletion(1, 0.999, max_sweeps=20)),
    ):
        predicted = model.fit(train).predict(test.rows, test.cols)
        error[which] = np.sqrt(np.mean((predicted - test.values) ** 2))
        if which == "defaults":
            std = model.predict(test.rows, test.cols, return_std=True)[1]
            covered = np.mean(np.abs(test.values - predicted) <= 1.6449 * std)
    assert 0.87 <= covered <= 0.93
    assert error["defaults"] <= 1.02 * error["told the rank"]
    assert error["defaults"] < 1.005 * min(error["tuned dropout"], error["biases"])


@pytest.mark.parametrize("average", [0, 30])
@pytest.mark.parametrize("scale", [None, (1.0, 5.0)])
def test_intervals_are_calibrated(average, scale):
    ratings, _ = datasets.generate_ratings(400, 250, 20_000, scale=scale, seed=2)
    train, test = ratings.split(0.2, seed=0)
    model = DropoutCompletion(16, average=average, max_sweeps=40).fit(train)
    predicted, std = model.predict(test.rows, test.cols, return_std=True)
    standardized = (test.values - predicted) / std
    assert 0.87 <= np.mean(np.abs(standardized) <= 1.6449) <= 0.93
    assert standardized.std() == pytest.approx(1, abs=0.06)


def test_scale_of_the_values_does_not_matter():
    ratings, _ = datasets.generate_ratings(100, 80, 3000, scale=None, seed=3)
    one, other = (
        DropoutCompletion(6, max_sweeps=15).fit_triplets(
            ratings.rows, ratings.cols, values
        )
        for values in (ratings.values, 1e4 * ratings.values - 7e5)
    )
    rows, cols = np.arange(80), np.arange(80)
    for mine, theirs in zip(
        one.predict(rows, cols, return_std=True),
        other.predict(rows, cols, return_std=True),
        strict=True,
    ):
        shift = 7e5 if mine[0] > 1 else 0
        np.testing.assert_allclose(theirs + shift, 1e4 * mine, rtol=1e-4)
