"""Compiled SGD on single observed entries."""

from __future__ import annotations

import numpy as np

from overt._running import njit

# Sums may be reordered (so that they vectorize), but NaN and infinity keep their meaning.
# No fused multiply-adds: a run must not depend, even by rounding, on where it is cut into calls.
_FLAGS = {"reassoc", "nsz"}
_LIMIT = 1e8
_SMALLEST_SCALE = 1e-6


@njit(fastmath=_FLAGS, error_model="numpy")
def _sweep(M, decay, a, b, x, y, u, z):  # type: ignore[no-untyped-def]
    """M = decay M + a b', y = M x, z = M'u, in one pass over M.

    One row at a time: with more rows the loop has too many pointers for the compiler to prove
    that they do not overlap, and it gives up on vectorizing.
    """
    z[:] = 0.0
    for r in range(M.shape[0]):
        row = M[r]
        a_r = a[r]
        u_r = u[r]
        total = 0.0
        for k in range(row.size):
            m = decay * row[k] + a_r * b[k]
            row[k] = m
            total += m * x[k]
            z[k] += u_r * m
        y[r] = total


@njit(fastmath=_FLAGS, error_model="numpy")
def _update(M, decay, a, b, x, y):  # type: ignore[no-untyped-def]
    """M = decay M + a b', y = M x, in one pass over M."""
    for r in range(M.shape[0]):
        row = M[r]
        a_r = a[r]
        total = 0.0
        for k in range(row.size):
            m = decay * row[k] + a_r * b[k]
            row[k] = m
            total += m * x[k]
        y[r] = total


@njit(fastmath=_FLAGS, error_model="numpy")
def _transposed(M, u, z):  # type: ignore[no-untyped-def]
    """Set z = M'u."""
    z[:] = 0.0
    for r in range(M.shape[0]):
        row = M[r]
        u_r = u[r]
        for k in range(row.size):
            z[k] += u_r * row[k]


@njit(fastmath=_FLAGS, error_model="numpy")
def descend(F, M, G, scale, rows, cols, values, draws, learning_rate, weight_decay):  # type: ignore[no-untyped-def]
    """Step theta <- (1 - 2 eta lam) theta - (eta/2) grad (A_ij - y)^2 for each entry, in place.

    A_ij = G[i] M[-1] ... M[0] F[j]': F (inputs x width) is the first layer transposed, M (layers x
    width x width) the middle layers, G (outputs x width) the last one; F and G are stored divided
    by scale[0], so that weight decay need not touch all their rows. Returns the number of steps
    taken before |A_ij - y| exceeded 1e8.

    Each gradient is an outer product g h', so a middle layer needs one pass per step: the last
    step's update is applied while the next step's M x and M'u are formed.
    """
    middle = M.shape[0]
    width = F.shape[1]
    decay = 1.0 - 2.0 * learning_rate * weight_decay
    # h[l] is the input of middle layer l, g[l] the derivative by it; `old` is the step before.
    h = np.zeros((middle + 1, width))
    g = np.zeros_like(h)
    h_old = np.zeros_like(h)
    g_old = np.zeros_like(h)
    shared = scale[0]
    shrink = 1.0
    taken = draws.size
    for t in range(draws.size):
        n = draws[t]
        i = rows[n]
        j = cols[n]
        for k in range(width):
            h[0, k] = shared * F[j, k]
            g[middle, k] = shared * G[i, k]
        for m in range(middle - 1):
            _update(M[m], shrink, g_old[m + 1], h_old[m], h[m], h[m + 1])
        if middle > 0:
            m = middle - 1
            _sweep(M[m], shrink, g_old[m + 1], h_old[m], h[m], h[m + 1], g[m + 1], g[m])
        for m in range(middle - 2, -1, -1):
            _transposed(M[m], g[m + 1], g[m])
        shrink = decay
        error = -values[n]
        for k in range(width):
            error += g[middle, k] * h[middle, k]
        if not abs(error) < _LIMIT:
            taken = t
            shrink = 1.0
            g_old[:] = 0.0
            break
        shared *= decay
        step = -learning_rate * error
        for k in range(width):
            F[j, k] += step / shared * g[0, k]
            G[i, k] += step / shared * h[middle, k]
        for m in range(1, middle + 1):
            for k in range(width):
                g[m, k] *= step
        h, h_old, g, g_old = h_old, h, g_old, g
        if shared < _SMALLEST_SCALE:
            F *= shared
            G *= shared
            shared = 1.0
    for m in range(middle):
        for r in range(width):
            for k in range(width):
                M[m, r, k] = shrink * M[m, r, k] + g_old[m + 1, r] * h_old[m, k]
    scale[0] = shared
    return taken
