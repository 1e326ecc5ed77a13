"""Section 4.4: the same maps written otherwise."""

from __future__ import annotations

import numpy as np

from overt import noise, penalty, spectral
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.records import Residuals, Rng, item, statement


@statement("Section 4.4, no factors", "4.4", how="symbolic", identity="units")
def sensing_without_factors(scale: int, rng: Rng) -> Residuals:
    r"""Dropout on the measurements is a ridge.

    Dropout on the measurements themselves, with M not factored, adds the ridge penalty lam
    sum_k C_kk m_k^2, C the second moment of vec(A); no rank is lost.

    TeX: Dropout on the measurements themselves, with $M$ not factored, adds the ridge penalty
    $\lambda \sum_k C_{kk} m_k^2$, $C$ the second moment of $\operatorname{vec}(A)$; no rank is
    lost.
    """
    prob, m = 0.3, rng.normal(size=6)
    A, y = rng.normal(size=(9, 6)) @ rng.normal(size=(6, 6)), rng.normal(size=9)
    z, p = oracles.multipliers(6, prob)
    noisy = np.mean((y - (z * m) @ A.T) ** 2, axis=1)
    added = p @ noisy - np.mean((y - A @ m) ** 2)
    # The same as noise on the inputs of a linear unit: the penalty of its activations A o m.
    yield relative(penalty.hidden(m[None], A, noise.Dropout(prob)), added)
    yield relative(prob / (1 - prob) * np.mean(A**2, axis=0) @ m**2, added)
    kept = spectral.SquaredNuclear().prox(np.array([3.0, 1.0, 0.2]), prob / (1 - prob))
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
    U, V, A = rng.normal(size=(4, 2)), rng.normal(size=(3, 2)), rng.normal(size=(4, 3))
    layer = np.kron(np.eye(4), V.T)
    network = U.ravel() @ (
        layer @ A.ravel()
    )  # rows of U and A, stacked, are vec of the transpose
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
    n, widths, probs = 8, (2, 2), (0.4, 0.3)
    X, y = rng.normal(size=(3, n)), rng.normal(size=n)
    C, w = X @ X.T / n, np.linalg.solve(X @ X.T, X @ y)
    found = descent.deep_descent(
        w[None].astype(float), C, widths, probs, 6 * scale, rng
    )[1][0]
    stated, printed = (w / (1 + spectral.nu(widths, probs) / m) for m in (1, n))
    detail = f"squared distance to the best of {6 * scale} descents over all masks"
    yield relative(stated, found) ** 2
    return DESCENT, detail, relative(printed, found) ** 2


item(
    "Section 4.4",
    "4.4",
    "Parametrization",
    by=("sensing-without-factors", "sensing-convolution", "deep-scaling"),
)
