"""Noise on the hidden units of x -> U V'x.

With P = L'V and R = T - U P' the objective is residual + |R|^2 + <Gamma, U'U o P'P>.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from overt import penalty
from overt._check import Floats
from overt.linear.bounds import EXACT, Relaxation, UnitShares, positive, relax
from overt.linear.descent import attains, refine
from overt.linear.network import Evaluation, NoiseEffect
from overt.linear.regression import EPS, Regression
from overt.linear.sharing import Pair, sharing
from overt.linear.training import Advance, masked_steps
from overt.linear.unit_sets import certified_pieces
from overt.noise import DropBlock, Dropout, Noise
from overt.spectral import KSupport

CANCELS = 0.01
"""Share of its terms' absolute values below which a penalty is evaluated without cancellation."""

RANK_MARGIN = 1e-10
"""Share of the largest singular value within which a threshold does not decide the rank."""

RIDGE = 1e-14
"""Ridge added to the costs of units, relative to their sizes, so that they decide."""


SETS_SLACK = 1e-11
"""Share of the matrix that sets of units leave to single units, to absorb rounding."""

SLACK = 1e-12
"""Share of the matrix by which costs are lowered, so that the difference can be shown positive."""


class UnitNoise(NoiseEffect):
    """Any noise over the hidden units of a two-layer network."""

    def __init__(self, regression: Regression, width: int, noise: Noise) -> None:
        noise.mean(width)  # the noise must fit the width
        self.regression = regression
        self.width = width
        self.noise = noise
        self.shapes = (regression.outputs, width), (regression.inputs, width)
        self.sharing = sharing(noise, width)
        if not noise.independent and self._characteristic.min() < 0:
            # Terms of the penalty cancel; the remainder is known up to the rounding of Gamma.
            largest = float(self._characteristic.max())
            self.least = max(32 * EPS / EXACT * min(1.0, largest), self.least)

    @property
    def directions(self) -> int:
        """The largest rank of a map."""
        return self.width if self.max_rank is None else min(self.width, self.max_rank)

    @cached_property
    def relaxation(self) -> Relaxation:
        """The target with the noise's envelopes in place of its penalty."""
        leading = partial(self.regression.leading, self.directions)
        rule = self.sharing
        return relax(leading, rule.envelopes(), self.regression, rule.refined)

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """That of the one best map, where its spectrum is known in closed form.

        Values that are within rounding of the threshold may or may not belong to it.
        """
        (costs,) = self.sharing.envelopes() if self.sharing.exact else (None,)
        if not isinstance(costs, UnitShares) or costs.one_direction:
            return None
        s = self.regression.leading(self.directions, costs).s
        margin = s - costs.multipliers(s)[: len(s)]
        unsure = RANK_MARGIN * s[0]
        return int(np.sum(margin > unsure)), int(np.sum((margin > -unsure) & (s > 0)))

    def best_weights(self) -> Sequence[Floats]:
        """Return factors of the relaxation's map, refined by descent if they are not exact.

        The penalty depends on U'U and P'P only, so turning a map's singular directions to those of
        T costs nothing and gains (von Neumann): the best U and P lie in the leading directions.
        """
        if self.sharing.exact:
            U, P = self.sharing.factors(*self.relaxation.kept)
            return U, self.regression.unwhiten(P)
        task = self.regression.dense("refine by descent")
        left, s, right = task.svd
        d = self.directions
        rest = task.residual + float(np.sum(s[d:] ** 2))
        enough = attains(self.relaxation.bound) - rest
        U, P = _balanced(*self._best_factors(s[:d], self.relaxation.spectrum, enough))
        return left[:, :d] @ U, task.unwhiten(right[:, :d] @ P)

    def best_root(self, m: Floats, a: Floats, enough: float) -> Floats:
        """Return the best B found of |diag(m) - B B'|^2 + <Gamma, B'B o B'B>, m >= 0 decreasing.

        The first start are factors of the relaxation's map, with the spectrum a.
        """

        def value(B: Floats) -> tuple[float, Sequence[Floats]]:
            objective, (gradient, other) = self._value(np.diag(m), B, B)
            return objective, (gradient + other,)

        (B,) = refine(value, [(self._shared(m, a),)], enough)
        return B

    def _best_factors(self, m: Floats, a: Floats, enough: float) -> Pair:
        """Return the best (U, P) found of |diag(m) - U P'|^2 + <Gamma, U'U o P'P>.

        P may differ from U where noise is correlated: units that cancel each other cancel noise
        too. The best P for a U is known, so descent is in U alone.
        """
        start = self._shared(m, a)
        T = np.diag(m)

        def value(U: Floats) -> tuple[float, Sequence[Floats]]:
            objective, (gradient, _) = self._value(T, U, self._partner(T, U))
            return objective, (gradient,)

        if self._value(T, start, start)[0] <= enough:
            return start, start
        (U,) = refine(value, [(start,)], enough)
        P = self._partner(T, U)
        if self._value(T, U, P)[0] < self._value(T, start, start)[0]:
            return U, P
        return start, start

    def _partner(self, T: Floats, U: Floats) -> Floats:
        """Return the best P for U: (U'U + Gamma o U'U) P' = U'T.

        Units are scaled to one size, which does not change the solution.
        """
        size = np.linalg.norm(U, axis=0)
        size = np.where(size > 0, size, 1.0)
        unit = U / size
        K = unit.T @ unit
        K = K + self._characteristic * K
        K += RIDGE * np.diag(1 + np.diag(K))
        return np.asarray((np.linalg.solve(K, unit.T @ T) / size[:, None]).T)

    def _value(self, T: Floats, U: Floats, P: Floats) -> tuple[float, Sequence[Floats]]:
        """Return |T - U P'|^2 + <Gamma, U'U o P'P> and its gradients."""
        Gamma = self._characteristic
        R = T - U @ P.T
        UU = U.T @ U
        PP = P.T @ P
        value = float(np.sum(R * R) + np.sum(Gamma * UU * PP))
        gradient_U = 2 * (U @ (Gamma * PP) - R @ P)
        gradient_P = 2 * (P @ (Gamma * UU) - R.T @ U)
        return value, (gradient_U, gradient_P)

    def _shared(self, m: Floats, a: Floats) -> Floats:
        """Return a root of diag(a), a map in the coordinates of diag(m), as units best share it."""
        unit = np.eye(len(m))
        kept = positive(a)
        B, _ = self.sharing.factors(unit[:, kept], a[kept], unit[:, kept])
        return B

    def evaluate(self, *weights: Floats) -> tuple[Floats, Floats, float]:
        """Return the weights, which are the factors, and <Gamma, U'U o H'H>."""
        U, V = weights
        return U, V, self._penalty(U, self.regression.hidden(V))

    def _penalty(self, U: Floats, H: Floats) -> float:
        if self.noise.independent:
            return float(penalty.shallow(U, H, self.noise))
        terms = self._characteristic * (U.T @ U) * (H.T @ H)
        if (total := float(np.sum(terms))) > CANCELS * np.sum(np.abs(terms)):
            return total
        # As a sum of squares |U diag(z) H'|^2 over a root of Gamma = sum z z', in triangles.
        values, vectors = np.linalg.eigh(self._characteristic)
        kept = values > EPS * values[-1]
        left, right = (np.asarray(np.linalg.qr(A, mode="r")) for A in (U, H))
        roots = (vectors[:, kept] * np.sqrt(values[kept])).T
        return float(sum(np.sum(((left * z) @ right.T) ** 2) for z in roots))

    def imbalance(self, found: Evaluation) -> float:
        """Return the variance over units, or blocks of them, of their share of the map."""
        return float(self.sharing.imbalance(found.U, found.P))

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients in (U, V)."""
        U, V = weights
        dense = self.regression.dense("train")
        value, (gradient_U, gradient_P) = self._value(dense.T, U, dense.whiten(V))
        return dense.residual + value, (gradient_U, dense.pull_back(gradient_P))

    def witness(self, s: Floats) -> dict[str, Any]:
        """Return thresholds, costs of units or sets of units."""
        return unit_witness(self.noise, self.width, s)

    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return compiled steps with masked units."""
        samples = self.regression.dense("train").samples
        return masked_steps(samples, self.noise, self.width, rng, batch_size)

    @cached_property
    def _characteristic(self) -> Floats:
        return self.noise.characteristic(self.width)


