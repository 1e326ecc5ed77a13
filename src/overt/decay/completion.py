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

from overt._check import InputError, generator, number, seed_number, whole
from overt._intervals import weighted_error
from overt._progress import meter
from overt._types import Floats, Ints, Seed
from overt.decay import layers
from overt.decay.annealing import AnnealedPath, Candidate
from overt.decay.schedule import Schedule
from overt.entries import Entries, observed
from overt.entries.entries import find_pairs
from overt.entries.identifiers import UNKNOWN, IdentifierIndex, describe_unknown
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

    def predict(self, rows: Any, cols: Any = None, *, keys: str = "auto") -> Floats:
        """Return the completed matrix's entries (rows[n], cols[n]).

        `rows` alone may be Entries, or an (n, 2) array or frame of pairs, as in `fit`. A model that
        was fitted with identifiers is asked by identifiers, any other by indices from 0;
        keys="id" and keys="index" say which explicitly. Rows and columns that were never seen are
        refused: nothing is known of them.
        """
        row_index, col_index = self._sides(keys)
        (a, b), (row_labels, col_labels) = find_pairs(row_index, col_index, rows, cols)
        _refuse_unknown("rows", row_labels, a)
        _refuse_unknown("cols", col_labels, b)
        return np.asarray(np.sum(self.U_[a] * self.V_[b], axis=-1))

    def complete(self, rows: Any = None, *, keys: str = "auto") -> Floats:
        """Return the dense matrix U_ V_', or some rows of it."""
        row_index, _ = self._sides(keys)
        if rows is None:
            return np.asarray(self.U_ @ self.V_.T)
        positions = row_index.find(rows)
        _refuse_unknown("rows", rows, positions)
        return np.asarray(self.U_[positions] @ self.V_.T)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the negative root mean squared error on the entries of X (as in `fit`)."""
        entries = observed(X, y)
        error = self.predict(entries if y is None else X) - entries.values
        return -weighted_error(error, sample_weight)

    def _sides(self, keys: str) -> tuple[IdentifierIndex, IdentifierIndex]:
        check_is_fitted(self)
        row_index = IdentifierIndex("rows", len(self.U_), self.row_ids_)
        col_index = IdentifierIndex("cols", len(self.V_), self.col_ids_)
        return row_index.by(keys), col_index.by(keys)

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


def _refuse_unknown(name: str, labels: Any, positions: Ints) -> None:
    if np.any(positions == UNKNOWN):
        unknown = describe_unknown(name, labels, positions) or "got -1"
        raise InputError(f"{name} must be among those fitted: {unknown}")
