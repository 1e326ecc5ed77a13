"""What is expected of rows before their values, and whose noise is how large."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.integrate
from helpers import assert_mean_within_standard_errors
from scipy.stats import gamma, multivariate_normal

from overt import Entries
from overt.completion import DropoutCompletion
from overt.completion.engines import make_engine
from overt.completion.forms.averaged import SampledForm, together
from overt.completion.forms.features import NOTHING, SIGNALS, Features, of_sides
from overt.completion.forms.learned import FIRST, LearnedForm
from overt.completion.forms.noise import NUS, RowNoise, _cost, expected
from overt.completion.forms.prior import (
    GRID,
    LEAST_VARIANCE,
    Prior,
    Sums,
    draw_effects,
    effects_of,
    likelihoods,
    posterior,
)
from overt.completion.forms.problem import CompletionProblem
from overt.completion.forms.spread import DiagonalSpread, FullSpread


def preferences(seed, m=120, n=80, k=3, liking=1.5, rare=2.2, noise=0.7):
    """Ratings that are given more often where they are high; (train, test)."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(m, k)), rng.normal(size=(n, k))
    seen = rng.random((m, n)) < 1 / (1 + np.exp(rare - liking * (U @ V.T)))
    rows, cols = np.nonzero(seen)
    values = (U @ V.T)[rows, cols] + noise * rng.normal(size=len(rows))
    test = rng.random(len(rows)) < 0.2
    return (Entries(rows[at], cols[at], values[at], (m, n)) for at in (~test, test))


def two_blocks(N=12, n=3):
    """Features of two blocks, rows' means, and one covariance S for all rows."""
    rng = np.random.default_rng(0)
    blocks = {SIGNALS: rng.normal(size=(N, 4)), "features": rng.normal(size=(N, 2))}
    features = Features.build(blocks, np.ones(N, bool), float, 0)
    W, root = rng.normal(size=(N, n)), rng.normal(size=(n, n))
    S = 0.1 * root @ root.T
    A = features.scores
    logdets = N * np.linalg.slogdet(S)[1]
    sums = Sums(N, W.sum(axis=0), W.T @ W, N * S, A.T @ W, logdets)
    covariance = np.cov(W, rowvar=False) + np.eye(n)
    return features, W, S, sums, Prior(rng.normal(size=n), np.linalg.inv(covariance))


def test_scales_have_the_likelihood_of_the_gaussian_they_stand_for():
    features, W, *_ = two_blocks()
    A, x = features.scores, W[:, 0]
    held = np.array([[0.0], [0.7]])
    found = likelihoods(0, A.T @ x[:, None], np.zeros(1), features, held)[:, 0]
    mine, other = (A[:, member > 0] for member in features.directions.members)
    base = np.eye(len(x)) + 0.7 * other @ other.T
    dense = [multivariate_normal(cov=base + s * mine @ mine.T).logpdf(x) for s in GRID[::10]]
    np.testing.assert_allclose(found[::10], dense - dense[0], atol=1e-9)


def test_effects_are_a_ridge_regression_with_its_covariance():
    features, W, *_ = two_blocks()
    A, scales = features.scores, np.array([[0.5, 0.0, 2.0], [0.1, 3.0, 0.0]])
    found = posterior(np.eye(3), A.T @ W, features, scales)
    for c in range(3):
        D = np.diag(scales[:, c] @ features.directions.members)
        G = D @ A.T @ np.linalg.inv(np.eye(len(W)) + A @ D @ A.T)
        np.testing.assert_allclose(found.H[:, c], G @ W[:, c], atol=1e-10)
        np.testing.assert_allclose(found.C[c], D - G @ A @ D, atol=1e-10)


