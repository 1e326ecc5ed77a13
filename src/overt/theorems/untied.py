"""What optima of shallow networks look like: equal shares, of units and of blocks."""

from __future__ import annotations

import numpy as np

from overt import equalize, noise, penalty, spectral
from overt.linear.landscape import landscape
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import Residuals, theorem


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
            yield oracles.relative(equalize.importance(U, V), np.full(width, share))
            cost = penalty.shallow(U, V, noise.Dropout(lam / (1 + lam)))
            yield oracles.relative(cost, lam * width * share**2)
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
        yield oracles.relative(descent.block_value(m, a, b, beta), value)
        U, V = descent.factors(theta, 3, b * blocks)
        yield oracles.relative(U @ V.T, np.diag(a)) ** 2
        parts = [np.linalg.norm(U[:, i : i + b] @ V[:, i : i + b].T) for i in range(0, 8, b)]
        yield (np.ptp(parts) / np.mean(parts)) ** 2
    return oracles.DESCENT, f"the best of 4 descents for each of {trials} spectra"
