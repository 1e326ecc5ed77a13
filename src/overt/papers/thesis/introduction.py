"""Chapter 1: norm measures."""

from __future__ import annotations

import numpy as np

from overt._check import Floats
from overt.papers import descent, oracles
from overt.papers.records import Residuals, Rng, statement


@statement("Section 1.1.1", "1.1.1", how="bound evaluated")
def audit_norm_measures(scale: int, rng: Rng) -> Residuals:
    """Norm measures compared.

    The spectral measure (1.2) is never worse than the PAC-Bayes measure (1.3) up to a constant,
    (k+1)/k, which orthogonal weights need.

    Assumes: the width in (1.3) is the largest number of rows of a weight.

    TeX: The spectral measure $(1.2)$ is never worse than the PAC-Bayes measure $(1.3)$ up to a
    constant, $(k+1)/k$, which orthogonal weights need.
    """
    ratio = 0.0
    for _ in range(20 * scale):
        k = int(rng.integers(1, 5))
        d = int(rng.integers(2, 9))
        weights = rng.normal(size=(k + 1, d, d)) * rng.exponential(size=(k + 1, d, 1))
        for chosen in (weights, np.linalg.qr(weights)[0]):
            spectral, pac_bayes = norm_measures(chosen)
            constant = spectral / pac_bayes / ((k + 1) / k)
            yield constant - 1
            ratio = max(ratio, constant)
    yield 1 - ratio  # the constant is reached
    detail = "random and orthogonal chains, up to 5 layers; null: a constant ten times smaller"
    return 1e-12, detail, None, 10 * ratio - 1


def norm_measures(weights: Floats) -> tuple[float, float]:
    """Return (1.2) and (1.3) for square layers, without prod |W_i|_2 / sqrt(n), which both have.

    (sum (|W_i'|_(2,1) / |W_i|_2)^(2/3))^(3/2) and (d k^2 sum |W_i|_F^2 / |W_i|_2^2)^(1/2).
    """
    depth, d, _ = weights.shape
    scaled = weights / np.linalg.norm(weights, 2, axis=(1, 2))[:, None, None]
    rows = np.linalg.norm(scaled, axis=2).sum(axis=1)
    spectral = np.sum(rows ** (2 / 3)) ** 1.5
    return float(spectral), float(np.sqrt(d * (depth - 1) ** 2 * np.sum(scaled**2)))


@statement("Section 1.3.1, gap condition", "1.3.1", how="sampled")
def gap_condition(scale: int, rng: Rng) -> Residuals:
    r"""The gap condition of two-layer networks.

    A two-layer network need not satisfy s_1 - s_2 >= s_2/nu: with six units at lam = 1 and the
    values (1, .9) its optimum has rank 2, and a rank-one map is worse.

    Printed: The condition is claimed to be always satisfied by two-layer linear networks; here it
    asks for .1 >= 5.4.

    TeX: A two-layer network need not satisfy $s_1 - s_2 \ge s_2/\nu$: with six units at $\lambda =
    1$ and the values $(1, .9)$ its optimum has rank 2, and a rank-one map is worse.
    """
    s = np.array([1.0, 0.9])
    width = 6
    nu = 1 / width
    objective = descent.factor_objective(np.diag(s), np.eye(width))
    lowest, theta = descent.best_descent(objective, 4 * width, 4 * scale, rng)
    U, V = descent.factors(theta, 2, width)
    values = np.linalg.svd(U @ V.T, compute_uv=False)
    yield 0.1 - values[1]  # the best map has rank 2
    rank_one = s[0] ** 2 * nu / (1 + nu) + s[1] ** 2
    yield lowest / rank_one - 0.99
    detail = f"the best of descents has values {values.round(2)}"
    return 1e-9, detail, s[1] / nu - 0.1


@statement("Section 1.1.3, FGSM", "1.1.3", how="sampled")
def fgsm_is_one_step(scale: int, rng: Rng) -> Residuals:
    r"""FGSM is one step of PGD of infinite size.

    One step of projected gradient ascent with a large step, in the Linf ball, is the fast gradient
    sign method.

    TeX: One step of projected gradient ascent with a large step, in the $\ell_\infty$ ball, is the
    fast gradient sign method.
    """
    from overt.robust import FGSM, PGD, Linf

    torch, sequential = oracles.seeded_torch(rng)
    for _ in range(3 * scale):
        net = sequential(
            torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)
        ).double()
        x = torch.from_numpy(rng.normal(size=(6, 5)))
        y = net(x).argmax(1)
        one = FGSM(Linf(0.1))(net, x, y).x
        other = PGD(Linf(0.1), steps=1, schedule="constant", step_size=1e6)(net, x, y).x
        yield float((one - other).abs().max())
    return 1e-12, "largest difference of the two attacked inputs"
