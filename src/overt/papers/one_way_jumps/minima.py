"""Sections 2 and 3.1, appendix A: the representation cost, minima and saddles."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
from scipy.optimize import brentq

from overt import spectral
from overt._check import Floats
from overt.decay import balanced, layers, minima, two_by_two
from overt.entries import Entries
from overt.papers import descent, oracles
from overt.papers.descent import descend, slope_and_curvature
from overt.papers.evidence import DESCENT, relative
from overt.papers.one_way_jumps.networks import (
    flat,
    network,
    random_problem,
)
from overt.papers.oracles import chain
from overt.papers.records import Residuals, Rng, statement


@statement("Section 2.2", "2.2")
def representation_cost(rng: Rng) -> Residuals:
    r"""The representation cost.

    The least sum of squared weights of an L-layer linear network with a given map is L sum_i
    s_i^(2/L) over its singular values.

    Assumes: hidden layers at least as wide as the rank.

    TeX: The least sum of squared weights of an L-layer linear network with a given map is $L
    \sum_i s_i^{2/L}$ over its singular values.
    """
    for n in range(2, 4):
        s = rng.uniform(0.3, 3, n)
        A = oracles.with_spectrum(rng, n, n, s)
        best = descent.cheapest_chain(A, rng)
        yield relative(spectral.factorization_cost(s, 3), best)
    return DESCENT, "descent over the factors of square maps, depth 3"


def _fit(problem: Entries, A: Floats) -> float:
    """C(A): half the mean squared error on the observed entries."""
    E = A[problem.rows, problem.cols] - problem.values
    return float(E @ E) / (2 * len(E))


@statement("Theorem 3.1", "3.1")
def decay_correspondence(rng: Rng) -> Residuals:
    r"""Minima in the weights and of the matrix.

    Minima of the loss in the weights are minima of C(A) + lam L sum_i s_i^(2/L), and back.

    Assumes: here 3 x 3 with six entries seen and [[1, *], [1/4, 1]], L = 3.

    TeX: Minima of the loss in the weights are minima of $C(A) + \lambda L \sum_i s_i^{2/L}$,
    and back.
    """
    depth = 3
    lam = 0.01
    problem = random_problem(3, rng)
    objective, weights, size = network(problem, depth, 3, lam)

    def cost(A: Floats) -> float:
        s = np.linalg.svd(A, compute_uv=False)
        powers = s ** (2 / depth)
        penalty = depth * np.sum(powers)
        return _fit(problem, A) + lam * float(penalty)

    value, theta = descend(objective, rng.standard_normal(size))
    A = chain(weights(theta))
    yield abs(cost(A) - value)
    for length in (1e-4, 1e-3):
        moves = rng.standard_normal((50, 3, 3))
        moves *= length
        costs = [cost(A + move) for move in moves]
        yield cost(A) - min(costs)
    for given in (problem, two_by_two(0.25)):
        objective, _, _ = network(given, depth, 3, lam)
        for found in minima(given, depth, lam, starts=2, seed=rng):
            W = balanced(found.matrix, depth, 3, found.rank)
            slope, lowest = slope_and_curvature(objective, flat(W))
            yield max(slope, -lowest)
    detail = "a descent's end against 100 moves of A; gradients and Hessians at minima"
    return 1e-5, detail


@statement("Proposition 3.1", "3.1", how="bound evaluated")
def decay_vanishing(rng: Rng) -> Residuals:
    r"""The minimum of the least fitting rank.

    As lam goes to 0 the minimum of the least fitting rank fits: C(A(lam)) goes to 0.

    Assumes: [[1, *], [e, 1]], L = 3, whose least fitting rank is 1.

    TeX: As $\lambda$ goes to $0$ the minimum of the least fitting rank fits: $C(A(\lambda))$
    goes to $0$. \[\lim_{\lambda\to0}C(A(\lambda))=0\]
    """
    null = math.inf
    for epsilon in (0.25, 0.5):
        problem = two_by_two(epsilon)
        errors: list[list[float]] = [[], []]
        for lam in (1e-2, 1e-3, 1e-4, 1e-5):
            for m in minima(problem, 3, lam, starts=1, seed=rng):
                if m.rank < 2:
                    error = _fit(problem, m.matrix)
                    errors[m.rank].append(error)
        zero, one = errors
        for error, next_error in pairwise(one):
            yield next_error / error
        yield one[-1] / one[0] / 1e-3
        ratio = zero[-1] / zero[0]
        null = min(null, ratio / 1e-3)
    detail = (
        "each tenth of the weight decay lowers C, a thousandth by 1,000 and more; null: the "
        "minimum of rank 0"
    )
    return 1.0, detail, None, null


@statement("Proposition 3.2", "3.1", how="bound evaluated")
def decay_no_underestimate(rng: Rng) -> Residuals:
    r"""Little decay does not underestimate the rank.

    Where gradient flow without decay fits, flow with little decay ends at a rank that can fit;
    with much decay it need not.

    Assumes: [[1, *], [.25, 1]], L = 3, width 3; lam = 1e-4 and .3.

    TeX: Where gradient flow without decay fits, flow with little decay ends at a rank that can
    fit; with much decay it need not.
    \[\mathrm{rank}\,A(\infty;\lambda)\ge\min\{\mathrm{rank}\,A:C(A)=0\}\quad(\lambda\
    \text{small})\]
    """
    problem = two_by_two(0.25)

    def flow(start: Floats, lam: float) -> Floats:
        objective, weights, _ = network(problem, 3, 3, lam)
        theta = start.copy()
        for _ in range(1500):
            _, gradient = objective(theta)
            theta -= 0.1 * gradient
        return chain(weights(theta))

    runs = 0
    for _ in range(2):
        start = rng.standard_normal(21)
        if _fit(problem, flow(start, 0.0)) < 1e-3:
            A = flow(start, 1e-4)
            little = np.linalg.norm(A, 2)
            A = flow(start, 0.3)
            much = np.linalg.norm(A, 2)
            yield little < 0.05, much < 0.05
            yield much > 0.05
            runs += 1
    if runs == 0:
        yield math.inf
    detail = f"{runs} starts from which flow fits; null: much decay"
    return 0.0, detail


@statement("Proposition A.1", "A")
def decay_critical_balance(rng: Rng) -> Residuals:
    r"""Critical points are balanced.

    Critical points of the regularized loss are balanced: W_l W_l' = W_(l+1)' W_(l+1).

    TeX: Critical points of the regularized loss are balanced: $W_l W_l^\top = W_{l+1}^\top
    W_{l+1}$.
    """
    problem = random_problem(3, rng)
    for depth in (3, 4):
        objective, weights, size = network(problem, depth, 4, 0.01)
        start = 0.7 * rng.standard_normal(size)
        _, theta = descend(objective, start)
        yield layers.imbalance(weights(theta))
    return 1e-5, "imbalance where descent from random weights ends, L = 3 and 4"


@statement("Proposition A.3", "A")
def decay_saddles(rng: Rng) -> Residuals:
    r"""Other critical points are strict saddles.

    Critical points of the loss that are not local minima have a negative curvature.

    Assumes: all N entries seen, small weight decay: each singular value s* allows 0 and two
    roots of s - s* + 2 N lam s^(2/L-1) = 0; the lower is a saddle, and so is the smaller value
    alone.

    TeX: Critical points of the loss that are not local minima have a negative curvature.
    \[s-s^*+2N\lambda\,s^{2/L-1}=0\]
    """
    depth = 3
    lam = 1e-3
    values = np.sort(rng.uniform(0.5, 2, 2))
    problem = Entries.from_matrix(np.diag(values))
    objective, _, _ = network(problem, depth, 2, lam)
    power = 2 / depth - 1
    weight = 8 * lam
    turn = (-power * weight) ** (1 / (1 - power))  # between the two roots
    choices = []
    for value in values:

        def excess(x: float, value: float = value) -> float:
            return x - value + weight * x**power

        lower = brentq(excess, 1e-9, turn)
        upper = brentq(excess, turn, value)
        choices.append((0.0, lower, upper))
    smaller, larger = choices
    for a, b in product(smaller, larger):
        diagonal = np.array([a, b])
        diagonal **= 1 / depth
        W = [np.diag(diagonal)] * depth
        slope, lowest = slope_and_curvature(objective, flat(W))
        yield slope
        lower_root = a == smaller[1] or b == larger[1]
        if lower_root or (b == 0 and a > 0):  # a saddle
            yield lowest + 1e-5
        else:
            yield -lowest - 1e-5
    return 1e-6, "gradient and Hessian at 9 critical points, 6 of them saddles"


@statement("Proposition A.7", "A.1", how="bound evaluated")
def decay_polyak(rng: Rng) -> Residuals:
    r"""The Polyak-Lojasiewicz inequality near global minima.

    |grad L|^2 / 2 >= beta L with beta = s^2/N, s the least singular value of W_(L-1)...W_1, so
    flow's loss falls like exp(-2 beta t).

    Printed: beta reads 2 s^2/N, twice what the printed inequality |grad L|^2 >= (2
    s^2/N) L gives under the printed definition.

    TeX: $|\nabla L|^2 / 2 \ge \beta L$ with $\beta = s^2/N$, $s$ the least singular value of
    $W_{L-1}\ldots W_1$, so flow's loss falls like $\exp(-2 \beta t)$.
    """
    problem = two_by_two(0.25)
    objective, weights, size = network(problem, 3, 4, 0.0)
    for trial in range(20):
        theta = rng.standard_normal(size)
        if trial % 2:  # the last layer is 0: no other gradient helps
            theta[-8:] = 0
        W1, W2, _ = weights(theta)
        least = np.linalg.norm(W2 @ W1, -2)
        beta = least**2 / len(problem)
        value, gradient = objective(theta)
        ratio = 2 * beta * value / float(gradient @ gradient)
        yield ratio - 1, 10 * ratio - 1
    # The bound is reached where the error lies along the least singular direction.
    W = [np.eye(4, 2), np.diag([2.0, 0.5, 1, 1]), np.zeros((2, 4))]
    problem = Entries([0], [1], [1.0], shape=(2, 2))
    objective, _, _ = network(problem, 3, 4, 0.0)
    value, gradient = objective(flat(W))
    reached = 2 * 0.25 * value / float(gradient @ gradient)
    yield abs(reached - 1)
    detail = "random weights, and weights that reach the bound; null: ten times beta"
    return 1e-9, detail, 2 * reached - 1


@statement("Lemma A.1", "A.1", how="bound evaluated")
def polyak_radius(rng: Rng) -> Residuals:
    r"""Flow under the Polyak-Lojasiewicz inequality.

    If |grad L|^2 / 2 >= beta L in the ball of radius sqrt(2 L/beta) around the start, gradient
    flow stays in the ball and reaches a loss of 0.

    Printed: The radius reads sqrt(L/beta): the integral in the proof drops a factor 2.
    L = theta^2/2 for theta >= a and flat below, from theta = 1, satisfies the inequality in the
    printed ball, and flow stops on the plateau.

    TeX: If $|\nabla L|^2 / 2 \ge \beta L$ in the ball of radius $\sqrt{2 L/\beta}$ around the
    start, gradient flow stays in the ball and reaches a loss of $0$.
    """
    for trial in range(20):
        n = 1 + trial % 4
        values = rng.uniform(0.2, 3, n)
        start = np.zeros(n)
        if trial % 2 == 0:
            start = rng.standard_normal(n)
        # Along the flattest direction the inequality is an equality, and the radius is needed.
        start[np.argmin(values)] += 1.0
        loss = values @ start**2 / 2
        beta = values.min()
        times = np.linspace(0, 40 / beta, 200)
        decay = np.exp(-np.outer(times, values))
        path = decay * start
        distances = np.linalg.norm(path - start, axis=1)
        radius = math.sqrt(2 * loss / beta)
        ratio = distances.max() / radius
        yield ratio - 1, 10 * ratio - 1
        yield values @ path[-1] ** 2 / 2 / loss
    # From theta = 1 the paper's ball ends at 1 - sqrt(1/2): a plateau below it is never left.
    end = 0.9 * (1 - math.sqrt(0.5))
    plateau = 0.5 * end**2
    detail = (
        "quadratics, whose flow is known; null: a tenth of the radius; the paper's radius allows a "
        f"plateau at L = {plateau:.3f} from L = .5"
    )
    return 1e-9, detail, plateau


@statement("Section 2.2, depth 2", "2.2", how="bound evaluated")
def shallow_decay(rng: Rng) -> Residuals:
    r"""Two layers have no spurious minima.

    With L = 2 descent from any start ends at the global minimum; with L = 3 it does not.

    Assumes: hidden layers as wide as the matrix; some entries observed.

    TeX: With $L = 2$ descent from any start ends at the global minimum; with $L = 3$ it does not.
    """
    for n in (2, 3):
        problem = random_problem(n, rng) if n > 2 else two_by_two(0.25)
        spread = []
        for depth in (2, 3):
            objective, _, size = network(problem, depth, n, 0.02)
            starts = rng.standard_normal((7, size))
            starts[0] *= 1e-3
            ends = []
            for start in starts:
                value, _ = descend(objective, start)
                ends.append(value)
            ratio = max(ends) / min(ends)
            spread.append(ratio - 1)
        yield spread
    return DESCENT, "largest less smallest loss of several descents; null: three layers"
