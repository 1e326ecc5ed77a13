"""Compiled steps in a ball cut by a box: pure functions of arrays, serial, releasing the GIL.

A row stays in the processor's cache from the gradient to the moved point. The same in PyTorch, for
other devices and as the tests' oracle: `threats.l2_in_box`, `Region.step`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._compiled import njit
from overt._types import Array

_OPTIONS = {"error_model": "numpy", "fastmath": {"contract", "nsz", "reassoc"}}


@njit(**_OPTIONS)
def l2_in_box(v: Array, radius: float, low: Array, high: Array, out: Array) -> None:
    """Write clip(s v, low, high) to `out` with the largest s in [0, 1] that keeps the norm."""
    origin, unused = np.zeros(v.shape[1], v.dtype), np.empty(v.shape[1], v.dtype)
    for i in range(len(v)):
        _project(v[i], origin, radius, low[i], high[i], out[i], unused)


@njit(**_OPTIONS)
def l2_step(
    x: Array,
    delta: Array,
    gradient: Array,
    length: Array,
    radius: float,
    low: Array,
    high: Array,
    moved: Array,
) -> None:
    """Set delta <- project(delta + length g / |g|) and moved <- x + delta in place, row by row.

    x, delta, gradient and moved are (points, features), length is (points,). low and high are the
    limits of the inputs themselves, (points, features) or one row for all points.
    """
    v = np.empty(x.shape[1], x.dtype)
    for i in range(len(x)):
        factor = length[i] * _inverse_norm(gradient[i])
        if factor != 0:
            for j in range(len(v)):
                v[j] = delta[i, j] + factor * gradient[i, j]
        else:
            v[:] = delta[i]
        row = i if len(low) > 1 else 0
        _project(v, x[i], radius, low[row], high[row], delta[i], moved[i])


@njit(**_OPTIONS)
def _project(
    v: Array, x: Array, radius: float, low: Array, high: Array, delta: Array, moved: Array
) -> None:
    """Set delta <- clip(s v, low - x, high - x), moved <- x + delta for one row.

    s is found by Newton's steps as in `threats.l2_in_box`, which says why they end at the root.
    """
    zero = v.dtype.type(0)
    target = v.dtype.type(radius) * v.dtype.type(radius)
    enough = v.dtype.type(1 + 8 * np.finfo(v.dtype).eps)
    s = v.dtype.type(1)
    clipped, whole = zero, zero
    for j in range(len(v)):
        d = min(max(v[j], low[j] - x[j]), high[j] - x[j])
        clipped += d * d
        whole += v[j] * v[j]
    if clipped > target:
        least, q = target / whole, target / clipped
        for step in range(100):
            s = np.sqrt(q)
            h, free = zero, zero
            for j in range(len(v)):
                w = s * v[j]
                d = min(max(w, low[j] - x[j]), high[j] - x[j])
                h += d * d
                free += w * w if d == w else zero
            fixed = h - free
            root = q * (target - fixed) / free if free > zero and fixed < target else least
            if step > 0 and not root > q * enough:
                break
            q = root
        s = np.sqrt(q)
    total = zero
    for j in range(len(v)):
        d = min(max(s * v[j], low[j] - x[j]), high[j] - x[j])
        delta[j] = d
        moved[j] = x[j] + d
        total += d * d
    if total > target:  # by rounding
        shrink = np.sqrt(target / total)
        for j in range(len(v)):
            delta[j] *= shrink
            moved[j] = x[j] + delta[j]


@njit(**_OPTIONS)
def _inverse_norm(g: Array) -> Any:
    """Return 1 / |g|, or 0 where g is zero or not finite; squares may overflow or vanish."""
    zero, one = g.dtype.type(0), g.dtype.type(1)
    tiny = g.dtype.type(np.finfo(g.dtype).tiny)
    square = zero
    for j in range(len(g)):
        square += g[j] * g[j]
    if square > tiny * g.dtype.type(1e6) and square < np.inf:
        return one / np.sqrt(square)
    peak = zero
    for j in range(len(g)):
        if not np.isfinite(g[j]):
            return zero
        peak = max(peak, abs(g[j]))
    if peak < tiny * g.dtype.type(1e4):  # 1 / |g| must stay finite
        return zero
    square = zero
    for j in range(len(g)):
        square += (g[j] / peak) * (g[j] / peak)
    return one / np.sqrt(square) / peak
