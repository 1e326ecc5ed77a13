"""The stationary excess of SGD at a constant learning rate, from a Lyapunov equation.

Near an optimum theta* a step is theta <- theta - eta (H (theta - theta*) + noise), H half the
Hessian of the objective, as steps follow half its gradient, and noise of covariance Sigma / batch.
The stationary covariance S of the weights solves

    H S + S H - eta H S H = eta Sigma / batch,

and the objective lies on average tr(H S) = sum_i eta Sigma_ii / (batch (2 - eta h_i)) above the
optimum, Sigma_ii in the eigenvectors of H. Directions along which optima form a continuum have
h_i = 0 and cost nothing. Sigma is estimated from single steps of the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overt import _check
from overt._check import Floats, InputError, Seed
from overt.linear import LinearNetwork, TiedAutoencoder
from overt.linear.network import Evaluation, NoiseEffect
from overt.results import Result

FLAT = 1e-6
"""Share of the largest curvature below which a direction counts as flat."""

MAX_WEIGHTS = 3000
"""Weights up to which the Hessian is formed."""


@dataclass(frozen=True, repr=False, eq=False)
class StationaryExcess(Result):
    """The stationary objective of SGD at a constant learning rate.

    Attributes
    ----------
    objective
        The predicted mean objective, to first order in the learning rate.
    excess, standard_error
        The excess over the optimum, and the standard error that its samples leave.
    optimum
        The objective at the weights around which descent moves.
    curvature
        The largest curvature h of half the objective: descent diverges if rate * h > 2, and the
        prediction is good if rate * h is small.
    flat
        Number of directions of the weights in which the objective does not change.
    """

    objective: float
    excess: float
    standard_error: float
    optimum: float
    curvature: float
    flat: int


def stationary_excess(
    net: LinearNetwork | TiedAutoencoder,
    learning_rate: float,
    *,
    batch_size: int = 1,
    samples: int = 4000,
    seed: Seed = 0,
) -> StationaryExcess:
    """Return how far above the optimum `net.train` stays at a constant learning rate.

    The excess is proportional to the rate and to 1 / batch_size, to first order. It is computed
    at the weights of `net.solve`, from the curvature of the objective and `samples` single steps.

    Examples
    --------
    >>> import numpy as np, overt
    >>> from overt.papers.stationary_excess import stationary_excess
    >>> net = overt.LinearNetwork(np.diag([2.0, 1.0]), 3, overt.Dropout(0.3))
    >>> run = net.train(4000, 0.01, 8, records=np.arange(2000, 4000, 20))
    >>> predicted = stationary_excess(net, 0.01)
    >>> bool(abs(run.objective[:, 1:].mean() / predicted.objective - 1) < 0.1)
    True
    """
    eta = _check.number("learning_rate", learning_rate, exclusive=True)
    batch = _check.whole("batch_size", batch_size)
    count = _check.whole("samples", samples, 2)
    effect = net.effect
    weights = effect.best_weights()
    size = sum(W.size for W in weights)
    if size > MAX_WEIGHTS:
        raise InputError(
            f"the stationary excess needs the Hessian of at most {MAX_WEIGHTS} weights, got {size}"
        )
    values, vectors = np.linalg.eigh(half_hessian(effect, weights))
    curved = values > FLAT * values[-1]
    if eta * values[-1] >= 2:
        raise InputError(
            f"learning_rate must be below {2 / values[-1]:.3g}, beyond which descent diverges from "
            f"the optimum, got {learning_rate}"
        )
    noise = _steps(effect, weights, count, _check.generator(seed)) @ vectors[:, curved]
    noise -= noise.mean(axis=0)
    costs = (
        noise**2 @ (eta / (batch * (2 - eta * values[curved]))) * count / (count - 1)
    )
    excess = float(costs.mean())
    error = float(costs.std(ddof=1) / np.sqrt(count))
    optimum = Evaluation(effect, *weights).objective
    flat = int(np.sum(~curved))
    return StationaryExcess(
        optimum + excess, excess, error, optimum, float(values[-1]), flat
    )


def half_hessian(effect: NoiseEffect, weights: Sequence[Floats]) -> Floats:
    """Return half the Hessian of the objective, weights flattened one after another.

    Gradients of two-layer networks are cubic, for which these differences are exact.
    """
    theta = np.concatenate([W.ravel() for W in weights])
    cuts = np.cumsum([W.size for W in weights])[:-1]
    step = 0.05 * (float(np.sqrt(np.mean(theta**2))) or 1.0)

    def gradient(at: Floats) -> Floats:
        parts = zip(np.split(at, cuts), weights, strict=True)
        _, gradients = effect.value(*(part.reshape(W.shape) for part, W in parts))
        return np.concatenate([G.ravel() for G in gradients]) / 2

    rows = []
    for e in step * np.eye(len(theta)):
        near, far = (gradient(theta + k * e) - gradient(theta - k * e) for k in (1, 2))
        rows.append((8 * near - far) / (12 * step))
    H = np.array(rows)
    return np.asarray((H + H.T) / 2)


def _steps(
    effect: NoiseEffect, weights: Sequence[Floats], count: int, rng: np.random.Generator
) -> Floats:
    """Return single steps from the weights at rate 1, one a row."""
    advance = effect.steps(rng)
    moves = []
    for _ in range(count):
        moved = [W.copy() for W in weights]
        advance(moved, np.ones(1))
        moves.append(
            np.concatenate(
                [(W - M).ravel() for W, M in zip(weights, moved, strict=True)]
            )
        )
    return np.array(moves)
