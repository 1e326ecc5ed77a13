"""Section 2.4: the optimum of DropBlock, and when it is attained."""

from __future__ import annotations

import numpy as np

from overt import noise, spectral
from overt.papers import descent
from overt.papers.evidence import DESCENT, STRICT, relative
from overt.papers.records import Residuals, Rng, figure, item, statement
from overt.papers.structured import shallow


@statement("Theorem 2.6", "2.4", how="sampled")
def dropblock_balanced(scale: int, rng: Rng) -> Residuals:
    r"""The convex bound is attained by balanced factors.

    With enough blocks the least objective of the factors is that of the convex problem, and
    there every block's product U_i V_i' has the same norm.

    Assumes: the width-adjusted probability of eq. 7; four blocks of two for three singular
    values.

    TeX: With enough blocks the least objective of the factors is that of the convex problem,
    and there every block's product $U_i V_i^\top $ has the same norm.
    """
    b, blocks, trials = 2, 4, 3 * scale
    for _ in range(trials):
        m, beta = np.sort(rng.uniform(0.8, 3, 3))[::-1], float(rng.uniform(0.3, 1))
        block = noise.DropBlock(beta / (1 + beta), b).at_width(b * blocks)
        objective = descent.factor_objective(
            np.diag(m), block.characteristic(b * blocks)
        )
        value, theta = descent.best_descent(objective, 6 * b * blocks, 4, rng)
        a = spectral.KSupport(b).prox(m, beta)
        yield relative(descent.block_value(m, a, b, beta), value)
        U, V = descent.factors(theta, 3, b * blocks)
        yield relative(U @ V.T, np.diag(a)) ** 2
        parts = [
            np.linalg.norm(U[:, i : i + b] @ V[:, i : i + b].T) for i in range(0, 8, b)
        ]
        yield (np.ptp(parts) / np.mean(parts)) ** 2
    return DESCENT, f"the best of 4 descents for each of {trials} spectra"


@statement("Theorem 2.7", "2.4", how="sampled")
def dropblock_optimum(scale: int, rng: Rng) -> Residuals:
    r"""The optimum in closed form.

    DropBlock's convex problem has a closed-form solution: the largest singular values are
    scaled, the next ones shrunk by a common amount, the rest cut.

    Printed: The paper lets the split rho range over 1..b-1; it ranges over 1..b.

    TeX: DropBlock's convex problem has a closed-form solution: the largest singular values are
    scaled, the next ones shrunk by a common amount, the rest cut.
    \[A^\star=\arg\min_A\|M-A\|_F^2+\beta\,\|A\|_{(b)}^2,\qquad 1\le\rho\le b\]
    """
    printed = 0.0
    for _ in range(20 * scale):
        n, beta = int(rng.integers(2, 8)), float(rng.uniform(0.1, 2))
        b, m = int(rng.integers(2, n + 1)), np.sort(rng.uniform(0.1, 3, n))[::-1]
        stated = descent.block_value(m, spectral.KSupport(b).prox(m, beta), b, beta)
        convex = descent.ksupport_prox_value(m, b, beta)
        yield relative(stated, convex)
        yield relative(stated, descent.block_candidates(m, b, beta, range(1, b + 1)))
        printed = max(
            printed, relative(descent.block_candidates(m, b, beta, range(1, b)), convex)
        )
    return (
        DESCENT,
        f"{20 * scale} spectra, a convex solver and all (rho, lambda)",
        printed,
    )


@statement("Corollary 2.8", "2.4", how="sampled")
def dropblock_few_blocks(scale: int, rng: Rng) -> Residuals:
    r"""The three minima coincide with enough blocks.

    DropBlock's convex value is reached once there are enough blocks; with too few it is only a
    lower bound.

    Assumes: the width-adjusted probability of eq. 7; the singular values (2, 1.9, 1.8), blocks
    of two and beta = 1/2, where two blocks are too few and three are enough.

    TeX: DropBlock's convex value is reached once there are enough blocks; with too few it is
    only a lower bound.
    \[\min_{U,V}F(U,V)\ge\min_A\|M-A\|_F^2+\beta\,\|A\|_{(b)}^2,\quad\text{with equality for
    enough blocks}\]
    """
    m, b, beta = np.array([2.0, 1.9, 1.8]), 2, 0.5
    bound = descent.block_value(m, spectral.KSupport(b).prox(m, beta), b, beta)
    gaps = {}
    for blocks in (2, 3):
        d = b * blocks
        block = noise.DropBlock(beta / (1 + beta), block_size=b).at_width(d)
        objective = descent.factor_objective(np.diag(m), block.characteristic(d))
        gaps[blocks] = (
            descent.best_descent(objective, 6 * d, 6 * scale, rng)[0] / bound - 1
        )
    yield abs(gaps[3])
    yield STRICT - gaps[2]
    return DESCENT, (
        f"relative gap {gaps[2]:.4f} ({gaps[2] * bound:.3f}) with two blocks, {gaps[3]:.0e} with "
        f"three, the best of {6 * scale} descents"
    )


figure(
    "structured-fig1",
    "Figure 1",
    "2.4",
    """DropBlock descends its exact objective to its exact minimum.

    The stochastic objective equals the exact one, and training ends at the global minimum.
    """,
    run=shallow.run_dropblock,
    check=shallow.check_dropblock,
    plot=shallow.plot_dropblock,
    sizes={
        "toy": {
            "drop_prob": 0.5,
            "block_size": 2,
            "samples": 200,
            "inputs": 20,
            "outputs": 16,
            "width": 10,
            "steps": 40000,
        },
        "paper": {
            "drop_prob": 0.5,
            "block_size": 5,
            "samples": 1000,
            "inputs": 100,
            "outputs": 80,
            "width": 50,
            "steps": 500000,
        },
    },
    differs={
        "toy": "20 inputs, 16 outputs, width 10, 200 samples, 40,000 steps",
        "paper": "learning rates are not printed; 500,000 steps, one run",
    },
)

item(
    "Definition 2.4",
    "2.4",
    "Balanced factors",
    by="dropblock-balanced",
    how="definition",
)
item("Theorem 2.5", "2.4", "Minimizers are balanced", by="dropblock-balanced")
item(
    "Section 2.4, costs",
    "2.4",
    "Cost d log d of rho, d^2 of Theorem 2.7",
    how="not checked",
    open="an order of growth: no run decides it",
)
