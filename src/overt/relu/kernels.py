"""Algorithm 4 of the thesis (section 5.2), compiled."""

from __future__ import annotations

import math

import numpy as np

from overt._check import Array
from overt._running import njit

ROUNDING = 1e-12
"""Relative excess over the largest norm at which a row counts as too long."""


@njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})
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
    """Take len(order) steps in place, write y_t g_t to `margins`, return how many rows shrank.

    The step of a row along x_t needs the outputs of all active rows that were not dropped. So
    each row's move is left pending and made in the next step's pass, while its product with the
    next input is summed: memory is read once per step, not twice. Row norms are updated too,
    |w + s x|^2 = |w|^2 + 2 s w.x + s^2 |x|^2, so that projecting costs nothing extra.
    """
    m, d = W.shape
    root = math.sqrt(m)
    pending = np.zeros(m)
    products = np.zeros(m)
    squares = np.empty(m)
    for r in range(m):
        total = 0.0
        for j in range(d):
            total += W[r, j] * W[r, j]
        squares[r] = total
    shrunk = 0
    limit = (max_norm * (1 + ROUNDING)) ** 2
    before = X[order[0]]
    for t in range(len(order) + 1):
        last = t == len(order)
        x = before if last else X[order[t]]
        length = 0.0
        for j in range(d):
            length += before[j] * before[j]
        output = 0.0
        for r in range(m):
            kept = (not last) and masks[t, r]
            s = pending[r]
            z = 0.0
            # Rows that start too long are cut after the first step, whether it moved them or not.
            if s != 0.0 or (t > 0 and squares[r] > limit):
                square = squares[r] + 2 * s * products[r] + s * s * length
                scale = 1.0
                if square > limit:
                    scale = max_norm / math.sqrt(square)
                    square = max_norm * max_norm
                    shrunk += 1
                squares[r] = square
                for j in range(d):
                    w = scale * (W[r, j] + s * before[j])
                    W[r, j] = w
                    z += w * x[j]
            elif kept:
                for j in range(d):
                    z += W[r, j] * x[j]
            products[r] = z
            pending[r] = 0.0
            if kept and z > 0:
                pending[r] = a[r]
                output += a[r] * z
        if last:
            break
        margin = y[order[t]] * output / root
        margins[t] = margin
        # -l'(z) = 1 / (1 + e^z), written so that no exponential overflows.
        if margin > 0:
            slope = math.exp(-margin) / (1 + math.exp(-margin))
        else:
            slope = 1 / (1 + math.exp(margin))
        move = learning_rate * slope * y[order[t]] / root
        for r in range(m):
            pending[r] *= move
        before = x
    return shrunk
