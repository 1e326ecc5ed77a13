"""Optima of shallow networks: shrunk spectra, and equal shares of units and of blocks."""

from __future__ import annotations

import numpy as np

from overt import equalize, noise, penalty, spectral
from overt.linear.landscape import landscape
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import DESCENT, EXACT, Residuals, relative, theorem


@theorem(
    "untied-equalized",
    source="Implicit bias of dropout, Theorem 3.4",
    claim="Every global optimum (U, V) with untied weights is equalized, |u_i||v_i| the same for "
    "all i, and its penalty is (lam/r) |UV'|_*^2",
)
def _untied(scale: int, rng: np.random.Generator) -> Residuals:
    runs = 0
    for width, lam in ((2, 0.5), (4, 1.0)):
        M = oracles.with_spectrum(rng, 4, 3, [3.0, 2.0, 1.0])
        objective = descent.factor_objective(M, lam * np.eye(width))
        found = [descent.descend(objective, rng.normal(size=7 * width)) for _ in range(4 * scale)]
        best = min(value for value, _ in found)
        for value, theta in found:
            if value > best * (1 + 1e-9):
                continue
            U, V = descent.factors(theta, 4, width)
            share = np.linalg.norm(U @ V.T, "nuc") / width
            yield relative(equalize.importance(U, V), np.full(width, share))
            cost = penalty.shallow(U, V, noise.Dropout(lam / (1 + lam)))
            yield relative(cost, lam * width * share**2)
            runs += 1
    return 1e-5, f"{runs} descents that reached the least objective"


@theorem(
    "critical-below-target",
    source="Implicit bias of dropout, Lemma D.1; thesis, Lemma 3",
    claim="At every critical point of the tied problem M - UU' is positive semi-definite",
    assumes="M positive semi-definite",
)
def _below(scale: int, rng: np.random.Generator) -> Residuals:
    seen = 0
    for lam in (0.2, 5.0):
        Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        M = Q * np.sort(rng.uniform(0.2, 3, 4)) @ Q.T
        for point in landscape(M, 3, lam).points:
            yield max(0.0, -float(np.linalg.eigvalsh(M - point.U @ point.U.T)[0]))
            gradient = descent.tied_objective(M, lam, 3)(point.U.ravel())[1]
            yield float(np.linalg.norm(gradient))
            seen += 1
    return 1e-8, f"{seen} critical points: their gradients, and eigenvalues of M - UU'"


@theorem(
    "dropblock-balanced",
    source="Structured dropout, Definition 2.4 and Theorems 2.5 and 2.6",
    claim="With enough blocks the least objective of the factors is that of the convex problem, "
    "and there every block's product U_i V_i' has the same norm",
    assumes="the width-adjusted probability of eq. 7; four blocks of two for three singular values",
)
def _balanced(scale: int, rng: np.random.Generator) -> Residuals:
    b, blocks, trials = 2, 4, 3 * scale
    for _ in range(trials):
        m, beta = np.sort(rng.uniform(0.8, 3, 3))[::-1], float(rng.uniform(0.3, 1))
        block = noise.DropBlock(beta / (1 + beta), b).at_width(b * blocks)
        objective = descent.factor_objective(np.diag(m), block.characteristic(b * blocks))
        value, theta = descent.best_descent(objective, 6 * b * blocks, 4, rng)
        a = spectral.KSupport(b).prox(m, beta)
        yield relative(descent.block_value(m, a, b, beta), value)
        U, V = descent.factors(theta, 3, b * blocks)
        yield relative(U @ V.T, np.diag(a)) ** 2
        parts = [np.linalg.norm(U[:, i : i + b] @ V[:, i : i + b].T) for i in range(0, 8, b)]
        yield (np.ptp(parts) / np.mean(parts)) ** 2
    return DESCENT, f"the best of 4 descents for each of {trials} spectra"


