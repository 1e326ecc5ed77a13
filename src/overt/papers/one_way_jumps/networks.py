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
    m, n = problem.shape
    sizes = [n, *[width] * (depth - 1), m]

    observed = problem.rows, problem.cols

    def weights(theta: Floats) -> list[Floats]:
        return split(theta, sizes)

    def objective(theta: Floats) -> tuple[float, Floats]:
        W = weights(theta)
        inputs = [np.eye(sizes[0])]
        for w in W:
            inputs.append(w @ inputs[-1])
        output = inputs.pop()
        E = output[observed] - problem.values
        value = E @ E / (2 * len(E))
        value += lam * theta @ theta
        back = np.zeros(problem.shape)
        slopes = E / len(E)
        np.add.at(back, observed, slopes)
        gradient = np.empty(0)
        for w, x in zip(reversed(W), reversed(inputs), strict=True):
            slope = back @ x.T + 2 * lam * w
            gradient = np.append(slope, gradient)
            back = w.T @ back
        return float(value), gradient

    return objective, weights, count(sizes)


def flat(W: list[Floats]) -> Floats:
    """Return the layers as one vector."""
    return np.concatenate([w.ravel() for w in W])


def random_problem(n: int, rng: Rng) -> Entries:
    """Return a rank-1 matrix with some noise, of which two thirds are seen."""
    u, v = rng.standard_normal((2, n))
    noise = rng.standard_normal((n, n))
    truth = np.outer(u, v) + 0.1 * noise
    seen = (2 * n * n + 2) // 3
    return Entries.sample(truth, seen, seed=rng)


def sgd_step(
    W: list[Floats], problem: Entries, n: int, eta: float, lam: float
) -> list[Floats]:
    """One step (1 - eta lam) W - eta T on entry n, as the appendix has it, of three layers."""
    i = problem.rows[n]
    j = problem.cols[n]
    W1, W2, W3 = W
    D = np.zeros(problem.shape)
    A = W3 @ W2 @ W1
    D[i, j] = A[i, j] - problem.values[n]
    T1 = W2.T @ W3.T @ D
    T2 = W3.T @ D @ W1.T
    T3 = D @ (W2 @ W1).T
    kept = 1 - eta * lam
    return [
        kept * W1 - eta * T1,
        kept * W2 - eta * T2,
        kept * W3 - eta * T3,
    ]


def largest_norm(W: list[Floats]) -> float:
    """max_l |W_l|^2."""
    return max(float(np.sum(w * w)) for w in W)


def random_layers(width: int, rng: Rng, C: float) -> list[Floats]:
    """Return three random layers between two inputs and two outputs, each of squared norm C."""
    layers = []
    for shape in ((width, 2), (width, width), (2, width)):
        W = rng.standard_normal(shape)
        norm = np.linalg.norm(W)
        W *= math.sqrt(C) / norm
        layers.append(W)
    return layers


def second_order(C: float, lam: float, depth: int = 3) -> float:
    """Return 2 (C_1 + C^L) C^(L-1) + lam^2 C, C_1 = 1: what bounds the square of a step."""
    slope = C ** (depth - 1)
    gradient = (1 + C**depth) * slope
    return 2 * gradient + lam**2 * C
