"""Noise with any mean and covariance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from overt import _check
from overt._check import InputError, bounded
from overt._types import Floats, Seed
from overt.noise.masks import Noise, Width, shape_of


class CovarianceNoise(Noise):
    """Noise with any mean and covariance, drawn as Gaussian multipliers.

    Parameters
    ----------
    mean
        mu, one non-zero entry per unit.
    covariance
        K, units x units, symmetric and positive semi-definite.
    """

    def __init__(self, mean: Any, covariance: Any) -> None:
        mu = _check.doubles("mean", mean, ndim=1).copy()
        K = _check.doubles("covariance", covariance, ndim=2)
        if np.any(mu == 0):
            raise InputError(f"mean must have no zero entry, got 0 at {int(np.argmin(abs(mu)))}")
        if K.shape != (mu.size, mu.size):
            raise InputError(f"covariance must be {mu.size} x {mu.size}, got {K.shape}")
        apart = abs(K - K.T).max()
        if apart > 1e-10 * abs(K).max():
            raise InputError(
                f"covariance must be symmetric, got entries that differ by {apart:.3g}"
            )
        K = (K + K.T) / 2
        eigenvalues, vectors = np.linalg.eigh(K)
        if eigenvalues[0] < -1e-10 * eigenvalues[-1]:
            raise InputError(
                "covariance must be positive semi-definite, got smallest eigenvalue "
                f"{eigenvalues[0]:.3g}"
            )
        self._mean, self._covariance = mu, K
        self._root = vectors * np.sqrt(np.maximum(eigenvalues, 0))

    def __repr__(self) -> str:
        return f"CovarianceNoise(mean={self._mean!r}, covariance={self._covariance!r})"

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self._mean)

    @property
    def independent(self) -> bool:
        """Whether the covariance is diagonal."""
        off_diagonal = self._covariance - np.diag(np.diag(self._covariance))
        return not np.any(off_diagonal)

    def mean(self, width: Width) -> Floats:
        """Return the mean as given."""
        self._fitting(width)
        return self._mean.copy()

    @bounded
    def characteristic(self, width: Width) -> Floats:
        """K_ij / (mu_i mu_j)."""
        self._fitting(width)
        return self._covariance / np.outer(self._mean, self._mean)

    def covariance(self, width: Width) -> Floats:
        """Return the covariance as given."""
        self._fitting(width)
        return self._covariance.copy()

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw Gaussian masks with the given moments, shape (size, *width)."""
        shape = self._fitting(width)
        normal = _check.generator(seed).standard_normal(
            (_check.whole("size", size), len(self._mean))
        )
        return np.asarray((self._mean + normal @ self._root.T).reshape(-1, *shape))

    def _fitting(self, width: Width) -> tuple[int, ...]:
        shape = shape_of(width)
        if math.prod(shape) != self._mean.size:
            raise InputError(f"the noise is over {self._mean.size} units but the width is {width}")
        return shape
