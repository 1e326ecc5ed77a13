"""Norms of singular values that noises induce, their proximal maps and their duals.

`value` is always the **squared** norm, because that is what noise induces. `prox(s, weight)` is
argmin_a |s - a|^2 + weight * value(a), without a factor 1/2. `dual` is the squared dual norm, so
that <s, t>^2 <= value(s) * dual(t). The `matrix_` forms act on a matrix through its spectrum.

Spectra need not be sorted; signs are kept, as the norms depend on absolute values only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt import _check
from overt._check import Array, InputError, InputTypeError, bounded, namespace
from overt.noise.blocks import DropBlock
from overt.noise.masks import DropConnect, Dropout, Noise

__all__ = [
    "KSupport",
    "Schatten",
    "SpectralNorm",
    "SquaredNuclear",
    "factorization_cost",
    "induced",
    "nu",
]


class SpectralNorm(ABC):
    """A squared norm of a matrix that depends on its singular values only."""

    @abstractmethod
    def value(self, s: Array) -> Array:
        """Return the squared norm of the spectrum s."""

    @abstractmethod
    def dual(self, s: Array) -> Array:
        """Return the squared dual norm of the spectrum s."""

    @abstractmethod
    def prox(self, s: Array, weight: float) -> Array:
        """Return argmin_a |s - a|^2 + weight * value(a)."""

    @abstractmethod
    def shrinkage(self, s: Array, weight: float) -> Array:
        """Return s - prox(s, weight) to full relative accuracy, however small the weight."""

    @bounded
    def optimality(self, s: Array, a: Array, weight: float) -> Array:
        """w value(a) + dual(g) / (4 w) - <g, a>, g = 2 (s - a): how far a may be from prox(s, w).

        It is the duality gap of |s - a|^2 + w value(a): no other spectrum gains more than this, and
        it is 0 exactly at the proximal map. The norm must be convex, as its dual must exist.
        """
        s, a, w = spectrum_of(s), spectrum_of(a, "a"), _check.number("weight", weight)
        _check.same_library(s=s, a=a)
        if s.shape != a.shape:
            raise InputError(f"a must have {s.shape[0]} values, as s, got {a.shape[0]}")
        xp, g = namespace(s, a), 2 * (s - a)
        if w == 0:
            return xp.sum(g * g) / 4
        return w * self.value(a) + self.dual(g) / (4 * w) - xp.sum(g * a)

    @bounded
    def matrix_value(self, A: Array) -> Array:
        """Return the squared norm of the matrix A."""
        return self.value(_singular_values(A))

    @bounded
    def matrix_dual(self, A: Array) -> Array:
        """Return the squared dual norm of the matrix A."""
        return self.dual(_singular_values(A))

    @bounded
    def matrix_prox(self, A: Array, weight: float) -> Array:
        """Return argmin_B |A - B|^2 + weight * matrix_value(B): the prox of A's spectrum."""
        A = _check.matrix("A", A)
        left, s, right = namespace(A).linalg.svd(A, full_matrices=False)
        return left * self.prox(s, weight) @ right


@dataclass(frozen=True)
class SquaredNuclear(SpectralNorm):
    """|s|_1^2, the squared nuclear norm: what Dropout and DropConnect induce.

    Examples
    --------
    >>> import overt
    >>> float(overt.spectral.SquaredNuclear().value([3.0, 1.0]))
    16.0
    """

    @bounded
    def value(self, s: Array) -> Array:
        """(sum_i |s_i|)^2."""
        s = spectrum_of(s)
        xp = namespace(s)
        return xp.sum(xp.abs(s)) ** 2

    @bounded
    def dual(self, s: Array) -> Array:
        """max_i s_i^2."""
        s = spectrum_of(s)
        return namespace(s).max(s * s)

    @bounded
    def prox(self, s: Array, weight: float) -> Array:
        """Soft threshold at alpha = w h_rho / (1 + w rho), h_j = s_1 + ... + s_j.

        rho is the largest j with s_j (1 + w j) > w h_j (Implicit bias of dropout, Theorem 3.6).
        """
        s, w = spectrum_of(s), _check.number("weight", weight)
        xp = namespace(s)
        threshold, kept = self._threshold(s, w)
        # All that is left sums to `kept`, which strong noise makes smaller than the rounding of s.
        return xp.sign(s) * xp.minimum(xp.clip(xp.abs(s) - threshold, min=0.0), kept)

    @bounded
    def shrinkage(self, s: Array, weight: float) -> Array:
        """min(|s_i|, alpha), with the signs of s."""
        s, w = spectrum_of(s), _check.number("weight", weight)
        xp = namespace(s)
        return xp.sign(s) * xp.clip(xp.abs(s), max=self._threshold(s, w)[0])

    def _threshold(self, s: Array, w: float) -> tuple[Array, Array]:
        """Return alpha, and the sum h_rho / (1 + w rho) of the shrunk values."""
        xp = namespace(s)
        ordered = xp.sort(xp.abs(s), descending=True, stable=False)
        h = xp.cumulative_sum(ordered)
        rho = shrinkage_rank(ordered, h, w)
        left = h[rho - 1] / (1 + w * rho) if rho else 0 * h[0]
        return w * left, left


