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

from overt._types import Floats
from overt.robust.threats import L1, L2, Region

TIGHT = 1e-7
"""How far, relative to the radius, tangent planes may leave a Euclidean ball."""

MOST_PLANES = 400
"""Tangent planes of a ball after which a point is left undecided."""

SLACK = 1e-7
"""The solver's tolerance of dual feasibility, by which its bound may be off."""


@dataclass(frozen=True, eq=False)
class DenseNetwork:
    """z_i = sum_k W[i][k] h_k + b_i, h_i = max(slope_i z_i, z_i), h_0 = x; the last z are logits.

    W[i] maps what feeds layer i (0: inputs, k: hidden layer k) to a matrix.
    """

    W: Sequence[dict[int, Floats]]
    b: Sequence[Floats]
    slopes: Sequence[float]

    def logits(self, x: Floats) -> Floats:
        """Return the logits of one input."""
        h = [x]
        for W, b, slope in zip(self.W, self.b, (*self.slopes, 1.0), strict=True):
            z = sum((matrix @ h[k] for k, matrix in W.items()), b)
            h.append(np.maximum(slope * z, z))
        return h[-1]


def best_lead(
    net: DenseNetwork,
    own: int,
    region: Region,
    hidden: Sequence[tuple[Floats, Floats]],
    level: float,
    seconds: float,
) -> tuple[float, float, Floats]:
    """Return (lead reached, proved upper bound, the input that reaches it) over wrong classes.

    `region` is that of one point; `hidden` are proved bounds (low, high) of the units of each
    hidden layer, before the rectifier. Classes and tangent planes are gone through only until the
    level is decided, or time is over; the bound is infinite where classes were not searched.
    """
    x = region.x[0].numpy()
    best, bound, where = -np.inf, -np.inf, x
    end = time.monotonic() + seconds
    rivals = [j for j in range(len(net.b[-1])) if j != own]
    for j in rivals:
        program = _Program(net, x, own, j, region, hidden)
        upper = np.inf
        for _ in range(MOST_PLANES):
            proved, delta = program.solve(end - time.monotonic())
            upper = min(upper, proved)
            if delta is None:  # time was over before any solution was found
                break
            radius = region.threat.radius
            length = float(np.linalg.norm(delta))
            outside = isinstance(region.threat, L2) and length > radius
            inside = delta * (radius / length) if outside else delta
            f = net.logits(x + inside)
            if f[j] - f[own] > best:
                best, where = float(f[j] - f[own]), x + inside
            decided = upper < level or best > max(level, 0.0)
            # In a tie more planes cannot decide.
            tie = upper - float(f[j] - f[own]) <= 2 * SLACK * program.scale
            if length <= radius * (1 + TIGHT) or not outside or decided or tie:
                break
            program.cut(delta / length)
        bound = max(bound, upper, best)
        if best > max(level, 0.0) and j != rivals[-1]:
            return best, np.inf, where
    return best, bound, where


