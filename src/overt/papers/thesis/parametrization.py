"""Section 4.4: the same maps written otherwise."""

from __future__ import annotations

import numpy as np

from overt import noise, penalty, spectral
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.records import Residuals, Rng, statement


@statement("Section 4.4, no factors", "4.4", how="symbolic", identity="units")
def sensing_without_factors(scale: int, rng: Rng) -> Residuals:
    r"""Dropout on the measurements is a ridge.

    Dropout on the measurements themselves, with M not factored, adds the ridge penalty lam
    sum_k C_kk m_k^2, C the second moment of vec(A); no rank is lost.

    TeX: Dropout on the measurements themselves, with $M$ not factored, adds the ridge penalty
    $\lambda \sum_k C_{kk} m_k^2$, $C$ the second moment of $\operatorname{vec}(A)$; no rank is
    lost.
    """
    prob = 0.3
    lam = prob / (1 - prob)
    m = rng.normal(size=6)
    A = rng.normal(size=(9, 6)) @ rng.normal(size=(6, 6))
    y = rng.normal(size=9)
    z, p = oracles.multipliers(6, prob)
    added = oracles.added_loss(y[:, None], m[None], A, z, p)
    # The same as noise on the inputs of a linear unit: the penalty of its activations A o m.
    yield relative(penalty.hidden(m[None], A, noise.Dropout(prob)), added)
    yield relative(lam * np.mean(A**2, axis=0) @ m**2, added)
    kept = spectral.SquaredNuclear().prox(np.array([3.0, 1.0, 0.2]), lam)
    yield float(np.count_nonzero(kept) == 3)  # a ridge only divides by 1 + lam
    return EXACT, "all masks; the factored form loses rank at the same strength"


@statement("Section 4.4, convolution", "4.4", how="symbolic", identity="sensing")
def sensing_convolution(scale: int, rng: Rng) -> Residuals:
    r"""Sensing is a convolution.

    <UV', A> = <vec(U'), (I kron V') vec(A')>: sensing is regression by a network whose first
    layer is a convolution with the columns of V as filters.

    TeX: $\langle UV^\top , A\rangle = \langle \operatorname{vec}(U^\top ), (I \otimes V^\top )
    \operatorname{vec}(A^\top )\rangle $: sensing is regression by a network whose first layer
    is a convolution with the columns of $V$ as filters.
    """
    U = rng.normal(size=(4, 2))
    V = rng.normal(size=(3, 2))
    A = rng.normal(size=(4, 3))
    # Rows of U and A, stacked, are vec of the transpose.
    network = U.ravel() @ np.kron(np.eye(4), V.T) @ A.ravel()
    yield relative(network, np.sum(U @ V.T * A))
    return EXACT, "the Kronecker product written out"


@statement("Section 4.4, depth", "4.4", how="sampled")
def deep_scaling(scale: int, rng: Rng) -> Residuals:
    r"""Depth only scales.

    A deep linear network with one output and dropout solves (1 + nu) XX'u = Xy: it scales the
    least-squares solution and does nothing else.

    Printed: The paper has 1 + nu/n for 1 + nu.

    TeX: A deep linear network with one output and dropout solves $(1 + \nu) XX^\top u = Xy$: it
    scales the least-squares solution and does nothing else.
    """
    n = 8
    widths = (2, 2)
    probs = (0.4, 0.3)
    X = rng.normal(size=(3, n))
    w = np.linalg.solve(X @ X.T, X @ rng.normal(size=n))[None].astype(float)
    _, W = descent.deep_descent(w, X @ X.T / n, widths, probs, 6 * scale, rng)
    nu = spectral.nu(widths, probs)
    yield relative(w / (1 + nu), W) ** 2
    detail = "squared distance to the best of descents over all masks"
    return DESCENT, detail, relative(w / (1 + nu / n), W) ** 2
