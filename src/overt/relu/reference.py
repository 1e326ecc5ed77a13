"""Algorithm 4 of the thesis (section 5.2), line by line: the oracle of `kernels`."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from overt._check import Array


def descend(
    W: Array,
    a: Array,
    X: Array,
    y: Array,
    order: Array,
    masks: Array,
    learning_rate: float,
    max_norm: float,
    margins: Array,
) -> int:
    """Take len(order) steps in place, write y_t g_t to `margins`, return how many rows shrank."""
    root, shrunk = math.sqrt(len(W)), 0
    for t, i in enumerate(order):
        x, b = X[i], masks[t].astype(float)
        z = W @ x
        margins[t] = y[i] * (a * b) @ np.maximum(z, 0) / root
        slope = -expit(-margins[t])  # l'(z), l(z) = log(1 + e^-z)
        W -= learning_rate * slope * y[i] * np.outer(a * b * (z > 0) / root, x)
        norms = np.linalg.norm(W, axis=1)
        long = norms > max_norm * (1 + 1e-12)
        W[long] *= (max_norm / norms[long])[:, None]
        shrunk += int(long.sum())
    return shrunk
