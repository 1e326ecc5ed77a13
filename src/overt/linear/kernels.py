"""Compiled steps of stochastic gradient descent with masked hidden units or weights.

Factors are held transposed, one contiguous row per hidden unit, so a dropped unit costs nothing.
Each kernel takes as many steps as there are rates and returns how many it took before an error
exceeded LIMIT (all of them, unless it diverged). `overt.linear.reference` says the same in NumPy.

A step moves along the gradient of half the sampled squared error (structured dropout, Algorithm 1;
Algorithm 1 of the implicit bias of dropout takes theta times this step):

    h = z o V'x,  e = U h - y,  g = z o U'e,   U <- U - rate e h',  V <- V - rate x g'
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from overt.linear.sampling import CORRELATED, DATA, GIVEN, GRID, INDEPENDENT, LIMIT, SLIDING

_FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(cache=True, nogil=True, fastmath=_FAST)
def draw_pair(rng: Any, samples: Any, x: Any, y: Any) -> None:
    """Draw (x, y): a row of the data, or x = L g (or g) with g normal and y = M x."""
    if samples.kind == DATA:
        row = rng.integers(0, samples.inputs.shape[0])
        x[:] = samples.inputs[row]
        y[:] = samples.outputs[row]
        return
    L, M = samples.inputs, samples.outputs
    if samples.kind == CORRELATED:
        x[:] = 0.0
        for j in range(L.shape[1]):
            g = rng.standard_normal()
            for i in range(x.shape[0]):
                x[i] += g * L[i, j]
    else:
        for i in range(x.shape[0]):
            x[i] = rng.standard_normal()
    for i in range(y.shape[0]):
        total = 0.0
        for j in range(x.shape[0]):
            total += M[i, j] * x[j]
        y[i] = total


@njit(cache=True, nogil=True, fastmath=_FAST)
def draw_mask(rng: Any, mask: Any, step: int, z: Any) -> None:
    """Set z to the multipliers of the hidden units in a step."""
    d, kind, drop, scale, block = z.shape[0], mask.kind, mask.drop, mask.scale, mask.block
    if kind == INDEPENDENT:
        for i in range(d):
            z[i] = 0.0 if rng.random() < drop[i] else scale[i]
    elif kind == GIVEN:
        z[:] = mask.table[step]
    elif kind == GRID:
        for j in range(d // block):
            value = 0.0 if rng.random() < drop[0] else scale[0]
            for i in range(j * block, (j + 1) * block):
                z[i] = value
    elif kind == SLIDING:
        z[:] = scale
        for j in range(d - block + 1):
            if rng.random() < drop[0]:
                z[j : j + block] = 0.0
    else:
        z[:] = 1.0
        for j in range(mask.table.shape[1]):
            g = rng.standard_normal()
            for i in range(d):
                z[i] += g * mask.table[i, j]


@njit(cache=True, nogil=True, fastmath=_FAST)
def residual(Ut: Any, Vt: Any, x: Any, y: Any, z: Any, h: Any, e: Any) -> float:
    """Set h = z o V'x and e = U h - y, skipping dropped units; return |e|^2."""
    for i in range(y.shape[0]):
        e[i] = -y[i]
    for k in range(z.shape[0]):
        if z[k] == 0.0:
            continue
        total = 0.0
        for j in range(x.shape[0]):
            total += Vt[k, j] * x[j]
        h[k] = z[k] * total
        for i in range(y.shape[0]):
            e[i] += h[k] * Ut[k, i]
    size = 0.0
    for i in range(y.shape[0]):
        size += e[i] * e[i]
    return size


@njit(cache=True, nogil=True, fastmath=_FAST)
def unit_steps(Ut: Any, Vt: Any, samples: Any, mask: Any, rates: Any, rng: Any) -> int:
    """Take steps with masked units; Ut (width x outputs) and Vt (width x inputs) are updated."""
    d, m, n = Ut.shape[0], Ut.shape[1], Vt.shape[1]
    x, y, e = np.empty(n), np.empty(m), np.empty(m)
    z, h = np.empty(d), np.empty(d)
    for step in range(rates.shape[0]):
        rate = rates[step]
        draw_pair(rng, samples, x, y)
        draw_mask(rng, mask, step, z)
        if not residual(Ut, Vt, x, y, z, h, e) < LIMIT:
            return step
        for k in range(d):
            if z[k] == 0.0:
                continue
            total = 0.0
            for i in range(m):
                total += Ut[k, i] * e[i]
                Ut[k, i] -= rate * h[k] * e[i]
            g = rate * z[k] * total
            for j in range(n):
                Vt[k, j] -= g * x[j]
    return rates.shape[0]


@njit(cache=True, nogil=True, fastmath=_FAST)
def weight_steps(Ut: Any, Vt: Any, samples: Any, drop_prob: float, rates: Any, rng: Any) -> int:
    """Take steps of DropConnect: the mask lies on the entries of V."""
    d, m, n = Ut.shape[0], Ut.shape[1], Vt.shape[1]
    x, y, e, h = np.empty(n), np.empty(m), np.empty(m), np.empty(d)
    masked = np.empty((d, n))
    scale = 1.0 / (1.0 - drop_prob)
    for step in range(rates.shape[0]):
        rate = rates[step]
        draw_pair(rng, samples, x, y)
        for i in range(m):
            e[i] = -y[i]
        for k in range(d):
            total = 0.0
            for j in range(n):
                masked[k, j] = 0.0 if rng.random() < drop_prob else scale * x[j]
            for j in range(n):
                total += masked[k, j] * Vt[k, j]
            h[k] = total
            for i in range(m):
                e[i] += total * Ut[k, i]
        size = 0.0
        for i in range(m):
            size += e[i] * e[i]
        if not size < LIMIT:
            return step
        for k in range(d):
            total = 0.0
            for i in range(m):
                total += Ut[k, i] * e[i]
                Ut[k, i] -= rate * h[k] * e[i]
            g = rate * total
            for j in range(n):
                Vt[k, j] -= g * masked[k, j]
    return rates.shape[0]


@njit(cache=True, nogil=True, fastmath=_FAST)
def tied_steps(Ut: Any, samples: Any, mask: Any, rates: Any, rng: Any) -> int:
    """Take steps with tied weights: U <- U - rate (e h' + x g')."""
    d, n = Ut.shape
    x, y, e = np.empty(n), np.empty(n), np.empty(n)
    z, h = np.empty(d), np.empty(d)
    for step in range(rates.shape[0]):
        rate = rates[step]
        draw_pair(rng, samples, x, y)
        draw_mask(rng, mask, step, z)
        if not residual(Ut, Ut, x, y, z, h, e) < LIMIT:
            return step
        for k in range(d):
            if z[k] == 0.0:
                continue
            total = 0.0
            for i in range(n):
                total += Ut[k, i] * e[i]
            g = z[k] * total
            for i in range(n):
                Ut[k, i] -= rate * (h[k] * e[i] + g * x[i])
    return rates.shape[0]
