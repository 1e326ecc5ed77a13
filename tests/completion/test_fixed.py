"""Dropout with a fixed probability: monotone, stationary, and equal to what theory says."""

import itertools
import warnings

import numpy as np
import pytest

import overt
from overt import datasets, penalty
from overt.completion import DropoutCompletion


@pytest.fixture(scope="module")
def ratings():
    return datasets.generate_ratings(
        60, 40, 900, rank=2, noise=0.3, scale=None, seed=0
    )[0]


def objective(model, ratings, drop_prob):
    residual = ratings.values - model.predict(ratings.rows, ratings.cols)
    given = (model.U_, model.V_, ratings.rows, ratings.cols, drop_prob)
    return float(np.mean(residual**2) + penalty.completion(*given))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("drop_prob", [0.0, 0.2, 0.6])
def test_fixed_descends_the_papers_objective(ratings, biases, drop_prob):
    model = DropoutCompletion(
        4, drop_prob, biases=biases, max_sweeps=40, tol=0.0, ridge=0.0
    )
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values)
    history = model.objective_
    assert np.all(np.diff(history) <= 1e-9 * history[0])
    assert objective(model, ratings, drop_prob) == pytest.approx(history[-1], rel=1e-5)


@pytest.mark.parametrize("biases", [False, True])
def test_fixed_reaches_a_stationary_point(ratings, biases):
    drop_prob = 0.3
    model = DropoutCompletion(
        3, drop_prob, biases=biases, max_sweeps=3000, tol=0.0, ridge=0.0
    )
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values)
    import torch

    U, V = (torch.tensor(np.array(a), requires_grad=True) for a in (model.U_, model.V_))
    a, b = (torch.tensor(x) for x in (ratings.rows, ratings.cols))
    base = model.mean_ + model.row_bias_[ratings.rows] + model.col_bias_[ratings.cols]
    residual = torch.tensor(ratings.values - base) - (U[a] * V[b]).sum(1)
    loss = (residual**2).mean() + penalty.completion(U, V, a, b, drop_prob)
    loss.backward()
    assert max(float(U.grad.abs().max()), float(V.grad.abs().max())) < 1e-6


def test_fixed_objective_is_the_expectation_over_all_masks(ratings):
    model = DropoutCompletion(3, 0.3, max_sweeps=5, tol=0.0, ridge=0.0)
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values)
    base = model.mean_ + model.row_bias_[ratings.rows] + model.col_bias_[ratings.cols]
    flow = model.U_[ratings.rows] * model.V_[ratings.cols]
    total = 0.0
    for mask in itertools.product((0, 1), repeat=3):
        kept = sum(mask)
        probability = 0.7**kept * 0.3 ** (3 - kept)
        predicted = base + flow @ (np.array(mask) / 0.7)
        total += probability * np.mean((ratings.values - predicted) ** 2)
    assert total == pytest.approx(model.objective_[-1], rel=1e-9)


def test_fixed_on_a_full_matrix_reaches_the_exact_optimum():
    """On a fully observed matrix completion is factorization, whose optimum is known."""
    rng = np.random.default_rng(5)
    M = rng.normal(size=(12, 9)) @ np.diag(np.linspace(3, 0.1, 9))
    rows, cols = (x.ravel() for x in np.indices(M.shape))
    width, drop_prob = 9, 0.4
    lam = drop_prob / (1 - drop_prob)
    # U V' = M with lam sum U^2 V^2: shrink the spectrum as the induced norm says.
    weight, norm = overt.spectral.induced(overt.Dropout(drop_prob), width)
    best = norm.matrix_prox(M, weight)
    optimum = (
        np.sum((M - best) ** 2) + lam / width * np.linalg.svd(best)[1].sum() ** 2
    ) / M.size
    model = DropoutCompletion(
        width, drop_prob, biases=False, max_sweeps=3000, tol=0.0, ridge=0.0
    )
    model.fit_triplets(rows, cols, M.ravel())
    assert model.objective_[-1] >= optimum * (1 - 1e-9)
    assert model.objective_[-1] == pytest.approx(optimum, rel=1e-3)


def test_per_factor_drop_probs(ratings):
    probs = np.array([0.0, 0.5, 0.9])
    model = DropoutCompletion(3, probs, max_sweeps=20).fit_triplets(
        ratings.rows, ratings.cols, ratings.values
    )
    assert objective(model, ratings, probs) == pytest.approx(
        model.objective_[-1], rel=1e-5
    )


@pytest.mark.parametrize("drop_prob", [0.0, 0.01, 0.3])
def test_the_objective_never_rises_in_single_precision_either(drop_prob, monkeypatch):
    """Without dropout, rows with few entries are fitted exactly by huge factors."""
    monkeypatch.setattr("overt.completion.problem.DOUBLE_BELOW", 0)
    ratings = datasets.generate_ratings(300, 200, 3_000, seed=0)[0]
    model = DropoutCompletion(40, drop_prob, max_sweeps=12, tol=0.0)
    objective = model.fit(ratings.to_sparse()).objective_
    assert len(objective) == 12
    assert np.all(np.diff(objective) <= 1e-5 * objective[:-1])


@pytest.mark.parametrize(
    ("settings", "tol", "trace"),
    [
        ({"signals": False}, 7e-4, np.asarray),
        ({"missing": "negative"}, 5e-3, np.asarray),
        ({"drop_prob": 0.2}, 1e-5, np.log),
        ({"drop_prob": 0.2, "tol": 1e-3}, 1e-3, np.log),
    ],
    ids=["learned", "negative", "fixed", "fixed-tol"],
)
def test_a_fit_goes_on_until_a_sweep_gains_little(ratings, settings, tol, trace):
    """In nats per rating of the objective, or of its logarithm where the noise is given."""
    if "missing" in settings:
        values = np.abs(ratings.values) + 0.1
        ratings = overt.Entries(ratings.rows, ratings.cols, values, ratings.shape)
    model = DropoutCompletion(4, max_sweeps=800, average=0, **settings).fit(ratings)
    assert model.status_ == "converged"
    falls = -np.diff(trace(model.objective_))
    assert abs(falls[-1]) <= tol * 1.001
    finer = DropoutCompletion(
        4, max_sweeps=800, average=0, **settings | {"tol": tol / 10}
    )
    more = -np.diff(trace(finer.fit(ratings).objective_))
    assert len(more) > len(falls)
    assert abs(more[-1]) <= tol / 10 * 1.001


def test_auto_says_where_no_drop_probability_beats_the_mean():
    """32 factors for 480 entries predicted worse than the mean, without a word."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30)) + 3
    seen = rng.random(truth.shape) < 0.4
    values = truth + 0.1 * rng.standard_normal(truth.shape)
    given = (*np.nonzero(seen), values[seen])
    model = DropoutCompletion(drop_prob="auto", n_jobs=1)
    with pytest.warns(UserWarning, match="better than the mean.*fewer n_factors"):
        model.fit_triplets(*given, shape=truth.shape)
    assert model.path_[:, 1].min() > np.std(values[seen])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DropoutCompletion(2, "auto", n_jobs=1).fit_triplets(*given, shape=truth.shape)
