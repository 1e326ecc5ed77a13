"""One-way jumps, the appendix: sets that SGD does not leave, and how it gets there."""

from __future__ import annotations

import math

import numpy as np

from overt.decay import ApproximateRankSet, layers, two_by_two
from overt.theorems._oracles import chain
from overt.theorems.base import Residuals, theorem
from overt.theorems.decay import SOURCE, largest_norm, sgd_step, soft_rank


@theorem(
    "decay-bounded",
    source=f"{SOURCE}, Lemma D.1, Propositions D.2 and D.3, Theorem D.4",
    claim="|W_l|^2 <= C is kept by a step of SGD if C >= C_1/(2 lam) and eta <= C_1 / (4 (2 (C_1 + "
    "C^L) C^(L-1) + lam^2 C)); the squared error is at most 2 (C_1 + C^L), and the step makes the "
    "imbalance at most (1 - eta lam)^2 times what it was, plus 4 eta^2 (C_1 + C^L) C^(L-1)",
    assumes="the appendix's step (1 - eta lam) W - eta T; C_1 the largest squared entry",
    correction="Theorem D.4 prints C <= 1/(2 lam), for which steps leave; D.2 prints C^L for "
    "C^(L-1)",
)
def _bounded(scale: int, rng: np.random.Generator) -> Residuals:
    problem, lam, printed = two_by_two(0.25), 0.4, 0.0
    for factor in (1.0, 2.0, 0.2):
        C = factor / (2 * lam)
        eta = 1 / (4 * (2 * (1 + C**3) * C**2 + lam**2 * C))
        for trial in range(60 * scale):
            W = [rng.normal(size=shape) for shape in ((3, 2), (3, 3), (2, 3))]
            if trial % 2:  # all along one direction, below the entry
                W = [np.outer(*(np.eye(k)[0] for k in w.shape)) for w in W]
            W = [math.sqrt(C) * w / np.linalg.norm(w) for w in W]
            n = trial // 2 % 3
            moved = sgd_step(W, problem, n, eta, lam)
            after = largest_norm(moved) / C - 1
            error = chain(W)[problem.rows[n], problem.cols[n]] - problem.values[n]
            yield max(0.0, error**2 - 2 * (1 + C**3))
            grown = layers.imbalance(moved) - (1 - eta * lam) ** 2 * layers.imbalance(W)
            yield max(0.0, grown - 4 * eta**2 * (1 + C**3) * C**2)
            if factor < 1:
                printed = max(printed, after)
            else:
                yield max(after, 0.0)
    return 1e-12, "steps from the boundary, at C_1/(2 lam), twice that, and a fifth", printed


@theorem(
    "decay-reached",
    source=f"{SOURCE}, Theorems 3.2, B.2, E.1 and E.2",
    claim="SGD at eta <= lam e_1/(4 (C_1 + C^L) C^(L-1) + 2 lam^2 C) is in B_(C, e_1) after "
    "log(2 C_0/e_1)/(eta lam) steps; if the next log(4 (w-r) C/(alpha e_2))/(2 eta lam) all draw "
    "from r columns, which has probability at least (r/n)^T, it is in B_r",
    assumes="[[1, *], [.25, 1]], L = 3, r = 1, a coarse alpha = .5; w the width, where n = "
    "min(d_in, d_out) is printed, and B.2 prints eta without 2 lam^2 C",
)
def _reached(scale: int, rng: np.random.Generator) -> Residuals:
    problem, lam, width, C, C0, slack, alpha = two_by_two(0.25), 1.0, 2, 1.0, 1.5, 0.4, 0.5
    e1 = alpha * slack / (4 * (width - 1) * 2)
    eta = min(1 / (4 * (2 * (1 + C0**3) * C0**2 + lam**2 * C0)),
              lam * e1 / (4 * (1 + C**3) * C**2 + 2 * lam**2 * C))  # fmt: skip
    W = [rng.normal(size=shape) for shape in ((width, 2), (width, width), (2, width))]
    W = [math.sqrt(C0) * w / np.linalg.norm(w) for w in W]
    for _ in range(math.ceil(math.log(2 * C0 / e1) / (eta * lam))):
        W = sgd_step(W, problem, int(rng.integers(3)), eta, lam)
    yield largest_norm(W) / C - 1
    yield layers.imbalance(W) / e1 - 1
    column = np.flatnonzero(problem.cols == 0)
    yield 0.5 - len(column) / len(problem)  # r/n is the least chance of a draw from J
    T = math.ceil(math.log(4 * (width - 1) * C / (alpha * slack)) / (2 * eta * lam))
    first = np.linalg.svd(W[0], compute_uv=False)[0]
    for _ in range(T):
        W = sgd_step(W, problem, int(rng.choice(column)), eta, lam)
    yield np.linalg.svd(W[0], compute_uv=False)[1] - first * (1 - eta * lam) ** T
    region = ApproximateRankSet(1, 4 * e1, slack, alpha, C)
    yield float(not region.contains(W))
    return 1e-9, f"{T} draws from one column after the first phase, rate {eta:.1e}"


