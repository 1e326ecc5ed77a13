"""Deep linear networks with dropout on every hidden layer: penalty, norm, optima."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from overt import equalize, penalty, spectral
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import DESCENT, EXACT, STRICT, Residuals, relative, theorem, worst


@theorem(
    "deep-penalty",
    source="Thesis, Proposition 8",
    claim="Dropout in every hidden layer of a deep linear network adds sum_l lam^l R_l over "
    "choices of l pivot layers, which propagating second moments gives without enumeration",
)
def _deep_penalty(scale: int, rng: np.random.Generator) -> Residuals:
    for widths in [(3,), (3, 2), (2, 3, 2), (3, 2, 3, 2)][: 3 + scale // 4]:
        weights, C = oracles.deep_layers(rng, widths), oracles.second_moment(rng, 3)
        probs = [float(q) for q in rng.uniform(0.1, 0.7, len(widths))]
        prob = probs[0]
        exact = oracles.deep_added_loss(weights, probs, C)
        pivots = oracles.pivot_terms(weights, C)
        same = sum((prob / (1 - prob)) ** (i + 1) * R for i, R in enumerate(pivots))
        yield relative(penalty.deep(weights, probs, C), exact)
        yield relative(penalty.deep(weights, prob, C), same)
        yield relative(penalty.deep_terms(weights, C), pivots)
    return EXACT, "all masks, and all pivots as printed, up to 3 or 4 layers"


@theorem(
    "deep-rescaling",
    source="Thesis, Remark 7",
    claim="Moving scale between layers changes no term R_l of the deep penalty, and the last one "
    "is the squared l2 path norm",
    assumes="E[x x'] = I for the path norm",
)
def _deep_rescaling(scale: int, rng: np.random.Generator) -> Residuals:
    widths = (2, 3, 2)[: 2 + scale // 2]
    weights, C = oracles.deep_layers(rng, widths), oracles.second_moment(rng, 3)
    factors = rng.uniform(0.2, 5, len(weights))
    factors /= np.prod(factors) ** (1 / len(factors))
    moved = [factor * W for factor, W in zip(factors, weights, strict=True)]
    paths = oracles.path_sum(weights)
    yield relative(penalty.deep_terms(moved, C), oracles.pivot_terms(weights, C))
    yield relative(penalty.deep_terms(weights)[-1], paths)
    yield relative(penalty.path_norm(weights) ** 2, paths)
    return EXACT, "pivots and paths written out, before and after rescaling"


@theorem(
    "deep-lower-bound",
    source="Thesis, Lemma 7",
    claim="No deep linear network costs less under dropout than nu |W C^(1/2)|_*^2 of its map W",
)
def _deep_lower_bound(scale: int, rng: np.random.Generator) -> Residuals:
    tightest = math.inf
    for trial in range(8 * scale):
        widths = [int(n) for n in rng.integers(1, 4, size=int(rng.integers(1, 4)))]
        probs = [float(q) for q in rng.uniform(0.1, 0.7, len(widths))]
        C = oracles.second_moment(rng, 3)
        # Near equalized networks the bound is almost attained, so that it cannot hide slack.
        weights = equalize.rank_one_deep(rng.normal(size=2), rng.normal(size=3), widths)
        size = 1.0 if trial % 2 else 1e-3
        weights = [W + size * rng.normal(size=W.shape) for W in weights]
        nuclear = float(np.linalg.norm(oracles.chain(weights) @ oracles.power(C, 0.5), "nuc"))
        bound = spectral.nu(widths, probs) * nuclear**2
        exact = oracles.deep_added_loss(weights, probs, C)
        yield max(bound / exact - 1, 0.0)
        tightest = min(tightest, exact / bound - 1)
    return EXACT, f"relative violation; the closest network is {tightest:.1e} above"


@theorem(
    "nu-product",
    source="Thesis, Definition 4",
    claim="The effective strength of deep dropout, a sum over all choices of hidden layers, is the "
    "product nu = prod_j (1 + lam_j/d_j) - 1",
)
def _nu_product(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(5 * scale):
        k = int(rng.integers(1, 7))
        widths = [int(d) for d in rng.integers(1, 50, size=k)]
        probs = [float(q) for q in rng.uniform(0, 0.9, size=k)]
        terms = [q / (1 - q) / d for q, d in zip(probs, widths, strict=True)]
        exact = sum(
            math.prod(chosen) for size in range(1, k + 1) for chosen in combinations(terms, size)
        )
        yield relative(spectral.nu(widths, probs), exact)
    return EXACT, "the sum over all choices of layers, up to six"


@theorem(
    "rank-one-equalized",
    source="Thesis, Proposition 1",
    claim="Every map of rank one has an equalized deep network, whose penalty is exactly "
    "nu |W C^(1/2)|_*^2",
)
def _rank_one_equalized(scale: int, rng: np.random.Generator) -> Residuals:
    for widths in [(3,), (2, 3), (3, 2, 3)][: 2 + scale // 2]:
        u, v, C = rng.normal(size=2), rng.normal(size=4), oracles.second_moment(rng, 4)
        probs = [float(q) for q in rng.uniform(0.1, 0.7, len(widths))]
        weights = equalize.rank_one_deep(u, v, widths)
        nuclear = float(np.linalg.norm(np.outer(u, v) @ oracles.power(C, 0.5)))
        exact = oracles.deep_added_loss(weights, probs, C)
        yield relative(oracles.chain(weights), np.outer(u, v))
        yield relative(spectral.nu(widths, probs) * nuclear**2, exact)
        yield worst(*map(abs, equalize.equalization_gaps(weights, C)))
    return EXACT, "its loss over all masks, its map and its equalization gaps"


@theorem(
    "deep-optimum",
    source="Thesis, Theorem 10",
    claim="If the first singular value of Cyx C^(-1/2) leads by enough, the best deep linear "
    "network has rank one and shrinks it by 1/(1 + nu)",
    assumes="s_1 - s_2 >= s_2 / nu",
)
def _deep_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    networks = [((2, 2), (0.5, 0.5)), ((3, 2), (0.4, 0.6)), ((2, 2, 2), (0.5,) * 3)]
    for widths, probs in networks[: 1 + scale]:
        nu, C = spectral.nu(widths, probs), oracles.second_moment(rng, 3)
        second = 0.9 * nu / (1 + nu)
        M = oracles.with_spectrum(rng, 2, 3, [1.0, second]) @ oracles.power(C, -0.5)
        best, W = descent.deep_descent(M, C, widths, probs, 6 * scale, rng)
        A = spectral.SquaredNuclear().matrix_prox(M @ oracles.power(C, 0.5), nu)
        value = second**2 + nu / (1 + nu)
        yield relative(value, best)
        yield relative(A @ oracles.power(C, -0.5), W) ** 2
    return DESCENT, f"objective and map of the best of {6 * scale} descents over all masks"


@theorem(
    "deep-single-output",
    source="Thesis, Corollary 1",
    claim="A deep linear network with one output learns the least-squares solution divided by "
    "1 + nu",
    correction="Cyx / (1 + nu) is printed, without the factor C^(-1)",
)
def _deep_single_output(scale: int, rng: np.random.Generator) -> Residuals:
    widths, probs = (2, 3), (0.4, 0.3)
    C, w = oracles.second_moment(rng, 3), rng.normal(size=(1, 3))
    _, W = descent.deep_descent(w, C, widths, probs, 6 * scale, rng)
    Cyx, nu = w @ C, spectral.nu(widths, probs)
    detail = f"squared distance to the best of {6 * scale} descents over all masks"
    stated, printed = Cyx @ np.linalg.inv(C) / (1 + nu), Cyx / (1 + nu)
    yield relative(stated, W) ** 2
    return DESCENT, detail, relative(printed, W) ** 2


@theorem(
    "deep-without-gap",
    source="Thesis, Theorem 9",
    claim="Without a leading singular value, the convex problem of deep dropout is only a lower "
    "bound on what a network can reach",
    assumes="singular values (1, .95), two hidden layers of two units, drop probability 1/2",
)
def _deep_without_gap(scale: int, rng: np.random.Generator) -> Residuals:
    widths, probs, s = (2, 2), (0.5, 0.5), np.array([1.0, 0.95])
    nu = spectral.nu(widths, probs)
    a = spectral.SquaredNuclear().prox(s, nu)
    bound = float(np.sum((s - a) ** 2) + nu * np.sum(a) ** 2)
    M = oracles.with_spectrum(rng, 2, 2, s)
    best, _ = descent.deep_descent(M, np.eye(2), widths, probs, 6 * scale, rng)
    excess = best / bound - 1
    yield worst(0.0, STRICT - excess)
    return DESCENT, f"the best of {6 * scale} descents lies {excess:.1%} above the bound"
