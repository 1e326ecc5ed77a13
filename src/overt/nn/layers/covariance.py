"""Noise with a covariance of one's choice.

Correlated 0/1 masks come from thresholds: z_i = 1 where a standard normal g_i is at most
t_i = Phi^-1(mu_i). E[z_i z_j] = Phi2(t_i, t_j; r_ij) with r the correlation of (g_i, g_j), which
grows with r; here it is inverted, pair by pair. d Phi2 / d r is the normal density, so that with
r = sin(a)

    Phi2(s, t; r) = Phi(s) Phi(t)
                    + (1 / 2 pi) int_0^asin(r) exp(-(s^2 + t^2 - 2 s t sin a) / (2 cos^2 a)) da.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from overt import _check
from overt._check import Floats, InputError
from overt.nn.layers.base import UnitNoise, check_shape
from overt.nn.layers.masks import MaskCovariance, Shape, normal
from overt.noise import CovarianceNoise

LARGEST = 1e18
"""Standard deviation, in units of the mean, of a mask whose square single precision can hold."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


class CovarianceDropout(UnitNoise):
    """Units along one axis are multiplied by z_i / mu_i, with E[z] = mu and Cov(z) = K.

    Gamma_ij = K_ij / (mu_i mu_j) determines what the noise does to a squared loss (structured
    dropout, Lemma 3.1).

    Parameters
    ----------
    mean
        mu, one non-zero entry per unit (in (0, 1] for 0/1 masks: the keep probabilities).
    covariance
        K, units x units. For 0/1 masks K_ii = mu_i (1 - mu_i).
    distribution
        "gaussian": z is normal. "bernoulli": z is 0 or 1, by thresholding correlated normals.
    axis
        The axis of the input that the units lie along; 1 for channels.
    seed
        A seed for this layer's own generator; None samples from torch's.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import CovarianceDropout
    >>> layer = CovarianceDropout([0.5, 0.5], [[0.25, 0.2], [0.2, 0.25]], "bernoulli", seed=0)
    >>> y = layer(torch.ones(20_000, 2))  # units that are mostly dropped together
    >>> round(float(torch.cov((y / 2).T)[0, 1]), 2)
    0.2
    """

    def __init__(
        self,
        mean: Any,
        covariance: Any,
        distribution: Literal["gaussian", "bernoulli"] = "gaussian",
        *,
        axis: int = -1,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        noise = CovarianceNoise(mean, covariance)
        units = noise.units
        mu = noise.mean(units)
        K = noise.covariance(units)
        self.distribution = _check.choice(
            "distribution", distribution, ("gaussian", "bernoulli")
        )
        if isinstance(axis, bool) or not isinstance(axis, int) or axis == 0:
            raise InputError(
                f"axis must be an axis other than the batch's, 0, got {axis!r}"
            )
        self.axis = axis
        if self.distribution == "bernoulli":
            _check_bernoulli(mu, K)
            root, threshold = _bernoulli_root(mu, K)
        else:
            root, threshold = _root(K), np.zeros(units)
        dtype = torch.get_default_dtype()
        # On the CPU, so that a layer can be built on the meta device, which has no numbers.
        stored_mean = torch.tensor(mu, dtype=dtype, device="cpu")
        relative = torch.tensor(root, dtype=dtype, device="cpu") / stored_mean[:, None]
        if not bool(relative.isfinite().all()) or float(relative.abs().max()) > LARGEST:
            raise InputError(
                f"covariance / mean^2 must be at most {LARGEST:g}^2, as {dtype} has to hold masks"
            )
        buffers = {"mean": mu, "covariance": K, "root": root, "threshold": threshold}
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

    @property
    def two_valued(self) -> bool:
        """Whether a unit's multiplier is 0 or one other number."""
        return self.distribution == "bernoulli"

    def mask_covariance(self, shape: Shape) -> MaskCovariance:
        """K_ij / (mu_i mu_j) along the axis, independent along all others."""
        shape = check_shape(shape)
        axis = self._fitting(shape)
        matrix = self.covariance / torch.outer(self.mean, self.mean)
        return MaskCovariance(shape[1:], matrix=matrix, axes=(axis - 1,))

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        units = f"units={len(self.mean)}"
        return self._describe(
            units, f"distribution={self.distribution}", f"axis={self.axis}"
        )

    def _apply_mask(self, x: Tensor) -> Tensor:
        axis = self._fitting(tuple(x.shape))
        sizes = [n for i, n in enumerate(x.shape) if i != axis]
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        g = normal([*sizes, len(self.mean)], x.device, self._next_key()).to(wide)
        g = torch.matmul(g, self.root.to(wide).mT)
        mu = self.mean.to(wide)
        if self.distribution == "gaussian":
            multipliers = 1 + g / mu
        else:
            multipliers = (g <= self.threshold.to(wide)) / mu
        return (x * multipliers.movedim(-1, axis)).to(x.dtype)

    def _fitting(self, shape: Shape) -> int:
        axis, units = self.axis % max(len(shape), 1), len(self.mean)
        if (
            axis == 0
            or not -len(shape) <= self.axis < len(shape)
            or shape[axis] != units
        ):
            raise InputError(
                f"x must have {units} units along axis {self.axis}, got shape {tuple(shape)}"
            )
        return axis


def _root(K: Any) -> Any:
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.maximum(values, 0))


