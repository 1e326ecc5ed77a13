"""DropConnect with correlated inputs: the penalty lives in the geometry of diag(C), not of C.

With B = A D^(1/2), D = diag(C), K = D^(-1/2) L, the best map solves the convex problem

    min_B  |T - B K|^2 + (lam/d) |B|_*^2,

by accelerated proximal gradient steps, and weak duality bounds it from below at any B: with
G = 2 (B K - T) K', the bound is |T - B K|^2 - <G, B> - |G|_op^2 d / (4 lam).
"""

from __future__ import annotations

import numpy as np

from overt._types import Floats
from overt.equalize import balanced_factors
from overt.linear.descent import descend
from overt.linear.objective import weight_noise
from overt.linear.quadratic import Quadratic
from overt.spectral import SquaredNuclear

TOLERANCE = 1e-12
MAX_STEPS = 3000


def best_map(quadratic: Quadratic, weight: float) -> tuple[Floats, float]:
    """Return (B, bound): the convex optimum in scaled coordinates and a proved lower bound."""
    T, K = quadratic.T, _scaled_root(quadratic)
    if weight == 0:
        return T @ np.linalg.pinv(K), quadratic.residual
    step = float(np.linalg.norm(K, 2)) ** 2
    B = ahead = np.zeros((T.shape[0], K.shape[0]))
    momentum, best, bound = 1.0, B, -np.inf
    for count in range(MAX_STEPS):
        gradient = (ahead @ K - T) @ K.T
        after = SquaredNuclear().matrix_prox(ahead - gradient / step, weight / step)
        if np.sum((ahead - after) * (after - B)) > 0:
            momentum = 1.0  # the momentum points uphill
        faster = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = after + (momentum - 1) / faster * (after - B)
        B, momentum = after, faster
        if count % 10 == 9:
            value, lower = _value_and_bound(T, K, weight, B)
            if lower > bound:
                best, bound = B, lower
            if value - bound <= TOLERANCE * value:
                break
    return best, quadratic.residual + bound


def factors(quadratic: Quadratic, lam: float, width: int, B: Floats) -> tuple[Floats, Floats]:
    """Return balanced factors of the optimal map, refined by descent where the width is short."""
    D = quadratic.input_variances
    left, s, right = np.linalg.svd(B, full_matrices=False)
    rank = int(np.sum(s > 1e-9 * s[0])) if s[0] > 0 else 0
    kept = min(rank, width)
    U, V = balanced_factors(left[:, :kept], s[:kept], right[:kept].T, width)
    V = V / np.sqrt(np.where(D > 0, D, 1.0))[:, None]
    if rank <= width:
        return U, V
    U, V = descend(lambda U, V: weight_noise(quadratic, lam, D, U, V), [U, V])
    return U, V


def _scaled_root(quadratic: Quadratic) -> Floats:
    D = quadratic.input_variances
    L = np.eye(quadratic.inputs) if quadratic.L is None else quadratic.L
    return L / np.sqrt(np.where(D > 0, D, 1.0))[:, None]


def _value_and_bound(T: Floats, K: Floats, weight: float, B: Floats) -> tuple[float, float]:
    R = B @ K - T
    G, loss = 2 * R @ K.T, float(np.sum(R**2))
    lower = loss - np.sum(G * B) - np.linalg.norm(G, 2) ** 2 / (4 * weight)
    return loss + weight * float(SquaredNuclear().matrix_value(B)), float(lower)