@dataclass(frozen=True)
class KSupport(SpectralNorm):
    """The squared k-support norm: what DropBlock with blocks of k units induces.

    value(s) = min { sum_i s_i^2 / t_i : 0 <= t_i <= 1, sum_i t_i <= k }. It is the squared nuclear
    norm for k = 1 and the squared Frobenius norm where at most k values are non-zero.

    Examples
    --------
    >>> import overt
    >>> float(overt.spectral.KSupport(2).value([3.0, 1.0]))
    10.0
    """

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _check.whole("k", self.k))

    @bounded
    def value(self, s: Array) -> Array:
        """sum_(i<rho) s_i^2 + (sum_(i>=rho) s_i)^2 / (k - rho + 1), s sorted decreasingly.

        rho is the largest value in 1..k with (k - rho + 1) s_(rho-1) >= sum_(i>=rho) s_i, and 1 if
        there is none. The printed rule (structured dropout, Theorem 2.3), the rho that maximizes
        the expression, is wrong: the expression never decreases in rho.
        """
        s = spectrum_of(s)
        xp = namespace(s)
        if s.shape[0] <= self.k:
            return xp.sum(s * s)
        s = xp.sort(xp.abs(s), descending=True, stable=False)
        # tail[j] = sum_(i >= j) s_i, summed from the small end so that nothing cancels.
        tail = xp.flip(xp.cumulative_sum(xp.flip(s)))
        kept = self._kept(s, tail)
        head = s[:kept]
        return xp.sum(head * head) + tail[kept] ** 2 / (self.k - kept)

    def occupancy(self, s: Array) -> Array:
        """Return the t_i in [0, 1] that attain value(s) = sum_i s_i^2 / t_i, with sum t_i <= k.

        1 for the rho - 1 largest values, proportional to |s_i| for the others.
        """
        s = spectrum_of(s)
        xp = namespace(s)
        size = xp.abs(s)
        if s.shape[0] <= self.k:
            return xp.astype(size > 0, s.dtype)
        ordered = xp.sort(size, descending=True, stable=False)
        tail = xp.flip(xp.cumulative_sum(xp.flip(ordered)))
        kept = self._kept(ordered, tail)
        if bool(tail[kept] == 0):
            return xp.astype(size > 0, s.dtype)
        return xp.clip(size * (self.k - kept) / tail[kept], max=1.0)

    def _kept(self, ordered: Array, tail: Array) -> int:
        """Return rho - 1, how many of the largest values are penalized one by one."""
        if self.k == 1:
            return 0
        xp = namespace(ordered)
        slots = xp.asarray(
            np.arange(self.k - 1, 0, -1.0), dtype=ordered.dtype
        )  # k - rho + 1
        feasible = slots * ordered[: self.k - 1] >= tail[1 : self.k]
        return int(xp.max(xp.where(feasible, xp.arange(1, self.k), 0)))

    @bounded
    def dual(self, s: Array) -> Array:
        """Return the sum of the k largest s_i^2."""
        s = spectrum_of(s)
        xp = namespace(s)
        return xp.sum(xp.sort(s * s, descending=True, stable=False)[: self.k])

    @bounded
    def prox(self, s: Array, weight: float) -> Array:
        """a_i = s_i t_i / (t_i + w), t_i = clip(alpha |s_i| - w, 0, 1), with sum_i t_i = k.

        alpha is found on the sorted break points {w / s_i, (1 + w) / s_i} (structured dropout,
        Theorem 2.7, with the rank of the shrunk part ranging over 1..k, not 1..k-1).
        O(n log n), and nothing but the sort is more than linear.
        """
        s, w = spectrum_of(s), _check.number("weight", weight)
        if w == 0:
            return s * 1.0
        t = self._shares(s, w)
        return s * t / (t + w)

    @bounded
    def shrinkage(self, s: Array, weight: float) -> Array:
        """s_i w / (t_i + w)."""
        s, w = spectrum_of(s), _check.number("weight", weight)
        return s * 0.0 if w == 0 else s * w / (self._shares(s, w) + w)

    def _shares(self, s: Array, w: float) -> Array:
        """Return the t_i of the proximal map."""
        xp = namespace(s)
        size = xp.abs(s)
        alpha = _support_multiplier(size, self.k, w)
        if alpha is None:
            return xp.ones_like(s)
        return xp.clip(alpha * size - w, min=0.0, max=1.0)


