"""What deep linear completion is compared with: the nuclear norm, and small initialization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from overt import Entries
from overt.decay import Schedule, simulate


def nuclear_norm(
    problem: Entries, tol: float = 1e-5, max_iterations: int = 3000
) -> Any:
    """Minimize |A|_* subject to A = y on the observed entries, by ADMM.

    A = soft-threshold of B - D at 1/rho, B = A + D with the observed entries reset, D += A - B.
    Stops when |A - B| and the change of B are below `tol` times |B|.
    """
    B = np.zeros(problem.shape)
    B[problem.rows, problem.cols] = problem.values
    D = np.zeros(problem.shape)
    rho = 10 / np.linalg.norm(B, 2)
    for _ in range(max_iterations):
        U, s, Vt = np.linalg.svd(B - D, full_matrices=False)
        A = U * np.maximum(s - 1 / rho, 0) @ Vt
        before = B
        B = A + D
        B[problem.rows, problem.cols] = problem.values
        D += A - B
        primal = np.linalg.norm(A - B)
        dual = np.linalg.norm(B - before)
        if max(primal, dual) <= tol * np.linalg.norm(B):
            break
        # Residual balancing, the standard rule of thumb for ADMM's step.
        factor = 2.0 if primal > 10 * dual else 0.5 if dual > 10 * primal else 1.0
        rho *= factor
        D /= factor
    return B


def small_initialization(problem: Entries, passes: int = 3000) -> Any:
    """Descend without weight decay from small weights: ranks are learned one by one.

    The rate is a tenth of the inverse of a typical curvature at rank 2, (mn/2)^(2/3) 2 (1/m + 1/n).
    """
    m, n = problem.shape
    scale = np.sqrt(np.mean(problem.values**2))
    unit = replace(problem, values=problem.values / scale)
    rate = 0.1 / ((m * n / 2) ** (2 / 3) * 2 * (1 / m + 1 / n))
    schedule = Schedule.constant(passes * len(problem), rate, 0.0)
    run = simulate(unit, 3, 20, schedule, init=0.1, records=2)
    first, middle, last = (W[0] for W in run.weights)
    return scale * last @ middle @ first
