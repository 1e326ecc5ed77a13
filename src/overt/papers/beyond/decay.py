"""Weight decay where every entry is observed, shuffled SGD, and dropout after a ReLU."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from overt import Entries, relu
from overt._check import Floats
from overt.decay import Schedule, minima, rank_thresholds, simulate, two_by_two
from overt.papers import descent
from overt.papers.evidence import DESCENT, Evidence, relative
from overt.papers.one_way_jumps.networks import network
from overt.papers.oracles import multipliers
from overt.papers.records import Residuals, Rng, statement


@statement()
def observed_minima(rng: Rng) -> Residuals:
    r"""Minima under weight decay, every entry observed.

    With L >= 3 layers the local minima are A_q = sum_(p <= q) a_+(s_p) u_p v_p', one per rank,
    where a_+(s) is the larger root of a + 2 mu a^(2/L - 1) = s.

    Assumes: every entry observed once, different singular values, widths of at least the rank.

    TeX: With $L \ge 3$ layers the local minima are $A_q = \sum_{p \le q} a_+(s_p) u_p v_p^\top$,
    one per rank, where $a_+(s)$ is the larger root of $a + 2 \mu a^{2/L - 1} = s$.

    Proof: By One-way jumps, section 3.1, the local minima are those of $f(A) = \tfrac12 \|M -
    A\|_F^2 + \sum_p \phi(a_p)$ over matrices with singular values $a$, $\phi(a) = \mu L a^{2/L}$.
    On matrices of rank $q$ with singular vectors $U, V$, stationarity reads $U^\top (M - A) V =
    \mathrm{diag}(\phi'(a))$, $(I - U U^\top) M V = 0$ and $U^\top M (I - V V^\top) = 0$. So $A$
    uses singular pairs of $M$, with $s_p = h(a_p)$, $h(a) = a + \phi'(a) = a + 2 \mu a^{2/L -
    1}$. $h$ is convex with one minimum $a_{ex}$. The curvature in $a_p$ is $h'(a_p)$: smaller
    roots are saddles. If an unused $s_q$ exceeds a used $s_p$, turning $u_p$ and $v_p$ by
    $\theta$ towards $u_q$ and $v_q$ leaves the penalty and changes $f$ by $-a_p (s_q - s_p)
    \theta^2$. So only the $A_q$ are left. They are minima: the Hessian on matrices of rank $q$ is
    $h'(a_p) > 0$ in $a_p$, has the factors $(h(a_p) - h(a_{p'}))/(a_p - a_{p'}) > 0$ and $1 +
    (\phi'_p + \phi'_{p'})/(a_p + a_{p'}) > 0$ on turns of two used directions, and is positive on
    turns into unused ones, as $s_p > s_q$; and raising the rank by a singular value $t$ costs
    $\mu L t^{2/L}$ and gains $O(t)$, with $2/L < 1$.
    """
    problem = Entries.from_matrix(rng.normal(size=(3, 4)))
    decay = 0.004
    objective, _, size = network(problem, 3, 3, decay)
    starts = rng.normal(size=(10, size))
    ends = np.array([descent.descend(objective, start)[0] for start in starts])

    def distance(depth: int) -> float:
        losses = np.array([m.loss for m in minima(problem, depth, decay)])
        return float(np.abs(ends[:, None] / losses - 1).min(axis=1).max())

    yield distance(3)
    thresholds = rank_thresholds(problem, 3)
    parts = (thresholds.singular_values, thresholds.exists, thresholds.optimal)
    for s, exists, optimal in zip(*parts, strict=True):
        # A rank exists if some a solves the equation, and is optimal if it is better than 0.
        mu = 12 * np.array([exists, optimal])
        least = _least(lambda a: a + 2 * mu[0] * a ** (-1 / 3), s)  # noqa: B023
        yield relative(least, s)
        best = _least(lambda a: (s - a) ** 2 / 2 + 3 * mu[1] * a ** (2 / 3), s)  # noqa: B023
        yield relative(best, s**2 / 2)
        below, above = (minima(problem, 3, exists * f) for f in (0.999, 1.001))
        yield abs(len(below) - len(above) - 1)
        lists = (minima(problem, 3, optimal * f) for f in (0.999, 1.001))
        ranks = [min(found, key=lambda m: m.loss).rank for found in lists]
        yield abs(ranks[0] - ranks[1] - 1)
    detail = f"{len(ends)} descents end on the list; thresholds by minimization; null: two layers"
    return DESCENT, detail, None, distance(2)


def _least(value: Any, s: float) -> float:
    """Return the least value at a in (s / 10, s), where the larger root is."""
    options = {"xatol": 1e-12}
    found = minimize_scalar(
        value, bounds=(s / 10, s), method="bounded", options=options
    )
    return float(found.fun)


@statement()
def shuffled_passes(rng: Rng) -> Evidence:
    r"""Shuffled SGD does not jump.

    At small learning rates eta, passes that use every entry once, in any order, never leave a
    compact component K of {L <= c}; samples with replacement leave it almost surely.

    Assumes: losses with two continuous derivatives, weight decay; how small is not computed, and
    the check runs at the rate of the paper's Figure 1.

    TeX: At small learning rates $\eta$, passes that use every entry once, in any order, never leave
    a compact component $K$ of $\{L \le c\}$; samples with replacement leave it almost surely.

    Proof: Let $L = \frac1N \sum_j L_j$ with $L_j$ twice continuously differentiable, $c$ a
    regular value and $K$ a compact component of $\{L \le c\}$. A pass from $\theta \in K$, in any
    order, ends at $\theta - \eta N \nabla L(\theta) + O(\eta^2 N^2)$, uniformly on $K$. There are
    $c' < c$ and $g > 0$ with $|\nabla L| \ge g$ where $c' \le L \le c$ on $K$. There $L$ falls by
    $\eta N g^2 - O(\eta^2 N^2)$, which is positive for small $\eta$; where $L < c'$ it rises by
    at most $O(\eta N) \le c - c'$. The other components of $\{L \le c\}$ have a positive distance
    from $K$, which no pass of small $\eta$ covers. So a pass from $K$ ends in $K$. For samples
    with replacement see One-way jumps, Theorem 3.2, in its range of rates.
    """
    schedule = Schedule.of([(500, 0.03, 0.1), (15_000, 0.2, 0.1)], convention="pytorch")
    seed = int(rng.integers(2**31))

    def jumped(sampling: str) -> float:
        runs = simulate(
            two_by_two(0.25),
            3,
            10,
            schedule,
            20,
            records=32,
            seed=seed,
            sampling=sampling,
            progress=False,
        )
        return float(np.count_nonzero(runs.jump_step >= 0))

    detail = "jumps among 20 runs; null: samples with replacement"
    return Evidence(jumped("shuffled"), 0.0, detail, null=jumped("replacement"))


@statement()
def relu_one_output(rng: Rng) -> Evidence:
    r"""Dropout after a ReLU, one output.

    The least objective over all features q >= 0 and weights of d units is lam min_k (|y_+|^2 /
    (k + lam) + |y_-|^2 / (d - k + lam)).

    Assumes: layers before the ReLU that can make any features, one output, no bias.

    TeX: The least objective over all features $q \ge 0$ and weights of $d$ units is $\lambda
    \min_k (|y_+|^2 / (k + \lambda) + |y_-|^2 / (d - k + \lambda))$.

    Proof: Let $k$ units have positive weights $u_i$ and $d - k$ negative ones (units of weight 0
    count as either). Their sums are $P = \sum u_i q_i \ge 0$ and $-N \le 0$. By Cauchy and
    Schwarz the penalty is at least $\lambda (|P|^2/k + |N|^2/(d-k))$, with equality if $P$ and
    $N$ are split evenly. Where both are positive, taking the smaller from both leaves $P - N$ and
    lowers the penalty: $P = 0$ where $y < 0$ and $N = 0$ where $y > 0$. Then each entry is a
    problem of its own, $\min_P (y - P)^2 + \lambda P^2/k = \lambda y^2/(k + \lambda)$.
    """
    y = np.abs(rng.normal(size=5)) * [1, -1, 1, -1, 1]  # with one sign no unit is lost
    width = 4
    lam = 0.8
    best = relu.one_output_optimum(y, width, lam / (1 + lam))

    def loss(theta: Floats) -> float:
        u = theta[:width]
        q = theta[width:].reshape(5, width) ** 2
        return float(np.sum((q @ u - y) ** 2) + lam * u**2 @ np.sum(q**2, axis=0)) / 5

    starts = rng.standard_normal((10, 6 * width))
    lowest = min(minimize(loss, start).fun for start in starts)
    z, p = multipliers(width, lam / (1 + lam))
    outputs = best.activations @ (z * best.U).T
    attained = float(p @ np.mean((y[:, None] - outputs) ** 2, axis=0))
    detail = f"all masks at the optimum, {len(starts)} descents above; null: features of any sign"
    residual = max(relative(attained, best.objective), 1 - lowest / best.objective)
    null = relative(attained, best.unsigned_objective)
    return Evidence(residual, DESCENT, detail, null=null)
