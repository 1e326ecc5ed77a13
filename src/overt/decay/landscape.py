"""Local minima of C(A) + lam L sum_i s_i(A)^(2/L), one rank after another, each verified.

[One-way jumps] Theorem 3.1: they are the products of the local minima of the factorized loss
C(W_L ... W_1) + lam |theta|^2. A rank-r minimum is a minimum of the network of width r, which is
small and smooth; so it is found there by descent from many starts and by following known minima
while lam grows, and verified in the network of full width, where its second derivative must have
no negative direction and no flat one but those of the symmetry W_(l+1) Q', Q W_l.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from overt._check import InputError, generator, number, whole
from overt._types import Floats, Seed
from overt.decay import family, layers
from overt.entries import Entries
from overt.results import Result
from overt.spectral import factorization_cost

LARGEST = 1500
"""Most weights of the full-width network for which second derivatives are formed."""

_KINDS = {-1: "underestimating", 0: "exact", 1: "overestimating"}
_RANK = 1e-6  # singular values below this fraction of the largest count as zero
_SAME = 1e-5  # relative distance at which two matrices are the same minimum
_STATIONARY = 1e-9
_FIT = 1e-10  # C(A) below this fraction of C(0) is a fit


@dataclass(frozen=True, repr=False, eq=False)
class Minimum(Result):
    """A local minimum of the regularized loss.

    Attributes
    ----------
    rank, matrix
        The minimum.
    loss, cost
        C(A) + lam L sum s^(2/L), and C(A) alone.
    kind
        "underestimating", "exact" or "overestimating": its rank against the smallest rank that
        fits the observed entries.
    verified
        Whether the factorized loss of full width has a vanishing gradient, no negative curvature
        and no flat direction beyond the symmetry there: a strict minimum up to symmetry.
    gradient, curvature, flat
        Largest gradient entry, smallest eigenvalue of the second derivative beyond the symmetry's
        zeros, and the number of flat directions beyond the symmetry's.
    imbalance
        max_l |W_l W_l' - W_(l+1)' W_(l+1)|; 0 at critical points.
    proof
        "closed form" if it lies on the explicit curve of the 2 x 2 family, "origin" for rank 0
        (a minimum for every lam > 0 if L > 2), otherwise "numeric".
    """

    rank: int
    matrix: Floats
    loss: float
    cost: float
    kind: str
    verified: bool
    gradient: float
    curvature: float
    flat: int
    imbalance: float
    proof: str


def minima(
    problem: Entries,
    depth: int = 3,
    weight_decay: float = 1e-3,
    *,
    starts: int = 8,
    seed: Seed = 0,
    fitting_rank: int | None = None,
    every: bool = False,
) -> list[Minimum]:
    """Return the lowest local minimum of each rank that has one, by rank.

    Parameters
    ----------
    problem
        Observed entries; the full-width network must have at most 1500 weights.
    depth
        Number of layers L, at least 2. With L = 2 the problem is convex in A: one minimum.
    weight_decay
        lam, the coefficient of |theta|^2 (see `overt.decay.schedule` for other conventions).
    starts
        Random starts for each rank and for each of two ways of starting.
    seed
        Of the starts.
    fitting_rank
        The smallest rank that fits, if known; otherwise it is searched (`smallest_fitting_rank`).
    every
        Return all minima found, by rank and then by loss. A rank can have several: the 2 x 2
        family has a second one of rank 1, with a negative missing entry, which never fits.

    What is returned is verified; that nothing is missing is not proved, except for the symmetric
    minima of the 2 x 2 family.
    """
    depth, lam = _checked(problem, depth), number("weight_decay", weight_decay, exclusive=True)
    whole("starts", starts)
    rng = generator(seed)
    if fitting_rank is None:
        fitting_rank = smallest_fitting_rank(problem, starts=starts, seed=rng)
    found = [_verify(problem, np.zeros(problem.shape), depth, lam, fitting_rank, "origin")]
    epsilon = family.epsilon_of(problem) if depth > 2 else None
    for rank in range(1, min(problem.shape) + 1):
        exact = [] if epsilon is None else family.critical_points(epsilon, depth, lam, rank)
        level: list[Minimum] = []
        for A in [*exact, *_search(problem, depth, lam, rank, starts, rng)]:
            if _rank(A) == rank and not _member(A, [m.matrix for m in level]):
                proof = "closed form" if _member(A, exact) else "numeric"
                level.append(_verify(problem, A, depth, lam, fitting_rank, proof))
        level = sorted((m for m in level if m.verified), key=lambda m: m.loss)
        found += level if every else level[:1]
    return [m for m in found if m.verified]


def existence(
    problem: Entries,
    depth: int,
    rank: int,
    *,
    smallest: float = 1e-4,
    tol: float = 1e-4,
    starts: int = 8,
    seed: Seed = 0,
) -> float:
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
    found = minima(
        problem, depth, smallest, starts=starts, seed=seed, fitting_rank=rank, every=True
    )
    branches = [m.matrix for m in found if m.rank == rank]
    return max((_follow(problem, depth, A, rank, smallest, tol) for A in branches), default=0)


def smallest_fitting_rank(problem: Entries, *, starts: int = 8, seed: Seed = 0) -> int:
    """Return the smallest rank for which descent fits the observed entries.

    inf C over matrices of rank <= r may only be approached at infinity; lam -> 0 goes along. A fit
    is a proof that the smallest rank is at most this; that no smaller one fits is observed.
    """
    rng, scale = generator(seed), layers.cost(problem, np.zeros(problem.shape))
    if scale == 0:
        return 0
    if family.epsilon_of(problem) is not None:
        return 1
    for rank in range(1, min(problem.shape)):
        for start in _random_starts(problem, 2, rank, starts, rng):
            weights = start
            for lam in (1e-3, 1e-5, 1e-7, 1e-9, 0.0):
                weights = _descend(problem, weights, lam * scale)
            if layers.cost(problem, layers.product(weights)) <= _FIT * scale:
                return rank
    return min(problem.shape)


def _search(
    problem: Entries, depth: int, lam: float, rank: int, starts: int, rng: np.random.Generator
) -> Iterator[Floats]:
    """Yield products of rank-`rank` critical points reached by descent in the width-r network."""
    scale = float(np.sqrt(np.mean(problem.values**2))) or 1.0
    first = min(lam, 1e-4 * scale)
    ladder = np.geomspace(first, lam, 2 + int(4 * np.log10(lam / first)) if lam > first else 1)
    for start in _random_starts(problem, depth, rank, starts, rng):
        yield layers.product(_polish(problem, _descend(problem, start, lam), lam))
    seen: list[Floats] = []
    for start in _random_starts(problem, depth, rank, starts, rng):
        weights = _descend(problem, start, ladder[0])
        if _member(layers.product(weights), seen):
            continue
        seen.append(layers.product(weights))
        for step in ladder:
            weights = _polish(problem, weights, step)
        yield layers.product(weights)


def _follow(problem: Entries, depth: int, A: Floats, rank: int, low: float, tol: float) -> float:
    """Return the largest lam to which the minimum A, known at lam = low, can be followed."""
    growth = 0.1
    while growth > tol:
        lam = low * (1 + growth)
        # Newton steps stay near the branch; descent may leap over the barrier beside it.
        B = layers.product(_polish(problem, layers.balanced(A, depth, rank, rank), lam))
        if _rank(B) == rank and _verify(problem, B, depth, lam, rank, "numeric").verified:
            low, A, growth = lam, B, min(2 * growth, 0.2)
        else:
            growth /= 2
    return low


def _descend(problem: Entries, weights: layers.Layers, lam: float) -> list[Floats]:
    shapes = [(W.shape[0], W.shape[1]) for W in weights]

    def objective(theta: Floats) -> tuple[float, Floats]:
        W = layers.unflatten(theta, shapes)
        return layers.loss(problem, W, lam), layers.flatten(layers.gradient(problem, W, lam))

    start, options = layers.flatten(weights), {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-8}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return layers.unflatten(found.x, shapes)


def _polish(problem: Entries, weights: layers.Layers, lam: float) -> list[Floats]:
    """Take Newton steps, in the least-norm sense across the symmetry's flat directions."""
    shapes = [(W.shape[0], W.shape[1]) for W in weights]
    theta = layers.flatten(weights)
    for _ in range(8):
        W = layers.unflatten(theta, shapes)
        g = layers.flatten(layers.gradient(problem, W, lam))
        if np.abs(g).max() < 1e-14:
            break
        values, vectors = np.linalg.eigh(layers.hessian(problem, W, lam))
        if values[0] < -1e-6 * values[-1]:
            break  # a Newton step from here may go to a saddle
        inverse = np.where(values > 1e-9 * values[-1], 1 / np.maximum(values, 1e-300), 0)
        candidate = theta - vectors @ (inverse * (vectors.T @ g))
        after = layers.gradient(problem, layers.unflatten(candidate, shapes), lam)
        if np.abs(layers.flatten(after)).max() >= np.abs(g).max():
            break
        theta = candidate
    return layers.unflatten(theta, shapes)