@theorem(
    "decay-rank-step",
    source=f"{SOURCE}, Lemmas D.6, D.7 and D.8",
    claim="Beyond its linear part a step of SGD raises sum_i f_alpha(s_i^2) by at most beta = 2 "
    "eta^2 (2 (C_1 + C^L) C^(L-1) + lam^2 C) sum_i f_alpha'(s_i^2); at Theorem D.5's largest eta "
    "and e_1, -2 eta delta + 2 eta E + beta <= 0 if the sum is above r + e_2/2, and <= e_2/2 else",
    assumes="D.6 at any eta, here up to .3; D.7 prints k for r",
)
def _rank_step(scale: int, rng: np.random.Generator) -> Residuals:
    problem, L, r, slack = two_by_two(0.25), 3, 1, 0.4
    for trial in range(60 * scale):
        alpha, lam, eta = rng.uniform(0.05, 1), rng.uniform(0.1, 2), 0.3 / 10 ** (trial % 3)
        W = [rng.uniform(0, 1) * rng.normal(size=shape) for shape in [(2, 2)] * L]
        C, moved = largest_norm(W), sgd_step(W, problem, trial % 3, eta, lam)
        D = 2 * (1 + C**L) * C ** (L - 1) + lam**2 * C
        for w, after in zip(W, moved, strict=True):
            s, V = np.linalg.eigh(w.T @ w)
            slope = np.maximum(2 / alpha - 2 * s / alpha**2, 0)
            linear = 2 * (after - w).T @ w
            found = soft_rank([after], alpha) - soft_rank([w], alpha)
            yield found - np.trace(V * slope @ V.T @ linear) - 2 * eta**2 * D * slope.sum()
    for _ in range(200 * scale):  # spectra alone, with all constants at their largest
        C, lam, n = rng.uniform(0.2, 2), rng.uniform(0.1, 2), 4
        D, noise = 2 * (1 + C**L) * C ** (L - 1) + lam**2 * C, math.sqrt(2 * (1 + C**L))
        alpha = lam**2 / noise**2
        eta = min(lam * alpha * slack / (32 * n * (r + 1) * D), 2 * (r + 1) / lam)
        t = np.append(rng.choice([1.0, 0.99, 0.7]), rng.dirichlet(np.ones(n - 1)) * slack)
        x = alpha * (1 - np.sqrt(1 - np.minimum(t * rng.uniform(0.9, 1), 1)))
        slope, soft = 2 / alpha - 2 * x / alpha**2, soft_rank([np.diag(np.sqrt(x))], alpha)
        E = lam * alpha * slack / (32 * n * (r + 1)) * slope.sum()
        change = -2 * eta * slope @ (lam * x - noise * x ** (L / 2)) + 2 * eta * E
        change += 2 * eta**2 * D * slope.sum()
        yield change / eta if soft > r + slack / 2 else change - slack / 2
    return 1e-12, "steps from random weights; spectra at the theorem's largest rate and imbalance"


@theorem(
    "decay-product-rank",
    source=f"{SOURCE}, Proposition F.1",
    claim="In B_r the product has sum_i f_alpha(s_i(A'A)) <= r + e_2 + (L^2/alpha) C^(L-1) e_1",
    assumes="alpha <= 1; no factor n is needed, as |P E P'|_* <= |P|_F^2 |E|_2",
    correction="alpha <= 1 is used and not stated: at alpha = 1.9, which Theorem B.1 allows for "
    "lam >= 12, three balanced values 1.05 in every layer exceed the bound",
)
def _product_rank(scale: int, rng: np.random.Generator) -> Residuals:
    for trial in range(100 * scale):
        n, L, alpha = rng.integers(2, 6), 3 + trial % 2, 10 ** rng.uniform(-2, 0)
        values, Q = rng.uniform(0, 1.5, n) ** 4, np.linalg.qr(rng.normal(size=(n, n)))[0]
        noise = 10.0 ** -(trial % 5) * rng.normal(size=(L, n, n))
        W = list(Q * np.sqrt(values) @ Q.T + noise)
        room = L**2 / alpha * largest_norm(W) ** (L - 1) * layers.imbalance(W)
        yield soft_rank([chain(W)], alpha) - soft_rank(W, alpha) - room
    equal = [math.sqrt(1.05) * np.eye(3)] * 3
    printed = soft_rank([chain(equal)], 1.9) - soft_rank(equal, 1.9)
    return 1e-12, "random layers, nearly balanced and far from it", printed
