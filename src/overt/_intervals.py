"""Exact confidence intervals of shares."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._check import Floats


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
