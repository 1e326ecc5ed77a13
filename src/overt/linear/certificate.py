"""Certificates: weights against the data of the problem and a bound that holds for all weights.

No code that finds weights calls this module.
"""

from __future__ import annotations

from overt._check import bounded
from overt._types import Floats
from overt.linear.bounds import EXACT, numerical_rank
from overt.linear.effect import Evaluation, NoiseEffect
from overt.results import Certificate, RankCertificate, Status


@bounded
def certify(effect: NoiseEffect, *weights: Floats) -> tuple[Certificate, Evaluation]:
    """Return how far the weights are from the global optimum."""
    found = Evaluation(effect, *weights)
    bound = effect.relaxation.bound
    gap = found.objective - bound
    # A bound of zero, as without noise, leaves only the scale of the data to compare with.
    relative = gap / max(bound, effect.least * effect.regression.scale, 1e-300)
    imbalance = found.imbalance
    return Certificate(
        found.objective, bound, gap, relative, imbalance, found.distance
    ), found


def grade(
    effect: NoiseEffect, *weights: Floats
) -> tuple[float, int, Status, Certificate, RankCertificate | None]:
    """Return (objective, rank, status, certificate, rank certificate) of weights.

    The status is "optimal" only where the bound is reached.
    """
    certified, found = certify(effect, *weights)
    optimal = certified.relative_gap <= EXACT
    rank = effect.relaxation.rank if optimal else None
    if rank is None:
        rank = numerical_rank(found.spectrum)
    status = Status.OPTIMAL if optimal else Status.LOWER_BOUND
    ranks = _rank_certificate(effect) if optimal else None
    return found.objective, rank, status, certified, ranks


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
