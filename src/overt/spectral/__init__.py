"""Norms of singular values that noises induce, their proximal maps and their duals.

`value` is always the **squared** norm, because that is what noise induces. `prox(s, weight)` is
argmin_a |s - a|^2 + weight * value(a), without a factor 1/2. `dual` is the squared dual norm, so
that <s, t>^2 <= value(s) * dual(t). The `matrix_` forms act on a matrix through its spectrum.

Spectra need not be sorted; signs are kept, as the norms depend on absolute values only.
"""

from __future__ import annotations

from overt.spectral.networks import WeightedTrace, factorization_cost, induced, nu
from overt.spectral.norms import KSupport, SpectralNorm, SquaredNuclear
from overt.spectral.schatten import Schatten

__all__ = [
    "KSupport",
    "Schatten",
    "SpectralNorm",
    "SquaredNuclear",
    "WeightedTrace",
    "factorization_cost",
    "induced",
    "nu",
]
