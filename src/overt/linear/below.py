"""Bounds below a characteristic matrix as stored, for proofs: any noise over units.

If Gamma - diag(delta) - gamma 1 1' is positive definite, the noise costs at least as much as units
with these costs (`UnitShares`); with zeros in place of delta, and Gamma_ij = 0 for |i - j| >= band,
it costs at least gamma times the squared k-support norm, k = band. Both are proposals here; that
the difference is positive definite is enclosed.
"""

from __future__ import annotations

from typing import Any

import flint
import numpy as np

from overt._types import Floats
from overt.linear import balls
from overt.linear.bounds import Envelope, spectral_bound
from overt.linear.effect import NoiseEffect
from overt.linear.shares import UnitShares
from overt.spectral import KSupport, Schatten

SLACK = 1e-12
"""Share of the matrix by which costs are lowered, so that the difference can be shown positive."""


def gain(
    Gamma: Floats, s: list[Any], m: Floats, effect: NoiseEffect, witness: dict[str, Any]
) -> Any:
    """Return at least what a map of the width's rank can gain: |M|^2 less this bounds all weights.

    sum_i (s_i - g_i)_+^2 / (1 + gamma) + sum_i g_i^2 / delta_i; s_1^2 / (1 + c), c = gamma +
    1 / sum_i 1 / delta_i, for gamma <= -1; sum_i (s_i - g_i)_+^2 + (band largest g_i^2) / gamma.
    """
    if "gamma" not in witness:
        _propose(Gamma, m, effect, witness)
    gamma, delta = witness.get("gamma"), witness.get("delta")
    if gamma is None:
        return sum((x**2 for x in s), flint.arb(0))
    rise = flint.arb(gamma)
    if delta is not None and gamma <= -1:
        together = 1 / sum((1 / flint.arb(float(x)) for x in delta), flint.arb(0))
        return s[0] ** 2 / (1 + rise + together)
    g = [flint.arb(float(y)) for y in witness["thresholds"]]
    used = sum((balls.positive(x - y) ** 2 for x, y in zip(s, g, strict=False)), flint.arb(0))
    if delta is None:
        top = sorted(g, key=float)[-witness["band"] :]
        return used + sum((y * y for y in top), flint.arb(0)) / rise
    return used / (1 + rise) + cost(g, [flint.arb(c) for c in np.sort(delta).tolist()])


def cost(g: list[Any], costs: list[Any]) -> Any:
    """Return sum_i g_i^2 / costs_i, costs increasing; without a cost nothing may be charged."""
    if any(c == 0 and y != 0 for y, c in zip(g, costs, strict=True)):
        raise ArithmeticError("a threshold must be 0 where a unit has no noise")
    pairs = zip(g, costs, strict=True)
    return sum((y * y / c for y, c in pairs if c != 0), flint.arb(0))


def _propose(Gamma: Floats, m: Floats, effect: NoiseEffect, witness: dict[str, Any]) -> None:
    """Add the costs of the best envelope, thresholds, and Z that shows them to be below Gamma."""
    untied: Any = getattr(effect, "untied", effect)
    candidates = [_lowered(envelope, Gamma) for envelope in untied.sharing.envelopes()]
    ordered = sorted(candidates, key=lambda envelope: -spectral_bound(m, 0.0, envelope))
    for envelope in ordered[:3]:
        if isinstance(envelope, UnitShares):
            delta, gamma = envelope.delta, envelope.gamma
            found: dict[str, Any] = {"delta": delta}
            if gamma > -1:
                found["thresholds"] = envelope.multipliers(m)
        else:
            delta, gamma, band = np.zeros(len(Gamma)), envelope[0], envelope[1].k
            found = {"band": band, "thresholds": block_thresholds(m, gamma, band)}
        below = balls.balls(np.diag(delta)) + balls.balls(np.full(Gamma.shape, gamma))
        D = balls.balls(Gamma) - below
        Z = balls.dominating(balls.floats(D))
        if balls.dominated(D, Z):
            found |= {"gamma": gamma, "dominated": Z}
            witness |= {name: value for name, value in found.items() if name not in witness}
            return


def _lowered(envelope: Envelope, Gamma: Floats) -> UnitShares | tuple[float, KSupport]:
    """Return an envelope that is a little lower."""
    slack, d = SLACK * float(np.abs(Gamma).max()), len(Gamma)
    if isinstance(envelope, UnitShares):
        return UnitShares(np.maximum(envelope.delta - slack, 0.0), envelope.gamma - slack / d)
    weight, norm = envelope
    if isinstance(norm, KSupport) and norm.k > 1:
        return weight * (1 - 1e-9), norm
    if isinstance(norm, Schatten):
        return UnitShares(np.zeros(d), weight * (1 - 1e-9))
    return UnitShares(np.full(d, max(weight * d - slack, 0.0)), -slack / d)


def block_thresholds(s: Floats, w: float, block: int) -> Floats:
    """Propose the g that raise |s|^2 - sum (s_i - g_i)_+^2 - (block largest g_i^2) / w most."""
    if w == 0:
        return np.zeros_like(s)
    a = np.asarray(KSupport(block).prox(s, w))
    free = (a > 0) & (a < s / (1 + w) * (1 - 1e-12))
    tau = float(np.median((s - a)[free])) if free.any() else 0.0
    if not free.any() and len(s) > block:
        tau = float(s[block])
    return np.maximum(s * w / (1 + w), tau)
