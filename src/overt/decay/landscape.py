"""Local minima of C(A) + lam L sum_i s_i(A)^(2/L), one rank after another, each verified.

[One-way jumps] Theorem 3.1: they are the products of the local minima of the factorized loss
C(W_L ... W_1) + lam |theta|^2. A rank-r minimum is a minimum of the network of width r, which is
small and smooth; so it is searched there, and verified in the network of full width, where its
second derivative must have no negative direction, and no flat one except along the symmetry
W_(l+1) Q', Q W_l and those along which minima of the same loss continue.

If every entry is observed once, all minima are known in closed form (`fully_observed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from overt._check import Floats, InputError, Seed, generator, number, whole
from overt.decay import family, fully_observed, layers
from overt.entries.entries import Entries
from overt.results import Result

MAX_WEIGHTS = 1500
"""Most weights of the full-width network for which second derivatives are formed."""

MAX_WEIGHT_DECAY = 1e100
"""Weight decay beyond which squares of what it multiplies leave the range of floating point."""

KINDS = {-1: "underestimating", 0: "exact", 1: "overestimating"}


@dataclass(frozen=True)
class SearchOptions:
    """Tolerances for values of about size 1, and how long a search lasts."""

    rank: float = 1e-6  # singular values below this share of the largest count as 0
    smallest_value: float = 1e-9  # and those below this
    gradient: float = 1e-8  # where a descent ends
    stationary: float = 1e-9  # largest gradient entry at a verified minimum
    flat: float = 1e-7  # curvatures below this share of the largest count as 0
    near: float = (
        1e-4  # relative distance at which the end of a descent is a known minimum
    )
    same: float = 1e-5  # the same after Newton steps
    same_loss: float = (
        1e-7  # relative difference of losses within a continuum of minima
    )
    fit: float = 1e-10  # C(A) below this share of C(0) is a fit
    # Every fourth descent raises the decay from a small one, which finds other minima.
    ladder_every: int = 4
    # As many minima expected unseen round to none: where the search stops.
    max_expected_unseen: float = 0.5
    max_steps: int = 4000  # of a descent
    max_rounds: int = 6  # of `starts` descents each, at which the search gives up
    max_block: int = (
        10  # rows or columns of which all subsets are tried for a bound on the rank
    )


OPTIONS = SearchOptions()


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
    kind_proved
        Whether that is more than a guess: whether a block observed whole proves that no smaller
        rank fits, or suffices to know on which side of it this rank is.
    isolated, dimension
        False if minima of the same loss continue from it; then `dimension` is that of the set they
        form (as matrices, near this one), and this is one of them.
    verified
        Whether the factorized loss of full width has a vanishing gradient, no negative curvature
        and no flat direction there, except along the symmetry and the set of minima. A closed
        form is a minimum by proof, even where rounding hides it (numbers of very different size).
    gradient, curvature
        Largest gradient entry, and smallest eigenvalue of the second derivative beyond those zeros.
        The curvature is NaN for a closed form with more than 1500 weights, which is proved only.
    proof
        "closed form" if every entry is observed or if it lies on the explicit curve of the 2 x 2
        family, "origin" for rank 0 (a minimum for every lam > 0 if L > 2), otherwise "numeric".
    """

    rank: int
    matrix: Floats
    loss: float
    cost: float
    kind: str
    kind_proved: bool
    isolated: bool
    dimension: int
    verified: bool
    gradient: float
    curvature: float
    proof: str


class Minima(list[Minimum]):
    """Minima by rank, and how well they were searched for.

    Attributes
    ----------
    starts, unseen
        For each rank, how many descents were started in the network of that width, and the
        estimated chance w (w+1) / (n (n-1)) that one more would end where none of these n, which
        ended in w places, has (Boender and Rinnooy Kan 1983; starts as independent samples). Both
        are 0 where the minima are known in closed form.
    """

    starts: dict[int, int]
    unseen: dict[int, float]