def shrinkage_rank(ordered: Array, sums: Array, weight: float) -> int:
    """rho = max{j : s_j > w (h_j - j s_j)}, 0 if none: how many values survive shrinkage.

    `ordered` decreases and `sums` are its running sums h_j. The feasible j form a prefix.
    """
    xp = namespace(ordered)
    j = xp.asarray(np.arange(1.0, ordered.shape[0] + 1), dtype=ordered.dtype)
    # Written so that the first is feasible at any weight: h_1 - s_1 is 0, not a difference.
    return int(xp.sum(xp.astype(ordered > weight * (sums - j * ordered), xp.int64)))


def _support_multiplier(size: Array, k: int, w: float) -> Array | None:
    """Solve sum_i clip(alpha s_i - w, 0, 1) = k for alpha; None if at most k values are positive.

    Between break points the sum is linear in alpha: with p values at 1 and q > p values above 0,
    T(alpha) = p + alpha (h_q - h_p) - w (q - p). The pair (p, q) is found by bisection.
    """
    xp = namespace(size)
    if size.shape[0] <= k:
        return None
    ordered = xp.sort(size, stable=False)
    values = _check.plain_array("s", ordered)
    n = values.shape[0]
    if values[n - k - 1] == 0:
        return None
    # Sums from the small end: their differences do not cancel, as those from the large one do.
    tail = np.concatenate([np.cumsum(values, dtype=float)[::-1], [0.0]])

    def counts(scale: float) -> tuple[int, int]:
        """Count the values with alpha s >= 1 + w and those with alpha s > w, alpha = w / scale."""
        saturated = n - int(np.searchsorted(values, scale * (1 + w) / w, side="left"))
        active = n - int(np.searchsorted(values, scale, side="right"))
        return saturated, active

    def total(scale: float) -> float:
        p, q = counts(scale)
        return p + w / scale * (tail[p] - tail[q]) - w * (q - p)

    # T decreases in scale = w / alpha. Find the largest break point of each kind with T >= k.
    low, high = 0.0, float(values[-1])
    for breaks, stretch in ((values, 1.0), (values, w / (1 + w))):
        first, last = int(np.searchsorted(breaks, 0.0, side="right")), n
        while first < last:
            middle = (first + last) // 2
            scale = float(breaks[middle]) * stretch
            if total(scale) >= k:
                first, low = middle + 1, max(low, scale)
            else:
                last, high = middle, min(high, scale)
    p, q = counts((low + high) / 2)
    if p >= q:  # k values stand so far above the rest that T = k on a whole interval
        return 2 * w / (low + high)
    # Recomputed on the tensor itself, so that gradients flow to the spectrum.
    spread = xp.sum(ordered[n - q : n - p])
    return (k - p + w * (q - p)) / spread


def _singular_values(A: Array) -> Array:
    A = _check.matrix("A", A)
    return namespace(A).linalg.svdvals(A)


def spectrum_of(s: Any, name: str = "s") -> Array:
    """Return a spectrum as a vector of finite numbers."""
    return _check.floating(name, s, ndim=1)


