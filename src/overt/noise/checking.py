"""Check that a noise's stated moments are possible, and that its samples have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from overt._check import Floats, InputError, InputTypeError
from overt.noise.blocks import DropBlock
from overt.noise.masks import (
    CovarianceNoise,
    DropConnect,
    Dropout,
    KeepExactly,
    Noise,
    Width,
    shape_of,
)

BUILT_IN = (CovarianceNoise, DropBlock, DropConnect, Dropout, KeepExactly)

MAX_SAMPLED_NUMBERS = 2**22
"""Entries of all sampled masks together: 4096 masks of 1024 units, .1 s."""

MAX_COMPARED_UNITS = 256
"""Units whose sampled covariances are compared with the stated ones: 256^2 pairs."""

FALSE_ALARM = 1e-9
"""Probability at which a noise whose samples are right may be refused."""

ROUNDING = 1e-9
"""Asymmetry and negative eigenvalues of Gamma that count as rounding, relative to its size."""


def is_built_in(noise: Noise) -> bool:
    """Return whether the class is one of overt's own, whose moments its tests have checked."""
    return type(noise) in BUILT_IN


def check(noise: Noise, width: Width) -> None:
    """Raise an InputError unless the noise is consistent at this width.

    The mean must not be zero, the characteristic matrix must have the right shape and be symmetric
    and positive semi-definite, and masks drawn by `sample` must have these moments. A right noise
    is refused with a probability below 1e-9.

    Examples
    --------
    >>> import overt
    >>> overt.noise.check(overt.KeepExactly(2), width=5)
    """
    if not isinstance(noise, Noise):
        raise InputTypeError(
            f"noise must be a noise such as overt.Dropout(0.5), got {noise!r}"
        )
    mu = checked_mean(noise, width)
    variances = _checked_variances(noise, width)
    compared = np.arange(len(mu))
    if noise.independent:
        compared = compared[:MAX_COMPARED_UNITS]
        Gamma = np.diag(variances[compared])
    else:
        Gamma = checked_characteristic(noise, width)
        if not np.allclose(np.diag(Gamma), variances, rtol=1e-9, atol=0.0):
            raise InputError(
                f"{_name(noise)}: relative_variance is not the diagonal of Gamma"
            )
        compared = compared[:MAX_COMPARED_UNITS]
        Gamma = Gamma[np.ix_(compared, compared)]
    multipliers = _sampled(noise, width) / mu
    _compare_means(noise, multipliers, variances)
    _compare_covariances(noise, multipliers[:, compared], Gamma)


def checked_mean(noise: Noise, width: Width) -> Floats:
    """Return mu = E[z], one finite non-zero entry per unit."""
    units = math.prod(shape_of(width))
    mu = _floats(noise, "mean(width)", noise.mean(width))
    if mu.shape != (units,):
        raise InputError(
            f"{_name(noise)}: mean(width) must have {units} entries, one per unit, got {mu.shape}"
        )
    if np.any(mu == 0):
        raise InputError(
            f"{_name(noise)}: the mean must not be zero, got 0 for unit {int(np.argmin(abs(mu)))}"
        )
    return mu


def checked_characteristic(noise: Noise, width: Width) -> Floats:
    """Return Gamma, symmetric and positive semi-definite, units x units."""
    units = math.prod(shape_of(width))
    Gamma = _floats(noise, "characteristic(width)", noise.characteristic(width))
    if Gamma.shape != (units, units):
        raise InputError(
            f"{_name(noise)}: characteristic(width) must be {units} x {units}, got {Gamma.shape}"
        )
    size = float(np.abs(Gamma).max())
    asymmetry = float(np.abs(Gamma - Gamma.T).max())
    if asymmetry > ROUNDING * size:
        raise InputError(
            f"{_name(noise)}: characteristic(width) must be symmetric, got entries that differ "
            f"by {asymmetry:.3g}"
        )
    Gamma = (Gamma + Gamma.T) / 2
    smallest = float(np.linalg.eigvalsh(Gamma)[0])
    if smallest < -ROUNDING * units * size:
        raise InputError(
            f"{_name(noise)}: characteristic(width) is not positive semi-definite, so no masks "
            f"have it; its smallest eigenvalue is {smallest:.3g}"
        )
    return Gamma


