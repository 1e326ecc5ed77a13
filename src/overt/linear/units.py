"""Noise on the hidden units of x -> U V'x.

With P = L'V and R = T - U P' the objective is residual + |R|^2 + <Cbar, U'U o P'P>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from overt import equalize, penalty
from overt._types import Array, Floats
from overt.linear.blocks import block_factors
from overt.linear.bounds import Envelope, Relaxation, envelopes, pairs_below, positive, relax
from overt.linear.descent import refine
from overt.linear.frames import NUDGE, least_penalty
from overt.linear.effect import NoiseEffect
from overt.linear.regression import Regression
from overt.linear.sampling import Advance, masks, on_rows
from overt.linear.shares import UnitShares
from overt.noise import DropBlock, Dropout, Noise
from overt.spectral import induced

Pair = tuple[Floats, Floats]


class UnitNoise(NoiseEffect):
    """Any noise over the hidden units of a two-layer network."""

    def __init__(self, regression: Regression, width: int, noise: Noise) -> None:
        noise.mean(width)  # the noise must fit the width
        self.regression, self.width, self.noise = regression, width, noise
        self.shapes = (regression.outputs, width), (regression.inputs, width)
        self.sharing = sharing(noise, width)

    @cached_property
    def relaxation(self) -> Relaxation:
        """The target with the noise's envelopes in place of its penalty."""
        leading = partial(self.regression.leading, self.width)
        return relax(leading, self.sharing.envelopes(), self.regression)

    def best_weights(self) -> Sequence[Floats]:
        """Return factors of the relaxation's map, refined by descent if they are not exact."""
        if self.sharing.exact:
            U, P = self.sharing.factors(*self.relaxation.kept)
        else:
            left, s, right = self.regression.dense("refine by descent").svd
            bound = self.relaxation.bound - self.regression.residual
            left, s, right = left[:, : self.width], s[: self.width], right[:, : self.width]
            rest = float(np.sum(self.regression.dense("refine").svd[1][self.width :] ** 2))
            root = self.best_root(s, self.relaxation.spectrum, bound - rest)
            U, P = left @ root, right @ root
        return U, self.regression.unwhiten(P)

    def best_root(self, m: Floats, a: Floats, bound: float) -> Floats:
        """Return the best B found of |diag(m) - B B'|^2 + <Cbar, B'B o B'B>, for m >= 0 decreasing.

        The penalty depends on U'U and P'P only, so that turning a map's singular directions to
        those of T costs nothing and gains (von Neumann): the best U and P lie in the leading
        directions. That they are also equal there is not proved, but was never contradicted.
        """
        n, scale = len(m), m[0] or 1.0
        T, Cbar, unit = np.diag(m / scale), self._characteristic, np.eye(n)
        kept = positive(a)
        (start, _) = self.sharing.factors(unit[:, kept], a[kept] / scale, unit[:, kept])

        def value(B: Floats) -> tuple[float, Sequence[Floats]]:
            R, G = T - B @ B.T, B.T @ B
            return float(np.sum(R * R) + np.sum(Cbar * G * G)), (4 * (B @ (Cbar * G) - R @ B),)

        rng = np.random.default_rng(1)
        nudge = NUDGE * np.sqrt(np.mean(start**2)) * rng.standard_normal(start.shape)
        (B,) = refine(value, [(start,), (start + nudge,)], bound / scale**2)
        return np.asarray(np.sqrt(scale) * B)

    def product(self, *weights: Floats) -> Pair:
        """Return the weights, which are the factors."""
        U, V = weights
        return U, V

    def penalty(self, *weights: Floats) -> float:
        """<Cbar, U'U o H'H>."""
        U, V = weights
        return float(penalty.shallow(U, self.regression.hidden(V), self.noise))

    def imbalance(self, *weights: Floats) -> float:
        """Return the variance over units, or blocks of them, of their share of the map."""
        U, V = weights
        return float(self.sharing.imbalance(U, self.regression.whiten(V)))

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients in (U, V)."""
        (U, V), dense, Cbar = weights, self.regression.dense("train"), self._characteristic
        P = dense.whiten(V)
        R = dense.T - U @ P.T
        UU, PP = U.T @ U, P.T @ P
        value = dense.residual + float(np.sum(R * R) + np.sum(Cbar * UU * PP))
        gradient_P = 2 * (P @ (Cbar * UU) - R.T @ U)
        return value, (2 * (U @ (Cbar * PP) - R @ P), dense.pull_back(gradient_P))

    def steps(self, rng: np.random.Generator) -> Advance:
        """Return compiled steps with masked units."""
        from overt.linear import kernels

        samples = self.regression.dense("train").samples
        mask = masks(self.noise, self.width, rng)
        return on_rows(
            lambda rows, rates: kernels.unit_steps(*rows, samples, mask(len(rates)), rates, rng)
        )

    @cached_property
    def _characteristic(self) -> Floats:
        return self.noise.characteristic(self.width)


class Sharing(NamedTuple):
    """How hidden units share a map A = left diag(a) right', a > 0, at the least penalty known.

    `envelopes` lists what the noise costs a map at least, `factors(left, a, right)` returns factors
    of the map, the best way known; `exact` says that these are a global optimum, whatever the width.
    `imbalance(U, P)` is the variance of what the noise makes equal.
    """

    envelopes: Callable[[], Sequence[Envelope]]
    factors: Callable[[Floats, Floats, Floats], Pair]
    exact: bool = False
    imbalance: Callable[[Floats, Floats], Array] = equalize.imbalance


def sharing(noise: Noise, width: int) -> Sharing:
    """Return what theory says about a noise over units: the one place that tells them apart."""
    match noise:
        case Dropout():
            units: UnitShares | None = UnitShares(noise.relative_variance(width))
        case DropBlock(placement="grid", block_size=b):
            equal = partial(equalize.block_imbalance, block_size=b)
            induces = [induced(noise, width)]
            return Sharing(lambda: induces, partial(_equal_blocks, width, b), imbalance=equal)
        case _:
            units = _diagonal_plus_constant(noise, width)
    if units is not None:
        return Sharing(lambda: [units], partial(_shared_units, units), exact=True)
    Cbar = noise.characteristic(width)
    below = lambda: [*envelopes(noise, width), *pairs_below(Cbar)]  # noqa: E731
    return Sharing(below, partial(_unlike_units, Cbar))


def _diagonal_plus_constant(noise: Noise, width: int) -> UnitShares | None:
    """Return the costs of units under Cbar = diag(delta) + gamma 1 1', None if it is not that."""
    if noise.independent or width == 1:
        return UnitShares(noise.relative_variance(width))
    Cbar = noise.characteristic(width)
    others = Cbar[~np.eye(width, dtype=bool)]
    gamma = float(np.mean(others))
    delta = np.diag(Cbar) - gamma
    rounding = 1e-14 * np.abs(Cbar).max()
    if np.ptp(others) > rounding or delta.min() < -rounding or gamma < -1 - rounding:
        return None
    if np.ptp(delta) <= rounding:  # equal up to rounding: all units alike
        delta = np.full(width, delta.mean())
    return UnitShares(np.maximum(delta, 0.0), gamma)