@theorem(
    "shrinkage-monotone",
    source="Implicit bias of dropout, Lemma A.3; thesis, Lemma 21",
    claim="The objective g(rho) with the top rho values shrunk by lam h_rho/(r + lam rho) is "
    "lam h_rho^2/(r + lam rho) plus the squares of the rest, never grows, and at the optimal rho "
    "is the optimum",
)
def _monotone(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(20 * scale):
        r, lam = int(rng.integers(1, 8)), float(rng.exponential() + 0.05)
        a = np.sort(rng.exponential(size=r + 2))[::-1]
        g = []
        for rho in range(1, r + 1):
            shrunk = np.where(np.arange(r + 2) < rho, a - lam * a[:rho].sum() / (r + lam * rho), 0)
            g.append(np.sum((a - shrunk) ** 2) + lam / r * shrunk.sum() ** 2)
        h, t = np.cumsum(a)[:r], np.cumsum((a**2)[::-1])[::-1][1 : r + 1]
        yield relative(lam * h**2 / (r + lam * np.arange(1, r + 1)) + t, g)
        yield float(np.max(np.diff(g), initial=0.0)) / g[0]
        best = spectral.SquaredNuclear().prox(a[:r], lam / r)
        reached = np.sum((a[:r] - best) ** 2) + np.sum(a[r:] ** 2) + lam / r * best.sum() ** 2
        yield relative(reached, g[max(int(np.count_nonzero(best)), 1) - 1])
    return EXACT, f"{20 * scale} spectra, written out"


@theorem(
    "shrinkage-inverse",
    source="Implicit bias of dropout, Lemma A.2; thesis, Lemma 20",
    claim="The equations of the best kept values, (I + (lam/r) 11') a = s, have the solution "
    "a = s - lam/(r + lam rho) 11's, which is the shrinkage",
)
def _inverse(scale: int, rng: np.random.Generator) -> Residuals:
    for rho in range(1, 4 + scale):
        r, lam, s = rho + 2, float(rng.uniform(0.1, 3)), rng.uniform(5, 6, rho)
        exact = np.linalg.solve(np.eye(rho) + lam / r, s)
        yield relative(s - lam / (r + lam * rho) * s.sum(), exact)
        yield relative(spectral.SquaredNuclear().prox(s, lam / r), exact)
    return EXACT, "linear equations of up to four values, all of which are kept"


@theorem(
    "algorithm-3",
    source="Thesis, Algorithm 3",
    claim="The solver keeps rho = max{j : s_j > lam j kappa_j/(r + lam j)} values and shrinks them "
    "by lam rho kappa_rho/(r + lam rho), kappa_j the mean of the top j",
    correction="r + lam j is printed as 1 + lam j, here and in the shrinkage; the paper's own "
    "algorithm has r",
)
def _algorithm(scale: int, rng: np.random.Generator) -> Residuals:
    printed = np.inf
    for r in (2, 3):
        s, lam = np.sort(rng.uniform(0.5, 3, r))[::-1], 0.7
        M = oracles.with_spectrum(rng, 4, 4, s)
        objective = descent.factor_objective(M, lam * np.eye(r))
        best = descent.best_descent(objective, 8 * r, 4, rng)[0]
        values = [_shrunk(s, lam, r, offset) for offset in (r, 1)]
        stated = spectral.SquaredNuclear().prox(s, lam / r)
        yield relative(values[0], best)
        reached = np.sum((s - stated) ** 2) + lam / r * stated.sum() ** 2
        yield relative(reached, best)
        printed = min(printed, relative(values[1], best))
    return DESCENT, "objective of the printed and the right shrinkage, and descent", printed


def _shrunk(s: np.ndarray, lam: float, r: int, offset: int) -> float:
    """Return the objective after the shrinkage of Algorithm 3 with `offset` for r."""
    h, j = np.cumsum(s), np.arange(1, len(s) + 1)
    rho = int(np.max(np.flatnonzero(s > lam * h / (offset + lam * j)) + 1, initial=1))
    a = np.maximum(s - lam * h[rho - 1] / (offset + lam * rho), 0) * (j <= rho)
    return float(np.sum((s - a) ** 2) + lam / r * a.sum() ** 2)
