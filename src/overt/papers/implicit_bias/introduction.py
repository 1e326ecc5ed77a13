"""Section 1: training with dropout, and the penalty as a path norm."""

from __future__ import annotations

from itertools import product

import numpy as np

from overt import noise, penalty
from overt.papers import oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, item, statement


@statement("Algorithm 1", "1", how="enumerated")
def dropout_step(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Training with dropout.

    The mean step of the second paper's algorithm is minus the gradient of half the objective;
    the first paper's is theta times that, a matter of the learning rate's unit.

    TeX: The mean step of the second paper's algorithm is minus the gradient of half the
    objective; the first paper's is $\theta$ times that, a matter of the learning rate's unit.
    """
    from overt.linear import kernels

    m, n, d, keep = 3, 2, 3, 0.6
    M, U, V = (rng.standard_normal(shape) for shape in ((m, n), (m, d), (n, d)))
    # x takes the values +-sqrt(n) e_i, whose second moment is the identity; masks are enumerated.
    inputs = [sign * np.sqrt(n) * e for e in np.eye(n) for sign in (1.0, -1.0)]
    mean, total = np.zeros((d, m)), 0.0
    for x, (z, p) in product(
        inputs, zip(*oracles.masks(np.full(d, keep)), strict=True)
    ):
        Ut, Vt = U.T.copy(), V.T.copy()
        drawn = (a[None, None] for a in (x, M @ x, z / keep))
        kernels.unit_steps(Ut, Vt, *drawn, np.ones(1))
        mean += p / len(inputs) * (U.T - Ut)
        total += p / len(inputs)
    step, half = np.zeros_like(U), 1e-5
    for index in np.ndindex(U.shape):
        values = []
        for sign in (1, -1):
            moved = U.copy()
            moved[index] += sign * half
            drop = noise.Dropout(1 - keep)
            values.append(
                np.sum((M - moved @ V.T) ** 2) + penalty.shallow(moved, V, drop)
            )
        step[index] = (values[0] - values[1]) / (4 * half)
    yield relative(mean.T, step)
    yield abs(total - 1)
    return (
        1e-8,
        "all masks and inputs through the compiled step against finite differences",
    )


@statement("Equation 3", "1", how="symbolic", identity="units")
def path_norm(scale: int, rng: np.random.Generator) -> Residuals:
    r"""The penalty is a squared path norm.

    For uncorrelated inputs of unit variance, dropout's penalty is lam times the squared l2 path
    norm: the sum over all input-output paths of the squared products of weights.

    Assumes: E[x x'] = I.

    TeX: For uncorrelated inputs of unit variance, dropout's penalty is $\lambda$ times the
    squared $\ell_2$ path norm: the sum over all input-output paths of the squared products of
    weights. \[R(U,V)=\lambda\sum_{k,i,j}U_{ki}^2V_{ji}^2\]
    """
    for _ in range(2 * scale):
        U, V, _, _ = oracles.two_layers(rng, 3 + scale)
        paths, prob = oracles.path_sum([V.T, U]), float(rng.uniform(0.1, 0.9))
        lam = prob / (1 - prob)
        yield relative(penalty.path_norm([V.T, U]) ** 2, paths)
        yield relative(
            penalty.path_norm([V.T, U], order=1), oracles.path_sum([V.T, U], order=1)
        )
        yield relative(penalty.shallow(U, V, noise.Dropout(prob)), lam * paths)
    return EXACT, "every path written out"


item(
    "Section 1, contribution 1",
    "1",
    "Minima have the least path norm of their map",
    by=("untied-equalized", "equalized-optimum"),
)
