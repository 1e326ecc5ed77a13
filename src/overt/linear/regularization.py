"""The regularization path of dropout from one singular value decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats, Ints
from overt.linear.arguments import regression, target_or_data
from overt.linear.bounds import positive, shrink, spectral_bound
from overt.noise import Dropout
from overt.results import Result
from overt.spectral import induced

EQUAL = 1e-13
"""Share of the largest singular value by which two equal ones may differ."""


@dataclass(frozen=True, repr=False, eq=False)
class RegularizationPath(Result):
    """Exact optima over a range of drop probabilities.

    Attributes
    ----------
    drop_probs, objective, rank
        One entry per drop probability.
    spectrum
        Singular values of the optimal map (whitened), drop probabilities x values.
    """

    drop_probs: Floats
    objective: Floats
    rank: Ints
    spectrum: Floats


@overload
def path(
    target: Any, width: int, drop_probs: Sequence[float], *, second_moment: Any = None
) -> RegularizationPath: ...
@overload
def path(*, X: Any, Y: Any, width: int, drop_probs: Sequence[float]) -> RegularizationPath: ...
@target_or_data
def path(
    target: Any,
    width: int,
    drop_probs: Sequence[float],
    *,
    X: Any = None,
    Y: Any = None,
    second_moment: Any = None,
) -> RegularizationPath:
    """Return the exact optimum of dropout at each drop probability, from one SVD.

    Examples
    --------
    >>> import numpy as np, overt
    >>> overt.path(np.diag([3.0, 2.0, 1.0]), width=3, drop_probs=[0.0, 0.5, 0.9]).rank
    array([3, 2, 1])
    """
    d = _check.whole("width", width)
    probs = [_check.drop_prob(p, f"drop_probs[{i}]") for i, p in enumerate(drop_probs)]
    if not probs:
        raise InputError("drop_probs must hold at least one number in [0, 1), got none")
    task = regression(target, X, Y, second_moment).dense("trace a path")
    s = task.svd[1]
    spectra, objectives = np.zeros((len(probs), len(s))), np.empty(len(probs))
    for i, prob in enumerate(probs):
        envelope, rest = induced(Dropout(prob), d), float(np.sum(s[d:] ** 2))
        spectra[i, :d] = shrink(s[:d], envelope)
        objectives[i] = spectral_bound(s[:d], rest, envelope) + task.residual
    rank = np.array([np.sum(positive(spectrum)) for spectrum in spectra])
    return RegularizationPath(np.array(probs), objectives, rank, spectra)


@overload
def drop_prob_for_rank(
    target: Any, width: int, rank: int = 1, *, second_moment: Any = None
) -> float: ...
@overload
def drop_prob_for_rank(*, X: Any, Y: Any, width: int, rank: int = 1) -> float: ...
@target_or_data
def drop_prob_for_rank(
    target: Any,
    width: int,
    rank: int = 1,
    *,
    X: Any = None,
    Y: Any = None,
    second_moment: Any = None,
) -> float:
    """Return the smallest drop probability whose optimal network has this rank.

    The optimum has rank at least j iff lam < r s_j / (h_j - j s_j), h_j = s_1 + ... + s_j, r the
    width (Implicit bias of dropout, Theorem 3.6 solved for lam).

    Examples
    --------
    >>> import numpy as np, overt
    >>> M = np.diag([4.0, 3.0, 2.0, 1.0])
    >>> p = overt.drop_prob_for_rank(M, width=4, rank=2)
    >>> overt.LinearNetwork(M, 4, overt.Dropout(p)).solve().rank
    2
    """
    d, rank = _check.whole("width", width), _check.whole("rank", rank)
    s = regression(target, X, Y, second_moment).dense("choose a drop probability").svd[1]
    s = s[positive(s)][:d]
    if len(s) == 0:
        raise InputError(f"rank must be 0 for a target that is zero, got {rank}")
    steps, j = -np.diff(s, prepend=s[0]), np.arange(len(s))
    steps[steps <= EQUAL * s[0]] = 0.0  # values that differ by rounding are one value repeated
    s = s[np.maximum.accumulate(np.where(steps > 0, j, 0))]
    with np.errstate(divide="ignore"):  # h_j - j s_j, as a sum of differences
        limits = d * s / np.cumsum(j * steps)  # rank >= j iff lam < limits[j - 1]
    reachable = [i for i in j[1:].tolist() if limits[i] < limits[i - 1]] + [len(s)]
    if rank not in reachable:
        raise InputError(
            f"rank must be one of {', '.join(map(str, reachable))} for this target and width, "
            f"got {rank}"
        )
    if rank == len(s):
        return 0.0
    # Just past the limit, so that rounding cannot let one more direction in.
    lam = min(limits[rank] * (1 + 1e-9), (limits[rank] + limits[rank - 1]) / 2)
    return float(lam / (1 + lam))
