"""How low stochastic gradient descent gets at a constant learning rate: a Lyapunov equation.

Near an optimum theta* a step is theta <- theta - eta (H (theta - theta*) + noise), H half the
Hessian of the objective, as steps follow half its gradient, and noise of covariance Sigma / batch.
Where descent rests in distribution, its covariance S solves

    H S + S H - eta H S H = eta Sigma / batch,

and the objective lies on average tr(H S) = sum_i eta Sigma_ii / (batch (2 - eta h_i)) above the
optimum, Sigma_ii in the eigenvectors of H. Directions along which optima form a continuum have
h_i = 0: descent wanders there at no cost. Sigma is measured, by single steps of the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats, Seed
from overt.linear import grading
from overt.linear.effect import NoiseEffect
from overt.results import Result

FLAT = 1e-6
"""Share of the largest curvature below which a direction counts as flat."""

LARGEST = 3000
"""Weights up to which the Hessian is formed."""


@dataclass(frozen=True, repr=False, eq=False)
class Floor(Result):
    """Where stochastic gradient descent comes to rest at a constant learning rate.

    Attributes
    ----------
    objective
        The mean objective that is predicted, to first order in the learning rate.
    excess, standard_error
        What noise adds to the optimum's objective, and how well that is known from samples.
    optimum
        The objective at the weights around which descent moves.
    curvature
        The largest curvature h of half the objective: descent diverges if rate * h > 2, and the
        prediction is good if rate * h is small.
    flat
        In how many directions of the weights the objective does not change.
    """

    objective: float
    excess: float
    standard_error: float
    optimum: float
    curvature: float
    flat: int


def floor(
    effect: NoiseEffect,
    weights: Sequence[Floats],
    learning_rate: float,
    batch_size: int = 1,
    samples: int = 4000,
    seed: Seed = 0,
) -> Floor:
    """Return the floor of descent around weights that are a minimum."""
    eta = _check.number("learning_rate", learning_rate, exclusive=True)
    batch, count = _check.whole("batch_size", batch_size), _check.whole("samples", samples, 2)
    size = sum(W.size for W in weights)
    if size > LARGEST:
        raise InputError(f"a floor needs the Hessian of at most {LARGEST} weights, got {size}")
    values, vectors = np.linalg.eigh(half_hessian(effect, weights))
    stiff = values > FLAT * values[-1]
    if eta * values[-1] >= 2:
        raise InputError(
            f"learning_rate must be below {2 / values[-1]:.3g}, beyond which descent diverges from "
            f"the optimum, got {learning_rate}"
        )
    noise = _steps(effect, weights, count, _check.generator(seed)) @ vectors[:, stiff]
    noise -= noise.mean(axis=0)
    costs = noise**2 @ (eta / (batch * (2 - eta * values[stiff]))) * count / (count - 1)
    excess, error = float(costs.mean()), float(costs.std(ddof=1) / np.sqrt(count))
    optimum = grading.objective(effect, *weights)
    flat = int(np.sum(~stiff))
    return Floor(optimum + excess, excess, error, optimum, float(values[-1]), flat)


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
    advance, moves = effect.steps(rng), []
    for _ in range(count):
        moved = [W.copy() for W in weights]
        advance(moved, np.ones(1))
        moves.append(np.concatenate([(W - M).ravel() for W, M in zip(weights, moved, strict=True)]))
    return np.array(moves)
