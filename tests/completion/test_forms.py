"""The forms that are fitted: monotone, stationary, and equal to what theory says."""

import itertools

import numpy as np
import pytest
import scipy.optimize

import overt
from overt import datasets, penalty
from overt.completion import DropoutCompletion
from overt.completion.engines import make_engine
from overt.completion.forms.fixed import FixedForm
from overt.completion.forms.implicit import FLOOR, Precisions, blended
from overt.completion.forms.learned import LearnedForm, balanced, equivalent_drop_prob
from overt.completion.forms.prior import Prior
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.spread import DiagonalSpread, DropoutSpread, FullSpread
from overt.completion.kernels import (
    NOT_PINNED,
    Blocks,
    Csr,
    Drawn,
    Held,
    Learned,
    RowPrior,
    epoch,
    full,
    gram,
)


@pytest.fixture(scope="module")
def ratings():
    return datasets.generate_ratings(60, 40, 900, rank=2, noise=0.3, scale=None, seed=0)[0]


def objective(model, ratings, drop_prob):
    residual = ratings.values - model.predict(ratings.rows, ratings.cols)
    given = (model.U_, model.V_, ratings.rows, ratings.cols, drop_prob)
    return float(np.mean(residual**2) + penalty.completion(*given))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("drop_prob", [0.0, 0.2, 0.6])
def test_fixed_descends_the_papers_objective(ratings, biases, drop_prob):
    model = DropoutCompletion(4, drop_prob, biases=biases, max_sweeps=40, tol=0.0, ridge=0.0)
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values)
    history = model.objective_
    assert np.all(np.diff(history) <= 1e-9 * history[0])
    assert objective(model, ratings, drop_prob) == pytest.approx(history[-1], rel=1e-5)


@pytest.mark.parametrize("biases", [False, True])
def test_fixed_reaches_a_stationary_point(ratings, biases):
    drop_prob = 0.3
    model = DropoutCompletion(3, drop_prob, biases=biases, max_sweeps=3000, tol=0.0, ridge=0.0)
    model.fit_triplets(ratings.rows, ratings.cols, ratings.values)
    import torch

    U, V = (torch.tensor(np.array(a), requires_grad=True) for a in (model.U_, model.V_))
    a, b = (torch.tensor(x) for x in (ratings.rows, ratings.cols))
    base = model.mean_ + model.row_bias_[ratings.rows] + model.col_bias_[ratings.cols]
    residual = torch.tensor(ratings.values - base) - (U[a] * V[b]).sum(1)
    loss = (residual**2).mean() + penalty.completion(U, V, a, b, drop_prob)
    loss.backward()
    assert max(float(U.grad.abs().max()), float(V.grad.abs().max())) < 1e-6


def test_row_update_is_the_normal_equation(ratings):
    """Row a solves (sum v v' + lam diag(sum v o v)) u = sum y v, checked entry by entry."""
    problem = CompletionProblem.build(ratings, 3, biases=False, standard=False)
    form = FixedForm.start(problem, 0.4, 0.0, seed=1)
    V = form.means[1].copy()
    with make_engine("local", 1) as engine:
        form.update(0, engine)
    lam = 0.4 / 0.6
    for row in range(0, 60, 7):
        chosen = ratings.rows == row
        W, y = V[ratings.cols[chosen]], ratings.values[chosen]
        G = W.T @ W + lam * np.diag((W**2).sum(axis=0))
        np.testing.assert_allclose(G @ form.means[0][row], W.T @ y, atol=1e-8)


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
    optimum = (np.sum((M - best) ** 2) + lam / width * np.linalg.svd(best)[1].sum() ** 2) / M.size
    model = DropoutCompletion(width, drop_prob, biases=False, max_sweeps=3000, tol=0.0, ridge=0.0)
    model.fit_triplets(rows, cols, M.ravel())
    assert model.objective_[-1] >= optimum * (1 - 1e-9)
    assert model.objective_[-1] == pytest.approx(optimum, rel=1e-3)


