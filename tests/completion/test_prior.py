"""Priors with features against dense Gaussians."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from overt.completion.features import MISSINGNESS, Features, GivenFeatures
from overt.completion.prior import (
    SCALES,
    Prior,
    Sums,
    posterior_effects,
    scale_evidence,
)


def two_blocks(N=12, n=3):
    """Features of two blocks, rows' means, and one covariance S for all rows."""
    rng = np.random.default_rng(0)
    everyone = np.ones(N, bool)
    blocks = {
        MISSINGNESS: GivenFeatures(rng.normal(size=(N, 4)), everyone),
        "features": GivenFeatures(rng.normal(size=(N, 2)), everyone),
    }
    features = Features.build(blocks, everyone, float, 0)
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
    found = scale_evidence(0, A.T @ x[:, None], np.zeros(1), features, held)[:, 0]
    mine, other = (A[:, member > 0] for member in features.directions.members)
    base = np.eye(len(x)) + 0.7 * other @ other.T
    dense = [
        multivariate_normal(cov=base + s * mine @ mine.T).logpdf(x)
        for s in SCALES[::10]
    ]
    np.testing.assert_allclose(found[::10], dense - dense[0], atol=1e-9)


def test_effects_are_a_ridge_regression_with_its_covariance():
    features, W, *_ = two_blocks()
    A, scales = features.scores, np.array([[0.5, 0.0, 2.0], [0.1, 3.0, 0.0]])
    found = posterior_effects(np.eye(3), A.T @ W, features, scales)
    for c in range(3):
        D = np.diag(scales[:, c] @ features.directions.members)
        G = D @ A.T @ np.linalg.inv(np.eye(len(W)) + A @ D @ A.T)
        np.testing.assert_allclose(found.H[:, c], G @ W[:, c], atol=1e-10)
        np.testing.assert_allclose(found.C[c], D - G @ A @ D, atol=1e-10)


def test_cost_is_the_expected_log_density_and_a_step_lowers_it():
    features, W, S, sums, prior = two_blocks()
    N, n = W.shape
    with_effects = prior.learn(sums, features)
    X, scales = with_effects.effects.X, with_effects.effects.scales
    A, x = features.scores, np.linalg.solve(X, (W - with_effects.mean).T)
    white = np.linalg.solve(X, np.linalg.solve(X, S).T)
    expected = 2 * N * np.linalg.slogdet(X)[1] - N * np.linalg.slogdet(S)[1] - N * n
    for c in range(n):
        Omega = (
            np.eye(N) + A @ np.diag(scales[:, c] @ features.directions.members) @ A.T
        )
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
