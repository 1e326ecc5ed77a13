"""What deep linear completion is compared with: the nuclear norm, and small initialization."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overt._check import number, whole
from overt._types import Floats, Seed
from overt.decay import layers
from overt.decay.annealing import curvature
from overt.decay.simulation import Weights, entry_draws, initial_weights, seed_root
from overt.entries import Entries


def nuclear_norm(problem: Entries, *, tol: float = 1e-5, max_iterations: int = 3000) -> Floats:
    """Minimize |A|_* subject to A = y on the observed entries, by ADMM.

    A = soft-threshold of B - D at 1/rho, B = A + D with the observed entries reset, D += A - B.
    Stops when |A - B| and the change of B are below `tol` times |B|.
    """
    number("tol", tol, exclusive=True)
    observed = np.zeros(problem.shape)
    observed[problem.rows, problem.cols] = problem.values
    B, D = observed.copy(), np.zeros(problem.shape)
    rho = 10 / max(float(np.linalg.norm(observed, 2)), 1e-300)
    for _ in range(whole("max_iterations", max_iterations)):
        U, s, Vt = np.linalg.svd(B - D, full_matrices=False)
        s = np.maximum(s - 1 / rho, 0)
        A = (U * s) @ Vt
        before, B = B, A + D
        B[problem.rows, problem.cols] = problem.values
        D += A - B
        primal, dual, size = (float(np.linalg.norm(v)) for v in (A - B, B - before, B))
        if max(primal, dual) <= tol * size:
            break
        # Residual balancing, the standard rule of thumb for ADMM's step.
        if primal > 10 * dual:
            rho, D = 2 * rho, D / 2
        elif dual > 10 * primal:
            rho, D = rho / 2, 2 * D
    return B


def small_initialization(
    problem: Entries, depth: int = 3, width: int = 20, *, init: float = 0.1,
    learning_rate: float | None = None, epochs: int = 3000, tol: float = 1e-5, seed: Seed = 0,
) -> Floats:  # fmt: skip
    """Descend without weight decay from small weights until the entries are fitted.

    The implicit bias of gradient descent on deep linear networks: ranks are learnt one by one.
    Stops when the mean squared residual is below `tol` times that of zero.
    """
    scale = float(np.sqrt(np.mean(problem.values**2))) or 1.0
    unit = replace(problem, values=problem.values / scale)
    rate = 0.1 / curvature(problem.shape, depth) if learning_rate is None else learning_rate
    root = seed_root(seed)
    state = Weights(initial_weights(problem, depth, width, init=init, seed=root))
    block = 20 * len(problem)
    for k in range(max(1, epochs // 20)):
        draws = entry_draws(problem, block, seed=root, run=k + 1)
        if state.descend(unit, draws, rate, 0.0) < block:
            break
        if layers.train_error(unit, layers.product(state.layers())) <= tol:
            break
    return scale * layers.product(state.layers())