def _balanced(U: Floats, P: Floats) -> Pair:
    """Return factors whose units have u_i and p_i of one length: the objective is the same.

    Searches may end with units of 1e-10 and 1e9, which lose digits wherever they are used.
    """
    lengths = np.linalg.norm(U, axis=0), np.linalg.norm(P, axis=0)
    used = (lengths[0] > 0) & (lengths[1] > 0)
    scale = np.ones(U.shape[1])
    scale[used] = np.sqrt(lengths[1][used] / lengths[0][used])
    return U * scale, P / scale


def unit_witness(noise: Noise, width: int, s: Floats) -> dict[str, Any]:
    """Return what makes the bound of a proof tight, for a target with singular values s.

    Thresholds, costs of units or sets of units are proposals: a bad one makes the bound that the
    checker evaluates loose, never wrong. docs/howto/proofs.md derives the inequalities.
    """
    from overt.proofs.proofs import dominating

    padded = np.concatenate([s, np.zeros(width - len(s))])
    match noise:
        case Dropout(gaussian=False):
            costs = UnitShares(noise.relative_variance(width))
            return {"thresholds": costs.multipliers(padded)}
        case DropBlock(placement="grid", block_size=b):
            weight = noise.strength * b / width
            return {"thresholds": block_thresholds(padded, weight, b)}
    Gamma = np.asarray(noise.characteristic(width), dtype=float)
    rule = sharing(noise, width)
    slack = SLACK * float(np.abs(Gamma).max())
    lowered = [
        UnitShares(np.maximum(costs.delta - slack, 0.0), costs.gamma - slack / width)
        for costs in rule.envelopes()
        if isinstance(costs, UnitShares)
    ]
    best = max(lowered, key=lambda costs: costs.bound(padded))
    if not rule.exact:
        sets_slack = SETS_SLACK * float(np.abs(Gamma).max())
        pieces = certified_pieces(Gamma, s, sets_slack)
        if pieces is not None:
            gain = sum(piece.gain for piece in pieces)
            if np.sum(s**2) - gain > best.bound(padded):
                sets = [
                    {"units": list(p.units), "root": p.root, "loads": p.loads}
                    for p in pieces
                ]
                return {"slack": sets_slack, "sets": sets}
    Z = dominating(Gamma - np.diag(best.delta) - best.gamma)
    if not np.isfinite(Z).all():
        return {}
    found = {"gamma": best.gamma, "delta": best.delta, "dominated": Z}
    if not best.one_direction:
        found["thresholds"] = best.multipliers(padded)
    return found


def block_thresholds(s: Floats, w: float, block: int) -> Floats:
    """Propose the g that raise |s|^2 - sum (s_i - g_i)_+^2 - (block largest g_i^2) / w most."""
    if w == 0:
        return np.zeros_like(s)
    a = np.asarray(KSupport(block).prox(s, w))
    free = (a > 0) & (a < s / (1 + w) * (1 - 1e-12))
    tau = 0.0
    if free.any():
        tau = float(np.median((s - a)[free]))
    elif len(s) > block:
        tau = float(s[block])
    return np.maximum(s * w / (1 + w), tau)