def _equal_units(width: int, left: Floats, a: Floats, right: Floats) -> Pair:
    if len(a) == 0:
        return np.zeros((len(left), width)), np.zeros((len(right), width))
    return equalize.balanced_factors(left, a, right, width)


def _shared_units(units: UnitShares, left: Floats, a: Floats, right: Floats) -> Pair:
    """Return factors whose units carry their best shares, by Schur and Horn."""
    if len(a) == 0 or np.ptp(units.delta) == 0:
        return _equal_units(len(units.delta), left, a, right)
    padded = np.concatenate([a, np.zeros(len(units.delta) - len(a))])
    Q = equalize.schur_horn(padded, units.shares(a))[: len(a)]
    return (left * np.sqrt(a)) @ Q, (right * np.sqrt(a)) @ Q


def _unlike_units(Cbar: Floats, left: Floats, a: Floats, right: Floats) -> Pair:
    """Return factors of the least penalty that descent finds for this map."""
    if len(a) == 0:
        return _equal_units(len(Cbar), left, a, right)
    unit, root = np.eye(len(a)), np.sqrt(a)
    balanced = equalize.balanced_factors(unit, a, unit, len(Cbar))[0] / root[:, None]
    R = least_penalty(Cbar, a, [balanced], tries=2)
    return (left * root) @ R, (right * root) @ R


def _equal_blocks(width: int, b: int, left: Floats, a: Floats, right: Floats) -> Pair:
    if len(a) == 0:
        return _equal_units(width, left, a, right)
    return block_factors(left, a, right, width, b)