class _Program:
    """The mixed-integer program for one point and one wrong class.

    Variables: d (inputs), |d| (inputs, for L1), and for each layer h (width) and s (width, 1 where
    z >= 0). The solver's tolerances are absolute, so it is given d in units of the radius, the z
    and h of each unit in units of the largest |z| it can reach, and an objective whose
    coefficients have the sum 1.
    """

    def __init__(
        self,
        net: DenseNetwork,
        x: Floats,
        own: int,
        j: int,
        region: Region,
        hidden: Sequence[tuple[Floats, Floats]],
    ) -> None:
        self.inputs = len(x)
        self.radius = region.threat.radius or 1.0
        absolute = isinstance(region.threat, L1)
        first = (1 + absolute) * self.inputs
        self.total = first + 2 * sum(len(low) for low, _ in hidden)
        self._rows: list[Floats] = []  # rows . variables <= limits
        self._limits: list[Floats] = []
        self._integral = np.zeros(self.total)
        self._least = np.zeros(self.total)
        self._most = np.ones(self.total)
        self._bound_inputs(x, region)
        if absolute:
            eye = np.eye(self.inputs)
            none = np.zeros(self.inputs)
            self._add(none, (0, eye), (self.inputs, -eye))
            self._add(none, (0, -eye), (self.inputs, -eye))
            reach = np.array([region.threat.radius / self.radius])
            self._add(reach, (self.inputs, np.ones((1, self.inputs))))
        # What feeds layers: where its variables begin, their unit, their value where they are 0.
        sources = [(0, np.full(self.inputs, self.radius), x)]
        for W, b, slope, (low, high) in zip(
            net.W[:-1], net.b[:-1], net.slopes, hidden, strict=True
        ):
            size = np.maximum(np.abs(low), np.abs(high))
            size[size == 0] = 1.0
            fed = [(sources[k], matrix / size[:, None]) for k, matrix in W.items()]
            z0 = sum((matrix @ base for (_, _, base), matrix in fed), b / size)
            parts = [(start, matrix * unit) for (start, unit, _), matrix in fed]
            self._rectify(first, parts, slope, z0, low / size, high / size)
            sources.append((first, size, np.zeros(len(size))))
            first += 2 * len(size)
        self._cost = np.zeros(self.total)
        self.offset = float(net.b[-1][j] - net.b[-1][own])
        for k, matrix in net.W[-1].items():
            start, unit, base = sources[k]
            lead = matrix[j] - matrix[own]
            self.offset += float(lead @ base)
            self._cost[start : start + len(unit)] = -lead * unit
        self.scale = float(np.abs(self._cost).sum()) or 1.0
        self._cost /= self.scale

    def _bound_inputs(self, x: Floats, region: Region) -> None:
        radius = region.threat.radius
        low, high = np.full(len(x), -radius), np.full(len(x), radius)
        if region.delta_bounds is not None:
            low = np.maximum(low, region.delta_bounds[0][0].numpy())
            high = np.minimum(high, region.delta_bounds[1][0].numpy())
        self._least[: len(x)] = low / self.radius
        self._most[: len(x)] = high / self.radius

    def _rectify(
        self,
        first: int,
        parts: list[tuple[int, Floats]],
        a: float,
        z0: Floats,
        low: Floats,
        high: Floats,
    ) -> None:
        """Add h = max(a z, z), h from `first` on and s after it, z = z0 + sum of the parts."""
        width = len(z0)
        eye = np.eye(width)
        switch = first + width

        def z(factor: float) -> list[tuple[int, Floats]]:
            return [(start, factor * matrix) for start, matrix in parts]

        # h >= z and h >= a z
        self._add(-z0, *z(1.0), (first, -eye))
        self._add(-a * z0, *z(a), (first, -eye))
        # h <= z - (1 - a) low (1 - s) and h <= a z + (1 - a) high s
        below = (1 - a) * np.maximum(-low, 0.0)
        above = (1 - a) * np.maximum(high, 0.0)
        self._add(z0 + below, *z(-1.0), (first, eye), (switch, np.diag(below)))
        self._add(a * z0, *z(-a), (first, eye), (switch, -np.diag(above)))
        self._integral[switch : switch + width] = 1
        self._least[first:switch] = np.maximum(a * low, low)
        self._most[first:switch] = np.maximum(a * high, high)
        self._least[switch : switch + width] = low >= 0
        self._most[switch : switch + width] = (high > 0) | (low >= 0)

    def _add(self, limits: Floats, *parts: tuple[int, Floats]) -> None:
        """Add rows: each part is a matrix for the variables from its start on."""
        rows = np.zeros((len(limits), self.total))
        for start, matrix in parts:
            rows[:, start : start + matrix.shape[1]] += matrix
        self._rows.append(rows)
        self._limits.append(limits)

    def cut(self, direction: Floats) -> None:
        """Add the ball's tangent plane with this unit normal."""
        self._add(np.ones(1), (0, direction[None]))

    def solve(self, seconds: float) -> tuple[float, Floats | None]:
        """Return a proved upper bound on the lead, and the best perturbation, if one was found."""
        # On first use: scipy.optimize takes longer to load than all of overt.robust.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        limit = {} if np.isinf(seconds) else {"time_limit": max(seconds, 1e-3)}
        rows = csr_array(np.vstack(self._rows))
        with _silence():
            answer = milp(
                self._cost,
                constraints=LinearConstraint(
                    rows, -np.inf, np.concatenate(self._limits)
                ),
                bounds=Bounds(self._least, self._most),
                integrality=self._integral,
                options={"mip_rel_gap": 0.0, "disp": False} | limit,
            )
        if answer.x is None and not limit:
            raise RuntimeError(f"the mixed-integer solver failed: {answer.message}")
        dual = answer.mip_dual_bound
        known = dual is not None and np.isfinite(dual)
        proved = self.scale * (SLACK - float(dual)) + self.offset if known else np.inf
        if answer.x is None:
            return proved, None
        delta = np.clip(answer.x, self._least, self._most)[: self.inputs]
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
