"""The largest lead of a wrong class over a two-layer network's inputs, by scipy's HiGHS.

maximize (A_j - A_y) h + c_j - c_y  over  h = max(slope z, z),  z = W (x + d) + b,  d allowed
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from overt._types import Floats
from overt.robust.threats.balls import L1, L2
from overt.robust.threats.base import Threat

TIGHT = 1e-7
"""How far, relative to the radius, tangent planes may leave a Euclidean ball."""

MOST_PLANES = 400
"""Tangent planes of a ball after which a point is left undecided."""

SLACK = 1e-7
"""The solver's tolerance of dual feasibility, by which its bound may be off."""


@dataclass(frozen=True, eq=False)
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
    program = _Program(net, x, own, j, threat)
    best, upper, where = -np.inf, np.inf, x
    for _ in range(MOST_PLANES):
        proved, delta = program.solve()
        upper = min(upper, proved)
        length = float(threat.size(torch.from_numpy(delta)[None]))
        outside = isinstance(threat, L2) and length > threat.radius * (1 + TIGHT)
        inside = delta * (threat.radius / length) if length > threat.radius else delta
        f = net.logits(x + inside)
        if f[j] - f[own] > best:
            best, where = float(f[j] - f[own]), x + inside
        if not outside or upper < level or best > max(level, 0.0):
            break
        if upper - best <= 2 * SLACK * program.scale:  # a tie: more planes cannot decide it
            break
        program.cut(delta / length)
    return best, max(upper, best), where


class _Program:
    """The mixed-integer program for one point and one wrong class.

    Variables: d (inputs), |d| (inputs, for L1), h (width), s (width, 1 where z >= 0). The solver's
    tolerances are absolute, so it is given d in units of the radius, the z and h of each unit in
    units of the largest |z| it can reach, and an objective whose coefficients have the sum 1.
    """

    def __init__(self, net: Network, x: Floats, own: int, j: int, threat: Threat) -> None:
        d, m, a = len(x), len(net.W), net.slope
        low, high = _box(x, threat)
        z0 = net.W @ x + net.b
        reach = threat.radius * threat.dual(torch.from_numpy(net.W)).numpy()
        up = z0 + np.minimum(reach, np.where(net.W > 0, net.W * high, net.W * low).sum(1))
        down = z0 - np.minimum(reach, -np.where(net.W > 0, net.W * low, net.W * high).sum(1))
        self.radius = threat.radius or 1.0
        size = np.maximum(np.abs(up), np.abs(down))
        size[size == 0] = 1.0
        gain = (net.A[j] - net.A[own]) * size
        self.scale = float(np.abs(gain).sum()) or 1.0
        self.offset = float(net.c[j] - net.c[own])
        W, z0, up, down = net.W * (self.radius / size)[:, None], z0 / size, up / size, down / size

        self.inputs = d
        extra = d if isinstance(threat, L1) else 0
        first_h, first_s = d + extra, d + extra + m
        self.total = first_s + m
        self.rows: list[Floats] = []  # row . variables <= limit
        self.limits: list[float] = []
        for i in range(m):
            w, h, s = W[i], first_h + i, first_s + i
            # h >= z and h >= a z
            self._row(-z0[i], (slice(0, d), w), (h, -1.0))
            self._row(-a * z0[i], (slice(0, d), a * w), (h, -1.0))
            # h <= z - (1 - a) down (1 - s) and h <= a z + (1 - a) up s
            room = (1 - a) * max(-down[i], 0.0)
            self._row(z0[i] + room, (slice(0, d), -w), (h, 1.0), (s, room))
            room = (1 - a) * max(up[i], 0.0)
            self._row(a * z0[i], (slice(0, d), -a * w), (h, 1.0), (s, -room))
        if extra:
            for k in range(d):
                self._row(0.0, (k, 1.0), (d + k, -1.0))
                self._row(0.0, (k, -1.0), (d + k, -1.0))
            self._row(threat.radius / self.radius, (slice(d, 2 * d), 1.0))
        self.cost = np.zeros(self.total)
        self.cost[first_h:first_s] = -gain / self.scale
        self.kinds = np.zeros(self.total)
        self.kinds[first_s:] = 1
        h_low, h_high = np.maximum(a * down, down), np.maximum(a * up, up)
        s_low, s_high = (down >= 0).astype(float), (up > 0).astype(float)
        self.bounds = Bounds(
            np.concatenate([low / self.radius, np.zeros(extra), h_low, s_low]),
            np.concatenate([high / self.radius, np.ones(extra), h_high, np.maximum(s_high, s_low)]),
        )

    def _row(self, limit: float, *parts: tuple[slice | int, Floats | float]) -> None:
        values = np.zeros(self.total)
        for where, value in parts:
            values[where] += value
        self.rows.append(values)
        self.limits.append(limit)

    def cut(self, direction: Floats) -> None:
        """Add the ball's tangent plane with this unit normal."""
        self._row(1.0, (slice(0, self.inputs), direction))

    def solve(self) -> tuple[float, Floats]:
        """Return a proved upper bound on the lead, and the perturbation of the best solution."""
        answer = milp(
            self.cost,
            constraints=LinearConstraint(csr_array(np.array(self.rows)), -np.inf, self.limits),
            bounds=self.bounds,
            integrality=self.kinds,
            options={"mip_rel_gap": 0.0, "disp": False},
        )
        if answer.x is None:
            raise RuntimeError(f"the mixed-integer solver failed: {answer.message}")
        proved = self.scale * (SLACK - float(answer.mip_dual_bound)) + self.offset
        delta = np.clip(answer.x, self.bounds.lb, self.bounds.ub)[: self.inputs]
        return proved, delta * self.radius


def _box(x: Floats, threat: Threat) -> tuple[Floats, Floats]:
    """Return the coordinates' limits of a perturbation."""
    low, high = np.full(len(x), -threat.radius), np.full(len(x), threat.radius)
    if threat.bounds is not None:
        limits = [np.broadcast_to(np.asarray(v, float), x.shape) - x for v in threat.bounds]
        low, high = np.maximum(low, limits[0]), np.minimum(high, limits[1])
    return low, high
