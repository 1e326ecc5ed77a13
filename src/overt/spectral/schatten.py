"""Squared Schatten norms, which depth with weight decay induces."""

from __future__ import annotations

import math
from dataclasses import dataclass

from overt import _check
from overt._check import InputError, bounded, namespace
from overt._types import Array
from overt.spectral.norms import SpectralNorm, SquaredNuclear, spectrum_of


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