def minima(
    problem: Entries,
    depth: int = 3,
    weight_decay: float = 1e-3,
    *,
    starts: int = 192,
    seed: Seed = 0,
    fitting_rank: int | None = None,
    every: bool = False,
) -> Minima:
    """Return the lowest local minimum of each rank that has one, by rank.

    If every entry is observed once, these are all minima, in closed form and for any size. For the
    2 x 2 family from depth 3 on, they are all that are symmetric, in closed form; searches have
    found no others. In all other cases what is returned is verified, but that nothing is missing
    is not proved: `unseen` of the list estimates it, for each rank.

    Parameters
    ----------
    problem
        Observed entries; if some are missing, the full-width network must have at most 1500
        weights.
    depth
        Number of layers L, at least 2. With L = 2 the problem is convex in A: all minima are equal.
    weight_decay
        lam, the coefficient of |theta|^2 (see `overt.decay.schedule` for other conventions).
    starts
        Random starts for each rank, where minima are searched for. As long as half a minimum or
        more is expected to be missing (the classical rule), as many are added, up to six times. On
        15 random problems, other than the benchmark's, 192 found 97 % of what 600 found, and 64
        found 90 %.
    seed
        Of the starts.
    fitting_rank
        The smallest rank that fits, if known; otherwise it is searched (`smallest_fitting_rank`).
    every
        Return all minima found, by rank and then by loss. A rank can have several: the 2 x 2
        family has a second one of rank 1, with a negative missing entry, which never fits. Of
        minima that form a continuum one is returned for each loss and dimension.
    """
    layers.check_entries(problem)
    depth = whole("depth", depth, 2, layers.MAX_DEPTH)
    lam = number("weight_decay", weight_decay, exclusive=True)
    if lam > MAX_WEIGHT_DECAY:
        raise InputError(
            f"weight_decay must be at most {MAX_WEIGHT_DECAY:g}, got {lam:g}"
        )
    starts = whole("starts", starts)
    rng = generator(seed)
    observed = fully_observed.observed_matrix(problem)
    if observed is None:
        _refuse_large(problem, depth)
    if fitting_rank is None:
        fits = smallest_fitting_rank(problem, seed=rng)
        proved = fits if observed is not None else min(fits, _block_rank(problem))
    else:
        fits = proved = whole("fitting_rank", fitting_rank, 0)
    problem, unit = _in_units(problem)
    # A = c B and weights c^(1/L) phi: the loss is c^2 (C(B) + lam c^(2/L - 2) |phi|^2).
    lam *= unit ** (2 / depth - 2)
    ranks = range(1, min(problem.shape) + 1)
    search = Search(problem, depth, lam, (proved, fits), ranks)
    epsilon = family.epsilon_of(problem) if depth > 2 else None
    if observed is not None:
        for rung in fully_observed.ladder(observed / unit, depth, lam):
            m = search.add(rung.matrix, "closed form", rung.rank)
            dimension = rung.dimension
            search.found[-1] = replace(m, isolated=not dimension, dimension=dimension)
    else:
        search.add(np.zeros(problem.shape), "origin")
        for rank in ranks:
            if epsilon is None:
                search.run(rank, starts, rng)
                continue
            for A in family.critical_points(epsilon, depth, lam, rank):
                search.add(A, "closed form")
    found = search.found
    if observed is None:
        found = [m for m in found if m.verified]
    result = Minima()
    for m in sorted(found, key=lambda m: (m.rank, m.loss)):
        if every or not result or m.rank != result[-1].rank:
            result.append(_with_units(m, depth, unit))
    result.starts = search.starts
    result.unseen = search.unseen
    return result


def existence(problem: Entries, depth: int, rank: int) -> float:
    """Return the largest lam for which there is a minimum of this rank; 0 if there is none.

    It is exact, for the 2 x 2 family and for matrices of which every entry is observed once. Other
    problems are refused: `minima` finds what exists at a given lam.
    """
    layers.check_entries(problem)
    depth = whole("depth", depth, 2, layers.MAX_DEPTH)
    rank = whole("rank", rank)
    if rank > min(problem.shape):
        raise InputError(f"rank must be at most {min(problem.shape)}, got {rank}")
    epsilon = family.epsilon_of(problem) if depth > 2 else None
    if epsilon is not None:
        return family.existence(epsilon, depth, rank)
    found = fully_observed.rank_thresholds(problem, depth)
    s = np.append(found.singular_values, 0)
    if depth == 2 and s[rank - 1] == s[rank]:
        return 0.0  # equal singular values are shrunk to 0 at the same time
    return float(found.exists[rank - 1])


