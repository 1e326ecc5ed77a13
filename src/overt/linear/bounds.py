"""Proved lower bounds on the objective of a two-layer network, for any noise.

A noise costs a map A at least weight * norm(A L), or as much as units with individual costs do
(`UnitShares`): its envelope. Minimizing loss plus envelope over maps A of rank at most the width
bounds the objective from below. The bound is evaluated by weak duality at a reference point, so it
is valid whatever that point is: a mistake in the code that proposes the point can make the bound
loose, never wrong. What rounding may have added is taken off.

Noise with Gamma = diag(delta) + gamma 1 1' has the cost of a map, and the best map, exactly.
Dropout, with one probability or one per unit, has gamma = 0; noise that treats all units alike has
one delta. Let x_i = |u_i| |p_i| be the units' shares of A = U P', by increasing delta, and a the
spectrum of A. Removing k units leaves a map of nuclear norm at least a_(k+1) + a_(k+2) + ..., so
every tail of x sums to at least that tail of a; and every such x with the sum of a is realized by
some factors (Schur and Horn). The penalty is sum_i delta_i x_i^2 + gamma |a|^2, and the optimum is

    min_{a, x} |s - a|^2 + gamma |a|^2 + sum_i delta_i x_i^2,   tails of x at least those of a,

whose dual is an isotonic regression: over 0 <= y_1 <= y_2 <= ... it maximizes

    sum_i s_i^2 - (s_i - y_i)_+^2 / (1 + gamma) - y_i^2 / delta_i,

with a_i = (s_i - y_i)_+ / (1 + gamma), x_i = y_i / delta_i. Every such y bounds the objective.

For gamma <= -1 the cost is concave in a at a given sum t of it, so that all of it goes to the first
direction; units share t in proportion to 1 / delta_i. With w = 1 / sum_i 1 / delta_i >= -gamma,

    a_1 = t = s_1 / (1 + gamma + w),   s_1^2 (gamma + w) / (1 + gamma + w) + sum_(i>1) s_i^2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from overt._check import Bools, Floats, bounded
from overt.spectral import SpectralNorm

EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class UnitShares:
    """The costs of units: `delta` >= 0, one entry per unit in any order, and `gamma`."""

    delta: Floats
    gamma: float = 0.0

    def shrink(self, s: Floats) -> Floats:
        """Return the spectrum a of the best map, for the leading values s of the target."""
        if self.one_direction:
            a = np.zeros(len(s))
            a[0] = s[0] / (1 + max(self.gamma + self.together, 0.0))
            return a
        return np.maximum(s - self.multipliers(s)[: len(s)], 0.0) / (1 + self.gamma)

    def bound(self, s: Floats) -> float:
        """Return the dual's value; where it cancels, less what rounding may have added."""
        if self.one_direction:
            cost = self.gamma + self.together * (1 - 8 * EPS)
            first = s[0] ** 2 * cost / (1 + cost) if cost > -1 else -np.inf
            return float(first + np.sum(s[1:] ** 2))
        delta, s, y = np.sort(self.delta), self._padded(s), self.multipliers(s)
        costs = y**2 / np.where(delta > 0, delta, 1.0)
        used = np.array([self.gamma * s**2, y * (2 * s - y)]) / (1 + self.gamma)
        terms = np.where(s > y, used, [s**2, 0 * s])
        rounding = (
            EPS * (np.sum(np.abs(terms)) + np.sum(costs)) if self.gamma < 0 else 0.0
        )
        return float(np.sum(terms[0] + terms[1] - costs) - 8 * rounding)

    def shares(self, a: Floats) -> Floats:
        """Return x, in the order of the units: their best shares of a map with spectrum a."""
        order = np.argsort(self.delta, kind="stable")
        delta = self.delta[order]
        x = self._padded(a)
        noisy = delta > 0
        tail = x[noisy]
        e = 1 / delta[noisy]
        x[noisy] = e * _pooled(
            delta[noisy], lambda i, j: np.sum(tail[i:j]) / np.sum(e[i:j])
        )
        units = np.empty(len(delta))
        units[order] = x
        return units

    @property
    def one_direction(self) -> bool:
        """Whether all of a map goes to one direction, as when a single unit survives."""
        return self.gamma <= -1 + 1e-12

    @property
    def together(self) -> float:
        """w, what a map costs whose units share it as they like."""
        if self.delta.min() == 0:
            return 0.0
        return 1 / float(np.sum(1 / self.delta))

    def _padded(self, s: Floats) -> Floats:
        return np.concatenate([s, np.zeros(len(self.delta) - len(s))])

    def multipliers(self, s: Floats) -> Floats:
        """Return y. A block i..j of noisy units has y = (s_i + ... + s_q) / (q - i + 1 + sum e).

        e = (1 + gamma) / delta, and s_q is the last of its values above y; found by bisection.
        """
        delta = np.sort(self.delta)
        y = np.zeros(len(self.delta))
        noisy = delta > 1e-290  # below, nothing is left of it beside 1
        s = self._padded(s)[noisy]
        e = (1 + self.gamma) / delta[noisy]
        h = np.concatenate([[0.0], np.cumsum(s)])

        def level(i: int, j: int) -> float:
            cost = np.sum(e[i:j])
            low = i
            high = j
            while low < high:
                q = (low + high) // 2
                above = s[q] * (q + 1 - i + cost) > h[q + 1] - h[i]
                low, high = (q + 1, high) if above else (low, q)
            return float(np.sum(s[i:low]) / (low - i + cost)) if low > i else 0.0

        y[noisy] = _pooled(delta[noisy], level)
        return y


