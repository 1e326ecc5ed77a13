"""The completion estimator, and what it is compared with."""

import cvxpy as cp
import numpy as np
import pandas
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score

from overt import Entries, InputError, datasets
from overt.completion import DropoutCompletion
from overt.decay import DeepLinearCompletion, Schedule, layers
from overt.decay.annealing import AnnealedPath, curvature
from overt.decay.baselines import nuclear_norm, small_initialization
from overt.decay.schedule import Phase
from overt.decay.search import random_starts
from overt.decay.simulation import Weights
from overt.results import Status


def matrix(size, rank, share, seed):
    rng = np.random.default_rng([size, rank, seed])
    truth = 3 * rng.standard_normal((size, rank)) @ rng.standard_normal((rank, size))
    return Entries.sample(truth, round(share * size * size), seed=rng)


def fit(problem, **options):
    return DeepLinearCompletion(**options).fit(problem)


@pytest.mark.parametrize(("rank", "share"), [(1, 0.2), (2, 0.35), (3, 0.5)])
def test_finds_the_rank_and_the_matrix(rank, share):
    problem = matrix(40, rank, share, seed=0)
    model = fit(problem)
    assert model.rank_ == rank
    assert layers.test_error(problem, model.complete()) < 1e-3
    ranks = [c.rank for c in model.path_]
    assert ranks == sorted(ranks, reverse=True)
    assert all(c.train_error < 1e-4 for c in model.path_ if c.rank >= rank)  # quiet phases fit
    assert model.status_ == Status.FINISHED
    A = model.weights_[2] @ model.weights_[1] @ model.weights_[0]
    np.testing.assert_allclose(A, model.complete(), atol=1e-10)


def test_needs_fewer_entries_than_the_nuclear_norm():
    errors = []
    for seed in range(3):
        problem = matrix(30, 1, 0.16, seed)
        completed = fit(problem).complete(), nuclear_norm(problem)
        errors.append([layers.test_error(problem, A) for A in completed])
    deep, convex = np.median(errors, axis=0)
    assert deep < 0.01 < convex


class Frame:
    """What a data frame shows: names of columns, and each column by its name."""

    def __init__(self, **columns):
        self.columns, self._values = list(columns), columns

    def __getitem__(self, name):
        return self._values[name]


def test_forms_of_input_agree():
    problem = matrix(20, 1, 0.4, seed=1)
    rows, cols, values = problem.rows, problem.cols, problem.values
    dense = np.full(problem.shape, np.nan)
    dense[rows, cols] = values
    expected = np.asarray(fit(problem, seed=3).complete())
    forms = {
        "dense": (dense,),
        "sparse": (sp.csr_array((values, (rows, cols)), shape=problem.shape),),
        "frame": (Frame(row=rows, col=cols, value=values),),
        "pairs": (np.stack([rows, cols], axis=1), values),
    }
    for data in forms.values():
        model = DeepLinearCompletion(seed=3).fit(*data)
        np.testing.assert_array_equal(model.complete(), expected)
        np.testing.assert_allclose(model.predict([0, 5], [3, 19]), expected[[0, 5], [3, 19]])
    model = DeepLinearCompletion(seed=3).fit_triplets(rows, cols, values)
    np.testing.assert_array_equal(model.complete(), expected)


def test_predicts_what_it_was_fitted_on():
    """It was fitted to pairs and values, but could neither predict pairs nor be scored."""
    problem = matrix(20, 1, 0.4, seed=1)
    pairs = np.stack([problem.rows, problem.cols], axis=1)
    model = DeepLinearCompletion(seed=3).fit(pairs, problem.values)
    expected = model.predict(problem.rows, problem.cols)
    np.testing.assert_array_equal(model.predict(pairs), expected)
    np.testing.assert_array_equal(model.predict(pairs.tolist()), expected)
    np.testing.assert_array_equal(model.predict(problem), expected)
    error = np.sqrt(np.mean((expected - problem.values) ** 2))
    assert model.score(pairs, problem.values) == pytest.approx(-error)
    assert model.score(problem) == pytest.approx(-error)
    first = np.eye(len(problem))[0]
    off = abs(expected[0] - problem.values[0])
    assert model.score(problem, sample_weight=first) == pytest.approx(-off)
    with pytest.raises(InputError, match=r"\(n, 2\)"):
        model.predict([0, 1, 2])


def test_scikit_learn_validates_it():
    problem = matrix(20, 1, 0.6, seed=1)
    pairs = np.stack([problem.rows, problem.cols], axis=1)
    parts = KFold(2, shuffle=True, random_state=0)
    model = DeepLinearCompletion(width=2)
    scores = cross_val_score(model, pairs, problem.values, cv=parts)
    assert np.all(scores > -0.1 * problem.values.std())
    r2 = cross_val_score(model, pairs, problem.values, cv=parts, scoring="r2")
    assert np.all(r2 > 0.99)
    same = [DeepLinearCompletion(width=2, random_state=5), DeepLinearCompletion(width=2, seed=5)]
    first, second = (model.fit(problem).complete() for model in same)
    np.testing.assert_array_equal(first, second)


