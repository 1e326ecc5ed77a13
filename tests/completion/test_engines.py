"""Engines: the same result on threads and on a cluster, bit for bit; clear words otherwise."""

import multiprocessing
import sys
import warnings

import numpy as np
import pytest

from overt import MissingExtraError
from overt._check import InputError
from overt._running import ClusterLostError
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
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0"
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
    monkeypatch.setattr("overt.completion.engines.MIN_ENTRIES_PER_CALL", 1)
    many = DropoutCompletion(n_factors=4, n_jobs=3, **FORMS[form]).fit(ratings)
    np.testing.assert_array_equal(many.U_, one.U_)
    np.testing.assert_array_equal(many.objective_, one.objective_)
    np.testing.assert_array_equal(many.predict(ratings), one.predict(ratings))


@pytest.mark.parametrize("form", FORMS)
def test_a_cluster_finds_the_same_factors(form, ratings, client):
    given = (ratings.rows, ratings.cols, ratings.values)
    here, there = (
        DropoutCompletion(n_factors=4, engine=engine, **FORMS[form]).fit_triplets(
            *given
        )
        for engine in ("local", "dask")
    )
    np.testing.assert_array_equal(there.U_, here.U_)
    np.testing.assert_array_equal(there.V_, here.V_)
    np.testing.assert_array_equal(there.objective_, here.objective_)
    learned = form in ("learned", "drawn")
    both = [m.predict(*given[:2], return_std=learned) for m in (there, here)]
    for mine, theirs in zip(*both, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_cluster_without_workers_is_refused(ratings, distributed):
    with (
        distributed.Client(processes=False, n_workers=0, dashboard_address=":0"),
        pytest.raises(InputError, match="with workers"),
    ):
        DropoutCompletion(engine="dask").fit(ratings.to_sparse())


def test_a_missing_extra_is_named(ratings, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match="dask"):
        DropoutCompletion(engine="dask").fit(ratings.to_sparse())


@pytest.mark.parametrize("form", FORMS)
def test_a_lost_worker_loses_no_fit(form, ratings, client):
    settings = {"n_factors": 4, "tol": 0, **{"max_sweeps": 4} | FORMS[form]}
    here = DropoutCompletion(**settings).fit(ratings)
    lost = []

    def lose(_):
        if not lost:
            lost.append(client.cluster.workers[0].address)
            client.sync(client.cluster.workers[0].close, nanny=False)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = DropoutCompletion(engine="dask", **settings).fit_entries(
            ratings, on_step=lose
        )
    np.testing.assert_array_equal(there.U_, here.U_)
    learned = here.drop_prob == "learn"
    both = [model.predict(ratings, return_std=learned) for model in (there, here)]
    for mine, theirs in zip(*both, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert lost


def test_a_folder_is_fitted_by_a_cluster_as_by_threads(ratings, client, tmp_path):
    folder = tmp_path / "ratings"
    folder.mkdir()
    for part in range(3):
        some = ratings.take(np.arange(part, len(ratings), 3))
        lines = zip(
            some.rows.tolist(), some.cols.tolist(), some.values.tolist(), strict=True
        )
        text = "\n".join(
            ["user,item,rating", *(f"{a},{b},{y!r}" for a, b, y in lines), ""]
        )
        (folder / f"{part}.csv").write_text(text)
    settings = {"n_factors": 3, "max_sweeps": 3, "memory_limit": "1GB"}
    here = DropoutCompletion(**settings).fit(folder)
    there = DropoutCompletion(engine="dask", **settings).fit(folder)
    np.testing.assert_array_equal(there.U_, here.U_)
    assert len(there.file_report_.entries) == len(ratings)


def test_a_lost_worker_is_told(ratings, client):
    def lose(form):
        if len(form.history) == 2:
            client.sync(client.cluster.workers[0].close, nanny=False)

    model = DropoutCompletion(4, max_sweeps=4, tol=0, signals=False, engine="dask")
    with pytest.warns(UserWarning, match="workers were lost"):
        model.fit_entries(ratings, on_step=lose)


def test_a_lost_cluster_leaves_a_checkpoint(ratings, client, tmp_path, monkeypatch):
    settings = {"n_factors": 4, "max_sweeps": 4, "tol": 0, "signals": False}
    here = DropoutCompletion(**settings).fit(ratings)
    monkeypatch.setattr("overt.completion.engines.WORKER_SECONDS", 0.5)

    def lose(form):
        for worker in client.cluster.workers.values() if len(form.history) == 2 else ():
            client.sync(worker.close, nanny=False)

    there = DropoutCompletion(engine="dask", **settings)
    with pytest.raises(
        ClusterLostError, match="2 sweeps were done, and resume continues"
    ):
        there.fit_entries(ratings, checkpoint=tmp_path, on_step=lose)
    again = DropoutCompletion(**settings).fit(ratings, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(again.U_, here.U_)
    np.testing.assert_array_equal(again.objective_, here.objective_)


def test_checkpoints_say_what_they_need(ratings, tmp_path):
    model = DropoutCompletion(n_factors=2, max_sweeps=1)
    with pytest.raises(InputError, match="needs the folder"):
        model.fit(ratings, resume=True)
    with pytest.raises(InputError, match="whole number as seed"):
        DropoutCompletion(2, seed=None).fit(ratings, checkpoint=tmp_path)
    features = np.arange(ratings.shape[0], dtype=float)[:, None]
    model.fit(ratings, row_features=features, checkpoint=tmp_path)
    with pytest.raises(InputError, match="other data or settings"):
        model.fit(ratings, row_features=features**2, checkpoint=tmp_path, resume=True)


def test_an_error_of_a_kernel_is_not_taken_for_a_loss(ratings, client, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("in the kernel")

    monkeypatch.setattr("overt.completion.engines.update", broken)
    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        DropoutCompletion(n_factors=2, engine="dask", max_sweeps=1).fit(ratings)


@pytest.mark.parametrize("engine", ["spark", "http://somewhere:1", 3])
def test_an_unknown_engine_is_refused(ratings, engine):
    with pytest.raises(InputError, match="engine must be"):
        DropoutCompletion(engine=engine).fit(ratings)


def test_an_address_without_a_scheduler_is_named(ratings, distributed, monkeypatch):
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "300ms"}),
        pytest.raises(
            ClusterLostError, match=r"no scheduler answers at tcp://127.0.0.1:1"
        ),
    ):
        DropoutCompletion(engine="tcp://127.0.0.1:1").fit(ratings)


def test_a_script_that_starts_processes_while_it_is_imported_is_told(
    ratings, monkeypatch
):
    pytest.importorskip("distributed")
    monkeypatch.setattr(
        multiprocessing.current_process(), "_inheriting", True, raising=False
    )
    with pytest.raises(InputError, match="__main__"):
        DropoutCompletion(engine="dask").fit(ratings)
