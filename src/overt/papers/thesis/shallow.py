"""Chapter 2: shallow linear networks."""

from __future__ import annotations

import numpy as np

from overt import spectral
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, relative
from overt.papers.records import Residuals, Rng, statement


@statement("Algorithm 3", "2.4")
def solver_shrinkage(rng: Rng) -> Residuals:
    r"""The polynomial-time solver.

    The solver keeps rho = max{j : s_j > lam j kappa_j/(r + lam j)} values and shrinks them by
    lam rho kappa_rho/(r + lam rho), kappa_j the mean of the top j.

    Printed: The paper has 1 + lam j for r + lam j, here and in the shrinkage; the paper's own
    algorithm has r.

    TeX: The solver keeps $\rho = \max\{j : s_j > \lambda j \kappa_j/(r + \lambda j)\}$ values
    and shrinks them by $\lambda \rho \kappa_\rho/(r + \lambda \rho)$, $\kappa_j$ the mean of
    the top $j$.
    """
    printed = np.inf
    lam = 0.7
    for r in (2, 3):
        s = rng.uniform(0.5, 3, r)
        M = oracles.with_spectrum(rng, 4, 4, s)
        Gamma = lam * np.eye(r)
        objective = descent.factor_objective(M, Gamma)
        best, _ = descent.best_descent(objective, 8 * r, 4, rng)
        values = []
        for weight in (lam / r, lam):  # 1 + lam j in print is r + lam j for r = 1
            a = spectral.SquaredNuclear().prox(s, weight)
            value = oracles.envelope(s, a, lam / r)
            values.append(value)
        ours, theirs = values
        yield relative(ours, best)
        printed = min(printed, relative(theirs, best))
    detail = "objective of the printed and the right shrinkage, and descent"
    return DESCENT, detail, printed