def test_pandas_frames_and_series():
    pandas = pytest.importorskip("pandas")
    problem = matrix(12, 1, 0.8, seed=2)
    names = np.array([f"user {i}" for i in range(12)])
    frame = pandas.DataFrame(
        {"user": names[problem.rows], "item": problem.cols, "rating": problem.values}
    )
    model = DeepLinearCompletion().fit(frame)
    entries = Entries.from_ids(names[problem.rows], problem.cols, problem.values)
    expected = DeepLinearCompletion().fit(entries).predict(entries)
    np.testing.assert_array_equal(model.predict(frame["user"], frame["item"]), expected)
    np.testing.assert_array_equal(model.predict(frame[["user", "item"]]), expected)
    np.testing.assert_array_equal(model.predict(entries), expected)
    of_pairs = DeepLinearCompletion().fit(frame[["user", "item"]], frame["rating"])
    np.testing.assert_array_equal(of_pairs.predict(frame[["user", "item"]]), expected)
    assert of_pairs.score(frame[["user", "item"]], frame["rating"]) == model.score(frame)


def test_generated_ratings_are_fitted():
    ratings, _ = datasets.generate_ratings(60, 40, 900, rank=1, noise=0.2, seed=0)
    model = DeepLinearCompletion(width=6).fit(ratings)
    assert layers.train_error(ratings, model.complete()) < 0.3 * np.mean(ratings.values**2)


def test_rows_and_columns_keep_their_identifiers():
    problem = matrix(12, 1, 0.8, seed=2)
    names = np.array([f"user {i}" for i in range(12)])
    entries = Entries.from_ids(names[problem.rows], 100 + problem.cols, problem.values)
    model = fit(entries)
    A = np.asarray(model.complete())
    users, items = list(model.row_ids_), list(model.col_ids_)
    where = users.index("user 7"), items.index(103)
    assert model.predict(["user 7"], [103])[0] == pytest.approx(A[where])
    assert model.predict(["user 7"], ["103"])[0] == pytest.approx(A[where])
    np.testing.assert_allclose(model.complete(["user 7"]), A[[where[0]]])
    with pytest.raises(InputError, match="user 99"):
        model.predict(["user 99"], [103])


def test_complete_gives_what_dropout_completion_gives():
    problem = matrix(12, 1, 0.8, seed=2)
    for model in (fit(problem), DropoutCompletion(n_factors=2, drop_prob=0.1).fit(problem)):
        A = np.asarray(model.complete())
        assert A.shape == problem.shape
        rows, cols = np.array([3, 5]), np.array([0, 11])
        np.testing.assert_allclose(A[rows, cols], model.predict(rows, cols))
        np.testing.assert_allclose(model.complete([4, 1]), A[[4, 1]])


def test_noisy_data_do_not_raise_the_rank():
    problem = matrix(40, 2, 0.6, seed=2)
    noise = 0.3 * np.random.default_rng(0).standard_normal(len(problem))
    noisy = Entries(problem.rows, problem.cols, problem.values + noise, problem.shape)
    model = fit(noisy)
    assert model.rank_ <= 4
    assert layers.test_error(problem, model.complete()) < 0.02


def test_follows_a_schedule_as_it_is():
    problem = matrix(20, 1, 0.5, seed=4)
    schedule = Schedule.of([(60_000, 0.02, 3e-3), (20_000, 0.02, 1e-6)])
    model = fit(problem, schedule=schedule, width=5)
    assert (model.n_steps_, model.weight_decay_) == (80_000, 0.0)
    assert layers.test_error(problem, model.complete()) < 0.05
    with pytest.raises(InputError, match="learning_rate"):
        fit(problem, schedule=Schedule.constant(1000, 50.0, 1e-6))


def test_restarts_and_clone():
    problem = matrix(20, 1, 0.4, seed=1)
    model = fit(problem, restarts=2, depth=4, tol=0.2)
    assert clone(model).get_params()["restarts"] == 2
    assert layers.test_error(problem, model.complete()) < 0.01


def test_interrupt_keeps_the_best_candidate(monkeypatch):
    problem = matrix(30, 1, 0.4, seed=0)

    def settle(self, lam, original=AnnealedPath.settle):
        if len(self._problem) == len(problem):  # the last fit, to all entries
            raise KeyboardInterrupt
        original(self, lam)

    monkeypatch.setattr(AnnealedPath, "settle", settle)
    model = fit(problem)
    assert model.status_ == Status.INTERRUPTED
    assert layers.test_error(problem, model.complete()) < 0.05


def test_interrupt_before_anything_is_kept_goes_through(monkeypatch):
    def shed(self, lam):
        raise KeyboardInterrupt

    monkeypatch.setattr(AnnealedPath, "shed", shed)
    with pytest.raises(KeyboardInterrupt):
        fit(matrix(10, 1, 0.5, seed=0))