@dataclass(frozen=True)
class Schatten(SpectralNorm):
    """(sum_i |s_i|^p)^(2/p); a quasi-norm for p < 1. Depth L with weight decay induces p = 2/L."""

    p: float

    def __post_init__(self) -> None:
        if not (isinstance(self.p, float) and self.p == math.inf):
            object.__setattr__(self, "p", _check.number("p", self.p, exclusive=True))

    @bounded
    def value(self, s: Array) -> Array:
        """(sum_i |s_i|^p)^(2/p)."""
        s = spectrum_of(s)
        xp = namespace(s)
        size = xp.abs(s)
        largest = xp.max(size)
        if self.p == math.inf or bool(largest == 0):
            return largest**2
        return largest**2 * xp.sum((size / largest) ** self.p) ** (2 / self.p)

    @bounded
    def dual(self, s: Array) -> Array:
        """Return the value for the conjugate exponent q, 1/p + 1/q = 1; needs p >= 1."""
        if self.p < 1:
            raise InputError(f"the dual norm needs p >= 1, got p = {self.p}")
        if self.p == 1:
            return Schatten(math.inf).value(s)
        return Schatten(1.0 if self.p == math.inf else self.p / (self.p - 1)).value(s)

    @bounded
    def prox(self, s: Array, weight: float) -> Array:
        """Return the closed form, which exists for p = 1, 2 and infinity."""
        s, w = spectrum_of(s), _check.number("weight", weight)
        if self.p == 1:
            return SquaredNuclear().prox(s, w)
        if self.p == 2:
            return s / (1 + w)
        return s - self.shrinkage(s, w)

    @bounded
    def shrinkage(self, s: Array, weight: float) -> Array:
        """Return s - prox(s, weight), for p = 1, 2 and infinity."""
        s, w = spectrum_of(s), _check.number("weight", weight)
        if self.p == 1:
            return SquaredNuclear().shrinkage(s, w)
        if self.p == 2:
            return s * w / (1 + w)
        if self.p == math.inf:
            # Moreau: the conjugate of w |a|_inf^2 under this scaling is |.|_1^2 / w.
            return s * 0.0 if w == 0 else SquaredNuclear().prox(s, 1 / w)
        raise InputError(
            f"the proximal map is known for p = 1, 2 and infinity, got p = {self.p}"
        )


def nu(widths: Sequence[int], drop_prob: Any) -> float:
    """prod_j (1 + lam_j / d_j) - 1 over the hidden widths d_j.

    The effective regularization parameter of deep dropout (thesis, Definition 4, whose sum over
    choices of layers this product equals). `drop_prob` is one number or one per hidden layer.

    Examples
    --------
    >>> import overt
    >>> round(overt.spectral.nu([2, 4], drop_prob=0.5), 6)  # (1 + 1/2)(1 + 1/4) - 1
    0.875
    """
    d = _check.widths(widths)
    probs = _check.drop_probs(drop_prob, len(d))
    return math.expm1(
        sum(math.log1p(p / (1 - p) / width) for p, width in zip(probs, d, strict=True))
    )


@bounded
def factorization_cost(s: Array, depth: int) -> Array:
    """L sum_i s_i^(2/L) = min |theta|^2 over L-layer linear factorizations (one-way jumps, 2.2)."""
    s, L = _check.floating("s", s, ndim=1), _check.whole("depth", depth)
    xp = namespace(s)
    return L * xp.sum(xp.abs(s) ** (2 / L))


def induced(noise: Noise, width: int) -> tuple[float, SpectralNorm]:
    """Return (weight, norm): the noise at this width costs at least weight * norm.value(s).

    s is the spectrum of A C^(1/2) for a network map A. Dropout and DropConnect: (lam/d) times the
    squared nuclear norm (DropConnect with diag(C) in place of C). DropBlock on a grid of blocks of
    b: (lam b/d) times the squared k-support norm with k = b. The bound is attained by balanced
    factors for Dropout and DropConnect with d >= rank, and for DropBlock with enough blocks.
    """
    d = _check.whole("width", width)
    match noise:
        case Dropout(drop_prob=float()) | DropConnect():
            return noise.strength / d, SquaredNuclear()
        case DropBlock(placement="grid", block_size=b):
            noise.mean(d)  # the grid must fit
            return noise.strength * b / d, KSupport(b)
    raise InputTypeError(
        "an induced norm is known for Dropout with one drop_prob, DropConnect, and DropBlock with "
        f"placement='grid', got {noise!r}"
    )
