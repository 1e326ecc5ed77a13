"""Deterministic descent on the exact objective, for what has no closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

FEW = 100
"""Weights up to which descent looks at the curvature."""

FIRST, ROUND = 150, 60
"""Steps as they come, and then in coordinates that fit the curvature at one point."""

Value = Callable[..., tuple[float, Sequence[Floats]]]
"""value(*arrays) -> (objective, gradients), one gradient per array."""


def descend(
    value: Value, start: Sequence[Floats], *, max_steps: int = 3000, tol: float = 1e-15
) -> list[Floats]:
    """Minimize with L-BFGS from `start` until the objective no longer falls, relative to itself.

    Few weights are taken in rounds, each in coordinates in which the curvature where it begins is
    one in all directions.
    """
    from scipy.optimize import minimize  # needed by few networks, and slow to import

    shapes = [array.shape for array in start]
    cuts = np.cumsum([array.size for array in start])[:-1]

    def unpack(theta: Floats) -> list[Floats]:
        parts = np.split(theta, cuts)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    theta = np.concatenate([array.ravel() for array in start])
    # In units of the start and of its objective, so that steps and tolerances have a meaning.
    scale, size = abs(value(*start)[0]) or 1.0, float(np.sqrt(np.mean(theta**2))) or 1.0
    theta, few = theta / size, theta.size <= FEW

    def flat(theta: Floats) -> tuple[float, Floats]:
        objective, gradients = value(*unpack(size * theta))
        return objective / scale, np.concatenate([g.ravel() for g in gradients]) * (
            size / scale
        )

    def turned(step: Floats) -> tuple[float, Floats]:
        objective, gradient = flat(theta + turn @ step)
        return objective, turn.T @ gradient

    options = {
        "maxiter": FIRST if few else max_steps,
        "maxfun": 2 * max_steps,
        "ftol": tol,
        "gtol": 1e-12,
        "maxcor": 30
        if theta.size < 2000
        else 10,  # what they cost grows with the weights
    }
    # Threads cost more than they save on products of small matrices.
    with threadpool_limits(1 if theta.size < 100_000 else None, user_api="blas"):
        for number in range(max_steps // ROUND if few else 1):
            if number == 0:
                found = minimize(
                    flat, theta, jac=True, method="L-BFGS-B", options=options
                )
                theta = found.x
            else:
                turn = _rounding(flat, theta)
                found = minimize(
                    turned, 0 * theta, jac=True, method="L-BFGS-B", options=options
                )
                theta = theta + turn @ found.x
            if found.nit < options["maxiter"]:
                break
            options["maxiter"] = ROUND
        return unpack(size * theta)


def _rounding(flat: Callable[[Floats], tuple[float, Floats]], theta: Floats) -> Floats:
    """Return coordinates |H|^(-1/2) at theta, H the Hessian by differences."""
    step = 1e-4 * (float(np.sqrt(np.mean(theta**2))) or 1.0)
    H = np.array(
        [flat(theta + e)[1] - flat(theta - e)[1] for e in step * np.eye(len(theta))]
    )
    values, vectors = np.linalg.eigh((H + H.T) / (4 * step))
    sizes = np.abs(values)
    return np.asarray(vectors / np.sqrt(np.maximum(sizes, 1e-10 * sizes.max())))


def attains(bound: float) -> float:
    """Return the objective at which a bound counts as attained, with a margin."""
    return bound * (1 + EXACT / 10)


def nudged(*start: Floats) -> list[Floats]:
    """Return a start and a little noise, which leaves a saddle."""
    rng = np.random.default_rng(0)
    return [
        W + NUDGE * np.sqrt(np.mean(W**2)) * rng.standard_normal(W.shape) for W in start
    ]


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
        factor, pairs = (
            10 ** rng.uniform(-spread, spread),
            zip(sizes, starts[0], strict=True),
        )
        return [factor * size * rng.standard_normal(W.shape) for size, W in pairs]

    every = chain(starts, (random() for _ in range(tries - len(starts))))
    ends = (descend(value, start) for start in every)
    return settle(value, starts[0], ends, enough, needed, len(starts))


def settle(
    value: Value,
    first: Sequence[Floats],
    ends: Iterator[Sequence[Floats]],
    enough: float,
    needed: int,
    alike: int,
) -> Sequence[Floats]:
    """Return the lowest of the ends of descents, made one by one, as soon as `refine` may stop."""
    best, lowest, agreeing, i = first, value(*first)[0], 0, 0
    while (
        lowest > enough
        and agreeing < needed
        and (found := next(ends, None)) is not None
    ):
        reached = value(*found)[0]
        if reached < lowest * (1 - SAME) or i < alike:
            agreeing = 1
        elif reached <= lowest * (1 + SAME):
            agreeing += 1
        if reached < lowest:
            best, lowest = found, reached
        i += 1
    return best


def least_penalty(
    Gamma: Floats,
    a: Floats,
    starts: list[Floats],
    bound: float = 0.0,
    tries: int = STARTS,
) -> Floats:
    """Return R of the least penalty found, at best the bound, from starts and nudged ones.

    Factors of a map A = W diag(a) Y' are U = W S^(1/2) R, P = Y S^(1/2) R. R (rank x width) has
    orthonormal rows, so that U P' = A whatever it is, and the penalty <Gamma, G o G>, with
    G = R' diag(a) R, is minimized over such R by descent. The noise's strength is only a factor of
    it: weak noise is no harder than strong noise.
    """
    largest = np.abs(Gamma).max()
    Gamma, a, bound = Gamma / largest, a / a[0], bound / (largest * a[0] ** 2)

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

    others = [nudged(R) for R in starts]
    (M,) = refine(value, [(starts[0],), *others], attains(bound), tries)
    X, _, Y = np.linalg.svd(M, full_matrices=False)
    return X @ Y
