"""The completion estimator, and what it is compared with."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score

from overt import Entries, InputError, datasets
from overt.completion import DropoutCompletion
from overt.decay import DeepLinearCompletion, layers


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
    assert all(
        c.train_error < 1e-4 for c in model.path_ if c.rank >= rank
    )  # quiet phases fit
    A = model.weights_[2] @ model.weights_[1] @ model.weights_[0]
    np.testing.assert_allclose(A, model.complete(), atol=1e-10)


def test_needs_fewer_entries_than_the_nuclear_norm():
    """Minimizing the nuclear norm by a convex solver misses a matrix that depth completes."""
    problem = matrix(20, 1, 0.25, seed=1)
    A = cp.Variable(problem.shape)
    fits = [A[problem.rows, problem.cols] == problem.values]
    cp.Problem(cp.Minimize(cp.normNuc(A)), fits).solve(solver=cp.CLARABEL)
    assert layers.test_error(problem, fit(problem).complete()) < 0.01
    assert layers.test_error(problem, A.value) > 0.05


def beside_a_level():
    """Yield matrices of rank 3 with a rank-one part that is far larger, by name."""
    rng = np.random.default_rng([40, 3, 0])
    A = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 40))
    u, v = rng.standard_normal((2, 40))
    yield "100 everywhere", A + 100
    yield "1e6 everywhere", A + 1e6
    yield "a level for each row and column", A + 300 * np.outer(abs(u), abs(v))
    yield "signs", A + 100 * np.outer(u, v)


@pytest.mark.parametrize(("name", "truth"), list(beside_a_level()))
def test_finds_ranks_beside_a_dominating_singular_value(name, truth):
    """Of A + 100 it found rank 1, and predicted the level alone."""
    problem = Entries.sample(truth, 800, seed=0)
    model = fit(problem)
    assert model.rank_ == np.linalg.matrix_rank(truth) == 4
    rows, cols = problem.missing
    missed = model.complete()[rows, cols] - truth[rows, cols]
    assert np.sqrt(np.mean(missed**2)) < 1e-3  # the entries of A are about 1.7
    np.testing.assert_allclose(
        model.weights_[2] @ model.weights_[1] @ model.weights_[0],
        model.complete(),
        rtol=1e-10,
    )


def test_what_has_no_entries_gets_the_level():
    """Rows of ratings of 1 to 5 without a single entry were answered by 0."""
    rng = np.random.default_rng(0)
    ratings = np.full((31, 20), np.nan)
    ratings[:30] = 3.5 + rng.standard_normal((30, 20)) / 3
    ratings[:30][rng.random((30, 20)) < 0.4] = np.nan
    answers = fit(ratings).complete()[30]
    np.testing.assert_allclose(answers, np.nanmean(ratings), atol=0.3)


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
        np.testing.assert_allclose(model.complete(), expected, rtol=1e-12)
        np.testing.assert_allclose(
            model.predict([0, 5], [3, 19]), expected[[0, 5], [3, 19]]
        )
    model = DeepLinearCompletion(seed=3).fit(Entries(rows, cols, values))
    np.testing.assert_allclose(model.complete(), expected, rtol=1e-12)


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
    same = [
        DeepLinearCompletion(width=2, random_state=5),
        DeepLinearCompletion(width=2, seed=5),
    ]
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
    assert of_pairs.score(frame[["user", "item"]], frame["rating"]) == model.score(
        frame
    )


def test_generated_ratings_are_fitted():
    ratings, _ = datasets.generate_ratings(60, 40, 900, rank=1, noise=0.2, seed=0)
    model = DeepLinearCompletion(width=6).fit(ratings)
    assert layers.train_error(ratings, model.complete()) < 0.3 * np.mean(
        ratings.values**2
    )


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
    with pytest.raises(InputError, match="user 99"):
        model.predict(["user 99"], [103])


def test_complete_gives_what_dropout_completion_gives():
    problem = matrix(12, 1, 0.8, seed=2)
    for model in (
        fit(problem),
        DropoutCompletion(n_factors=2, drop_prob=0.1).fit(problem),
    ):
        A = np.asarray(model.complete())
        assert A.shape == problem.shape
        rows, cols = np.array([3, 5]), np.array([0, 11])
        np.testing.assert_allclose(A[rows, cols], model.predict(rows, cols))


def test_noisy_data_do_not_raise_the_rank():
    problem = matrix(40, 2, 0.6, seed=2)
    noise = 0.3 * np.random.default_rng(0).standard_normal(len(problem))
    noisy = Entries(problem.rows, problem.cols, problem.values + noise, problem.shape)
    model = fit(noisy)
    assert model.rank_ <= 4
    assert layers.test_error(problem, model.complete()) < 0.02


def test_clone_keeps_the_parameters():
    problem = matrix(20, 1, 0.4, seed=1)
    model = fit(problem, depth=4, tol=0.2)
    assert clone(model).get_params()["tol"] == 0.2
    assert layers.test_error(problem, model.complete()) < 0.01


def test_width_is_at_most_that_of_the_matrix():
    A = np.random.default_rng(0).standard_normal((6, 4))
    for width, expected in ((None, 4), (50, 4), (3, 3)):
        model = fit(A, width=width)
        assert [W.shape for W in model.weights_] == [
            (expected, 4),
            (expected,) * 2,
            (6, expected),
        ]


def test_bad_entries():
    model = DeepLinearCompletion()
    with pytest.raises(InputError, match="all be 0"):
        model.fit(Entries([0, 1], [0, 1], [0.0, 0.0]))
    with pytest.raises(InputError, match="at least one"):
        model.fit(Entries([], [], []))
    fitted = fit(matrix(10, 1, 0.6, seed=0))
    with pytest.raises(InputError, match="rows"):
        fitted.predict([10], [0])


def test_names_and_indices_are_asked_explicitly():
    problem = matrix(12, 1, 0.8, seed=2)
    entries = Entries.from_ids(
        [f"u{a}" for a in problem.rows], problem.cols, problem.values
    )
    named = DeepLinearCompletion(width=2).fit(entries)
    by_index = named.predict(entries.rows, entries.cols, keys="index")
    np.testing.assert_array_equal(named.predict(entries), by_index)
    with pytest.raises(InputError, match="must be among those fitted"):
        named.predict([10**6], [0], keys="index")


def test_noise_alone_has_rank_zero():
    """It was fitted at rank 13, with nearly twice the error of predicting 0."""
    values = np.random.default_rng(0).standard_normal((40, 40))
    model = DeepLinearCompletion(seed=0).fit(Entries.sample(values, 400, seed=1))
    assert model.rank_ == 0
    assert not model.predict([0], [0]).any()


def test_rows_without_entries_are_predicted_as_zero():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 40))
    entries = Entries.sample(values, 800, seed=1)
    seen = np.flatnonzero((entries.rows != 5) & (entries.cols != 7))
    model = DeepLinearCompletion(seed=0).fit(entries.take(seen))
    assert model.rank_ == 2
    assert not model.predict([5, 0], [0, 7]).any()