def test_per_factor_drop_probs(ratings):
    probs = np.array([0.0, 0.5, 0.9])
    model = DropoutCompletion(3, probs, max_sweeps=20).fit_triplets(
        ratings.rows, ratings.cols, ratings.values
    )
    assert objective(model, ratings, probs) == pytest.approx(model.objective_[-1], rel=1e-5)


@pytest.mark.parametrize("spread", [FullSpread, DiagonalSpread])
def test_learned_objective_never_rises(ratings, spread):
    problem = CompletionProblem.build(ratings, 5, biases=True, standard=True)
    form = LearnedForm.start(problem, 0, spread)
    with make_engine("local", 1) as engine:
        for _ in range(25):
            form.step(engine)
    assert np.all(np.diff(form.history) <= 1e-8)


def test_learned_reduces_to_dropout_with_its_noise():
    """S_b = lam diag(v_b o v_b), P = 0, sigma = 1: the learned row update is dropout's."""
    rng = np.random.default_rng(6)
    V, lam, y = rng.normal(size=(8, 3)), 0.5, rng.normal(size=8)
    T = full.pack(V[:, :, None] * V[:, None, :] + lam * np.eye(3) * (V**2)[:, None, :])
    blocks = Blocks(np.array([0, 8]), np.zeros(8, np.int32), np.arange(8, dtype=np.int32), y)
    prior = RowPrior(np.zeros((3, 3)), np.arange(3), NOT_PINNED)
    w, packed, stats = (np.zeros((1, size)) for size in (3, 6, 2))
    given = (np.array([0]), blocks, Held(V, T, np.ones(8)), prior, np.zeros((1, 3)), np.ones(1))
    full.learn_rows(*given, Learned(w, packed, stats), np.array([0, 1]), np.zeros((1, 6)))
    expected = np.linalg.solve(V.T @ V + lam * np.diag((V**2).sum(axis=0)), V.T @ y)
    np.testing.assert_allclose(w[0], expected, rtol=1e-10)


def test_learned_finds_rank_and_noise():
    ratings, truth = datasets.generate_ratings(300, 200, 18_000, noise=0.5, scale=None, seed=1)
    model = DropoutCompletion(12).fit_triplets(ratings.rows, ratings.cols, ratings.values)
    assert model.noise_variance_ == pytest.approx(0.25, rel=0.08)
    assert np.sum(model.learned_drop_prob_ < 0.5) == 4
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 300, 20_000), rng.integers(0, 200, 20_000)
    error = model.predict(rows, cols) - truth(rows, cols)
    assert np.sqrt(np.mean(error**2)) < 0.3


def test_alternating_is_never_above_sgd(ratings):
    given = (ratings.rows, ratings.cols, ratings.values)
    exact = DropoutCompletion(4, 0.2, max_sweeps=300).fit_triplets(*given)
    sgd = DropoutCompletion(
        4, 0.2, method="sgd", learning_rate=2.0, batch_size=100, max_sweeps=150
    ).fit_triplets(*given)
    assert objective(exact, ratings, 0.2) <= objective(sgd, ratings, 0.2)
    assert objective(sgd, ratings, 0.2) < 2 * objective(exact, ratings, 0.2)


def test_sgd_step_is_the_gradient(ratings):
    """One full batch without dropout moves along the gradient of the mean squared error."""
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(60, 3)), rng.normal(size=(40, 3))

    def loss(x):
        u, v = x[:180].reshape(60, 3), x[180:].reshape(40, 3)
        return np.mean((ratings.values - np.sum(u[ratings.rows] * v[ratings.cols], axis=1)) ** 2)

    x = np.concatenate([U.ravel(), V.ravel()])
    gradient = scipy.optimize.approx_fprime(x, loss, 1e-6)
    n = len(ratings)
    given = (np.arange(n), ratings.rows, ratings.cols, ratings.values, U, V)
    epoch(*given, 3, 0.0, 0.1, n, np.uint64(1))
    moved = np.concatenate([U.ravel(), V.ravel()])
    np.testing.assert_allclose(moved, x - 0.1 * gradient, atol=1e-6)


