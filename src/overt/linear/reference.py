"""The compiled steps of `overt.linear.kernels` in readable NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.linear.training import LIMIT


def unit_steps(Ut: Any, Vt: Any, x: Any, y: Any, z: Any, rates: Any) -> int:
    """Take steps with masked units; Ut (width x outputs) and Vt (width x inputs) are updated."""
    for step, rate in enumerate(rates):
        h = z[step] * (x[step] @ Vt.T)  # (batch, width)
        e = h @ Ut - y[step]
        if not np.sum(e * e) < LIMIT:
            return step
        g = z[step] * (e @ Ut.T)
        Ut -= rate * h.T @ e / len(e)
        Vt -= rate * g.T @ x[step] / len(e)
    return len(rates)


def weight_steps(Ut: Any, Vt: Any, x: Any, y: Any, z: Any, rates: Any) -> int:
    """Take steps of DropConnect: the mask z (steps x batch x width x inputs) lies on V."""
    for step, rate in enumerate(rates):
        masked = z[step] * x[step][:, None, :]  # (batch, width, inputs)
        h = np.sum(masked * Vt, axis=2)
        e = h @ Ut - y[step]
        if not np.sum(e * e) < LIMIT:
            return step
        g = e @ Ut.T
        Ut -= rate * h.T @ e / len(e)
        Vt -= rate * np.sum(g[:, :, None] * masked, axis=0) / len(e)
    return len(rates)
