"""Noise on the hidden units of x -> U V'x.

With P = L'V and R = T - U P' the objective is residual + |R|^2 + <Gamma, U'U o P'P>.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np

from overt import penalty
from overt._types import Floats
from overt.linear.bounds import EXACT, Relaxation, positive, relax
from overt.linear.descent import attains, nudged, refine
from overt.linear.effect import Evaluation, NoiseEffect, Regression, decayed
from overt.linear.sampling import Advance, masks
from overt.linear.shares import UnitShares
from overt.linear.sharing import Pair, sharing
from overt.linear.whitening import EPS
from overt.noise import Noise

CANCELS = 0.01
"""Share of its terms' absolute values below which a penalty is evaluated without cancellation."""

WEAK = 1e-8
"""Largest entry of Gamma to which weaker noise is raised where weights are looked for."""

RANK_MARGIN = 1e-10
"""Share of the largest singular value within which a threshold does not decide the rank."""

RIDGE = 1e-14
"""Ridge added to the costs of units, relative to their sizes, so that they decide."""


class UnitNoise(NoiseEffect):
    """Any noise over the hidden units of a two-layer network."""

    def __init__(
        self,
        regression: Regression,
        width: int,
        noise: Noise,
        weight_decay: float = 0.0,
    ) -> None:
        noise.mean(width)  # the noise must fit the width
        self.regression, self.width, self.noise = regression, width, noise
        self.weight_decay = weight_decay
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
        return relax(
            leading, rule.envelopes(), self.regression, self.decay, rule.refined
        )

    @cached_property
    def decay(self) -> float:
        """Weight decay in whitened coordinates: |v| >= |L'v| / |L|, equal for isotropic inputs."""
        return (
            self.weight_decay / self.regression.largest_root
            if self.weight_decay
            else 0.0
        )

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """That of the one best map, where its spectrum is known in closed form.

        Values that are within rounding of the threshold may or may not belong to it.
        """
        (costs,) = self.sharing.envelopes() if self.sharing.exact else (None,)
        isotropic = not self.weight_decay or self.regression.isotropic
        if (
            not isinstance(costs, UnitShares)
            or costs.gamma <= -1 + 1e-12
            or not isotropic
        ):
            return None
        s = self.regression.leading(self.directions, costs).s
        s = np.maximum(s - self.decay, 0.0)
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
            return self._decayed(U, self.regression.unwhiten(P))
        task = self.regression.dense("refine by descent")
        left, s, right = task.svd
        d = self.directions
        m = s[:d]
        enough = (
            attains(self.relaxation.bound) - task.residual - float(np.sum(s[d:] ** 2))
        )
        U, P = self.best_factors(m, self._shared(m, self.relaxation.spectrum), enough)
        return self._decayed(left[:, :d] @ U, task.unwhiten(right[:, :d] @ P))

    def _decayed(self, U: Floats, V: Floats) -> Sequence[Floats]:
        """Return the factors, if weights decay, at equal norms, by descent unless C is isotropic.

        Multiplying u_i and dividing v_i changes neither the map nor what noise costs.
        """
        if not self.weight_decay:
            return U, V
        u, v = np.linalg.norm(U, axis=0), np.linalg.norm(V, axis=0)
        ratio = np.sqrt(np.divide(v, u, out=np.ones_like(u), where=(u > 0) & (v > 0)))
        U, V = U * ratio, V / ratio
        if self.regression.isotropic:
            return U, V
        return refine(
            self.value, [(U, V), nudged(U, V)], attains(self.relaxation.bound)
        )

    def best_root(self, m: Floats, a: Floats, enough: float) -> Floats:
        """Return the best B found of |diag(m) - B B'|^2 + <Gamma, B'B o B'B>, m >= 0 decreasing.

        The first start are factors of the relaxation's map, with the spectrum a.
        """
        scale = m[0] or 1.0
        T, start, mu = (
            np.diag(m) / scale,
            self._shared(m, a / scale),
            self.decay / scale,
        )

        def value(B: Floats) -> tuple[float, Sequence[Floats]]:
            objective, (gradient, other) = self._value(T, B, B, mu)
            return objective, (gradient + other,)

        (B,) = refine(value, [(start,), nudged(start)], enough / scale**2)
        return np.asarray(np.sqrt(scale) * B)

    def best_factors(self, m: Floats, start: Floats, enough: float) -> Pair:
        """Return the best (U, P) found of |diag(m) - U P'|^2 + <Gamma, U'U o P'P>.

        P may differ from U where noise is correlated: units that cancel each other cancel noise
        too. The best P for a U is known, so descent is in U alone, for which noise that is weaker
        than WEAK may be raised: at first order its strength is only a factor.
        """
        scale, B = m[0] or 1.0, start / np.sqrt(m[0] or 1.0)
        T, mu = np.diag(m) / scale, self.decay / scale
        if self._value(T, B, B, mu)[0] > enough / scale**2:
            raised = max(
                1.0, WEAK / (float(np.abs(self._characteristic).max()) or WEAK)
            )

            def value(U: Floats) -> tuple[float, Sequence[Floats]]:
                P = self._partner(T, U, mu, raised)
                objective, (gradient, _) = self._value(T, U, P, mu, raised)
                return objective, (gradient,)

            (U,) = refine(value, [(B,), nudged(B)], enough / scale**2)
            P = self._partner(T, U, mu)
            if self._value(T, U, P, mu)[0] < self._value(T, B, B, mu)[0]:
                return np.sqrt(scale) * U, np.sqrt(scale) * P
        return start, start

    def _partner(
        self, T: Floats, U: Floats, mu: float, raised: float | None = None
    ) -> Floats:
        """Return the best P for U: (U'U + Gamma o U'U + mu I) P' = U'T; unless raised, from roots.

        Units are scaled to one size, which does not change the solution.
        """
        UU = U.T @ U
        size = np.sqrt(np.diag(UU))
        size = np.where(size > 0, size, 1.0)
        cost = (raised or 1.0) * self._characteristic * UU + mu * np.eye(len(UU))
        cost, U = cost / np.outer(size, size), U / size
        if raised:
            K = U.T @ U + cost
            K += RIDGE * np.diag(1 + np.diag(K))
            return np.asarray((np.linalg.solve(K, U.T @ T) / size[:, None]).T)
        values, vectors = np.linalg.eigh(cost)
        root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        rows = np.vstack([U, root]), np.vstack([T, np.zeros((len(root), T.shape[1]))])
        return np.asarray((np.linalg.lstsq(*rows, rcond=None)[0] / size[:, None]).T)

    def _value(
        self, T: Floats, U: Floats, P: Floats, mu: float = 0.0, raised: float = 1.0
    ) -> tuple[float, Sequence[Floats]]:
        """Return |T - U P'|^2 + <Gamma, U'U o P'P> + mu (|U|^2 + |P|^2) and its gradients."""
        Gamma, R = raised * self._characteristic, T - U @ P.T
        UU, PP = U.T @ U, P.T @ P
        value = float(
            np.sum(R * R) + np.sum(Gamma * UU * PP) + mu * (np.trace(UU) + np.trace(PP))
        )
        return value, (
            2 * (U @ (Gamma * PP) - R @ P + mu * U),
            2 * (P @ (Gamma * UU) - R.T @ U + mu * P),
        )

    def _shared(self, m: Floats, a: Floats) -> Floats:
        """Return a root of diag(a), a map in the coordinates of diag(m), as units best share it."""
        unit, kept = np.eye(len(m)), positive(a)
        B, _ = self.sharing.factors(unit[:, kept], a[kept], unit[:, kept])
        return B

    def product(self, *weights: Floats) -> Pair:
        """Return the weights, which are the factors."""
        U, V = weights
        return U, V

    def penalty(self, *weights: Floats) -> float:
        """<Gamma, U'U o H'H>."""
        U, V = weights
        H = self.regression.hidden(V)
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
        (U, V), dense = weights, self.regression.dense("train")
        value, (gradient_U, gradient_P) = self._value(dense.T, U, dense.whiten(V))
        gradients = gradient_U, dense.pull_back(gradient_P)
        return decayed(self.weight_decay, weights, dense.residual + value, *gradients)

    def steps(
        self,
        rng: np.random.Generator,
        batch_size: int = 1,
        decay: tuple[float, float] | None = None,
    ) -> Advance:
        """Return compiled steps with masked units."""
        from overt.linear import kernels

        decay = decay or (self.weight_decay, self.weight_decay)
        samples, shape = self.regression.dense("train").samples, (self.width,)
        return masks(
            kernels.unit_steps,
            samples,
            self.noise,
            shape,
            rng,
            batch_size=batch_size,
            decay=decay,
        )

    @cached_property
    def _characteristic(self) -> Floats:
        return self.noise.characteristic(self.width)