def test_cost_is_the_expected_log_density_and_a_step_lowers_it():
    features, W, S, sums, prior = two_blocks()
    N, n = W.shape
    with_effects = Prior(
        prior.mean, prior.precision, effects_of(prior, sums, features, np.full((2, n), 0.3))
    )
    X, scales = with_effects.effects.X, with_effects.effects.scales
    A, x = features.scores, np.linalg.solve(X, (W - prior.mean).T)
    white = np.linalg.solve(X, np.linalg.solve(X, S).T)
    expected = 2 * N * np.linalg.slogdet(X)[1] - N * np.linalg.slogdet(S)[1] - N * n
    for c in range(n):
        Omega = np.eye(N) + A @ np.diag(scales[:, c] @ features.directions.members) @ A.T
        inverse = np.linalg.inv(Omega)
        expected += np.linalg.slogdet(Omega)[1] + x[c] @ inverse @ x[c]
        expected += white[c, c] * np.trace(inverse)
    assert with_effects.cost(sums, features) == pytest.approx(expected / 2, rel=1e-9)
    last = np.inf
    for _ in range(6):
        value = with_effects.cost(sums, features)
        value -= n * np.linalg.slogdet(with_effects.precision)[1] / 2
        assert value <= last + 1e-9
        last, with_effects = value, with_effects.learn(sums, features)


def test_likelihoods_of_scales_expect_rows_with_a_variance():
    """log N(x; 0, Omega) in the mean over x ~ N(W_c, V_c I), both blocks, all coordinates."""
    features, W, *_ = two_blocks()
    A, V, members = features.scores, np.array([0.3, 0.0, 1.2]), features.directions.members
    held = np.array([[0.4, 0.0, 2.0], [0.7, 0.0, 0.1]])
    for block in (0, 1):
        found = likelihoods(block, A.T @ W, V, features, held)
        for c in range(3):
            values = []
            for s in GRID[::15]:
                scales = held[:, c].copy()
                scales[block] = s
                Omega = np.eye(len(W)) + (A * (scales @ members)) @ A.T
                inverse = np.linalg.inv(Omega)
                value = W[:, c] @ inverse @ W[:, c] + V[c] * np.trace(inverse)
                values.append(-(value + np.linalg.slogdet(Omega)[1]) / 2)
            np.testing.assert_allclose(found[::15, c], np.array(values) - values[0], atol=1e-9)


def test_a_step_of_a_prior_with_features_is_one_of_em():
    """Whitened residuals are R_c x_c, R_c = 1 - A C_c A', beside what h varies by."""
    features, W, S, sums, prior = two_blocks()
    (N, n), A = W.shape, features.scores
    effects = effects_of(prior, sums, features, np.full((2, n), 0.3))
    assert effects.scales.any()
    X, scores = effects.X, A[:2]
    with_effects = Prior(prior.mean, prior.precision, effects)
    np.testing.assert_allclose(with_effects.means(scores), prior.mean + scores @ effects.H)
    for a, found in zip(scores, with_effects.covariances(scores), strict=True):
        spread = np.diag([1 + a @ C @ a for C in effects.C])
        np.testing.assert_allclose(found, X @ spread @ X.T)
    mean = (W - A @ effects.H).mean(axis=0)
    V = np.linalg.solve(X, np.linalg.solve(X, S).T)
    R = [np.eye(N) - A @ C @ A.T for C in effects.C]
    more = np.array([[V[c, d] * np.trace(R[c] @ R[d]) for d in range(n)] for c in range(n)])
    more += np.diag([np.trace(C @ features.K) for C in effects.C])
    residual = W - A @ effects.H - mean
    pseudo = n * LEAST_VARIANCE * np.eye(n)
    covariance = (residual.T @ residual + X @ more @ X.T + pseudo) / (N + n)
    found = with_effects.learn(sums, features)
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-6, atol=1e-8)
    units = np.array([2.0, 0.5, 3.0])
    scaled = with_effects.scaled(units)
    np.testing.assert_allclose(scaled.means(scores), with_effects.means(scores) * units)
    both = np.outer(units, units)
    covariances = with_effects.covariances(scores)
    np.testing.assert_allclose(scaled.covariances(scores), covariances * both)
    np.testing.assert_allclose(scaled.covariance, prior.covariance * both)


