"""Section 1 and appendix A: training with dropout, its penalty, two lemmas on shrinkage."""

from __future__ import annotations

from itertools import product

import numpy as np

from overt import noise, penalty, spectral
from overt.papers import descent, oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, Rng, statement


@statement("Algorithm 1", "1", how="enumerated")
def dropout_step(scale: int, rng: Rng) -> Residuals:
    r"""Training with dropout.

    The mean step of the second paper's algorithm is minus the gradient of half the objective;
    the first paper's is theta times that, a matter of the learning rate's unit.

    TeX: The mean step of the second paper's algorithm is minus the gradient of half the
    objective; the first paper's is $\theta$ times that, a matter of the learning rate's unit.
    """
    from overt.linear.descent import compiled_steps  # it compiles

    take_steps = compiled_steps()
    m = 3
    n = 2
    d = 3
    keep = 0.6
    M, U, V = (rng.standard_normal(shape) for shape in ((m, n), (m, d), (n, d)))
    # x takes the values +-sqrt(n) e_i, whose second moment is the identity; masks are enumerated.
    inputs = np.sqrt(n) * np.concatenate([np.eye(n), -np.eye(n)])
    mean = np.zeros((d, m))
    masks, chances = oracles.masks(np.full(d, keep))
    for x, (z, p) in product(inputs, zip(masks, chances, strict=True)):
        Ut = U.T.copy()
        drawn = (a[None, None] for a in (x[None], M @ x, z / keep))
        take_steps(Ut, V.T.copy(), *drawn, np.ones(1))
        mean += p / len(inputs) * (U.T - Ut)
    drop = noise.Dropout(1 - keep)
    objective = descent.factor_objective(M, drop.strength * np.eye(d))
    value, gradient = objective(np.concatenate([U.ravel(), V.ravel()]))
    yield relative(mean.T.ravel(), gradient[: U.size] / 2)
    yield relative(np.sum((M - U @ V.T) ** 2) + penalty.shallow(U, V, drop), value)
    return EXACT, "all masks and inputs through the compiled step against the gradient"


@statement("Equation 3", "1", identity="units")
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


@statement("Lemma A.1", "A", identity="units")
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


@statement("Lemma A.3", "A", how="enumerated")
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

        g = []
        for rho in range(1, r + 1):
            h = a[:rho].sum()
            shrunk = np.where(np.arange(r + 2) < rho, a - lam * h / (r + lam * rho), 0)
            solved = np.linalg.solve(np.eye(rho) + lam / r, a[:rho])
            yield relative(shrunk[:rho], solved)
            g.append(oracles.envelope(a, shrunk, lam / r))
            yield relative(lam * h**2 / (r + lam * rho) + np.sum(a[rho:] ** 2), g[-1])
        yield float(np.max(np.diff(g), initial=0.0)) / g[0]
        best = np.append(spectral.SquaredNuclear().prox(a[:r], lam / r), [0, 0])
        rank = max(int(np.count_nonzero(best)), 1)
        yield relative(oracles.envelope(a, best, lam / r), g[rank - 1])
    return EXACT, f"{20 * scale} spectra, written out; linear equations"
