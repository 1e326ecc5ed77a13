"""What the penalty becomes when the same maps are written otherwise; contraction of losses."""

from __future__ import annotations

from itertools import product

import numpy as np

from overt import equalize, noise, penalty, spectral
from overt.theorems import _descent as descent
from overt.theorems import _oracles as oracles
from overt.theorems.base import (
    DESCENT,
    EXACT,
    MONTE_CARLO,
    Residuals,
    relative,
    standard_errors,
    theorem,
)


@theorem(
    "deep-spectral",
    source="Thesis, Lemma 6",
    claim="With C = I rotating inputs and outputs of a deep network changes no term of its "
    "penalty, so the least penalty of a map depends on its singular values alone",
)
def _spectral(scale: int, rng: np.random.Generator) -> Residuals:
    for widths in ((3,), (2, 3)):
        weights = oracles.deep_layers(rng, widths)
        Q, R = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (2, 3))
        turned = [W.copy() for W in weights]
        turned[0], turned[-1] = turned[0] @ R, Q @ turned[-1]
        probs = [0.3] * len(widths)
        exact = oracles.deep_added_loss(weights, probs, np.eye(3))
        yield relative(penalty.deep(turned, probs), exact)
    return EXACT, "after rotation, against the loss over all masks before"


@theorem(
    "deep-envelope",
    source="Thesis, Lemma 8",
    claim="The convex envelope of the least penalty is at most nu |M|_*^2: M is a mean of maps "
    "|M|_* u_i v_i' with weights s_i/|M|_*, and each has a network that costs nu |M|_*^2",
    assumes="C = I",
)
def _envelope(scale: int, rng: np.random.Generator) -> Residuals:
    widths, probs = (2, 3), [0.4, 0.3]
    for _ in range(2 * scale):
        M = rng.normal(size=(3, 4))
        left, s, right = np.linalg.svd(M, full_matrices=False)
        costs, mean = [], np.zeros_like(M)
        for u, value, v in zip(left.T, s, right, strict=True):
            weights = equalize.rank_one_deep(s.sum() * u, v, widths)
            costs.append(oracles.deep_added_loss(weights, probs, np.eye(4)))
            mean += value / s.sum() * oracles.chain(weights)
        yield relative(mean, M)
        stated = np.full(3, spectral.nu(widths, probs) * s.sum() ** 2)
        yield relative(stated, costs)
    return EXACT, "the loss over all masks of the networks of every atom"


@theorem(
    "loss-contraction",
    source="Thesis, Lemma 10",
    claim="Clipping does not raise the Rademacher complexity, and the squared loss of clipped "
    "predictions raises it at most four times",
    assumes="labels -1 and 1",
    correction="the factor is printed as 2; (1 - z)^2 has the slope 4 at z = -1, and predictions "
    "-1 and -.9 need 3.9",
)
def _contraction(scale: int, rng: np.random.Generator) -> Residuals:
    n, largest = 6, 0.0
    signs = np.array(list(product((-1.0, 1.0), repeat=n)))
    for trial in range(5 * scale):
        y = rng.choice((-1.0, 1.0), n)
        f = rng.normal(size=(4, n)) if trial else y * np.array([[-1.0], [-0.9]])
        g = np.clip(f, -1, 1)
        complexity = [np.mean(np.max(signs @ F.T / n, axis=1)) for F in (f, g, (y - g) ** 2)]
        yield complexity[1] / complexity[0] - 1
        yield complexity[2] / complexity[1] / 4 - 1
        largest = max(largest, complexity[2] / complexity[1] / 2 - 1)
    return 1e-12, "all signs for five classes of functions", largest


@theorem(
    "sensing-gaussian",
    source="Thesis, section 4.2",
    claim="With Gaussian measurements the sensing penalty has the mean lam sum_i |u_i|^2 |v_i|^2, "
    "whose least value for a product is (lam/d) |UV'|_*^2",
)
def _gaussian(scale: int, rng: np.random.Generator) -> Residuals:
    U, V, prob, draws = rng.normal(size=(3, 4)), rng.normal(size=(5, 4)), 0.3, 2000 * scale
    A = rng.normal(size=(draws, 3, 5))
    each = np.array([float(penalty.sensing(U, V, a[None], prob)) for a in A[:400]])
    stated = prob / (1 - prob) * float(np.sum(U**2, 0) @ np.sum(V**2, 0))
    flows = np.einsum("pi,npq,qi->ni", U, A, V, optimize=True)
    yield standard_errors(prob / (1 - prob) * np.sum(flows**2, axis=1), stated)
    yield standard_errors(each, stated)
    U, V = equalize.equalize_product(U @ V.T, 4)
    least = np.linalg.norm(U @ V.T, "nuc") ** 2 / 4
    yield relative(np.sum(U**2, 0) @ np.sum(V**2, 0), least) * 1e10
    return MONTE_CARLO, f"{draws} measurements, in s.e.; balanced factors exactly"


@theorem(
    "sensing-without-factors",
    source="Thesis, section 4.4",
    claim="Dropout on the measurements themselves, with M not factored, adds the ridge penalty "
    "lam sum_k C_kk m_k^2, C the second moment of vec(A); no rank is lost",
)
def _ridge(scale: int, rng: np.random.Generator) -> Residuals:
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


@theorem(
    "sensing-convolution",
    source="Thesis, section 4.4",
    claim="<UV', A> = <vec(U'), (I kron V') vec(A')>: sensing is regression by a network whose "
    "first layer is a convolution with the columns of V as filters",
)
def _convolution(scale: int, rng: np.random.Generator) -> Residuals:
    U, V, A = rng.normal(size=(4, 2)), rng.normal(size=(3, 2)), rng.normal(size=(4, 3))
    layer = np.kron(np.eye(4), V.T)
    network = U.ravel() @ (layer @ A.ravel())  # rows of U and A, stacked, are vec of the transpose
    yield relative(network, np.sum(U @ V.T * A))
    return EXACT, "the Kronecker product written out"


@theorem(
    "deep-scaling",
    source="Thesis, section 4.4",
    claim="A deep linear network with one output and dropout solves (1 + nu) XX'u = Xy: it "
    "scales the least-squares solution and does nothing else",
    correction="1 + nu is printed as 1 + nu/n",
)
def _scaling(scale: int, rng: np.random.Generator) -> Residuals:
    n, widths, probs = 8, (2, 2), (0.4, 0.3)
    X, y = rng.normal(size=(3, n)), rng.normal(size=n)
    C, w = X @ X.T / n, np.linalg.solve(X @ X.T, X @ y)
    found = descent.deep_descent(w[None].astype(float), C, widths, probs, 6 * scale, rng)[1][0]
    stated, printed = (w / (1 + spectral.nu(widths, probs) / m) for m in (1, n))
    detail = f"squared distance to the best of {6 * scale} descents over all masks"
    yield relative(stated, found) ** 2
    return DESCENT, detail, relative(printed, found) ** 2
