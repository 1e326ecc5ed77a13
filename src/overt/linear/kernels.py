"""Compiled steps of stochastic gradient descent with masked hidden units or weights.

Samples and masks are arguments, steps x batch x ...; factors are stored transposed, one contiguous
row per hidden unit, so a dropped unit costs nothing. The kernel takes as many steps as there are
rates and returns how many it took before an error exceeded LIMIT (all of them, unless it diverged).

A step moves along the gradient of half the sampled squared error, the mean over a batch (structured
dropout, Algorithm 1; Algorithm 1 of the implicit bias of dropout takes theta times this step):

    h = z o V'x,  e = U h - y,  g = z o U'e,   U <- U - rate e h',  V <- V - rate x g'

Tied weights are the same array twice: h and e come before the first update, and a unit's g before
its own. A mask on V is one on inputs that each unit sees alone: x has a row for every unit, or one
for all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._compiled import njit

# As `overt.linear.training.LIMIT`, written again because numba's cache sees this file only.
LIMIT = 1e40

_FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(fastmath=_FAST)
def masked_steps(Ut: Any, Vt: Any, x: Any, y: Any, z: Any, rates: Any) -> int:
    """Take steps; Ut (width x outputs) and Vt (width x inputs) are updated.

    x is steps x batch x (1 or width) x inputs, y steps x batch x outputs, z steps x batch x width.
    """
    batch = x.shape[1]
    last = x.shape[2] - 1
    d, m = Ut.shape
    n = Vt.shape[1]
    h = np.empty((batch, d))
    g = np.empty(batch)
    e = np.empty((batch, m))
    for step in range(rates.shape[0]):
        size = 0.0
        for b in range(batch):
            for i in range(m):
                e[b, i] = -y[step, b, i]
            for k in range(d):
                if z[step, b, k] == 0.0:
                    continue
                row = min(k, last)
                total = 0.0
                for j in range(n):
                    total += Vt[k, j] * x[step, b, row, j]
                total *= z[step, b, k]
                h[b, k] = total
                for i in range(m):
                    e[b, i] += total * Ut[k, i]
            for i in range(m):
                size += e[b, i] * e[b, i]
        if not size < LIMIT:
            return step
        rate = rates[step] / batch
        for k in range(d):
            for b in range(batch):
                total = 0.0
                if z[step, b, k] != 0.0:
                    for i in range(m):
                        total += Ut[k, i] * e[b, i]
                g[b] = rate * z[step, b, k] * total
            for b in range(batch):
                if z[step, b, k] == 0.0:
                    continue
                row = min(k, last)
                left = rate * h[b, k]
                right = g[b]
                for i in range(m):
                    Ut[k, i] -= left * e[b, i]
                for j in range(n):
                    Vt[k, j] -= right * x[step, b, row, j]
    return rates.shape[0]
