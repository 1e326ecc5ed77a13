"""Engines: the same result on threads and on a cluster, bit for bit; clear words otherwise."""

import sys

import numpy as np
import pytest

from overt import MissingExtraError
from overt._check import InputError
from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings


@pytest.fixture(scope="module")
def distributed():
    return pytest.importorskip("distributed", reason="needs the dask extra")


@pytest.fixture(scope="module")
def ratings():
    return generate_ratings(60, 40, 900, seed=0)[0]


@pytest.fixture
def client(distributed):
    with distributed.Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


FORMS = {
    "learned": {},
    "fixed": {"drop_prob": 0.2, "max_sweeps": 6},
    "drawn": {"average": 2, "max_sweeps": 4},
    "chosen": {"drop_prob": "auto", "max_sweeps": 3},
}


@pytest.mark.parametrize("form", FORMS)
def test_results_depend_neither_on_threads_nor_on_calls(form, ratings, monkeypatch):
    one = DropoutCompletion(n_factors=4, n_jobs=1, **FORMS[form]).fit(ratings)
    monkeypatch.setattr("overt.completion.engines.threads.ENTRIES", 1)
    many = DropoutCompletion(n_factors=4, n_jobs=3, **FORMS[form]).fit(ratings)
    np.testing.assert_array_equal(many.U_, one.U_)
    np.testing.assert_array_equal(many.objective_, one.objective_)
    np.testing.assert_array_equal(many.predict(ratings), one.predict(ratings))


@pytest.mark.parametrize("form", FORMS)
def test_a_cluster_finds_the_same_factors(form, ratings, client):
    given = (ratings.rows, ratings.cols, ratings.values)
    here, there = (
        DropoutCompletion(n_factors=4, engine=engine, **FORMS[form]).fit_triplets(*given)
        for engine in ("local", "dask")
    )
    np.testing.assert_array_equal(there.U_, here.U_)
    np.testing.assert_array_equal(there.V_, here.V_)
    np.testing.assert_array_equal(there.objective_, here.objective_)
    for mine, theirs in zip(
        there.predict(*given[:2], return_std=True),
        here.predict(*given[:2], return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_diagonal_covariances_travel_too(ratings, client, monkeypatch):
    monkeypatch.setattr("overt.completion.forms.spread.FULL_BYTES", 0)
    given = (ratings.rows, ratings.cols, ratings.values)
    here, there = (
        DropoutCompletion(n_factors=4, engine=engine, max_sweeps=4).fit_triplets(*given)
        for engine in ("local", "dask")
    )
    assert there.covariance_ == "diagonal"
    np.testing.assert_array_equal(there.U_, here.U_)


def test_new_entries_are_taken_in_on_the_cluster(ratings, client):
    models = [
        DropoutCompletion(n_factors=4, engine=engine, max_sweeps=3)
        .fit(ratings.to_sparse())
        .partial_fit([[0, 1], [70, 2]], [5.0, 1.0])
        for engine in ("local", "dask")
    ]
    np.testing.assert_array_equal(models[1].U_, models[0].U_)


def test_a_cluster_without_workers_is_refused(ratings, distributed):
    with (
        distributed.Client(processes=False, n_workers=0, dashboard_address=None),
        pytest.raises(InputError, match="with workers"),
    ):
        DropoutCompletion(engine="dask").fit(ratings.to_sparse())


def test_a_missing_extra_is_named(ratings, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match="dask"):
        DropoutCompletion(engine="dask").fit(ratings.to_sparse())