def test_effects_are_drawn_with_their_covariances():
    """From given draws: the likeliest scales after them, and all roots of C_c."""
    features, W, *_ = two_blocks()
    A, mean, variances = features.scores, np.array([0.5, -1.0, 0.2]), np.array([0.5, 2.0, 4.0])
    drawn, size = np.zeros(2), A.shape[1]

    def standard_normal(count):
        drawn[1] = count
        return np.eye(size)[int(drawn[0])][:count]

    lifts = np.random.default_rng(1).gumbel(size=(len(GRID), 3))
    rng = SimpleNamespace(gumbel=lambda size: lifts, standard_normal=standard_normal)
    x = (W - mean) / np.sqrt(variances)
    held = np.array([[0.4, 0.0, 2.0], [0.7, 0.0, 0.1]])
    expected = held.copy()
    for block in (0, 1):
        likely = likelihoods(block, A.T @ x, np.zeros(3), features, expected)
        expected[block] = GRID[(likely + lifts).argmax(axis=0)]
    center = posterior(np.eye(3), A.T @ x, features, expected)
    roots = []
    for i in range(size):
        drawn[0] = i
        found = draw_effects(mean, variances, A.T @ W, features, held, rng)
        np.testing.assert_array_equal(found.scales, expected)
        np.testing.assert_allclose(found.C, center.C)
        roots.append(found.H / np.sqrt(variances) - center.H)
    for c in range(3):
        count = np.count_nonzero(expected[:, c] @ features.directions.members)
        R = np.array(roots)[:count, :, c]
        np.testing.assert_allclose(R.T @ R, center.C[c], atol=1e-12)
    assert np.array_equal(held, [[0.4, 0.0, 2.0], [0.7, 0.0, 0.1]])
    assert any(center.C[c].any() for c in range(3))


def test_a_prior_without_features_is_the_best_one_at_once_pseudo_rows_included():
    _, W, _, sums, prior = two_blocks()
    n, found = W.shape[1], prior.learn(sums, NOTHING)

    def value(mean, precision):
        cost = Prior(mean, precision).cost(sums, NOTHING)
        return cost - n * np.linalg.slogdet(precision)[1] / 2

    best, rng = value(found.mean, found.precision), np.random.default_rng(1)
    for _ in range(20):
        turn = 1e-2 * rng.normal(size=(n, n))
        near = found.precision + turn @ found.precision + found.precision @ turn.T
        for other in (near, found.precision * (1 + 0.02 * rng.normal())):
            assert value(found.mean + 0.02 * rng.normal(size=n), other) > best


@pytest.mark.parametrize("spread", [FullSpread, DiagonalSpread])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_never_rises_with_signals_and_noise_of_rows(spread, seed):
    train, _ = preferences(seed)
    problem = CompletionProblem.build(train, 5, biases=True, standard=True)
    known = of_sides((problem.by_row, problem.by_col), (None, None), True, float, 0)
    form = LearnedForm.start(problem, 0, spread, known)
    with make_engine("local", 1) as engine:
        for _ in range(25):
            form.step(engine)
    assert any(prior.effects is not None for prior in form.priors)
    assert np.all(np.diff(form.history[FIRST:]) <= 1e-8)


def test_who_rated_what_helps_where_it_tells_something():
    train, test = preferences(3, 300, 150, rare=3.5)
    without, auto = (
        DropoutCompletion(6, signals=signals, clip=False).fit(train) for signals in (False, "auto")
    )
    assert auto.model_.priors[0].effects is not None
    assert auto.score(test) > 0.98 * without.score(test)


def test_where_it_tells_nothing_auto_leaves_it():
    train, test = preferences(4, liking=0.0)
    without, auto = (
        DropoutCompletion(6, signals=signals, clip=False).fit(train) for signals in (False, "auto")
    )
    assert np.array_equal(auto.predict(test), without.predict(test))


@pytest.mark.parametrize("nu", [4.0, 30.0])
def test_a_rows_share_in_the_noise_is_its_exact_posterior(nu):
    n, e = 7.0, 11.0

    def joint(alpha, power=0.0):
        density = gamma(nu / 2, scale=2 / nu).pdf(alpha)
        return density * alpha ** (n / 2 + power) * np.exp(-alpha * e / 2)

    nu = float(NUS[int(np.searchsorted(NUS, nu))])
    total, first, inverse = (
        scipy.integrate.quad(joint, 0, 40, (power,))[0] for power in (0.0, 1.0, -1.0)
    )
    weight, variance = expected(nu, n, e)
    assert _cost(nu, np.array([n]), np.array([e])) == pytest.approx(-np.log(total), rel=1e-6)
    assert weight == pytest.approx(first / total, rel=1e-6)
    assert variance == pytest.approx(inverse / total, rel=1e-6)
    assert _cost(1e7, np.array([n]), np.array([e])) == pytest.approx(e / 2, rel=1e-4)
    assert _cost(np.inf, np.array([n, 3.0]), np.array([e, 2.0])) == (e + 2.0) / 2
    both = _cost(nu, np.array([n, 3.0]), np.array([e, 2.0]))
    assert both == pytest.approx(-np.log(total) + _cost(nu, np.array([3.0]), np.array([2.0])))


