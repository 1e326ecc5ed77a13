"""score: one meaning for every container."""

import numpy as np
import pytest

import overt
from overt import datasets
from overt.completion import DropoutCompletion


@pytest.fixture(scope="module")
def split():
    return datasets.generate_ratings(80, 50, 2000, seed=0)[0].split(0.2, seed=0)


@pytest.fixture(scope="module")
def model(split):
    return DropoutCompletion(3, average=0, max_sweeps=10).fit(split[0])


def dense(entries):
    table = np.full(entries.shape, np.nan)
    table[entries.rows, entries.cols] = entries.values
    return table


def test_the_score_does_not_depend_on_the_container(model, split):
    """Rows of a dense array were taken for new rows, those of a sparse one for the fitted ones."""
    test = split[1]
    error = model.predict(test) - test.values
    expected = -np.sqrt(np.mean(error**2))
    pairs = np.column_stack([test.rows, test.cols])
    assert model.score(test) == pytest.approx(expected)
    assert model.score(test.to_sparse()) == pytest.approx(expected)
    assert model.score(dense(test)) == pytest.approx(expected)
    assert model.score(pairs, test.values) == pytest.approx(expected)


def test_other_rows_than_were_fitted_are_refused(model, split):
    test = split[1]
    for matrix in (test.to_sparse()[:79], dense(test)[:79]):
        with pytest.raises(overt.InputError, match="80 rows that were fitted, got 79"):
            model.score(matrix)
    shuffled = dense(split[0])[np.random.default_rng(0).permutation(80)]
    with pytest.raises(overt.InputError, match="as if its rows were others"):
        model.score(shuffled)
    assert model.score(dense(split[0])) > model.score(test)