def smallest_fitting_rank(problem: Entries, *, starts: int = 8, seed: Seed = 0) -> int:
    """Return the smallest rank for which descent fits the observed entries, C(A) <= 1e-10 C(0).

    inf C over matrices of rank <= r may only be approached at infinity; lam -> 0 goes along. That
    no smaller rank fits is proved if a block observed whole has this rank; otherwise it is a guess,
    from descents that did not fit.
    """
    layers.check_entries(problem)
    starts = whole("starts", starts)
    rng = generator(seed)
    problem, _ = _in_units(_without_repetitions(problem))
    scale = layers.cost(problem, np.zeros(problem.shape))
    if scale == 0:
        return 0
    if family.epsilon_of(problem) is not None:
        return 1
    observed = fully_observed.observed_matrix(problem)
    if observed is not None:
        return int(np.linalg.matrix_rank(observed, rtol=OPTIONS.smallest_value))
    for rank in range(_block_rank(problem), min(problem.shape)):
        for start in random_starts(problem, 2, rank, starts, rng):
            weights = start
            for lam in (1e-3, 1e-5, 1e-7, 1e-9, 0.0):
                weights = descend(problem, weights, lam * scale, 1e-8 * min(1.0, scale))
            if layers.cost(problem, layers.product(weights)) <= OPTIONS.fit * scale:
                return rank
    return min(problem.shape)


class Search:
    """Collects minima from descents in networks of width r.

    `fitting` are the rank below which no matrix fits, and the smallest rank that is known to fit.
    """

    def __init__(
        self,
        problem: Entries,
        depth: int,
        lam: float,
        fitting: tuple[int, int],
        ranks: Iterable[int],
    ) -> None:
        self._problem = problem
        self._depth = depth
        self._lam = lam
        self._fitting = fitting
        self._size = float(np.sqrt(np.mean(problem.values**2))) or 1.0
        self.found: list[Minimum] = []
        self.starts = dict.fromkeys(ranks, 0)
        self.unseen = dict.fromkeys(ranks, 0.0)

    def add(self, A: Floats, proof: str, rank: int | None = None) -> Minimum:
        """Verify a critical point and collect it."""
        how = (self._depth, self._lam, self._fitting, proof, rank)
        self.found.append(verify(self._problem, A, *how))
        return self.found[-1]

    def run(self, width: int, starts: int, rng: np.random.Generator) -> None:
        """Descend in the network of this width until hardly a minimum should be missing.

        n samples of w places: w (n-1) / (n-w-2) places are expected in all, and another one is new
        with probability w (w+1) / (n (n-1)) (Boender and Rinnooy Kan 1983).
        """
        places: set[int] = set()
        n = 0
        for _ in range(OPTIONS.max_rounds):
            for start in random_starts(self._problem, self._depth, width, starts, rng):
                on_ladder = n % OPTIONS.ladder_every == OPTIONS.ladder_every - 1
                places.add(self._end(start, on_ladder))
                n += 1
            w = len(places)
            more = np.inf if n <= w + 2 else w * (n - 1) / (n - w - 2) - w
            if more <= OPTIONS.max_expected_unseen:
                break
        self.starts[width] = n
        self.unseen[width] = 1.0 if n < 2 else min(1.0, w * (w + 1) / (n * (n - 1)))

    def _end(self, weights: layers.Layers, on_ladder: bool) -> int:
        """Return the number of the minimum where a descent ends."""
        tol = OPTIONS.gradient * min(1.0, self._size)
        first = 1e-4 * self._size
        decays = [self._lam]
        if on_ladder and first < self._lam:
            count = 2 + int(4 * np.log10(self._lam / first))
            decays = np.geomspace(first, self._lam, count).tolist()
        for lam in decays:
            weights = descend(self._problem, weights, lam, tol)
        known = self._find(weights, OPTIONS.near)
        if known is None:
            A = layers.product(weights)
            rank = numerical_rank(A)
            balanced = layers.balanced(A, self._depth, max(rank, 1), rank)
            weights = polish(self._problem, balanced, self._lam)
            known = self._find(weights, OPTIONS.same)
        if known is None:
            known = len(self.found)
            self.add(layers.product(weights), "numeric")
        return known

    def _find(self, weights: layers.Layers, tol: float) -> int | None:
        """Return the number of the minimum that is here, or whose continuum passes here."""
        A = layers.product(weights)
        rank = numerical_rank(A)
        loss = layers.loss(self._problem, weights, self._lam)
        for k, m in enumerate(self.found):
            size = np.linalg.norm(m.matrix) or self._size
            if np.linalg.norm(A - m.matrix) <= tol * size:
                return k
            same_loss = abs(loss - m.loss) <= OPTIONS.same_loss * m.loss
            if not m.isolated and m.rank == rank and same_loss:
                return k
        return None


