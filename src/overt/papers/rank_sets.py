"""The sets B_r that SGD enters and does not leave, with the constants of the theorems.

[One-way jumps] 3.2 and appendix B: theta is in B_r if

    |W_l|_F^2 <= C,  |W_l W_l' - W_(l+1)' W_(l+1)|_2 <= eps_1,
    sum_i f_alpha(s_i(W_l' W_l)) <= r + eps_2

for all layers. The appendix writes the decay of a step as (1 - eta lam); in overt's convention
that lam is 2 weight_decay, and `ApproximateRankSet.for_problem` converts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from overt._check import InputError
from overt.decay import layers
from overt.entries import Entries


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
        if not 0 < self.slack < 0.5:
            raise InputError(
                f"slack must be below 1/2, and above 0, got {self.slack!r}"
            )

    @classmethod
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
        L, lam, n, C_1 = _constants(problem, depth, width, weight_decay)
        C = C_1 / lam
        if not absorbing:
            C /= 2
        residual = 2 * (C_1 + C**L)
        ratio = lam**2 / residual
        alpha = ratio ** (1 / (L - 2))
        slope = C ** ((L - 1) / 2)
        scale = 32 * n * L * (rank + 1) * slope * residual**0.5
        balance = (lam * alpha * slack / scale) ** 2
        if absorbing:
            # Theorem E.2, for the rank to follow from the columns that are not sampled.
            others = max(1, n - rank)
            needed = alpha * slack / (4 * others * (L - 1))
            balance = min(balance, needed)
        return cls(rank, balance, slack, alpha, C)

    def learning_rates(
        self, problem: Entries, depth: int, width: int, weight_decay: float
    ) -> dict[str, float]:
        """Return the four bounds of Theorem B.1 on the learning rate; B_r is closed below all.

        bound: C_1 / (4 D);  balance: 2 lam eps_1 / (4 (C_1 + C^L) C^(L-1) + lam^2 eps_1);
        rank: lam alpha eps_2 / (32 n (r+1) D);  overshoot: 2 (r+1) / lam,
        with D = 2 (C_1 + C^L) C^(L-1) + lam^2 C and lam = 2 weight_decay.
        """
        L, lam, n, C_1 = _constants(problem, depth, width, weight_decay)
        slope = self.bound ** (L - 1)
        noise = 2 * (C_1 + self.bound**L) * slope
        D = noise + lam**2 * self.bound
        above = self.rank + 1
        return {
            "bound": C_1 / (4 * D),
            "balance": 2 * lam * self.balance / (2 * noise + lam**2 * self.balance),
            "rank": lam * self.alpha * self.slack / (32 * n * above * D),
            "overshoot": 2 * above / lam,
        }

    def contains(self, weights: layers.Layers) -> bool:
        """Return whether the weights [W_1, ..., W_L] are in the set."""
        size = max(np.sum(W * W) for W in weights)
        small = size <= self.bound
        gaps = [np.linalg.norm(A @ A.T - B.T @ B, 2) for A, B in pairwise(weights)]
        balanced = max(gaps) <= self.balance
        rank = approximate_rank(weights, self.alpha)
        return bool(small and balanced and rank <= self.rank + self.slack)


def _constants(
    problem: Entries, depth: int, width: int, weight_decay: float
) -> tuple[int, float, int, float]:
    """Return L, lam, the largest side n, and C_1."""
    n = max(*problem.shape, width)
    C_1 = float(np.max(problem.values**2))
    return depth, 2 * weight_decay, n, C_1


def approximate_rank(weights: layers.Layers, alpha: float) -> float:
    """max_l sum_i f_alpha(s_i(W_l' W_l)), with s_i(W'W) = s_i(W)^2 from the SVD of W.

    f_alpha(x) = x (2 alpha - x) / alpha^2 up to alpha, then 1 ([One-way jumps] 3.2).
    """
    ranks = []
    for W in weights:
        s = np.linalg.svd(W, compute_uv=False)
        share = np.minimum(s**2, alpha) / alpha
        rank = np.sum(share * (2 - share))
        ranks.append(float(rank))
    return max(ranks)
