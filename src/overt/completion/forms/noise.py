"""Noise that knows whom it speaks of: entry (a, b) has the variance sigma^2 / (alpha_a beta_b).

alpha_a ~ Gamma(nu/2, nu/2), of mean 1, and beta_b likewise with its own nu. With n_a entries and
the misfit e_a = sum_b E beta_b E r_ab^2 / sigma^2,

    q(alpha_a) = Gamma((nu + n_a) / 2, (nu + e_a) / 2)

is exact given everything else, and leaves in the negative evidence bound

    -log integral Gamma(alpha; nu/2, nu/2) alpha^(n_a / 2) exp(-alpha e_a / 2) d alpha
      = log Gamma(nu/2) - (nu/2) log(nu/2)
        - log Gamma((nu + n_a)/2) + ((nu + n_a)/2) log((nu + e_a)/2)

whose sum over rows nu minimizes; nu = infinity is one noise for all, and leaves e_a / 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._types import Array, Floats, Ints
from overt.completion.forms.features import NOTHING
from overt.completion.forms.problem import CompletionProblem

NUS = np.append(np.logspace(np.log10(4), 3.5, 60), np.inf)
"""Values of nu that are tried; at 4 a row never seen has twice the variance."""


@dataclass(frozen=True, eq=False)
class RowNoise:
    """E alpha and E 1 / alpha of a side's rows; `fixed` is the bound's part without the misfit."""

    nu: float
    weights: Floats
    variances: Floats
    fixed: float = 0.0

    @classmethod
    def start(cls, count: int) -> RowNoise:
        """Return one noise for all."""
        return cls(np.inf, np.ones(count), np.ones(count))

    @property
    def unseen(self) -> float:
        """E 1 / alpha of a row without entries."""
        return float(self.nu / (self.nu - 2)) if np.isfinite(self.nu) else 1.0

    def with_unseen(self) -> RowNoise:
        """Return them with one more row, that of a row never seen."""
        weights = np.append(self.weights, 1.0)
        variances = np.append(self.variances, self.unseen)
        return RowNoise(self.nu, weights, variances, self.fixed)

    def taken(self, pick: Ints) -> RowNoise:
        """Return the noise of some rows."""
        return RowNoise(self.nu, self.weights[pick], self.variances[pick], self.fixed)

    def learn(self, counts: Array, misfits: Floats) -> RowNoise:
        """Return q(alpha) and nu for rows with these numbers of entries and misfits."""
        active = counts > 0
        n = counts[active].astype(float)
        e = np.maximum(misfits[active], 0)
        at = int(np.searchsorted(NUS, self.nu))
        if not np.isfinite(self.nu):  # the first time all are tried, later those beside the last
            at = int(np.argmin([_cost(nu, n, e) for nu in NUS[::4]])) * 4
        found = {at: _cost(NUS[at], n, e)}
        while True:
            for i in (at - 1, at + 1):
                if 0 <= i < len(NUS) and i not in found:
                    found[i] = _cost(NUS[i], n, e)
            best = min(found, key=found.__getitem__)
            if best == at:
                break
            at = best
        nu = float(NUS[at])
        weights = np.ones(len(counts))
        variances = np.ones(len(counts))
        variances[:] = RowNoise(nu, weights, variances).unseen
        weights[active], variances[active] = expected(nu, n, e)
        return RowNoise(nu, weights, variances, found[at] - float(weights[active] @ e) / 2)

    def arrays(self, side: int) -> dict[str, Array]:
        """Return the arrays to store."""
        kept = {"weights": self.weights, "variances": self.variances}
        kept["nu"] = np.array([self.nu, self.fixed])
        return {f"noise_{name}_{side}": array for name, array in kept.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], side: int) -> RowNoise:
        """Rebuild them."""
        nu, fixed = arrays[f"noise_nu_{side}"]
        weights, variances = (arrays[f"noise_{n}_{side}"] for n in ("weights", "variances"))
        return cls(float(nu), weights, variances, float(fixed))


class Plain:
    """A form with one noise for all, which looks at no features."""

    problem: CompletionProblem
    features = (NOTHING, NOTHING)

    @property
    def noises(self) -> list[RowNoise]:
        """One noise for all, beside what the form knows of precisions."""
        return [RowNoise.start(count) for count in self.problem.shape]


def expected(nu: float, n: Any, e: Any) -> tuple[Any, Any]:
    """Return E alpha and E 1 / alpha of rows with n entries and the misfit e."""
    if not np.isfinite(nu):
        return np.ones_like(n), np.ones_like(n)
    return (nu + n) / (nu + e), (nu + e) / (nu + n - 2)


def _cost(nu: float, n: Floats, e: Floats) -> float:
    """Return what alpha leaves in the negative evidence bound, summed over rows."""
    from scipy.special import gammaln

    if not np.isfinite(nu):
        return float(e.sum()) / 2
    half = nu / 2
    each = gammaln(half) - half * np.log(half) - gammaln(half + n / 2)
    return float(np.sum(each + (half + n / 2) * np.log(half + e / 2)))
