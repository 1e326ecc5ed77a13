"""The sets B_r that SGD enters and does not leave, with the constants of the theorems.

[One-way jumps] 3.2 and appendix B: theta is in B_r if

    |W_l|_F^2 <= C,  |W_l W_l' - W_(l+1)' W_(l+1)|_2 <= eps_1,
    sum_i f_alpha(s_i(W_l' W_l)) <= r + eps_2

for all layers. The appendix writes the decay of a step as (1 - eta lam); in overt's convention
that lam is 2 weight_decay, and `ApproximateRankSet.for_problem` converts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from overt._check import (
    InputError,
    bounded,
    chain,
    doubles,
    instance,
    number,
    seed_number,
    whole,
)
from overt._types import Floats, Seed
from overt.decay import layers
from overt.decay.schedule import Schedule
from overt.decay.simulation import Weights, entry_draws
from overt.entries import Entries
from overt.results import Result


@dataclass(frozen=True)
class ApproximateRankSet:
    """B_r: bounded, nearly balanced, of approximate rank at most r.

    Attributes
    ----------
    rank
        r.
    balance
        eps_1, the largest spectral norm of W_l W_l' - W_(l+1)' W_(l+1).
    slack
        eps_2, below 1/2 (section 3.2 prints eps_2 ~ 1/lam, which is a slip).
    alpha
        Scale of f_alpha.
    bound
        C, the largest |W_l|_F^2.
    """

    rank: int
    balance: float
    slack: float
    alpha: float
    bound: float

    def __post_init__(self) -> None:
        whole("rank", self.rank, minimum=0)
        for name in ("balance", "slack", "alpha", "bound"):
            object.__setattr__(
                self, name, number(name, getattr(self, name), exclusive=True)
            )
        if self.slack >= 0.5:
            raise InputError(f"slack must be below 1/2, got {self.slack!r}")

    @classmethod
    @bounded
    def for_problem(
        cls,
        problem: Entries,
        depth: int,
        width: int,
        weight_decay: float,
        rank: int,
        *,
        slack: float = 0.25,
        absorbing: bool = False,
    ) -> Self:
        """Return the largest set to which Theorem B.1 applies (B.2 too, if `absorbing`).

        C = C_1 / (2 lam) (C_1 / lam for B.2), alpha = (lam^2 / (2 (C_1 + C^L)))^(1/(L-2)),
        sqrt(eps_1) = lam alpha eps_2 / (32 n L (r+1) C^((L-1)/2) sqrt(2 (C_1 + C^L))),
        with lam = 2 weight_decay and C_1 the largest squared observation.
        """
        L, lam = (
            whole("depth", depth, 3),
            2 * number("weight_decay", weight_decay, exclusive=True),
        )
        n, slack = max(*_shape(problem), whole("width", width)), number("slack", slack)
        C_1, rank = float(np.max(problem.values**2)), whole("rank", rank, 0)
        C = C_1 / lam if absorbing else C_1 / (2 * lam)
        residual = 2 * (C_1 + C**L)
        alpha = (lam**2 / residual) ** (1 / (L - 2))
        root = (
            lam
            * alpha
            * slack
            / (32 * n * L * (rank + 1) * C ** ((L - 1) / 2) * residual**0.5)
        )
        balance = root**2
        if absorbing:
            # Theorem E.2, for the rank to follow from the columns that are not sampled.
            balance = min(balance, alpha * slack / (4 * max(1, n - rank) * (L - 1)))
        return cls(rank, balance, slack, alpha, C)

    @bounded
    def learning_rates(
        self, problem: Entries, depth: int, width: int, weight_decay: float
    ) -> dict[str, float]:
        """Return the four bounds of Theorem B.1 on the learning rate; B_r is closed below all.

        bound: C_1 / (4 D);  balance: 2 lam eps_1 / (4 (C_1 + C^L) C^(L-1) + lam^2 eps_1);
        rank: lam alpha eps_2 / (32 n (r+1) D);  overshoot: 2 (r+1) / lam,
        with D = 2 (C_1 + C^L) C^(L-1) + lam^2 C and lam = 2 weight_decay.
        """
        L, lam = (
            whole("depth", depth, 3),
            2 * number("weight_decay", weight_decay, exclusive=True),
        )
        n, C = max(*_shape(problem), whole("width", width)), self.bound
        C_1 = float(np.max(problem.values**2))
        noise = 2 * (C_1 + C**L) * C ** (L - 1)
        D = noise + lam**2 * C
        return {
            "bound": C_1 / (4 * D),
            "balance": 2 * lam * self.balance / (2 * noise + lam**2 * self.balance),
            "rank": lam * self.alpha * self.slack / (32 * n * (self.rank + 1) * D),
            "overshoot": 2 * (self.rank + 1) / lam,
        }

    @bounded
    def absorption(
        self,
        problem: Entries,
        width: int,
        weight_decay: float,
        learning_rate: float,
        initial_bound: float,
    ) -> tuple[float, float, float]:
        """Return Theorem B.2's T_0, T_1, and log10 of the least probability to be in B_r by then.

        T_0 = log(2 C_0 / eps_1) / (eta lam), T_1 = log(4 (n-r) C / (alpha eps_2)) / (2 eta lam),
        probability at least (r / min(d_in, d_out))^T_1; C_0 (`initial_bound`) is the largest
        |W_l|_F^2 at the start. The sum of the times is what counts: the theorem takes the product
        bound over the last T_1 steps only.
        """
        whole("rank", self.rank)  # of 0 the theorem says nothing
        rate = number("learning_rate", learning_rate, exclusive=True)
        lam = 2 * number("weight_decay", weight_decay, exclusive=True)
        n = max(*_shape(problem), whole("width", width))
        C_0 = number("initial_bound", initial_bound, exclusive=True)
        T_0 = math.log(2 * C_0 / self.balance) / (rate * lam)
        T_1 = math.log(
            4 * max(1, n - self.rank) * self.bound / (self.alpha * self.slack)
        )
        T_1 /= 2 * rate * lam
        return T_0, T_1, T_1 * math.log10(min(1.0, self.rank / min(problem.shape)))

    @bounded
    def measure(self, weights: layers.Layers) -> dict[str, float]:
        """Return what B_r bounds: "bound", "balance" and "rank" (their largest over the layers)."""
        W = [doubles("weights", w) for w in chain(weights)]
        gaps = (A @ A.T - B.T @ B for A, B in pairwise(W))
        return {
            "bound": max(float(np.sum(w * w)) for w in W),
            "balance": max(float(np.linalg.norm(gap, 2)) for gap in gaps),
            "rank": approximate_rank(W, self.alpha),
        }

    def boundary_point(
        self, shape: tuple[int, int], depth: int, width: int, rng: np.random.Generator
    ) -> list[Floats]:
        """Return balanced weights of approximate rank r + eps_2 (to 1e-6 of eps_2), random else.

        All layers have the squared singular values x_1, ..., x_r, of a sum from C / 100 to C, and
        x_(r+1) = alpha (1 - sqrt(1 - eps_2)), where f_alpha is eps_2.
        """
        instance("rng", rng, np.random.Generator, "a numpy.random.Generator")
        if not isinstance(shape, (tuple, list)) or len(shape) != 2:
            raise InputError(f"shape must be (outputs, inputs), got {shape!r:.60}")
        outputs, inputs = whole("shape", shape[0]), whole("shape", shape[1])
        shape = (outputs, inputs)
        n = min(self.rank + 1, *shape, whole("width", width))
        last = self.alpha * (1 - math.sqrt(1 - self.slack * (1 - 1e-6)))
        x = np.full(n, last)
        if n > 1:
            x[:-1] = (
                rng.dirichlet(np.ones(n - 1))
                * (self.bound - last)
                * rng.uniform(0.01, 1)
            )
        weights = layers.balanced(np.zeros(shape), depth, width, 0)
        V, U = (np.linalg.qr(rng.standard_normal((m, n)))[0] for m in shape[::-1])
        weights[0][:n], weights[-1][:, :n] = np.sqrt(x)[:, None] * V.T, U * np.sqrt(x)
        for W in weights[1:-1]:
            W[range(n), range(n)] = np.sqrt(x)
        return weights

    def contains(self, weights: layers.Layers) -> bool:
        """Return whether the weights [W_1, ..., W_L] are in the set."""
        return not any(self.violations(weights).values())

    def violations(self, weights: layers.Layers) -> dict[str, bool]:
        """Return which of the three conditions the weights break."""
        found = self.measure(weights)
        return {
            "bound": found["bound"] > self.bound,
            "balance": found["balance"] > self.balance,
            "rank": found["rank"] > self.rank + self.slack,
        }


@dataclass(frozen=True, repr=False, eq=False)
class Closedness(Result):
    """How many of `steps` SGD steps broke a condition of B_r that was satisfied before."""

    steps: int
    bound: int
    balance: int
    rank: int
    learning_rate: float
    allowed: float


def closedness(
    region: ApproximateRankSet,
    problem: Entries,
    depth: int,
    width: int,
    weight_decay: float,
    learning_rate: float,
    *,
    steps: int = 10,
    runs: int = 300,
    seed: Seed = 0,
) -> Closedness:
    """Count how often one SGD step leaves B_r, at any learning rate, allowed or not.

    Each run starts from a random balanced point on the boundary, of approximate rank r + eps_2 and
    a size of C / 100 to C. The three conditions are counted one by one, since the theorem's eps_1
    (about 1e-24) lies below rounding: balance to that accuracy cannot even be stored, and is then
    neither satisfied nor broken.
    """
    schedule = Schedule.constant(whole("steps", steps), learning_rate, weight_decay)
    depth, width = whole("depth", depth, 2, layers.MAX_DEPTH), whole("width", width)
    phase, root = schedule.phases[0], seed_number(seed)
    counts = {"steps": 0, "bound": 0, "balance": 0, "rank": 0}
    for run in range(whole("runs", runs)):
        rng = np.random.default_rng([root, run, 2])
        state = Weights(region.boundary_point(problem.shape, depth, width, rng))
        for draw in entry_draws(problem, steps, seed=root, run=run).reshape(-1, 1):
            before = region.violations(state.layers())
            state.descend(problem, draw, phase.learning_rate, phase.weight_decay)
            state.fold()
            counts["steps"] += 1
            for name, broken in region.violations(state.layers()).items():
                counts[name] += broken and not before[name]
    allowed = min(region.learning_rates(problem, depth, width, weight_decay).values())
    return Closedness(**counts, learning_rate=phase.learning_rate, allowed=allowed)


def _shape(problem: Entries) -> tuple[int, int]:
    return instance("problem", problem, Entries, "overt.Entries").shape


def approximate_rank(weights: layers.Layers, alpha: float) -> float:
    """max_l sum_i f_alpha(s_i(W_l' W_l)), with s_i(W'W) = s_i(W)^2 from the SVD of W.

    f_alpha(x) = x (2 alpha - x) / alpha^2 up to alpha, then 1 ([One-way jumps] 3.2).
    """
    ranks = []
    for W in weights:
        x = np.linalg.svd(W, compute_uv=False) ** 2
        share = np.minimum(x, alpha) / alpha
        ranks.append(float(np.sum(share * (2 - share))))
    return max(ranks)