def test_sampling_draws_from_the_posterior():
    """Draws of one row have the mean and the covariance of its exact posterior."""
    rng = np.random.default_rng(0)
    V = rng.normal(size=(6, 2))
    y, noise, P = rng.normal(size=6), 0.5, np.diag([2.0, 1.0])
    n = 20_000
    normals, out, centers, stats = rng.normal(size=(n, 2)), *(np.zeros((n, 2)) for _ in range(3))
    csr = Csr(np.arange(n + 1) * 6, np.tile(np.arange(6, dtype=np.int32), n), np.tile(y, n))
    prior, by_row = RowPrior(P, np.arange(2), NOT_PINNED), (np.zeros((n, 2)), np.full(n, 1 / noise))
    held, drawn = Held(V, np.zeros(2), np.ones(6)), Drawn(out, centers, stats)
    gram.draw_rows(np.arange(n), csr, held, prior, *by_row, normals, drawn)
    S = np.linalg.inv(V.T @ V / noise + P)
    mean = S @ V.T @ y / noise
    np.testing.assert_allclose(centers, np.tile(mean, (n, 1)), rtol=1e-9)
    assert np.all(np.abs(out.mean(axis=0) - mean) <= 5 * np.sqrt(np.diag(S) / n))
    spread = np.cov(out, rowvar=False)
    error = np.sqrt((np.outer(np.diag(S), np.diag(S)) + S**2) / n)
    assert np.all(np.abs(spread - S) <= 5 * error)


@pytest.mark.parametrize("drop_prob", [0.0, 0.01, 0.3])
def test_the_objective_never_rises_in_single_precision_either(drop_prob, monkeypatch):
    """Without dropout, rows with few entries are fitted exactly by huge factors."""
    monkeypatch.setattr("overt.completion.forms.problem.DOUBLE_BELOW", 0)
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
    finer = DropoutCompletion(4, max_sweeps=800, average=0, **settings | {"tol": tol / 10})
    more = -np.diff(trace(finer.fit(ratings).objective_))
    assert len(more) > len(falls)
    assert abs(more[-1]) <= tol / 10 * 1.001


@pytest.mark.parametrize("kind", ["dropout", "full", "diagonal"])
def test_spreads_answer_as_their_dense_covariances(kind):
    """Var(u.v) = u'S_v u + v'S_u v + tr(S_u S_v), sums and traces of S; dropout is lam u^2 v^2."""
    rng = np.random.default_rng(0)
    means = [rng.normal(size=(6, 3)), rng.normal(size=(5, 3))]
    roots = [rng.normal(size=(len(w), 3, 3)) for w in means]
    S = [0.1 * R @ R.transpose(0, 2, 1) for R in roots]
    if kind == "dropout":
        lam = np.array([0.2, 1.5, 0.0])
        spread, S = DropoutSpread(lam), [np.stack([np.diag(lam * w**2) for w in W]) for W in means]
    else:
        keep = np.ones((3, 3)) if kind == "full" else np.eye(3)
        S = [s * keep for s in S]
        cls = FullSpread if kind == "full" else DiagonalSpread
        spread = cls([np.stack([cls.to_row(s) for s in side]) for side in S])
        for side, table in zip(S, spread.tables, strict=True):
            np.testing.assert_array_equal(cls.to_row(side), table)  # all at once
    rows, cols = np.array([0, 3, 5, 5]), np.array([4, 0, 2, 3])
    found = spread.product_variance(means, rows, cols)
    for value, a, b in zip(found, rows, cols, strict=True):
        u, v, Su, Sv = means[0][a], means[1][b], S[0][a], S[1][b]
        expected = u @ Sv @ u + v @ Su @ v + np.trace(Su @ Sv)
        if kind == "dropout":
            expected = np.sum(lam * u**2 * v**2)
        assert value == pytest.approx(expected, rel=1e-12)
    M = rng.normal(size=(3, 3))
    M, weights = M + M.T, rng.random(4)
    for side, chosen in ((0, rows), (1, cols)):
        dense = np.einsum("a,aij->ij", weights, S[side][chosen])
        np.testing.assert_allclose(spread.total(means, side, chosen, weights), dense, rtol=1e-12)
        traces = [np.trace(S[side][a] @ M) for a in chosen]
        np.testing.assert_allclose(spread.traces(means, side, chosen, M), traces, rtol=1e-12)


