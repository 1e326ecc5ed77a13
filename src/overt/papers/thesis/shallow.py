"""Chapter 2: shallow linear networks."""

from __future__ import annotations

import numpy as np

from overt import spectral
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, relative
from overt.papers.records import Residuals, Rng, item, statement


def _shrunk(s: np.ndarray, lam: float, r: int, offset: int) -> float:
    """Return the objective after the shrinkage of Algorithm 3 with `offset` for r."""
    h, j = np.cumsum(s), np.arange(1, len(s) + 1)
    rho = int(np.max(np.flatnonzero(s > lam * h / (offset + lam * j)) + 1, initial=1))
    a = np.maximum(s - lam * h[rho - 1] / (offset + lam * rho), 0) * (j <= rho)
    return float(np.sum((s - a) ** 2) + lam / r * a.sum() ** 2)


@statement("Algorithm 3", "2.4", how="sampled")
def solver_shrinkage(scale: int, rng: Rng) -> Residuals:
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
    return (
        DESCENT,
        "objective of the printed and the right shrinkage, and descent",
        printed,
    )


item("Definition 1", "2.1", "Equalized weights", by="equalizer", how="definition")
item("Figure 2-1", "2.1", "The landscape of two units", by="dropout-fig1")
item("Theorem 1", "2.1", "Every weight matrix can be equalized", by="equalizer")
item("Algorithm 2", "2.1", "The equalizer", by="equalizer")
item("Theorem 2", "2.1", "Tied global optima are equalized", by="equalized-optimum")
item("Theorem 3", "2.1", "The tied optimum", by="tied-optimum")
item("Remark 1", "2.1", "The problem it solves", by="tied-optimum")
item("Remark 2", "2.2", "Rescaling invariance", by="rescaling-invariance")
item(
    "Definition 2",
    "2.2",
    "Jointly equalized weights",
    by="equalized-product",
    how="definition",
)
item("Theorem 4", "2.2", "Every network can be equalized", by="equalized-product")
item("Theorem 5", "2.2", "Untied global optima are equalized", by="untied-equalized")
item("Remark 3", "2.2", "The problem Theorem 6 solves", by="shallow-optimum")
item("Theorem 6", "2.2", "The untied optimum", by="shallow-optimum")
item("Lemma 1", "2.3.1", "Local optima are equalized", by="equalized-optimum")
item("Definition 3", "2.3.2", "Strict saddles", by="strict-saddle", how="definition")
item("Figure 2-2", "2.3.2", "Dropout from two starts", by="dropout-fig2")
item(
    "Theorem 7",
    "2.3.2",
    "No spurious minima",
    by=("tied-landscape", "strict-saddle"),
    open="stronger than printed",
)
item(
    "Remark 4",
    "2.4",
    "Its cost",
    how="not checked",
    open=(
        "an order of growth, each term the textbook cost of the step that it names; no "
        "run decides an O()"
    ),
)
item("Remark 5", "2.4", "The universal equalizer", by="hadamard-equalizer")
item("Lemma 2", "2.5", "The explicit penalty", by="shallow-penalty")
item(
    "Lemma 3",
    "2.5.3",
    "Critical points lie below the target",
    by="critical-below-target",
)
item(
    "Lemma 4",
    "2.5.3",
    "Points that are not equalized",
    by=("equalized-optimum", "strict-saddle"),
)
item("Lemma 5", "2.5.3", "Equalized saddles", by="strict-saddle")
item(
    "Figure 2-3",
    "2.6",
    "Convergence to the optimum",
    by="dropout-fig3",
    open=(
        "converges at the printed dimensions in 12 runs; that lam = 1 balances sooner "
        "than .5 is left open by them"
    ),
)
