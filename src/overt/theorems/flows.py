"""One-way jumps, the appendix: which critical points there are, and where flow ends."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq

from overt._types import Floats
from overt.decay import balanced, minima, two_by_two
from overt.entries import Entries
from overt.theorems import _descent as descent
from overt.theorems._oracles import chain
from overt.theorems.base import Residuals, theorem
from overt.theorems.decay import SOURCE, network


@theorem(
    "decay-correspondence",
    source=f"{SOURCE}, Theorem 3.1 and Proposition A.2",
    claim="Minima of the loss in the weights are minima of C(A) + lam L sum_i s_i^(2/L), and back",
    assumes="here 3 x 3 with six entries seen, L = 3",
)
def _correspondence(scale: int, rng: np.random.Generator) -> Residuals:
    depth, lam, truth = 3, 0.01, np.outer(rng.normal(size=3), rng.normal(size=3))
    problem = Entries.sample(truth + 0.1 * rng.normal(size=(3, 3)), 6, seed=rng)
    objective, weights, size = network(problem, depth, 3, lam)

    def cost(A: Floats) -> float:
        E = A[problem.rows, problem.cols] - problem.values
        s = np.linalg.svd(A, compute_uv=False)
        return float(E @ E / (2 * len(E)) + lam * depth * np.sum(s ** (2 / depth)))

    value, theta = descent.descend(objective, rng.normal(size=size))
    A = chain(weights(theta))
    yield abs(cost(A) - value)
    moves = [r * rng.normal(size=(3, 3)) for r in (1e-4, 1e-3) for _ in range(50 * scale)]
    yield max(cost(A) - cost(A + move) for move in moves)
    for found in minima(problem, depth, lam, starts=2, seed=rng):
        W = balanced(found.matrix, depth, 3, found.rank)
        flat = np.concatenate([w.ravel() for w in W])
        slope, lowest = descent.slope_and_curvature(objective, flat)
        yield max(slope, -lowest)
    return 1e-5, "a descent's end against 100 moves of A; gradients and Hessians at listed minima"


@theorem(
    "decay-saddles",
    source=f"{SOURCE}, Theorem 3.1 and Proposition A.3",
    claim="Critical points of the loss that are not local minima have a negative curvature",
    assumes="all N entries seen, small weight decay: each singular value s* allows 0 and two roots "
    "of s - s* + 2 N lam s^(2/L-1) = 0; the lower is a saddle, and so is the smaller value alone",
)
def _saddles(scale: int, rng: np.random.Generator) -> Residuals:
    n, depth, lam, seen = 2, 3, 1e-3, 0
    s = np.sort(rng.uniform(0.5, 2, n))[::-1]
    rows, cols = np.indices((n, n)).reshape(2, -1)
    full = Entries(rows, cols, np.diag(s).ravel(), shape=(n, n))
    objective, _, _ = network(full, depth, n, lam)
    power, weight = 2 / depth - 1, 2 * n * n * lam
    turn = (-power * weight) ** (1 / (1 - power))  # between the two roots
    choices = []
    for value in s:
        lower = brentq(lambda x, v=value: x - v + weight * x**power, 1e-9, turn)
        upper = brentq(lambda x, v=value: x - v + weight * x**power, turn, value)
        choices.append((0.0, float(lower), float(upper)))
    for a in choices[0]:
        for b in choices[1]:
            W = [np.diag(np.array([a, b]) ** (1 / depth))] * depth
            theta = np.concatenate([w.ravel() for w in W])
            slope, lowest = descent.slope_and_curvature(objective, theta)
            saddle = a == choices[0][1] or b == choices[1][1] or (a == 0 and b > 0)
            yield slope
            yield max(0.0, lowest + 1e-5) if saddle else max(0.0, -lowest - 1e-5)
            seen += 1
    return 1e-6, f"gradient and Hessian at {seen} critical points, 6 of them saddles"


@theorem(
    "decay-vanishing",
    source=f"{SOURCE}, Propositions 3.1 and A.4",
    claim="As lam goes to 0 the minimum of the least fitting rank fits: C(A(lam)) goes to 0",
    assumes="[[1, *], [e, 1]], L = 3, whose least fitting rank is 1",
)
def _vanishing(scale: int, rng: np.random.Generator) -> Residuals:
    for epsilon in (0.25, 0.5):
        problem, errors = two_by_two(epsilon), []
        for lam in (1e-2, 1e-3, 1e-4, 1e-5):
            found = {m.rank: m for m in minima(problem, 3, lam, starts=1, seed=rng)}
            A = found[1].matrix
            E = A[problem.rows, problem.cols] - problem.values
            errors.append(float(E @ E) / (2 * len(E)))
        yield max(b / a for a, b in pairwise(errors))
        yield errors[-1] / errors[0] / 1e-3
    return 1.0, "each tenth of the weight decay lowers C, a thousandth by 1,000 and more"


@theorem(
    "decay-no-underestimate",
    source=f"{SOURCE}, Propositions 3.2, A.5 and A.6",
    claim="Where gradient flow without decay fits, flow with little decay ends at a rank that can "
    "fit; with much decay it need not",
    assumes="[[1, *], [.25, 1]], L = 3, width 3; lam = 1e-4 and .3",
)
def _underestimate(scale: int, rng: np.random.Generator) -> Residuals:
    wrong, runs, problem = 0, 0, two_by_two(0.25)
    for _ in range(2 * scale):
        start, ends = rng.normal(size=21), []
        for lam in (0.0, 1e-4, 0.3):
            objective, weights, _ = network(problem, 3, 3, lam)
            theta = start.copy()
            for _ in range(1500):
                theta -= 0.1 * objective(theta)[1]
            s = np.linalg.svd(chain(weights(theta)), compute_uv=False)
            ends.append((objective(theta)[0], int(np.sum(s > 0.05))))
        if ends[0][0] < 1e-3:  # flow without decay fits
            wrong += ends[1][1] < 1 or ends[2][1] > 0
            runs += 1
    yield float(wrong) if runs else math.inf
    return 0.0, f"{runs} starts from which flow fits"


@theorem(
    "decay-polyak",
    source=f"{SOURCE}, Lemma A.1 and Proposition A.7",
    claim="|grad L|^2 / 2 >= beta L with beta = s^2/N, s the least singular value of "
    "W_(L-1)...W_1, so flow's loss falls like exp(-2 beta t)",
    correction="beta is printed as 2 s^2/N, twice what the printed inequality |grad L|^2 >= "
    "(2 s^2/N) L gives under the printed definition",
)
def _polyak(scale: int, rng: np.random.Generator) -> Residuals:
    problem, printed = two_by_two(0.25), 0.0
    objective, weights, size = network(problem, 3, 4, 0.0)
    for trial in range(20 * scale):
        theta = rng.normal(size=size)
        if trial % 2:  # the last layer is 0: no other gradient helps
            theta[-8:] = 0
        W = weights(theta)
        s = np.linalg.svd(W[1] @ W[0], compute_uv=False)[-1]
        value, gradient = objective(theta)
        ratio = 2 * value * s**2 / len(problem) / float(gradient @ gradient)
        yield ratio - 1
        printed = max(printed, 2 * ratio - 1)
    # The bound is reached where the error lies along the least singular direction.
    W = weights(rng.normal(size=size))
    W[0], W[1], W[2] = np.eye(4)[:, :2], np.diag([2.0, 0.5, 1, 1]), np.zeros((2, 4))
    one = Entries([0], [1], [1.0], shape=(2, 2))
    objective, _, _ = network(one, 3, 4, 0.0)
    value, gradient = objective(np.concatenate([w.ravel() for w in W]))
    yield abs(0.5 * float(gradient @ gradient) / (0.25 * value) - 1)
    printed = max(printed, 2 * 0.25 * value / (0.5 * float(gradient @ gradient)) - 1)
    return 1e-9, "random weights, and weights that reach the bound", printed