def _check_bernoulli(mu: Any, K: Any) -> None:
    if np.any(mu <= 0) or np.any(mu > 1):
        raise InputError(
            f"mean must lie in (0, 1] for 0/1 masks, got {mu.min():g} to {mu.max():g}"
        )
    variance = mu * (1 - mu)
    off = np.abs(np.diag(K) - variance)
    if off.max() > 1e-6:
        i = int(off.argmax())
        raise InputError(
            f"covariance[{i}, {i}] must be mean (1 - mean) = {variance[i]:.4g} for 0/1 masks, "
            f"got {K[i, i]:.4g}"
        )


def _bernoulli_root(mu: Any, K: Any) -> tuple[Any, Any]:
    """Return a root of the latent correlation, and the thresholds; units with mu = 1 stay on."""
    from scipy.special import ndtri

    certain = mu == 1
    inner = np.ix_(~certain, ~certain)
    R = np.eye(len(mu))
    if not certain.all():
        R[inner] = _latent_correlation(mu[~certain], K[inner])
    return _root(R), np.where(certain, 1e30, ndtri(np.where(certain, 0.5, mu)))


def _latent_correlation(mu: Floats, K: Floats) -> Floats:
    """Return the correlation r of normals whose thresholded signs have mean mu and covariance K."""
    from scipy.special import ndtri

    d = len(mu)
    i, j = np.triu_indices(d, 1)
    t = ndtri(mu)
    angle = _solve(t[i], t[j], K[i, j])
    off = np.abs(_covariance(t[i], t[j], angle) - K[i, j])
    if off.size and off.max() > 1e-8:
        worst = int(off.argmax())
        raise InputError(
            f"covariance[{i[worst]}, {j[worst]}] = {K[i[worst], j[worst]]:.4g} is beyond what 0/1 "
            f"masks with means {mu[i[worst]]:.4g} and {mu[j[worst]]:.4g} can have"
        )
    R = np.eye(d)
    R[i, j] = R[j, i] = np.sin(angle)
    smallest = float(np.linalg.eigvalsh(R)[0])
    if smallest < -1e-7:
        raise InputError(
            "no normal copula has this covariance: the latent correlation has the eigenvalue "
            f"{smallest:.3g}; use weaker correlations, or distribution='gaussian'"
        )
    return R


def _covariance(s: Floats, t: Floats, angle: Floats) -> Floats:
    """Phi2(s, t; sin(angle)) - Phi(s) Phi(t)."""
    a = angle[:, None] * (_NODES + 1) / 2
    s, t = s[:, None], t[:, None]
    exponent = (s * s + t * t - 2 * s * t * np.sin(a)) / (2 * np.cos(a) ** 2)
    return np.asarray(angle / 2 * (np.exp(-exponent) @ _WEIGHTS) / (2 * np.pi))


def _solve(s: Floats, t: Floats, target: Floats) -> Floats:
    """Return the angles at which the covariance is `target`, by bisection on [-pi/2, pi/2]."""
    low, high = np.full(s.shape, -np.pi / 2), np.full(s.shape, np.pi / 2)
    for _ in range(60):
        middle = (low + high) / 2
        below = _covariance(s, t, middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
