"""Two-layer linear networks x -> U V'x whose hidden units (or weights) are masked by noise.

Noise on the weights V, DropConnect, has the penalty lam sum_k |u_k|^2 v_k'D v_k. It
lives in the geometry of D = diag(C), not of C. With B = A D^(1/2), K = D^(-1/2) L, the best map
solves the convex problem

    min_B  |T - B K|^2 + (lam/d) |B|_*^2,

by alternating directions: a linear system for the loss, a proximal map for the norm, multipliers G
that make the two agree. Weak duality bounds it from below at any N: 2 <N, T> - |N|^2 - (d/lam)
|N K'|_op^2, evaluated at N = G K^+'; at the optimum N = T - B K. Where the inputs are uncorrelated
D = C, and everything but the steps is as for Dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from overt import _check, equalize, penalty
from overt._check import Floats, InputError, InputTypeError
from overt.linear.bounds import Relaxation
from overt.linear.descent import attains, refine
from overt.linear.network import (
    Evaluation,
    NoiseEffect,
    NoisyNetwork,
    grade,
    regression_of,
    require_consistent,
    target_or_data,
)
from overt.linear.regression import DenseRegression, Regression
from overt.linear.training import Advance, masked_steps
from overt.linear.units import UnitNoise
from overt.noise import DropConnect, Dropout, Noise
from overt.results import Solution
from overt.spectral import SquaredNuclear, induced

TOL = 3e-12
"""Relative duality gap at which the steps stop."""

MAX_STEPS = 3000

CHECKED = 5
"""Steps after which the duality gap is looked at."""

RELAXED = 1.5
"""Over-relaxation of alternating directions, between 1 and 2."""


class LinearNetwork(NoisyNetwork):
    """A two-layer linear network trained with noise on its hidden layer.

    The objective is E|y - U diag(z/mu) V'x|^2 = E|y - U V'x|^2 + penalty(U, V), without a factor
    1/2; for data the mean over samples.

    Parameters
    ----------
    target
        M (outputs x inputs) with y = M x: an array, a scipy sparse matrix or a LinearOperator.
    width
        Number of hidden units.
    noise
        Dropout, KeepExactly, DropBlock, DropConnect, CovarianceNoise, or a noise over units of
        your own.
        `noise.at_width(width)` is the width-adjusted form of structured dropout.
    X, Y
        Data in place of a target, samples x features.
    second_moment
        E[x x'] (inputs x inputs) for a dense target; the identity if None.
    input_noise
        A noise on the inputs too, such as Dropout(0.2): it adds Gamma o E[x x'] to their second
        moment, a ridge, and everything stays exact.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.LinearNetwork(target=np.diag([3.0, 1.0]), width=2, noise=overt.Dropout(0.5))
    >>> best = net.solve()
    >>> best.rank, str(best.status)
    (1, 'optimal')
    >>> np.round(best.product, 6)
    array([[2., 0.],
           [0., 0.]])
    """

    kind = "two-layer"
    noise: Noise

    @target_or_data
    def __init__(
        self,
        target: Any,
        width: int,
        noise: Noise,
        *,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
        input_noise: Noise | None = None,
    ) -> None:
        self.width = _check.whole("width", width)
        self.noise = noise
        self.input_noise = input_noise
        task = regression_of(target, X, Y, second_moment, input_noise)
        self.effect = effect_of(noise, self.width, task)

    def __repr__(self) -> str:
        task = self.effect.regression
        return f"LinearNetwork({task.inputs} -> {self.width} -> {task.outputs}, {self.noise!r})"

    def solve(self, rank: int | None = None) -> Solution:
        """Return the best factors that are known, and a certificate.

        With `rank` they are the best whose map has at most that rank.

        The status is "optimal" where they reach the proved lower bound: always for Dropout, with
        one probability or one per unit, and for KeepExactly; for DropConnect unless correlated
        inputs meet too small a width, for DropBlock with enough blocks. Elsewhere it is
        "lower_bound", and the factors come from descent started at the bound's solution. For noises
        whose units are correlated the package Clarabel, if it is installed, raises the bound much
        (up to 32 units).
        """
        effect = self._limited(rank)
        U, V = effect.best_weights()
        return Solution(U, V, *grade(effect, U, V))

    def _start(self, init: Any) -> Sequence[Floats]:
        if not isinstance(init, (tuple, list)):
            raise InputError(f"init must be a pair of weights (U, V), got {init!r:.60}")
        return self._checked(*init)

    def _checked(self, *weights: Any) -> Sequence[Floats]:
        if len(weights) != 2:
            raise InputError(f"weights must be two, U and V, got {len(weights)}")
        U, V = _check.factors(*weights)
        U = _check.doubles("U", U)
        V = _check.doubles("V", V)
        expected = tuple(self.effect.shapes)
        if (U.shape, V.shape) != expected:
            raise InputError(
                f"U must be {expected[0][0]} x {expected[0][1]} and V {expected[1][0]} x "
                f"{expected[1][1]}, got {U.shape} and {V.shape}"
            )
        return U, V


def effect_of(noise: Noise, width: int, task: Regression) -> NoiseEffect:
    """Return what the noise does to a two-layer network: the one place that chooses."""
    if not isinstance(noise, Noise):
        raise InputTypeError(
            f"noise must be a noise such as overt.Dropout(0.5), got {noise!r}"
        )
    if isinstance(noise, DropConnect):
        return WeightNoise(task, width, noise)
    if noise.masks != "units":
        raise InputTypeError(
            f"of the noises over weights only DropConnect is known, got {noise!r}"
        )
    require_consistent(noise, width)
    return UnitNoise(task, width, noise)


class WeightNoise(NoiseEffect):
    """DropConnect on the first layer of a two-layer network."""

    def __init__(
        self,
        regression: Regression,
        width: int,
        noise: DropConnect,
    ) -> None:
        self.regression = regression
        self.width = width
        self.noise = noise
        self.shapes = (regression.outputs, width), (regression.inputs, width)
        self._as_units = UnitNoise(regression, width, Dropout(noise.drop_prob))
        self._correlated = not regression.uncorrelated()

    def limited(self, rank: int | None) -> WeightNoise:
        """Return the same problem over maps of at most this rank; inputs must be uncorrelated."""
        if rank is not None and self._correlated:
            raise InputError(
                "rank= is not available for DropConnect with correlated inputs: no bound by rank "
                "is known there"
            )
        effect = super().limited(rank)
        effect._as_units = self._as_units.limited(rank)
        return effect

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """That of Dropout, if inputs are uncorrelated."""
        return None if self._correlated else self._as_units.rank_range

    @cached_property
    def relaxation(self) -> Relaxation:
        """The convex problem of the map."""
        if not self._correlated:
            return self._as_units.relaxation
        dense = self.regression.dense("solve")
        B, bound, N = best_map(dense, induced(self.noise, self.width)[0])
        loss = float(np.sum((dense.T - B @ (dense.root / self._root[:, None])) ** 2))
        bound -= dense.rounding(bound, loss, float(np.linalg.norm(B, "nuc")))
        return Relaxation(
            bound, B / self._root, np.ones(dense.inputs), dense.root.T, None, N
        )

    def best_weights(self) -> Sequence[Floats]:
        """Return balanced factors of the best map, refined by descent where the width is short."""
        if not self._correlated:
            return self._as_units.best_weights()
        left, s, right = np.linalg.svd(
            self.relaxation.left * self._root, full_matrices=False
        )
        rank = int(np.sum(s > 1e-9 * s[0])) if s[0] > 0 else 0
        kept = min(rank, self.width)
        U, V = equalize.balanced_factors(
            left[:, :kept], s[:kept], right[:kept].T, self.width
        )
        enough = attains(self.relaxation.bound)
        if rank > self.width:
            (V,) = refine(self._value_of_inputs, [(V,)], enough)
            U = self._best_outputs(V)
        return U, V / self._root[:, None]

    def _best_outputs(self, V: Floats) -> Floats:
        """Return the best U for V in scaled coordinates: U (P'P + lam diag(|v_k|^2)) = T P."""
        dense = self.regression.dense("refine by descent")
        P = dense.whiten(V / self._root[:, None])
        S = P.T @ P + self.noise.strength * np.diag(np.sum(V * V, axis=0))
        return np.asarray(np.linalg.lstsq(S, P.T @ dense.T.T, rcond=None)[0].T)

    def _value_of_inputs(self, V: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the least objective over U, and its gradient in V."""
        value, (_, gradient) = self.value(
            self._best_outputs(V), V / self._root[:, None]
        )
        return value, (gradient / self._root[:, None],)

    def evaluate(self, *weights: Floats) -> tuple[Floats, Floats, float]:
        """Return the weights, which are the factors, and lam sum_k |u_k|^2 v_k'D v_k."""
        U, V = weights
        root = np.sqrt(self.regression.input_variances)[:, None]
        return U, V, float(penalty.dropconnect(U, root * V, self.noise.drop_prob))

    def imbalance(self, found: Evaluation) -> float:
        """Return the variance over units of |u_k| |D^(1/2) v_k|."""
        root = np.sqrt(self.regression.input_variances)[:, None]
        return float(equalize.imbalance(found.U, root * found.V))

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return residual + |R|^2 + lam sum_k |u_k|^2 v_k'D v_k and its gradients."""
        U, V = weights
        dense = self.regression.dense("train")
        lam = self.noise.strength
        D = dense.input_variances
        P = dense.whiten(V)
        R = dense.T - U @ P.T
        u = np.sum(U * U, axis=0)
        v = np.sum(V * V * D[:, None], axis=0)
        value = dense.residual + float(np.sum(R * R) + lam * u @ v)
        return value, (
            2 * (lam * U * v - R @ P),
            2 * (lam * V * D[:, None] * u - dense.pull_back(R.T @ U)),
        )

    def witness(self, s: Floats) -> dict[str, Any]:
        """Return that of Dropout, or what the best map leaves over, N in place of the target T."""
        if len(s):
            return self._as_units.witness(s)
        task = self.regression.dense("prove")
        best = self.relaxation
        N = best.multiplier
        if N is None:  # in closed form, as inputs are uncorrelated up to rounding
            N = task.T - best.left * best.spectrum @ best.right.T
        if "Y" in task.given:
            M = np.asarray(task.given["Y"], dtype=float).T
        else:
            M = np.asarray(task.given["target"], dtype=float)
        left = np.zeros_like(M)
        if task.L_inverse is not None:
            back = task.L_inverse
            if "X" in task.given:
                back = back @ np.asarray(task.given["X"], dtype=float).T
            left = M + (N - task.T) @ back
        return {"multiplier": left}

    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return compiled steps with masked weights."""
        samples = self.regression.dense("train").samples
        return masked_steps(samples, self.noise, self.width, rng, batch_size)

    @cached_property
    def _root(self) -> Floats:
        return _positive_root(self.regression)


def best_map(
    regression: DenseRegression, weight: float
) -> tuple[Floats, float, Floats]:
    """Return (B, bound, N): the optimum in scaled coordinates, a proved lower bound, its dual."""
    T = regression.T
    K = regression.root / _positive_root(regression)[:, None]
    if weight == 0:
        return T @ np.linalg.pinv(K), regression.residual, np.zeros_like(T)
    values, Q = np.linalg.eigh(K @ K.T)
    back = np.linalg.pinv(K.T)
    norm = SquaredNuclear()
    TK = T @ K.T
    rho = float(np.mean(values))
    Z = np.zeros_like(TK)
    best = Z
    reached = np.inf
    bound = -np.inf
    dual = T
    multipliers = Z  # G / rho
    for count in range(1, MAX_STEPS + 1):
        B = (((TK + rho * (Z - multipliers)) @ Q) / (values + rho)) @ Q.T
        ahead = RELAXED * B + (1 - RELAXED) * Z
        left, s, right = np.linalg.svd(ahead + multipliers, full_matrices=False)
        s = np.asarray(norm.prox(s, weight / rho))
        before = Z
        Z = left * s @ right
        multipliers = multipliers + ahead - Z
        if count % CHECKED:
            continue
        value = float(np.sum((T - Z @ K) ** 2) + weight * norm.value(s))
        N = rho * multipliers @ back
        lower, factor = _dual(T, K, weight, N)
        if lower > bound:
            bound = lower
            dual = factor * N
        if value < reached:
            best = Z
            reached = value
        if reached - bound <= TOL * reached:
            break
        # Relative errors of map and multipliers should be of one size.
        apart = float(np.linalg.norm(B - Z) * np.linalg.norm(multipliers))
        uneven = apart / max(
            float(np.linalg.norm(Z - before) * np.linalg.norm(Z)), 1e-300
        )
        factor = min(max(uneven, 0.5), 2.0)
        rho = rho * factor
        multipliers = multipliers / factor
    return best, regression.residual + bound, dual


def _dual(T: Floats, K: Floats, weight: float, N: Floats) -> tuple[float, float]:
    """Return 2 <N, T> - |N|^2 - |N K'|_op^2 / weight at the best multiple of N, and the factor."""
    inner = float(np.sum(N * T))
    size = float(np.sum(N**2) + np.linalg.norm(N @ K.T, 2) ** 2 / weight)
    return (inner**2 / size, inner / size) if inner > 0 else (0.0, 0.0)


def _positive_root(regression: Regression) -> Floats:
    """Return the diagonal of D^(1/2), with 1 in place of 0."""
    D = regression.input_variances
    return np.sqrt(np.where(D > 0, D, 1.0))
