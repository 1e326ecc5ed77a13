"""Matrix completion by a deep linear network: noise sheds rank, quiet phases fit what is left."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import RegressorTags
from sklearn.utils.validation import check_is_fitted

from overt._check import (
    Floats,
    InputError,
    Ints,
    Seed,
    generator,
    number,
    seed_number,
    whole,
)
from overt.decay import layers
from overt.decay.least_squares import leading_factors, mean_square_residual, refine
from overt.decay.simulation import Weights
from overt.entries.entries import Entries, find_pairs, observed
from overt.entries.identifiers import UNKNOWN, IdentifierIndex, describe_unknown


@dataclass(frozen=True)
class AnnealingOptions:
    """How the annealed path runs; tuned on random matrices of rank 1 to 3 with noise of 0 to .3."""

    doublings: int = 9  # of the weight decay, up to where even rank 1 does not pay
    min_noisy_passes: int = 60  # over the entries, in one noisy phase
    max_noisy_passes: int = 400
    memories: float = (
        3.0  # noisy phases last this many times 1 / (2 eta lam), decay's memory
    )
    warm_up_passes: int = 20
    quiet_passes: int = 150  # in each of the two quiet phases
    quiet_shares: tuple[float, ...] = (
        1 / 30,
        1 / 1000,
    )  # of the weight decay, in quiet phases
    shed: float = 0.01  # singular values below this share of the largest are shed
    max_width: int = 20
    steps_per_call: int = 200_000  # between two looks at Ctrl-C


OPTIONS = AnnealingOptions()


@dataclass(frozen=True)
class Candidate:
    """A quiet fit that branched off the noisy path: its weight decay, rank and errors.

    Errors are mean squares relative to the mean square of what the network descended on: the
    values, or what a dominating rank-one part leaves of them.
    """

    weight_decay: float
    rank: int
    train_error: float
    holdout_error: float


Fitted = tuple[Candidate, Floats]
"""A candidate with its matrix."""


class DeepLinearCompletion(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Complete a matrix with the lowest rank that explains entries left out of the fit.

    The network W_L ... W_1 descends on single entries with weight decay (`overt.decay.simulate`).
    While the decay doubles again and again, SGD's noise makes it jump to lower and lower
    ranks, and it never jumps back ([One-way jumps] Theorem 3.2). From every rank that is met, a
    quiet phase (small steps, hardly any decay) fits the entries, and the entries left out judge it.
    The lowest rank within `tol` of the best is then fitted to all entries by least squares,
    started from that fit; it is 0 where nothing predicts better than 0 does.

    Where one rank-one matrix explains more than nine tenths of the mean square, as the level of
    ratings does, the network descends on what that matrix leaves, and least squares joins the two.

    Parameters
    ----------
    depth
        Number of layers L, at least 3: with 2 the noise sheds no rank.
    width
        Hidden units, the largest rank that can be found; by default min(shape, 20).
    holdout
        Share of the entries that judge the ranks.
    tol
        A rank is good enough if its holdout mean squared error is at most (1 + tol) times the
        best one plus a thousandth of tol times the mean square of what the network descends on.
    seed
        Of the weights, the entries' order and the holdout entries; `random_state`, as in
        scikit-learn, is used instead where it is given.

    Attributes
    ----------
    U_, V_
        Factors of the completed matrix U_ V_' (rows x rank, cols x rank).
    row_ids_, col_ids_
        The identifiers of rows and columns, where the entries came with them.
    rank_, weights_, path_, weight_decay_
        The rank, the layers [W_1, ..., W_L], the candidates met, and the decay at which the noise
        left the chosen one.
    """

    def __init__(
        self,
        depth: int = 3,
        width: int | None = None,
        holdout: float = 0.1,
        tol: float = 0.1,
        seed: Seed = 0,
        random_state: Any = None,
    ) -> None:
        self.depth = depth
        self.width = width
        self.holdout = holdout
        self.tol = tol
        self.seed = seed
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to observed entries.

        X is overt.Entries, scipy sparse (stored entries are observed), a dense array with NaN (or a
        mask) for missing entries, a data frame of three columns (row, column, value; predictions
        are then asked for by identifier), or, with `y`, an (n, 2) array of (row, col) pairs.
        """
        entries = observed(X, y)
        depth = whole("depth", self.depth, 3, layers.MAX_DEPTH)
        width = OPTIONS.max_width if self.width is None else whole("width", self.width)
        width = min(width, *entries.shape)
        number("tol", self.tol)
        holdout = number("holdout", self.holdout)
        if not 0 < holdout < 1:
            raise InputError(f"holdout must be between 0 and 1, got {self.holdout!r}")
        if not np.any(entries.values):
            raise InputError("values must not all be 0: there is nothing to fit")
        rng = generator(seed_number(self.seed, self.random_state))
        train, judge = _split(entries, holdout, rng)
        self.row_ids_ = entries.row_ids
        self.col_ids_ = entries.col_ids
        leading = leading_factors(train)
        if leading is None:
            part = np.zeros(entries.shape)
            scale = _root_mean_square(entries)
        else:
            part = leading[0] @ leading[1].T
            scale = _root_mean_square(_minus(train, part))
        rest = [_minus(half, part, scale) for half in (train, judge)]
        path = AnnealedPath(rest[0], depth, width, rng)
        candidates = annealed_candidates(path, *rest)
        self.path_ = [candidate for candidate, _ in candidates[:-1]]
        best, A = _choose(candidates, self.tol)
        A = part + scale * A
        if leading is not None:
            candidates = refined_candidates(best, A, train, judge, scale)
            self.path_ = [candidate for candidate, _ in candidates]
            best, A = _choose(candidates, self.tol)
        if best.rank:
            U, V = refine(entries, *_factors(A, best.rank))
            A = U @ V.T
        if leading is None:
            A = _zero_unobserved(A, entries)
        self.rank_ = best.rank
        self.weight_decay_ = best.weight_decay
        self.weights_ = layers.balanced(A, depth, width, best.rank)
        self.U_, self.V_ = _factors(A, max(best.rank, 1))
        return self

    def predict(self, rows: Any, cols: Any = None, *, keys: str = "auto") -> Floats:
        """Return the completed matrix's entries (rows[n], cols[n]).

        `rows` alone may be Entries, or an (n, 2) array or frame of pairs, as in `fit`. A model that
        was fitted with identifiers takes identifiers, any other takes indices from 0;
        keys="id" and keys="index" say which explicitly. Rows and columns beyond those of `fit`
        are refused. Those inside without entries are predicted as 0, or as the fitted mean row or
        column where a dominating part was taken off.
        """
        check_is_fitted(self)
        row_index = IdentifierIndex("rows", len(self.U_), self.row_ids_).by(keys)
        col_index = IdentifierIndex("cols", len(self.V_), self.col_ids_).by(keys)
        (a, b), (row_labels, col_labels) = find_pairs(row_index, col_index, rows, cols)
        _refuse_unknown("rows", row_labels, a)
        _refuse_unknown("cols", col_labels, b)
        return np.asarray(np.sum(self.U_[a] * self.V_[b], axis=-1))

    def complete(self) -> Floats:
        """Return the dense matrix U_ V_'."""
        check_is_fitted(self)
        return np.asarray(self.U_ @ self.V_.T)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the negative root mean squared error on the entries of X (as in `fit`)."""
        entries = observed(X, y)
        error = self.predict(entries if y is None else X) - entries.values
        return -float(np.sqrt(np.mean(error**2)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        tags.regressor_tags = RegressorTags()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


def annealed_candidates(
    path: AnnealedPath, train: Entries, judge: Entries
) -> list[Fitted]:
    """Return a quiet fit of each rank that the noisy path meets, and the zero matrix at last."""
    found: list[Fitted] = []
    path.warm_up()
    for lam in path.decays:
        path.shed(lam)
        rank = path.rank()
        if rank == 0:
            break
        if found and found[-1][0].rank == rank:
            continue
        branch = path.branch()
        branch.settle(lam)
        found.append((branch.candidate(lam, train, judge), branch.matrix()))
    # Zero is a candidate, too: values may be noise alone.
    errors = [float(np.mean(part.values**2)) for part in (train, judge)]
    zero = Candidate(path.decays[-1], 0, *errors)
    return [*found, (zero, np.zeros(train.shape))]


def refined_candidates(
    best: Candidate, A: Floats, train: Entries, judge: Entries, scale: float
) -> list[Fitted]:
    """Return least-squares fits of the ranks that A, a leading part and `best`, may have.

    The leading part is not exactly a singular one, so that fewer ranks may do for both.
    """
    found: list[Fitted] = []
    for rank in range(min(best.rank + 1, *A.shape), 0, -1):
        U, V = refine(train, *_factors(A, rank))
        errors = [mean_square_residual(p, U, V) / scale**2 for p in (train, judge)]
        found.append((Candidate(best.weight_decay, rank, *errors), U @ V.T))
    return found


class AnnealedPath:
    """SGD's weights on a problem; rates follow from the problem's size and halve on divergence."""

    def __init__(
        self,
        problem: Entries,
        depth: int,
        width: int,
        rng: np.random.Generator,
    ) -> None:
        self._problem = problem
        self._depth = depth
        self._rng = rng
        shapes = layers.shapes(problem.shape, depth, width)
        self._state = Weights(
            [rng.standard_normal(shape) / np.sqrt(width) for shape in shapes]
        )
        self._rate = 0.5 / curvature(problem.shape, depth)
        self.decays = decay_ladder(problem.shape, depth)

    def branch(self) -> AnnealedPath:
        """Return an independent copy."""
        other = copy(self)
        other._state = self._state.copy()
        return other

    def matrix(self) -> Floats:
        """Return the product of the layers."""
        return layers.product(self._state.layers())

    def rank(self) -> int:
        """Return how many singular values of the product have not been shed."""
        s = np.linalg.svd(self.matrix(), compute_uv=False)
        return int(np.sum(s > max(OPTIONS.shed * s[0], 1e-3)))

    def candidate(self, lam: float, train: Entries, judge: Entries) -> Candidate:
        """Grade the present weights."""
        A = self.matrix()
        train_error = layers.train_error(train, A)
        return Candidate(lam, self.rank(), train_error, layers.train_error(judge, A))

    def warm_up(self) -> None:
        """Take the first steps at a small rate."""
        steps = OPTIONS.warm_up_passes * len(self._problem)
        self.descend(steps, self._rate / 5, self.decays[0])

    def shed(self, lam: float) -> None:
        """Run the noisy phase at this weight decay."""
        n = len(self._problem)
        steps = OPTIONS.memories / (2 * self._rate * lam)
        steps = np.clip(
            steps, OPTIONS.min_noisy_passes * n, OPTIONS.max_noisy_passes * n
        )
        self.descend(int(steps), self._rate, lam)

    def settle(self, lam: float) -> None:
        """Drop what is all but shed, then run the quiet phases that follow a noisy one."""
        width = self._state.F.shape[1]
        layered = layers.balanced(self.matrix(), self._depth, width, self.rank())
        self._state = Weights(layered)
        for share in OPTIONS.quiet_shares:
            steps = OPTIONS.quiet_passes * len(self._problem)
            self.descend(steps, self._rate / 3, lam * share)

    def descend(self, steps: int, rate: float, lam: float) -> None:
        """Take steps; where the iterates diverge, go back and halve the rate."""
        while steps > 0:
            size = min(steps, OPTIONS.steps_per_call)
            before = self._state.copy()
            order = self._rng.integers(len(self._problem), size=size)
            taken = self._state.descend(self._problem, order, rate, lam)
            self._state.fold()
            if taken == size:
                steps -= size
                continue
            if rate < 1e-12:
                raise InputError(
                    f"the iterates grew without bound at the rate {rate:g}"
                )
            self._state = before
            self._rate /= 2
            rate /= 2


def curvature(shape: tuple[int, int], depth: int) -> float:
    """Typical curvature of one entry's loss: (mn/r)^((L-1)/L) r (1/m + 1/n), at rank r = 2.

    For unit entries and r equal singular values s = sqrt(mn/r), row i of the last balanced layer
    has |G_i|^2 = s^(2/L) r/m, the middle ones have norm s^(1/L), and the end layers dominate.
    """
    m, n = shape
    return float((m * n / 2) ** ((depth - 1) / depth) * 2 * (1 / m + 1 / n))


def decay_ladder(shape: tuple[int, int], depth: int) -> list[float]:
    """Weight decays that double up to the one at which rank 1 costs what it explains.

    lam L s^(2/L) = C(0) = 1/2 for unit entries, s = sqrt(mn).
    """
    m, n = shape
    top = 0.5 / (depth * (m * n) ** (1 / depth))
    return [float(top * 2.0**-k) for k in range(OPTIONS.doublings, -1, -1)]


def _root_mean_square(entries: Entries) -> float:
    return float(np.sqrt(np.mean(entries.values**2)))


def _minus(entries: Entries, A: Floats, unit: float = 1.0) -> Entries:
    """Return what a matrix leaves of the entries, in this unit."""
    left = entries.values - A[entries.rows, entries.cols]
    return replace(entries, values=left / unit)


def _zero_unobserved(A: Floats, entries: Entries) -> Floats:
    """Return A with 0 in rows and columns without entries: weight decay's limit, but slow."""
    A = A.copy()
    A[np.bincount(entries.rows, minlength=A.shape[0]) == 0] = 0
    A[:, np.bincount(entries.cols, minlength=A.shape[1]) == 0] = 0
    return A