def _checked_variances(noise: Noise, width: Width) -> Floats:
    units = math.prod(shape_of(width))
    if type(noise).relative_variance is Noise.relative_variance:
        # It is the diagonal of the matrix, so what is wrong with that is said first.
        checked_characteristic(noise, width)
    variances = _floats(
        noise, "relative_variance(width)", noise.relative_variance(width)
    )
    if variances.shape == (units,) and np.any(variances < 0):
        raise InputError(
            f"{_name(noise)}: the noise is not positive semi-definite: the variance of unit "
            f"{int(np.argmin(variances))} is {variances.min():.3g}"
        )
    if variances.shape != (units,):
        checked_characteristic(noise, width)  # says which shape is wrong
        raise InputError(
            f"{_name(noise)}: relative_variance(width) must have {units} entries, got "
            f"{variances.shape}"
        )
    return variances


def _floats(noise: Noise, method: str, value: Any) -> Floats:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise InputTypeError(
            f"{_name(noise)}: {method} must return a NumPy array of numbers, got {value!r:.60}"
        )
    array = value.astype(float)
    if not np.isfinite(array).all():
        raise InputError(
            f"{_name(noise)}: {method} must be finite, got NaN or infinite values"
        )
    return array


def _sampled(noise: Noise, width: Width) -> Floats:
    """Return masks, flattened to samples x units."""
    shape = shape_of(width)
    units = math.prod(shape)
    size = int(np.clip(MAX_SAMPLED_NUMBERS // units, 64, 4096))
    try:
        masks = noise.sample(width, size, np.random.default_rng(0))
    except TypeError as error:
        raise InputError(
            f"{_name(noise)}: sample must take (width, size, seed), seed a NumPy Generator: {error}"
        ) from error
    masks = _floats(noise, "sample(width, size, seed)", masks)
    if masks.shape != (size, *shape):
        raise InputError(
            f"{_name(noise)}: sample(width, size, seed) must return masks of shape "
            f"{(size, *shape)}, got {masks.shape}"
        )
    return masks.reshape(size, units)


def _standard_errors(comparisons: int) -> float:
    """Return how many standard errors no comparison exceeds, by a union bound on normal tails."""
    return math.sqrt(2 * math.log(2 * comparisons / FALSE_ALARM))


def _compare_means(noise: Noise, multipliers: Floats, variances: Floats) -> None:
    size = len(multipliers)
    allowed = _standard_errors(multipliers.shape[1])
    found = multipliers.mean(axis=0)
    largest = np.abs(multipliers - 1).max(axis=0)
    # Bernstein: the second term covers what is rare in so few samples.
    tol = allowed * np.sqrt(variances / size) + allowed**2 * largest / size + 1e-9
    excess = np.abs(found - 1) - tol
    worst = int(np.argmax(excess))
    if excess[worst] > 0:
        raise InputError(
            f"{_name(noise)}: {size} sampled masks have mean {found[worst]:.4g} times the stated "
            f"one in unit {worst}; sample and mean contradict each other"
        )


def _compare_covariances(noise: Noise, multipliers: Floats, Gamma: Floats) -> None:
    size = len(multipliers)
    allowed = _standard_errors(Gamma.size)
    centered = multipliers - 1
    squares = centered**2
    found = centered.T @ centered / size
    spread = np.sqrt(np.maximum(squares.T @ squares / size - found**2, 0.0))
    # A value as rare as the sample is short may be missing from it: its share is unknown too.
    largest = np.maximum(np.abs(centered).max(axis=0), np.sqrt(np.diag(Gamma)))
    unseen = np.maximum(np.outer(largest, largest), 1.0)
    tol = allowed * spread / np.sqrt(size) + allowed**2 * unseen / size + 1e-9
    excess = np.abs(found - Gamma) - tol
    i, j = np.unravel_index(int(np.argmax(excess)), excess.shape)
    if excess[i, j] > 0:
        raise InputError(
            f"{_name(noise)}: {size} sampled masks have covariance {found[i, j]:.4g} between units "
            f"{i} and {j}, in units of their means, but characteristic states {Gamma[i, j]:.4g}"
        )


def _name(noise: Noise) -> str:
    return type(noise).__name__
