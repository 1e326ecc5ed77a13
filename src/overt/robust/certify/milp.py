"""The largest lead of a wrong class over a network's inputs, by scipy's HiGHS.

maximize f_j - f_y  over  h_0 = x + d,  d allowed,
z_i = sum over k < i of W_ik h_k + b_i,  h_i = max(slope_i z_i, z_i),  f the last z
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from overt._types import Floats
from overt.robust.threats import L1, L2, Region

Hidden = Sequence[tuple[Floats, Floats]] | None
"""Proved bounds (low, high) of the units of each hidden layer, before the rectifier."""

TIGHT = 1e-7
"""How far, relative to the radius, tangent planes may leave a Euclidean ball."""

MOST_PLANES = 400
"""Tangent planes of a ball after which a point is left undecided."""

SLACK = 1e-7
"""The solver's tolerance of dual feasibility, by which its bound may be off."""


@dataclass(frozen=True, eq=False)
class Network:
    """z_i = sum_k W[i][k] h_k + b_i, h_i = max(slope_i z_i, z_i), h_0 = x; the last z are logits.

    W[i] maps what feeds layer i (0: inputs, k: hidden layer k) to a matrix.
    """

    W: Sequence[dict[int, Floats]]
    b: Sequence[Floats]
    slopes: Sequence[float]

    @classmethod
    def chain(
        cls, W: Sequence[Floats], b: Sequence[Floats], slopes: Sequence[float]
    ) -> Network:
        """Return a network in which each layer feeds the next one only."""
        return cls([{k: matrix} for k, matrix in enumerate(W)], b, slopes)

    @property
    def classes(self) -> int:
        """The number of logits."""
        return len(self.b[-1])

    def logits(self, x: Floats) -> Floats:
        """Return the logits of one input."""
        h = [x]
        for i, b in enumerate(self.b):
            z = sum((matrix @ h[k] for k, matrix in self.W[i].items()), b)
            if i == len(self.slopes):
                return z
            h.append(np.maximum(self.slopes[i] * z, z))
        raise AssertionError("a network has one map more than slopes")


def best_lead(
    net: Network,
    x: Floats,
    own: int,
    region: Region,
    level: float,
    *,
    hidden: Hidden = None,
    seconds: float = np.inf,
) -> tuple[float, float, Floats]:
    """Return (lead reached, proved upper bound, the input that reaches it) over wrong classes.

    Classes and tangent planes are gone through only until the level is decided, or time is over.
    `hidden` are bounds of the hidden units that are known already, a pair for each layer.
    """
    best, bound, where = -np.inf, -np.inf, x
    end = time.monotonic() + seconds
    last = max(j for j in range(net.classes) if j != own)
    for j in range(net.classes):
        if j == own:
            continue
        reached, upper, moved = _against(net, x, own, j, region, level, hidden, end)
        if reached > best:
            best, where = reached, moved
        bound = max(bound, upper)
        if best > max(level, 0.0):
            # The remaining classes are not searched: nothing is proved of their leads.
            bound = bound if j == last else np.inf
            break
    return best, bound, where


def _against(
    net: Network,
    x: Floats,
    own: int,
    j: int,
    region: Region,
    level: float,
    hidden: Hidden,
    end: float,
) -> tuple[float, float, Floats]:
    threat, program = region.threat, _Program(net, x, own, j, region, hidden)
    best, upper, where = -np.inf, np.inf, x
    for _ in range(MOST_PLANES):
        proved, delta = program.solve(end - time.monotonic())
        upper = min(upper, proved)
        if delta is None:  # time was over before any solution was found
            break
        length = float(threat.size(torch.from_numpy(delta)[None]))
        outside = isinstance(threat, L2) and length > threat.radius * (1 + TIGHT)
        inside = delta * (threat.radius / length) if length > threat.radius else delta
        f = net.logits(x + inside)
        if f[j] - f[own] > best:
            best, where = float(f[j] - f[own]), x + inside
        if not outside or upper < level or best > max(level, 0.0):
            break
        if (
            upper - best <= 2 * SLACK * program.scale
        ):  # a tie: more planes cannot decide it
            break
        program.cut(delta / length)
    return best, max(upper, best), where


@dataclass(frozen=True, eq=False)
class _Source:
    """Variables that feed layers: `base` + `unit` * variable lies between base + low and + high."""

    first: int
    unit: Floats
    base: Floats
    low: Floats
    high: Floats


