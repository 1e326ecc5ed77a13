"""The Rademacher complexity of F_alpha by Monte Carlo, beside the bounds of Theorems 12 and 13."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt._check import InputError, generator, number, whole
from overt._types import Floats, Seed
from overt.papers import relu_plane as plane
from overt.papers.relu_retention import points, probabilities, retentivity, whiten
from overt.relu.bounds import rademacher_lower, rademacher_upper
from overt.results import Result


@dataclass(frozen=True, repr=False, eq=False)
class Complexity(Result):
    """R_S(F_alpha) = E sup_f (1/n) sum_i zeta_i f(x_i), estimated and bounded.

    Attributes
    ----------
    value, standard_error
        Mean over sampled signs zeta of the largest correlation found, and its error.
    exact
        Whether the supremum of every sample is exact (one and two dimensions). If not it comes from
        local search, so `value` errs on the small side.
    lower, upper
        Theorem 13 and Theorem 12, the latter with the proved side of the retentivity; infinite
        where that is 0.
    retentivity
        The beta in `upper`.
    """

    value: float
    standard_error: float
    exact: bool
    lower: float
    upper: float
    retentivity: float
    alpha: float
    n: int
    draws: int


def rademacher(
    X: Floats,
    alpha: float = 1.0,
    *,
    sample: Any = None,
    weights: Any = None,
    draws: int = 200,
    starts: int = 32,
    seed: Seed = 0,
) -> Complexity:
    """R_S(F_alpha) = (alpha/n) E max_v |sum_i zeta_i sigma(v.x_i)| / sqrt(E sigma(v.x)^2).

    The supremum over networks of any width is attained by a single unit, since a network is a
    combination of units whose flows sum to at most alpha. So the class is searched whole.

    Parameters
    ----------
    X, weights
        Points of the inputs' law and their weights (equal if None).
    sample
        Which rows of X the sample S holds; each once if None.
    draws
        Number of sign vectors zeta.
    starts
        Directions from which each supremum is searched, in more than two dimensions.
    """
    X = points(X)
    whole("starts", starts)
    alpha, rng = number("alpha", alpha), generator(seed)
    p = probabilities(weights, len(X))
    chosen = np.arange(len(X)) if sample is None else np.asarray(sample)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not len(chosen):
        raise InputError(
            "sample must be a one-dimensional list of row numbers of X, not empty"
        )
    if chosen.min() < 0 or chosen.max() >= len(X) or p[chosen].min() == 0:
        raise InputError(
            "sample must hold row numbers of X, of rows with positive weight"
        )
    Z, n = whiten(X, p), len(chosen)
    counts = _signed_counts(chosen, len(X), whole("draws", draws, 2), rng)
    if Z.shape[1] <= 2:
        # A second coordinate of 0 leaves one-dimensional inputs as they are.
        suprema = plane.largest_correlation(
            np.pad(Z, ((0, 0), (0, 2 - Z.shape[1]))), p, counts
        )
    else:
        suprema = np.array([_search(Z, p, c, starts, rng) for c in counts])
    norm = float(np.linalg.norm(Z[chosen]))
    beta = retentivity(X, weights).lower
    scale = alpha / n
    return Complexity(
        scale * float(suprema.mean()),
        scale * float(suprema.std(ddof=1)) / np.sqrt(draws),
        Z.shape[1] <= 2,
        rademacher_lower(alpha, norm, n),
        rademacher_upper(alpha, norm, n, beta),
        beta,
        alpha,
        n,
        draws,
    )


def _signed_counts(
    chosen: Any, size: int, draws: int, rng: np.random.Generator
) -> Floats:
    """Return for each sample the sum of the signs that fall on each row of X: (draws, rows)."""
    counts = np.zeros((size, draws))
    np.add.at(counts, chosen, rng.choice((-1.0, 1.0), size=(draws, len(chosen))).T)
    return np.ascontiguousarray(counts.T)


def _search(
    Z: Floats,
    p: Floats,
    c: Floats,
    starts: int,
    rng: np.random.Generator,
    steps: int = 40,
) -> float:
    """Return the best |sum_i c_i sigma(v.z_i)| / sqrt(E sigma(v.z)^2) found from many starts.

    With the active set of v fixed the maximizer is M^+ b; v moves towards it as far as that helps.
    """
    rank = Z.shape[1]
    pole = (c[:, None] * Z).sum(0)
    V = np.concatenate([rng.normal(size=(starts, rank)), [pole, -pole]])

    def ratio(V: Floats) -> tuple[Floats, Floats, Floats]:
        S = V @ Z.T
        A = (S > 0).astype(np.float64)
        S *= A
        spread = (S * S) @ p
        along = S @ c
        return along / np.sqrt(np.where(spread > 1e-14, spread, np.inf)), A, along

    value, A, along = ratio(V)
    for _ in range(steps):
        b = np.sign(along)[:, None] * ((A * c) @ Z)
        M = np.einsum("kn,ni,nj->kij", A * p, Z, Z, optimize=True)
        peak = np.linalg.solve(M + 1e-10 * np.eye(rank), b[..., None])[..., 0]
        length = np.linalg.norm(peak, axis=1, keepdims=True)
        peak = peak / np.where(length > 0, length, 1)
        V = V / np.linalg.norm(V, axis=1, keepdims=True)
        improved = np.zeros(len(V), dtype=bool)
        for step in (1.0, 0.5, 0.2, 0.05):
            trial = np.where(improved[:, None], V, V + step * (peak - V))
            new, A_new, along_new = ratio(trial)
            better = ~improved & (np.abs(new) > np.abs(value) * (1 + 1e-10))
            V = np.where(better[:, None], trial, V)
            A = np.where(better[:, None], A_new, A)
            value, along = (
                np.where(better, new, value),
                np.where(better, along_new, along),
            )
            improved |= better
        if not improved.any():
            break
    return float(np.abs(value).max())
