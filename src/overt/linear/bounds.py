"""Proved lower bounds on the objective of a two-layer network, for any noise.

A noise costs at least weight * norm(A L) for some (weight, norm) pairs, its envelopes. Minimizing
loss plus envelope over maps A of rank at most the width bounds the objective from below. The bound
is evaluated by weak duality at a reference point, so it is valid whatever that point is: a mistake
in the code that proposes the point can make the bound loose, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from overt._types import Floats
from overt.noise import DropBlock, DropConnect, Dropout, Noise
from overt.spectral import Schatten, SpectralNorm, SquaredNuclear, induced

Envelope = tuple[float, SpectralNorm]

EXACT = 1e-9
"""Relative gap up to which a solution counts as a global optimum."""


@dataclass(frozen=True, eq=False)
class Leading:
    """Leading singular triplets of a target, and the sum of the other squared values."""

    left: Floats
    s: Floats
    right: Floats
    rest: float


def envelopes(noise: Noise, width: int) -> list[Envelope]:
    """Return pairs (weight, norm) with penalty(U, V) >= weight * norm.matrix_value(U V'L).

    Dropout, DropConnect and DropBlock on a grid have one, the norm they induce. Any other noise
    over units has Cbar >= diag(delta) or Cbar >= gamma 1 1' in the positive semi-definite order,
    and U'U o V'CV is positive semi-definite, so

        penalty >= sum_i delta_i |u_i|^2 |L'v_i|^2 >= |A L|_*^2 / sum_i (1/delta_i),
        penalty >= gamma |A L|_F^2,  gamma = 1 / (1' Cbar^-1 1).
    """
    match noise:
        case Dropout(drop_prob=float()) | DropConnect() | DropBlock(placement="grid"):
            return [induced(noise, width)]
    if noise.independent:
        delta = noise.relative_variance(width)
        return [(1 / float(np.sum(1 / delta)) if delta.min() > 0 else 0.0, SquaredNuclear())]
    values, vectors = np.linalg.eigh(noise.characteristic(width))
    smallest = max(0.0, values[0] - 1e-13 * values[-1])
    kept = values > 1e-10 * values[-1]
    ones = vectors.T @ np.ones(width)
    spanned = np.allclose(ones[~kept], 0.0, atol=1e-8)
    gamma = 1 / float(np.sum(ones[kept] ** 2 / values[kept])) if spanned else 0.0
    return [(smallest / width, SquaredNuclear()), (gamma * (1 - 1e-9), Schatten(2.0))]


def shrink(m: Floats, envelope: Envelope) -> Floats:
    """Return the spectrum a that minimizes |m - a|^2 + weight * norm(a)."""
    weight, norm = envelope
    return np.asarray(norm.prox(m, weight))


def spectral_bound(m: Floats, rest: float, envelope: Envelope) -> float:
    """Return a lower bound on |T - B|^2 + weight * norm(B) over all B of rank at most the width.

    m are the leading singular values of T, as many as the width (or as can survive), and `rest`
    the sum of squares of the others. By von Neumann's inequality the problem is one in the leading
    values, min_b |m - b|^2 + weight * norm(b) + rest; at any reference b, with g = 2 (b - m),

        |m - b|^2 - <g, b> - dual(g) / (4 weight) + rest     bounds it from below.
    """
    weight, norm = envelope
    if weight <= 0:
        return rest
    b = shrink(m, envelope)
    g = 2 * (b - m)
    return float(np.sum((m - b) ** 2) - g @ b - norm.dual(g) / (4 * weight)) + rest


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Loss plus envelope in place of loss plus penalty: a convex problem that bounds it.

    `bound` holds for all weights; the map left diag(spectrum) right' attains it, in whitened
    coordinates.
    """

    bound: float
    left: Floats
    spectrum: Floats
    right: Floats

    @property
    def kept(self) -> tuple[Floats, Floats, Floats]:
        """(left, a, right) of the directions with a > 0."""
        a = self.spectrum
        kept = a > 1e-14 * max(float(a[0]), 1e-300)
        return self.left[:, kept], a[kept], self.right[:, kept]


def relax(
    leading: Callable[[Envelope], Leading], candidates: Sequence[Envelope], residual: float = 0.0
) -> Relaxation:
    """Return the relaxation by the envelope whose bound is highest."""
    tried = [(leading(envelope), envelope) for envelope in candidates]
    bounds = [spectral_bound(top.s, top.rest, envelope) for top, envelope in tried]
    top, envelope = tried[int(np.argmax(bounds))]
    return Relaxation(residual + max(bounds), top.left, shrink(top.s, envelope), top.right)


def numerical_rank(s: Floats) -> int:
    """Return how many singular values are not zero up to rounding and descent's accuracy."""
    return int(np.sum(s > 1e-7 * s[0])) if s[0] > 0 else 0
