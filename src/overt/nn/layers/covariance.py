"""Noise with a covariance of one's choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt._check import InputError
from overt.nn.layers.base import UnitNoise, check_shape
from overt.nn.layers.masks import MaskCovariance, Shape, normal
from overt.noise import CovarianceNoise

LARGEST = 1e18
"""Standard deviation, in units of the mean, of a mask whose square single precision can hold."""


class CovarianceDropout(UnitNoise):
    """Units along one axis are multiplied by z_i / mu_i, z normal with E[z] = mu and Cov(z) = K.

    Gamma_ij = K_ij / (mu_i mu_j) determines what the noise does to a squared loss (structured
    dropout, Lemma 3.1).

    Parameters
    ----------
    mean
        mu, one non-zero entry per unit.
    covariance
        K, units x units.
    axis
        The axis of the input that the units lie along; 1 for channels.
    seed
        A seed for this layer's own generator; None samples from torch's.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import CovarianceDropout
    >>> layer = CovarianceDropout([0.5, 0.5], [[0.25, 0.2], [0.2, 0.25]], seed=0)
    >>> y = layer(torch.ones(20_000, 2))
    >>> round(float(torch.cov((y / 2).T)[0, 1]), 2)
    0.2
    """

    two_valued = False

    def __init__(
        self,
        mean: Any,
        covariance: Any,
        *,
        axis: int = -1,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        noise = CovarianceNoise(mean, covariance)
        units = noise.units
        mu = noise.mean(units)
        K = noise.covariance(units)
        if isinstance(axis, bool) or not isinstance(axis, int) or axis == 0:
            raise InputError(
                f"axis must be an axis other than the batch's, 0, got {axis!r}"
            )
        self.axis = axis
        values, vectors = np.linalg.eigh(K)
        root = vectors * np.sqrt(np.maximum(values, 0))
        dtype = torch.get_default_dtype()
        # On the CPU, so that a layer can be built on the meta device, which has no numbers.
        stored_mean = torch.tensor(mu, dtype=dtype, device="cpu")
        relative = torch.tensor(root, dtype=dtype, device="cpu") / stored_mean[:, None]
        largest = float(relative.abs().max())
        if not largest <= LARGEST:  # or not a number
            raise InputError(
                f"covariance / mean^2 must be at most {LARGEST:g}^2, as {dtype} has to hold masks"
            )
        buffers = {"mean": mu, "covariance": K, "root": root}
        for name, value in buffers.items():
            self.register_buffer(name, torch.tensor(value, dtype=dtype))

    @property
    def p(self) -> float:
        """Raise an error: this noise has a covariance and no drop probability."""
        raise AttributeError("CovarianceDropout has no drop probability p")

    @property
    def silent(self) -> bool:
        """False: a covariance of zero is sampled like any other."""
        return False

    def mask_covariance(self, shape: Shape) -> MaskCovariance:
        """K_ij / (mu_i mu_j) along the axis, independent along all others."""
        shape = check_shape(shape)
        axis = self._fitting(shape)
        matrix = self.covariance / torch.outer(self.mean, self.mean)
        return MaskCovariance(shape[1:], matrix=matrix, axes=(axis - 1,))

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        units = f"units={len(self.mean)}"
        return self._describe(units, f"axis={self.axis}")

    def _apply_mask(self, x: Tensor) -> Tensor:
        axis = self._fitting(tuple(x.shape))
        sizes = [n for i, n in enumerate(x.shape) if i != axis]
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        shape = [*sizes, len(self.mean)]
        g = normal(shape, x.device, self._next_key())
        g = torch.matmul(g.to(wide), self.root.to(wide).mT)
        multipliers = 1 + g / self.mean.to(wide)
        return (x * multipliers.movedim(-1, axis)).to(x.dtype)

    def _fitting(self, shape: Shape) -> int:
        axis = self.axis % max(len(shape), 1)
        units = len(self.mean)
        if (
            axis == 0
            or not -len(shape) <= self.axis < len(shape)
            or shape[axis] != units
        ):
            raise InputError(
                f"x must have {units} units along axis {self.axis}, got shape {tuple(shape)}"
            )
        return axis
