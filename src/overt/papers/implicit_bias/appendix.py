"""Appendix A: the explicit penalty and two lemmas on shrinkage."""

from __future__ import annotations

import numpy as np

from overt import noise, penalty, spectral
from overt._types import Floats
from overt.papers import oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, Rng, statement


@statement("Lemma A.1", "A", how="symbolic", identity="units")
def shallow_penalty(scale: int, rng: Rng) -> Residuals:
    r"""The explicit penalty.

    Dropout on the hidden layer of x -> U V'x adds exactly lam sum_i |u_i|^2 v_i'C v_i to the
    expected squared loss, whatever the targets.

    TeX: Dropout on the hidden layer of $x \to U V^\top x$ adds exactly $\lambda \sum_i |u_i|^2
    v_i^\top C v_i$ to the expected squared loss, whatever the targets.
    """
    d = 4 + scale
    for _ in range(4):
        U, V, X, Y = oracles.two_layers(rng, d)
        probs = rng.uniform(0.1, 0.8, d)
        z, p = oracles.masks(1 - probs)
        exact = oracles.added_loss(Y, U, X @ V, z / (1 - probs), p)
        stated = penalty.shallow(U, V, noise.Dropout(probs), X.T @ X / len(X))
        yield relative(stated, exact)
    return EXACT, f"the loss over all {2**d} masks, one probability per unit"


@statement("Lemma A.2", "A", how="sampled")
def shrinkage_inverse(scale: int, rng: Rng) -> Residuals:
    r"""An inverse.

    The equations of the best nonzero values, (I + (lam/r) 11') a = s, have the solution a = s -
    lam/(r + lam rho) 11's, which is the shrinkage.

    TeX: The equations of the best nonzero values, $(I + (\lambda/r) 11^\top ) a = s$, have the
    solution $a = s - \lambda/(r + \lambda \rho) 11^\top s$, which is the shrinkage.
    """
    for rho in range(1, 4 + scale):
        r, lam, s = rho + 2, float(rng.uniform(0.1, 3)), rng.uniform(5, 6, rho)
        exact = np.linalg.solve(np.eye(rho) + lam / r, s)
        yield relative(s - lam / (r + lam * rho) * s.sum(), exact)
        yield relative(spectral.SquaredNuclear().prox(s, lam / r), exact)
    return EXACT, "linear equations of up to four values, none of which is 0"


@statement("Lemma A.3", "A", how="symbolic", identity="algebra")
def shrinkage_monotone(scale: int, rng: Rng) -> Residuals:
    r"""The objective falls with the rank.

    The objective g(rho) with the top rho values shrunk by lam h_rho/(r + lam rho) is lam
    h_rho^2/(r + lam rho) plus the squares of the rest, never grows, and at the optimal rho is
    the optimum.

    TeX: The objective $g(\rho)$ with the top $\rho$ values shrunk by $\lambda h_\rho/(r +
    \lambda \rho)$ is $\lambda h_\rho^2/(r + \lambda \rho)$ plus the squares of the rest, never
    grows, and at the optimal $\rho$ is the optimum.
    """
    for _ in range(20 * scale):
        r = int(rng.integers(1, 8))
        lam = float(rng.exponential() + 0.05)
        a = np.sort(rng.exponential(size=r + 2))[::-1]

        def value(shrunk: Floats, a: Floats = a, r: int = r, lam: float = lam) -> float:
            return float(np.sum((a - shrunk) ** 2) + lam / r * shrunk.sum() ** 2)

        g = []
        for rho in range(1, r + 1):
            h = a[:rho].sum()
            shrunk = np.where(np.arange(r + 2) < rho, a - lam * h / (r + lam * rho), 0)
            g.append(value(shrunk))
            yield relative(lam * h**2 / (r + lam * rho) + np.sum(a[rho:] ** 2), g[-1])
        yield float(np.max(np.diff(g), initial=0.0)) / g[0]
        best = np.append(spectral.SquaredNuclear().prox(a[:r], lam / r), [0, 0])
        yield relative(value(best), g[max(int(np.count_nonzero(best)), 1) - 1])
    return EXACT, f"{20 * scale} spectra, written out"
