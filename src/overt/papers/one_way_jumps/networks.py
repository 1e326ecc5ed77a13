"""Deep linear networks with weight decay, written anew: none of overt's formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from overt._check import Floats
from overt.entries import Entries
from overt.papers.descent import Objective, count, split
from overt.papers.records import Rng


def network(
    problem: Entries, depth: int, width: int, lam: float
) -> tuple[Objective, Callable[[Floats], list[Floats]], int]:
    """Return C(W_L ... W_1) + lam |theta|^2 with its gradient, theta -> layers, and theta's size.

    Written anew: none of overt's formulas.
    """
    sizes = [problem.shape[1], *[width] * (depth - 1), problem.shape[0]]

    def weights(theta: Floats) -> list[Floats]:
        return split(theta, sizes)

    def objective(theta: Floats) -> tuple[float, Floats]:
        W = weights(theta)
        inputs = [np.eye(sizes[0])]
        for w in W:
            inputs.append(w @ inputs[-1])
        E = inputs.pop()[problem.rows, problem.cols] - problem.values
        back = np.zeros(problem.shape)
        slopes = []
        np.add.at(back, (problem.rows, problem.cols), E / len(E))
        for w, x in zip(reversed(W), reversed(inputs), strict=True):
            slopes.append(back @ x.T + 2 * lam * w)
            back = w.T @ back
        value = E @ E / (2 * len(E)) + lam * theta @ theta
        return float(value), flat(slopes[::-1])

    return objective, weights, count(sizes)


def flat(W: list[Floats]) -> Floats:
    """Return the layers as one vector."""
    return np.concatenate([w.ravel() for w in W])


def random_problem(n: int, rng: Rng) -> Entries:
    """Return a rank-1 matrix with some noise, of which two thirds are seen."""
    truth = np.outer(rng.standard_normal(n), rng.standard_normal(n))
    truth += 0.1 * rng.standard_normal((n, n))
    return Entries.sample(truth, (2 * n * n + 2) // 3, seed=rng)


def sgd_step(
    W: list[Floats], problem: Entries, n: int, eta: float, lam: float
) -> list[Floats]:
    """One step (1 - eta lam) W - eta T on entry n, as the appendix has it, of three layers."""
    i = problem.rows[n]
    j = problem.cols[n]
    D = np.zeros(problem.shape)
    D[i, j] = (W[2] @ W[1] @ W[0])[i, j] - problem.values[n]
    slopes = (W[1].T @ W[2].T @ D, W[2].T @ D @ W[0].T, D @ (W[1] @ W[0]).T)
    return [(1 - eta * lam) * w - eta * g for w, g in zip(W, slopes, strict=True)]


def largest_norm(W: list[Floats]) -> float:
    """max_l |W_l|^2."""
    return max(float(np.sum(w * w)) for w in W)


def random_layers(width: int, rng: Rng, C: float) -> list[Floats]:
    """Return three random layers between two inputs and two outputs, each of squared norm C."""
    W = [rng.normal(size=shape) for shape in ((width, 2), (width, width), (2, width))]
    return [math.sqrt(C) * w / np.linalg.norm(w) for w in W]


def second_order(C: float, lam: float, depth: int = 3) -> float:
    """Return 2 (C_1 + C^L) C^(L-1) + lam^2 C, C_1 = 1: what bounds the square of a step."""
    return 2 * (1 + C**depth) * C ** (depth - 1) + lam**2 * C
