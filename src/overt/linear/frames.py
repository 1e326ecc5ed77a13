"""Factors of a given map at the least penalty: A = W diag(a) Y', U = W S^(1/2) R, P = Y S^(1/2) R.

R (rank x width) has orthonormal rows, so that U P' = A whatever it is, and the penalty
<Gamma, G o G>, G = R' diag(a) R, is minimized over such R by descent. The noise's strength is only
a factor of it: weak noise is no harder than strong noise.
"""

from __future__ import annotations

import numpy as np

from overt._types import Floats
from overt.linear.descent import STARTS, attains, nudged, refine


def least_penalty(
    Gamma: Floats, a: Floats, starts: list[Floats], bound: float = 0.0, tries: int = STARTS
) -> Floats:
    """Return R of the least penalty found, at best the bound, from starts and nudged ones."""
    largest = np.abs(Gamma).max()
    Gamma, a, bound = Gamma / largest, a / a[0], bound / (largest * a[0] ** 2)

    def value(M: Floats) -> tuple[float, list[Floats]]:
        X, sigma, Y = np.linalg.svd(M, full_matrices=False)
        R = X @ Y
        G = R.T @ (a[:, None] * R)
        gradient = 4 * a[:, None] * (R @ (Gamma * G))
        turned = X.T @ gradient
        inner = turned @ Y.T
        inside = (inner - inner.T) / (sigma[:, None] + sigma[None, :])
        outside = (turned - inner @ Y) / sigma[:, None]
        return float(np.sum(Gamma * G * G)), [X @ (inside @ Y + outside)]

    others = [(nudged(R, seed),) for seed, R in enumerate(starts)]
    (M,) = refine(value, [(starts[0],), *others], attains(bound), tries)
    X, _, Y = np.linalg.svd(M, full_matrices=False)
    return X @ Y
