"""The shrinkage of singular values: lemmas behind it, and the algorithm that the thesis prints."""

from __future__ import annotations

import numpy as np

from overt import spectral
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import Residuals, theorem


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
        yield oracles.relative(lam * h**2 / (r + lam * np.arange(1, r + 1)) + t, g)
        yield float(np.max(np.diff(g), initial=0.0)) / g[0]
        best = spectral.SquaredNuclear().prox(a[:r], lam / r)
        reached = np.sum((a[:r] - best) ** 2) + np.sum(a[r:] ** 2) + lam / r * best.sum() ** 2
        yield oracles.relative(reached, g[max(int(np.count_nonzero(best)), 1) - 1])
    return oracles.EXACT, f"{20 * scale} spectra, written out"


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
        yield oracles.relative(s - lam / (r + lam * rho) * s.sum(), exact)
        yield oracles.relative(spectral.SquaredNuclear().prox(s, lam / r), exact)
    return oracles.EXACT, "linear equations of up to four values, all of which are kept"


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
        yield oracles.relative(values[0], best)
        reached = np.sum((s - stated) ** 2) + lam / r * stated.sum() ** 2
        yield oracles.relative(reached, best)
        printed = min(printed, oracles.relative(values[1], best))
    return oracles.DESCENT, "objective of the printed and the right shrinkage, and descent", printed


def _shrunk(s: np.ndarray, lam: float, r: int, offset: int) -> float:
    """Return the objective after the shrinkage of Algorithm 3 with `offset` for r."""
    h, j = np.cumsum(s), np.arange(1, len(s) + 1)
    rho = int(np.max(np.flatnonzero(s > lam * h / (offset + lam * j)) + 1, initial=1))
    a = np.maximum(s - lam * h[rho - 1] / (offset + lam * rho), 0) * (j <= rho)
    return float(np.sum((s - a) ** 2) + lam / r * a.sum() ** 2)
