"""Witnesses of proofs: thresholds, costs, sets of units and dual points that make bounds tight.

All of them are proposals: a bad one makes the bound that the checker evaluates loose, never wrong.
docs/howto/proofs.md derives the inequalities.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._types import Floats
from overt.linear.bounds import UnitShares
from overt.linear.effect import NoiseEffect
from overt.linear.sharing import sharing
from overt.linear.unit_sets import certified_pieces
from overt.noise import DropBlock, Dropout, Noise
from overt.proofs.proofs import dominating
from overt.spectral import KSupport

SETS_SLACK = 1e-11
"""Share of the matrix that sets of units leave to single units, to absorb rounding."""

SLACK = 1e-12
"""Share of the matrix by which costs are lowered, so that the difference can be shown positive."""


def unit_witness(noise: Noise, width: int, s: Floats) -> dict[str, Any]:
    """Return the witness for a two-layer network and a target with singular values s."""
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


def multiplier_witness(effect: NoiseEffect) -> dict[str, Any]:
    """Return what the best map leaves over, N in place of the target T, for DropConnect."""
    task = effect.regression.dense("prove")
    best = effect.relaxation
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
