"""Local minima of C(A) + lam L sum_i s_i(A)^(2/L), one rank after another, each verified.

[One-way jumps] Theorem 3.1: they are the products of the local minima of the factorized loss
C(W_L ... W_1) + lam |theta|^2. A rank-r minimum is a minimum of the network of width r, which is
small and smooth; so it is found there (`search.py`), and verified in the network of full width,
where its second derivative must have no negative direction, and no flat one but those of the
symmetry W_(l+1) Q', Q W_l and those along which minima of the same loss go on.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from overt._check import InputError, generator, number, whole
from overt._figures import COLORS, subplots
from overt._types import Floats, Seed
from overt.decay import family, layers
from overt.decay.search import Search, descend, numerical_rank, polish, random_starts
from overt.decay.verification import FittingRank, Minimum, verify
from overt.entries import Entries

LARGEST = 1500
"""Most weights of the full-width network for which second derivatives are formed."""

STRONGEST = 1e100
"""Weight decay beyond which squares of what it multiplies leave the range of floating point."""

_FIT = 1e-10  # C(A) below this fraction of C(0) is a fit
_BLOCKS = 10  # most rows or columns of which all subsets are tried for a bound on the rank


class Minima(list[Minimum]):
    """Minima by rank, and how well they were searched for.

    Attributes
    ----------
    starts, unseen
        For each rank, how many descents were started in the network of that width, and the
        estimated chance w (w+1) / (n (n-1)) that one more would end where none of these n, which
        ended in w places, has (Boender and Rinnooy Kan 1983; starts as independent draws).
    """

    starts: dict[int, int]
    unseen: dict[int, float]

    def plot(self) -> Any:
        """Draw the loss of each minimum over its rank, and its singular values."""
        figure, axes = subplots(1, 2)
        for k, kind in enumerate(dict.fromkeys(m.kind for m in self)):
            chosen = [m for m in self if m.kind == kind]
            axes[0][0].scatter([m.rank for m in chosen], [m.loss for m in chosen], label=kind)
            for m in chosen:
                s = np.linalg.svd(m.matrix, compute_uv=False)
                axes[0][1].plot(range(1, len(s) + 1), s, marker="o", ms=4, color=COLORS[k])
        axes[0][0].set(xlabel="rank", ylabel="loss", xticks=sorted({m.rank for m in self}))
        axes[0][1].set(xlabel="index", ylabel="singular value")
        axes[0][1].xaxis.get_major_locator().set_params(integer=True)
        if self:
            axes[0][0].legend()
        return figure


def minima(
    problem: Entries, depth: int = 3, weight_decay: float = 1e-3, *, starts: int = 192,
    seed: Seed = 0, fitting_rank: int | None = None, every: bool = False,
) -> Minima:  # fmt: skip
    """Return the lowest local minimum of each rank that has one, by rank.

    Parameters
    ----------
    problem
        Observed entries; the full-width network must have at most 1500 weights.
    depth
        Number of layers L, at least 2. With L = 2 the problem is convex in A: all minima are equal.
    weight_decay
        lam, the coefficient of |theta|^2 (see `overt.decay.schedule` for other conventions).
    starts
        Random starts for each rank. As long as half a minimum or more is expected to be missing
        (the classical rule), as many are added, up to six times. On 15 random problems, other than
        those of the benchmark, 192 found 97 per cent of what 600 found, and 64 found 90 per cent.
    seed
        Of the starts.
    fitting_rank
        The smallest rank that fits, if known; otherwise it is searched (`smallest_fitting_rank`).
    every
        Return all minima found, by rank and then by loss. A rank can have several: the 2 x 2
        family has a second one of rank 1, with a negative missing entry, which never fits. Of
        minima that form a continuum one is returned for each loss and dimension.

    What is returned is verified; that nothing is missing is not proved, except for the symmetric
    minima of the 2 x 2 family: `unseen` of the list estimates it, for each rank.
    """
    depth, lam = _checked(problem, depth), number("weight_decay", weight_decay, exclusive=True)
    if lam > STRONGEST:
        raise InputError(f"weight_decay must be at most {STRONGEST:g}, got {lam:g}")
    rng, starts = generator(seed), whole("starts", starts)
    if fitting_rank is None:
        known = smallest_fitting_rank(problem, seed=rng)
    else:
        rank = whole("fitting_rank", fitting_rank, 0)
        known = FittingRank(rank, rank)
    problem, unit = _in_units(problem)
    # A = c B and weights c^(1/L) phi: the loss is c^2 (C(B) + lam c^(2/L - 2) |phi|^2).
    lam *= unit ** (2 / depth - 2)
    epsilon = family.epsilon_of(problem) if depth > 2 else None
    ranks = range(1, min(problem.shape) + 1)
    exact = [] if epsilon is None else [
        A for rank in ranks for A in family.critical_points(epsilon, depth, lam, rank)
    ]  # fmt: skip

    def grade(A: Floats, proof: str) -> Minimum:
        return verify(problem, A, depth, lam, known, proof)

    search = Search(problem, depth, lam, grade)
    search.add(np.zeros(problem.shape), "origin")
    for A in exact:
        search.add(A, "closed form")
    for rank in ranks:
        search.run(rank, starts, rng)
    found = sorted((m for m in search.found if m.verified), key=lambda m: (m.rank, m.loss))
    found = [_with_units(m, depth, unit) for m in found]
    result = Minima(m for k, m in enumerate(found) if every or not k or m.rank != found[k - 1].rank)
    result.starts, result.unseen = search.starts, search.unseen
    return result


def existence(
    problem: Entries, depth: int, rank: int, *, smallest: float = 1e-4, tol: float = 1e-4,
    starts: int = 64, seed: Seed = 0,
) -> float:  # fmt: skip
    """Return the largest lam up to which a minimum of this rank was followed; 0 if there is none.

    Exact for the 2 x 2 family. Otherwise the minima at lam = `smallest` are followed upwards until
    they vanish, to a relative `tol`; minima that appear only at larger lam are not seen.
    """
    depth, rank = _checked(problem, depth), whole("rank", rank)
    if rank > min(problem.shape):
        raise InputError(f"rank must be at most {min(problem.shape)}, got {rank}")
    epsilon = family.epsilon_of(problem) if depth > 2 else None
    if epsilon is not None:
        return family.existence(epsilon, depth, rank)
    problem, unit = _in_units(problem)
    factor = unit ** (2 / depth - 2)
    lam = number("smallest", smallest, exclusive=True) * factor
    found = minima(problem, depth, lam, starts=starts, seed=seed, fitting_rank=rank, every=True)
    branches = [m.matrix for m in found if m.rank == rank]
    largest = [_follow(problem, depth, A, rank, lam, tol) for A in branches]
    return max(largest, default=0) / factor


def smallest_fitting_rank(problem: Entries, *, starts: int = 8, seed: Seed = 0) -> FittingRank:
    """Return the smallest rank for which descent fits the observed entries, C(A) <= 1e-10 C(0).

    inf C over matrices of rank <= r may only be approached at infinity; lam -> 0 goes along. That
    no smaller rank fits is proved if a block observed whole has this rank; otherwise it is a guess,
    from descents that did not fit, and `.proved` and the printed form say so.
    """
    layers.check_entries(problem)
    problem, _ = _in_units(problem)
    rng, scale = generator(seed), layers.cost(problem, np.zeros(problem.shape))
    starts = whole("starts", starts)
    if scale == 0:
        return FittingRank(0, 0)
    least = _block_rank(problem)
    for rank in range(least, min(problem.shape)):
        for start in random_starts(problem, 2, rank, starts, rng):
            weights = start
            for lam in (1e-3, 1e-5, 1e-7, 1e-9, 0.0):
                weights = descend(problem, weights, lam * scale, 1e-8 * min(1.0, scale))
            if layers.cost(problem, layers.product(weights)) <= _FIT * scale:
                return FittingRank(rank, least)
    return FittingRank(min(problem.shape), least)


def _in_units(problem: Entries) -> tuple[Entries, float]:
    """Return the problem with values of about size 1, and the power of two they were divided by.

    Tolerances of the search and of the verification are absolute: without this, minima would depend
    on the unit of the values. A power of two keeps every digit.
    """
    size = float(np.max(np.abs(problem.values)))
    if size == 0 or family.epsilon_of(problem) is not None:  # solved in closed form as it is
        return problem, 1.0
    unit = float(2.0 ** np.round(np.log2(size)))
    return replace(problem, values=problem.values / unit), unit


def _with_units(minimum: Minimum, depth: int, unit: float) -> Minimum:
    """Return a minimum of the problem that was divided by `unit`, in units of the values."""
    weight = unit ** (1 / depth)
    return replace(
        minimum,
        matrix=minimum.matrix * unit,
        loss=minimum.loss * unit**2,
        cost=minimum.cost * unit**2,
        gradient=minimum.gradient * unit**2 / weight,
        curvature=minimum.curvature * unit**2 / weight**2,
        imbalance=minimum.imbalance * weight**2,
    )


def _block_rank(problem: Entries) -> int:
    """Return the largest rank of a block that is observed whole, where not all values are 0."""
    A = np.full(problem.shape, np.nan)
    A[problem.rows, problem.cols] = problem.values
    A = A if len(A) <= A.shape[1] else A.T
    best, sizes = 1, range(2, len(A) + 1) if len(A) <= _BLOCKS else (2, len(A))
    for size in sizes:
        for rows in combinations(range(len(A)), size):
            block = A[list(rows)]
            block = block[:, ~np.isnan(block).any(axis=0)]
            if min(block.shape) > best:
                best = max(best, int(np.linalg.matrix_rank(block, rtol=1e-9)))
    return best


def _follow(problem: Entries, depth: int, A: Floats, rank: int, low: float, tol: float) -> float:
    """Return the largest lam to which the minimum A, known at lam = low, can be followed."""
    growth = 0.1
    while growth > tol:
        lam = low * (1 + growth)
        # Newton steps stay near the branch; descent may leap over the barrier beside it.
        B = layers.product(polish(problem, layers.balanced(A, depth, rank, rank), lam))
        known = FittingRank(rank)
        if numerical_rank(B) == rank and verify(problem, B, depth, lam, known, "").verified:
            low, A, growth = lam, B, min(2 * growth, 0.2)
        else:
            growth /= 2
    return low


def _checked(problem: Entries, depth: int) -> int:
    layers.check_entries(problem)
    depth, width = whole("depth", depth, 2, layers.MAX_DEPTH), min(problem.shape)
    count = sum(m * n for m, n in layers.shapes(problem.shape, depth, width))
    if count > LARGEST:
        raise InputError(
            f"problem is too large to verify minima: {problem.shape} at depth {depth} has {count} "
            f"weights, at most {LARGEST} are accepted"
        )
    return depth
