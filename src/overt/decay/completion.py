"""Matrix completion by a deep linear network: noise sheds rank, quiet fits what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from overt._check import InputError, generator, number, whole
from overt._progress import meter
from overt._types import Floats, Ints, Seed
from overt.decay import layers
from overt.decay.annealing import Candidate, Path, Steps, decays
from overt.decay.problem import Observed
from overt.decay.schedule import Schedule
from overt.results import Status


class DeepLinearCompletion(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Complete a matrix with the lowest rank that explains entries held out from the fit.

    The network W_L ... W_1 descends on single entries with weight decay (`overt.decay.simulate`).
    While the decay doubles again and again, SGD's noise makes it jump to lower and lower
    ranks, and it never jumps back ([One-way jumps] Theorem 3.2). From every rank that is met, a
    quiet phase (small steps, hardly any decay) fits the entries, and the held-out ones judge it.
    The lowest rank within `tolerance` of the best is then fitted again to all entries.

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
        tolerance of the best is kept.
    held_out
        Share of the entries that judge the ranks.
    tolerance
        A rank is good enough if its held-out mean squared error is at most (1 + tolerance) times
        the best one plus a thousandth of tolerance times the values' mean square.
    seed
        Of the weights, the entries' order and the held-out entries.
    progress
        Show a bar if this is a terminal.

    Attributes
    ----------
    U_, V_
        Factors of the completed matrix U_ V_' (rows x rank, cols x rank).
    rank_, weights_, path_, weight_decay_
        The rank, the layers [W_1, ..., W_L], the candidates met, and the decay of the last noisy
        phase (0 with a Schedule of your own).
    status_
        "finished", or "interrupted" by Ctrl-C, which keeps the best candidate.
    n_steps_
        Steps taken in all.
    """

    def __init__(
        self,
        depth: int = 3,
        width: int | None = None,
        schedule: str | Schedule = "annealing",
        restarts: int = 1,
        held_out: float = 0.1,
        tolerance: float = 0.1,
        seed: Seed = 0,
        progress: bool = False,
    ) -> None:
        self.depth = depth
        self.width = width
        self.schedule = schedule
        self.restarts = restarts
        self.held_out = held_out
        self.tolerance = tolerance
        self.seed = seed
        self.progress = progress

    def fit(self, X: Any, y: None = None) -> Self:
        """Fit the stored entries of a sparse matrix, or what is not NaN in a dense one."""
        if hasattr(X, "tocoo"):
            entries = X.tocoo()
            return self._fit(Observed(entries.row, entries.col, entries.data, entries.shape))
        return self._fit(Observed.from_matrix(X))

    def fit_triplets(
        self, rows: Any, cols: Any, values: Any, shape: tuple[int, int] | None = None
    ) -> Self:
        """Fit entries (rows[n], cols[n]); by default the shape is the smallest that holds them."""
        rows, cols = np.asarray(rows), np.asarray(cols)
        if shape is None:
            if rows.size == 0 or cols.size == 0:
                raise InputError("there must be at least one observed entry, got none")
            shape = (int(rows.max()) + 1, int(cols.max()) + 1)
        return self._fit(Observed(rows, cols, values, shape))

    def predict(self, rows: Any, cols: Any) -> Floats:
        """Return the completed matrix's entries (rows[n], cols[n])."""
        check_is_fitted(self)
        rows, cols = np.asarray(rows), np.asarray(cols)
        for name, index, size in (("rows", rows, len(self.U_)), ("cols", cols, len(self.V_))):
            if index.size and (index.min() < 0 or index.max() >= size):
                raise InputError(f"{name} must lie in 0..{size - 1}, got up to {index.max()}")
        return np.asarray(np.sum(self.U_[rows] * self.V_[cols], axis=-1))

    def complete(self) -> Floats:
        """Return the completed matrix U_ V_'."""
        check_is_fitted(self)
        return np.asarray(self.U_ @ self.V_.T)

    def _fit(self, problem: Observed) -> Self:
        depth = whole("depth", self.depth, 3)
        width = min(*problem.shape, 20 if self.width is None else whole("width", self.width))
        whole("restarts", self.restarts)
        tolerance = number("tolerance", self.tolerance)
        held_out = number("held_out", self.held_out)
        if not 0 < held_out < 1:
            raise InputError(f"held_out must be between 0 and 1, got {self.held_out!r}")
        scale = float(np.sqrt(np.mean(problem.values**2)))
        if scale == 0:
            raise InputError("values must not all be 0: there is nothing to fit")
        rng = generator(self.seed)
        values = problem.values / scale
        unit = Observed(problem.rows, problem.cols, values, problem.shape)
        self.status_, self.weight_decay_ = Status.FINISHED, 0.0
        self.path_: list[Candidate] = []
        kept: list[tuple[Candidate, list[Floats]]] = []
        steps = Steps()
        try:
            with meter("fit", 1, show=self.progress) as bar:
                steps.bar = bar
                if isinstance(self.schedule, Schedule):
                    kept += self._as_scheduled(unit, depth, width, rng, steps)
                elif self.schedule == "annealing":
                    self._anneal(unit, depth, width, held_out, tolerance, rng, steps, kept)
                else:
                    raise InputError(
                        f"schedule must be 'annealing' or a Schedule, got {self.schedule!r}"
                    )
        except KeyboardInterrupt:
            if not kept:
                raise
            self.status_ = Status.INTERRUPTED
        best, weights = _choose(kept, tolerance, by="train_error")
        self.weight_decay_, self.n_steps_ = best.weight_decay, steps.taken
        self.weights_ = [W * scale ** (1 / depth) for W in weights]
        A, rank = layers.product(self.weights_), max(best.rank, 1)
        U, s, Vt = np.linalg.svd(A, full_matrices=False)
        self.rank_ = best.rank
        self.U_, self.V_ = U[:, :rank] * np.sqrt(s[:rank]), Vt[:rank].T * np.sqrt(s[:rank])
        return self

    def _as_scheduled(
        self, problem: Observed, depth: int, width: int, rng: np.random.Generator, steps: Steps
    ) -> Iterator[tuple[Candidate, list[Floats]]]:
        assert isinstance(self.schedule, Schedule)  # noqa: S101
        for _ in range(self.restarts):
            path = Path(problem, depth, width, rng, steps)
            for phase in self.schedule.phases:
                path.run(phase)
            yield path.candidate(0.0, problem, problem), path.weights()

    def _anneal(
        self,
        problem: Observed,
        depth: int,
        width: int,
        held_out: float,
        tolerance: float,
        rng: np.random.Generator,
        steps: Steps,
        kept: list[tuple[Candidate, list[Floats]]],
    ) -> None:
        """Find the rank on a part of the entries, then fit it to all of them."""
        train, judge = _split(problem, held_out, rng)
        path = Path(train, depth, width, rng, steps)
        found: list[tuple[Candidate, list[Floats]]] = []
        for lam in decays(problem.shape, depth):
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
            path.settle(decays(problem.shape, depth)[0])
            found.append((path.candidate(0.0, train, judge), path.weights()))
        best, weights = _choose(found, tolerance, by="held_out_error")
        kept.append((best, weights))
        full = []
        for _ in range(self.restarts):
            path, lam = self._shed_to(best, problem, depth, width, rng, steps)
            path.settle(lam)
            full.append((path.candidate(lam, problem, problem), path.weights()))
        kept[:] = full

    def _shed_to(
        self,
        best: Candidate,
        problem: Observed,
        depth: int,
        width: int,
        rng: np.random.Generator,
        steps: Steps,
    ) -> tuple[Path, float]:
        """Shed rank on all entries, at least up to the chosen decay and down to the chosen rank."""
        path = Path(problem, depth, width, rng, steps)
        for lam in decays(problem.shape, depth):
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


def _choose(
    found: list[tuple[Candidate, list[Floats]]], tolerance: float, by: str
) -> tuple[Candidate, list[Floats]]:
    """Return the lowest rank whose error is within tolerance of the least one."""
    least = min(getattr(candidate, by) for candidate, _ in found)
    good = [
        pair for pair in found if getattr(pair[0], by) <= (1 + tolerance) * least + 1e-3 * tolerance
    ]
    return min(good, key=lambda pair: (pair[0].rank, getattr(pair[0], by)))


def _split(
    problem: Observed, held_out: float, rng: np.random.Generator
) -> tuple[Observed, Observed]:
    count = min(max(1, round(held_out * len(problem))), len(problem) - 1)
    if count < 1:
        raise InputError("at least 2 observed entries are needed, got 1")
    order = rng.permutation(len(problem))
    judge, train = np.sort(order[:count]), np.sort(order[count:])
    return _part(problem, train), _part(problem, judge)


def _part(problem: Observed, chosen: Ints) -> Observed:
    return Observed(
        problem.rows[chosen], problem.cols[chosen], problem.values[chosen], problem.shape
    )
