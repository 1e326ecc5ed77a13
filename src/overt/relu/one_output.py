"""Dropout after a ReLU, with one output: the optimum over all features, in closed form.

Let q_i >= 0 be what unit i outputs at the N samples. If the layers before can make any such
features, dropout with lam = drop_prob / (1 - drop_prob) on d units and weights u_i minimizes

    |y - sum_i u_i q_i|^2 + lam sum_i u_i^2 |q_i|^2,

and the minimum over all u and q >= 0 is, with y = y_+ - y_- split by sign,

    lam min_(k = 0..d) ( |y_+|^2 / (k + lam) + |y_-|^2 / (d - k + lam) ).

Proof. Let k units have u_i > 0. Their sum P = sum u_i q_i is non-negative, and so is that of the
others, Q = -sum u_i q_i. By Cauchy-Schwarz the penalty is at least
lam (|P|^2 / k + |Q|^2 / (d - k)), with equality if units of one sign share alike. Where P and Q are
both positive, lowering both by the same amount changes no output and costs less. So P = 0 where
y < 0 and Q = 0 where y > 0, and (y - P)^2 + lam P^2 / k is least at P = k y / (k + lam), where it
is lam y^2 / (k + lam).

Units of either sign serve only the samples of that sign: with balanced labels +-1 and even d the
minimum is 2 lam |y|^2 / (d + 2 lam), while features of any sign would reach lam |y|^2 / (d + lam).
A ReLU makes the rate count twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt import _check
from overt._check import Floats, bounded, doubles, whole
from overt.results import Result, Status


@dataclass(frozen=True, repr=False, eq=False)
class OneOutputOptimum(Result):
    """The best features and weights under dropout after a ReLU, for one output.

    Attributes
    ----------
    objective
        Mean over samples of the expected squared error: squared error plus penalty.
    positive_units
        Number of units with a positive weight.
    activations
        Outputs of the units, samples x width, none negative.
    U
        Weights of the last layer, 1 x width.
    prediction
        Outputs of the network without noise, (samples,).
    unsigned_objective
        What features of any sign would reach; a lower bound that a ReLU attains only if all y have
        one sign.
    """

    objective: float
    positive_units: int
    activations: Floats
    U: Floats
    prediction: Floats
    unsigned_objective: float
    status: Status


@bounded
def one_output_optimum(y: Any, width: int, drop_prob: float = 0.5) -> OneOutputOptimum:
    """Return the exact optimum of dropout after a ReLU for the targets y, over all features.

    It is the least objective of any network whose last layer is linear, without a bias, with one
    output, after dropout on `width` ReLU units; a network with too little capacity before them
    stays above it.
    """
    y = doubles("y", y, ndim=1)
    d = whole("width", width)
    probability = _check.drop_prob(drop_prob)
    lam = probability / (1 - probability)
    positive = np.maximum(y, 0)
    negative = np.maximum(-y, 0)
    left = np.ones(d + 1)  # share of the squares that stays with k units of a sign
    left[1:] = lam / (np.arange(1, d + 1) + lam)
    costs = np.sum(positive**2) * left + np.sum(negative**2) * left[::-1]
    best = int(np.argmin(costs))
    is_positive = np.arange(d) < best
    U = np.where(is_positive, 1.0, -1.0)[None]
    activations = np.where(
        is_positive,
        positive[:, None] / (best + lam) if best else 0.0,
        negative[:, None] / (d - best + lam) if best < d else 0.0,
    )
    return OneOutputOptimum(
        objective=float(costs[best]) / len(y),
        positive_units=best,
        activations=activations,
        U=U,
        prediction=activations @ U[0],
        unsigned_objective=lam / (d + lam) * float(np.mean(y**2)),
        status=Status.OPTIMAL,
    )
