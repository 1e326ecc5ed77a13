"""Deterministic descent on the exact objective, for what has no closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from overt._check import Floats
from overt.linear.bounds import EXACT

STARTS = 8
"""Descents tried at most where theory gives no weights that reach the bound."""

SAME = 1e-8
"""Relative difference up to which two descents ended at the same value."""

NUDGE = 0.03
"""Size of what is added to structured starts, which may be saddles, relative to their own."""

SPREADS = (1.0, 0.1, 3.0)
"""Sizes of random weights, relative to those of the first start."""

Value = Callable[..., tuple[float, Sequence[Floats]]]
"""value(*arrays) -> (objective, gradients), one gradient per array."""


def descend(value: Value, start: Sequence[Floats]) -> list[Floats]:
    """Minimize with L-BFGS from `start` until the objective no longer falls."""
    from scipy.optimize import minimize  # needed by few networks, and slow to import

    shapes = [array.shape for array in start]
    cuts = np.cumsum([array.size for array in start])[:-1]

    def unpack(theta: Floats) -> list[Floats]:
        parts = np.split(theta, cuts)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    theta = np.concatenate([array.ravel() for array in start])
    # In units of the start and of its objective, so that steps and tolerances have a meaning.
    scale = abs(value(*start)[0]) or 1.0
    size = float(np.sqrt(np.mean(theta**2))) or 1.0

    def flat(theta: Floats) -> tuple[float, Floats]:
        objective, gradients = value(*unpack(size * theta))
        slope = np.concatenate([G.ravel() for G in gradients])
        return objective / scale, slope * (size / scale)

    options = {
        "maxiter": 3000,
        "maxfun": 6000,
        "ftol": 1e-15,
        "gtol": 1e-12,
        "maxcor": 30 if theta.size < 2000 else 10,  # their cost grows with the weights
    }
    # Threads cost more than they save on products of small matrices.
    with threadpool_limits(1 if theta.size < 100_000 else None, user_api="blas"):
        found = minimize(
            flat, theta / size, jac=True, method="L-BFGS-B", options=options
        )
    return unpack(size * found.x)


def attains(bound: float) -> float:
    """Return the objective at which a bound counts as attained, with a margin."""
    return bound * (1 + EXACT / 10)


def refine(
    value: Value,
    starts: Sequence[Sequence[Floats]],
    enough: float,
    tries: int = STARTS,
    search: Callable[[Value, Sequence[Floats]], list[Floats]] = descend,
) -> Sequence[Floats]:
    """Return the lowest point of descents from near each start, and from random weights.

    Stops as soon as a value is low `enough`, or a random start ends at the lowest value again.
    Starts are moved a little, as they may be saddles.
    """
    rng = np.random.default_rng(0)
    best = min(starts, key=lambda start: value(*start)[0])
    lowest = value(*best)[0]
    for number in range(len(starts) + tries):
        if lowest <= enough:
            break
        given = number < len(starts)
        start = starts[number] if given else starts[0]
        factor = NUDGE if given else SPREADS[number % len(SPREADS)]
        near = []
        for W in start:
            noise = np.sqrt(np.mean(W**2)) * rng.standard_normal(W.shape)
            near.append(given * W + factor * noise)
        found = search(value, near)
        reached = value(*found)[0]
        again = not given and abs(reached - lowest) <= SAME * lowest
        if reached < lowest:
            best = found
            lowest = reached
        if again:
            break
    return best


def least_penalty(
    Gamma: Floats, a: Floats, start: Floats, bound: float = 0.0, tries: int = STARTS
) -> Floats:
    """Return R of the least penalty found, at best the bound.

    Factors of a map A = W diag(a) Y' are U = W S^(1/2) R, P = Y S^(1/2) R. R (rank x width) has
    orthonormal rows, so that U P' = A whatever it is, and the penalty <Gamma, G o G>, with
    G = R' diag(a) R, is minimized over such R by descent. The noise's strength is only a factor of
    it: weak noise is no harder than strong noise.
    """
    largest = np.abs(Gamma).max()
    Gamma = Gamma / largest
    bound = bound / (largest * a[0] ** 2)
    a = a / a[0]

    def value(M: Floats) -> tuple[float, list[Floats]]:
        X, sigma, Y = np.linalg.svd(M, full_matrices=False)
        R = X @ Y
        G = R.T @ (a[:, None] * R)
        gradient = 4 * a[:, None] * (R @ (Gamma * G))
        turned = X.T @ gradient
        inner = turned @ Y.T
        inside = (inner - inner.T) / (sigma[:, None] + sigma[None, :])
        outside = (turned - inner @ Y) / sigma[:, None]
        return float(np.sum(Gamma * G * G)), [X @ (inside @ Y + outside)]

    (M,) = refine(value, [(start,)], attains(bound), tries)
    X, _, Y = np.linalg.svd(M, full_matrices=False)
    return X @ Y