def descend(
    problem: Entries, weights: layers.Layers, lam: float, tol: float = OPTIONS.gradient
) -> list[Floats]:
    """Return where L-BFGS from these weights ends."""
    from overt.decay.descent import lbfgs

    shapes = [W.shape for W in weights]
    sizes = np.array([shapes[0][1], *(m for m, _ in shapes)])
    # One memory layout, so that one kernel is compiled.
    rows = np.ascontiguousarray(problem.rows)
    cols = np.ascontiguousarray(problem.cols)
    values = np.ascontiguousarray(problem.values)
    start = layers.flatten(weights)
    end = lbfgs(start, sizes, rows, cols, values, float(lam), tol, OPTIONS.max_steps)
    return layers.unflatten(end, shapes)


def polish(problem: Entries, weights: layers.Layers, lam: float) -> list[Floats]:
    """Take Newton steps, in the least-norm sense across the symmetry's flat directions."""
    weights = list(weights)
    shapes = [W.shape for W in weights]
    for _ in range(8):
        slope = _largest_slope(problem, weights, lam)
        if slope < 1e-14:
            break
        values, vectors = np.linalg.eigh(layers.hessian(problem, weights, lam))
        if values[0] < -1e-6 * values[-1]:
            break  # a Newton step from here may go to a saddle
        curved = values > 1e-9 * values[-1]
        g = layers.flatten(layers.gradient(problem, weights, lam))
        step = vectors[:, curved] @ (vectors[:, curved].T @ g / values[curved])
        candidate = layers.unflatten(layers.flatten(weights) - step, shapes)
        if _largest_slope(problem, candidate, lam) >= slope:
            break
        weights = candidate
    return weights


def random_starts(
    problem: Entries, depth: int, rank: int, starts: int, rng: np.random.Generator
) -> Iterator[list[Floats]]:
    """Yield weights whose products have about the data's size, a third of it, or three times it."""
    size = (float(np.sqrt(np.mean(problem.values**2))) or 1.0) ** (1 / depth)
    shapes = layers.shapes(problem.shape, depth, rank)
    for k in range(starts):
        scale = size * 3.0 ** ((k % 3 - 1) / depth) / rank ** (0.5 - 0.5 / depth)
        yield [scale * rng.standard_normal(shape) for shape in shapes]


def numerical_rank(A: Floats) -> int:
    """Count the singular values above a millionth of the largest."""
    s = np.linalg.svd(A, compute_uv=False)
    return int(np.sum(s > max(OPTIONS.rank * s[0], OPTIONS.smallest_value)))