class _Program:
    """The mixed-integer program for one point and one wrong class.

    Variables: d (inputs), |d| (inputs, for L1), and for each layer h (width) and s (width, 1 where
    z >= 0). The solver's tolerances are absolute, so it is given d in units of the radius, the z
    and h of each unit in units of the largest |z| it can reach, and an objective whose
    coefficients have the sum 1.
    """

    def __init__(
        self, net: Network, x: Floats, own: int, j: int, region: Region, hidden: Hidden
    ) -> None:
        threat = region.threat
        low, high = _box(x, region)
        d, extra = len(x), len(x) if isinstance(threat, L1) else 0
        self.radius, self.inputs = threat.radius or 1.0, d
        self.total = d + extra + 2 * sum(len(b) for b in net.b[:-1])
        self.rows: list[Floats] = []  # row . variables <= limit
        self.limits: list[float] = []
        self.cost, self.kinds = np.zeros(self.total), np.zeros(self.total)
        least, most = (
            [low / self.radius, np.zeros(extra)],
            [high / self.radius, np.ones(extra)],
        )
        # What may feed a layer: where its variables begin, their units, their values where all
        # variables are 0, and the limits of their values from there.
        sources = [_Source(0, np.full(d, self.radius), x, low, high)]
        at = d + extra
        for k, a in enumerate(net.slopes):
            fed = [(sources[i], W) for i, W in net.W[k].items()]
            z0 = sum((W @ source.base for source, W in fed), net.b[k])
            up, down = z0.copy(), z0.copy()
            for source, W in fed:
                up = up + np.where(W > 0, W * source.high, W * source.low).sum(1)
                down = down + np.where(W > 0, W * source.low, W * source.high).sum(1)
            if list(net.W[k]) == [0]:
                reach = (
                    threat.radius * threat.dual(torch.from_numpy(net.W[k][0])).numpy()
                )
                up, down = np.minimum(up, z0 + reach), np.maximum(down, z0 - reach)
            if hidden is not None:
                down, up = np.maximum(down, hidden[k][0]), np.minimum(up, hidden[k][1])
            size = np.maximum(np.abs(up), np.abs(down))
            size[size == 0] = 1.0
            scaled = [
                (source.first, W * source.unit / size[:, None]) for source, W in fed
            ]
            limits = self._layer(scaled, at, a, z0 / size, up / size, down / size)
            self.kinds[at + len(z0) : at + 2 * len(z0)] = 1
            least, most = [*least, *limits[0]], [*most, *limits[1]]
            rest = np.maximum(a * down, down), np.maximum(a * up, up)
            sources.append(_Source(at, size, np.zeros(len(z0)), *rest))
            at += 2 * len(z0)
        gains = [
            (sources[i], (W[j] - W[own]) * sources[i].unit)
            for i, W in net.W[-1].items()
        ]
        self.scale = float(sum(np.abs(gain).sum() for _, gain in gains)) or 1.0
        offset = net.b[-1] + sum(
            (W @ sources[i].base for i, W in net.W[-1].items()), 0.0
        )
        self.offset = float(offset[j] - offset[own])
        for source, gain in gains:
            self.cost[source.first : source.first + len(gain)] = -gain / self.scale
        for i in range(extra):
            self._row(0.0, (i, 1.0), (d + i, -1.0))
            self._row(0.0, (i, -1.0), (d + i, -1.0))
        if extra:
            self._row(threat.radius / self.radius, (slice(d, 2 * d), 1.0))
        self.least = np.concatenate(least)
        self.most = np.concatenate(most)

    def _layer(
        self,
        fed: list[tuple[int, Floats]],
        at: int,
        a: float,
        z0: Floats,
        up: Floats,
        down: Floats,
    ) -> tuple[list[Floats], list[Floats]]:
        """Add the rows of a layer whose h begin at `at`; return the limits of its h and s."""
        m = len(z0)
        for i in range(m):
            h, s = at + i, at + m + i

            def z(
                factor: float, i: int = i
            ) -> list[tuple[slice | int, Floats | float]]:
                return [(slice(k, k + W.shape[1]), factor * W[i]) for k, W in fed]

            # h >= z and h >= a z
            self._row(-z0[i], *z(1.0), (h, -1.0))
            self._row(-a * z0[i], *z(a), (h, -1.0))
            # h <= z - (1 - a) down (1 - s) and h <= a z + (1 - a) up s
            room = (1 - a) * max(-down[i], 0.0)
            self._row(z0[i] + room, *z(-1.0), (h, 1.0), (s, room))
            room = (1 - a) * max(up[i], 0.0)
            self._row(a * z0[i], *z(-a), (h, 1.0), (s, -room))
        s_low, s_high = (down >= 0).astype(float), (up > 0).astype(float)
        return (
            [np.maximum(a * down, down), s_low],
            [np.maximum(a * up, up), np.maximum(s_high, s_low)],
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

    def solve(self, seconds: float) -> tuple[float, Floats | None]:
        """Return a proved upper bound on the lead, and the best perturbation, if one was found."""
        # On first use: scipy.optimize takes longer to load than all of overt.robust.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        limit = {} if np.isinf(seconds) else {"time_limit": max(seconds, 1e-3)}
        with _silence():
            answer = milp(
                self.cost,
                constraints=LinearConstraint(
                    csr_array(np.array(self.rows)), -np.inf, self.limits
                ),
                bounds=Bounds(self.least, self.most),
                integrality=self.kinds,
                options={"mip_rel_gap": 0.0, "disp": False} | limit,
            )
        if answer.x is None and not limit:
            raise RuntimeError(f"the mixed-integer solver failed: {answer.message}")
        dual = answer.mip_dual_bound
        known = dual is not None and np.isfinite(dual)
        proved = self.scale * (SLACK - float(dual)) + self.offset if known else np.inf
        if answer.x is None:
            return proved, None
        delta = np.clip(answer.x, self.least, self.most)[: self.inputs]
        return proved, delta * self.radius


@contextmanager
def _silence() -> Iterator[None]:
    """Keep what the solver writes past Python from the terminal."""
    sys.stdout.flush()
    try:
        before = os.dup(1)
    except OSError:  # there is no such output
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(nowhere)


def _box(x: Floats, region: Region) -> tuple[Floats, Floats]:
    """Return the coordinates' limits of a perturbation."""
    radius = region.threat.radius
    low, high = np.full(len(x), -radius), np.full(len(x), radius)
    if region.limits is not None:
        limits = [part[0].double().cpu().numpy() - x for part in region.limits]
        low, high = np.maximum(low, limits[0]), np.minimum(high, limits[1])
    return low, high
