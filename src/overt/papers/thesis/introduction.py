"""Chapter 1: norm measures."""

from __future__ import annotations

import math

import numpy as np

from overt._types import Floats
from overt.papers.records import Residuals, item, statement


@statement("Section 1.1.1", "1.1.1", how="bound evaluated")
def audit_norm_measures(scale: int, rng: np.random.Generator) -> Residuals:
    """Norm measures compared.

    The spectral measure (1.2) is never worse than the PAC-Bayes measure (1.3) up to a constant,
    (k+1)/k, which orthogonal weights need.

    Assumes: the width in (1.3) is the largest number of rows of a weight.

    TeX: The spectral measure $(1.2)$ is never worse than the PAC-Bayes measure $(1.3)$ up to a
    constant, $(k+1)/k$, which orthogonal weights need.
    """
    ratio = 0.0
    for _ in range(20 * scale):
        k, d = int(rng.integers(1, 5)), int(rng.integers(2, 9))
        weights = [rng.normal(size=(d, d)) * rng.exponential(size=(d, 1)) for _ in range(k + 1)]
        for chosen in (weights, [np.linalg.qr(W)[0] for W in weights]):
            constant = spectral_measure(chosen) / pac_bayes_measure(chosen) / ((k + 1) / k)
            yield max(constant - 1, 0.0)
            ratio = max(ratio, constant)
    yield 1 - ratio  # the constant is reached
    detail = "random and orthogonal chains, up to 5 layers; null: a constant ten times smaller"
    return 1e-12, detail, None, 10 * ratio - 1


def spectral_measure(weights: list[Floats]) -> float:
    """prod |W_i|_2 (sum (|W_i'|_(2,1) / |W_i|_2)^(2/3))^(3/2), eq. 1.2 without 1/sqrt(n)."""
    norms = [float(np.linalg.norm(W, 2)) for W in weights]
    rows = [float(np.linalg.norm(W, axis=1).sum()) for W in weights]
    ratios = sum((a / s) ** (2 / 3) for a, s in zip(rows, norms, strict=True))
    return math.prod(norms) * ratios**1.5


def pac_bayes_measure(weights: list[Floats]) -> float:
    """prod |W_i|_2 (d k^2 sum |W_i|_F^2 / |W_i|_2^2)^(1/2), eq. 1.3 without 1/sqrt(n)."""
    norms = [float(np.linalg.norm(W, 2)) for W in weights]
    stable = sum((float(np.linalg.norm(W)) / s) ** 2 for W, s in zip(weights, norms, strict=True))
    k = len(weights) - 1
    d = max(len(W) for W in weights)
    return math.prod(norms) * math.sqrt(d * k**2 * stable)


item(
    "Figure 1-1",
    "1.1.3",
    "An adversarial image",
    how="not checked",
    open="an illustration from another paper, with no number of its own",
)
item("Algorithm 1", "1.3.4", "Training with dropout", by="dropout-step")
item(
    "Algorithm 5",
    "1.3.4",
    "The attack",
    by=("attack-finds", "linear-attack", "attack-against-exact"),
)
item(
    "Section 1.3.1, gap condition",
    "1.3.1",
    "The gap condition is always satisfied by two-layer linear networks",
    how="not checked",
    printed="false: width 6, lam = 1, s = (1, .9) has s_1 - s_2 = .1 and s_2/nu = 5.4",
    open="no check yet",
)
item(
    "Section 1.1.3, FGSM",
    "1.1.3",
    "FGSM is one step of PGD of infinite size",
    how="not checked",
    open="no check yet",
)