def _pooled(delta: Floats, level: Callable[[int, int], float]) -> Floats:
    """Return the isotonic regression whose level on a block of units i..j-1 is level(i, j).

    Adjacent violators are pooled. Blocks start as runs of one delta, in which values decrease.
    """
    starts = np.flatnonzero(np.r_[len(delta) > 0, np.diff(delta) > 0]).tolist()
    blocks: list[tuple[int, int, float]] = []
    for i, j in pairwise([*starts, len(delta)]):
        first = i
        y = level(i, j)
        while blocks and blocks[-1][2] >= y:
            first = blocks.pop()[0]
            y = level(first, j)
        blocks.append((first, j, y))
    return np.concatenate([np.full(j - i, y) for i, j, y in blocks] or [np.zeros(0)])


class NormCost(NamedTuple):
    """An envelope weight * norm(A L)."""

    weight: float
    norm: SpectralNorm

    def shrink(self, s: Floats) -> Floats:
        """Return the spectrum a of the best map, for the leading values s of the target."""
        return np.asarray(self.norm.prox(s, self.weight))

    def bound(self, s: Floats) -> float:
        """Return a lower bound on |T - B|^2 + weight * norm(B) over all maps B.

        s are the leading singular values of T, as many as the width (or as can survive). By von
        Neumann's inequality the problem is one in these values; for any c,

            <c, 2 s - c> - dual(c) / weight     bounds it from below,

        with equality at c = s - a, which is not taken as a difference: nothing cancels.
        """
        if self.weight <= 0:
            return 0.0
        c = np.asarray(self.norm.shrinkage(s, self.weight))
        return float(c @ (2 * s - c) - self.norm.dual(c) / self.weight)


Envelope = NormCost | UnitShares

EXACT = 1e-9
"""Relative gap up to which a solution counts as a global optimum."""

NOTHING = 1e-14
"""Share of the largest singular value below which one is zero up to rounding."""


PAIRS = 32
"""Pairs (delta, gamma) that are tried on either side of the least eigenvalue of Gamma."""


@dataclass(frozen=True, eq=False)
class Leading:
    """Leading singular triplets of a target, and the sum of the other squared values."""

    left: Floats
    s: Floats
    right: Floats
    rest: float


