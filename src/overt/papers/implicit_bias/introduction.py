"""Section 1 and appendix A: training with dropout, its penalty, two lemmas on shrinkage."""

from __future__ import annotations

import numpy as np

from overt import noise, penalty, spectral
from overt.papers import descent, oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, Rng, statement


@statement("Algorithm 1", "1", how="enumerated")
def dropout_step(rng: Rng) -> Residuals:
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
    M = rng.standard_normal((m, n))
    U = rng.standard_normal((m, d))
    V = rng.standard_normal((n, d))
    # x takes the values +-sqrt(n) e_i, whose second moment is the identity; masks are enumerated.
    identity = np.sqrt(n) * np.eye(n)
    inputs = np.concatenate([identity, -identity])
    mean = np.zeros((d, m))
    probs = np.full(d, keep)
    masks, chances = oracles.masks(probs)
    masks /= keep
    for x in inputs:
        for z, p in zip(masks, chances, strict=True):
            Ut = U.T.copy()
            y = M @ x
            drawn = (a[None, None] for a in (x[None], y, z))
            take_steps(Ut, V.T.copy(), *drawn, np.ones(1))
            move = U.T - Ut
            mean += p / len(inputs) * move
    drop = noise.Dropout(1 - keep)
    Gamma = drop.strength * np.eye(d)
    objective = descent.factor_objective(M, Gamma)
    value, gradient = objective(np.append(U, V))
    step = mean.T.ravel()
    yield relative(step, gradient[: U.size] / 2)
    error = M - U @ V.T
    stated = np.sum(error**2)
    stated += penalty.shallow(U, V, drop)
    yield relative(stated, value)
    return EXACT, "all masks and inputs through the compiled step against the gradient"


@statement("Equation 3", "1", identity="units")
def path_norm(rng: Rng) -> Residuals:
    r"""The penalty is a squared path norm.

    For uncorrelated inputs of unit variance, dropout's penalty is lam times the squared l2 path
    norm: the sum over all input-output paths of the squared products of weights.

    Assumes: E[x x'] = I.

    TeX: For uncorrelated inputs of unit variance, dropout's penalty is $\lambda$ times the
    squared $\ell_2$ path norm: the sum over all input-output paths of the squared products of
    weights. \[R(U,V)=\lambda\sum_{k,i,j}U_{ki}^2V_{ji}^2\]
    """
    for _ in range(2):
        U, V, _, _ = oracles.two_layers(rng, 4)
        weights = [V.T, U]
        for order in (1, 2):
            paths = oracles.path_sum(weights, order)
            stated = penalty.path_norm(weights, order)
            yield relative(stated**order, paths)
        drop = noise.Dropout(rng.uniform(0.1, 0.9))
        stated = penalty.shallow(U, V, drop)
        yield relative(stated, drop.strength * paths)
    return EXACT, "every path written out"


@statement("Lemma A.1", "A", identity="units")
def shallow_penalty(rng: Rng) -> Residuals:
    r"""The explicit penalty.

    Dropout on the hidden layer of x -> U V'x adds exactly lam sum_i |u_i|^2 v_i'C v_i to the
    expected squared loss, whatever the targets.

    TeX: Dropout on the hidden layer of $x \to U V^\top x$ adds exactly $\lambda \sum_i |u_i|^2
    v_i^\top C v_i$ to the expected squared loss, whatever the targets.
    """
    d = 5
    for _ in range(4):
        U, V, X, Y = oracles.two_layers(rng, d)
        keep = 1 - rng.uniform(0.1, 0.8, d)
        z, p = oracles.masks(keep)
        z /= keep
        hidden = X @ V
        exact = oracles.added_loss(Y, U, hidden, z, p)
        C = X.T @ X / len(X)
        drop = noise.Dropout(1 - keep)
        stated = penalty.shallow(U, V, drop, C)
        yield relative(stated, exact)
    return EXACT, f"the loss over all {2**d} masks, one probability per unit"


@statement("Lemma A.3", "A", how="enumerated")
def shrinkage_monotone(rng: Rng) -> Residuals:
    r"""The objective falls with the rank.

    The objective g(rho) with the top rho values shrunk by lam h_rho/(r + lam rho) is lam
    h_rho^2/(r + lam rho) plus the squares of the rest, never grows, and at the optimal rho is
    the optimum.

    TeX: The objective $g(\rho)$ with the top $\rho$ values shrunk by $\lambda h_\rho/(r +
    \lambda \rho)$ is $\lambda h_\rho^2/(r + \lambda \rho)$ plus the squares of the rest, never
    grows, and at the optimal $\rho$ is the optimum.
    """
    for _ in range(20):
        r = int(rng.integers(1, 8))
        lam = float(rng.exponential() + 0.05)
        weight = lam / r
        a = rng.exponential(size=r + 2)
        a.sort()
        a = a[::-1]
        g = []
        for rho in range(1, r + 1):
            top = a[:rho]
            h = top.sum()
            kept = top - lam * h / (r + lam * rho)
            system = np.eye(rho) + weight
            solved = np.linalg.solve(system, top)
            yield relative(kept, solved)
            value = lam * h**2 / (r + lam * rho)
            value += np.sum(a[rho:] ** 2)
            rest = np.zeros(r + 2 - rho)
            shrunk = np.append(kept, rest)
            g.append(oracles.envelope(a, shrunk, weight))
            yield relative(value, g[-1])
        rises = np.diff(g)
        largest = np.max(rises, initial=0.0)
        yield largest / g[0]
        norm = spectral.SquaredNuclear()
        best = norm.prox(a[:r], weight)
        shrunk = np.append(best, [0, 0])
        value = oracles.envelope(a, shrunk, weight)
        rank = np.count_nonzero(best) or 1
        yield relative(value, g[rank - 1])
    return EXACT, "20 spectra, written out; linear equations"
