"""Calls on processes and clusters: all are answered, errors are raised."""

import numpy as np
import pytest

from overt import Dropout, Entries, InputError, decay
from overt._running import mapped
from overt.completion import DropoutCompletion
from overt.linear import LinearNetwork, inverse_decay


def half(x):
    return x / 2


def wrong(x):
    raise InputError(f"{x} is wrong")


@pytest.fixture
def client():
    distributed = pytest.importorskip("distributed", reason="needs the dask extra")
    with distributed.Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as client:
        yield client


def test_calls_are_made_here_in_order():
    assert list(mapped(half, [(1,), (4,)])) == [(0, 0.5), (1, 2.0)]


def test_calls_on_processes_are_all_answered():
    assert dict(mapped(half, [(1,), (4,), (3,)], n_jobs=2)) == {0: 0.5, 1: 2.0, 2: 1.5}
    with pytest.raises(InputError, match="3 is wrong"):
        list(mapped(wrong, [(3,), (3,)], n_jobs=2))


def test_a_worker_that_left_loses_nothing(client):
    results = mapped(half, [(1,), (2,), (3,)], "dask")
    found = dict([next(results)])
    client.sync(client.cluster.workers[0].close, nanny=False)
    found |= dict(results)
    assert found == {0: 0.5, 1: 1.0, 2: 1.5}


def test_wrong_input_is_not_repeated(client):
    with pytest.raises(InputError, match="3 is wrong"):
        list(mapped(wrong, [(3,)], "dask"))


def test_a_call_that_fails_everywhere_is_raised(client):
    def broken():
        raise OSError("always")

    with pytest.raises(OSError, match="always"):
        list(mapped(broken, [()], "dask"))


def test_seeds_of_training_are_those_of_one_process(client):
    net = LinearNetwork(np.diag([2.0, 1.0, 0.5]), width=4, noise=Dropout(0.3))
    how = {"steps": 60, "learning_rate": inverse_decay(1e-2, 50), "records": 5}
    here, there = (
        net.train(seeds=[4, 0, 7], engine=e, **how) for e in ("local", "dask")
    )
    assert here == there
    with pytest.raises(InputError, match="learning_rate"):
        net.train(10, -1.0, seeds=2, engine="dask")


def test_a_seed_that_diverges_on_a_cluster_is_told(client):
    net = LinearNetwork(np.eye(2), width=3, noise=Dropout(0.3))
    there = net.train(50, 3.0, seeds=2, engine="dask")
    assert there == net.train(50, 3.0, seeds=2)
    assert there.status == "diverged"


@pytest.mark.parametrize("own", [False, True], ids=["scale", "layers"])
def test_simulated_runs_are_those_of_one_process(client, own):
    problem = decay.two_by_two(0.25)
    schedule = decay.Schedule([decay.Phase(40, 0.1, 0.01), decay.Phase(20, 0.1, 0.0)])
    start = np.random.default_rng(0).normal(size=(2, 3))
    init = [np.stack([W, 2 * W]) for W in (start.T, np.eye(3), start)] if own else 1.0
    how = {"seeds": [3, 1], "init": init, "records": 4, "seed": 5}
    here, there = (
        decay.simulate(problem, 3, 3, schedule, engine=e, **how)
        for e in ("local", "dask")
    )
    assert here == there


def test_all_cores_are_minus_one_everywhere():
    """And None; results do not depend on how many there are."""
    net = LinearNetwork(target=np.eye(3), width=3, noise=Dropout(0.5))
    runs = [
        net.train(steps=20, learning_rate=0.01, seeds=2, n_jobs=n)
        for n in (-1, None, 1)
    ]
    assert np.array_equal(runs[0].objective, runs[2].objective)
    assert np.array_equal(runs[1].objective, runs[2].objective)
    problem = Entries([0, 0, 1], [0, 1, 1], [1.0, 2.0, 3.0])
    schedule = decay.Schedule.annealing(10, 10)
    given = {"depth": 3, "width": 4, "schedule": schedule, "seeds": 2}
    found = [
        decay.simulate(problem, n_jobs=n, **given).singular_values for n in (-1, 1)
    ]
    assert np.array_equal(*found)
    fits = [
        DropoutCompletion(1, max_sweeps=2, n_jobs=n).fit(problem).complete()
        for n in (-1, None, 1)
    ]
    assert np.array_equal(fits[0], fits[2])
    assert np.array_equal(fits[1], fits[2])


@pytest.mark.parametrize("n_jobs", [0, -2, 1.5, "all"])
def test_a_number_of_jobs_that_means_nothing_is_refused(n_jobs):
    net = LinearNetwork(target=np.eye(3), width=3, noise=Dropout(0.5))
    with pytest.raises(InputError, match="n_jobs must be"):
        net.train(steps=20, learning_rate=0.01, seeds=2, n_jobs=n_jobs)
    with pytest.raises(InputError, match="n_jobs must be"):
        DropoutCompletion(1, n_jobs=n_jobs).fit(np.eye(3))
