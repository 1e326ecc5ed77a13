"""How hidden units share a map at the least penalty, noise by noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from overt import equalize
from overt._types import Array, Floats
from overt.linear.blocks import block_factors
from overt.linear.bounds import Envelope, envelopes, pairs_below
from overt.linear.descent import least_penalty
from overt.linear.shares import UnitShares
from overt.linear.unit_sets import any_noise_bound
from overt.noise import DropBlock, Dropout, Noise
from overt.spectral import induced

Pair = tuple[Floats, Floats]


class Sharing(NamedTuple):
    """How hidden units share a map A = left diag(a) right', a > 0, at the least penalty known.

    `envelopes` lists what the noise costs a map at least, `spread(left, a, right)` returns factors
    of a map that is not zero, the best way known; `exact` says that these are a global optimum at
    any width. `refined(s)` is a further lower bound on the objective for a target with singular
    values s, where no envelope is exact. `imbalance(U, P)` is the variance of what the noise makes
    equal.
    """

    width: int
    envelopes: Callable[[], Sequence[Envelope]]
    spread: Callable[[Floats, Floats, Floats], Pair]
    exact: bool = False
    refined: Callable[[Floats], float] | None = None
    imbalance: Callable[[Floats, Floats], Array] = equalize.imbalance

    def factors(self, left: Floats, a: Floats, right: Floats) -> Pair:
        """Return factors of the map."""
        if len(a) == 0:
            return np.zeros((len(left), self.width)), np.zeros((len(right), self.width))
        return self.spread(left, a, right)


def sharing(noise: Noise, width: int) -> Sharing:
    """Return what theory says about a noise over units: the one place that tells them apart."""
    match noise:
        case Dropout():
            units: UnitShares | None = UnitShares(noise.relative_variance(width))
        case DropBlock(placement="grid", block_size=b):
            equal = partial(equalize.block_imbalance, block_size=b)
            induces = [induced(noise, width)]
            spread = partial(block_factors, width=width, block_size=b)
            return Sharing(width, lambda: induces, spread, imbalance=equal)
        case _:
            units = _diagonal_plus_constant(noise, width)
    if units is not None:
        return Sharing(width, lambda: [units], partial(_shared_units, units), exact=True)
    Gamma = noise.characteristic(width)
    below = partial(_below, noise, Gamma)
    refined = partial(any_noise_bound, Gamma)
    return Sharing(width, below, partial(_unlike_units, Gamma), refined=refined)


def _below(noise: Noise, Gamma: Floats) -> list[Envelope]:
    return [*envelopes(noise, len(Gamma)), *pairs_below(Gamma)]


def _diagonal_plus_constant(noise: Noise, width: int) -> UnitShares | None:
    """Return the costs of units under Gamma = diag(delta) + gamma 1 1', None if it is not that."""
    if noise.independent or width == 1:
        return UnitShares(noise.relative_variance(width))
    Gamma = noise.characteristic(width)
    others = Gamma[~np.eye(width, dtype=bool)]
    gamma = float(np.mean(others))
    delta = np.diag(Gamma) - gamma
    rounding = 1e-14 * np.abs(Gamma).max()
    if np.ptp(others) > rounding or delta.min() < -rounding:
        return None
    if np.ptp(delta) <= rounding:  # equal up to rounding: all units alike
        delta = np.full(width, delta.mean())
    return UnitShares(np.maximum(delta, 0.0), gamma)


def _shared_units(units: UnitShares, left: Floats, a: Floats, right: Floats) -> Pair:
    """Return factors whose units carry their best shares, by Schur and Horn."""
    if np.ptp(units.delta) == 0:
        return equalize.balanced_factors(left, a, right, len(units.delta))
    padded = np.concatenate([a, np.zeros(len(units.delta) - len(a))])
    Q = equalize.schur_horn(padded, units.shares(a))[: len(a)]
    return (left * np.sqrt(a)) @ Q, (right * np.sqrt(a)) @ Q


def _unlike_units(Gamma: Floats, left: Floats, a: Floats, right: Floats) -> Pair:
    """Return factors of the least penalty that descent finds for this map."""
    root = np.sqrt(a)
    balanced = equalize.equalizer(root[:, None] * np.eye(len(a), len(Gamma)))[: len(a)]
    R = least_penalty(Gamma, a, [balanced], tries=2)
    return (left * root) @ R, (right * root) @ R
