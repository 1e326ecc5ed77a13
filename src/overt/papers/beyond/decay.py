"""Weight decay where every entry is observed, shuffled SGD, and dropout after a ReLU."""

from __future__ import annotations

import numpy as np

from overt import Entries, relu
from overt._types import Floats
from overt.decay import Schedule, minima, simulate, two_by_two
from overt.papers import descent
from overt.papers.evidence import DESCENT, Evidence, relative
from overt.papers.one_way_jumps.networks import network
from overt.papers.oracles import multipliers
from overt.papers.records import Rng, statement


@statement(how="sampled")
def observed_minima(scale: int, rng: Rng) -> Evidence:
    r"""Minima under weight decay, every entry observed.

    With L >= 3 layers the local minima are A_q = sum_(p <= q) a_+(s_p) u_p v_p', one per rank,
    where a_+(s) is the larger root of a + 2 mu a^(2/L - 1) = s.

    Assumes: every entry observed once, different singular values, widths of at least the rank.

    TeX: With $L \ge 3$ layers the local minima are $A_q = \sum_{p \le q} a_+(s_p) u_p v_p^\top$,
    one per rank, where $a_+(s)$ is the larger root of $a + 2 \mu a^{2/L - 1} = s$.
    """
    problem = Entries.from_matrix(rng.normal(size=(3, 4)))
    decay = 0.004
    objective, _, size = network(problem, 3, 3, decay)
    starts = rng.normal(size=(10 * scale, size))
    ends = np.array([descent.descend(objective, start)[0] for start in starts])

    def distance(depth: int) -> float:
        losses = np.array([m.loss for m in minima(problem, depth, decay)])
        return float(np.abs(ends[:, None] / losses - 1).min(axis=1).max())

    detail = f"{len(ends)} descents end on the list; null: the minimum of two layers"
    return Evidence(distance(3), DESCENT, detail, null=distance(2))


@statement(how="sampled")
def shuffled_passes(scale: int, rng: Rng) -> Evidence:
    r"""Shuffled SGD does not jump.

    At small learning rates eta, passes that use every entry once, in any order, never leave a
    compact component K of {L <= c}; samples with replacement leave it almost surely.

    Assumes: losses with two continuous derivatives, weight decay; how small is not computed, and
    the check runs at the rate of the paper's Figure 1.

    TeX: At small learning rates $\eta$, passes that use every entry once, in any order, never leave
    a compact component $K$ of $\{L \le c\}$; samples with replacement leave it almost surely.
    """
    schedule = Schedule.of([(500, 0.03, 0.1), (15_000, 0.2, 0.1)], convention="pytorch")
    seed = int(rng.integers(2**31))

    def jumped(sampling: str) -> float:
        runs = simulate(
            two_by_two(0.25),
            3,
            10,
            schedule,
            20 * scale,
            records=32,
            seed=seed,
            sampling=sampling,
            balance=False,
            progress=False,
        )
        return float(np.count_nonzero(runs.jump_step >= 0))

    detail = f"jumps among {20 * scale} runs; null: samples with replacement"
    return Evidence(jumped("shuffled"), 0.0, detail, null=jumped("replacement"))


@statement(how="sampled")
def relu_one_output(scale: int, rng: Rng) -> Evidence:
    r"""Dropout after a ReLU, one output.

    The least objective over all features q >= 0 and weights of d units is lam min_k (|y_+|^2 /
    (k + lam) + |y_-|^2 / (d - k + lam)).

    Assumes: layers before the ReLU that can make any features, one output, no bias.

    TeX: The least objective over all features $q \ge 0$ and weights of $d$ units is $\lambda
    \min_k (|y_+|^2 / (k + \lambda) + |y_-|^2 / (d - k + \lambda))$.
    """
    y = np.abs(rng.normal(size=5)) * [1, -1, 1, -1, 1]  # with one sign no unit is lost
    width = 4
    lam = 0.8
    best = relu.one_output_optimum(y, width, lam / (1 + lam))

    def value(theta: Floats) -> tuple[float, Floats]:
        u = theta[:width]
        z = theta[width:].reshape(len(y), width)
        q = z**2
        off = q @ u - y
        sizes = np.sum(q**2, axis=0)
        by_u = 2 * off @ q + 2 * lam * u * sizes
        by_q = 2 * np.outer(off, u) + 2 * lam * u**2 * q
        loss = np.sum(off**2) + lam * np.sum(u**2 * sizes)
        return float(loss), np.concatenate([by_u, (2 * z * by_q).ravel()])

    starts = 40 * scale
    lowest, _ = descent.best_descent(value, width * (1 + len(y)), starts, rng)
    z, p = multipliers(width, lam / (1 + lam))
    outputs = best.activations @ (z * best.U).T
    attained = float(p @ np.mean((y[:, None] - outputs) ** 2, axis=0))
    below = max(1 - lowest / len(y) / best.objective, 0.0)
    detail = f"all masks at the optimum, {starts} descents above it; null: features of any sign"
    residual = max(relative(attained, best.objective), below)
    null = relative(attained, best.unsigned_objective)
    return Evidence(residual, DESCENT, detail, null=null)