def test_the_law_of_shares_is_the_likeliest():
    rng = np.random.default_rng(2)
    counts = np.array([3, 0, 8, 20, 5, 12])
    for spread in (0.2, 1.0, 3.0):
        e = counts * np.exp(spread * rng.standard_normal(6))
        n, known = counts[counts > 0].astype(float), e[counts > 0]
        nu = NUS[int(np.argmin([_cost(nu, n, known) for nu in NUS]))]
        found = RowNoise.start(6).learn(counts, e)
        assert found.nu == nu
        assert found.learn(counts, e).nu == nu
        weight = (nu + n) / (nu + known) if np.isfinite(nu) else np.ones(5)
        np.testing.assert_allclose(found.weights[counts > 0], weight)
        assert found.weights[1] == 1.0
        assert found.variances[1] == pytest.approx(nu / (nu - 2) if np.isfinite(nu) else 1.0)
        assert found.fixed == pytest.approx(_cost(nu, n, known) - weight @ known / 2)


def test_draws_of_priors_and_noise_have_their_conditional_laws(monkeypatch):
    """From one state, many next steps: gamma precisions, normal means, chi-square noise."""
    monkeypatch.setattr("overt.completion.forms.averaged.BURN_IN", 0)
    train, _ = preferences(8, 24, 15, rare=0.5)
    problem = CompletionProblem.build(train, 2, biases=True, standard=True)
    learned = LearnedForm.start(problem, 0)
    steps = 600
    with make_engine("local", 1) as engine:
        for _ in range(5):
            learned.step(engine)
        form = SampledForm.start(learned, 0)
        form.step(engine)
        U, free = form.means[0].copy(), problem.columns.free(0)
        seen, ratios = [], []
        for seed in range(steps):
            again = copy.deepcopy(form)
            again.seed = seed + 1
            again.step(engine)
            seen.append(again.draws[-1])
            side = problem.by_row
            fitted = np.sum(again.means[0][side.keys] * again.means[1][side.others], axis=1)
            shares = again.weights[0][side.keys] * again.weights[1][side.others]
            ratios.append(float(shares @ (side.values - fitted) ** 2) / again.noise)
    W = U[problem.by_row.counts > 0][:, free].astype(float)
    N, prior = len(W), np.append(np.full(2, 0.05), form.bias_variances[0])
    shape, rate = 1.1 * N / 2, (((W - W.mean(axis=0)) ** 2).sum(axis=0) + 0.1 * N * prior) / 2
    precision = np.array([draw["precision"] for draw in seen])
    assert_mean_within_standard_errors(precision, shape / rate)
    assert_mean_within_standard_errors((precision - shape / rate) ** 2, shape / rate**2)
    standard = (np.array([draw["mean"] for draw in seen]) - W.mean(axis=0)) * np.sqrt(N * precision)
    assert_mean_within_standard_errors(standard, np.zeros(3))
    assert_mean_within_standard_errors(standard**2, np.ones(3))
    n = problem.n_ratings
    assert_mean_within_standard_errors(np.array(ratios), n)
    assert_mean_within_standard_errors((np.array(ratios) - n) ** 2, 2 * n)