def _verify(
    problem: Entries, A: Floats, depth: int, lam: float, fitting_rank: int, proof: str
) -> Minimum:
    """Grade a candidate in the network of full width, from the problem's data alone."""
    rank, width = _rank(A), min(problem.shape)
    weights = layers.balanced(A, depth, width, rank)
    gradient = float(np.abs(layers.flatten(layers.gradient(problem, weights, lam))).max())
    eigenvalues = np.linalg.eigvalsh(layers.hessian(problem, weights, lam))
    flat = int(np.sum(np.abs(eigenvalues) <= 1e-7 * eigenvalues[-1]))
    # Each hidden layer's r directions can turn inside the width: a Stiefel manifold per layer.
    symmetry = (depth - 1) * (rank * width - rank * (rank + 1) // 2)
    outside = np.delete(eigenvalues, np.argsort(np.abs(eigenvalues))[:symmetry])
    curvature = float(outside.min())
    scale = max(1.0, float(np.abs(problem.values).max()))
    cost, s = layers.cost(problem, A), np.linalg.svd(A, compute_uv=False)
    return Minimum(
        rank=rank,
        matrix=A,
        loss=cost + lam * float(factorization_cost(s, depth)),
        cost=cost,
        kind=_KINDS[int(np.sign(rank - fitting_rank))],
        verified=bool(gradient <= _STATIONARY * scale and curvature > 0 and flat <= symmetry),
        gradient=gradient,
        curvature=curvature,
        flat=max(0, flat - symmetry),
        imbalance=layers.imbalance(weights),
        proof=proof,
    )


def _random_starts(
    problem: Entries, depth: int, rank: int, starts: int, rng: np.random.Generator
) -> Iterator[list[Floats]]:
    """Yield weights whose products have about the data's size, a third of it, or three times it."""
    size = (float(np.sqrt(np.mean(problem.values**2))) or 1.0) ** (1 / depth)
    for k in range(starts):
        scale = size * 3.0 ** ((k % 3 - 1) / depth) / rank ** (0.5 - 0.5 / depth)
        yield [scale * rng.standard_normal(s) for s in layers.shapes(problem.shape, depth, rank)]


def _member(A: Floats, matrices: list[Floats]) -> bool:
    return any(np.linalg.norm(A - B) <= _SAME * np.linalg.norm(B) for B in matrices)


def _rank(A: Floats) -> int:
    s = np.linalg.svd(A, compute_uv=False)
    return int(np.sum(s > max(_RANK * s[0], 1e-9)))


def _checked(problem: Entries, depth: int) -> int:
    layers.check_entries(problem)
    depth, width = whole("depth", depth, 2), min(problem.shape)
    count = sum(m * n for m, n in layers.shapes(problem.shape, depth, width))
    if count > LARGEST:
        raise InputError(
            f"problem is too large to verify minima: {problem.shape} at depth {depth} has {count} "
            f"weights, at most {LARGEST} are accepted"
        )
    return depth
