"""Compiled descent on C(W_L ... W_1) + lam |theta|^2 for small networks.

`layers.loss` and `layers.gradient` say in NumPy what `loss_gradient` computes.
"""

from __future__ import annotations

import numpy as np

from overt._running import njit

_MEMORY = 12  # pairs that L-BFGS keeps


@njit()
def loss_gradient(theta, sizes, rows, cols, values, lam, grad):  # type: ignore[no-untyped-def]
    """Return the loss of the flat weights and write its gradient; layer l maps sizes[l] to [l+1].

    The input of layer l and the gradient by its output are stored for each column of the matrix.
    """
    L = sizes.size - 1
    n = sizes[0]
    wide = sizes.max()
    x = np.zeros((L + 1, wide, n))
    for k in range(n):
        x[0, k, k] = 1.0
    end = 0
    for layer in range(L):
        inner = sizes[layer]
        for i in range(sizes[layer + 1]):
            for k in range(inner):
                w = theta[end + i * inner + k]
                for j in range(n):
                    x[layer + 1, i, j] += w * x[layer, k, j]
        end += sizes[layer + 1] * inner
    back = np.zeros((wide, n))
    before = np.zeros((wide, n))
    cost = 0.0
    N = values.size
    for e in range(N):
        r = x[L, rows[e], cols[e]] - values[e]
        cost += r * r
        back[rows[e], cols[e]] += r / N
    cost = cost / (2 * N)
    for t in range(theta.size):
        cost += lam * theta[t] * theta[t]
        grad[t] = 2 * lam * theta[t]
    for layer in range(L - 1, -1, -1):
        inner = sizes[layer]
        end -= sizes[layer + 1] * inner
        before[:] = 0.0
        for i in range(sizes[layer + 1]):
            for k in range(inner):
                w = theta[end + i * inner + k]
                total = 0.0
                for j in range(n):
                    total += back[i, j] * x[layer, k, j]
                    before[k, j] += w * back[i, j]
                grad[end + i * inner + k] += total
        back, before = before, back
    return cost


@njit()
def lbfgs(theta, sizes, rows, cols, values, lam, tol, steps):  # type: ignore[no-untyped-def]
    """Return where L-BFGS with Armijo's rule ends: gradient below tol, or `steps` taken."""
    x = theta.copy()
    d = theta.size
    g = np.empty(d)
    h = np.empty(d)
    S = np.zeros((_MEMORY, d))
    Y = np.zeros((_MEMORY, d))
    rho = np.zeros(_MEMORY)
    a = np.zeros(_MEMORY)
    kept = 0
    f = loss_gradient(x, sizes, rows, cols, values, lam, g)
    for _ in range(steps):
        if np.abs(g).max() <= tol:
            break
        p = -g
        for k in range(kept - 1, max(kept - _MEMORY, 0) - 1, -1):
            i = k % _MEMORY
            a[i] = rho[i] * np.dot(S[i], p)
            p -= a[i] * Y[i]
        if kept:
            i = (kept - 1) % _MEMORY
            p /= rho[i] * np.dot(Y[i], Y[i])
        else:
            p /= max(1.0, np.sqrt(np.dot(g, g)))
        for k in range(max(kept - _MEMORY, 0), kept):
            i = k % _MEMORY
            p += (a[i] - rho[i] * np.dot(Y[i], p)) * S[i]
        slope = np.dot(g, p)
        step = 1.0
        while slope < 0 and step > 1e-12:
            new = x + step * p
            f_new = loss_gradient(new, sizes, rows, cols, values, lam, h)
            if f_new <= f + 1e-4 * step * slope:
                break
            # The parabola through f, its slope and f_new, clipped to a tenth and a half.
            step *= min(0.5, max(0.1, -0.5 * slope * step / (f_new - f - slope * step)))
        else:
            if kept == 0:
                break
            kept = 0
            continue
        i = kept % _MEMORY
        S[i] = new - x
        Y[i] = h - g
        curvature = np.dot(S[i], Y[i])
        if curvature > 1e-12 * np.dot(Y[i], Y[i]):
            rho[i] = 1 / curvature
            kept += 1
        x[:] = new
        g[:] = h
        f = f_new
    return x
