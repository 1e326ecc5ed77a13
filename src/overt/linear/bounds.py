"""Proved lower bounds on the objective of a two-layer network, for any noise.

A noise costs a map A at least weight * norm(A L), or as much as units with individual costs do
(`UnitShares`): its envelope. Minimizing loss plus envelope over maps A of rank at most the width
bounds the objective from below. The bound is evaluated by weak duality at a reference point, so it
is valid whatever that point is: a mistake in the code that proposes the point can make the bound
loose, never wrong. What rounding may have added is taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from overt._check import bounded
from overt._types import Bools, Floats
from overt.linear.shares import UnitShares
from overt.noise import DropBlock, DropConnect, Dropout, Noise
from overt.spectral import Schatten, SpectralNorm, SquaredNuclear, induced

Envelope = tuple[float, SpectralNorm] | UnitShares

EXACT = 1e-9
"""Relative gap up to which a solution counts as a global optimum."""

NOTHING = 1e-14
"""Share of the largest singular value below which one is zero up to rounding."""


@dataclass(frozen=True, eq=False)
class Leading:
    """Leading singular triplets of a target, and the sum of the other squared values."""

    left: Floats
    s: Floats
    right: Floats
    rest: float


def envelopes(noise: Noise, width: int) -> list[tuple[float, SpectralNorm]]:
    """Return pairs (weight, norm) with penalty(U, V) >= weight * norm.matrix_value(U V'L).

    Dropout, DropConnect and DropBlock on a grid have one, the norm they induce. For any other noise
    over units Gamma >= delta I and Gamma >= gamma 1 1' in the positive semi-definite order, and
    U'U o V'CV is positive semi-definite: penalty >= (delta/d) |A L|_*^2, and >= gamma |A L|_F^2.
    """
    match noise:
        case Dropout(drop_prob=float()) | DropConnect() | DropBlock(placement="grid"):
            return [induced(noise, width)]
    values, vectors = np.linalg.eigh(noise.characteristic(width))
    smallest = max(0.0, values[0] - 1e-13 * values[-1])
    live = values > 1e-10 * values[-1]
    ones = np.sum(vectors, axis=0)
    gamma = 0.0
    if np.allclose(ones[~live], 0.0, atol=1e-8):
        gamma = (1 - 1e-9) / float(np.sum(ones[live] ** 2 / values[live]))
    return [(smallest / width, SquaredNuclear()), (gamma, Schatten(2.0))]


def shrink(m: Floats, envelope: Envelope) -> Floats:
    """Return the spectrum a that minimizes |m - a|^2 plus the envelope's cost."""
    if isinstance(envelope, UnitShares):
        return envelope.shrink(m)
    weight, norm = envelope
    return np.asarray(norm.prox(m, weight))


def spectral_bound(m: Floats, rest: float, envelope: Envelope) -> float:
    """Return a lower bound on |T - B|^2 + weight * norm(B) over all B of rank at most the width.

    m are the leading singular values of T, as many as the width (or as can survive), and `rest`
    the sum of squares of the others. By von Neumann's inequality the problem is one in the leading
    values, min_b |m - b|^2 + weight * norm(b) + rest; for any c,

        <c, 2 m - c> - dual(c) / weight + rest     bounds it from below,

    with equality at c = m - b, which is not taken as a difference: nothing cancels.
    """
    if isinstance(envelope, UnitShares):
        return envelope.bound(m) + rest
    weight, norm = envelope
    if weight <= 0:
        return rest
    c = np.asarray(norm.shrinkage(m, weight))
    return float(c @ (2 * m - c) - norm.dual(c) / weight) + rest


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
    bounds = [spectral_bound(top.s, top.rest, envelope) for top, envelope in tried]
    top, envelope = tried[int(np.argmax(bounds))]
    bound = task.residual + max(bounds)
    a = shrink(top.s, envelope)
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
