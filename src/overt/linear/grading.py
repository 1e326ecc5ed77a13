"""The grader: weights against the regression's own data and a bound that holds for all weights.

Nothing here is called by what finds weights.
"""

from __future__ import annotations

import numpy as np

from overt._check import bounded
from overt._types import Floats
from overt.linear.bounds import EXACT, numerical_rank
from overt.linear.effect import NoiseEffect
from overt.results import Certificate, RankCertificate, Status


def objective(effect: NoiseEffect, *weights: Floats) -> float:
    """Return the expected squared error under noise, exactly, and what weight decay adds to it."""
    value = effect.regression.loss(*effect.product(*weights)) + effect.penalty(*weights)
    if effect.weight_decay:
        value += effect.weight_decay * sum(float(np.sum(W**2)) for W in weights)
    return value


@bounded
def certificate(effect: NoiseEffect, *weights: Floats) -> Certificate:
    """Return how far the weights are from the global optimum."""
    reached, bound = objective(effect, *weights), effect.relaxation.bound
    gap = reached - bound
    # A bound of zero, as without noise, leaves only the scale of the data to compare with.
    relative = gap / max(bound, effect.least * effect.regression.scale, 1e-300)
    imbalance, distance = effect.imbalance(*weights), _distance(effect, *weights)
    return Certificate(reached, bound, gap, relative, imbalance, distance)


def grade(
    effect: NoiseEffect, *weights: Floats
) -> tuple[float, int, Status, Certificate, RankCertificate | None]:
    """Return (objective, rank, status, certificate, rank certificate) of weights.

    The status is "optimal" only where the bound is reached.
    """
    certified, known = certificate(effect, *weights), effect.relaxation.rank
    if certified.relative_gap > EXACT:
        known, status = None, Status.LOWER_BOUND
    else:
        status = Status.OPTIMAL
    rank = numerical_rank(spectrum(effect, *weights)) if known is None else known
    ranks = None if status is Status.LOWER_BOUND else _rank_certificate(effect)
    return certified.objective, rank, status, certified, ranks


def _rank_certificate(effect: NoiseEffect) -> RankCertificate | None:
    """Return between which ranks every optimum lies, and the bound that excludes lower ones."""
    if effect.rank_range is None:
        return None
    least, most = effect.rank_range
    if least == 0:
        return RankCertificate(least, most)
    if least == 1:  # the zero map
        return RankCertificate(least, most, effect.regression.scale)
    below = effect.limited(least - 1).relaxation.bound
    return RankCertificate(least, most, below)


def spectrum(effect: NoiseEffect, *weights: Floats) -> Floats:
    """Return the singular values of the map in whitened coordinates, from triangular factors."""
    U, P = _whitened(effect, *weights)
    return np.asarray(np.linalg.svd(_triangle(U) @ _triangle(P).T, compute_uv=False))


def _distance(effect: NoiseEffect, *weights: Floats) -> float:
    """|U P' - A|_F to the map A that attains the bound, from the stacked factors."""
    (U, P), best = _whitened(effect, *weights), effect.relaxation
    left = np.hstack([U, best.left * best.spectrum])
    right = np.hstack([P, -best.right])
    return float(np.linalg.norm(_triangle(left) @ _triangle(right).T))


def _whitened(effect: NoiseEffect, *weights: Floats) -> tuple[Floats, Floats]:
    U, V = effect.product(*weights)
    return U, effect.regression.whiten(V)


def _triangle(A: Floats) -> Floats:
    """Return R of the decomposition A = Q R."""
    return np.asarray(np.linalg.qr(A, mode="r"))
