"""Moments of f(x_i), x normal and f applied to each entry, by the Hermite series.

With x_i = mu_i + s_i z_i, corr(x_i, x_j) = r_ij and c_n(i) = E[f(mu_i + s_i z) He_n(z)],

    E f(x_i) = c_0(i),   Cov(f(x_i), f(x_j)) = sum_(n >= 1) c_n(i) c_n(j) r_ij^n / n!.

The series is cut after `ORDER` terms; variances are exact, so the cut covariance stays positive
semi-definite. For ReLU, with a = mu / s, phi and Phi the normal density and distribution,

    c_0 = mu Phi(a) + s phi(a),  c_1 = s Phi(a),  c_n = s (-1)^n He_(n-2)(a) phi(a).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

ORDER = 3

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


def relu_moments(mu: Tensor, variance: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return [c_0, ..., c_ORDER] and the variances of max(x, 0)."""
    s, certain = _deviation(mu, variance)
    a = mu / s
    phi = torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    Phi = torch.special.ndtr(a)
    mean = mu * Phi + s * phi
    # E[f^2] - E[f]^2 with the terms arranged so that little cancels.
    spread = s * s * (Phi - phi * phi) + mu * (mu * Phi * (1 - Phi) + s * phi * (1 - 2 * Phi))
    coefficients = [torch.where(certain, mu.clamp(min=0), mean), s * Phi]
    coefficients += [
        (-1) ** n * s * phi * _hermite(n - 2, a) for n in range(2, ORDER + 1)
    ]  # fmt: skip
    zero = torch.zeros_like(mu)
    coefficients[1:] = [torch.where(certain, zero, c) for c in coefficients[1:]]
    return coefficients, torch.where(certain, zero, spread.clamp(min=0))


def elementwise_moments(
    f: Callable[[Tensor], Tensor], mu: Tensor, variance: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return [c_0, ..., c_ORDER] and the variances of f(x), by Gauss-Hermite quadrature."""
    s, certain = _deviation(mu, variance)
    s = torch.where(certain, 0.0, s)
    weights = _WEIGHTS / math.sqrt(2 * math.pi)
    values = [f(mu + s * float(z)) for z in _NODES]
    coefficients = []
    for n in range(ORDER + 1):
        polynomial = np.polynomial.hermite_e.hermeval(_NODES, [0] * n + [1])
        terms = [float(w * p) * v for w, p, v in zip(weights, polynomial, values, strict=True)]
        coefficients.append(torch.stack(terms).sum(0))
    mean = coefficients[0]
    deviations = [float(w) * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)]
    return coefficients, torch.stack(deviations).sum(0)


def covariance_after(
    coefficients: list[Tensor], variance_after: Tensor, covariance: Tensor
) -> Tensor:
    """Return Cov(f(x)) (batch, D, D) from Cov(x), the series' coefficients and the variances."""
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    s, certain = _deviation(torch.ones_like(diagonal), diagonal)
    r = covariance / (s[:, :, None] * s[:, None, :])
    total, power = torch.zeros((), dtype=r.dtype, device=r.device), r
    for n, c in enumerate(coefficients[1:], 1):
        power = power if n == 1 else power * r
        c = torch.where(certain, 0.0, c.flatten(1)) / math.sqrt(math.factorial(n))
        total = torch.addcmul(total, c[:, :, None] * c[:, None, :], power)
    missing = variance_after.flatten(1) - total.diagonal(dim1=1, dim2=2)
    return total + torch.diag_embed(missing)


def _deviation(mu: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return standard deviations, 1 in place of 0, and where they were 0."""
    floor = torch.finfo(variance.dtype).tiny ** 0.5
    certain = variance <= floor * (1 + mu * mu)
    return torch.where(certain, 1.0, variance).sqrt(), certain


def _hermite(n: int, x: Tensor) -> Tensor:
    before, now = torch.zeros_like(x), torch.ones_like(x)
    for k in range(n):
        before, now = now, x * now - k * before
    return now
