"""The exact objective of a two-layer network and its gradient in whitened coordinates.

With P = L'V and R = T - U P':  f = residual + |R|^2 + <Cbar, U'U o P'P>.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overt._types import Floats
from overt.linear.quadratic import Quadratic


def unit_noise(
    quadratic: Quadratic, Cbar: Floats, U: Floats, P: Floats
) -> tuple[float, Sequence[Floats]]:
    """Return f(U, P) and its gradients for noise over units."""
    R = quadratic.T - U @ P.T
    UU, PP = U.T @ U, P.T @ P
    value = quadratic.residual + float(np.sum(R * R) + np.sum(Cbar * UU * PP))
    return value, (2 * (U @ (Cbar * PP) - R @ P), 2 * (P @ (Cbar * UU) - R.T @ U))


def weight_noise(
    quadratic: Quadratic, lam: float, D: Floats, U: Floats, V: Floats
) -> tuple[float, Sequence[Floats]]:
    """Return |R|^2 + lam sum_k |u_k|^2 v_k'diag(D)v_k and its gradients, for DropConnect."""
    P = quadratic.whiten(V)
    R = quadratic.T - U @ P.T
    u, v = np.sum(U * U, axis=0), np.sum(V * V * D[:, None], axis=0)
    value = quadratic.residual + float(np.sum(R * R) + lam * u @ v)
    residual_V = R.T @ U if quadratic.L is None else quadratic.L @ (R.T @ U)
    return value, (
        2 * (lam * U * v - R @ P),
        2 * (lam * V * D[:, None] * u - residual_V),
    )


def tied(quadratic: Quadratic, Cbar: Floats, U: Floats) -> tuple[float, Sequence[Floats]]:
    """Return f(U, L'U) and its gradient for tied weights."""
    value, (gradient_U, gradient_P) = unit_noise(quadratic, Cbar, U, quadratic.whiten(U))
    back = gradient_P if quadratic.L is None else quadratic.L @ gradient_P
    return value, (gradient_U + back,)
