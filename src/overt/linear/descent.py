"""Deterministic descent on the exact objective, for what has no closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from threadpoolctl import threadpool_limits

from overt._types import Floats
from overt.linear.bounds import EXACT

STARTS = 8
"""Descents tried at most where theory gives no weights that reach the bound."""

AGREEING = 2
"""Descents that end at the same lowest value, after which no others are tried."""

SAME = 1e-8
"""Relative difference up to which two descents ended at the same value."""

NUDGE = 0.03
"""Size of what is added to structured starts, which may be saddles, relative to their own."""

Value = Callable[..., tuple[float, Sequence[Floats]]]
"""value(*arrays) -> (objective, gradients), one gradient per array."""


def descend(
    value: Value, start: Sequence[Floats], *, max_steps: int = 3000, tol: float = 1e-15
) -> list[Floats]:
    """Minimize with L-BFGS from `start` until the objective no longer falls, relative to itself."""
    from scipy.optimize import minimize  # needed by few networks, and slow to import

    shapes = [array.shape for array in start]
    cuts = np.cumsum([array.size for array in start])[:-1]

    def unpack(theta: Floats) -> list[Floats]:
        parts = np.split(theta, cuts)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    theta = np.concatenate([array.ravel() for array in start])
    # In units of the start and of its objective, so that steps and tolerances have a meaning.
    scale, size = abs(value(*start)[0]) or 1.0, float(np.sqrt(np.mean(theta**2))) or 1.0
    theta = theta / size

    def flat(theta: Floats) -> tuple[float, Floats]:
        objective, gradients = value(*unpack(size * theta))
        return objective / scale, np.concatenate([g.ravel() for g in gradients]) * (size / scale)

    options = {
        "maxiter": max_steps,
        "maxfun": 2 * max_steps,
        "ftol": tol,
        "gtol": 1e-12,
        "maxcor": 30 if theta.size < 2000 else 10,  # what they cost grows with the weights
    }
    # Threads cost more than they save on products of small matrices.
    with threadpool_limits(1 if theta.size < 100_000 else None, user_api="blas"):
        return unpack(size * minimize(flat, theta, jac=True, method="L-BFGS-B", options=options).x)


def attains(bound: float) -> float:
    """Return the objective at which a bound counts as attained, with room to spare."""
    return bound * (1 + EXACT / 10)


def nudged(W: Floats, seed: int) -> Floats:
    """Return W and a little noise, which leaves a saddle."""
    noise = np.random.default_rng(seed).standard_normal(W.shape)
    return W + NUDGE * np.sqrt(np.mean(W**2)) * noise


def refine(
    value: Value,
    starts: Sequence[Sequence[Floats]],
    enough: float,
    tries: int = STARTS,
    needed: int = AGREEING,
    spread: float = 0.0,
) -> Sequence[Floats]:
    """Return the lowest point of descents from the starts, then from random ones of their size.

    Stops as soon as a value is low `enough`, or as many descents as `needed` agree on the lowest;
    the starts, being alike, count as one. Random ones are larger or smaller by up to 10^spread.
    """
    rng = np.random.default_rng(0)
    sizes = [np.sqrt(np.mean(W**2)) for W in starts[0]]

    def random() -> list[Floats]:
        factor, pairs = 10 ** rng.uniform(-spread, spread), zip(sizes, starts[0], strict=True)
        return [factor * size * rng.standard_normal(W.shape) for size, W in pairs]

    best, lowest, agreeing = starts[0], value(*starts[0])[0], 0
    for i, start in enumerate(chain(starts, (random() for _ in range(tries - len(starts))))):
        if lowest <= enough or agreeing == needed:
            break
        found = descend(value, start)
        reached = value(*found)[0]
        if reached < lowest * (1 - SAME) or i < len(starts):
            agreeing = 1
        elif abs(reached - lowest) <= SAME * abs(lowest):
            agreeing += 1
        if reached < lowest:
            best, lowest = found, reached
    return best
