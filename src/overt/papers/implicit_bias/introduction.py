"""Section 1: training with dropout, and the penalty as a path norm."""

from __future__ import annotations

from itertools import product

import numpy as np

from overt import noise, penalty
from overt.papers import descent, oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, Rng, item, statement


@statement("Algorithm 1", "1", how="enumerated")
def dropout_step(scale: int, rng: Rng) -> Residuals:
    r"""Training with dropout.

    The mean step of the second paper's algorithm is minus the gradient of half the objective;
    the first paper's is theta times that, a matter of the learning rate's unit.

    TeX: The mean step of the second paper's algorithm is minus the gradient of half the
    objective; the first paper's is $\theta$ times that, a matter of the learning rate's unit.
    """
    from overt.linear import kernels  # it compiles

    m, n, d, keep = 3, 2, 3, 0.6
    M, U, V = (rng.standard_normal(shape) for shape in ((m, n), (m, d), (n, d)))
    # x takes the values +-sqrt(n) e_i, whose second moment is the identity; masks are enumerated.
    inputs = np.sqrt(n) * np.concatenate([np.eye(n), -np.eye(n)])
    mean = np.zeros((d, m))
    masks, chances = oracles.masks(np.full(d, keep))
    for x, (z, p) in product(inputs, zip(masks, chances, strict=True)):
        Ut = U.T.copy()
        drawn = (a[None, None] for a in (x, M @ x, z / keep))
        kernels.unit_steps(Ut, V.T.copy(), *drawn, np.ones(1), np.zeros(2))
        mean += p / len(inputs) * (U.T - Ut)
    drop = noise.Dropout(1 - keep)
    objective = descent.factor_objective(M, drop.strength * np.eye(d))
    value, gradient = objective(np.concatenate([U.ravel(), V.ravel()]))
    yield relative(mean.T.ravel(), gradient[: U.size] / 2)
    yield relative(np.sum((M - U @ V.T) ** 2) + penalty.shallow(U, V, drop), value)
    return EXACT, "all masks and inputs through the compiled step against the gradient"


@statement("Equation 3", "1", how="symbolic", identity="units")
def path_norm(scale: int, rng: Rng) -> Residuals:
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
        weights = [V.T, U]
        prob = float(rng.uniform(0.1, 0.9))
        paths = oracles.path_sum(weights)
        yield relative(penalty.path_norm(weights) ** 2, paths)
        yield relative(penalty.path_norm(weights, 1), oracles.path_sum(weights, 1))
        stated = penalty.shallow(U, V, noise.Dropout(prob))
        yield relative(stated, prob / (1 - prob) * paths)
    return EXACT, "every path written out"


item(
    "Section 1, contribution 1",
    "1",
    "Minima have the least path norm of their map",
    by=("untied-equalized", "equalized-optimum"),
)
