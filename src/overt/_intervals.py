"""Exact confidence intervals of shares, and errors with weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import InputError, doubles
from overt._types import Floats


def clopper_pearson(successes: Any, trials: Any, level: float) -> tuple[Floats, Floats]:
    """Return (low, high) for shares successes / trials, by quantiles of the beta distribution.

    The interval never covers the true share less often than `level`; arrays are taken entry by
    entry.
    """
    from scipy.stats import (
        beta,
    )  # on first use: it takes longer to load than all of overt

    k, n = np.broadcast_arrays(np.asarray(successes), np.asarray(trials))
    tail = (1 - level) / 2
    low = np.where(k == 0, 0.0, beta.ppf(tail, np.maximum(k, 1), n - k + 1))
    high = np.where(k == n, 1.0, beta.ppf(1 - tail, k + 1, np.maximum(n - k, 1)))
    return low, high


def weighted_error(error: Floats, weights: Any) -> float:
    """Return sqrt(sum_i w_i e_i^2 / sum_i w_i), all weights 1 where there are none."""
    if weights is None:
        return float(np.sqrt(np.mean(error**2)))
    w = doubles("sample_weight", weights, ndim=1)
    if w.shape != error.shape or w.min() < 0 or not w.any():
        raise InputError(
            f"sample_weight must be {len(error)} numbers from 0, not all 0"
        )
    return float(np.sqrt(np.average(error**2, weights=w / w.max())))
