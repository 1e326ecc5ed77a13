"""The compiled steps of `overt.linear.kernels` in readable NumPy, drawing the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.linear.sampling import (
    CORRELATED,
    DATA,
    GAUSSIAN,
    GIVEN,
    GRID,
    INDEPENDENT,
    LIMIT,
    Mask,
    Samples,
)


def draw_pair(rng: Any, samples: Samples, x: Any, y: Any) -> None:
    """Draw (x, y): a row of the data, or x = L g (or g) with g normal and y = M x."""
    kind, inputs, outputs = samples
    if kind == DATA:
        row = rng.integers(0, len(inputs))
        x[:], y[:] = inputs[row], outputs[row]
        return
    if kind == CORRELATED:
        x[:] = inputs @ rng.standard_normal(inputs.shape[1])
    else:
        x[:] = rng.standard_normal(len(x))
    y[:] = outputs @ x


def draw_mask(rng: Any, mask: Mask, step: int, z: Any) -> None:
    """Set z to the multipliers of the hidden units in a step."""
    kind, drop, scale, block, table = mask
    if kind == INDEPENDENT:
        z[:] = np.where(rng.random(len(z)) < drop, 0.0, scale)
    elif kind == GIVEN:
        z[:] = table[step]
    elif kind == GRID:
        z[:] = np.repeat(np.where(rng.random(len(z) // block) < drop[0], 0.0, scale[0]), block)
    elif kind == GAUSSIAN:
        z[:] = 1.0 + table @ rng.standard_normal(table.shape[1])
    else:
        z[:] = scale
        for start in np.flatnonzero(rng.random(len(z) - block + 1) < drop[0]):
            z[start : start + block] = 0.0


def unit_steps(Ut: Any, Vt: Any, samples: Samples, mask: Mask, rates: Any, rng: Any) -> int:
    """Take steps with masked units; Ut (width x outputs) and Vt (width x inputs) are updated."""
    x, y, z = np.empty(Vt.shape[1]), np.empty(Ut.shape[1]), np.empty(len(Ut))
    for step, rate in enumerate(rates):
        draw_pair(rng, samples, x, y)
        draw_mask(rng, mask, step, z)
        h = z * (Vt @ x)
        e = Ut.T @ h - y
        if not e @ e < LIMIT:
            return step
        g = z * (Ut @ e)
        Ut -= rate * np.outer(h, e)
        Vt -= rate * np.outer(g, x)
    return len(rates)


def weight_steps(Ut: Any, Vt: Any, samples: Samples, drop_prob: float, rates: Any, rng: Any) -> int:
    """Take steps of DropConnect: the mask lies on the entries of V."""
    x, y = np.empty(Vt.shape[1]), np.empty(Ut.shape[1])
    for step, rate in enumerate(rates):
        draw_pair(rng, samples, x, y)
        masked = np.where(rng.random(Vt.shape) < drop_prob, 0.0, x / (1 - drop_prob))
        h = np.sum(masked * Vt, axis=1)
        e = Ut.T @ h - y
        if not e @ e < LIMIT:
            return step
        g = Ut @ e
        Ut -= rate * np.outer(h, e)
        Vt -= rate * g[:, None] * masked
    return len(rates)


def tied_steps(Ut: Any, samples: Samples, mask: Mask, rates: Any, rng: Any) -> int:
    """Take steps with tied weights: U <- U - rate (e h' + x g')."""
    x, y, z = np.empty(Ut.shape[1]), np.empty(Ut.shape[1]), np.empty(len(Ut))
    for step, rate in enumerate(rates):
        draw_pair(rng, samples, x, y)
        draw_mask(rng, mask, step, z)
        h = z * (Ut @ x)
        e = Ut.T @ h - y
        if not e @ e < LIMIT:
            return step
        g = z * (Ut @ e)
        Ut -= rate * (np.outer(h, e) + np.outer(g, x))
    return len(rates)
