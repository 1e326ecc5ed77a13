"""Section 4 and appendix D: no spurious minima, strict saddles."""

from __future__ import annotations

import numpy as np

from overt import equalize, noise, penalty
from overt.linear.landscape import landscape
from overt.papers import descent
from overt.papers.descent import descend, tied_objective
from overt.papers.evidence import DESCENT, relative
from overt.papers.implicit_bias.tied import symmetric, tied_map
from overt.papers.records import Residuals, item, statement


@statement("Lemma 4.1", "4.1", how="sampled")
def equalized_optimum(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Local optima are equalized.

    Every local minimum of the tied dropout problem has equal column norms, so its penalty is
    (lam/r) |U|^4.

    TeX: Every local minimum of the tied dropout problem has equal column norms, so its penalty
    is $(\lambda/r) |U|^4$.
    """
    runs = 0
    for width, prob in [(2, 0.2), (3, 0.5), (4, 0.4)]:
        drop = noise.Dropout(prob)
        F = rng.normal(size=(4, 4))
        objective = tied_objective(F @ F.T, drop.strength, width)
        for _ in range(2 * scale):
            U = descend(objective, rng.normal(size=4 * width))[1].reshape(4, width)
            share = drop.strength / width * np.linalg.norm(U) ** 4
            mean = float(np.mean(equalize.importance(U, U)))
            yield relative(penalty.tied(U, drop), share)
            yield float(equalize.imbalance(U, U)) / mean**2
            runs += 1
    return DESCENT, f"all of {runs} descents from random starts"


@statement("Theorem 4.3", "4.2", how="sampled")
def tied_landscape(scale: int, rng: np.random.Generator) -> Residuals:
    r"""No spurious minima.

    The tied dropout problem has no spurious local minima: descent from any random start ends at
    the global optimum.

    Assumes: nothing on the drop probability; the bound printed on lam is not needed.

    TeX: The tied dropout problem has no spurious local minima: descent from any random start
    ends at the global optimum. \[\nabla F(U)=0,\
    \nabla^2F(U)\succeq0\;\Longrightarrow\;F(U)=\min F\]
    """
    for lam in (0.1, 1.0, 10.0):
        M, width = symmetric(rng, [3.0, 2.5, 1.0, 0.2]), 3
        objective, (_, value) = (
            descent.tied_objective(M, lam, width),
            tied_map(M, lam, width),
        )
        for _ in range(4 * scale):
            yield relative(
                descent.descend(objective, rng.normal(size=4 * width))[0], value
            )
    return DESCENT, f"the worst of {12 * scale} descents, lam from .1 to 10"


@statement("Theorem 4.3, saddles", "4.2", how="sampled")
def strict_saddle(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Saddles are strict, for any strength.

    Every equalized critical point but the global minimum has negative curvature, for any
    dropout strength.

    Assumes: tied weights and isotropic inputs; the printed theorem also asks for small lam.

    TeX: Every equalized critical point but the global minimum has negative curvature, for any
    dropout strength. \[\nabla F(U)=0,\ U\ \text{equalized},\ F(U)>\min
    F\;\Longrightarrow\;\lambda_{\min}(\nabla^2F(U))<0\]
    """
    beyond, seen = 0, 0
    for lam in (0.2, 2.0, 20.0):
        m = np.sort(rng.uniform(0.2, 3.0, 3 + scale))[::-1]
        Q = np.linalg.qr(rng.standard_normal((len(m), len(m))))[0]
        view = landscape(Q * m @ Q.T, 3, lam)
        beyond += lam > view.printed_limit
        objective = descent.tied_objective(view.M, lam, 3)
        for point in view.points:
            slope, lowest = descent.slope_and_curvature(objective, point.U.ravel())
            yield slope / m[0]
            yield abs(point.curvature - min(lowest, 0.0)) / m[0]
            # The global minimum comes first; every other point must bend down.
            yield 0.0 if point is view.points[0] else 2e-6 + lowest / m[0]
            seen += 1
    return 1e-6, (
        f"slope and curvature of all {seen} points by differences; {beyond} of 3 strengths beyond "
        "the printed bound"
    )


@statement("Lemma D.1", "D", how="sampled")
def critical_below_target(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Critical points lie below the target.

    At every critical point of the tied problem M - UU' is positive semi-definite.

    Assumes: M positive semi-definite.

    TeX: At every critical point of the tied problem $M - UU^\top $ is positive semi-definite.
    """
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


item("Definition 4.2", "4.2", "Strict saddles", by="strict-saddle", how="definition")
item(
    "Lemma D.2",
    "D",
    "Points that are not equalized are strict saddles",
    by=("equalized-optimum", "strict-saddle"),
)
item(
    "Lemma D.3",
    "D",
    "Equalized points but the optimum are strict saddles",
    by="strict-saddle",
)