def pairs_below(Gamma: Floats) -> list[UnitShares]:
    """Return costs of units with Gamma >= delta I + gamma 1 1': for each delta the largest gamma.

    With Gamma = Q diag(c) Q' and q = Q'1 that is gamma = 1 / sum_i q_i^2 / (c_i - delta), where
    delta < c_1, or delta < c_2 and the sum is negative: 1 1' lifts one direction at most.
    """
    values, Q = np.linalg.eigh(Gamma)
    ones = np.sum(Q, axis=0) ** 2
    slack = 1e-12 * values[-1]
    least = max(values[0] - 1e-13 * values[-1], 0.0)
    found = [UnitShares(np.full(len(Gamma), least))]
    for low, high in pairwise(np.maximum([0.0, *values[:2]], 0.0)):
        for delta in low + (high - low) * (np.arange(PAIRS) + 0.5) / PAIRS:
            away = values - delta
            if np.abs(away).min() <= slack:
                continue
            gamma = 1 / np.sum(ones / away)
            if away[0] > 0 or gamma < 0:
                # A little less of each makes up for rounding in the eigenvalues.
                lowered = np.full(len(Gamma), max(delta - slack, 0.0))
                found.append(UnitShares(lowered, float(gamma - 1e-9 * abs(gamma))))
    return found


class Rounding(Protocol):
    """The residual of a regression and the rounding errors of its singular values."""

    residual: float

    def rounding(self, bound: float, loss: float, nuclear: float) -> float:
        """Return what rounding may have added to a bound whose map has this loss and this |A|_*."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Loss plus envelope in place of loss plus penalty: a convex problem that bounds it.

    `bound` holds for all weights; the map left diag(spectrum) right' attains it, in whitened
    coordinates. It is the only one, as the loss is strictly convex: `rank`, where the spectrum is
    known in closed form, is that of every optimum that reaches the bound. `multiplier`, where the
    problem was solved by iterations, is the dual point at which the bound was evaluated.
    """

    bound: float
    left: Floats
    spectrum: Floats
    right: Floats
    rank: int | None = None
    multiplier: Floats | None = None

    @property
    def kept(self) -> tuple[Floats, Floats, Floats]:
        """(left, a, right) of the directions with a > 0."""
        kept = positive(self.spectrum)
        return self.left[:, kept], self.spectrum[kept], self.right[:, kept]


@bounded
def relax(
    leading: Callable[[Envelope], Leading],
    candidates: Sequence[Envelope],
    task: Rounding,
    refined: Callable[[Floats], float] | None = None,
) -> Relaxation:
    """Return the relaxation by the envelope whose bound is highest.

    `refined`, a bound for the leading singular values of the target, raises it where it can.
    """
    tried = [(leading(envelope), envelope) for envelope in candidates]
    bounds = [envelope.bound(top.s) + top.rest for top, envelope in tried]
    top, envelope = tried[int(np.argmax(bounds))]
    bound = task.residual + max(bounds)
    a = envelope.shrink(top.s)
    rank: int | None = int(np.sum(positive(a)))
    if refined is not None:
        raised = task.residual + top.rest + refined(top.s)
        if raised > bound:
            bound = raised
            rank = None  # the bound is not that of this map
    loss = float(np.sum((top.s - a) ** 2)) + top.rest
    bound -= task.rounding(bound, loss, float(np.sum(a)))
    return Relaxation(max(bound, 0.0), top.left, a, top.right, rank)


def positive(a: Floats) -> Bools:
    """Return which of the singular values in closed form are not zero, up to rounding."""
    return np.asarray(a > NOTHING * a[0])


def numerical_rank(s: Floats) -> int:
    """Return how many singular values are not zero up to rounding and descent's accuracy."""
    return int(np.sum(s > 1e-7 * s[0])) if s[0] > 0 else 0