@pytest.mark.parametrize(("spread", "unit"), [(FullSpread, 1.0), (DiagonalSpread, 1e-6)])
def test_noise_of_dropout_is_recognized_as_dropout(ratings, spread, unit):
    """S_b = lam_i v_bi^2 on one side, 0 on the other, in the basis of the priors."""
    problem = CompletionProblem.build(ratings, 3, biases=True, standard=True)
    form, probs = LearnedForm.start(problem, 0, spread), np.array([0.1, 0.5, 0.8])
    rng, lam = np.random.default_rng(3), probs / (1 - probs)
    for side, width in enumerate(form.means):
        form.means[side] = unit * rng.normal(size=width.shape) * [2.0, 1.0, 0.5, 1.0, 1.0]
        n = len(form.priors[side].mean)
        form.priors[side] = Prior(np.zeros(n), np.diag([0.25, 1.0, 4.0, 5.0][:n]))
        form.spread.tables[side][:] = 0.0
    for b, v in enumerate(form.means[1]):
        S = np.zeros((problem.columns.width, problem.columns.width))
        S[:3, :3] = np.diag(lam * v[:3] ** 2)
        form.spread.tables[1][b] = form.spread.to_row(S)
    overall, each = equivalent_drop_prob(form)
    np.testing.assert_allclose(each, probs, rtol=1e-6)
    counts = [problem.grouped(side).counts for side in (0, 1)]
    size = np.prod([c @ W[:, :3] ** 2 for c, W in zip(counts, form.means, strict=True)], axis=0)
    mean = lam @ size / size.sum()
    assert overall == pytest.approx(mean / (1 + mean), rel=1e-6)


def test_balanced_bases_keep_products_and_make_both_priors_one_diagonal(ratings):
    problem = CompletionProblem.build(ratings, 3, biases=True, standard=True)
    form = LearnedForm.start(problem, 0)
    with make_engine("local", 1) as engine:
        for _ in range(6):
            form.step(engine)
    bases = balanced(form)
    U, V = (w[:, :3] for w in form.means)
    np.testing.assert_allclose((U @ bases[0]) @ (V @ bases[1]).T, U @ V.T, atol=1e-9)
    one, other = (
        B.T @ prior.covariance[:3, :3] @ B for B, prior in zip(bases, form.priors, strict=True)
    )
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9 * one.max())
    np.testing.assert_allclose(one, np.diag(np.diag(one)), atol=1e-8 * one.max())
    assert np.all(np.diff(np.diag(one)) <= 0)


def test_precisions_fall_like_roots_and_are_one_on_average():
    sums = np.array([0.0, 1.0, 4.0, 16.0])
    rule = Precisions.of(sums)
    found = rule(sums)
    assert found[1:].mean() == pytest.approx(1)
    expected = ((FLOOR * 7 + 16) / (FLOOR * 7 + 1)) ** -0.5
    assert found[3] / found[1] == pytest.approx(expected)


def test_popularity_is_blended_by_what_all_scores_sum_to():
    x, p = np.array([[1.0, -2.0, 3.0], [-1.0, -1.0, 0.0]]), np.array([0.5, 0.3, 0.2])
    found = blended(x, p, 0.25)
    np.testing.assert_allclose(found[0], 0.75 * x[0] + 0.25 * 4 * p)
    np.testing.assert_allclose(found[1], 0.75 * x[1] + 0.25 * p)
