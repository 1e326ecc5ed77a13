"""Section 3.1 and appendix A: minima and saddles."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq

from overt._types import Floats
from overt.decay import balanced, existence, layers, minima, two_by_two
from overt.entries import Entries
from overt.papers import descent
from overt.papers.descent import descend
from overt.papers.evidence import DESCENT, relative
from overt.papers.one_way_jumps.networks import (
    network,
    random_problem,
)
from overt.papers.oracles import chain
from overt.papers.records import Residuals, Rng, item, statement


@statement("Theorem 3.1", "3.1", how="sampled")
def decay_correspondence(scale: int, rng: Rng) -> Residuals:
    r"""Minima in the weights and of the matrix.

    Minima of the loss in the weights are minima of C(A) + lam L sum_i s_i^(2/L), and back.

    Assumes: here 3 x 3 with six entries seen, L = 3.

    TeX: Minima of the loss in the weights are minima of $C(A) + \lambda L \sum_i s_i^{2/L}$,
    and back.
    """
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
    moves = [
        r * rng.normal(size=(3, 3)) for r in (1e-4, 1e-3) for _ in range(50 * scale)
    ]
    yield max(cost(A) - cost(A + move) for move in moves)
    for found in minima(problem, depth, lam, starts=2, seed=rng):
        W = balanced(found.matrix, depth, 3, found.rank)
        flat = np.concatenate([w.ravel() for w in W])
        slope, lowest = descent.slope_and_curvature(objective, flat)
        yield max(slope, -lowest)
    return (
        1e-5,
        "a descent's end against 100 moves of A; gradients and Hessians at listed minima",
    )


@statement("Theorem 3.1, on two by two", "3.1", how="sampled")
def decay_minima(scale: int, rng: Rng) -> Residuals:
    """Minima of rank 0, 1 and 2.

    On [[1, *], [e, 1]] there are minima of rank 0, 1 and 2, and their A12 is on our curves.

    Assumes: weight decay below the existence thresholds.

    TeX: On $[[1, *], [e, 1]]$ there are minima of rank $0$, $1$ and $2$, and their $A_{12}$ is
    on our curves.
    """
    epsilon, depth, lam = 0.25, 3, 0.002
    problem = two_by_two(epsilon)
    exact = {m.rank: m for m in minima(problem, depth, lam, starts=1, seed=rng)}
    yield float(len(exact) != 3)
    objective, weights, size = network(problem, depth, 2, lam)
    for rank in (1, 2):
        start = np.concatenate(
            [W.ravel() for W in balanced(exact[rank].matrix, depth, 2, rank)]
        )
        value, theta = descend(objective, start + 1e-3 * rng.standard_normal(size))
        yield relative(chain(weights(theta)), exact[rank].matrix) * 1e-2
        yield abs(value - exact[rank].loss)
    above = minima(
        problem, depth, 1.01 * existence(problem, depth, 2), starts=2, seed=rng
    )
    yield float(any(m.rank == 2 for m in above))
    return DESCENT, "descent from disturbed minima returns to them; none above"


@statement("Proposition 3.1", "3.1", how="bound evaluated")
def decay_vanishing(scale: int, rng: Rng) -> Residuals:
    r"""The minimum of the least fitting rank.

    As lam goes to 0 the minimum of the least fitting rank fits: C(A(lam)) goes to 0.

    Assumes: [[1, *], [e, 1]], L = 3, whose least fitting rank is 1.

    TeX: As $\lambda$ goes to $0$ the minimum of the least fitting rank fits: $C(A(\lambda))$
    goes to $0$. \[\lim_{\lambda\to0}C(A(\lambda))=0\]
    """
    null = math.inf
    for epsilon in (0.25, 0.5):
        problem = two_by_two(epsilon)
        errors: dict[int, list[float]] = {0: [], 1: []}
        for lam in (1e-2, 1e-3, 1e-4, 1e-5):
            found = {m.rank: m for m in minima(problem, 3, lam, starts=1, seed=rng)}
            for rank, at in errors.items():
                E = found[rank].matrix[problem.rows, problem.cols] - problem.values
                at.append(float(E @ E) / (2 * len(E)))
        yield max(b / a for a, b in pairwise(errors[1]))
        yield errors[1][-1] / errors[1][0] / 1e-3
        null = min(null, errors[0][-1] / errors[0][0] / 1e-3)
    detail = (
        "each tenth of the weight decay lowers C, a thousandth by 1,000 and more; null: the "
        "minimum of rank 0"
    )
    return 1.0, detail, None, null


@statement("Proposition 3.2", "3.1", how="bound evaluated")
def decay_no_underestimate(scale: int, rng: Rng) -> Residuals:
    r"""Little decay does not underestimate the rank.

    Where gradient flow without decay fits, flow with little decay ends at a rank that can fit;
    with much decay it need not.

    Assumes: [[1, *], [.25, 1]], L = 3, width 3; lam = 1e-4 and .3.

    TeX: Where gradient flow without decay fits, flow with little decay ends at a rank that can
    fit; with much decay it need not.
    \[\mathrm{rank}\,A(\infty;\lambda)\ge\min\{\mathrm{rank}\,A:C(A)=0\}\quad(\lambda\
    \text{small})\]
    """
    wrong, runs, null, problem = 0, 0, 0, two_by_two(0.25)
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
            null += ends[2][1] < 1
            runs += 1
    yield float(wrong) if runs else math.inf
    return (
        0.0,
        f"{runs} starts from which flow fits; null: much decay",
        None,
        float(null),
    )


@statement("Proposition A.1", "A", how="sampled")
def decay_critical_balance(scale: int, rng: Rng) -> Residuals:
    r"""Critical points are balanced.

    Critical points of the regularized loss are balanced: W_l W_l' = W_(l+1)' W_(l+1).

    TeX: Critical points of the regularized loss are balanced: $W_l W_l^\top = W_{l+1}^\top
    W_{l+1}$.
    """
    problem = random_problem(2 + scale, rng)
    for depth in (3, 4):
        objective, weights, size = network(problem, depth, 3 + scale, 0.01)
        _, theta = descend(objective, 0.7 * rng.standard_normal(size))
        yield layers.imbalance(weights(theta))
    return 1e-5, "imbalance where descent from random weights ends, L = 3 and 4"


@statement("Proposition A.3", "A", how="sampled")
def decay_saddles(scale: int, rng: Rng) -> Residuals:
    r"""Other critical points are strict saddles.

    Critical points of the loss that are not local minima have a negative curvature.

    Assumes: all N entries seen, small weight decay: each singular value s* allows 0 and two
    roots of s - s* + 2 N lam s^(2/L-1) = 0; the lower is a saddle, and so is the smaller value
    alone.

    TeX: Critical points of the loss that are not local minima have a negative curvature.
    \[s-s^*+2N\lambda\,s^{2/L-1}=0\]
    """
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


@statement("Proposition A.7", "A.1", how="bound evaluated")
def decay_polyak(scale: int, rng: Rng) -> Residuals:
    r"""The Polyak-Lojasiewicz inequality near global minima.

    |grad L|^2 / 2 >= beta L with beta = s^2/N, s the least singular value of W_(L-1)...W_1, so
    flow's loss falls like exp(-2 beta t).

    Printed: beta reads 2 s^2/N, twice what the printed inequality |grad L|^2 >= (2
    s^2/N) L gives under the printed definition.

    TeX: $|\nabla L|^2 / 2 \ge \beta L$ with $\beta = s^2/N$, $s$ the least singular value of
    $W_{L-1}\ldots W_1$, so flow's loss falls like $\exp(-2 \beta t)$.
    """
    problem, printed, null = two_by_two(0.25), 0.0, 0.0
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
        null = max(null, 10 * ratio - 1)
    # The bound is reached where the error lies along the least singular direction.
    W = weights(rng.normal(size=size))
    W[0], W[1], W[2] = np.eye(4)[:, :2], np.diag([2.0, 0.5, 1, 1]), np.zeros((2, 4))
    one = Entries([0], [1], [1.0], shape=(2, 2))
    objective, _, _ = network(one, 3, 4, 0.0)
    value, gradient = objective(np.concatenate([w.ravel() for w in W]))
    yield abs(0.5 * float(gradient @ gradient) / (0.25 * value) - 1)
    printed = max(printed, 2 * 0.25 * value / (0.5 * float(gradient @ gradient)) - 1)
    detail = "random weights, and weights that reach the bound; null: ten times beta"
    return 1e-9, detail, printed, null


@statement("Lemma A.1", "A.1", how="bound evaluated")
def polyak_radius(scale: int, rng: Rng) -> Residuals:
    r"""Flow under the Polyak-Lojasiewicz inequality.

    If |grad L|^2 / 2 >= beta L in the ball of radius sqrt(2 L/beta) around the start, gradient
    flow stays in the ball and reaches a loss of 0.

    Printed: The radius reads sqrt(L/beta): the integral in the proof drops a factor 2.
    L = theta^2/2 for theta >= a and flat below, from theta = 1, satisfies the inequality in the
    printed ball, and flow stops on the plateau.

    TeX: If $|\nabla L|^2 / 2 \ge \beta L$ in the ball of radius $\sqrt{2 L/\beta}$ around the
    start, gradient flow stays in the ball and reaches a loss of $0$.
    """
    printed, null = -math.inf, -math.inf
    for trial in range(20 * scale):
        n = 1 + trial % 4
        values = rng.uniform(0.2, 3, n)
        start = np.zeros(n) if trial % 2 else rng.normal(size=n)
        # Along the flattest direction the inequality is an equality, and the radius is needed.
        start[int(np.argmin(values))] += 1.0
        loss, beta = 0.5 * float(values @ start**2), float(values.min())
        radius = math.sqrt(2 * loss / beta)
        times = np.linspace(0, 40 / beta, 200)
        path = np.exp(-np.outer(times, values)) * start
        distance = float(np.linalg.norm(path - start, axis=1).max())
        yield distance / radius - 1
        yield 0.5 * float(values @ path[-1] ** 2) / loss
        printed = max(printed, math.sqrt(2) * distance / radius - 1)
        null = max(null, 10 * distance / radius - 1)
    # The paper's ball reaches down to .3 only: a plateau below it is never left.
    inside = 1 - math.sqrt(0.5)
    plateau = 0.5 * (0.9 * inside) ** 2
    printed = min(printed, plateau)
    detail = (
        "quadratics, whose flow is known; null: a tenth of the radius; the paper's radius allows a "
        f"plateau at L = {plateau:.3f} from L = .5"
    )
    return 1e-9, detail, printed, null


@statement("Section 2.2, depth 2", "2.2", how="bound evaluated")
def shallow_decay(scale: int, rng: Rng) -> Residuals:
    r"""Two layers have no spurious minima.

    With L = 2 descent from any start ends at the global minimum; with L = 3 it does not.

    Assumes: hidden layers as wide as the matrix; some entries observed.

    TeX: With $L = 2$ descent from any start ends at the global minimum; with $L = 3$ it does not.
    """
    null = -math.inf
    for n in (2, 3):
        problem = two_by_two(0.25) if n == 2 else random_problem(3, rng)
        spread = {}
        for depth in (2, 3):
            objective, _, size = network(problem, depth, n, 0.02)
            starts = [rng.normal(size=size) for _ in range(6 * scale)]
            starts.append(1e-3 * rng.normal(size=size))
            ends = [descend(objective, start)[0] for start in starts]
            spread[depth] = max(ends) / min(ends) - 1
        yield spread[2]
        null = max(null, spread[3])
    return (
        DESCENT,
        "largest less smallest loss of several descents; null: three layers",
        None,
        null,
    )


item(
    "Proposition A.2",
    "A",
    "Correspondence of minima and saddles",
    by="decay-correspondence",
)
item("Proposition A.4", "A", "As Proposition 3.1", by="decay-vanishing")
item("Proposition A.5", "A.1", "As Proposition 3.2", by="decay-no-underestimate")
item(
    "Proposition A.6",
    "A.1",
    "The same where the infimum is not attained",
    by=("decay-no-underestimate", "decay-polyak"),
    open="through its two steps",
)
