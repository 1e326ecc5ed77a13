"""Noise on the weights V of x -> U V'x: DropConnect, whose penalty is lam sum_k |u_k|^2 v_k'D v_k.

It lives in the geometry of D = diag(C), not of C. With B = A D^(1/2), K = D^(-1/2) L, the best map
solves the convex problem

    min_B  |T - B K|^2 + (lam/d) |B|_*^2,

by accelerated proximal gradient steps, and weak duality bounds it from below at any B: with
G = 2 (B K - T) K', the bound is |T - B K|^2 - <G, B> - |G|_op^2 d / (4 lam). Where the inputs are
uncorrelated D = C, and everything but the steps is as for Dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from overt import equalize, penalty
from overt._types import Floats
from overt.linear.bounds import Relaxation
from overt.linear.descent import descend
from overt.linear.effect import NoiseEffect
from overt.linear.regression import DenseRegression, Regression
from overt.linear.sampling import Advance, on_rows
from overt.linear.units import UnitNoise
from overt.noise import DropConnect, Dropout
from overt.spectral import SquaredNuclear, induced

TOL = 1e-12
"""Relative duality gap at which the proximal steps stop."""

MAX_STEPS = 3000


class WeightNoise(NoiseEffect):
    """DropConnect on the first layer of a two-layer network."""

    def __init__(self, regression: Regression, width: int, noise: DropConnect) -> None:
        self.regression, self.width, self.noise = regression, width, noise
        self.shapes = (regression.outputs, width), (regression.inputs, width)
        self._as_units = UnitNoise(regression, width, Dropout(noise.drop_prob))
        self._correlated = not regression.uncorrelated()

    @cached_property
    def relaxation(self) -> Relaxation:
        """The convex problem of the map."""
        if not self._correlated:
            return self._as_units.relaxation
        dense = self.regression.dense("solve")
        B, bound = best_map(dense, induced(self.noise, self.width)[0])
        loss = float(np.sum((dense.T - B @ (dense.root / self._root[:, None])) ** 2))
        bound -= dense.rounding(bound, loss, float(np.linalg.norm(B, "nuc")))
        return Relaxation(bound, B / self._root, np.ones(dense.inputs), dense.root.T)

    def best_weights(self) -> Sequence[Floats]:
        """Return balanced factors of the best map, refined by descent where the width is short."""
        if not self._correlated:
            return self._as_units.best_weights()
        left, s, right = np.linalg.svd(self.relaxation.left * self._root, full_matrices=False)
        rank = int(np.sum(s > 1e-9 * s[0])) if s[0] > 0 else 0
        kept = min(rank, self.width)
        U, V = equalize.balanced_factors(left[:, :kept], s[:kept], right[:kept].T, self.width)
        V = V / self._root[:, None]
        return (U, V) if rank <= self.width else descend(self.value, [U, V])

    def product(self, *weights: Floats) -> tuple[Floats, Floats]:
        """Return the weights, which are the factors."""
        U, V = weights
        return U, V

    def penalty(self, *weights: Floats) -> float:
        """lam sum_k |u_k|^2 v_k'D v_k."""
        U, V = weights
        root = np.sqrt(self.regression.input_variances)[:, None]
        return float(penalty.dropconnect(U, root * V, self.noise.drop_prob))

    def imbalance(self, *weights: Floats) -> float:
        """Return the variance over units of |u_k| |D^(1/2) v_k|."""
        U, V = weights
        return float(equalize.imbalance(U, np.sqrt(self.regression.input_variances)[:, None] * V))

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return residual + |R|^2 + lam sum_k |u_k|^2 v_k'D v_k and its gradients."""
        (U, V), dense = weights, self.regression.dense("train")
        lam, D = self.noise.strength, dense.input_variances
        P = dense.whiten(V)
        R = dense.T - U @ P.T
        u, v = np.sum(U * U, axis=0), np.sum(V * V * D[:, None], axis=0)
        value = dense.residual + float(np.sum(R * R) + lam * u @ v)
        return value, (
            2 * (lam * U * v - R @ P),
            2 * (lam * V * D[:, None] * u - dense.pull_back(R.T @ U)),
        )

    def steps(self, rng: np.random.Generator) -> Advance:
        """Return compiled steps with masked weights."""
        from overt.linear import kernels

        samples, drop_prob = self.regression.dense("train").samples, self.noise.drop_prob
        return on_rows(
            lambda rows, rates: kernels.weight_steps(*rows, samples, drop_prob, rates, rng)
        )

    @cached_property
    def _root(self) -> Floats:
        return _positive_root(self.regression)


def best_map(regression: DenseRegression, weight: float) -> tuple[Floats, float]:
    """Return (B, bound): the convex optimum in scaled coordinates and a proved lower bound."""
    T, K = regression.T, regression.root / _positive_root(regression)[:, None]
    if weight == 0:
        return T @ np.linalg.pinv(K), regression.residual
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
            if value - bound <= TOL * value:
                break
    return best, regression.residual + bound


def _positive_root(regression: Regression) -> Floats:
    """Return the diagonal of D^(1/2), with 1 in place of 0."""
    D = regression.input_variances
    return np.sqrt(np.where(D > 0, D, 1.0))


def _value_and_bound(T: Floats, K: Floats, weight: float, B: Floats) -> tuple[float, float]:
    R = B @ K - T
    G, loss = 2 * R @ K.T, float(np.sum(R**2))
    lower = loss - np.sum(G * B) - np.linalg.norm(G, 2) ** 2 / (4 * weight)
    return loss + weight * float(SquaredNuclear().matrix_value(B)), float(lower)
