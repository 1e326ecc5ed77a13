"""Regularization paths from one singular value decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from overt import _check
from overt._check import Bools, Floats, InputError, Ints
from overt._figures import subplots
from overt.linear.bounds import Relaxation, positive
from overt.linear.deep_shares import best_shares, jump_ratio
from overt.linear.network import regression_of, target_or_data
from overt.linear.regression import Regression
from overt.linear.shallow import attains_bound, effect_of
from overt.noise import DropBlock, Dropout, Noise
from overt.results import Result

SMALLEST_NOISE = 1e-15
"""Variance of units below which a network keeps every direction, for bisections."""

LARGEST_NOISE = 1e9
"""Variance per unit of width above which a network keeps one direction."""

PAST_JUMP = 1e-11
"""Relative distance from a jump, so that rounding cannot let one more direction in."""

HALVINGS = 60
"""Of an interval of log lam that is about 50 long: down to rounding."""


@dataclass(frozen=True, repr=False, eq=False)
class RegularizationPath(Result):
    """Exact optima over a range of noises or widths.

    Attributes
    ----------
    drop_probs, widths
        One entry per point; for noises without a drop probability lam / (1 + lam), lam the mean
        relative variance of units.
    objective, rank
        One entry per point.
    spectrum
        Singular values of the optimal map (whitened), points x values.
    attained
        Whether the objective is known to be that of weights, always but for DropBlock with few
        blocks, where it may be a lower bound only.
    """

    drop_probs: Floats
    widths: Ints
    objective: Floats
    rank: Ints
    spectrum: Floats
    attained: Bools

    def plot(self) -> Any:
        """Plot the singular values of the optimal map, and its rank, along the path."""
        over_widths = np.ptp(self.drop_probs) < 1e-9 and np.ptp(self.widths) > 0
        along = self.drop_probs
        name = "drop probability"
        if over_widths:
            along = self.widths.astype(np.float64)
            name = "width"
        figure, axes = subplots(1, 2)
        axes[0][0].plot(along, self.spectrum, marker="." if len(along) < 30 else None)
        axes[0][1].step(along, self.rank, where="post")
        axes[0][0].set(xlabel=name, ylabel="singular values")
        axes[0][1].set(xlabel=name, ylabel="rank", ylim=(0, None))
        axes[0][1].yaxis.get_major_locator().set_params(integer=True)
        return figure


@target_or_data
def path(
    target: Any,
    width: int | Sequence[int],
    drop_probs: float | Sequence[float] | None = None,
    *,
    noise: Noise | Sequence[Noise] | None = None,
    X: Any = None,
    Y: Any = None,
    second_moment: Any = None,
) -> RegularizationPath:
    """Return the exact optimum at each drop probability, width or noise, from one SVD.

    Parameters
    ----------
    target, X, Y, second_moment
        As for `LinearNetwork`.
    width, drop_probs
        Numbers or sequences; all sequences have the same length, one entry per point.
    noise
        In place of drop_probs: any noise with a closed form, or a sequence of them, such as
        [KeepExactly(k) for k in range(1, 9)] or [DropBlock(0.5, b) for b in (1, 2, 4)].

    Examples
    --------
    >>> import numpy as np, overt
    >>> M = np.diag([3.0, 2.0, 1.0])
    >>> overt.path(M, width=3, drop_probs=[0.0, 0.5, 0.9]).rank
    array([3, 2, 1])
    >>> overt.path(M, width=[1, 2, 4, 8], drop_probs=0.5).objective.round(3)
    array([9.5  , 7.25 , 5.143, 3.273])
    """
    noises, widths = _points(width, drop_probs, noise)
    task = regression_of(target, X, Y, second_moment)
    count = len(noises)
    spectra = np.zeros((count, len(task.svd[1])))
    objective = np.empty(count)
    attained = np.ones(count, bool)
    for i, (chosen, d) in enumerate(zip(noises, widths, strict=True)):
        best = _closed_form(chosen, d, task)
        objective[i] = best.bound
        spectra[i, : len(best.spectrum)] = best.spectrum
        if isinstance(chosen, DropBlock):
            blocks = d // chosen.block_size
            attained[i] = attains_bound(best.kept[1], blocks, chosen.block_size)
    rank = np.array([np.sum(positive(spectrum)) for spectrum in spectra])
    points = zip(noises, widths, strict=True)
    lam = np.array([np.mean(noise.relative_variance(d)) for noise, d in points])
    return RegularizationPath(
        lam / (1 + lam), np.array(widths), objective, rank, spectra, attained
    )


def _points(width: Any, drop_probs: Any, noise: Any) -> tuple[list[Noise], list[int]]:
    """Return one noise and one width per point."""
    if (noise is None) == (drop_probs is None):
        raise InputError("give either drop_probs or noise")
    name = "noise"
    if noise is None:
        name = "drop_probs"
        given = np.atleast_1d(_check.plain_array(name, drop_probs)).tolist()
        noise = [
            Dropout(_check.drop_prob(p, f"drop_probs[{i}]"))
            for i, p in enumerate(given)
        ]
    noises = list(noise) if isinstance(noise, (list, tuple)) else [noise]
    widths = np.atleast_1d(_check.plain_array("width", width)).tolist()
    count = max(len(noises), len(widths), 1)
    if {len(noises), len(widths)} - {1, count}:
        raise InputError(
            "sequences must have the same length, one entry per point, got "
            f"{len(widths)} of width, {len(noises)} of {name}"
        )
    noises = noises * (count // len(noises))
    widths = widths * (count // len(widths))
    return noises, [_check.whole("width", d) for d in widths]


def _closed_form(noise: Any, width: int, task: Regression) -> Relaxation:
    """Return the best map under a noise whose cost of a map decides the optimum."""
    effect = effect_of(noise, width, task)
    grid = isinstance(noise, DropBlock) and noise.placement == "grid"
    if effect.closed_form or grid:
        return effect.relaxation
    raise InputError(
        "a path needs noises with a closed form: Dropout, KeepExactly, DropBlock on a grid, "
        f"DropConnect with uncorrelated inputs, exchangeable CovarianceNoise; got {noise!r}"
    )


@target_or_data
def drop_prob_for_rank(
    target: Any,
    width: int | Sequence[int],
    rank: int = 1,
    *,
    X: Any = None,
    Y: Any = None,
    second_moment: Any = None,
) -> float:
    """Return the smallest drop probability whose optimal network has this rank.

    It is found by bisection, as the rank falls while the noise grows. Several widths mean the
    hidden layers of a deep network, all with this probability. With one hidden layer the optimum
    has rank at least j iff lam < r s_j / (h_j - j s_j), h_j = s_1 + ... + s_j, r the width
    (Implicit bias of dropout, Theorem 3.6 solved for lam).

    Examples
    --------
    >>> import numpy as np, overt
    >>> M = np.diag([4.0, 3.0, 2.0, 1.0])
    >>> p = overt.drop_prob_for_rank(M, width=4, rank=2)
    >>> overt.LinearNetwork(M, 4, overt.Dropout(p)).solve().rank
    2
    """
    widths = _check.widths(width)
    per_unit = 1 / np.array(widths, dtype=float)
    rank = _check.whole("rank", rank)
    s = regression_of(target, X, Y, second_moment).svd[1]
    s = s[positive(s)][: min(widths)]
    if len(s) == 0:
        raise InputError(f"rank must be 0 for a target that is zero, got {rank}")
    if rank > len(s):
        raise InputError(
            f"rank must be at most {len(s)} for this target and width, got {rank}"
        )
    if rank == len(s):
        return 0.0

    def optimal_rank(lam: float) -> int:
        return best_shares(s, lam * per_unit).rank

    low = np.log(SMALLEST_NOISE)
    high = np.log(max(widths) * LARGEST_NOISE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if optimal_rank(np.exp(middle)) > rank:
            low = middle
        else:
            high = middle
    lam = np.exp(high) * (1 + PAST_JUMP)
    reached = optimal_rank(lam)
    if reached != rank:
        above = optimal_rank(np.exp(low))
        raise InputError(
            "rank must be one that the optimum takes for this target and width, such as "
            f"{reached} or {above}, got {rank}"
        )
    return float(lam / (1 + lam))


def rank_jump(widths: Sequence[int], drop_prob: float) -> float:
    """Return s_2 / s_1 above which the optimum of a deep network has rank two, not one.

    All hidden layers have one width and one drop probability. Infinity: rank one is optimal for
    every target.

    Examples
    --------
    >>> import overt
    >>> round(overt.linear.rank_jump((10, 10), 0.5), 4), overt.linear.rank_jump((2, 2), 0.8)
    (0.2555, inf)
    """
    d = _check.widths(widths)
    if len(set(d)) > 1:
        raise InputError(
            f"widths must be equal for the closed form of the jump, got {widths}"
        )
    p = _check.drop_prob(drop_prob)
    return jump_ratio(len(d), p / (1 - p) / d[0])