def _factors(A: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return balanced U, V of this rank with U V' nearest to A."""
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    root = np.sqrt(s[:rank])
    return U[:, :rank] * root, Vt[:rank].T * root


def _choose(found: list[Fitted], tol: float) -> Fitted:
    """Return the lowest rank whose holdout error is within `tol` of the least one."""
    errors = [candidate.holdout_error for candidate, _ in found]
    limit = (1 + tol) * min(errors) + 1e-3 * tol
    good = [k for k, error in enumerate(errors) if error <= limit]
    return found[min(good, key=lambda k: (found[k][0].rank, errors[k]))]


def _split(
    problem: Entries, holdout: float, rng: np.random.Generator
) -> tuple[Entries, Entries]:
    """Return (train, judge), each in the order of the entries, and neither of them empty."""
    count = min(max(1, round(holdout * len(problem))), len(problem) - 1)
    if count < 1:
        raise InputError("at least 2 observed entries are needed, got 1")
    order = rng.permutation(len(problem))
    return problem.take(np.sort(order[count:])), problem.take(np.sort(order[:count]))


def _refuse_unknown(name: str, labels: Any, positions: Ints) -> None:
    if np.any(positions == UNKNOWN):
        unknown = describe_unknown(name, labels, positions)
        raise InputError(f"{name} must be among those fitted: {unknown}")
