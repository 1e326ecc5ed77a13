"""SGD with replacement on single entries of a completion problem, for many seeds at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from overt._check import InputError, InputTypeError, doubles, number, plain_array, whole
from overt._cluster import checked_engine
from overt._mapping import mapped_seeds
from overt._progress import Meter, meter
from overt._types import Floats, Ints, Seed
from overt.decay import layers
from overt.decay.records import Book, Runs
from overt.decay.schedule import Schedule
from overt.entries import Entries

_PIECE = 20_000  # steps between two looks at whether the run should stop


def simulate(
    problem: Entries,
    depth: int = 3,
    width: int = 100,
    schedule: Schedule | None = None,
    seeds: int | Sequence[int] = 1,
    init: float | Sequence[Any] = 1.0,
    records: int | Sequence[int] = 201,
    *,
    seed: Seed = 0,
    alpha: float = 0.1,
    balance: bool = True,
    n_jobs: int | None = None,
    progress: bool = True,
    engine: str = "local",
) -> Runs:
    """Run theta <- (1 - 2 eta lam) theta - (eta/2) grad (A_ij - y_ij)^2 on random entries.

    [One-way jumps] 2.3: entries are drawn uniformly with replacement, one per step. See
    `overt.decay.schedule` for the conventions of eta and lam.

    Parameters
    ----------
    problem
        The observed entries.
    depth, width
        Number of layers L (at least 2) and of units in each of the L - 1 hidden layers.
    schedule
        Learning rates and weight decays; by default the annealing of the paper's Figure 1.
    seeds
        How many runs, or the list of their numbers: run k does not depend on the others.
    init
        Weights start as N(0, init^2 / width); or the layers [W_1, ..., W_L] themselves, each
        outputs x inputs, or seeds x outputs x inputs as in `Runs.weights`.
    records
        How many records, evenly spread from before the first step to after the last, or at which
        steps.
    seed
        Root of all randomness.
    alpha
        Scale of the recorded approximate rank.
    balance
        Record the imbalance too, which costs about width^3 per record.
    n_jobs
        Number of threads, by default one per core; the result does not depend on it.
    progress
        Show a bar if this is a terminal.

    engine
        "local" for threads; "dask" for the current `distributed.Client` or processes started here,
        or a scheduler's address, runs every seed as a task there; the result is the same.

    Ctrl-C returns what was computed, with the status "interrupted" (on a cluster it ends the call).
    """
    layers.check_entries(problem)
    depth, width = whole("depth", depth, 2), whole("width", width)
    schedule = Schedule.annealing() if schedule is None else schedule
    if not isinstance(schedule, Schedule):
        raise InputTypeError(f"schedule must be a Schedule, got {type(schedule).__name__}")
    numbers = _numbers(seeds)
    root = seed_root(seed)
    starts = _starts(problem, depth, width, init, root, numbers)
    threads = os.cpu_count() or 1 if n_jobs is None else whole("n_jobs", n_jobs)
    if checked_engine(engine) != "local":
        how: dict[str, Any] = {"problem": problem, "depth": depth, "width": width, "n_jobs": 1}
        how |= {"schedule": schedule, "records": records, "seed": root, "alpha": alpha}
        how |= {"balance": balance, "progress": False}
        pairs = zip(numbers, starts, strict=True)
        tasks = [(how | {"seeds": [n], "init": W},) for n, W in pairs]
        found: Runs = mapped_seeds(_single, tasks, engine, threads, ("steps", "phases"))
        return found
    runs = [Weights(W) for W in starts]
    draws = [entry_draws(problem, schedule.steps, seed=root, run=n) for n in numbers]
    alpha = number("alpha", alpha, exclusive=True)
    book = Book(problem, depth, _grid(records, schedule.steps), len(runs), alpha, balance)
    with meter("steps", schedule.steps * len(runs), show=progress) as bar:
        finished = _execute(problem, runs, draws, schedule, book, min(threads, len(runs)), bar)
    return book.close([run.layers() for run in runs], schedule, finished)


def _single(how: dict[str, Any]) -> Runs:
    return simulate(**how)


def initial_weights(
    problem: Entries, depth: int, width: int, *, init: float = 1.0, seed: int = 0, run: int = 0
) -> list[Floats]:
    """Return the layers [W_1, ..., W_L] ~ N(0, init^2 / width) with which a run starts."""
    layers.check_entries(problem)
    rng = np.random.default_rng([whole("seed", seed, 0), whole("run", run, 0), 0])
    if number("init", init) > 1e50:
        raise InputError(f"init must be at most 1e50, as layers are multiplied, got {init!r}")
    scale = float(init) / np.sqrt(whole("width", width, maximum=10**6))
    sizes = layers.shapes(problem.shape, whole("depth", depth, 2, layers.DEEPEST), width)
    return [scale * rng.standard_normal(size) for size in sizes]


def entry_draws(problem: Entries, steps: int, *, seed: int = 0, run: int = 0) -> Ints:
    """Return which observed entry each step of a run uses; longer runs begin with shorter ones."""
    layers.check_entries(problem)
    rng = np.random.default_rng([whole("seed", seed, 0), whole("run", run, 0), 1])
    return rng.integers(len(problem), size=whole("steps", steps, 0))


class Weights:
    """A network in the kernel's layout: first layer transposed, middle layers, last layer.

    The end layers are stored divided by one scale, which is all that weight decay has to touch.
    """

    def __init__(self, weights: layers.Layers) -> None:
        width = weights[0].shape[0]
        self.F, self.G = weights[0].T.copy(), np.array(weights[-1], order="C")
        self.M = np.array(weights[1:-1]).reshape(-1, width, width)
        self._scale = np.ones(1)

    def layers(self) -> list[Floats]:
        """Return [W_1, ..., W_L]; those in the middle are not copied."""
        return [self._scale * self.F.T, *self.M, self._scale * self.G]

    def copy(self) -> Weights:
        """Return weights that go their own way."""
        return Weights(self.layers())

    def descend(self, problem: Entries, draws: Ints, rate: float, decay: float) -> int:
        """Take a step on each drawn entry; return how many were taken before they exploded."""
        from overt.decay.kernels import descend

        entries = (problem.rows, problem.cols, problem.values)
        return int(descend(self.F, self.M, self.G, self._scale, *entries, draws, rate, decay))

    def fold(self) -> None:
        """Multiply the scale into the end layers."""
        self.F *= self._scale
        self.G *= self._scale
        self._scale[:] = 1


def _execute(
    problem: Entries,
    runs: list[Weights],
    draws: list[Ints],
    schedule: Schedule,
    book: Book,
    threads: int,
    bar: Meter,
) -> bool:
    """Take all steps of all runs; return whether nothing interrupted them."""
    pieces = schedule.pieces(sorted({*book.steps, *range(_PIECE, schedule.steps, _PIECE)}))
    stop = threading.Event()

    def work(number: int) -> None:
        run = runs[number]
        book.write(0, number, run.layers())
        for first, last, phase in pieces:
            if stop.is_set():
                return
            drawn = draws[number][first:last]
            taken = run.descend(problem, drawn, phase.learning_rate, phase.weight_decay)
            bar.advance(last - first)
            if taken < len(drawn):
                book.diverged[number] = True
                return
            book.write(last, number, run.layers())

    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(work, number) for number in range(len(runs))}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        except KeyboardInterrupt:
            stop.set()
    return not stop.is_set()


def _grid(records: int | Sequence[int], steps: int) -> Ints:
    if getattr(records, "ndim", 0 if isinstance(records, int) else 1) == 0:
        even = np.linspace(0, steps, whole("records", records, minimum=2))
        return np.unique(even.round().astype(np.int64))
    grid = np.unique(plain_array("records", records))
    if grid.ndim != 1 or not len(grid) or not np.issubdtype(grid.dtype, np.integer):
        raise InputTypeError(f"records must be a whole number or a list of steps, got {records!r}")
    if grid[0] < 0 or grid[-1] > steps:
        raise InputError(
            f"records must hold steps in 0..{steps} (the schedule's), got {grid[0]}..{grid[-1]}"
        )
    return grid.astype(np.int64)


def _numbers(seeds: int | Sequence[int]) -> list[int]:
    if not isinstance(seeds, (Sequence, np.ndarray)) or getattr(seeds, "ndim", 1) == 0:
        return list(range(whole("seeds", seeds)))
    numbers = [whole("seeds", n, minimum=0) for n in seeds]
    if not numbers:
        raise InputError("seeds must be a number of runs or a list of at least one, got none")
    return numbers


def seed_root(seed: Seed) -> int:
    """Return the whole number from which all runs derive their randomness."""
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**63))
    if seed is None:
        return int(np.random.default_rng().integers(2**63))
    return whole("seed", seed, minimum=0)


def _starts(
    problem: Entries,
    depth: int,
    width: int,
    init: float | Sequence[Any],
    seed: int,
    numbers: list[int],
) -> list[list[Floats]]:
    """Return the first layers of each run."""
    if np.isscalar(init) or getattr(init, "ndim", 1) == 0:
        scale = number("init", init)
        return [
            initial_weights(problem, depth, width, init=scale, seed=seed, run=n) for n in numbers
        ]
    expected, count = layers.shapes(problem.shape, depth, width), len(numbers)
    if not isinstance(init, (Sequence, np.ndarray)):
        raise InputTypeError(f"init must be a number or {depth} layers, got {init!r:.60}")
    given = [doubles("init", W) for W in init]
    own = [
        W if W.ndim == 3 and len(W) == count else np.broadcast_to(W, (count, *W.shape))
        for W in given
    ]
    if [W.shape[1:] for W in own] != expected:
        raise InputError(
            f"init must be a number or {depth} layers of the shapes {expected} (or with a first "
            f"axis of {count} seeds), got {[W.shape for W in given]}"
        )
    return [list(W) for W in zip(*own, strict=True)]
