"""Correlated 0/1 masks: z_i = 1 where a standard normal g_i is at most t_i = Phi^-1(mu_i).

E[z_i z_j] = Phi2(t_i, t_j; r_ij) with r the correlation of (g_i, g_j), which grows with r; here it
is inverted, pair by pair. d Phi2 / d r is the normal density, so that with r = sin(a)

    Phi2(s, t; r) = Phi(s) Phi(t)
                    + (1 / 2 pi) int_0^asin(r) exp(-(s^2 + t^2 - 2 s t sin a) / (2 cos^2 a)) da.
"""

from __future__ import annotations

import numpy as np

from overt._check import InputError
from overt._types import Floats

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


def latent_correlation(mu: Floats, K: Floats) -> Floats:
    """Return the correlation r of normals whose thresholded signs have mean mu and covariance K."""
    from scipy.special import ndtri

    d = len(mu)
    i, j = np.triu_indices(d, 1)
    t = ndtri(mu)
    angle = _solve(t[i], t[j], K[i, j])
    off = np.abs(_covariance(t[i], t[j], angle) - K[i, j])
    if off.size and off.max() > 1e-8:
        worst = int(off.argmax())
        raise InputError(
            f"covariance[{i[worst]}, {j[worst]}] = {K[i[worst], j[worst]]:.4g} is beyond what 0/1 "
            f"masks with means {mu[i[worst]]:.4g} and {mu[j[worst]]:.4g} can have"
        )
    R = np.eye(d)
    R[i, j] = R[j, i] = np.sin(angle)
    smallest = float(np.linalg.eigvalsh(R)[0])
    if smallest < -1e-7:
        raise InputError(
            "no normal copula has this covariance: the latent correlation has the eigenvalue "
            f"{smallest:.3g}; use weaker correlations, or distribution='gaussian'"
        )
    return R


def _covariance(s: Floats, t: Floats, angle: Floats) -> Floats:
    """Phi2(s, t; sin(angle)) - Phi(s) Phi(t)."""
    a = angle[:, None] * (_NODES + 1) / 2
    s, t = s[:, None], t[:, None]
    exponent = (s * s + t * t - 2 * s * t * np.sin(a)) / (2 * np.maximum(np.cos(a) ** 2, 1e-300))
    return np.asarray(angle / 2 * (np.exp(-exponent) @ _WEIGHTS) / (2 * np.pi))


def _solve(s: Floats, t: Floats, target: Floats) -> Floats:
    """Return the angles at which the covariance is `target`, by bisection on [-pi/2, pi/2]."""
    low, high = np.full(s.shape, -np.pi / 2), np.full(s.shape, np.pi / 2)
    for _ in range(60):
        middle = (low + high) / 2
        below = _covariance(s, t, middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