def test_noise_of_rows_and_columns_is_found():
    rng = np.random.default_rng(0)
    m, n = 150, 100
    loud = np.where(np.arange(m) % 2 == 0, 0.3, 1.2)
    truth = rng.normal(size=(m, 2)) @ rng.normal(size=(2, n))
    seen = rng.random((m, n)) < 0.4
    values = truth + loud[:, None] * rng.normal(size=(m, n))
    model = DropoutCompletion(4, clip=False).fit(np.where(seen, values, np.nan))
    ratio = model.row_noise_[1::2].mean() / model.row_noise_[::2].mean()
    assert ratio == pytest.approx(16, rel=0.3)
    rows, cols = np.nonzero(~seen)
    mean, std = model.predict(rows, cols, return_std=True)
    inside = np.abs(values[rows, cols] - mean) <= 1.6449 * std
    for part in (0, 1):
        assert inside[rows % 2 == part].mean() == pytest.approx(0.9, abs=0.035)


def test_one_noise_for_all_is_found_too():
    train, _ = preferences(5, liking=0.0, rare=0.0)
    model = DropoutCompletion(4).fit(train)
    assert np.std(model.row_noise_) < 0.15 * np.mean(model.row_noise_)


def test_noise_of_rows_waits_for_the_factors(monkeypatch):
    """Weak factors and rows of very different noise: RMSE is not worse than with one noise."""
    rng = np.random.default_rng(7)
    m, n = 240, 120
    truth = 0.7 * rng.normal(size=(m, 3)) @ rng.normal(size=(3, n))
    values = truth + np.exp(rng.normal(0, 0.5, m))[:, None] * rng.normal(size=(m, n))
    train = np.where(rng.random((m, n)) < 0.15, values, np.nan)
    errors = []
    for nus in (NUS, NUS[-1:]):
        monkeypatch.setattr("overt.completion.forms.noise.NUS", nus)
        model = DropoutCompletion(6, clip=False).fit(train)
        found = model.predict(*np.nonzero(np.isnan(train)))
        errors.append(np.sqrt(np.mean((found - truth[np.isnan(train)]) ** 2)))
    assert errors[0] < errors[1]


def test_draws_count_as_their_noise_allows():
    rng, problem = np.random.default_rng(0), CompletionProblem.build(
        next(preferences(3)), 6, biases=False, standard=True
    )  # fmt: skip
    V = np.eye(6)[np.arange(problem.shape[1]) % 6]
    limit, size = rng.normal(size=(problem.shape[0], 6)), (problem.shape[0], 6)
    means = limit + 0.3 * rng.normal(size=size), V
    draws = [{"U": limit + 1.5 * rng.normal(size=size), "V": V} for _ in range(40)]
    expected = 0.3**2 / (0.3**2 + 1.5**2 / 40)
    assert together(draws, problem, means) == pytest.approx(expected, abs=0.08)
    assert together(draws, problem, (limit, V)) < 0.25
    assert together(draws[:1], problem, means) == 0
    assert together([{"U": limit, "V": V}] * 2, problem, (limit, V)) == 0


def test_fold_in_agrees_with_predict_after_averaging():
    train, _ = preferences(6)
    model = DropoutCompletion(4, average=40, clip=False, tol=1e-6).fit(train)
    here, cols = train.rows == 5, np.arange(train.shape[1])
    row = model.fold_in((train.cols[here], train.values[here]))
    expected, spread = model.predict(np.full(len(cols), 5), cols, return_std=True)
    found, std = row.predict(cols, return_std=True)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    # Of a known row the variance is that of 40 samples, of a new one it is known for each sample.
    noise = model.noise_variance_ * model.row_noise_[5] * model.col_noise_
    factors = std**2 - 0.9 * noise
    assert np.all(factors > 0)
    assert np.all(np.abs(spread**2 - std**2) <= 5 * np.sqrt(2 / 40) * factors)


def test_models_with_signals_and_draws_are_kept(tmp_path):
    train, test = preferences(7)
    model = DropoutCompletion(4, average=3, max_sweeps=6, signals=True).fit(train)
    assert model.model_.priors[0].effects is not None
    model.save(tmp_path)
    again = DropoutCompletion.load(tmp_path)
    for mine, theirs in zip(
        model.predict(test, return_std=True), again.predict(test, return_std=True), strict=True
    ):
        assert np.array_equal(mine, theirs)
    entries = {3: 1.0, 5: -1.0}
    assert np.array_equal(
        model.fold_in(entries).predict([0, 1]), again.fold_in(entries).predict([0, 1])
    )
    assert again.explain(2, 3).signals == model.explain(2, 3).signals != 0
