"""The largest lead of a wrong class over a two-layer network's inputs, by scipy's HiGHS.

maximise (A_j - A_y) h + c_j - c_y  over  h = max(slope z, z),  z = W (x + d) + b,  d allowed
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from overt.results import Floats
from overt.robust.threat import L1, L2, Linf, Threat

TIGHT = 1e-7
"""How far, relative to the radius, tangent planes may leave a Euclidean ball."""


@dataclass(frozen=True)
class Network:
    """x -> A max(slope z, z) + c, z = W x + b."""

    W: Floats
    b: Floats
    A: Floats
    c: Floats
    slope: float

    def logits(self, x: Floats) -> Floats:
        """Return the logits of one input."""
        z = self.W @ x + self.b
        return self.A @ np.maximum(self.slope * z, z) + self.c


def best_lead(
    net: Network, x: Floats, own: int, threat: Threat, level: float
) -> tuple[float, float, Floats]:
    """Return (lead reached, proved upper bound, the input that reaches it) over wrong classes.

    Classes and tangent planes are gone through only until the level is decided.
    """
    best, bound, where = -np.inf, -np.inf, x
    for j in range(len(net.A)):
        if j == own:
            continue
        reached, upper, moved = _against(net, x, own, j, threat, level)
        if reached > best:
            best, where = reached, moved
        bound = max(bound, upper)
        if best > max(level, 0.0):
            break
    return best, bound, where


def _against(
    net: Network, x: Floats, own: int, j: int, threat: Threat, level: float
) -> tuple[float, float, Floats]:
    d, m = len(x), len(net.W)
    low, high = _box(x, threat)
    z0 = net.W @ x + net.b
    reach = threat.radius * threat.dual(torch.from_numpy(net.W)).numpy()
    up = z0 + np.minimum(reach, np.where(net.W > 0, net.W * high, net.W * low).sum(1))
    down = z0 - np.minimum(reach, -np.where(net.W > 0, net.W * low, net.W * high).sum(1))
    # Variables: d (inputs), |d| (inputs, for L1), h (width), s (width, 1 where z >= 0).
    extra = d if isinstance(threat, L1) else 0
    first_h, first_s = d + extra, d + extra + m
    total = first_s + m
    rows: list[tuple[Floats, float]] = []  # row . variables <= limit

    def row(**parts: tuple[slice | int, Floats | float]) -> Floats:
        values = np.zeros(total)
        for where, value in parts.values():
            values[where] += value
        return values

    a = net.slope
    for i in range(m):
        w, h, s = (slice(0, d), net.W[i]), first_h + i, first_s + i
        # h >= z and h >= a z
        rows.append((row(w=w, h=(h, -1.0)), -z0[i]))
        rows.append((row(w=(w[0], a * net.W[i]), h=(h, -1.0)), -a * z0[i]))
        # h <= z - (1 - a) down (1 - s) and h <= a z + (1 - a) up s
        room = (1 - a) * max(-down[i], 0.0)
        rows.append((row(w=(w[0], -net.W[i]), h=(h, 1.0), s=(s, room)), z0[i] + room))
        room = (1 - a) * max(up[i], 0.0)
        rows.append((row(w=(w[0], -a * net.W[i]), h=(h, 1.0), s=(s, -room)), a * z0[i]))
    if extra:
        for k in range(d):
            rows.append((row(d=(k, 1.0), t=(d + k, -1.0)), 0.0))
            rows.append((row(d=(k, -1.0), t=(d + k, -1.0)), 0.0))
        rows.append((row(t=(slice(d, 2 * d), 1.0)), threat.radius))
    cost = np.zeros(total)
    cost[first_h:first_s] = -(net.A[j] - net.A[own])
    offset = float(net.c[j] - net.c[own])
    kinds = np.zeros(total)
    kinds[first_s:] = 1
    h_low, h_high = np.maximum(a * down, down), np.maximum(a * up, up)
    s_low, s_high = (down >= 0).astype(float), (up > 0).astype(float)
    s_high = np.maximum(s_high, s_low)
    limits = Bounds(
        np.concatenate([low, np.zeros(extra), h_low, s_low]),
        np.concatenate([high, np.full(extra, threat.radius), h_high, s_high]),
    )
    best, upper, where = -np.inf, np.inf, x
    for _ in range(400):
        matrix = csr_array(np.array([r for r, _ in rows]))
        answer = milp(
            cost,
            constraints=LinearConstraint(matrix, -np.inf, np.array([v for _, v in rows])),
            bounds=limits,
            integrality=kinds,
            options={"mip_rel_gap": 0.0, "disp": False},
        )
        if answer.x is None:
            raise RuntimeError(f"the mixed-integer solver failed: {answer.message}")
        upper = min(upper, -float(answer.mip_dual_bound) + offset)
        delta = answer.x[:d]
        length = float(np.linalg.norm(delta))
        outside = isinstance(threat, L2) and length > threat.radius * (1 + TIGHT)
        inside = delta * (threat.radius / length) if outside else delta
        f = net.logits(x + inside)
        if f[j] - f[own] > best:
            best, where = float(f[j] - f[own]), x + inside
        if not outside or upper < level or best > max(level, 0.0):
            break
        rows.append((row(d=(slice(0, d), delta / length)), threat.radius))
    return best, max(upper, best), where


def _box(x: Floats, threat: Threat) -> tuple[Floats, Floats]:
    """Return the coordinates' limits of a perturbation."""
    low, high = np.full(len(x), -threat.radius), np.full(len(x), threat.radius)
    if threat.bounds is not None:
        limits = [np.broadcast_to(np.asarray(v, float), x.shape) - x for v in threat.bounds]
        low, high = np.maximum(low, limits[0]), np.minimum(high, limits[1])
    return low, high


__all__ = ["Linf", "Network", "best_lead"]