def verify(
    problem: Entries,
    A: Floats,
    depth: int,
    lam: float,
    fitting: tuple[int, int],
    proof: str,
    rank: int | None = None,
) -> Minimum:
    """Grade a candidate in the network of full width, from the problem's data alone."""
    proved, fits = fitting
    rank = numerical_rank(A) if rank is None else rank
    width = min(problem.shape)
    weights = layers.balanced(A, depth, width, rank)
    gradient = _largest_slope(problem, weights, lam)
    largest = max(1.0, float(np.abs(problem.values).max()))
    verified = gradient <= OPTIONS.stationary * largest
    curvature = np.nan
    dimension = 0
    if _weight_count(problem, depth) <= MAX_WEIGHTS:
        H = layers.hessian(problem, weights, lam)
        eigenvalues = np.linalg.eigvalsh(H)
        flat = int(np.sum(np.abs(eigenvalues) <= OPTIONS.flat * eigenvalues[-1]))
        # Each hidden layer's r directions can turn inside the width: a Stiefel manifold per layer.
        symmetry = (depth - 1) * (rank * width - rank * (rank + 1) // 2)
        dimension = max(0, flat - symmetry)
        by_size = np.argsort(np.abs(eigenvalues))
        curvature = float(eigenvalues[by_size[symmetry + dimension :]].min())
        verified = verified and curvature > 0
        if verified and dimension:
            verified = _is_continuum(problem, weights, lam, H, dimension)
    cost = layers.cost(problem, A)
    # Without the zeros, whose rounding errors the power would make large.
    s = np.linalg.svd(A, compute_uv=False)[:rank]
    return Minimum(
        rank=rank,
        matrix=A,
        loss=cost + lam * depth * float(np.sum(s ** (2 / depth))),
        cost=cost,
        kind=KINDS[int(np.sign(rank - fits))],
        kind_proved=proved == fits or not proved <= rank <= fits,
        isolated=dimension == 0,
        dimension=dimension,
        verified=bool(verified),
        gradient=gradient,
        curvature=curvature,
        proof=proof,
    )


def _is_continuum(
    problem: Entries, weights: layers.Layers, lam: float, H: Floats, dimension: int
) -> bool:
    """Return whether minima of the same loss continue in all flat directions beyond the symmetry's.

    From a step h in a random one, Newton steps must lead to a critical point of the same loss by a
    way of order h^2; a direction that is flat to second order only takes them back all of h.
    """
    theta = layers.flatten(weights)
    shapes = [W.shape for W in weights]
    values, vectors = np.linalg.eigh(H)
    flat = vectors[:, np.abs(values) <= OPTIONS.flat * values[-1]]
    # The symmetry's directions are those that leave the product as it is.
    changes = [layers.product_change(weights, direction) for direction in flat.T]
    beyond = flat @ np.linalg.svd(np.stack(changes))[0][:, :dimension]
    rng = np.random.default_rng(0)
    before = layers.loss(problem, weights, lam)
    h = 1e-2 * float(np.linalg.norm(theta))
    for _ in range(2):
        direction = beyond @ rng.standard_normal(dimension)
        start = theta + h * direction / np.linalg.norm(direction)
        after = polish(problem, layers.unflatten(start, shapes), lam)
        gradient = _largest_slope(problem, after, lam)
        rise = abs(layers.loss(problem, after, lam) - before)
        way = np.linalg.norm(layers.flatten(after) - start)
        if gradient > OPTIONS.stationary or rise > 1e-9 * before or way > 0.1 * h:
            return False
    return True


def _largest_slope(problem: Entries, weights: layers.Layers, lam: float) -> float:
    """Return the largest entry of the gradient."""
    slopes = layers.gradient(problem, weights, lam)
    return float(np.abs(layers.flatten(slopes)).max())


def _in_units(problem: Entries) -> tuple[Entries, float]:
    """Return the problem with values of about size 1, and the power of two they were divided by.

    Tolerances of the search and of the verification are absolute: without this, minima would depend
    on the unit of the values. A power of two keeps every digit.
    """
    size = float(np.max(np.abs(problem.values)))
    if (
        size == 0 or family.epsilon_of(problem) is not None
    ):  # solved in closed form as it is
        return problem, 1.0
    unit = float(2.0 ** np.round(np.log2(size)))
    return replace(problem, values=problem.values / unit), unit


def _without_repetitions(problem: Entries) -> Entries:
    """Return each observed entry once, with the mean of its values: no matrix fits more."""
    keys = problem.rows * problem.shape[1] + problem.cols
    places, index, counts = np.unique(keys, return_inverse=True, return_counts=True)
    if len(places) == len(problem):
        return problem
    rows, cols = np.divmod(places, problem.shape[1])
    values = np.bincount(index, problem.values) / counts
    return Entries(rows, cols, values, problem.shape)


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
    )


def _block_rank(problem: Entries) -> int:
    """Return the largest rank of a block that is observed whole, where not all values are 0."""
    problem = _without_repetitions(problem)
    A = np.full(problem.shape, np.nan)
    A[problem.rows, problem.cols] = problem.values
    A = A if len(A) <= A.shape[1] else A.T
    best = 1
    sizes = range(2, len(A) + 1) if len(A) <= OPTIONS.max_block else (2, len(A))
    for size in sizes:
        for rows in combinations(range(len(A)), size):
            block = A[list(rows)]
            block = block[:, ~np.isnan(block).any(axis=0)]
            if min(block.shape) > best:
                best = max(best, int(np.linalg.matrix_rank(block, rtol=1e-9)))
    return best


def _refuse_large(problem: Entries, depth: int) -> None:
    count = _weight_count(problem, depth)
    if count > MAX_WEIGHTS:
        raise InputError(
            f"problem is too large to verify minima: {problem.shape} at depth {depth} has {count} "
            f"weights, at most {MAX_WEIGHTS} are accepted"
        )


def _weight_count(problem: Entries, depth: int) -> int:
    shapes = layers.shapes(problem.shape, depth, min(problem.shape))
    return sum(outputs * inputs for outputs, inputs in shapes)