def test_a_path_counts_the_rank_of_its_product_and_hands_out_copies():
    rng, problem = np.random.default_rng(0), matrix(8, 2, 0.8, seed=0)
    path = AnnealedPath(problem, 3, 5, rng, lambda *_: None)
    first, middle, last = (rng.standard_normal(shape) for shape in [(5, 8), (5, 5), (8, 5)])
    P = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    first = P[:, :2] @ P[:, :2].T @ first  # two directions, of which the middle takes one
    path._state = Weights([first, middle - middle @ np.outer(P[:, 0], P[:, 0]), last])
    assert path.rank() == np.linalg.matrix_rank(layers.product(path.weights())) == 1
    for W in path.weights():
        W[:] = 0
    assert all(W.any() for W in path.weights())
    path.run(Phase(50, 0.01, 0.5))
    np.testing.assert_array_equal(path._state.F, path.weights()[0].T)


def test_width_is_at_most_that_of_the_matrix():
    A = np.random.default_rng(0).standard_normal((6, 4))
    for width, expected in ((None, 4), (50, 4), (3, 3)):
        model = fit(A, schedule=Schedule.constant(10, 1e-3, 0.1), width=width)
        assert [W.shape for W in model.weights_] == [(expected, 4), (expected,) * 2, (6, expected)]


@pytest.mark.parametrize("depth", [2, 3])
def test_random_starts_have_the_size_of_the_data_a_third_and_thrice(depth):
    problem = matrix(40, 2, 0.5, seed=0)
    rng, size = np.random.default_rng(0), np.sqrt(np.mean(problem.values**2))
    made = [layers.product(W) for W in random_starts(problem, depth, 30, 4, rng)]
    found = [np.sqrt(np.mean(A**2)) / size for A in made]
    assert found == pytest.approx([1 / 3, 1, 3, 1 / 3], rel=0.25)


BAD = {
    "depth 2": {"depth": 2},
    "nothing held out": {"holdout": 0.0},
    "an unknown schedule": {"schedule": "periodic"},
    "no width": {"width": 0},
    "no restarts": {"restarts": 0},
    "a negative tol": {"tol": -1.0},
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
    found = nuclear_norm(problem, tol=1e-8, max_iterations=20_000)
    assert np.linalg.norm(found, "nuc") == pytest.approx(best, rel=1e-5)
    assert np.abs(found[problem.rows, problem.cols] - problem.values).max() < 1e-12


def test_small_initialization_recovers_an_easy_matrix():
    problem = matrix(30, 1, 0.5, seed=0)
    assert layers.test_error(problem, small_initialization(problem, width=10)) < 0.01


def test_small_initialization_takes_a_tenth_of_the_inverse_curvature():
    problem = matrix(10, 1, 0.5, seed=0)
    rates = None, 0.1 / curvature(problem.shape, 3)
    found = [small_initialization(problem, width=4, epochs=20, learning_rate=r) for r in rates]
    np.testing.assert_array_equal(*found)


def test_the_nuclear_norm_is_the_least_that_fits():
    problem = Entries([0, 0, 1, 2], [0, 1, 1, 3], [1.3, -2.1, 0.4, 1.7], (3, 4))
    found = nuclear_norm(problem, tol=1e-8)
    A = cp.Variable((3, 4))
    seen = zip(problem.rows, problem.cols, problem.values, strict=True)
    fits = [A[i, j] == v for i, j, v in seen]
    best = cp.Problem(cp.Minimize(cp.normNuc(A)), fits).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found[problem.rows, problem.cols], problem.values)
    assert np.linalg.svd(found, compute_uv=False).sum() == pytest.approx(best, rel=1e-5)


def test_what_was_fitted_can_be_predicted_and_scored():
    """By the same pairs, entries and frames that `fit` takes."""
    rng = np.random.default_rng(0)
    truth = np.outer(rng.random(6) + 1, rng.random(5) + 1)
    rows, cols = np.nonzero(rng.random(truth.shape) < 0.9)
    pairs, values = np.column_stack([rows, cols]), truth[rows, cols]
    model = DeepLinearCompletion(width=2, seed=0).fit(pairs, values)
    expected = model.complete()[rows, cols]
    np.testing.assert_array_equal(model.predict(pairs), expected)
    np.testing.assert_array_equal(model.predict(pandas.DataFrame(pairs)), expected)
    error = np.sqrt(np.mean((expected - values) ** 2))
    assert model.score(pairs, values) == pytest.approx(-error)
    entries = Entries.from_ids([f"u{a}" for a in rows], cols, values)
    named = DeepLinearCompletion(width=2, seed=0).fit(entries)
    error = np.sqrt(np.mean((named.predict(entries) - values) ** 2))
    assert named.score(entries) == pytest.approx(-error)
    by_index = named.predict(entries.rows, entries.cols, keys="index")
    np.testing.assert_array_equal(named.predict(entries), by_index)
    folds = KFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(
        DeepLinearCompletion(width=2, seed=0), pairs, values, cv=folds, error_score="raise"
    )
    assert len(scores) == 3
    with pytest.raises(InputError, match="must be among those fitted"):
        model.predict([-1], [0])
