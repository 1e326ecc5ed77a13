"""Matrix completion by a deep linear network: noise sheds rank, quiet fits what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import RegressorTags
from sklearn.utils.validation import check_is_fitted

from overt._check import InputError, generator, number, plain_array, seed_number, whole
from overt._identifiers import identifiers, index
from overt._intervals import weighted_error
from overt._progress import meter
from overt._types import Array, Floats, Ints, Seed
from overt.decay import layers
from overt.decay.annealing import AnnealedPath, Candidate
from overt.decay.schedule import Schedule
from overt.entries import Entries, observed, pairs
from overt.results import Status

Fitted = tuple[Candidate, list[Floats]]
"""A candidate with its layers."""

Start = Callable[[Entries], AnnealedPath]
"""Random weights for these entries."""


class DeepLinearCompletion(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Complete a matrix with the lowest rank that explains entries held out from the fit.

    The network W_L ... W_1 descends on single entries with weight decay (`overt.decay.simulate`).
    While the decay doubles again and again, SGD's noise makes it jump to lower and lower
    ranks, and it never jumps back ([One-way jumps] Theorem 3.2). From every rank that is met, a
    quiet phase (small steps, hardly any decay) fits the entries, and the held-out ones judge it.
    The lowest rank within `tol` of the best is then fitted again to all entries.

    Parameters
    ----------
    depth
        Number of layers L, at least 3: with 2 the noise sheds no rank.
    width
        Hidden units, the largest rank that can be found; by default min(shape, 20).
    schedule
        "annealing" for the path above, which sets rates and decays from the problem's size; or
        a Schedule (for values divided by their root mean square) to be run as it is.
    restarts
        Fits to all entries from different random weights; the lowest rank whose error is within
        `tol` of the best is kept.
    holdout
        Share of the entries that judge the ranks.
    tol
        A rank is good enough if its held-out mean squared error is at most (1 + tol) times the
        best one plus a thousandth of tol times the values' mean square.
    seed
        Of the weights, the entries' order and the held-out entries; `random_state`, as in
        scikit-learn, is used instead where it is given.
    progress
        Show a bar if this is a terminal.

    Attributes
    ----------
    U_, V_
        Factors of the completed matrix U_ V_' (rows x rank, cols x rank).
    row_ids_, col_ids_
        The identifiers of rows and columns, where the entries came with them.
    rank_, weights_, path_, weight_decay_
        The rank, the layers [W_1, ..., W_L], the candidates met, and the decay of the last noisy
        phase (0 with a Schedule of your own).
    status_
        "finished", or "interrupted" by Ctrl-C, which keeps the best candidate.
    n_steps_
        Steps taken in all.
    """

    def __init__(
        self, depth: int = 3, width: int | None = None, schedule: str | Schedule = "annealing",
        restarts: int = 1, holdout: float = 0.1, tol: float = 0.1, seed: Seed = 0,
        progress: bool = False, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.depth = depth
        self.width = width
        self.schedule = schedule
        self.restarts = restarts
        self.holdout = holdout
        self.tol = tol
        self.seed = seed
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to observed entries.

        X is overt.Entries, scipy sparse (stored entries are observed), a dense array with NaN (or a
        mask) for missing entries, a data frame of three columns (row, column, value; predictions
        are then asked for by identifier), or, with `y`, an (n, 2) array of (row, col) pairs.
        """
        entries = observed(X, y)
        depth = whole("depth", self.depth, 3, layers.MAX_DEPTH)
        width = min(*entries.shape, 20 if self.width is None else whole("width", self.width))
        whole("restarts", self.restarts)
        tol, holdout = number("tol", self.tol), number("holdout", self.holdout)
        if not 0 < holdout < 1:
            raise InputError(f"holdout must be between 0 and 1, got {self.holdout!r}")
        scale = float(np.sqrt(np.mean(entries.values**2)))
        if scale == 0:
            raise InputError("values must not all be 0: there is nothing to fit")
        rng = generator(seed_number(self.seed, self.random_state))
        unit = replace(entries, values=entries.values / scale)
        self.row_ids_, self.col_ids_ = entries.row_ids, entries.col_ids
        self.path_: list[Candidate] = []
        self.status_, self.n_steps_ = Status.FINISHED, 0
        kept: list[Fitted] = []
        try:
            with meter("fit", 1, show=self.progress) as bar:

                def count(steps: int, note: str) -> None:
                    self.n_steps_ += steps
                    bar.advance(0, note=f"{self.n_steps_ / 1e6:.1f}M steps, {note}")

                start = partial(AnnealedPath, depth=depth, width=width, rng=rng, count=count)
                if isinstance(self.schedule, Schedule):
                    self._follow(self.schedule, unit, start, kept)
                elif isinstance(self.schedule, str) and self.schedule == "annealing":
                    self._anneal(unit, *_split(unit, holdout, rng), start, tol, kept)
                else:
                    raise InputError(
                        f"schedule must be 'annealing' or a Schedule, got {self.schedule!r}"
                    )
        except KeyboardInterrupt:
            if not kept:
                raise
            self.status_ = Status.INTERRUPTED
        best, weights = _choose(kept, tol, by="train_error")
        self.weight_decay_ = best.weight_decay
        self.weights_ = [W * scale ** (1 / depth) for W in weights]
        A, rank = layers.product(self.weights_), max(best.rank, 1)
        U, s, Vt = np.linalg.svd(A, full_matrices=False)
        self.rank_ = best.rank
        self.U_, self.V_ = U[:, :rank] * np.sqrt(s[:rank]), Vt[:rank].T * np.sqrt(s[:rank])
        return self

    def fit_triplets(
        self, rows: Any, cols: Any, values: Any, *, shape: tuple[int, int] | None = None
    ) -> Self:
        """Fit to entries given as three arrays."""
        return self.fit(Entries(rows, cols, values, shape))

    def predict(self, rows: Any, cols: Any = None) -> Floats:
        """Return the completed matrix's entries (rows[n], cols[n]).

        `rows` alone may be Entries, or an (n, 2) array or data frame of (row, col) pairs.
        """
        check_is_fitted(self)
        if cols is None:
            rows, cols = _both_sides(rows)
        a = _places("rows", rows, self.row_ids_, len(self.U_))
        b = _places("cols", cols, self.col_ids_, len(self.V_))
        if a.shape != b.shape:
            raise InputError(f"rows and cols must have the same length, got {a.size} and {b.size}")
        return np.asarray(np.sum(self.U_[a] * self.V_[b], axis=-1))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the negative root mean squared error of entries, given as to `fit`."""
        entries = observed(X, y)
        return -weighted_error(self.predict(entries) - entries.values, sample_weight)

    def complete(self, rows: Any = None) -> Floats:
        """Return the dense matrix U_ V_', or some rows of it."""
        check_is_fitted(self)
        if rows is None:
            return np.asarray(self.U_ @ self.V_.T)
        places = _places(
            "rows", np.atleast_1d(plain_array("rows", rows)), self.row_ids_, len(self.U_)
        )
        return np.asarray(self.U_[places] @ self.V_.T)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"
        tags.regressor_tags = RegressorTags()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def _follow(
        self, schedule: Schedule, problem: Entries, start: Start, kept: list[Fitted]
    ) -> None:
        """Run a given schedule as it is."""
        for _ in range(self.restarts):
            path = start(problem)
            for phase in schedule.phases:
                path.run(phase)
            kept.append((path.candidate(0.0, problem, problem), path.weights()))

    def _anneal(
        self, problem: Entries, train: Entries, judge: Entries, start: Start, tol: float,
        kept: list[Fitted],
    ) -> None:  # fmt: skip
        """Find the rank on a part of the entries, then fit it to all of them."""
        path = start(train)
        found: list[Fitted] = []
        for lam in path.decays:
            path.shed(lam)
            rank = path.rank()
            if rank == 0:
                break
            if found and found[-1][0].rank == rank:
                continue
            branch = path.branch()
            branch.settle(lam)
            found.append((branch.candidate(lam, train, judge), branch.weights()))
            self.path_.append(found[-1][0])
        if not found:
            path.settle(path.decays[0])
            found.append((path.candidate(0.0, train, judge), path.weights()))
        best, weights = _choose(found, tol, by="holdout_error")
        kept.append((best, weights))
        full = []
        for _ in range(self.restarts):
            path, lam = _shed_to(best, start(problem))
            path.settle(lam)
            full.append((path.candidate(lam, problem, problem), path.weights()))
        kept[:] = full


def _shed_to(best: Candidate, path: AnnealedPath) -> tuple[AnnealedPath, float]:
    """Shed rank on all entries, at least up to the chosen decay and down to the chosen rank."""
    for lam in path.decays:
        before = path.branch()
        path.shed(lam)
        if path.rank() < best.rank:
            # The noise shed too much at once: go back and drop only what is too much.
            before.truncate(best.rank)
            return before, lam
        if path.rank() == best.rank and lam >= best.weight_decay:
            return path, lam
    path.truncate(best.rank)
    return path, best.weight_decay


def _choose(found: list[Fitted], tol: float, by: str) -> Fitted:
    """Return the lowest rank whose error is within `tol` of the least one."""
    least = min(getattr(candidate, by) for candidate, _ in found)
    good = [pair for pair in found if getattr(pair[0], by) <= (1 + tol) * least + 1e-3 * tol]
    return min(good, key=lambda pair: (pair[0].rank, getattr(pair[0], by)))


def _split(problem: Entries, holdout: float, rng: np.random.Generator) -> tuple[Entries, Entries]:
    """Return (train, judge), each in the order of the entries, and neither of them empty."""
    count = min(max(1, round(holdout * len(problem))), len(problem) - 1)
    if count < 1:
        raise InputError("at least 2 observed entries are needed, got 1")
    order = rng.permutation(len(problem))
    return problem.take(np.sort(order[count:])), problem.take(np.sort(order[:count]))


def _both_sides(given: Any) -> tuple[Array, Array]:
    """Return what the rows and columns of Entries or of pairs are called."""
    if not isinstance(given, Entries):
        return pairs("rows without cols", given)
    rows = np.asarray(given.rows)
    cols = np.asarray(given.cols)
    if given.row_ids is not None:
        rows = given.row_ids[rows]
    if given.col_ids is not None:
        cols = given.col_ids[cols]
    return rows, cols


def _places(name: str, given: Any, ids: Array | None, count: int) -> Ints:
    """Return the indices of rows or columns that were fitted, from identifiers if there are any."""
    places = plain_array(name, given)
    if ids is not None:
        names = identifiers(name, places.ravel())
        if "U" in (names.dtype.kind, ids.dtype.kind):  # compared as they are written
            names, ids = names.astype(str), ids.astype(str)
        order = np.argsort(ids)
        at = order[np.minimum(np.searchsorted(ids, names, sorter=order), count - 1)]
        strange = names[ids[at] != names]
        if len(strange):
            raise InputError(f"{name} must be among those fitted, got {strange[0]!r}")
        return at.reshape(places.shape)
    if places.dtype.kind in "fiu" and places.size and (places.min() < 0 or places.max() >= count):
        raise InputError(f"{name} must lie in 0..{count - 1}, got up to {places.max()}")
    return index(name, places.ravel()).reshape(places.shape)
