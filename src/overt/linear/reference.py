"""The compiled steps of `overt.linear.kernels` in readable NumPy, drawing the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.linear.kernels import GAUSSIAN, GRID, INDEPENDENT, LIMIT


def draw_pair(rng: Any, M: Any, L: Any, X: Any, Y: Any, x: Any, y: Any) -> None:
    """Draw (x, y): a row of the data if there are any, else x = L g with g normal and y = M x."""
    if len(X):
        row = rng.integers(0, len(X))
        x[:], y[:] = X[row], Y[row]
        return
    g = rng.standard_normal(L.shape[1] if len(L) else len(x))
    x[:] = L @ g if len(L) else g
    y[:] = M @ x


def draw_mask(rng: Any, kind: int, drop: Any, scale: Any, block: int, root: Any, z: Any) -> None:
    """Draw the multipliers z / mu of the hidden units."""
    d = len(z)
    if kind == INDEPENDENT:
        z[:] = np.where(rng.random(d) < drop, 0.0, scale)
    elif kind == GRID:
        z[:] = np.repeat(np.where(rng.random(d // block) < drop[0], 0.0, scale[0]), block)
    elif kind == GAUSSIAN:
        z[:] = 1.0 + root @ rng.standard_normal(root.shape[1])
    else:
        z[:] = scale
        for start in np.flatnonzero(rng.random(d - block + 1) < drop[0]):
            z[start : start + block] = 0.0


def unit_steps(
    Ut: Any, Vt: Any, M: Any, L: Any, X: Any, Y: Any, rates: Any, rng: Any,
    kind: int, drop: Any, scale: Any, block: int, root: Any,
) -> int:  # fmt: skip
    """Take steps with masked units; Ut (width x outputs) and Vt (width x inputs) are updated."""
    x, y, z = np.empty(Vt.shape[1]), np.empty(Ut.shape[1]), np.empty(len(Ut))
    for step, rate in enumerate(rates):
        draw_pair(rng, M, L, X, Y, x, y)
        draw_mask(rng, kind, drop, scale, block, root, z)
        h = z * (Vt @ x)
        e = Ut.T @ h - y
        if not e @ e < LIMIT:
            return step
        g = z * (Ut @ e)
        Ut -= rate * np.outer(h, e)
        Vt -= rate * np.outer(g, x)
    return len(rates)


def weight_steps(
    Ut: Any, Vt: Any, M: Any, L: Any, X: Any, Y: Any, rates: Any, rng: Any, drop_prob: float
) -> int:
    """Take steps of DropConnect: the mask lies on the entries of V."""
    x, y = np.empty(Vt.shape[1]), np.empty(Ut.shape[1])
    for step, rate in enumerate(rates):
        draw_pair(rng, M, L, X, Y, x, y)
        masked = np.where(rng.random(Vt.shape) < drop_prob, 0.0, x / (1 - drop_prob))
        h = np.sum(masked * Vt, axis=1)
        e = Ut.T @ h - y
        if not e @ e < LIMIT:
            return step
        g = Ut @ e
        Ut -= rate * np.outer(h, e)
        Vt -= rate * g[:, None] * masked
    return len(rates)


def tied_steps(
    Ut: Any, M: Any, L: Any, X: Any, Y: Any, rates: Any, rng: Any,
    kind: int, drop: Any, scale: Any, block: int, root: Any,
) -> int:  # fmt: skip
    """Take steps with tied weights: U <- U - rate (e h' + x g')."""
    x, y, z = np.empty(Ut.shape[1]), np.empty(Ut.shape[1]), np.empty(len(Ut))
    for step, rate in enumerate(rates):
        draw_pair(rng, M, L, X, Y, x, y)
        draw_mask(rng, kind, drop, scale, block, root, z)
        h = z * (Ut @ x)
        e = Ut.T @ h - y
        if not e @ e < LIMIT:
            return step
        g = z * (Ut @ e)
        Ut -= rate * (np.outer(h, e) + np.outer(g, x))
    return len(rates)
