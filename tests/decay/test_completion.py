"""The completion estimator, and what it is compared with."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from overt import InputError
from overt.decay import DeepLinearCompletion, Observed, Schedule
from overt.decay.annealing import Path
from overt.decay.baselines import nuclear_norm, small_initialization
from overt.results import Status


def matrix(size, rank, share, seed):
    rng = np.random.default_rng([size, rank, seed])
    truth = 3 * rng.standard_normal((size, rank)) @ rng.standard_normal((rank, size))
    return Observed.sample(truth, round(share * size * size), seed=rng)


def fit(problem, **options):
    model = DeepLinearCompletion(**options)
    return model.fit_triplets(problem.rows, problem.cols, problem.values, problem.shape)


@pytest.mark.parametrize(("rank", "share"), [(1, 0.2), (2, 0.35), (3, 0.5)])
def test_finds_the_rank_and_the_matrix(rank, share):
    problem = matrix(40, rank, share, seed=0)
    model = fit(problem)
    assert model.rank_ == rank
    assert problem.test_error(model.complete()) < 1e-3
    ranks = [c.rank for c in model.path_]
    assert ranks == sorted(ranks, reverse=True)
    assert model.status_ == Status.FINISHED
    A = model.weights_[2] @ model.weights_[1] @ model.weights_[0]
    np.testing.assert_allclose(A, model.complete(), atol=1e-10)


def test_needs_fewer_entries_than_the_nuclear_norm():
    errors = []
    for seed in range(3):
        problem = matrix(30, 1, 0.16, seed)
        errors.append(
            [problem.test_error(A) for A in (fit(problem).complete(), nuclear_norm(problem))]
        )
    deep, convex = np.median(errors, axis=0)
    assert deep < 0.01 < convex


def test_forms_of_input_agree():
    problem = matrix(20, 1, 0.4, seed=1)
    dense = np.full(problem.shape, np.nan)
    dense[problem.rows, problem.cols] = problem.values
    sparse = sp.csr_array((problem.values, (problem.rows, problem.cols)), shape=problem.shape)
    expected = fit(problem, seed=3).complete()
    for data in (dense, sparse):
        np.testing.assert_array_equal(DeepLinearCompletion(seed=3).fit(data).complete(), expected)
    model = DeepLinearCompletion(seed=3).fit(dense)
    rows, cols = np.array([0, 5]), np.array([3, 19])
    np.testing.assert_allclose(model.predict(rows, cols), expected[rows, cols])


def test_noisy_data_do_not_raise_the_rank():
    problem = matrix(40, 2, 0.6, seed=2)
    noise = 0.3 * np.random.default_rng(0).standard_normal(len(problem))
    noisy = Observed(problem.rows, problem.cols, problem.values + noise, problem.shape)
    model = fit(noisy)
    assert model.rank_ <= 4
    assert problem.test_error(model.complete()) < 0.02


def test_follows_a_schedule_as_it_is():
    problem = matrix(20, 1, 0.5, seed=4)
    schedule = Schedule.of([(60_000, 0.02, 3e-3), (20_000, 0.02, 1e-6)])
    model = fit(problem, schedule=schedule, width=5)
    assert model.n_steps_ == 80_000
    assert problem.test_error(model.complete()) < 0.05
    with pytest.raises(InputError, match="learning_rate"):
        fit(problem, schedule=Schedule.constant(1000, 50.0, 1e-6))


def test_restarts_and_clone():
    problem = matrix(20, 1, 0.4, seed=1)
    model = fit(problem, restarts=2, depth=4, tolerance=0.2)
    assert clone(model).get_params()["restarts"] == 2
    assert problem.test_error(model.complete()) < 0.01


def test_interrupt_keeps_the_best_candidate(monkeypatch):
    calls = []

    def settle(self, lam, original=Path.settle):
        calls.append(lam)
        if self._problem is problem_seen[0] and len(calls) > 1:
            raise KeyboardInterrupt
        original(self, lam)

    problem_seen = [None]
    shed_to = DeepLinearCompletion._shed_to

    def watch(self, best, problem, *rest):
        problem_seen[0] = problem
        return shed_to(self, best, problem, *rest)

    monkeypatch.setattr(Path, "settle", settle)
    monkeypatch.setattr(DeepLinearCompletion, "_shed_to", watch)
    problem = matrix(30, 1, 0.4, seed=0)
    model = fit(problem)
    assert model.status_ == Status.INTERRUPTED
    assert problem.test_error(model.complete()) < 0.05


BAD = {
    "depth 2": {"depth": 2},
    "nothing held out": {"held_out": 0.0},
    "an unknown schedule": {"schedule": "periodic"},
    "no width": {"width": 0},
    "no restarts": {"restarts": 0},
    "a negative tolerance": {"tolerance": -1.0},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_parameters(name):
    with pytest.raises(InputError):
        fit(matrix(10, 1, 0.5, seed=0), **BAD[name])


def test_bad_entries():
    model = DeepLinearCompletion()
    with pytest.raises(InputError, match="all be 0"):
        model.fit_triplets([0, 1], [0, 1], [0.0, 0.0])
    with pytest.raises(InputError, match="at least one"):
        model.fit_triplets([], [], [])
    fitted = fit(matrix(10, 1, 0.6, seed=0))
    with pytest.raises(InputError, match="rows"):
        fitted.predict([10], [0])


def test_nuclear_norm_against_a_convex_solver():
    cp = pytest.importorskip("cvxpy")
    problem = matrix(8, 2, 0.5, seed=0)
    X = cp.Variable(problem.shape)
    seen = [X[problem.rows, problem.cols] == problem.values]
    best = cp.Problem(cp.Minimize(cp.normNuc(X)), seen).solve(solver="CLARABEL")
    found = nuclear_norm(problem, tolerance=1e-8, max_iterations=20_000)
    assert np.linalg.norm(found, "nuc") == pytest.approx(best, rel=1e-5)
    assert np.abs(problem.residuals(found)).max() < 1e-12


def test_small_initialization_recovers_an_easy_matrix():
    problem = matrix(30, 1, 0.5, seed=0)
    assert problem.test_error(small_initialization(problem, width=10)) < 0.01
