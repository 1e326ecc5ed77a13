"""Local minima of deep linear networks with dropout, one for each rank that has one.

Let pi be a strict local maximum of sum_p s_p^2 prod_l pi^l_p / (pi^l_p + beta_l) with q active
directions. The weights with these shares are a local minimum over all weights: near them the
targets that the layers leave each other have q leading singular values apart from the others, and
each layer's gain is at most what q directions can gain (Horn; convexity of the gain in the squared
values). So a network with two noisy layers or more has a spurious minimum for every such rank that
is not the best, and rank one always is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt._check import Floats, InputError
from overt.linear.bounds import EXACT
from overt.linear.deep_shares import best_shares, local_maxima
from overt.linear.layers import DeepNoise
from overt.linear.network import Evaluation
from overt.results import Result


@dataclass(frozen=True, repr=False, eq=False)
class LocalMinimum(Result):
    """The best network of one rank, a local minimum over all weights.

    Attributes
    ----------
    rank, weights, objective
        The network.
    shares
        Shares of the units of each layer, hidden layers x directions.
    spurious
        Whether another network is better.
    """

    rank: int
    weights: tuple[Floats, ...]
    objective: float
    shares: Floats
    spurious: bool


@dataclass(frozen=True, repr=False, eq=False)
class DeepLandscape(Result):
    """The local minima of a deep network, by rank.

    Attributes
    ----------
    minima
        One for each rank that has one, in increasing order of rank.
    barrier
        Where rank one is spurious and there are two hidden layers: every path of weights from that
        minimum to a better network rises at least this much. None if no such number is proved.
    """

    minima: tuple[LocalMinimum, ...]
    barrier: float | None = None

    @property
    def best(self) -> LocalMinimum:
        """The global minimum."""
        return min(self.minima, key=lambda minimum: minimum.objective)


def deep_landscape(effect: DeepNoise) -> DeepLandscape:
    """Return the local minima of a network with independent or exchangeable noise."""
    if not effect.exact or len(effect.noisy) < len(effect.layers):
        raise InputError(
            "the landscape of a deep network is known with noise on every hidden layer that "
            "treats its units alike, such as Dropout with one probability"
        )
    if len(effect.values) == 0:
        raise InputError("target must not be zero, or zero is the only minimum")
    found = {effect.best.rank: effect.layer_shares()}
    if len(effect.layers) > 1:
        found = local_maxima(effect.values, effect.beta) | found
    points = []
    for rank, shares in sorted(found.items()):
        weights = tuple(effect.weights_of(shares))
        points.append((rank, weights, Evaluation(effect, *weights).objective, shares))
    least = min(objective for _, _, objective, _ in points)
    minima = tuple(
        LocalMinimum(*point, spurious=point[2] > least * (1 + EXACT))
        for point in points
    )
    barrier = None
    if minima[0].rank == 1 and minima[0].spurious and len(effect.layers) == 2:
        barrier = rank_one_barrier(effect) or None
    return DeepLandscape(minima, barrier)


def rank_one_barrier(effect: DeepNoise) -> float:
    """Return what every path from the best network of rank one to a better one must climb.

    Let x be the squared singular values of K^(-1/2) W_3'T. While sqrt(x_2/x_1) <= b/(1+b), b that
    of the first layer, no W_1 and W_2 gain more than x_1 / (1+b), and x_1 <= lambda_1 s_1^2. A path
    has to pass equality, where (1 + x_2/x_1) x_1 <= lambda_1 s_1^2 + lambda_2 s_2^2 as well; both
    bounds are concave in the share of the first direction. Or it passes a network in which a unit
    of the second layer has no outgoing weights, which is a network of smaller width.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    s1, s2 = effect.values[:2] ** 2
    first, second = effect.beta
    ratio = (first / (1 + first)) ** 2

    def least(share: float) -> float:
        one = s1 * share / (share + second)
        two = s2 * (1 - share) / (1 - share + second)
        return -float(min(one, (one + two) / (1 + ratio)))

    crossing = minimize_scalar(least, bounds=(0, 1), options={"xatol": 1e-12})
    gains = [-effect.factor * crossing.fun / (1 + first)]
    width = effect.layers[1].width
    if width > 1:
        narrower = np.array([first, second * width / (width - 1)])
        total = float(np.sum(effect.values**2))
        kept = effect.values[: width - 1]
        rest = float(np.sum(effect.values[width - 1 :] ** 2))
        gains.append(total - rest - best_shares(kept, narrower, effect.factor).bound)
    alone = effect.factor * s1 / ((1 + first) * (1 + second))
    return max(0.0, float(alone - max(gains) - 1e-12 * alone))
